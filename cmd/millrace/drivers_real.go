//go:build !standin

package main

import "github.com/millrace/millrace/device/cuda/driver"

// loadDriver is where GPUs come from. Tests have none, or others.
var loadDriver = driver.Load
