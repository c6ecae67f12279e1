package cuda_test

import (
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// Handing an operation to the driver allocates nothing: a step has tens of thousands of them, and a garbage
// collection would stop the lanes. What calls into C costs is purego's, and not counted: the driver is one that does
// nothing.
func TestOperationsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, p := range []products{ownProducts, library} {
		gpu := standin.New(standin.Options{Load: loadOnce})
		o := options(gpu, p, 0)
		o.OpenBLAS = func() (cublaslt.BLAS, error) { return idleBLAS{}, nil }
		d, err := cuda.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{d, gpu}
		defer mustClose(t, r)
		b, err := d.Alloc("operands", 1<<26)
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, b)
		region, pinned, s := streamWithMemory(t, d)
		defer mustClose(t, region)
		defer mustClose(t, pinned)
		defer mustClose(t, s)
		real := *o.API
		idle(o.API)
		defer func() { *o.API = real }() // for what is closed
		for name, f := range everyOperation(s, device.NewArena(device.Whole(b)), device.Whole(pinned), middling) {
			if n := testing.AllocsPerRun(20, f); n != 0 {
				t.Errorf("products %v: %s allocates %v times", p, name, n)
			}
		}
	}
}

// idle makes the calls of a stream do nothing.
func idle(a *driver.API) {
	a.CtxSetCurrent = func(driver.Context) driver.Result { return driver.Success }
	a.LaunchKernel = func(driver.Function, uint32, uint32, uint32, uint32, uint32, uint32, uint32, driver.Stream, *unsafe.Pointer, *unsafe.Pointer) driver.Result {
		return driver.Success
	}
	a.MemcpyHtoDAsync = func(driver.DevicePtr, unsafe.Pointer, uint64, driver.Stream) driver.Result { return driver.Success }
	a.MemcpyDtoHAsync = func(unsafe.Pointer, driver.DevicePtr, uint64, driver.Stream) driver.Result { return driver.Success }
	a.MemcpyDtoDAsync = func(_, _ driver.DevicePtr, _ uint64, _ driver.Stream) driver.Result { return driver.Success }
	a.MemsetD8Async = func(driver.DevicePtr, uint8, uint64, driver.Stream) driver.Result { return driver.Success }
}

// idleBLAS multiplies nothing.
type idleBLAS struct{}

func (idleBLAS) Name() string { return "idle" }
func (idleBLAS) Close() error { return nil }
func (idleBLAS) MatMul(*cublaslt.Product, cublaslt.Workspace, driver.Stream) (bool, error) {
	return true, nil
}
func (idleBLAS) Tune(*cublaslt.Product, cublaslt.Workspace, driver.Stream, cublaslt.Timer) error {
	return nil
}
func (idleBLAS) Algorithms() []string         { return nil }
func (idleBLAS) UseAlgorithms([]string) error { return nil }

// extents holds the sizes of the operands of everyOperation.
type extents struct {
	rows, heads, headDim int
	tableRows            int // of what is looked up
	elements             int // of weights with their moments
}

var middling = extents{rows: 128, heads: 4, headDim: 64, tableRows: 256, elements: 1 << 16}

