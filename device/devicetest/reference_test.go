package devicetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// The reference keeps the contract that it is the measure of: streams, events, memory, refusals, and that operations
// leave alone what is not theirs. Its numbers are held by TestReferenceGradients and TestReferenceAgainstTransformers.
func TestReferenceConforms(t *testing.T) {
	Suite{
		Open: func() device.Device { return NewReference(64 << 20) },
		Fail: func(s device.Stream, err error) { s.(*referenceStream).Fail(err) },
	}.Run(t)
}

// The reference has the memory that it was made with, and is not closed below its buffers.
func TestReferenceMemory(t *testing.T) {
	d := NewReference(1000)
	first, err := d.Alloc("weights", 600)
	if err != nil {
		t.Fatal(err)
	}
	const want = "401 bytes for gradients do not fit"
	if _, err := d.Alloc("gradients", 401); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error of an allocation that is too large: %v", err)
	}
	if d.Close() == nil {
		t.Error("the device closes below a buffer")
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second, err := d.Alloc("gradients", 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(second.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}

// numbersOf makes operands from numbers, in memory that rounds nothing, for operations of a reference.
type numbersOf struct {
	device.Stream
	memory *referenceBuffer
	arena  *device.Arena
}

func newNumbers() *numbersOf {
	b := newWideBuffer(1 << 20)
	return &numbersOf{&referenceStream{}, b, device.NewArena(device.Whole(b))}
}

// of places x as a matrix of a type, with len(x)/rows columns.
func (n *numbersOf) of(d tensor.DType, rows int, x []float64) device.Mat {
	m := n.arena.Mat(d, rows, len(x)/rows)
	n.memory.put(m, x)
	return m
}

// f32 places x as a matrix of F32.
func (n *numbersOf) f32(rows int, x []float64) device.Mat { return n.of(tensor.F32, rows, x) }

// ints places an I32 vector.
func (n *numbersOf) ints(x []int32) device.Mem {
	v := make([]float64, len(x))
	for i := range x {
		v[i] = float64(x[i])
	}
	return n.of(tensor.I32, 1, v).Mem
}

// like places zeros in the shape of m, as an output.
func (n *numbersOf) like(m device.Mat) device.Mat {
	return n.f32(m.Rows, make([]float64, m.Rows*m.Cols))
}

func (n *numbersOf) read(m device.Mat) []float64 { return n.memory.numbers(m) }

// The gradients of the reference are held against central differences of its forward operations, in the direction of
// each input, for the function sum(weights * output).
func TestReferenceGradients(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	n := newNumbers()
	normal := func(rows, cols int) device.Mat {
		x := make([]float64, rows*cols)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return n.f32(rows, x)
	}
	check := func(name string, x, grad device.Mat, f func() float64) {
		t.Helper()
		const h = 1e-5
		at := func(v []float64, i int, d float64) float64 {
			moved := append([]float64(nil), v...)
			moved[i] += d
			n.memory.put(x, moved)
			return f()
		}
		v, got := n.read(x), n.read(grad)
		for i := range v {
			want := (at(v, i, h) - at(v, i, -h)) / (2 * h)
			if !(math.Abs(got[i]-want) <= 1e-7*(1+math.Abs(want))) {
				t.Errorf("%s: derivative %d is %v, differences give %v", name, i, got[i], want)
			}
		}
		n.memory.put(x, v)
	}
	inner := func(a, b device.Mat) float64 { return dot(n.read(a), n.read(b)) }

	x, w, dy := normal(3, 2*5), normal(1, 5), normal(3, 2*5)
	y, rstd, dx, dw := n.like(x), normal(3, 2), n.like(x), n.like(w)
	for _, spec := range []device.NormSpec{{Groups: 2, Eps: 1e-3}, {Groups: 2, Eps: 1e-3, Offset: 1}} {
		norm := func() float64 {
			n.RMSNorm(y, rstd, x, w, spec)
			return inner(dy, y)
		}
		norm()
		n.Zero(dw.Mem)
		n.RMSNormGrad(dx, dw, dy, x, w, rstd, device.Mat{}, spec)
		check("RMSNorm x", x, dx, norm)
		check("RMSNorm w", w, dw, norm)
	}
	bare := device.NormSpec{Groups: 2, Eps: 1e-3}
	n.RMSNormGrad(dx, device.Mat{}, dy, x, device.Mat{}, rstd, device.Mat{}, bare)
	check("RMSNorm without a weight", x, dx, func() float64 {
		n.RMSNorm(y, rstd, x, device.Mat{}, bare)
		return inner(dy, y)
	})

	whole, scale, shift, dWhole := normal(3, 7), normal(1, 7), normal(1, 7), normal(3, 7)
	out, stat, dx, dw := n.like(whole), normal(3, 2), n.like(whole), n.like(scale)
	layerNorm := func() float64 {
		n.LayerNorm(out, stat, whole, scale, shift, 1e-3)
		return inner(dWhole, out)
	}
	layerNorm()
	n.Zero(dw.Mem)
	n.LayerNormGrad(dx, dw, dWhole, whole, scale, stat, device.Mat{})
	check("LayerNorm x", whole, dx, layerNorm)
	check("LayerNorm w", scale, dw, layerNorm)

	for _, spec := range gluSpecs {
		gateUp, dh := normal(3, spec.Inputs()*4), normal(3, 4)
		h, dGateUp := n.like(dh), n.like(gateUp)
		n.GLUGrad(dGateUp, h, dh, gateUp, spec)
		check(fmt.Sprintf("GLU %+v", spec), gateUp, dGateUp, func() float64 {
			n.GLU(h, gateUp, spec)
			return inner(dh, h)
		})
	}

	logits, targets := normal(4, 7), n.ints([]int32{3, -1, 0, 6})
	weights := n.f32(1, []float64{1, 1, 1, -2})
	for variant := range 4 {
		softCap, slopes := float32(variant%2)*1.5, n.f32(1, []float64{-0.5, 2, 0.25, 1})
		if variant < 2 {
			n.memory.put(slopes, make([]float64, 4))
		}
		dlogits := n.like(logits)
		loss := func() float64 {
			of := n.figures(dlogits, logits, targets, weights.Mem, slopes.Mem, softCap)
			return dot(n.read(weights), of[:4]) + dot(n.read(slopes), of[4:8])
		}
		loss()
		grad := n.f32(4, n.read(dlogits))
		check("CrossEntropy", logits, grad, loss)
	}

	for variant := range 8 {
		starts := n.ints([]int32{0, 0, 0, 3, 3, 3})
		spec := device.AttentionSpec{Heads: 4, KVHeads: 2, HeadDim: 3, Scale: 0.6,
			Docs: device.Docs{Positions: starts, Start: starts, End: n.ints([]int32{3, 3, 3, 6, 6, 6})}}
		if variant&1 != 0 {
			spec.Window = 2
		}
		if variant&2 != 0 {
			spec.SoftCap = 0.8
		}
		if variant&4 != 0 {
			spec.Sinks = n.f32(1, []float64{-1, 0, 0.5, 3})
		}
		q, k, v, dout := normal(6, 12), normal(6, 6), normal(6, 6), normal(6, 12)
		a := n.attention(q, k, v, dout, spec)
		f := func() float64 {
			n.Attention(a.out, a.lse, q, k, v, spec)
			return inner(dout, a.out)
		}
		check("Attention q", q, a.dq, f)
		check("Attention k", k, a.dk, f)
		check("Attention v", v, a.dv, f)
		if !spec.Sinks.IsZero() {
			check("Attention sinks", spec.Sinks, a.dsinks, f)
		}
	}

	starts := n.ints([]int32{0, 0, 0, 3, 4, 4})
	docs := device.Docs{Start: starts, End: n.ints([]int32{3, 3, 3, 4, 6, 6})}
	xc, wc, dc := normal(6, 3), normal(3, 4), normal(6, 3)
	yc, dxc, dwc := n.like(xc), n.like(xc), n.like(wc)
	n.CausalConvGrad(dxc, dwc, dc, xc, wc, docs)
	conv := func() float64 {
		n.CausalConv(yc, xc, wc, docs)
		return inner(dc, yc)
	}
	check("CausalConv x", xc, dxc, conv)
	check("CausalConv w", wc, dwc, conv)

	for _, kind := range []device.GateKind{device.SigmoidGate, device.SiLUGate} {
		xg, gate, dg := normal(3, 6), normal(3, 2), normal(3, 6)
		yg, dxg, dgate := n.like(xg), n.like(xg), n.like(gate)
		n.GateGrad(dxg, dgate, dg, xg, gate, kind)
		f := func() float64 {
			n.Gate(yg, xg, gate, kind)
			return inner(dg, yg)
		}
		check("Gate x", xg, dxg, f)
		check("Gate gate", gate, dgate, f)
	}

	a, b, aLog, dtBias := normal(5, 3), normal(5, 3), normal(1, 3), normal(1, 3)
	ddecay, dbeta := normal(5, 3), normal(5, 3)
	decay, beta := n.like(a), n.like(b)
	gates := func() float64 {
		n.DeltaGates(decay, beta, a, b, aLog, dtBias)
		return inner(ddecay, decay) + inner(dbeta, beta)
	}
	da, db, daLog, ddtBias := n.like(a), n.like(b), n.like(aLog), n.like(dtBias)
	n.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
	check("DeltaGates a", a, da, gates)
	check("DeltaGates b", b, db, gates)
	check("DeltaGates aLog", aLog, daLog, gates)
	check("DeltaGates dtBias", dtBias, ddtBias, gates)

	net := device.DeltaSpec{KeyHeads: 1, Heads: 2, KeyDim: 3, ValueDim: 2, Docs: docs}
	qkv, dout := normal(6, net.QKVCols()), normal(6, net.Values())
	decays, betas := normal(6, 2), normal(6, 2)
	n.memory.put(decays, squared(n.read(decays), -1))
	chunks, cols := net.States(6)
	states, dstates := normal(chunks, cols), normal(chunks, cols)
	outDelta, dqkv, ddecays, dbetas := n.like(dout), n.like(qkv), n.like(decays), n.like(betas)
	n.GatedDeltaGrad(dqkv, ddecays, dbetas, dstates, dout, qkv, decays, betas, states, net)
	recurrence := func() float64 {
		n.GatedDelta(outDelta, states, qkv, decays, betas, net)
		return inner(dout, outDelta)
	}
	check("GatedDelta qkv", qkv, dqkv, recurrence)
	check("GatedDelta decay", decays, ddecays, recurrence)
	check("GatedDelta beta", betas, dbetas, recurrence)

	for _, b := range []struct {
		name string
		cols int
	}{{"of its own", 6}, {"shared", 2}} {
		first, rest, dy := normal(4, 3*5), normal(4, b.cols), normal(4, 3*5+3*2)
		y, dFirst, dRest := n.like(dy), n.like(first), n.like(rest)
		n.SplitHeads(dFirst, dRest, dy, 3)
		join := func() float64 {
			n.JoinHeads(y, first, rest, 3)
			return inner(dy, y)
		}
		check("JoinHeads a, b "+b.name, first, dFirst, join)
		check("JoinHeads b "+b.name, rest, dRest, join)
	}

	angles := make([]float64, 4*3)
	for i := range angles {
		angles[i] = rng.NormFloat64()
	}
	cosines, sines := make([]float64, len(angles)), make([]float64, len(angles))
	for i, a := range angles {
		cosines[i], sines[i] = math.Cos(a), math.Sin(a)
	}
	cos, sin := n.f32(4, cosines), n.f32(4, sines)
	xr, dr, positions := normal(3, 2*6), normal(3, 2*6), n.ints([]int32{3, 0, 2})
	yr, dxr := n.like(xr), n.like(xr)
	n.RoPE(dxr, dr, device.Mat{}, 2, cos, sin, positions, true)
	check("RoPE", xr, dxr, func() float64 {
		n.RoPE(yr, xr, device.Mat{}, 2, cos, sin, positions, false)
		return inner(dr, yr)
	})
}

// squared is by*x^2.
func squared(x []float64, by float64) []float64 {
	for i, v := range x {
		x[i] = by * v * v
	}
	return x
}

// attentionResults has the outputs of an attention and of its gradients.
type attentionResults struct{ out, lse, dq, dk, dv, dsinks device.Mat }

// attention runs an attention and its gradients.
func (n *numbersOf) attention(q, k, v, dout device.Mat, spec device.AttentionSpec) *attentionResults {
	stat := func() device.Mat { return n.f32(q.Rows, make([]float64, q.Rows*spec.Heads)) }
	a := &attentionResults{n.like(q), stat(), n.like(q), n.like(k), n.like(v), n.f32(1, make([]float64, spec.Heads))}
	delta := stat()
	n.Attention(a.out, a.lse, q, k, v, spec)
	n.AttentionGrad(a.dq, a.dk, a.dv, dout, q, k, v, a.out, a.lse, delta, spec)
	if !spec.Sinks.IsZero() {
		n.SinkGrad(a.dsinks, spec.Sinks, a.lse, delta)
	}
	return a
}

// figures returns the losses, entropies and hits of rows of logits, and writes the gradient of the weighted sum of
// losses and entropies, tile by tile.
func (n *numbersOf) figures(dlogits, logits device.Mat, targets, weights, entropySlopes device.Mem,
	softCap float32) []float64 {
	const tile = 3
	mark := n.arena.Mark()
	defer n.arena.Release(mark)
	stat := n.f32(logits.Rows, make([]float64, device.HeadStats*logits.Rows))
	figures := n.f32(device.TokenFigures, make([]float64, device.TokenFigures*logits.Rows))
	n.LSEInit(stat)
	for first := 0; first < logits.Cols; first += tile {
		n.LSEUpdate(stat, logits.ColRange(first, min(tile, logits.Cols-first)), targets, first, softCap)
	}
	n.TokenLoss(figures, stat, targets)
	for first := 0; first < logits.Cols; first += tile {
		cols := min(tile, logits.Cols-first)
		n.CrossEntropyGrad(dlogits.ColRange(first, cols), logits.ColRange(first, cols), stat, targets, weights,
			entropySlopes, first, softCap)
	}
	return n.read(figures)
}

// TestReferenceFigures compares entropies with their definition, and hits with the largest logits, which some targets
// share.
func TestReferenceFigures(t *testing.T) {
	n, rng := newNumbers(), rand.New(rand.NewPCG(5, 5))
	const rows, vocab = 8, 10
	for _, softCap := range []float32{0, 30} {
		all, targets := make([]float64, rows*vocab), make([]int32, rows)
		for i := range all {
			all[i] = math.Round(4*rng.NormFloat64()) + float64(i/vocab*100-400) // ties, and rows far from zero
		}
		if softCap > 0 {
			for i := range all {
				all[i] = math.Round(4 * rng.NormFloat64())
			}
		}
		for r := range targets {
			if targets[r] = int32(rng.IntN(vocab)); r%2 == 0 {
				row := all[r*vocab:][:vocab]
				targets[r] = int32(slices.Index(row, slices.Max(row)))
			}
		}
		targets[7] = -1
		logits := n.f32(rows, all)
		got := n.figures(n.like(logits), logits, n.ints(targets), n.f32(1, make([]float64, rows)).Mem, device.Mem{}, softCap)
		for r, target := range targets {
			row, sum, entropy, hit := make([]float64, vocab), 0.0, 0.0, 0.0
			for c := range row {
				row[c], _ = capped(all[r*vocab+c], softCap)
			}
			most := slices.Max(row)
			for _, x := range row {
				sum += math.Exp(x - most)
			}
			for _, x := range row {
				p := math.Exp(x-most) / sum
				entropy -= p * math.Log(p)
			}
			if target < 0 {
				entropy = 0
			} else if row[target] == most {
				hit = 1
			}
			if d := got[rows+r] - entropy; math.Abs(d) > 1e-12 || got[2*rows+r] != hit {
				t.Errorf("cap %v, row %d: entropy %v and hit %v, want %v and %v", softCap, r, got[rows+r], got[2*rows+r], entropy,
					hit)
			}
		}
	}
}

// The reference computes a document's outputs and gradients from its own rows only: alone, they are the same.
func TestReferenceDocumentsAlone(t *testing.T) {
	const rows, taps = 150, 4
	rng := rand.New(rand.NewPCG(3, 4))
	n := newNumbers()
	normal := func(rows, cols int) device.Mat {
		x := make([]float64, rows*cols)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return n.f32(rows, x)
	}
	spec := device.DeltaSpec{KeyHeads: 1, Heads: 2, KeyDim: 3, ValueDim: 2}
	cols := spec.QKVCols()
	x, w, dout := normal(rows, cols), normal(cols, taps), normal(rows, spec.Values())
	decay, beta := normal(rows, spec.Heads), normal(rows, spec.Heads)
	n.memory.put(decay, squared(n.read(decay), -0.1))
	// run returns what it computes in a row, of count rows from first on.
	run := func(first, count int, starts []int32) [][]float64 {
		spec, part := spec, func(m device.Mat) device.Mat { return m.RowRange(first, count) }
		spec.Docs = device.Docs{Start: n.ints(starts), End: n.ints(starts)} // the reference has no use for ends
		chunks, size := spec.States(count)
		qkv, y, dqkv, dxs := normal(count, cols), normal(count, spec.Values()), normal(count, cols), normal(count, cols)
		states, dstates := normal(chunks, size), normal(chunks, size)
		ddecay, dbeta := normal(count, spec.Heads), normal(count, spec.Heads)
		n.CausalConv(qkv, part(x), w, spec.Docs)
		n.GatedDelta(y, states, qkv, part(decay), part(beta), spec)
		n.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, part(dout), qkv, part(decay), part(beta), states, spec)
		n.CausalConvGrad(dxs, device.Mat{}, dqkv, part(x), w, spec.Docs)
		return [][]float64{n.read(y), n.read(dxs), n.read(ddecay), n.read(dbeta)}
	}
	lengths, starts := []int{1, 70, 3, 64, 12}, []int32{}
	for _, length := range lengths {
		starts = append(starts, slices.Repeat([]int32{int32(len(starts))}, length)...)
	}
	packed, first := run(0, rows, starts), 0
	for _, length := range lengths {
		for i, alone := range run(first, length, make([]int32, length)) {
			width := len(alone) / length
			if !slices.Equal(packed[i][first*width:][:len(alone)], alone) {
				t.Errorf("rows %d to %d: result %d has other numbers alone", first, first+length, i)
			}
		}
		first += length
	}
}

// The reference's rows that continue sequences have what whole documents have.
func TestReferenceContinues(t *testing.T) {
	const sequences, length, taps = 3, 20, 4
	rng := rand.New(rand.NewPCG(5, 6))
	n := newNumbers()
	normal := func(rows, cols int) device.Mat {
		x := make([]float64, rows*cols)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return n.f32(rows, x)
	}
	spec, rows := device.DeltaSpec{KeyHeads: 1, Heads: 2, KeyDim: 3, ValueDim: 2}, sequences*length
	chunks, size := spec.States(rows)
	x, w := normal(rows, spec.QKVCols()), normal(spec.QKVCols(), taps)
	decay, beta := normal(rows, spec.Heads), normal(rows, spec.Heads)
	n.memory.put(decay, squared(n.read(decay), -0.1))
	var starts []int32
	for r := range rows {
		starts = append(starts, int32(r/length*length))
	}
	docs := device.Docs{Start: n.ints(starts), End: n.ints(starts)} // the reference has no use for ends
	qkv, out := normal(rows, spec.QKVCols()), normal(rows, spec.Values())
	n.CausalConv(qkv, x, w, docs)
	spec.Docs = docs
	n.GatedDelta(out, normal(chunks, size), qkv, decay, beta, spec)

	// The same rows, a few of some sequences at a time.
	tail, states, at := normal(sequences*(taps-1), spec.QKVCols()), normal(sequences, size), [sequences]int{}
	for done := 0; done < rows; {
		var start, end []int32
		var from []int // rows of x
		for sequence := range at {
			for range min(rng.IntN(5), length-at[sequence]) {
				start = append(start, int32(sequence*length))
				from = append(from, sequence*length+at[sequence])
				at[sequence]++
				end = append(end, int32(sequence*length+at[sequence]))
			}
		}
		if done += len(from); len(from) == 0 {
			continue
		}
		picked := func(m device.Mat) device.Mat {
			var x []float64
			for _, r := range from {
				x = append(x, n.read(m.RowRange(r, 1))...)
			}
			return n.f32(len(from), x)
		}
		spec.Docs = device.Docs{Start: n.ints(start), End: n.ints(end)}
		rows, y := normal(len(from), spec.QKVCols()), normal(len(from), spec.Values())
		n.ContinueConv(rows, tail, picked(x), w, device.Continued{Docs: spec.Docs, Each: length})
		n.ContinueDelta(y, states, rows, picked(decay), picked(beta), spec, length)
		for i, r := range from {
			if got, want := n.read(y.RowRange(i, 1)), n.read(out.RowRange(r, 1)); !slices.Equal(got, want) {
				t.Fatalf("row %d of a document: %v where the whole document has %v", r, got, want)
			}
		}
	}
}
