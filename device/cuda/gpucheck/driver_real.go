//go:build !standin

package main

import "github.com/millrace/millrace/device/cuda/driver"

// loadDriver is where the driver comes from.
var loadDriver = driver.Load
