package kernels

import "unsafe"

// RoPE rotates each head's pairs (x[i], x[i+HeadDim/2]) by the angle of the row's position (transformers' "rotate_half"):
//
//	y[i]   = x[i]*cos - x[i+h]*sin
//	y[i+h] = x[i+h]*cos + x[i]*sin      h = HeadDim/2
//
// in fp32 with each product rounded, and y rounded once. A bias is added to x first, to the bits of BiasAdd.
type RoPE struct {
	X, Y      Mat // [rows, Heads*HeadDim], same type; Y may be X
	Bias      Vec // of X's type, [Heads*HeadDim]; none is empty
	Heads     int
	HeadDim   int       // even
	Cos, Sin  []float32 // [maxPositions, HeadDim/2]
	Positions []int32   // [rows], each below maxPositions
	Inverse   bool      // rotate by minus the angle: the gradient
}

// RoPERows rotates rows [row0, row1).
func (t *Table) RoPERows(a *RoPE, row0, row1 int) {
	cols, half := a.Heads*a.HeadDim, a.HeadDim/2
	check(a.X.has(row1, cols) && a.Y.has(row1, cols) && a.X.DType == a.Y.DType && a.HeadDim%2 == 0, "RoPE: shape or type of X or Y")
	check(len(a.Cos) == len(a.Sin) && len(a.Positions) >= row1, "RoPE: tables or positions")
	check(a.Bias.Len == 0 || a.Bias.Len == cols && a.Bias.DType == a.X.DType, "RoPE: shape or type of Bias")
	sign := float32(1)
	if a.Inverse {
		sign = -1
	}
	f, add, x := t.rotate[kind(a.X.DType)], t.add[kind(a.X.DType)], a.X
	if a.Bias.Len > 0 {
		x = a.Y
	}
	for r := row0; r < row1; r++ {
		if a.Bias.Len > 0 {
			add(a.Y.at(r, 0), a.X.at(r, 0), a.Bias.Data, cols)
		}
		at := int(a.Positions[r]) * half
		cos, sin := a.Cos[at:at+half], a.Sin[at:at+half]
		for h := range a.Heads {
			c := h * a.HeadDim
			f(a.Y.at(r, c), a.Y.at(r, c+half), x.at(r, c), x.at(r, c+half),
				unsafe.Pointer(unsafe.SliceData(cos)), unsafe.Pointer(unsafe.SliceData(sin)), half, sign)
		}
	}
}
