package main

import "time"

// A rehearsal runs these of a row's tests.
const (
	tinyKernels     = "TestGPUKernels/code/runs/(Add|Norm|Sum|Loss|Fold|ScatterAdd)"
	tinyPTX         = "TestGPUKernels/ptx/runs/(Loss|Sum|MatMul)"
	tinyConformance = "TestGPUConformance/own_products/aligned_to_16/(Add|Gather|Copy)"
	tinyLaws        = "TestGPU(Training|Continues|TakesTurns)/own_products/group_./qwen3_bf16"
	tinyLibrary     = "TestGPUTraining/cuBLASLt/group_./qwen3_bf16"
	tinyRepeats     = "TestGPURepeats/own_products/aligned_to_16/(once|again)/(Add|GLU)"
	tinyBadInput    = "TestGPUBadInput/wrong_ordinal"
)

// rows are the questions, those that say most first: whether it starts, whether what it computes is right, how fast
// each kernel and each part is, how fast a step of a 7B model is, and only then what tests elsewhere make likely
// already. memory comes as late as it can: touching all memory is the row most likely to take a machine down.
var rows = []row{
	{name: "machine", least: sec(1), most: sec(20), run: machine},
	{name: "open", least: sec(5), most: sec(120), run: open, opens: true},
	{name: "kernels", least: sec(10), most: sec(90), run: tests("cuda.test", "TestGPUKernels/code", tinyKernels)},
	{name: "conformance", least: sec(10), most: sec(60), run: tests("cuda.test", "TestGPUConformance", tinyConformance)},
	{name: "pytorch", least: sec(15), most: sec(60), run: pytorch},
	{name: "speeds", least: sec(8), most: sec(45), run: tabled("speeds", "TestGPUSpeeds")},
	{name: "variants", least: sec(10), most: sec(180), run: tabled("variants", "TestGPUVariants")},
	{name: "tuning", least: sec(5), most: sec(45), run: tests("cuda.test", "TestGPUTuning", "TestGPUTuning")},
	{name: "sustained", least: sec(5), most: sec(45), run: tabled("sustained", "TestGPUSustained")},
	{name: "probe", least: sec(10), most: sec(60), run: probe},
	{name: "memory", least: sec(10), most: sec(60), run: memory},
	{name: "bench", least: sec(30), most: sec(150), run: benchmark{name: "bench", steps: 8}.run, keeps: true},
	{name: "bench-always", least: sec(30), most: sec(150),
		run: benchmark{name: "bench-always", steps: 3, flags: always}.run, keeps: true},
	{name: "bench-qwen3.5", least: sec(30), most: sec(150), keeps: true, run: benchmark{name: "bench-qwen3.5",
		shape: "qwen3.5-4b", tiny: "model/modeltest/testdata-delta/qwen3_5_text", steps: 3}.run},
	{name: "bench-8k", least: sec(30), most: sec(150),
		run: benchmark{name: "bench-8k", sequenceLen: 8192, steps: 3}.run, keeps: true},
	{name: "parity", least: sec(10), most: sec(60), run: parity},
	{name: "streamed", least: sec(10), most: sec(60), run: streamed},
	{name: "laws", least: sec(30), most: sec(90),
		run: tests("cuda.test", "TestGPU(Training|Continues|TakesTurns)", tinyLaws)},
	{name: "laws-library", least: sec(15), most: sec(60), run: tests("cuda.test", lawsLibrary, tinyLibrary)},
	{name: "two-gpus", least: sec(50), most: sec(180), run: twoGPUs, keeps: true},
	{name: "bench-noclip", least: sec(30), most: sec(150),
		run: benchmark{name: "bench-noclip", steps: 3, flags: append(always, "--max-grad-norm", "0")}.run, keeps: true},
	// What no single host holds.
	{name: "bench-70b", least: sec(45), most: sec(150), keeps: true, run: benchmark{name: "bench-70b",
		shape: "llama-3-70b", steps: 3, flags: []string{"--alias-layers"}}.run},
	// What no GPU holds and a host of 128 GiB does, with nothing shared.
	{name: "bench-14b", least: sec(60), most: sec(150), keeps: true, run: benchmark{name: "bench-14b",
		shape: "qwen2.5-14b", steps: 2, flags: []string{"--moments", "8bit"}, whole: true}.run},
	{name: "rates", least: sec(30), most: sec(90), run: rates},
	{name: "kernels-ptx", least: sec(20), most: sec(120), run: tests("cuda.test", "TestGPUKernels/ptx", tinyPTX)},
	{name: "memcheck", least: sec(15), most: sec(60), run: sanitize("memcheck"), keeps: true},
	{name: "racecheck", least: sec(15), most: sec(60), run: sanitize("racecheck"), keeps: true},
	{name: "bench-own", least: sec(30), most: sec(150),
		run: benchmark{name: "bench-own", steps: 3, env: []string{"MILLRACE_OWN_PRODUCTS=1"}}.run, keeps: true},
	{name: "peers", least: sec(45), most: sec(565), run: peers},
	{name: "repeats", least: sec(10), most: sec(60), run: tests("cuda.test", "TestGPURepeats", tinyRepeats)},
	{name: "train", least: sec(10), most: sec(60), run: learns},
	{name: "resumed", least: sec(10), most: sec(60), run: resumed},
	{name: "real", least: sec(30), most: sec(180), run: realModel},
	{name: "bad-input", least: sec(10), most: sec(60), run: badInput},
	{name: "driver-bad-input", least: sec(10), most: sec(60), run: tests("cuda.test", "TestGPUBadInput", tinyBadInput)},
}

// lawsLibrary are the laws of models whose shapes cuBLASLt takes: each has a product whose result is added to the
// residual stream.
const lawsLibrary = "TestGPU(Training|Continues)/cuBLASLt/group_./(qwen3_5|qwen3_next|gpt_oss|gemma)[^/]*"

// always are the flags of a benchmark whose blocks are all streamed.
var always = []string{"--stream", "always"}

func sec(n int) time.Duration { return time.Duration(n) * time.Second }
