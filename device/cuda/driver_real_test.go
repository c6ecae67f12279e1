//go:build !standin

package cuda_test

import (
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
)

// loadDriver is the driver of tests on a GPU.
var loadDriver = driver.Load

// lawSteps are how many steps TestGPUTraining takes.
const lawSteps = 10

// gpuShape has the sizes of TestGPUSpeeds: Qwen2.5-7B, four documents in a micro-batch.
var gpuShape = speedShape{rows: 8192, document: 2048, hidden: 3584, inner: 18944, heads: 28,
	keys: 4, headDim: 128, tile: 16384, parameters: 233 << 20}

// gpuBLAS opens the library of tests on a GPU: the one that is installed.
func gpuBLAS(*driver.API) func() (cublaslt.BLAS, error) { return nil }

// gpuMemory has the bytes of host memory that TestGPUMemory touches and pins.
var gpuMemory = struct{ touch, pin int64 }{120 << 30, 16 << 30}

// gpuBlock are the sizes of TestGPUTuning.
var gpuBlock = block7B
