//go:build standin

package main

import "github.com/millrace/millrace/internal/cudatest/standin"

// loadDriver is where the driver comes from, in a rehearsal.
var loadDriver = standin.Load
