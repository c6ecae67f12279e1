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
	f := t.glu[kind(a.H.DType)]
	for r := row0; r < row1; r++ {
		for c := 0; c < n; c += piece {
			f(a.H.at(r, c), a.GateUp.at(r, c), a.GateUp.at(r, n+c), min(piece, n-c), a.Alpha, a.Limit)
		}
	}
}

// GLUBackward is the gradient of weight*h for the rows from row0 on, one for each choice, given that of the product in
// DH: it writes weight times the gradient to DGateUp and weight*h to H, and the gradient of the weight, the sum of
// DH*h, to dweights. weights and dweights have numbers by choice. Numbers are rounded once.
func (t *Table) GLUBackward(a *GLU, row0 int, choices []int32, weights, dweights []float32) {
	n, row1 := a.H.Cols, row0+len(choices)
	check(a.GateUp.has(row1, 2*n) && a.DH.has(row1, n) && a.H.has(row1, n) && a.DGateUp.has(row1, 2*n),
		"GLUBackward: shape")
	check(a.GateUp.DType == a.DH.DType && a.GateUp.DType == a.H.DType && a.GateUp.DType == a.DGateUp.DType,
		"GLUBackward: types differ")
	var p gluPiece
	for i, choice := range choices {
		row, weight, sum := row0+i, weights[choice], float32(0)
		for c := 0; c < n; c += len(p.gate) {
			p.n = min(len(p.gate), n-c)
			p.read(t, a, row, c)
			p.backward(t, a.Alpha, a.Limit)
			sum += t.Dot(F32(p.dh[:p.n]), F32(p.h[:p.n]))
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
	n                           int
	gate, up, h, dh, dgate, dup [512]float32
}

func (p *gluPiece) read(t *Table, a *GLU, row, col int) {
	n := a.H.Cols
	t.Convert(F32(p.gate[:p.n]), a.GateUp.vec(row, col, p.n))
	t.Convert(F32(p.up[:p.n]), a.GateUp.vec(row, n+col, p.n))
	t.Convert(F32(p.dh[:p.n]), a.DH.vec(row, col, p.n))
}

// backward writes h, dgate and dup.
func (p *gluPiece) backward(t *Table, alpha, limit float32) {
	dgate, dup, h, dh := unsafe.Pointer(&p.dgate), unsafe.Pointer(&p.dup), unsafe.Pointer(&p.h), unsafe.Pointer(&p.dh)
	gate, up := unsafe.Pointer(&p.gate), unsafe.Pointer(&p.up)
	if limit == 0 {
		t.swigluGrad[0](dgate, dup, h, dh, gate, up, p.n)
		return
	}
	t.gluGrad(dgate, dup, h, dh, gate, up, p.n, alpha, limit)
}
