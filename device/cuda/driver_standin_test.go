//go:build standin

package cuda_test

import "github.com/millrace/millrace/internal/cudatest/standin"

// loadDriver is the driver of tests on a GPU, in a rehearsal of them.
var loadDriver = standin.Load

// lawSteps are how many steps TestGPUTraining takes.
const lawSteps = 2
