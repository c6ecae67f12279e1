//go:build nogpu

package main

// The static program runs in containers that have no files but its own. There, Mozilla's certificates vouch for the
// hub; where the system has certificates, these count alone.
import _ "golang.org/x/crypto/x509roots/fallback"
