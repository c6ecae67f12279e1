package devicetest

import (
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/tensor"
)

// The operations of Reference, in the order of device/ops.go, whose texts name the sources of the formulas. Matrices
// are dense slices here, row by row. Numbers are float64, except where the contract defines the bits of a result: sums
// of two numbers are rounded by put, which gives the bits of fp32, and ScatterAdd and AdamW round every operation.

// MatMul: c[i,j] = base[i,j] + sum over k of a[i,k]*b[k,j].
func (s *referenceStream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	s.operands.MatMul(c, a, b, f)
	s.do(func() {
		x, y := s.oriented(a, f.TransA), s.oriented(b, f.TransB)
		inner := len(x) / max(c.Rows, 1)
		sum := make([]float64, c.Rows*c.Cols)
		if base, ok := f.Base(c); ok {
			sum = s.numbers(base)
		}
		for i := range c.Rows {
			for k := range inner {
				addTo(sum[i*c.Cols:], y[k*c.Cols:][:c.Cols], x[i*inner+k])
			}
		}
		s.put(c, sum)
	})
}

// oriented reads a matrix, or its transpose.
func (s *referenceStream) oriented(m device.Mat, transposed bool) []float64 {
	x := s.numbers(m)
	if !transposed {
		return x
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i%m.Cols*m.Rows+i/m.Cols] = v
	}
	return y
}

// addTo adds scale*x to the start of y.
func addTo(y, x []float64, scale float64) {
	for i, v := range x {
		y[i] += scale * v
	}
}

// dot is the sum of x[i]*y[i].
func dot(x, y []float64) float64 {
	sum := 0.0
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

// AddBias: y[r,i] += bias[i].
func (s *referenceStream) AddBias(y, bias device.Mat) {
	s.operands.AddBias(y, bias)
	s.do(func() { s.put(y, s.biased(y, bias)) })
}

func (s *referenceStream) biased(m, bias device.Mat) []float64 {
	x, b := s.numbers(m), s.numbers(bias)
	for i := range x {
		x[i] += b[i%m.Cols]
	}
	return x
}

// BiasGrad: db[i] += sum over r of dy[r,i].
func (s *referenceStream) BiasGrad(db, dy device.Mat) {
	s.operands.BiasGrad(db, dy)
	s.do(func() {
		sum := s.numbers(db)
		for i, d := range s.numbers(dy) {
			sum[i%dy.Cols] += d
		}
		s.put(db, sum)
	})
}

// Add: y = a + b.
func (s *referenceStream) Add(y, a, b device.Mat) {
	s.operands.Add(y, a, b)
	s.do(func() {
		sum := s.numbers(a)
		addTo(sum, s.numbers(b), 1)
		s.put(y, sum)
	})
}

// Scale: y = by*x.
func (s *referenceStream) Scale(y, x device.Mat, by float32) {
	s.operands.Scale(y, x, by)
	s.do(func() {
		v := s.numbers(x)
		for i := range v {
			v[i] *= float64(by)
		}
		s.put(y, v)
	})
}

// Cast: dst = src.
func (s *referenceStream) Cast(dst, src device.Mat) {
	s.operands.Cast(dst, src)
	s.do(func() { s.put(dst, s.numbers(src)) })
}

// RMSNorm: y = W*x*rstd with rstd = 1/sqrt(mean(x^2) + eps), for each group of a row.
func (s *referenceStream) RMSNorm(y, rstd, x, w device.Mat, spec device.NormSpec) {
	s.operands.RMSNorm(y, rstd, x, w, spec)
	s.do(func() {
		v, weights := s.numbers(x), s.normWeights(w, x, spec)
		inverse, d := make([]float64, x.Rows*spec.Groups), len(weights)
		for g := range inverse {
			group := v[g*d:][:d]
			inverse[g] = 1 / math.Sqrt(dot(group, group)/float64(d)+float64(spec.Eps))
			for i := range group {
				group[i] *= weights[i] * inverse[g]
			}
		}
		s.put(y, v)
		s.put(rstd, inverse)
	})
}

// normWeights are W: w + Offset, or ones.
func (s *referenceStream) normWeights(w, x device.Mat, spec device.NormSpec) []float64 {
	weights := make([]float64, x.Cols/spec.Groups)
	if !w.IsZero() {
		weights = s.numbers(w)
	}
	for i := range weights {
		if w.IsZero() {
			weights[i] = 1
		}
		weights[i] += float64(spec.Offset)
	}
	return weights
}

// RMSNormGrad: dx = rstd*(W*dy - xhat*mean(W*dy*xhat)) + resid and dw += sum of dy*xhat, with xhat = x*rstd.
func (s *referenceStream) RMSNormGrad(dx, dw, dy, x, w, rstd, resid device.Mat, spec device.NormSpec) {
	s.operands.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, spec)
	s.do(func() {
		v, weights, gradient := s.numbers(x), s.normWeights(w, x, spec), s.numbers(dy)
		d := len(weights)
		sum, weightGradient := make([]float64, len(v)), make([]float64, d)
		if !resid.IsZero() {
			sum = s.numbers(resid)
		}
		if !dw.IsZero() {
			weightGradient = s.numbers(dw)
		}
		for g, inverse := range s.numbers(rstd) {
			first, mean := g*d, 0.0
			for i, weight := range weights {
				dy, xhat := gradient[first+i], v[first+i]*inverse
				mean += weight * dy * xhat / float64(d)
				weightGradient[i] += dy * xhat
			}
			for i, weight := range weights {
				sum[first+i] += inverse * (weight*gradient[first+i] - v[first+i]*inverse*mean)
			}
		}
		s.put(dx, sum)
		if !dw.IsZero() {
			s.put(dw, weightGradient)
		}
	})
}

