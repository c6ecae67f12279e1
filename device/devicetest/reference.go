package devicetest

import (
	"math"

	"github.com/millrace/millrace/device"
)

// The reference: the texts of package device in float64, by loops that follow the formulas. Matrices are dense slices.

// refMatMul is op(a)·op(b) for op(a) [m, k] and op(b) [k, n].
func refMatMul(a, b []float64, m, n, k int, transA, transB bool) []float64 {
	c := make([]float64, m*n)
	for i := range m {
		for j := range n {
			for l := range k {
				ia, ib := i*k+l, l*n+j
				if transA {
					ia = l*m + i
				}
				if transB {
					ib = j*k + l
				}
				c[i*n+j] += a[ia] * b[ib]
			}
		}
	}
	return c
}

func refRMSNorm(x, w []float64, rows, groups int, eps float64) (y, rstd []float64) {
	d := len(w)
	y, rstd = make([]float64, len(x)), make([]float64, rows*groups)
	for g := range rstd {
		sum := 0.0
		for i := range d {
			sum += x[g*d+i] * x[g*d+i]
		}
		rstd[g] = 1 / math.Sqrt(sum/float64(d)+eps)
		for i := range d {
			y[g*d+i] = w[i] * x[g*d+i] * rstd[g]
		}
	}
	return y, rstd
}

// refRMSNormGrad returns what the norm adds to the gradients.
func refRMSNormGrad(dy, x, w, rstd []float64) (dx, dw []float64) {
	d := len(w)
	dx, dw = make([]float64, len(x)), make([]float64, d)
	for g, s := range rstd {
		mean := 0.0
		for i := range d {
			xhat := x[g*d+i] * s
			mean += w[i] * dy[g*d+i] * xhat / float64(d)
			dw[i] += dy[g*d+i] * xhat
		}
		for i := range d {
			dx[g*d+i] = s * (w[i]*dy[g*d+i] - x[g*d+i]*s*mean)
		}
	}
	return dx, dw
}

func refRoPE(x []float64, rows, heads int, cos, sin []float64, positions []int32, inverse bool) []float64 {
	headDim := len(x) / rows / heads
	half := headDim / 2
	y := make([]float64, len(x))
	for t := range rows {
		for h := range heads {
			for i := range half {
				c, s := cos[int(positions[t])*half+i], sin[int(positions[t])*half+i]
				if inverse {
					s = -s
				}
				at := (t*heads+h)*headDim + i
				y[at] = x[at]*c - x[at+half]*s
				y[at+half] = x[at+half]*c + x[at]*s
			}
		}
	}
	return y
}

// refSpec is the shape of a reference attention.
type refSpec struct {
	heads, kvHeads, headDim int
	scale                   float64
	window                  int
	softCap                 float64
	sinks                   []float64 // none: nil
	start                   []int32
}

// capped returns x bounded by softCap, and the derivative. A softCap of 0 does not bound.
func capped(x, softCap float64) (y, slope float64) {
	if softCap == 0 {
		return x, 1
	}
	t := math.Tanh(x / softCap)
	return softCap * t, 1 - t*t
}

// score returns the score of head h for query t and key j, and its derivative by the uncapped score.
func (s *refSpec) score(q, k []float64, t, h, j int) (y, slope float64) {
	return capped(s.scale*s.dot(q, t, s.heads, h, k, j, s.kvHeads, h/(s.heads/s.kvHeads)), s.softCap)
}

// first is the first key that position t sees; the last is t.
func (s *refSpec) first(t int) int {
	if s.window > 0 {
		return max(int(s.start[t]), t-s.window+1)
	}
	return int(s.start[t])
}

// dot is the product of a head of row i of x with one of row j of y.
func (s *refSpec) dot(x []float64, i, xHeads, xHead int, y []float64, j, yHeads, yHead int) float64 {
	sum := 0.0
	for c := range s.headDim {
		sum += x[(i*xHeads+xHead)*s.headDim+c] * y[(j*yHeads+yHead)*s.headDim+c]
	}
	return sum
}

func refAttention(q, k, v []float64, s *refSpec) (out, lse []float64) {
	rows := len(s.start)
	out, lse = make([]float64, len(q)), make([]float64, rows*s.heads)
	for t := range rows {
		for h := range s.heads {
			kv := h / (s.heads / s.kvHeads)
			first := s.first(t)
			scores := make([]float64, t+1-first)
			top := math.Inf(-1)
			if s.sinks != nil {
				top = s.sinks[h]
			}
			for j := range scores {
				scores[j], _ = s.score(q, k, t, h, first+j)
				top = max(top, scores[j])
			}
			sum := 0.0
			if s.sinks != nil {
				sum = math.Exp(s.sinks[h] - top)
			}
			for _, x := range scores {
				sum += math.Exp(x - top)
			}
			lse[t*s.heads+h] = top + math.Log(sum)
			for j, x := range scores {
				p := math.Exp(x-top) / sum
				for c := range s.headDim {
					out[(t*s.heads+h)*s.headDim+c] += p * v[((first+j)*s.kvHeads+kv)*s.headDim+c]
				}
			}
		}
	}
	return out, lse
}

