package devicetest

import (
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// The operations of device/recurrent.go, whose texts name the sources of the formulas.

// silu is x*sigmoid(x), and its derivative.
func silu(x float64) (y, slope float64) {
	s := sigmoid(x)
	return x * s, s * (1 + x*(1-s))
}

// convolved is the sum over the taps of w at row t and column c.
func convolved(x, w []float64, cols, taps, start, t, c int) (sum float64) {
	for j := range taps {
		if row := t - taps + 1 + j; row >= start {
			sum += w[c*taps+j] * x[row*cols+c]
		}
	}
	return sum
}

// CausalConv: y[t] = silu(sum of w[j]*x[t-K+1+j]).
func (s *referenceStream) CausalConv(y, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConv(y, x, w, docs)
	s.do(func() {
		v, weights, start := s.numbers(x), s.numbers(w), s.vector(docs.Start, tensor.I32, x.Rows)
		out := make([]float64, len(v))
		for i := range out {
			t, c := i/x.Cols, i%x.Cols
			out[i], _ = silu(convolved(v, weights, x.Cols, w.Cols, int(start[t]), t, c))
		}
		s.put(y, out)
	})
}

// CausalConvGrad: dz = dy*silu'(sum), dx[t-K+1+j] = sum of w[j]*dz[t], dw[j] += sum of x[t-K+1+j]*dz[t].
func (s *referenceStream) CausalConvGrad(dx, dw, dy, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConvGrad(dx, dw, dy, x, w, docs)
	s.do(func() {
		v, weights, start := s.numbers(x), s.numbers(w), s.vector(docs.Start, tensor.I32, x.Rows)
		gradient, weightGradient := make([]float64, len(v)), make([]float64, len(weights))
		if !dw.IsZero() {
			weightGradient = s.numbers(dw)
		}
		for i, d := range s.numbers(dy) {
			t, c := i/x.Cols, i%x.Cols
			_, slope := silu(convolved(v, weights, x.Cols, w.Cols, int(start[t]), t, c))
			for j := range w.Cols {
				if row := t - w.Cols + 1 + j; row >= int(start[t]) {
					gradient[row*x.Cols+c] += weights[c*w.Cols+j] * d * slope
					weightGradient[c*w.Cols+j] += v[row*x.Cols+c] * d * slope
				}
			}
		}
		s.put(dx, gradient)
		if !dw.IsZero() {
			s.put(dw, weightGradient)
		}
	})
}

// activated is the activation of a gate, and its derivative.
func activated(x float64, kind device.GateKind) (y, slope float64) {
	if kind == device.SiLUGate {
		return silu(x)
	}
	y = sigmoid(x)
	return y, y * (1 - y)
}

// Gate: y = x*act(gate).
func (s *referenceStream) Gate(y, x, gate device.Mat, kind device.GateKind) {
	s.operands.Gate(y, x, gate, kind)
	s.do(func() {
		v, gates := s.numbers(x), s.numbers(gate)
		for i := range v {
			act, _ := activated(gates[i/(x.Cols/gate.Cols)], kind)
			v[i] *= act
		}
		s.put(y, v)
	})
}

// GateGrad: dx = dy*act(gate), dgate = sum of dy*x*act'(gate).
func (s *referenceStream) GateGrad(dx, dgate, dy, x, gate device.Mat, kind device.GateKind) {
	s.operands.GateGrad(dx, dgate, dy, x, gate, kind)
	s.do(func() {
		v, gates, gradient := s.numbers(x), s.numbers(gate), s.numbers(dy)
		gateGradient := make([]float64, len(gates))
		for i, d := range gradient {
			g := i / (x.Cols / gate.Cols)
			act, slope := activated(gates[g], kind)
			gradient[i] = d * act
			gateGradient[g] += d * v[i] * slope
		}
		s.put(dx, gradient)
		s.put(dgate, gateGradient)
	})
}

// softplus is log(1 + exp(x)).
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

// DeltaGates: decay = -exp(aLog)*softplus(a + dtBias), beta = sigmoid(b).
func (s *referenceStream) DeltaGates(decay, beta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGates(decay, beta, a, b, aLog, dtBias)
	s.do(func() {
		decays, betas, logs, biases := s.numbers(a), s.numbers(b), s.numbers(aLog), s.numbers(dtBias)
		for i := range decays {
			h := i % a.Cols
			decays[i] = -math.Exp(logs[h]) * softplus(decays[i]+biases[h])
			betas[i] = sigmoid(betas[i])
		}
		s.put(decay, decays)
		s.put(beta, betas)
	})
}

// DeltaGatesGrad: da = -ddecay*exp(aLog)*sigmoid(a + dtBias), db = dbeta*beta*(1 - beta), daLog += sum of ddecay*decay,
// ddtBias += sum of da.
func (s *referenceStream) DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
	s.do(func() {
		as, bs, logs, biases := s.numbers(a), s.numbers(b), s.numbers(aLog), s.numbers(dtBias)
		gradient, gradientB := s.numbers(ddecay), s.numbers(dbeta)
		sumLog, sumBias := make([]float64, a.Cols), make([]float64, a.Cols)
		if !daLog.IsZero() {
			sumLog, sumBias = s.numbers(daLog), s.numbers(ddtBias)
		}
		for i, d := range gradient {
			h := i % a.Cols
			rate, x, beta := -math.Exp(logs[h]), as[i]+biases[h], sigmoid(bs[i])
			gradient[i] = d * rate * sigmoid(x)
			gradientB[i] *= beta * (1 - beta)
			sumLog[h] += d * rate * softplus(x)
			sumBias[h] += gradient[i]
		}
		s.put(da, gradient)
		s.put(db, gradientB)
		if !daLog.IsZero() {
			s.put(daLog, sumLog)
			s.put(ddtBias, sumBias)
		}
	})
}