// LayerNorm: y = w*(x - mean)*rstd + b with rstd = 1/sqrt(mean((x - mean)^2) + eps), for each row.
func (s *referenceStream) LayerNorm(y, stat, x, w, b device.Mat, eps float32) {
	s.operands.LayerNorm(y, stat, x, w, b, eps)
	s.do(func() {
		v, weights, stats, d := s.numbers(x), s.numbers(w), []float64(nil), x.Cols
		bias := make([]float64, d)
		if !b.IsZero() {
			bias = s.numbers(b)
		}
		for r := range x.Rows {
			row, mean := v[r*d:][:d], 0.0
			for _, x := range row {
				mean += x / float64(d)
			}
			for i := range row {
				row[i] -= mean
			}
			rstd := 1 / math.Sqrt(dot(row, row)/float64(d)+float64(eps))
			stats = append(stats, mean, rstd)
			for i := range row {
				row[i] = weights[i]*row[i]*rstd + bias[i]
			}
		}
		s.put(y, v)
		s.put(stat, stats)
	})
}

// LayerNormGrad: dx = rstd*(w*dy - mean(w*dy) - xhat*mean(w*dy*xhat)) + resid and dw += sum of dy*xhat, with xhat =
// (x - mean)*rstd.
func (s *referenceStream) LayerNormGrad(dx, dw, dy, x, w, stat, resid device.Mat) {
	s.operands.LayerNormGrad(dx, dw, dy, x, w, stat, resid)
	s.do(func() {
		v, weights, gradient, stats, d := s.numbers(x), s.numbers(w), s.numbers(dy), s.numbers(stat), x.Cols
		sum, weightGradient := make([]float64, len(v)), make([]float64, d)
		if !resid.IsZero() {
			sum = s.numbers(resid)
		}
		if !dw.IsZero() {
			weightGradient = s.numbers(dw)
		}
		for r := range x.Rows {
			mean, rstd := stats[2*r], stats[2*r+1]
			xhat, dXhat, all := make([]float64, d), make([]float64, d), 0.0
			for i := range d {
				xhat[i], dXhat[i] = (v[r*d+i]-mean)*rstd, weights[i]*gradient[r*d+i]
				all += dXhat[i] / float64(d)
				weightGradient[i] += gradient[r*d+i] * xhat[i]
			}
			along := dot(dXhat, xhat) / float64(d)
			for i := range d {
				sum[r*d+i] += rstd * (dXhat[i] - all - xhat[i]*along)
			}
		}
		s.put(dx, sum)
		if !dw.IsZero() {
			s.put(dw, weightGradient)
		}
	})
}

// RoPE: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) for the two halves of each head, with -sin for the inverse.
// The sum of x and a bias is rounded first, as AddBias rounds it.
func (s *referenceStream) RoPE(y, x, bias device.Mat, heads int, cos, sin device.Mat, positions device.Mem,
	inverse bool) {
	s.operands.RoPE(y, x, bias, heads, cos, sin, positions, inverse)
	s.do(func() {
		v := s.numbers(x)
		if !bias.IsZero() {
			for i, sum := range s.biased(x, bias) {
				v[i] = rounded(x.DType, sum)
			}
		}
		cosines, sines, places := s.numbers(cos), s.numbers(sin), s.vector(positions, tensor.I32, x.Rows)
		half := cos.Cols
		for first := 0; first < len(v); first += 2 * half { // of a head
			for i := range half {
				at := int(places[first/x.Cols])*half + i
				c, sn := cosines[at], sines[at]
				if inverse {
					sn = -sn
				}
				a, b := v[first+i], v[first+half+i]
				v[first+i], v[first+half+i] = a*c-b*sn, b*c+a*sn
			}
		}
		s.put(y, v)
	})
}

