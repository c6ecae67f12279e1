//go:build !standin

package cuda_test

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
)

// loadDriver is the driver of tests on a GPU.
var loadDriver = driver.Load

// lawSteps is the number of steps that TestGPUTraining takes.
const lawSteps = 10

// gpuShape has the sizes of TestGPUSpeeds: Qwen2.5-7B, four documents in a micro-batch.
var gpuShape = speedShape{rows: 8192, document: 2048, hidden: 3584, inner: 18944, heads: 28,
	keys: 4, headDim: 128, tile: 16384, parameters: 233 << 20,
	others: []heads{{"Qwen3.5-4B", 16, 4, 256, 0}, {"Gemma 4 31B", 32, 4, 512, 0}, {"Gemma 2 27B", 32, 16, 128, 50},
		{"Gemma 2 9B", 16, 8, 256, 50}, {"SmolLM2-135M", 9, 3, 64, 0}},
	deltas: []device.DeltaSpec{{KeyHeads: 16, Heads: 32, KeyDim: 128, ValueDim: 128},
		{KeyHeads: 16, Heads: 48, KeyDim: 128, ValueDim: 128}}}

// timedRuns counts the repetitions of an operation that is timed, after one that is not.
const timedRuns = 5

// gpuBLAS opens the library of tests on a GPU: the one that is installed.
func gpuBLAS(*driver.API) func() (cublaslt.BLAS, error) { return nil }

// gpuMemory has the bytes of host memory that TestGPUMemory touches and pins.
var gpuMemory = struct{ touch, pin int64 }{120 << 30, 16 << 30}

// machineCode says that candidates are loaded as machine code where they have some.
const machineCode = true

// gpuBlock are the sizes of TestGPUTuning.
var gpuBlock = block7B
