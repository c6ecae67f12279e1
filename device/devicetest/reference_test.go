package devicetest

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The gradients of the reference are held against central differences of its forward functions, in the direction of each
// input, for the function sum(weights * output).
func TestReferenceGradients(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return x
	}
	check := func(name string, x, grad []float64, f func() float64) {
		t.Helper()
		const h = 1e-5
		for i := range x {
			old := x[i]
			x[i] = old + h
			up := f()
			x[i] = old - h
			down := f()
			x[i] = old
			if want := (up - down) / (2 * h); math.Abs(grad[i]-want) > 1e-7*(1+math.Abs(want)) {
				t.Errorf("%s: derivative %d is %v, differences give %v", name, i, grad[i], want)
			}
		}
	}
	inner := func(a, b []float64) float64 {
		s := 0.0
		for i := range a {
			s += a[i] * b[i]
		}
		return s
	}

	x, w, dy := normal(3*2*5), normal(5), normal(3*2*5)
	norm := func() float64 { y, _ := refRMSNorm(x, w, 3, 2, 1e-3); return inner(dy, y) }
	_, rstd := refRMSNorm(x, w, 3, 2, 1e-3)
	dx, dw := refRMSNormGrad(dy, x, w, rstd)
	check("RMSNorm x", x, dx, norm)
	check("RMSNorm w", w, dw, norm)

	gateUp, dh := normal(3*2*4), normal(3*4)
	check("SwiGLU", gateUp, refSwiGLUGrad(dh, gateUp, 3), func() float64 { return inner(dh, refSwiGLU(gateUp, 3)) })

	logits, targets := normal(4*7), []int32{3, -1, 0, 6}
	for _, softCap := range []float64{0, 1.5} {
		_, dlogits := refCrossEntropy(logits, targets, 7, softCap)
		check("CrossEntropy", logits, dlogits, func() float64 {
			loss, _ := refCrossEntropy(logits, targets, 7, softCap)
			return inner(loss, []float64{1, 1, 1, 1})
		})
	}

	for variant := range 8 {
		spec := &refSpec{heads: 4, kvHeads: 2, headDim: 3, scale: 0.6, start: []int32{0, 0, 0, 3, 3, 3}}
		if variant&1 != 0 {
			spec.window = 2
		}
		if variant&2 != 0 {
			spec.softCap = 0.8
		}
		if variant&4 != 0 {
			spec.sinks = []float64{-1, 0, 0.5, 3}
		}
		q, k, v, dout := normal(6*12), normal(6*6), normal(6*6), normal(6*12)
		f := func() float64 { out, _ := refAttention(q, k, v, spec); return inner(dout, out) }
		out, lse := refAttention(q, k, v, spec)
		dq, dk, dv := refAttentionGrad(dout, q, k, v, out, lse, spec)
		check("Attention q", q, dq, f)
		check("Attention k", k, dk, f)
		check("Attention v", v, dv, f)
		if spec.sinks != nil {
			check("Attention sinks", spec.sinks, refSinkGrad(spec.sinks, lse, refDelta(dout, out, spec)), f)
		}
	}

	angles := normal(4 * 3)
	cos, sin := make([]float64, len(angles)), make([]float64, len(angles))
	for i, a := range angles {
		cos[i], sin[i] = math.Cos(a), math.Sin(a)
	}
	xr, dr, positions := normal(3*2*6), normal(3*2*6), []int32{3, 0, 2}
	check("RoPE", xr, refRoPE(dr, 3, 2, cos, sin, positions, true), func() float64 {
		return inner(dr, refRoPE(xr, 3, 2, cos, sin, positions, false))
	})
}