// attention has the operands of an attention as numbers.
type attention struct {
	device.AttentionSpec
	q, k, v, start []float64
	table          []float64 // of AttentionSpec.Blocks; nil without them
}

func (s *referenceStream) attention(q, k, v device.Mat, spec device.AttentionSpec) *attention {
	a := &attention{AttentionSpec: spec, q: s.numbers(q), k: s.numbers(k), v: s.numbers(v),
		start: s.vector(spec.Docs.Start, tensor.I32, q.Rows)}
	if b := spec.Blocks; !b.None() {
		a.table = s.vector(b.Table, tensor.I32, b.Entries())
	}
	return a
}

// query returns the index in q of a head of row t, and the first key that it sees of those before end.
func (a *attention) query(t, head, end int) (at, first int) {
	first = int(a.start[t])
	if a.Window > 0 {
		first = max(first, end-a.Window)
	}
	return (t*a.Heads + head) * a.HeadDim, first
}

// key returns the index in k and v of what a query's head sees at position t.
func (a *attention) key(t, head int) int {
	if a.table != nil {
		t = int(a.table[t/a.Blocks.Rows])*a.Blocks.Rows + t%a.Blocks.Rows
	}
	return (t*a.KVHeads + head/(a.Heads/a.KVHeads)) * a.HeadDim
}

// score returns the scaled and capped score of a query and a key, and its derivative by their product.
func (a *attention) score(q, k int) (score, slope float64) {
	score, slope = capped(float64(a.Scale)*dot(a.q[q:][:a.HeadDim], a.k[k:]), a.SoftCap)
	return score, slope * float64(a.Scale)
}

// capped returns softCap*tanh(x/softCap), and the derivative. A softCap of 0 does not bound.
func capped(x float64, softCap float32) (y, slope float64) {
	if softCap == 0 {
		return x, 1
	}
	t := math.Tanh(x / float64(softCap))
	return float64(softCap) * t, 1 - t*t
}

// Attention: out = sum over keys of p*v with p = exp(score - lse) and lse = log(sum of exp(score) + exp(sink)).
func (s *referenceStream) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.Attention(out, lse, q, k, v, spec)
	s.do(func() {
		a := s.attention(q, k, v, spec)
		result, logs := a.outputs(q.Rows, s.sinks(spec), func(t int) int { return t + 1 })
		s.put(out, result)
		s.put(lse, logs)
	})
}

// AttendCache is Attention of rows that say in Docs.End where the keys that they see end.
func (s *referenceStream) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.AttendCache(out, q, k, v, spec)
	s.do(func() {
		a, end := s.attention(q, k, v, spec), s.vector(spec.Docs.End, tensor.I32, q.Rows)
		result, _ := a.outputs(q.Rows, s.sinks(spec), func(t int) int { return int(end[t]) })
		s.put(out, result)
	})
}

// sinks reads the sinks of all heads: minus infinity where an attention has no sinks.
func (s *referenceStream) sinks(spec device.AttentionSpec) []float64 {
	if !spec.Sinks.IsZero() {
		return s.numbers(spec.Sinks)
	}
	sinks := make([]float64, spec.Heads)
	for head := range sinks {
		sinks[head] = math.Inf(-1)
	}
	return sinks
}

// outputs computes all rows, and the logarithms of their sums. end is one past the last key that a row sees.
func (a *attention) outputs(rows int, sinks []float64, end func(t int) int) (result, logs []float64) {
	result, logs = make([]float64, len(a.q)), make([]float64, rows*a.Heads)
	for i := range logs {
		t, head := i/a.Heads, i%a.Heads
		at, first := a.query(t, head, end(t))
		scores, top := make([]float64, end(t)-first), sinks[head]
		for j := range scores {
			scores[j], _ = a.score(at, a.key(first+j, head))
			top = max(top, scores[j])
		}
		sum := math.Exp(sinks[head] - top)
		for _, x := range scores {
			sum += math.Exp(x - top)
		}
		logs[i] = top + math.Log(sum)
		for j, x := range scores {
			addTo(result[at:], a.v[a.key(first+j, head):][:a.HeadDim], math.Exp(x-top)/sum)
		}
	}
	return result, logs
}

