package kernels

// SwiGLU is h = silu(gate) * up for rows that hold gate and up side by side. silu(g) = g*s with s = 1/(1 + exp(-g)),
// and exp is that of [Exp]. All matrices have the same type.
type SwiGLU struct {
	GateUp Mat // [rows, 2*I]: gate is columns [0, I), up is columns [I, 2*I)
	H      Mat // [rows, I]

	DH      Mat // [rows, I], backward; may be H
	DGateUp Mat // [rows, 2*I], backward; may be GateUp
}

// SwiGLUForward writes rows [row0, row1) of H: (g*s)*u.
func (t *Table) SwiGLUForward(a *SwiGLU, row0, row1 int) {
	n := a.GateUp.Cols / 2
	check(a.GateUp.has(row1, 2*n) && a.H.has(row1, n) && a.GateUp.DType == a.H.DType, "SwiGLUForward: shape or type")
	f := t.swiglu[kind(a.H.DType)]
	for r := row0; r < row1; r++ {
		for c := 0; c < n; c += piece {
			f(a.H.at(r, c), a.GateUp.at(r, c), a.GateUp.at(r, n+c), min(piece, n-c))
		}
	}
}

// SwiGLUBackward writes rows [row0, row1) of DGateUp, and those of H as SwiGLUForward does:
//
//	dup   = dh * (g*s)
//	dgate = (dh*u) * (s * (1 + g*(1-s)))
func (t *Table) SwiGLUBackward(a *SwiGLU, row0, row1 int) {
	n := a.GateUp.Cols / 2
	check(a.GateUp.has(row1, 2*n) && a.DH.has(row1, n) && a.H.has(row1, n) && a.DGateUp.has(row1, 2*n), "SwiGLUBackward: shape")
	check(a.GateUp.DType == a.DH.DType && a.GateUp.DType == a.H.DType && a.GateUp.DType == a.DGateUp.DType, "SwiGLUBackward: types differ")
	f := t.swigluGrad[kind(a.DH.DType)]
	for r := row0; r < row1; r++ {
		for c := 0; c < n; c += piece {
			f(a.DGateUp.at(r, c), a.DGateUp.at(r, n+c), a.H.at(r, c), a.DH.at(r, c), a.GateUp.at(r, c), a.GateUp.at(r, n+c), min(piece, n-c))
		}
	}
}
