package plain

import (
	"math"

	"github.com/millrace/millrace/device"
)

func (s *stream) RoPE(y, x, bias device.Mat, heads int, cos, sin device.Mat, positions device.Mem, inverse bool) {
	s.operands.RoPE(y, x, bias, heads, cos, sin, positions, inverse)
	s.do(func() {
		if !bias.IsZero() { // rounded as AddBias rounds
			put(y, biased(x, bias))
			x = y
		}
		v, c, sn, place := numbers(x), numbers(cos), numbers(sin), ints(positions, x.Rows)
		half := x.Cols / heads / 2
		for i := 0; i < len(v); i++ {
			if i%(2*half) >= half {
				continue // the second half of a head moves with the first one
			}
			at := int(place[i/x.Cols])*half + i%(2*half)
			sine := sn[at]
			if inverse {
				sine = -sine
			}
			a, b := v[i], v[i+half]
			v[i], v[i+half] = a*c[at]-b*sine, b*c[at]+a*sine
		}
		put(y, v)
	})
}

// attention has the operands of an attention as numbers.
type attention struct {
	device.AttentionSpec
	q, k, v []float64
	start   []int32
}

func newAttention(q, k, v device.Mat, spec device.AttentionSpec) *attention {
	return &attention{spec, numbers(q), numbers(k), numbers(v), ints(spec.Docs.Start, q.Rows)}
}

// query returns where a query's head begins.
func (a *attention) query(t, head int) int { return (t*a.Heads + head) * a.HeadDim }

// key returns where the key and the value begin that a query's head sees at a position.
func (a *attention) key(t, head int) int { return (t*a.KVHeads + head/(a.Heads/a.KVHeads)) * a.HeadDim }

// first returns the first position that a query sees; the last one is its own.
func (a *attention) first(t int) int {
	if a.Window > 0 {
		return max(int(a.start[t]), t-a.Window+1)
	}
	return int(a.start[t])
}

// score returns the scaled and capped score of a query and a key, and its derivative by their product.
func (a *attention) score(q, k int) (score, slope float64) {
	score, slope = capped(float64(a.Scale)*dot(a.q[q:][:a.HeadDim], a.k[k:]), a.SoftCap)
	return score, slope * float64(a.Scale)
}

// capped bounds a number, and returns the derivative.
func capped(x float64, softCap float32) (y, slope float64) {
	if softCap == 0 {
		return x, 1
	}
	t := math.Tanh(x / float64(softCap))
	return float64(softCap) * t, 1 - t*t
}

func dot(x, y []float64) float64 {
	sum := 0.0
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

// addTo adds scale*x to y.
func addTo(y, x []float64, scale float64) {
	for i := range x {
		y[i] += scale * x[i]
	}
}

func (s *stream) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.Attention(out, lse, q, k, v, spec)
	s.do(func() {
		a := newAttention(q, k, v, spec)
		result, logs := make([]float64, len(a.q)), make([]float64, q.Rows*spec.Heads)
		var sinks []float64
		if !spec.Sinks.IsZero() {
			sinks = numbers(spec.Sinks)
		}
		for i := range logs {
			t, head := i/spec.Heads, i%spec.Heads
			at, first := a.query(t, head), a.first(t)
			top, sum := math.Inf(-1), 0.0
			if sinks != nil {
				top, sum = sinks[head], 1
			}
			scores := make([]float64, t+1-first)
			for j := range scores {
				scores[j], _ = a.score(at, a.key(first+j, head))
			}
			for _, x := range scores {
				larger := max(top, x)
				sum, top = sum*math.Exp(top-larger)+math.Exp(x-larger), larger
			}
			for j, x := range scores {
				addTo(result[at:], a.v[a.key(first+j, head):][:spec.HeadDim], math.Exp(x-top)/sum)
			}
			logs[i] = top + math.Log(sum)
		}
		put(out, result)
		put(lse, logs)
	})
}

func (s *stream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	s.operands.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
	s.do(func() {
		a := newAttention(q, k, v, spec)
		gradient, result, logs := numbers(dout), numbers(out), numbers(lse)
		gq, gk, gv := make([]float64, len(a.q)), make([]float64, len(a.k)), make([]float64, len(a.v))
		sums := make([]float64, len(logs))
		for i := range logs {
			t, head := i/spec.Heads, i%spec.Heads
			at := a.query(t, head)
			d := gradient[at:][:spec.HeadDim]
			sums[i] = dot(d, result[at:])
			for j := a.first(t); j <= t; j++ {
				key := a.key(j, head)
				score, slope := a.score(at, key)
				share := math.Exp(score - logs[i])
				ds := share * (dot(d, a.v[key:]) - sums[i]) * slope
				addTo(gv[key:], d, share)
				addTo(gk[key:], a.q[at:][:spec.HeadDim], ds)
				addTo(gq[at:], a.k[key:][:spec.HeadDim], ds)
			}
		}
		put(dq, gq)
		put(dk, gk)
		put(dv, gv)
		put(delta, sums)
	})
}

func (s *stream) SinkGrad(dsinks, sinks, lse, delta device.Mat) {
	s.operands.SinkGrad(dsinks, sinks, lse, delta)
	s.do(func() {
		sum, sink, sums := numbers(dsinks), numbers(sinks), numbers(delta)
		for i, l := range numbers(lse) {
			head := i % len(sink)
			sum[head] -= math.Exp(sink[head]-l) * sums[i]
		}
		put(dsinks, sum)
	})
}