// AttentionGrad: delta = sum of out*dout, dscore = p*(dout·v - delta), dv = sum of p*dout, dq = sum of dscore*k and
// dk = sum of dscore*q, the latter two times the derivative of the score.
func (s *referenceStream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat,
	spec device.AttentionSpec) {
	s.operands.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
	s.do(func() {
		a := s.attention(q, k, v, spec)
		gradient, result, logs := s.numbers(dout), s.numbers(out), s.numbers(lse)
		gq, gk, gv := make([]float64, len(a.q)), make([]float64, len(a.k)), make([]float64, len(a.v))
		sums := make([]float64, len(logs))
		for i := range logs {
			t, head := i/spec.Heads, i%spec.Heads
			at, first := a.query(t, head, t+1)
			d := gradient[at:][:spec.HeadDim]
			sums[i] = dot(d, result[at:])
			for j := first; j <= t; j++ {
				key := a.key(j, head)
				score, slope := a.score(at, key)
				p := math.Exp(score - logs[i])
				dscore := p * (dot(d, a.v[key:]) - sums[i]) * slope
				addTo(gv[key:], d, p)
				addTo(gk[key:], a.q[at:][:spec.HeadDim], dscore)
				addTo(gq[at:], a.k[key:][:spec.HeadDim], dscore)
			}
		}
		s.put(dq, gq)
		s.put(dk, gk)
		s.put(dv, gv)
		s.put(delta, sums)
	})
}

// SinkGrad: dsinks[h] -= sum over rows of exp(sinks[h] - lse)*delta.
func (s *referenceStream) SinkGrad(dsinks, sinks, lse, delta device.Mat) {
	s.operands.SinkGrad(dsinks, sinks, lse, delta)
	s.do(func() {
		sum, sink, deltas := s.numbers(dsinks), s.numbers(sinks), s.numbers(delta)
		for i, log := range s.numbers(lse) {
			sum[i%len(sum)] -= math.Exp(sink[i%len(sum)]-log) * deltas[i]
		}
		s.put(dsinks, sum)
	})
}

// JoinHeads: head i of y is head i of a, and then head i of b, the only one of b, or zeros.
func (s *referenceStream) JoinHeads(y, a, b device.Mat, heads int) {
	s.operands.JoinHeads(y, a, b, heads)
	s.do(func() {
		for i := range heads {
			first, rest := halvesOfHead(y, a, heads, i)
			s.put(first, s.numbers(headOf(a, heads, i)))
			switch {
			case !b.IsZero():
				s.put(rest, s.numbers(headOf(b, b.Cols/rest.Cols, i%(b.Cols/rest.Cols))))
			case rest.Cols > 0:
				s.put(rest, make([]float64, rest.Rows*rest.Cols))
			}
		}
	})
}

// SplitHeads: head i of a is the first part of head i of y, and head i of b the second; or b is the sum of these.
func (s *referenceStream) SplitHeads(a, b, y device.Mat, heads int) {
	s.operands.SplitHeads(a, b, y, heads)
	s.do(func() {
		sum := make([]float64, b.Rows*b.Cols)
		for i := range heads {
			first, rest := halvesOfHead(y, a, heads, i)
			s.put(headOf(a, heads, i), s.numbers(first))
			switch {
			case b.IsZero():
			case b.Cols == rest.Cols:
				addTo(sum, s.numbers(rest), 1)
			default:
				s.put(headOf(b, heads, i), s.numbers(rest))
			}
		}
		if !b.IsZero() && b.Cols == y.Cols/heads-a.Cols/heads {
			s.put(b, sum)
		}
	})
}

// headOf are the columns of head i of a matrix of that many heads.
func headOf(m device.Mat, heads, i int) device.Mat { return m.ColRange(i*(m.Cols/heads), m.Cols/heads) }

// halvesOfHead are the columns of a head of y that are as wide as a head of a, and those after them.
func halvesOfHead(y, a device.Mat, heads, i int) (first, rest device.Mat) {
	head, n := headOf(y, heads, i), a.Cols/heads
	return head.ColRange(0, n), head.ColRange(n, head.Cols-n)
}

// GLU: y = act(gate, up).
func (s *referenceStream) GLU(y, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLU(y, gateUp, spec)
	s.do(func() {
		v, out := s.numbers(gateUp), make([]float64, y.Rows*y.Cols)
		for i := range out {
			gate, up, _ := unit(v, i, y.Cols, spec)
			out[i], _, _ = gated(gate, up, spec)
		}
		s.put(y, out)
	})
}

// GLUGrad: dgate = dy*d act/d gate and dup = dy*d act/d up; act has the numbers of GLU.
func (s *referenceStream) GLUGrad(dGateUp, act, dy, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLUGrad(dGateUp, act, dy, gateUp, spec)
	s.do(func() {
		v, cols := s.numbers(gateUp), dy.Cols
		gradient, out := make([]float64, len(v)), make([]float64, len(v)/spec.Inputs())
		for i, d := range s.numbers(dy) {
			gate, up, at := unit(v, i, cols, spec)
			y, byGate, byUp := gated(gate, up, spec)
			out[i], gradient[at] = y, d*byGate
			if !spec.Ungated {
				gradient[at+cols] = d * byUp
			}
		}
		s.put(act, out)
		s.put(dGateUp, gradient)
	})
}

