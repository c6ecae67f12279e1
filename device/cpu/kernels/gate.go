package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/device"
)

// Gate multiplies by the activation of a gate, each column of which serves as many neighbours in X:
//
//	y = x*act(gate)      act(g) = s, or of a SiLUGate g*s, where s = 1/(1 + exp(-g))
//
// [Exp] computes exp. All matrices have the same type.
type Gate struct {
	X, Y, Gate Mat // [rows, n*each] twice, [rows, n]; Y may be X
	Kind       device.GateKind

	DY, DX, DGate Mat // backward; DX may be DY, DGate may be Gate
}

// act is the activation and its derivative: s*(1-s), or of a SiLUGate s*(1 + g*(1-s)).
func (a *Gate) act(g float32) (y, slope float32) {
	s := sigmoid(g)
	if a.Kind == device.SiLUGate {
		return float32(g * s), s * (1 + float32(g*(1-s)))
	}
	return s, s * (1 - s)
}

// check returns the number of columns that a gate serves.
func (a *Gate) check(rows int, others ...Mat) (each int) {
	ok := a.Gate.Cols > 0 && a.X.Cols%a.Gate.Cols == 0 && a.Gate.has(rows, a.Gate.Cols) && a.Gate.DType == a.X.DType
	for _, m := range append(others, a.X) {
		ok = ok && m.has(rows, a.X.Cols) && m.DType == a.X.DType
	}
	check(ok, "Gate: shape or type")
	return a.X.Cols / a.Gate.Cols
}

// GateForward writes rows [row0, row1) of Y.
func (t *Table) GateForward(a *Gate, row0, row1 int) {
	each, k := a.check(row1, a.Y), kind(a.X.DType)
	for r := row0; r < row1; r++ {
		if each == 1 {
			for c := 0; c < a.X.Cols; c += piece {
				y, x, gate, n := a.Y.at(r, c), a.X.at(r, c), a.Gate.at(r, c), min(piece, a.X.Cols-c)
				if a.Kind == device.SiLUGate {
					t.swiglu[k](y, gate, x, n)
				} else {
					t.gate[k](y, x, gate, n)
				}
			}
			continue
		}
		for c := range a.Gate.Cols {
			act, _ := a.act(a.Gate.element(r, c))
			t.Scale(a.Y.vec(r, c*each, each), a.X.vec(r, c*each, each), act)
		}
	}
}

// GateBackward writes rows [row0, row1) of DX and DGate:
//
//	dx = dy*act(gate)      dgate = (sum of dy*x)*act'(gate)
//
// The sum has the lanes of [Table.Dot].
func (t *Table) GateBackward(a *Gate, row0, row1 int) {
	each, k := a.check(row1, a.DX, a.DY), kind(a.X.DType)
	check(a.DGate.has(row1, a.Gate.Cols) && a.DGate.DType == a.X.DType, "GateBackward: shape or type of DGate")
	var unused [2048]float32 // y
	for r := row0; r < row1; r++ {
		if each == 1 {
			for c := 0; c < a.X.Cols; c += len(unused) {
				dx, dgate, dy := a.DX.at(r, c), a.DGate.at(r, c), a.DY.at(r, c)
				x, gate, n := a.X.at(r, c), a.Gate.at(r, c), min(len(unused), a.X.Cols-c)
				if a.Kind == device.SiLUGate {
					t.swigluGrad[k](dgate, dx, unsafe.Pointer(&unused), dy, gate, x, n)
				} else {
					t.gateGrad[k](dx, dgate, dy, x, gate, n)
				}
			}
			continue
		}
		for c := range a.Gate.Cols {
			act, slope := a.act(a.Gate.element(r, c))
			dy := a.DY.vec(r, c*each, each)
			dot := t.Dot(dy, a.X.vec(r, c*each, each))
			t.Scale(a.DX.vec(r, c*each, each), dy, act)
			store(a.DGate.at(r, c), k, dot*slope)
		}
	}
}
