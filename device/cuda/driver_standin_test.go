//go:build standin

package cuda_test

import (
	"sync"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// loadDriver is the driver of tests on a GPU, in a rehearsal of them. It also knows the kernel of the stand-in's
// library.
var loadDriver = sync.OnceValues(func() (*driver.API, error) { return standin.Rehearsal(loadOnce).API(), nil })

// gpuBLAS opens the library of tests on a GPU.
func gpuBLAS(api *driver.API) func() (cublaslt.BLAS, error) {
	return func() (cublaslt.BLAS, error) { return newBLAS(api) }
}

// machineCode says that candidates are loaded as PTX: the stand-in runs nothing else.
const machineCode = false

// timedRuns counts the repetitions of an operation that is timed, after one that is not. No time means anything here.
const timedRuns = 1

// gpuBlock are the sizes of TestGPUTuning.
var gpuBlock = smallBlock

// gpuMemory has the bytes of host memory that TestGPUMemory touches and pins.
var gpuMemory = struct{ touch, pin int64 }{256 << 20, 16 << 20}

// lawSteps is the number of steps that TestGPUTraining takes.
const lawSteps = 2

// gpuShape has the sizes of TestGPUSpeeds.
var gpuShape = speedShape{rows: 64, document: 32, hidden: 128, inner: 128, heads: 2,
	keys: 1, headDim: 64, tile: 64, parameters: 1 << 12,
	others: []heads{{"Qwen3.5-4B", 2, 1, 256, 0}, {"Gemma 4 31B", 1, 1, 512, 0}, {"Gemma 2 27B", 2, 1, 128, 50},
		{"Qwen2.5-7B", 2, 1, 128, 0}},
	deltas: []device.DeltaSpec{{KeyHeads: 1, Heads: 1, KeyDim: 128, ValueDim: 128}}}
