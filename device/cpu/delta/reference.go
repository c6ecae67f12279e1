package delta

import (
	"math"
	"slices"

	"github.com/millrace/millrace/device/cpu/kernels"
)

// Reference is Forward for a key head and all rows, row by row, as the recurrence is written down.
func Reference(k *kernels.Table, s *Spec, keyHead int) {
	for h := keyHead * s.group(); h < (keyHead+1)*s.group(); h++ {
		r := newRecurrence(k, s, h)
		s.clear(s.States, h)
		for t := range s.rows() {
			r.find(t)
			if p := s.pieceFrom(t); s.pieceTo(t+1).first == t && !s.begins(p) {
				copy(numbers(s.state(s.States, p.chunk(), h)), r.state)
			}
			r.step(t)
			k.Convert(part(s.Out, t, h*s.ValueDim, s.ValueDim), kernels.F32(r.times(r.state, r.q)))
		}
	}
}

// clear empties the states of a head before all chunks, or their gradients.
func (s *Spec) clear(of []float32, head int) {
	for chunk := range (s.rows() + Chunk - 1) / Chunk {
		clear(numbers(s.state(of, chunk, head)))
	}
}

// ReferenceGrad is Backward for a key head and all rows, row by row. It computes the states of a chunk again and has
// memory for all of them.
func ReferenceGrad(k *kernels.Table, s *Spec, keyHead int) {
	dqk := [2][]float32{make([]float32, s.rows()*s.KeyDim), make([]float32, s.rows()*s.KeyDim)}
	for h := keyHead * s.group(); h < (keyHead+1)*s.group(); h++ {
		r := newRecurrence(k, s, h)
		dstate := make([]float32, len(r.state))
		s.clear(s.DStates, h)
		for end := s.rows(); end > 0; {
			p := s.pieceTo(end)
			if !s.begins(p) {
				copy(r.state, numbers(s.state(s.States, p.chunk(), h)))
			}
			found := make([][]float32, 0, Chunk)
			for t := p.first; t < end; t++ {
				r.find(t)
				found = append(found, slices.Clone(r.state))
				r.step(t)
			}
			if s.ends(end) {
				clear(dstate)
			}
			for t := end - 1; t >= p.first; t-- {
				copy(r.state, found[t-p.first])
				r.stepBack(t, dstate, line(dqk[0], t, s.KeyDim), line(dqk[1], t, s.KeyDim))
			}
			if !s.begins(p) {
				copy(numbers(s.state(s.DStates, p.chunk(), h)), dstate)
			}
			end = p.first
		}
	}
	r := newRecurrence(k, s, keyHead*s.group())
	for t := range s.rows() {
		r.read(t)
		for i, dx := range [2][]float32{line(dqk[0], t, s.KeyDim), line(dqk[1], t, s.KeyDim)} {
			x, squares, col := r.q, float32(s.KeyDim), s.query(keyHead)
			if i == 1 {
				x, squares, col = r.k, 1, s.key(keyHead)
			}
			k.AddScaled(dx, kernels.F32(x), -squares*k.Dot(kernels.F32(dx), kernels.F32(x)))
			k.Scale(kernels.F32(dx), kernels.F32(dx), r.scales[i])
			k.Convert(part(s.DQKV, t, col, s.KeyDim), kernels.F32(dx))
		}
	}
}

// recurrence is a head at a row.
type recurrence struct {
	*kernels.Table
	*Spec
	head         int
	state        []float32 // [KeyDim, ValueDim]
	q, k         []float32 // normalized
	scales       [2]float32
	v, delta     []float32
	factor, beta float32
}

func newRecurrence(k *kernels.Table, s *Spec, head int) *recurrence {
	return &recurrence{Table: k, Spec: s, head: head, state: make([]float32, s.KeyDim*s.ValueDim),
		q: make([]float32, s.KeyDim), k: make([]float32, s.KeyDim), v: make([]float32, s.ValueDim),
		delta: make([]float32, s.ValueDim)}
}

