//go:build standin

package cuda_test

import "github.com/millrace/millrace/internal/cudatest/standin"

// loadDriver is the driver of tests on a GPU, in a rehearsal of them.
var loadDriver = standin.Load

// lawSteps are how many steps TestGPUTraining takes.
const lawSteps = 2

// gpuShape is what TestGPUSpeeds times.
var gpuShape = speedShape{rows: 64, document: 32, hidden: 128, inner: 128, heads: 2, keys: 1, headDim: 64, tile: 64, parameters: 1 << 12}
