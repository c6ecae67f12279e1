//go:build !standin

package cuda_test

import "github.com/millrace/millrace/device/cuda/driver"

// loadDriver is the driver of tests on a GPU.
var loadDriver = driver.Load

// lawSteps are how many steps TestGPUTraining takes.
const lawSteps = 10