// unit returns the gate and the up of output i of rows of cols outputs, and where the gate is in v.
func unit(v []float64, i, cols int, spec device.GLUSpec) (gate, up float64, at int) {
	at = i/cols*spec.Inputs()*cols + i%cols
	if spec.Ungated {
		return v[at], 1, at
	}
	return v[at], v[at+cols], at
}

// gated is a gated unit and its derivatives by gate and up.
func gated(gate, up float64, spec device.GLUSpec) (y, byGate, byUp float64) {
	alpha, add, slope := 1.0, 0.0, [2]float64{1, 1}
	if limit := float64(spec.Limit); limit > 0 {
		alpha, add = float64(spec.Alpha), 1
		if gate > limit {
			gate, slope[0] = limit, 0
		}
		if math.Abs(up) > limit {
			up, slope[1] = math.Copysign(limit, up), 0
		}
	}
	up += add
	f, derivative := activation(gate, alpha, spec.Gate)
	return up * f, slope[0] * up * derivative, slope[1] * f
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// activation is a function of a gate, and its derivative.
func activation(x, alpha float64, of device.Activation) (y, derivative float64) {
	switch of {
	case device.SiLU:
		s := sigmoid(alpha * x)
		return x * s, s * (1 + alpha*x*(1-s))
	case device.GELU:
		share := math.Erfc(-x/math.Sqrt2) / 2
		return x * share, share + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	case device.GELUTanh:
		root := math.Sqrt(2 / math.Pi)
		tanh := math.Tanh(root * (x + 0.044715*x*x*x))
		return x * (1 + tanh) / 2, (1+tanh)/2 + x*(1-tanh*tanh)/2*root*(1+3*0.044715*x*x)
	}
	panic("devicetest: an unknown activation")
}

// The columns of stat: the maximum, the sum of exponentials, the target's logit, and the sum of products of
// exponentials with how far their logits are below the maximum.
const (
	maximum = iota
	exponentials
	targetLogit
	products
	statCols
)

// LSEInit: the maximum of no logits is -Inf, and the sums are 0.
func (s *referenceStream) LSEInit(stat device.Mat) {
	s.operands.LSEInit(stat)
	s.do(func() {
		all := make([]float64, stat.Rows*statCols)
		for t := range stat.Rows {
			all[t*statCols+maximum] = math.Inf(-1)
		}
		s.put(stat, all)
	})
}

// LSEUpdate: with m' = max(m, x), the sum of exponentials becomes sum*exp(m - m') + exp(x - m'), for each logit x, and
// that of products (products + sum*(m - m'))*exp(m - m') + exp(x - m')*(x - m'), where 0 times infinity is 0.
func (s *referenceStream) LSEUpdate(stat, logits device.Mat, targets device.Mem, first int, softCap float32) {
	s.operands.LSEUpdate(stat, logits, targets, first, softCap)
	s.do(func() {
		all, ids := s.numbers(stat), s.vector(targets, tensor.I32, logits.Rows)
		for i, x := range s.numbers(logits) {
			x, _ = capped(x, softCap)
			row := all[i/logits.Cols*statCols:]
			larger := max(row[maximum], x)
			if by := row[maximum] - larger; row[exponentials] > 0 {
				row[products] = (row[products] + row[exponentials]*by) * math.Exp(by)
			}
			if p := math.Exp(x - larger); p > 0 {
				row[products] += p * (x - larger)
			}
			row[exponentials] = row[exponentials]*math.Exp(row[maximum]-larger) + math.Exp(x-larger)
			row[maximum] = larger
			if int(ids[i/logits.Cols]) == first+i%logits.Cols {
				row[targetLogit] = x
			}
		}
		s.put(stat, all)
	})
}

// TokenLoss: loss = m + log(sum of exponentials) - target's logit; entropy = log(sum of exponentials) - the sum of
// products/the sum of exponentials; and 1 where the target's logit is m.
func (s *referenceStream) TokenLoss(figures, stat device.Mat, targets device.Mem) {
	s.operands.TokenLoss(figures, stat, targets)
	s.do(func() {
		n, all := stat.Rows, s.numbers(stat)
		of := make([]float64, device.TokenFigures*n)
		for t, id := range s.vector(targets, tensor.I32, n) {
			row := all[t*statCols:]
			if id < 0 {
				continue
			}
			of[t] = row[maximum] + math.Log(row[exponentials]) - row[targetLogit]
			of[n+t] = math.Log(row[exponentials]) - row[products]/row[exponentials]
			if row[targetLogit] == row[maximum] {
				of[2*n+t] = 1
			}
		}
		s.put(figures, of)
	})
}

// CrossEntropyGrad: with p = exp(x - m)/sum and the entropy H, dlogits = (p - onehot)*weight - slope*p*(log p + H),
// times the derivative of the cap.
func (s *referenceStream) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights, entropySlopes device.Mem,
	first int, softCap float32) {
	s.operands.CrossEntropyGrad(dlogits, logits, stat, targets, weights, entropySlopes, first, softCap)
	s.do(func() {
		v, all, ids := s.numbers(logits), s.numbers(stat), s.vector(targets, tensor.I32, logits.Rows)
		scale, slopes := s.vector(weights, tensor.F32, logits.Rows), make([]float64, logits.Rows)
		if !entropySlopes.IsZero() {
			slopes = s.vector(entropySlopes, tensor.F32, logits.Rows)
		}
		for i, x := range v {
			row, target := all[i/logits.Cols*statCols:], int(ids[i/logits.Cols])
			if target < 0 {
				v[i] = 0
				continue
			}
			x, slope := capped(x, softCap)
			p := math.Exp(x-row[maximum]) / row[exponentials]
			v[i] = p * scale[i/logits.Cols]
			if target == first+i%logits.Cols {
				v[i] -= scale[i/logits.Cols]
			}
			if p > 0 {
				entropy := math.Log(row[exponentials]) - row[products]/row[exponentials]
				v[i] -= slopes[i/logits.Cols] * p * (math.Log(p) + entropy)
			}
			v[i] *= slope
		}
		s.put(dlogits, v)
	})
}

