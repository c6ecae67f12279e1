//go:build !unix

package main

import "os"

// launcherSignals are of systems that have launchers.
var launcherSignals []os.Signal