// everyOperation has a call of each operation.
func everyOperation(s device.Stream, a *device.Arena, host device.Mem, e extents) map[string]func() {
	rows, heads, headDim, n := e.rows, e.heads, e.headDim, e.elements
	cols := heads * headDim
	mat := func(dtype tensor.DType, rows, cols int) device.Mat { return a.Mat(dtype, rows, cols) }
	x, y, z := mat(tensor.BF16, rows, cols), mat(tensor.BF16, rows, cols), mat(tensor.BF16, rows, cols)
	k, v, dk, dv := mat(tensor.BF16, rows, cols/2), mat(tensor.BF16, rows, cols/2), mat(tensor.BF16, rows, cols/2), mat(tensor.BF16, rows, cols/2)
	q, out, dq, dout := mat(tensor.BF16, rows, cols), mat(tensor.BF16, rows, cols), mat(tensor.BF16, rows, cols), mat(tensor.BF16, rows, cols)
	w, bias, db, wide := mat(tensor.BF16, cols, cols), mat(tensor.BF16, 1, cols), mat(tensor.F32, 1, cols), mat(tensor.BF16, rows, 2*cols)
	dWide, f, dw := mat(tensor.BF16, rows, 2*cols), mat(tensor.F32, rows, cols), mat(tensor.F32, cols, cols)
	rstd, stat, figures := mat(tensor.F32, rows, 1), mat(tensor.F32, rows, device.HeadStats),
		mat(tensor.F32, device.TokenFigures, rows)
	lse, delta := mat(tensor.F32, rows, heads), mat(tensor.F32, rows, heads)
	cos, sin := mat(tensor.F32, rows, headDim/2), mat(tensor.F32, rows, headDim/2)
	ids, picks := a.Take(int64(4*rows)), a.Take(int64(4*rows*device.HeadStats))
	drawn, draws := mat(tensor.F32, rows, device.DrawnFigures), a.Take(int64(4*rows*device.DrawWords))
	table, dTable := mat(tensor.BF16, e.tableRows, cols), mat(tensor.F32, e.tableRows, cols)
	docs := device.Docs{Positions: ids, Start: ids, End: ids}
	spec := device.AttentionSpec{Heads: heads, KVHeads: heads / 2, HeadDim: headDim, Scale: 0.125, Docs: docs}
	dsinks, sinks, capped := mat(tensor.F32, 1, heads), mat(tensor.BF16, 1, heads), spec
	capped.SoftCap, capped.Sinks = 50, sinks
	joined, parts := mat(tensor.BF16, rows, heads*48), mat(tensor.BF16, rows, heads*32)
	shared := mat(tensor.BF16, rows, 16)
	vec := func(t tensor.DType, n int) device.Mat { return a.Mat(t, 1, n) }
	low8 := vec(tensor.I8, n)
	weights, low, grad, m, u := vec(tensor.BF16, n), vec(tensor.I16, n), vec(tensor.BF16, n), vec(tensor.F32, n), vec(tensor.F32, n)
	m8, u8, ms, us := vec(tensor.U8, n), vec(tensor.U8, n), vec(tensor.F32, n/tensor.MomentBlock), vec(tensor.F32, n/tensor.MomentBlock)
	scalars := device.AdamWScalars{ClipScale: 1, Decay: 1, Beta2: 0.9, SqrtBC2: 1, Eps: 1e-8}
	sum, tally := a.Take(8), a.Take(device.TallyBytes)
	const topK, experts = 4, 16
	numbers := func(n int) device.Mem { return a.Take(4 * int64(n)) }
	perChoice, dPerChoice := mat(tensor.F32, rows, topK), mat(tensor.F32, rows, topK)
	router, dRouter := mat(tensor.F32, rows, experts), mat(tensor.BF16, rows, experts)
	route := device.RouteSpec{TopK: topK, Scale: 1, Groups: 4, TopGroups: 2}
	routing := device.Routing{Rows: rows, TopK: topK, Experts: experts, Choices: numbers(rows * topK),
		Order: numbers(rows * topK),
		Rank:  numbers(rows * topK), Starts: numbers(experts + 1)}
	blocks := device.Blocks{Routing: routing, Experts: 1, Rows: 64, Count: (rows + 63) / 64}
	ofBlocks := func(cols int) device.Mat { return mat(tensor.BF16, blocks.Count*blocks.Rows, cols) }
	outputs := mat(tensor.BF16, rows*topK, cols)
	bx, by, bWide, dBias := ofBlocks(cols), ofBlocks(cols), ofBlocks(2*cols), mat(tensor.F32, 1, cols)
	norm, stats := device.NormSpec{Groups: 1, Eps: 1e-6}, mat(tensor.F32, rows, 2)
	taps, dTaps, each := mat(tensor.BF16, cols, 4), mat(tensor.F32, cols, 4), mat(tensor.BF16, rows, heads)
	decay, beta, dRates := mat(tensor.F32, rows, heads), mat(tensor.F32, rows, heads), mat(tensor.F32, 1, heads)
	dEach, dOther := mat(tensor.BF16, rows, heads), mat(tensor.BF16, rows, heads)
	net := device.DeltaSpec{KeyHeads: 2, Heads: 4, KeyDim: 16, ValueDim: 32, Docs: docs}
	chunks, state := net.States(rows)
	jointly, dJointly := mat(tensor.BF16, rows, net.QKVCols()), mat(tensor.BF16, rows, net.QKVCols())
	read, dRead := mat(tensor.BF16, rows, net.Values()), mat(tensor.BF16, rows, net.Values())
	states, dStates := mat(tensor.F32, chunks, state), mat(tensor.F32, chunks, state)
	ofNet := func() device.Mat { return mat(tensor.F32, rows, net.Heads) }
	netDecay, netBeta, dDecay, dBeta := ofNet(), ofNet(), ofNet(), ofNet()
	ofWide := device.DeltaSpec{KeyHeads: 1, Heads: 4, KeyDim: 128, ValueDim: 128, Docs: docs} // T is in terms
	_, wideState := ofWide.States(rows)
	wideJointly, dWideJointly := mat(tensor.BF16, rows, ofWide.QKVCols()), mat(tensor.BF16, rows, ofWide.QKVCols())
	wideRead, dWideRead := mat(tensor.BF16, rows, ofWide.Values()), mat(tensor.BF16, rows, ofWide.Values())
	wideStates, dWideStates := mat(tensor.F32, chunks, wideState), mat(tensor.F32, chunks, wideState)
	tail := mat(tensor.BF16, 3, cols)
	return map[string]func(){
		"Copy up":          func() { s.Copy(x.Slice(0, 1<<14), host.Slice(0, 1<<14)) },
		"Copy down":        func() { s.Copy(host.Slice(0, 1<<14), x.Slice(0, 1<<14)) },
		"Copy":             func() { s.Copy(x.Mem, y.Mem) },
		"Zero":             func() { s.Zero(x.Mem) },
		"MatMul":           func() { s.MatMul(y, x, w, device.MatMulFlags{TransB: true}) },
		"MatMul small":     func() { s.MatMul(y.RowRange(0, 3), x.RowRange(0, 3), w, device.MatMulFlags{}) },
		"MatMul summed":    func() { s.MatMul(dw, x, y, device.MatMulFlags{TransA: true, Accumulate: true}) },
		"AddBias":          func() { s.AddBias(y, bias) },
		"BiasGrad":         func() { s.BiasGrad(db, y) },
		"Add":              func() { s.Add(z, x, y) },
		"Scale":            func() { s.Scale(z, x, 1.7) },
		"Add strided":      func() { s.Add(z.ColRange(0, 64), x.ColRange(0, 64), y.ColRange(0, 64)) },
		"Cast":             func() { s.Cast(f, x) },
		"RMSNorm":          func() { s.RMSNorm(y, rstd, x, bias, norm) },
		"RMSNormGrad":      func() { s.RMSNormGrad(z, db, y, x, bias, rstd, device.Mat{}, norm) },
		"LayerNorm":        func() { s.LayerNorm(y, stats, x, bias, bias, 1e-5) },
		"LayerNormGrad":    func() { s.LayerNormGrad(z, db, y, x, bias, stats, device.Mat{}) },
		"GLU":              func() { s.GLU(y, wide, device.GLUSpec{Gate: device.GELUTanh}) },
		"GLUGrad":          func() { s.GLUGrad(dWide, y, y, wide, device.GLUSpec{Gate: device.GELUTanh}) },
		"RoPE":             func() { s.RoPE(y, x, device.Mat{}, heads, cos, sin, ids, false) },
		"RoPE of a sum":    func() { s.RoPE(y, x, bias, heads, cos, sin, ids, false) },
		"Attention":        func() { s.Attention(out, lse, q, k, v, spec) },
		"AttentionGrad":    func() { s.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec) },
		"SinkGrad":         func() { s.SinkGrad(dsinks, sinks, lse, delta) },
		"JoinHeads":        func() { s.JoinHeads(joined, parts, shared, heads) },
		"JoinHeads, own":   func() { s.JoinHeads(wide, y, z, heads) },
		"JoinHeads, zeros": func() { s.JoinHeads(wide, y, device.Mat{}, heads) },
		"SplitHeads, own":  func() { s.SplitHeads(y, z, wide, heads) },
		"SplitHeads, a":    func() { s.SplitHeads(y, device.Mat{}, wide, heads) },
		"GLU, ungated":     func() { s.GLU(y, z, device.GLUSpec{Gate: device.GELU, Ungated: true}) },
		"SplitHeads":       func() { s.SplitHeads(parts, shared, joined, heads) },
		"Attention capped": func() { s.Attention(out, lse, q, k, v, capped) },
		"LSEInit":          func() { s.LSEInit(stat) },
		"LSEUpdate":        func() { s.LSEUpdate(stat, f, ids, 0, 30) },
		"TokenLoss":        func() { s.TokenLoss(figures, stat, ids) },
		"CrossEntropyGrad": func() { s.CrossEntropyGrad(x, f, stat, ids, figures.Mem, device.Mem{}, 0, 30) },
		"CrossEntropyGrad with entropies": func() {
			s.CrossEntropyGrad(x, f, stat, ids, figures.Mem, figures.Mem, 0, 30)
		},
		"PickLogits":    func() { s.PickLogits(stat, f, picks, 0, 30) },
		"DrawTokens":    func() { s.DrawTokens(drawn, stat, f, draws, 0, cols, 30) },
		"PutLogitGrads": func() { s.PutLogitGrads(x, f, stat, picks, 0, 30) },
		"Gather":        func() { s.Gather(y, table, ids, 0) },
		"ScatterAdd":    func() { s.ScatterAdd(dTable, y, ids, 0, 1) },
		"AdamW": func() {
			s.AdamW(device.AdamWArgs{Weights: weights, Low: low, M: m, V: u, Grad: grad, AdamWScalars: scalars}, tally)
		},
		"AdamW, 24 bits": func() {
			s.AdamW(device.AdamWArgs{Weights: weights, Low: low8, M: m, V: u, Grad: grad, AdamWScalars: scalars}, tally)
		},
		"AdamW8": func() {
			s.AdamW8(device.AdamW8Args{Weights: weights, Low: low, M: m8, V: u8, MScale: ms, VScale: us, Grad: grad, AdamWScalars: scalars}, tally)
		},
		"Route":        func() { s.Route(routing.Choices, perChoice, router, device.Mat{}, route) },
		"RouteGrad":    func() { s.RouteGrad(dRouter, perChoice, router, routing.Choices, route) },
		"SortChoices":  func() { s.SortChoices(routing) },
		"ScaleChoices": func() { s.ScaleChoices(dPerChoice, perChoice, bias.ColRange(0, experts), routing.Choices) },
		"ScaleChoicesGrad": func() {
			s.ScaleChoicesGrad(db.ColRange(0, experts), dPerChoice, perChoice, routing.Choices)
		},
		"GatherRows":       func() { s.GatherRows(by, x, blocks) },
		"ExpertMatMul":     func() { s.ExpertMatMul(by, bx, w, bias, device.ExpertProduct{Transposed: true}, blocks) },
		"ExpertWeightGrad": func() { s.ExpertWeightGrad(dw, by, bx, blocks) },
		"ExpertBiasGrad":   func() { s.ExpertBiasGrad(dBias, dPerChoice, by, bias, perChoice, blocks) },
		"ExpertGLU":        func() { s.ExpertGLU(by, bWide, device.GLUSpec{}, blocks) },
		"ExpertGLUGrad": func() {
			s.ExpertGLUGrad(bWide, by, dPerChoice, by, bWide, perChoice, device.GLUSpec{},
				blocks)
		},
		"CombineRows":       func() { s.CombineRows(x, outputs, f, perChoice, routing.Rank, topK) },
		"CausalConv":        func() { s.CausalConv(y, x, taps, docs) },
		"CausalConvGrad":    func() { s.CausalConvGrad(z, dTaps, y, x, taps, docs) },
		"Gate":              func() { s.Gate(y, x, z, device.SigmoidGate) },
		"Gate of heads":     func() { s.Gate(y, x, each, device.SiLUGate) },
		"GateGrad":          func() { s.GateGrad(y, z, y, x, z, device.SigmoidGate) },
		"GateGrad of heads": func() { s.GateGrad(y, dEach, y, x, each, device.SiLUGate) },
		"DeltaGates":        func() { s.DeltaGates(decay, beta, each, each, sinks, sinks) },
		"DeltaGatesGrad": func() {
			s.DeltaGatesGrad(dEach, dOther, dsinks, dRates, decay, beta, each, each, sinks, sinks)
		},
		"GatedDelta":      func() { s.GatedDelta(read, states, jointly, netDecay, netBeta, net) },
		"GatedDelta wide": func() { s.GatedDelta(wideRead, wideStates, wideJointly, netDecay, netBeta, ofWide) },
		"GatedDeltaGrad wide": func() {
			s.GatedDeltaGrad(dWideJointly, dDecay, dBeta, dWideStates, dWideRead, wideJointly, netDecay, netBeta, wideStates,
				ofWide)
		},
		"GatedDeltaGrad": func() {
			s.GatedDeltaGrad(dJointly, dDecay, dBeta, dStates, dRead, jointly, netDecay, netBeta, states, net)
		},
		"AttendCache":  func() { s.AttendCache(out, q, k, v, capped) },
		"Put":          func() { s.Put(table, y, ids) },
		"ContinueConv": func() { s.ContinueConv(y, tail, x, taps, device.Continued{Docs: docs, Each: rows}) },
		"ContinueDelta": func() {
			s.ContinueDelta(read, states, jointly, netDecay, netBeta, net, rows)
		},
		"SumSquares": func() { s.SumSquares(sum, grad) },
		"Sum":        func() { s.Sum(sum, m) },
	}
}