// The columns of stat in a draw: the maximum, the sum of exponentials, and the number and the id of the token.
const (
	drawnMaximum = iota
	drawnExponentials
	drawnNumber
	drawnID
)

// DrawTokens: with x = the logit, capped, times 1/temperature, the token with the greatest x - log(-log u) is drawn,
// u = (word + 0.5)/2^32, or the one with the greatest logit at temperature 0, and x - m - log(sum of exp(x - m)) is its
// log-probability.
func (s *referenceStream) DrawTokens(drawn, stat, logits device.Mat, draws device.Mem, first, vocab int,
	softCap float32) {
	s.operands.DrawTokens(drawn, stat, logits, draws, first, vocab, softCap)
	s.do(func() {
		all, from := s.numbers(stat), s.numbers(logits)
		named, of := s.vector(draws, tensor.I32, logits.Rows*device.DrawWords), []float64{}
		for t := range logits.Rows {
			var words [device.DrawWords]int32
			for i := range words {
				words[i] = int32(named[t*device.DrawWords+i])
			}
			row, d := all[t*statCols:][:statCols], device.TokenDrawIn(words[:])
			if first == 0 {
				copy(row, []float64{math.Inf(-1), 0, math.Inf(-1), 0})
			}
			score := func(x float64, id int) float64 {
				if d.Inverse == 0 {
					return x
				}
				n := rng.Counter{uint32(id / 4), d.At, uint32(d.Text), uint32(d.Text >> 32)}
				u := (float64(rng.Philox4x32(d.Key, n)[id%4]) + 0.5) / (1 << 32)
				return x - math.Log(-math.Log(u))
			}
			for c, x := range from[t*logits.Cols:][:max(min(logits.Cols, vocab-first), 0)] {
				if x, _ = capped(x, softCap); d.Inverse != 0 {
					x *= float64(d.Inverse)
				}
				larger := max(row[drawnMaximum], x)
				if row[drawnExponentials] != 0 {
					row[drawnExponentials] *= math.Exp(row[drawnMaximum] - larger)
				}
				if !math.IsInf(x, -1) {
					row[drawnExponentials] += math.Exp(x - larger)
				}
				row[drawnMaximum] = larger
				if score(x, first+c) > score(row[drawnNumber], int(row[drawnID])) {
					row[drawnNumber], row[drawnID] = x, float64(first+c)
				}
			}
			if sum := row[drawnExponentials]; sum > 0 && !math.IsInf(sum, 1) {
				of = append(of, row[drawnID], row[drawnNumber]-row[drawnMaximum]-math.Log(sum))
			} else {
				of = append(of, -1, 0)
			}
		}
		if s.put(stat, all); !drawn.IsZero() {
			s.put(drawn, of)
		}
	})
}

// PickLogits: picked[t, i] = logits[t, ids[t, i]-first], capped.
func (s *referenceStream) PickLogits(picked, logits device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PickLogits(picked, logits, ids, first, softCap)
	s.do(func() {
		all, from := s.numbers(picked), s.numbers(logits)
		for i, id := range s.vector(ids, tensor.I32, len(all)) {
			if c := int(id) - first; c >= 0 && c < logits.Cols {
				all[i], _ = capped(from[i/picked.Cols*logits.Cols+c], softCap)
			}
		}
		s.put(picked, all)
	})
}

