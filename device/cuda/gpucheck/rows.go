package main

import "time"

// rows are the questions, those that say most first: whether it starts, whether each kernel is right, how fast a step of a 7B model is,
// and only then what tests elsewhere make likely already.
var rows = []row{
	{name: "machine", least: 1 * time.Second, most: 20 * time.Second, run: machine},
	{name: "open", least: 5 * time.Second, most: 120 * time.Second, run: open, opens: true},
	{name: "memory", least: 10 * time.Second, most: 60 * time.Second, run: memory},
	{name: "kernels", least: 10 * time.Second, most: 90 * time.Second, run: tests("kernels.test", "TestGPUKernels/code", "TestGPUKernels/code/runs/(Add|Norm|Sum|Loss|Fold|ScatterAdd|Variants|MatMul|Attention)")},
	{name: "conformance", least: 10 * time.Second, most: 60 * time.Second, run: tests("cuda.test", "TestGPUConformance", "TestGPUConformance/own_products/aligned_to_16/(Add|Gather|Copy)")},
	{name: "tuning", least: 5 * time.Second, most: 45 * time.Second, run: tests("cuda.test", "TestGPUTuning", "TestTuneProducts")},
	{name: "probe", least: 10 * time.Second, most: 60 * time.Second, run: probe},
	{name: "bench", least: 30 * time.Second, most: 120 * time.Second, run: bench("--stream", "auto")},
	{name: "bench-always", least: 30 * time.Second, most: 120 * time.Second, run: bench("--stream", "always")},
	{name: "bench-noclip", least: 30 * time.Second, most: 120 * time.Second, run: bench("--stream", "always", "--max-grad-norm", "0")},
	{name: "pytorch", least: 15 * time.Second, most: 60 * time.Second, run: pytorch},
	{name: "bench-70b", least: 45 * time.Second, most: 120 * time.Second, run: bench70B},
	{name: "rates", least: 30 * time.Second, most: 90 * time.Second, run: rates},
	{name: "parity", least: 10 * time.Second, most: 60 * time.Second, run: parity},
	{name: "streamed", least: 10 * time.Second, most: 60 * time.Second, run: streamed},
	{name: "peers", least: 45 * time.Second, most: 150 * time.Second, run: peers},
	{name: "laws", least: 10 * time.Second, most: 90 * time.Second, run: tests("cuda.test", "TestGPUTraining", "TestGPUTraining/own_products/qwen3_bf16")},
	{name: "kernels-ptx", least: 20 * time.Second, most: 120 * time.Second, run: tests("kernels.test", "TestGPUKernels/ptx", "TestGPUKernels/ptx/runs/(Loss|Sum|MatMul)")},
	{name: "repeats", least: 10 * time.Second, most: 60 * time.Second, run: tests("cuda.test", "TestGPURepeats", "TestGPURepeats/own_products/aligned_to_16/(MatMul|SwiGLU)")},
	{name: "train", least: 10 * time.Second, most: 60 * time.Second, run: learns},
	{name: "resumed", least: 10 * time.Second, most: 60 * time.Second, run: resumed},
	{name: "real", least: 30 * time.Second, most: 180 * time.Second, run: realModel},
	{name: "bad-input", least: 10 * time.Second, most: 60 * time.Second, run: badInput},
	{name: "driver-bad-input", least: 10 * time.Second, most: 60 * time.Second, run: tests("cuda.test", "TestGPUBadInput", "TestGPUBadInput/wrong_ordinal")},
}
