package kernels

// Gate multiplies by the activation of a gate, each column of which serves Each neighbours in X:
//
//	y = x*act(gate)      act(g) = s, or with SiLU g*s, where s = 1/(1 + exp(-g))
//
// exp is that of [Exp]. All matrices have the same type.
type Gate struct {
	X, Y, Gate Mat // [rows, n*Each] twice, [rows, n]; Y may be X
	SiLU       bool

	DY, DX, DGate Mat // backward; DX may be DY, DGate may be Gate
}

// act is the activation and its derivative: s*(1-s), or with SiLU s*(1 + g*(1-s)).
func (a *Gate) act(g float32) (y, slope float32) {
	s := sigmoid(g)
	if a.SiLU {
		return g * s, s * (1 + float32(g*(1-s)))
	}
	return s, s * (1 - s)
}

func (a *Gate) check(rows int, others ...Mat) (each int) {
	check(a.Gate.Cols > 0 && a.X.Cols%a.Gate.Cols == 0 && a.Gate.has(rows, a.Gate.Cols), "Gate: shape of Gate")
	ok := a.Gate.DType == a.X.DType && a.X.has(rows, a.X.Cols)
	for _, m := range others {
		ok = ok && m.has(rows, a.X.Cols) && m.DType == a.X.DType
	}
	check(ok, "Gate: shape or type")
	return a.X.Cols / a.Gate.Cols
}

// gatePiece has some columns of a row in fp32.
type gatePiece struct{ gate, x, y, slope [512]float32 }

// GateForward writes rows [row0, row1) of Y.
func (t *Table) GateForward(a *Gate, row0, row1 int) {
	each := a.check(row1, a.Y)
	var p gatePiece
	for r := row0; r < row1; r++ {
		for c := 0; c < a.Gate.Cols; c += len(p.gate) {
			n := min(len(p.gate), a.Gate.Cols-c)
			act := p.gate[:n]
			t.Convert(F32(act), a.Gate.vec(r, c, n))
			for i, g := range act {
				act[i], _ = a.act(g)
			}
			if each > 1 {
				for i, s := range act {
					at := (c + i) * each
					t.Scale(a.Y.vec(r, at, each), a.X.vec(r, at, each), s)
				}
				continue
			}
			x := p.x[:n]
			t.Convert(F32(x), a.X.vec(r, c, n))
			for i, s := range act {
				x[i] *= s
			}
			t.Convert(a.Y.vec(r, c, n), F32(x))
		}
	}
}

// GateBackward writes rows [row0, row1) of DX and DGate:
//
//	dx = dy*act(gate)      dgate = (sum of dy*x)*act'(gate)
//
// The sum has the lanes of [Table.Dot].
func (t *Table) GateBackward(a *Gate, row0, row1 int) {
	each := a.check(row1, a.DX, a.DY)
	check(a.DGate.has(row1, a.Gate.Cols) && a.DGate.DType == a.X.DType, "GateBackward: shape or type of DGate")
	var p gatePiece
	for r := row0; r < row1; r++ {
		for c := 0; c < a.Gate.Cols; c += len(p.gate) {
			n := min(len(p.gate), a.Gate.Cols-c)
			act, slope, x, y := p.gate[:n], p.slope[:n], p.x[:n], p.y[:n]
			t.Convert(F32(act), a.Gate.vec(r, c, n))
			for i, g := range act {
				act[i], slope[i] = a.act(g)
			}
			if each > 1 {
				for i, s := range act {
					at := (c + i) * each
					slope[i] *= t.Dot(a.DY.vec(r, at, each), a.X.vec(r, at, each))
					t.Scale(a.DX.vec(r, at, each), a.DY.vec(r, at, each), s)
				}
				t.Convert(a.DGate.vec(r, c, n), F32(slope))
				continue
			}
			t.Convert(F32(x), a.X.vec(r, c, n))
			t.Convert(F32(y), a.DY.vec(r, c, n))
			for i, s := range act {
				slope[i] *= float32(y[i] * x[i])
				y[i] *= s
			}
			t.Convert(a.DGate.vec(r, c, n), F32(slope))
			t.Convert(a.DX.vec(r, c, n), F32(y))
		}
	}
}