// PutLogitGrads: dlogits[t, ids[t, i]-first] = values[t, i], times the derivative of the cap.
func (s *referenceStream) PutLogitGrads(dlogits, logits, values device.Mat, ids device.Mem, first int,
	softCap float32) {
	s.operands.PutLogitGrads(dlogits, logits, values, ids, first, softCap)
	s.do(func() {
		all, from, v := s.numbers(dlogits), s.numbers(logits), s.numbers(values)
		for i, id := range s.vector(ids, tensor.I32, len(v)) {
			if c := int(id) - first; c >= 0 && c < logits.Cols {
				at := i/values.Cols*logits.Cols + c
				_, slope := capped(from[at], softCap)
				all[at] = v[i] * slope
			}
		}
		s.put(dlogits, all)
	})
}

// Sum: dst = sum of x, in the order of sumInOrder.
func (s *referenceStream) Sum(dst device.Mem, x device.Mat) {
	s.operands.Sum(dst, x)
	s.do(func() { s.put(device.NewVec(dst, tensor.F64, 1), []float64{sumInOrder(s.numbers(x))}) })
}

// sumInOrder adds in the order that every device keeps: chunks of 65536 numbers, each in 16 lanes, which are folded in
// halves.
func sumInOrder(x []float64) (sum float64) {
	const chunk = 65536
	for len(x) > 0 {
		var lanes [16]float64
		for i, v := range x[:min(chunk, len(x))] {
			lanes[i%len(lanes)] += v
		}
		for half := len(lanes) / 2; half > 0; half /= 2 {
			for i := range half {
				lanes[i] += lanes[i+half]
			}
		}
		sum += lanes[0]
		x = x[min(chunk, len(x)):]
	}
	return sum
}

// Gather: y[t] = table[ids[t]-first].
func (s *referenceStream) Gather(y, table device.Mat, ids device.Mem, first int) {
	s.operands.Gather(y, table, ids, first)
	s.do(func() {
		for t, id := range s.vector(ids, tensor.I32, y.Rows) {
			if row := int(id) - first; row >= 0 && row < table.Rows {
				s.put(y.RowRange(t, 1), s.numbers(table.RowRange(row, 1)))
			}
		}
	})
}

// Put: cache[at[r]] = x[r].
func (s *referenceStream) Put(cache, x device.Mat, at device.Mem) {
	s.operands.Put(cache, x, at)
	s.do(func() {
		for r, row := range s.vector(at, tensor.I32, x.Rows) {
			if row >= 0 {
				s.put(cache.RowRange(int(row), 1), s.numbers(x.RowRange(r, 1)))
			}
		}
	})
}

// ScatterAdd: dtable[ids[t]-first] += by*dy[t], in the order of t, each product and each sum in fp32.
func (s *referenceStream) ScatterAdd(dtable, dy device.Mat, ids device.Mem, first int, by float32) {
	s.operands.ScatterAdd(dtable, dy, ids, first, by)
	s.do(func() {
		for t, id := range s.vector(ids, tensor.I32, dy.Rows) {
			if row := int(id) - first; row >= 0 && row < dtable.Rows {
				sum := s.numbers(dtable.RowRange(row, 1))
				for i, d := range s.numbers(dy.RowRange(t, 1)) {
					sum[i] = rounded(tensor.F32, sum[i]+rounded(tensor.F32, d*float64(by)))
				}
				s.put(dtable.RowRange(row, 1), sum)
			}
		}
	})
}

// AdamW: see step.
func (s *referenceStream) AdamW(args device.AdamWArgs, tally device.Mem) {
	s.operands.AdamW(args, tally)
	s.do(func() {
		m, v := s.numbers(args.M), s.numbers(args.V)
		s.step(args.Weights, args.Low, args.Grad, m, v, &args.AdamWScalars, args.Draw, tally)
		s.put(args.M, m)
		s.put(args.V, v)
	})
}

// AdamW8: see step. Package kernels defines the codes of moments and how they are rounded; its tests hold those of 8
// bits against bitsandbytes, and the random words against package rng.
func (s *referenceStream) AdamW8(args device.AdamW8Args, tally device.Mem) {
	s.operands.AdamW8(args, tally)
	s.do(func() {
		m, v := s.moments(args.M, args.MScale, args.First4(), true), s.moments(args.V, args.VScale, args.Second4(), false)
		s.step(args.Weights, args.Low, args.Grad, m, v, &args.AdamWScalars, args.Draw, tally)
		s.encode(args.M, args.MScale, m, func(codes []uint8, scales, x []float32) {
			if args.First4() {
				kernels.QuantizeFirst4(codes, scales, x, args.Draw)
			} else {
				kernels.QuantizeFirst8(codes, scales, x)
			}
		})
		s.encode(args.V, args.VScale, v, func(codes []uint8, scales, x []float32) {
			if args.Second4() {
				kernels.QuantizeSecond4(codes, scales, x, args.Draw)
			} else {
				kernels.QuantizeSecond8(codes, scales, x, args.Draw)
			}
		})
	})
}

