//go:build !standin

package main

import "github.com/millrace/millrace/device/cuda/driver"

// loadDriver opens GPUs. Tests have none, or others.
var loadDriver = driver.Load
