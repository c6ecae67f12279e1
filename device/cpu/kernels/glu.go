package kernels

import "unsafe"

// GLU is a gated activation for rows that hold gate and up side by side, in two forms:
//
//	Limit = 0: h = silu(gate) * up, to the bits of [SwiGLU]
//	Limit > 0: h = (clamp(up, -Limit, Limit) + 1) * g*sigmoid(Alpha*g) with g = min(gate, Limit)
//
// All matrices have the same type.
type GLU struct {
	GateUp Mat // [rows, 2*I]: gate is columns [0, I), up is columns [I, 2*I)
	H      Mat // [rows, I]

	DH      Mat // [rows, I], backward; may be H
	DGateUp Mat // [rows, 2*I], backward; may be GateUp

	Alpha, Limit float32
}

// GLUForward writes rows [row0, row1) of H.
func (t *Table) GLUForward(a *GLU, row0, row1 int) {
	if a.Limit == 0 {
		t.SwiGLUForward(&SwiGLU{GateUp: a.GateUp, H: a.H}, row0, row1)
		return
	}
	n := a.H.Cols
	check(a.GateUp.has(row1, 2*n) && a.H.has(row1, n) && a.GateUp.DType == a.H.DType, "GLUForward: shape or type")
	var p gluPiece
	for r := row0; r < row1; r++ {
		for c := 0; c < n; c += len(p.gate) {
			p.n = min(len(p.gate), n-c)
			p.read(t, a, r, c)
			p.forward(t, a.Alpha, a.Limit)
			t.Convert(a.H.vec(r, c, p.n), F32(p.h[:p.n]))
		}
	}
}

// GLUBackward is the gradient of weight*h for the rows from row0 on, one for each choice, given that of the product in
// DH: it writes weight times the gradient to DGateUp and weight*h to H, and the gradient of the weight, the sum of DH*h, to
// dweights. weights and dweights have numbers by choice. Numbers are rounded once.
func (t *Table) GLUBackward(a *GLU, row0 int, choices []int32, weights, dweights []float32) {
	n, row1 := a.H.Cols, row0+len(choices)
	check(a.GateUp.has(row1, 2*n) && a.DH.has(row1, n) && a.H.has(row1, n) && a.DGateUp.has(row1, 2*n), "GLUBackward: shape")
	check(a.GateUp.DType == a.DH.DType && a.GateUp.DType == a.H.DType && a.GateUp.DType == a.DGateUp.DType, "GLUBackward: types differ")
	var p gluPiece
	for i, choice := range choices {
		row, weight, sum := row0+i, weights[choice], float32(0)
		for c := 0; c < n; c += len(p.gate) {
			p.n = min(len(p.gate), n-c)
			p.read(t, a, row, c)
			dh := F32(p.dh[:p.n])
			t.Convert(dh, a.DH.vec(row, c, p.n))
			p.backward(t, a.Alpha, a.Limit)
			sum += t.Dot(dh, F32(p.h[:p.n]))
			p.write(t, a.H.vec(row, c, p.n), p.h[:p.n], weight)
			p.write(t, a.DGateUp.vec(row, c, p.n), p.dgate[:p.n], weight)
			p.write(t, a.DGateUp.vec(row, n+c, p.n), p.dup[:p.n], weight)
		}
		dweights[choice] = sum
	}
}

// write stores weight*x, and overwrites x.
func (p *gluPiece) write(t *Table, to Vec, x []float32, weight float32) {
	t.Scale(F32(x), F32(x), weight)
	t.Convert(to, F32(x))
}

// vec is a run of n elements of a row from column c on.
func (m Mat) vec(r, c, n int) Vec { return Vec{m.at(r, c), m.DType, n} }

// gluPiece has n columns of a row in fp32.
type gluPiece struct {
	n                               int
	gate, up, h, dh, dgate, dup, sg [512]float32
}

func (p *gluPiece) read(t *Table, a *GLU, row, col int) {
	t.Convert(F32(p.gate[:p.n]), a.GateUp.vec(row, col, p.n))
	t.Convert(F32(p.up[:p.n]), a.GateUp.vec(row, a.H.Cols+col, p.n))
}

// forward writes h of the limited form, and leaves in sg the sigmoid of Alpha*g.
func (p *gluPiece) forward(t *Table, alpha, limit float32) {
	for i, g := range p.gate[:p.n] {
		p.sg[i] = -alpha * min(g, limit)
	}
	t.Exp(p.sg[:p.n])
	for i, e := range p.sg[:p.n] {
		s := 1 / (1 + e)
		p.sg[i] = s
		p.h[i] = float32(min(p.gate[i], limit)*s) * (max(-limit, min(p.up[i], limit)) + 1)
	}
}

// backward writes h, dgate and dup.
func (p *gluPiece) backward(t *Table, alpha, limit float32) {
	if limit == 0 {
		f := t.swigluGrad[0]
		f(unsafe.Pointer(&p.dgate), unsafe.Pointer(&p.dup), unsafe.Pointer(&p.h), unsafe.Pointer(&p.dh), unsafe.Pointer(&p.gate),
			unsafe.Pointer(&p.up), p.n)
		return
	}
	p.forward(t, alpha, limit)
	for i, d := range p.dh[:p.n] {
		gate, up, s := p.gate[i], p.up[i], p.sg[i]
		g, u := min(gate, limit), max(-limit, min(up, limit))
		p.dgate[i], p.dup[i] = 0, 0
		if gate <= limit {
			p.dgate[i] = float32(d*(u+1)) * float32(s*(1+float32(float32(alpha*g)*(1-s))))
		}
		if up == u {
			p.dup[i] = float32(d * float32(g*s))
		}
	}
}
