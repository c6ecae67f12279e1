package kerneltest

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// aConvolution has two documents, and taps that reach from one row over several others.
func aConvolution(b *bench, d tensor.DType) (x, dy, w *field, after []any) {
	x, dy, w = b.normal(d, 9, 528, 544), b.normal(d, 9, 528, 560), b.normal(d, 528, 4, 5)
	return x, dy, w, []any{b.ints([]int32{0, 0, 0, 0, 0, 5, 5, 5, 5}), 9, 528, 4}
}

// aroundRecurrence are the operands of the kernels around the recurrence of a delta net, for the comparison of their
// variants.
var aroundRecurrence = map[string]operands{
	"causal_conv.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, _, w, after := aConvolution(b, d)
		y := b.field(d, 9, 528, 576)
		return append(append([]any{y, x, w}, after...), y.stride, x.stride, w.stride), []*field{y}
	},
	"causal_conv_grad.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, dy, w, after := aConvolution(b, d)
		dx, part := b.field(d, 9, 528, 576), b.field(tensor.F32, 8, 528*4, 528*4)
		return append(append([]any{dx, part, dy, x, w}, after...), part.rows, 1, dx.stride, dy.stride, x.stride,
			w.stride), []*field{dx, part}
	},
	"gate.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, gate, y := b.normal(d, 5, 528, 544), b.normal(d, 5, 528, 560), b.field(d, 5, 528, 576)
		return []any{y, x, gate, 5, 528, 1, 1, y.stride, x.stride, gate.stride}, []*field{y}
	},
	"gate_grad_each.A": func(b *bench, d tensor.DType) ([]any, []*field) {
		x, gate, dy := b.normal(d, 5, 528, 544), b.normal(d, 5, 528, 560), b.normal(d, 5, 528, 576)
		return []any{dy, gate, dy, x, gate, 5, 528, 0, dy.stride, gate.stride, dy.stride, x.stride, gate.stride},
			[]*field{dy, gate}
	},
}

// The gradient of gates that serve several neighbours each, over more of them than a turn of the loop takes.
func testGateGrad(t *testing.T, on *backend) {
	for _, d := range types {
		const rows, gates, each = 6, 3, 130
		b := benchFor(t, on, 22)
		x, dy := b.normal(d, rows, gates*each, 391), b.normal(d, rows, gates*each, 392)
		dx := b.field(d, rows, gates*each, 394)
		gate, dgate := b.normal(d, rows, gates, 5), b.field(d, rows, gates, 4)
		b.ref.GateGrad(b.of(dx), b.of(dgate), b.of(dy), b.of(x), b.of(gate), device.SigmoidGate)
		b.run("gate_grad."+typeWord(d), dx, dgate, dy, x, gate, rows, gates*each, each, 0, dx.stride, dgate.stride,
			dy.stride, x.stride, gate.stride)
		// 130 products of two normal numbers, of which a bf16 result keeps 8 bits.
		limit := map[tensor.DType]float64{tensor.F32: 1e-5, tensor.BF16: 1.0 / 32}[d]
		b.compare("dx", dx, b.wanted(dx), within(limit))
		b.compare("dgate", dgate, b.wanted(dgate), within(limit))
	}
}

// Decays and betas, their gradients in slices of the rows, and what adds up slices of the gradients of taps.
func testDeltaGates(t *testing.T, on *backend) {
	for _, d := range types {
		const rows, heads, slices = 37, 5, 2
		b := benchFor(t, on, 20)
		a, of, aLog, dtBias := b.normal(d, rows, heads, heads+3), b.normal(d, rows, heads, heads+2),
			b.normal(d, 1, heads, heads), b.normal(d, 1, heads, heads)
		dense := func() *field { return b.normal(tensor.F32, rows, heads, heads) }
		decay, beta, ddecay, dbeta := dense(), dense(), dense(), dense()
		da, db, part := b.field(d, rows, heads, heads+1), b.field(d, rows, heads, heads+4),
			b.field(tensor.F32, 2*slices, heads, heads)
		b.ref.DeltaGates(b.of(decay), b.of(beta), b.of(a), b.of(of), b.of(aLog), b.of(dtBias))
		b.ref.Zero(b.of(part).Mem)
		for slice := range slices {
			rows := func(f *field) device.Mat { // of the first slice whole blocks
				return b.of(f).RowRange(32*slice, min(32, rows-32*slice))
			}
			sums := func(at int) device.Mat { return b.of(part).RowRange(at, 1) }
			b.ref.DeltaGatesGrad(rows(da), rows(db), sums(slice), sums(slices+slice), rows(ddecay), rows(dbeta),
				rows(a), rows(of), b.of(aLog), b.of(dtBias))
		}
		b.run("delta_gates."+typeWord(d), decay, beta, a, of, aLog, dtBias, rows, heads, a.stride, of.stride)
		b.compare("decay", decay, b.wanted(decay), within(1e-4))
		b.compare("beta", beta, b.wanted(beta), within(1e-5))
		b.run("delta_gates_grad."+typeWord(d), part, da, db, ddecay, dbeta, a, of, aLog, dtBias, rows, heads, slices,
			da.stride, db.stride, a.stride, of.stride)
		// The exponential of a rate and a sigmoid each take a few units of the last place of numbers up to 30; half a
		// unit of the last place of bf16 numbers of that size is 1/16.
		limit := map[tensor.DType]float64{tensor.F32: 1e-4, tensor.BF16: 0.1}[d]
		b.compare("da", da, b.wanted(da), within(limit))
		b.compare("db", db, b.wanted(db), within(limit))
		b.compare("part", part, b.wanted(part), within(1e-3))
	}
	const slices, cols, taps = 40, 21, 3
	b := benchFor(t, on, 21)
	dw, part := b.normal(tensor.F32, cols, taps, taps+2), b.normal(tensor.F32, slices, cols*taps, cols*taps)
	want := dw.numbers()
	for i := range want {
		for s := range slices {
			want[i] += part.get(s, i)
		}
	}
	b.run("taps_fold.f32", dw, part, slices, cols, taps, dw.stride)
	b.compare("gradients of taps", dw, want, within(1e-5))
	if !dw.intact() {
		t.Error("taps_fold writes between the rows")
	}
}
