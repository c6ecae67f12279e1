//go:build standin

package cuda_test

import (
	"sync"

	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/internal/cudatest/standin"
)

// loadDriver is the driver of tests on a GPU, in a rehearsal of them. It also knows the kernel of the stand-in's
// library.
var loadDriver = sync.OnceValues(func() (*driver.API, error) { return standin.Rehearsal(loadOnce).API(), nil })

// gpuBLAS opens the library of tests on a GPU.
func gpuBLAS(api *driver.API) func() (cublaslt.BLAS, error) {
	return func() (cublaslt.BLAS, error) { return newBLAS(api) }
}

// gpuBlock are the sizes of TestGPUTuning.
var gpuBlock = smallBlock

// gpuMemory has the bytes of host memory that TestGPUMemory touches and pins.
var gpuMemory = struct{ touch, pin int64 }{256 << 20, 16 << 20}

// lawSteps are how many steps TestGPUTraining takes.
const lawSteps = 2

// gpuShape has the sizes of TestGPUSpeeds.
var gpuShape = speedShape{rows: 64, document: 32, hidden: 128, inner: 128, heads: 2,
	keys: 1, headDim: 64, tile: 64, parameters: 1 << 12}
