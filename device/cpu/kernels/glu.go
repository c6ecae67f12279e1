package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/device"
)

// GLU is a gated unit for rows that hold gate and up side by side: h = f(gate)*up, where f(x) = x*s.
//
//	SiLU      s = sigmoid(x), with the exponential of [Exp]
//	GELUTanh  s = sigmoid(2*sqrt(2/pi)*(x + 0.044715*x^3)), the same as (1 + tanh(half of that))/2
//	GELU      s = (1 + erf(x/sqrt(2)))/2, in float64
//	Limit     h = (clamp(up, -Limit, Limit) + 1) * g*sigmoid(Alpha*g) with g = min(gate, Limit)
//	Ungated   up is 1
//
// All matrices have the same type.
type GLU struct {
	GateUp Mat // [rows, Inputs*I]: gate is columns [0, I), up is columns [I, 2*I)
	H      Mat // [rows, I]

	DH      Mat // [rows, I], backward; may be H
	DGateUp Mat // [rows, Inputs*I], backward; may be GateUp

	device.GLUSpec
}

// GLUForward writes rows [row0, row1) of H.
func (t *Table) GLUForward(a *GLU, row0, row1 int) {
	n := a.H.Cols
	check(a.GateUp.has(row1, a.Inputs()*n) && a.H.has(row1, n) && a.GateUp.DType == a.H.DType,
		"GLUForward: shape or type")
	k, size := kind(a.H.DType), a.pieces()
	for r := row0; r < row1; r++ {
		for c := 0; c < n; c += size {
			t.gated(a, k, a.H.at(r, c), a.GateUp.at(r, c), a.up(r, c), min(size, n-c))
		}
	}
}

// pieces returns the number of elements that a loop gets at a time.
func (a *GLU) pieces() int {
	if a.Ungated {
		return unitPiece
	}
	return piece
}

// up is the address of up's columns from c on, in a row: an ungated unit's are ones.
func (a *GLU) up(r, c int) unsafe.Pointer {
	switch {
	case !a.Ungated:
		return a.GateUp.at(r, a.H.Cols+c)
	case kind(a.H.DType) == 0:
		return unsafe.Pointer(&ones)
	}
	return unsafe.Pointer(&onesBF16)
}

// gated is the loop of a's gated unit over n elements of a kind.
func (t *Table) gated(a *GLU, kind int, h, gate, up unsafe.Pointer, n int) {
	switch {
	case a.Limit > 0:
		t.limited[kind](h, gate, up, n, a.Alpha, a.Limit)
	case a.Gate == device.GELU:
		plainERFGLU[kind](h, gate, up, n)
	case a.Gate == device.GELUTanh:
		t.geglu[kind](h, gate, up, n)
	default:
		t.swiglu[kind](h, gate, up, n)
	}
}

// gatedGrad is the loop of its gradient. It writes h, too.
func (t *Table) gatedGrad(a *GLU, kind int, dgate, dup, h, dh, gate, up unsafe.Pointer, n int) {
	switch {
	case a.Limit > 0:
		t.limitedGrad[kind](dgate, dup, h, dh, gate, up, n, a.Alpha, a.Limit)
	case a.Gate == device.GELU:
		plainERFGLUGrad[kind](dgate, dup, h, dh, gate, up, n)
	case a.Gate == device.GELUTanh:
		t.gegluGrad[kind](dgate, dup, h, dh, gate, up, n)
	default:
		t.swigluGrad[kind](dgate, dup, h, dh, gate, up, n)
	}
}

func (a *GLU) checkBackward(row1 int) {
	n, inputs := a.H.Cols, a.Inputs()*a.H.Cols
	check(a.GateUp.has(row1, inputs) && a.DH.has(row1, n) && a.H.has(row1, n) && a.DGateUp.has(row1, inputs),
		"gradient of a GLU: shape")
	check(a.GateUp.DType == a.DH.DType && a.GateUp.DType == a.H.DType && a.GateUp.DType == a.DGateUp.DType,
		"gradient of a GLU: types differ")
}

// GLUBackward writes rows [row0, row1) of DGateUp, and those of H as GLUForward does:
//
//	dup   = dh * f(gate)
//	dgate = (dh*up) * f'(gate)      of SiLU: s * (1 + gate*(1-s))
func (t *Table) GLUBackward(a *GLU, row0, row1 int) {
	a.checkBackward(row1)
	n, k, size := a.H.Cols, kind(a.DH.DType), a.pieces()
	var unread [unitPiece]float32 // the gradient of ones
	for r := row0; r < row1; r++ {
		for c := 0; c < n; c += size {
			dup := unsafe.Pointer(&unread)
			if !a.Ungated {
				dup = a.DGateUp.at(r, n+c)
			}
			t.gatedGrad(a, k, a.DGateUp.at(r, c), dup, a.H.at(r, c), a.DH.at(r, c), a.GateUp.at(r, c), a.up(r, c),
				min(size, n-c))
		}
	}
}

// WeightedGLUBackward is the gradient of weight*h for the rows from row0 on, one for each choice, given that of the
// product in DH: it writes weight times the gradient to DGateUp and weight*h to H, and the gradient of the weight, the
// sum of DH*h, to dweights. weights and dweights have numbers by choice. Numbers are rounded once.
func (t *Table) WeightedGLUBackward(a *GLU, row0 int, choices []int32, weights, dweights []float32) {
	a.checkBackward(row0 + len(choices))
	n := a.H.Cols
	var p gluPiece
	for i, choice := range choices {
		row, weight, sum := row0+i, weights[choice], float32(0)
		for c := 0; c < n; c += len(p.gate) {
			p.n = min(len(p.gate), n-c)
			p.read(t, a, row, c)
			p.backward(t, a)
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
func (p *gluPiece) backward(t *Table, a *GLU) {
	t.gatedGrad(a, 0, unsafe.Pointer(&p.dgate), unsafe.Pointer(&p.dup), unsafe.Pointer(&p.h), unsafe.Pointer(&p.dh),
		unsafe.Pointer(&p.gate), unsafe.Pointer(&p.up), p.n)
}