// read reads row t.
func (r *recurrence) read(t int) {
	keyHead := r.head / r.group()
	for i, x := range [2][]float32{r.q, r.k} {
		col, by := r.query(keyHead), 1/math.Sqrt(float64(r.KeyDim))
		if i == 1 {
			col, by = r.key(keyHead), 1
		}
		v := kernels.F32(x)
		r.Convert(v, part(r.QKV, t, col, r.KeyDim))
		r.scales[i] = float32(by / math.Sqrt(float64(r.Dot(v, v)+epsilon)))
		r.Scale(v, v, r.scales[i])
	}
	r.Convert(kernels.F32(r.v), part(r.QKV, t, r.value(r.head), r.ValueDim))
	at := t*r.Heads + r.head
	r.factor, r.beta = kernels.Exp(r.Decay[at]), r.Beta[at]
}

// times is S^T x.
func (r *recurrence) times(s, x []float32) []float32 {
	y := make([]float32, r.ValueDim)
	for i, v := range x {
		r.AddScaled(y, kernels.F32(line(s, i, r.ValueDim)), v)
	}
	return y
}

// add is S += by x y^T.
func (r *recurrence) add(s, x, y []float32, by float32) {
	for i, v := range x {
		r.AddScaled(line(s, i, r.ValueDim), kernels.F32(y), by*v)
	}
}

// addWith is x += by S y.
func (r *recurrence) addWith(x, s, y []float32, by float32) {
	for i := range x {
		x[i] += by * r.Dot(kernels.F32(line(s, i, r.ValueDim)), kernels.F32(y))
	}
}

// find goes from the state that the row before t leaves to the one that row t finds.
func (r *recurrence) find(t int) {
	if r.ends(t) {
		clear(r.state)
	}
}

// step goes from the state that row t finds to the one that it leaves.
func (r *recurrence) step(t int) {
	r.read(t)
	r.decay()
	r.add(r.state, r.k, r.delta, 1)
}

// decay multiplies the state, and computes what is wrong in the value (v) and delta.
func (r *recurrence) decay() {
	r.Scale(kernels.F32(r.state), kernels.F32(r.state), r.factor)
	r.AddScaled(r.v, kernels.F32(r.times(r.state, r.k)), -1)
	r.Scale(kernels.F32(r.delta), kernels.F32(r.v), r.beta)
}

// stepBack goes from the gradient of the state that row t leaves to that of the state that it finds, which is in state.
func (r *recurrence) stepBack(t int, dstate, dq, dk []float32) {
	dout, at := make([]float32, r.ValueDim), t*r.Heads+r.head
	r.Convert(kernels.F32(dout), part(r.DOut, t, r.head*r.ValueDim, r.ValueDim))
	r.read(t)
	r.decay()
	left := slices.Clone(r.state)
	r.add(left, r.k, r.delta, 1)
	r.addWith(dq, left, dout, 1)
	r.add(dstate, r.q, dout, 1)
	dvalue := r.times(dstate, r.k)
	r.DBeta[at] = r.Dot(kernels.F32(r.v), kernels.F32(dvalue))
	r.Scale(kernels.F32(dvalue), kernels.F32(dvalue), r.beta)
	r.Convert(part(r.DQKV, t, r.value(r.head), r.ValueDim), kernels.F32(dvalue))
	r.addWith(dk, dstate, r.delta, 1)
	r.addWith(dk, r.state, dvalue, -1)
	r.add(dstate, r.k, dvalue, -1)
	r.DDecay[at] = 0
	for i := range r.KeyDim {
		r.DDecay[at] += r.Dot(kernels.F32(line(dstate, i, r.ValueDim)), kernels.F32(line(r.state, i, r.ValueDim)))
	}
	r.Scale(kernels.F32(dstate), kernels.F32(dstate), r.factor)
}