func (s *referenceStream) moments(codes, scales device.Mat, narrow, signed bool) []float64 {
	packed, of := as[uint8](s.numbers(codes)), as[float32](s.numbers(scales))
	if narrow {
		x := make([]float32, 2*len(packed))
		kernels.Dequantize4(x, packed, of, signed)
		return as[float64](x)
	}
	x := make([]float32, len(packed))
	kernels.Dequantize8(x, packed, of, signed)
	return as[float64](x)
}

func (s *referenceStream) encode(to, scalesTo device.Mat, x []float64, quantize func(codes []uint8, scales,
	x []float32)) {
	codes, scales := make([]uint8, to.Cols), make([]float32, scalesTo.Cols)
	quantize(codes, scales, as[float32](x))
	s.put(to, as[float64](codes))
	s.put(scalesTo, as[float64](scales))
}

func as[T, F uint8 | float32 | float64](x []F) []T {
	out := make([]T, len(x))
	for i, x := range x {
		out[i] = T(x)
	}
	return out
}

// word is the random word of parameter i.
func word(d device.Draw, i int) uint32 {
	at := d.At(i).First
	w := rng.Philox4x32(d.Key, rng.Counter{uint32(at / 4), uint32(at / 4 >> 32), uint32(d.Part), uint32(d.Part >> 32)})
	return w[at%4]
}

// step updates weights and moments in place, by AdamW's formula in fp32, and tells in tally how many new weights are
// infinite or NaN, and of the longest move. d rounds weights of 24 bits. Every product is converted, as Go may else
// contract it with the next sum.
func (s *referenceStream) step(weights, low, grad device.Mat, m, v []float64, a *device.AdamWScalars, d device.Draw,
	tally device.Mem) {
	p, halves := s.numbers(weights), make([]float64, len(m))
	if !low.IsZero() {
		halves = s.numbers(low)
		for i := range p {
			hi := tensor.BF16FromF32(float32(p[i]))
			if low.DType == tensor.I8 {
				p[i] = float64(tensor.JoinF24(hi, int8(halves[i])))
			} else {
				p[i] = float64(tensor.JoinF32(hi, int16(halves[i])))
			}
		}
	}
	told, longest := s.vector(tally, tensor.I64, 2), 0.0
	for i, x := range s.numbers(grad) {
		g := float32(a.ClipScale * float32(x))
		m1, v1 := float32(m[i]), float32(v[i])
		m1 = normal(m1 + float32(float32(g-m1)*a.OneMinusBeta1))
		v1 = normal(float32(a.Beta2*v1) + float32(float32(a.OneMinusBeta2*g)*g))
		root := float32(math.Sqrt(float64(v1)))
		move := float32(float32(a.StepSize*m1) / (float32(root/a.SqrtBC2) + a.Eps))
		next := float32(float32(p[i])*a.Decay) - move
		if next-next != 0 { // infinite, or a NaN
			told[0]++
		}
		if longest = max(longest, math.Abs(float64(move))); math.IsNaN(longest) {
			longest = math.Inf(1)
		}
		p[i], m[i], v[i] = float64(next), float64(m1), float64(v1)
		switch low.DType {
		case tensor.I16:
			high, lo := tensor.SplitF32(next)
			p[i], halves[i] = float64(tensor.F32FromBF16(high)), float64(lo)
		case tensor.I8:
			high, lo := tensor.SplitF24(next, uint8(word(d, i)))
			p[i], halves[i] = float64(tensor.F32FromBF16(high)), float64(lo)
			if next-next == 0 && math.IsInf(p[i], 0) {
				told[0]++
			}
		}
	}
	s.put(weights, p)
	if !low.IsZero() {
		s.put(low, halves)
	}
	if a.StepSize != 0 {
		told[1] = max(told[1], float64(math.Float32bits(float32(longest/float64(a.StepSize)))))
	}
	s.put(device.NewVec(tally, tensor.I64, 2), told)
}

// normal replaces a denormal number by zero.
func normal(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return 0
	}
	return x
}

// SumSquares: dst = sum of x^2, in the order of sumInOrder.
func (s *referenceStream) SumSquares(dst device.Mem, x device.Mat) {
	s.operands.SumSquares(dst, x)
	s.do(func() {
		v := s.numbers(x)
		for i := range v {
			v[i] *= v[i]
		}
		s.put(device.NewVec(dst, tensor.F64, 1), []float64{sumInOrder(v)})
	})
}