// deltaHead is one head of a gated delta net, row by row.
type deltaHead struct {
	q, k, v        [][]float64 // q and k are normalized
	qScale, kScale []float64   // what they were multiplied by
	factor, beta   []float64   // factor = exp(decay)
	begins         []bool      // a document begins here
}

// deltaHead reads a head. at is the index in qkv of its query, key or value in a row.
func (s *referenceStream) deltaHead(qkv, decay, beta device.Mat, spec device.DeltaSpec, head int) (d *deltaHead,
	at func(t, what int) int) {
	all, decays, betas := s.numbers(qkv), s.numbers(decay), s.numbers(beta)
	key := head / (spec.Heads / spec.KeyHeads)
	at = func(t, what int) int {
		return t*qkv.Cols + [3]int{key * spec.KeyDim, (spec.KeyHeads + key) * spec.KeyDim,
			2*spec.KeyHeads*spec.KeyDim + head*spec.ValueDim}[what]
	}
	normalized := func(x []float64, by float64) (y []float64, scale float64) {
		scale = by / math.Sqrt(dot(x, x)+1e-6)
		y = make([]float64, len(x))
		addTo(y, x, scale)
		return y, scale
	}
	d = &deltaHead{}
	for t, start := range s.vector(spec.Docs.Start, tensor.I32, qkv.Rows) {
		q, qScale := normalized(all[at(t, 0):][:spec.KeyDim], 1/math.Sqrt(float64(spec.KeyDim)))
		k, kScale := normalized(all[at(t, 1):][:spec.KeyDim], 1)
		d.q, d.qScale = append(d.q, q), append(d.qScale, qScale)
		d.k, d.kScale = append(d.k, k), append(d.kScale, kScale)
		d.v = append(d.v, all[at(t, 2):][:spec.ValueDim])
		d.factor = append(d.factor, math.Exp(decays[t*spec.Heads+head]))
		d.beta = append(d.beta, betas[t*spec.Heads+head])
		d.begins = append(d.begins, int(start) == t)
	}
	return d, at
}

// state is a state [KeyDim, ValueDim], row by row.
type state []float64

// times is S^T x.
func (s state) times(x []float64) []float64 {
	n := len(s) / len(x)
	y := make([]float64, n)
	for i, v := range x {
		addTo(y, s[i*n:][:n], v)
	}
	return y
}

// with is S y.
func (s state) with(y []float64) []float64 {
	x := make([]float64, len(s)/len(y))
	for i := range x {
		x[i] = dot(y, s[i*len(y):])
	}
	return x
}

// add is S += x y^T.
func (s state) add(x, y []float64) {
	for i, v := range x {
		addTo(s[i*len(y):], y, v)
	}
}

// scaled is a multiple of S.
func (s state) scaled(by float64) state {
	y := make(state, len(s))
	addTo(y, s, by)
	return y
}

// difference is x - y.
func difference(x, y []float64) []float64 {
	z := append([]float64(nil), x...)
	addTo(z, y, -1)
	return z
}

// step returns the state that row t leaves of the one that it finds, and its output.
func (d *deltaHead) step(found state, t int) (left state, out []float64) {
	left = found.scaled(d.factor[t])
	delta := difference(d.v[t], left.times(d.k[t]))
	for i := range delta {
		delta[i] *= d.beta[t]
	}
	left.add(d.k[t], delta)
	return left, left.times(d.q[t])
}

