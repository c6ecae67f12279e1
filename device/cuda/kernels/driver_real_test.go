//go:build !standin

package kernels_test

import "github.com/millrace/millrace/device/cuda/driver"

// loadDriver is the driver of tests on a GPU.
var loadDriver = driver.Load