func refAttentionGrad(dout, q, k, v, out, lse []float64, s *refSpec) (dq, dk, dv []float64) {
	dq, dk, dv = make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	for t := range s.start {
		for h := range s.heads {
			kv := h / (s.heads / s.kvHeads)
			delta := s.dot(dout, t, s.heads, h, out, t, s.heads, h)
			for j := s.first(t); j <= t; j++ {
				score, slope := s.score(q, k, t, h, j)
				p := math.Exp(score - lse[t*s.heads+h])
				ds := p * (s.dot(dout, t, s.heads, h, v, j, s.kvHeads, kv) - delta) * slope * s.scale
				for c := range s.headDim {
					qi, ki := (t*s.heads+h)*s.headDim+c, (j*s.kvHeads+kv)*s.headDim+c
					dv[ki] += p * dout[qi]
					dk[ki] += ds * q[qi]
					dq[qi] += ds * k[ki]
				}
			}
		}
	}
	return dq, dk, dv
}

// refDelta is the sum over each head of out*dout.
func refDelta(dout, out []float64, s *refSpec) []float64 {
	delta := make([]float64, len(s.start)*s.heads)
	for i := range delta {
		delta[i] = s.dot(dout, i/s.heads, s.heads, i%s.heads, out, i/s.heads, s.heads, i%s.heads)
	}
	return delta
}

// refSinkGrad is the gradient of the sinks.
func refSinkGrad(sinks, lse, delta []float64) []float64 {
	d := make([]float64, len(sinks))
	for i := range lse {
		h := i % len(sinks)
		d[h] -= math.Exp(sinks[h]-lse[i]) * delta[i]
	}
	return d
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func refSwiGLU(gateUp []float64, rows int) []float64 {
	n := len(gateUp) / rows / 2
	y := make([]float64, rows*n)
	for r := range rows {
		for i := range n {
			g, u := gateUp[r*2*n+i], gateUp[r*2*n+n+i]
			y[r*n+i] = g * sigmoid(g) * u
		}
	}
	return y
}

func refSwiGLUGrad(dy, gateUp []float64, rows int) []float64 {
	n := len(gateUp) / rows / 2
	d := make([]float64, len(gateUp))
	for r := range rows {
		for i := range n {
			g, u, s := gateUp[r*2*n+i], gateUp[r*2*n+n+i], sigmoid(gateUp[r*2*n+i])
			d[r*2*n+i] = dy[r*n+i] * u * s * (1 + g*(1-s))
			d[r*2*n+n+i] = dy[r*n+i] * g * s
		}
	}
	return d
}

// refCrossEntropy is the loss of each row and the gradient of their sum, for whole rows of n logits.
func refCrossEntropy(logits []float64, targets []int32, n int, softCap float64) (loss, grad []float64) {
	loss, grad = make([]float64, len(targets)), make([]float64, len(logits))
	for t, target := range targets {
		if target < 0 {
			continue
		}
		row, slopes := make([]float64, n), make([]float64, n)
		for i, x := range logits[t*n : (t+1)*n] {
			row[i], slopes[i] = capped(x, softCap)
		}
		top, sum := math.Inf(-1), 0.0
		for _, x := range row {
			top = max(top, x)
		}
		for _, x := range row {
			sum += math.Exp(x - top)
		}
		loss[t] = top + math.Log(sum) - row[target]
		for i, x := range row {
			grad[t*n+i] = math.Exp(x-top) / sum
		}
		grad[t*n+int(target)]--
		for i, slope := range slopes {
			grad[t*n+i] *= slope
		}
	}
	return loss, grad
}

// refSum is the sum of f(x[i]) in the order that SumSquares defines.
func refSum(x []float64, f func(float64) float64) float64 {
	total := 0.0
	for first := 0; first < len(x); first += 65536 {
		var lanes [16]float64
		for i, v := range x[first:min(first+65536, len(x))] {
			lanes[i%16] += f(v)
		}
		for half := 8; half > 0; half /= 2 {
			for j := range half {
				lanes[j] += lanes[j+half]
			}
		}
		total += lanes[0]
	}
	return total
}

// refAdamW is one step for one parameter, in the order of the contract, every operation rounded to fp32.
func refAdamW(p, m, v, g float32, s *device.AdamWScalars) (float32, float32, float32) {
	normal := func(x float32) float32 {
		if math.Abs(float64(x)) < 0x1p-126 {
			return 0
		}
		return x
	}
	g = s.ClipScale * g
	p = p * s.Decay
	m = normal(m + float32(float32(g-m)*s.OneMinusBeta1))
	v = normal(float32(s.Beta2*v) + float32(float32(s.OneMinusBeta2*g)*g))
	root := float32(math.Sqrt(float64(v)))
	denominator := float32(root/s.SqrtBC2) + s.Eps
	return p - float32(float32(s.StepSize*m)/denominator), m, v
}