// forward returns the state that each row finds, and the outputs.
func (d *deltaHead) forward() (found []state, out [][]float64) {
	var s state
	for t, k := range d.k {
		if d.begins[t] {
			s = make(state, len(k)*len(d.v[t]))
		}
		found = append(found, s)
		left, o := d.step(s, t)
		s, out = left, append(out, o)
	}
	return found, out
}

// deltaGrads are gradients of a head, row by row.
type deltaGrads struct {
	q, k, v     [][]float64 // of the normalized q and k
	decay, beta []float64
	found       []state // of the state that a row finds
}

// backward goes from the last row to the first.
func (d *deltaHead) backward(dout [][]float64) *deltaGrads {
	found, _ := d.forward()
	rows := len(found)
	g := &deltaGrads{make([][]float64, rows), make([][]float64, rows), make([][]float64, rows),
		make([]float64, rows), make([]float64, rows), make([]state, rows)}
	for t := rows - 1; t >= 0; t-- {
		q, k := d.q[t], d.k[t]
		ds := make(state, len(found[t])) // of the state that the row leaves
		if t+1 < rows && !d.begins[t+1] {
			copy(ds, g.found[t+1])
		}
		decayed := found[t].scaled(d.factor[t])
		wrong := difference(d.v[t], decayed.times(k))
		delta := make([]float64, len(wrong))
		addTo(delta, wrong, d.beta[t])
		left := decayed.scaled(1)
		left.add(k, delta)

		ds.add(q, dout[t])
		g.q[t] = left.with(dout[t])
		ddelta := ds.times(k)
		g.beta[t] = dot(wrong, ddelta)
		g.v[t] = make([]float64, len(ddelta))
		addTo(g.v[t], ddelta, d.beta[t])
		g.k[t] = difference(ds.with(delta), decayed.with(g.v[t]))
		for i := range k {
			addTo(ds[i*len(delta):], g.v[t], -k[i])
		}
		g.decay[t] = dot(ds, decayed)
		g.found[t] = ds.scaled(d.factor[t])
	}
	return g
}

// GatedDelta carries out the recurrence, head by head. A chunk's state is the one that its first row finds.
func (s *referenceStream) GatedDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) {
	s.operands.GatedDelta(out, states, qkv, decay, beta, spec)
	s.do(func() {
		for h := range spec.Heads {
			d, _ := s.deltaHead(qkv, decay, beta, spec, h)
			found, outputs := d.forward()
			for t, o := range outputs {
				s.put(out.RowRange(t, 1).ColRange(h*spec.ValueDim, spec.ValueDim), o)
				s.putState(states, t, h, found[t])
			}
		}
	})
}

// putState writes the state of a head that row t finds, or its gradient, if a chunk begins there.
func (s *referenceStream) putState(states device.Mat, t, head int, x state) {
	if t%device.DeltaChunk == 0 {
		s.put(states.RowRange(t/device.DeltaChunk, 1).ColRange(head*len(x), len(x)), x)
	}
}

// GatedDeltaGrad goes through the recurrence backwards, head by head. States are computed again. No gradient goes to
// what was there before a document.
func (s *referenceStream) GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states device.Mat,
	spec device.DeltaSpec) {
	s.operands.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
	s.do(func() {
		gradient, douts, all := make([]float64, qkv.Rows*qkv.Cols), s.numbers(dout), s.numbers(qkv)
		decays, betas := make([]float64, qkv.Rows*spec.Heads), make([]float64, qkv.Rows*spec.Heads)
		for h := range spec.Heads {
			d, at := s.deltaHead(qkv, decay, beta, spec, h)
			var mine [][]float64
			for t := range qkv.Rows {
				mine = append(mine, douts[t*dout.Cols+h*spec.ValueDim:][:spec.ValueDim])
			}
			g := d.backward(mine)
			for t := range qkv.Rows {
				addNormalized(gradient[at(t, 0):], all[at(t, 0):], g.q[t], d.q[t], d.qScale[t])
				addNormalized(gradient[at(t, 1):], all[at(t, 1):], g.k[t], d.k[t], d.kScale[t])
				addTo(gradient[at(t, 2):], g.v[t], 1)
				decays[t*spec.Heads+h], betas[t*spec.Heads+h] = g.decay[t], g.beta[t]
				if d.begins[t] {
					clear(g.found[t])
				}
				s.putState(dstates, t, h, g.found[t])
			}
		}
		s.put(dqkv, gradient)
		s.put(ddecay, decays)
		s.put(dbeta, betas)
	})
}

// addNormalized adds the gradient of x to dx, given that of y = x*scale, where the scale is as of deltaHead.
func addNormalized(dx, x, dy, y []float64, scale float64) {
	x = x[:len(dy)]
	addTo(dx, dy, scale)
	addTo(dx, x, -dot(dy, y)/(dot(x, x)+1e-6))
}
