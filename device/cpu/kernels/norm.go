package kernels

import (
	"math"
	"slices"
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// RMSNorm is root-mean-square normalisation of each of Groups runs of D elements of each row (one run of the whole row
// for a layer's norm, one for each head for a norm of queries or keys):
//
//	y = W * (x * rstd)      rstd = 1/sqrt(mean(x*x) + Eps)
//
// The sum of squares is in fp32: 16 lanes, lane j adds the rounded squares of elements i = j mod 16 in order; the lanes are
// added as SumSquares adds its own. y is rounded once (transformers' LlamaRMSNorm also rounds x*rstd when the type is BF16).
type RMSNorm struct {
	X, Y   Mat       // [rows, Groups*D], of one type
	Weight []float32 // [D]: W, as NormWeight makes it
	RStd   []float32 // [rows*Groups], written by forward and read by backward
	Groups int
	Eps    float32

	// Backward only.
	DX, DY   Mat       // [rows, Groups*D], the type of X
	Residual Mat       // [rows, Groups*D] added to dx; zero value: none
	DWeight  []float32 // [D]
}

// NormWeight appends what a norm over d columns multiplies by, w + offset, to dst: 1 where w is empty.
func NormWeight(dst []float32, w Vec, offset float32, d int) []float32 {
	check(w.Len == 0 || w.Len >= d, "NormWeight: shape of W")
	first := len(dst)
	dst = slices.Grow(dst, d)[:first+d]
	of := dst[first:]
	switch {
	case w.Len == 0:
		for i := range of {
			of[i] = 1
		}
		return dst
	case w.DType == tensor.BF16:
		for i, x := range unsafe.Slice((*uint16)(w.Data), d) {
			of[i] = tensor.F32FromBF16(x)
		}
	default:
		copy(of, unsafe.Slice((*float32)(w.Data), d))
	}
	if offset != 0 { // -0 + 0 would be 0
		for i := range of {
			of[i] += offset
		}
	}
	return dst
}

// weight is the address of W.
func (a *RMSNorm) weight() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(a.Weight)) }

func (a *RMSNorm) check(rows int) {
	d := len(a.Weight)
	check(a.X.has(rows, a.Groups*d) && len(a.RStd) >= rows*a.Groups, "RMSNorm: shape of X or RStd")
}

// RMSNormForward writes rows [row0, row1) of Y and RStd. Y may be X.
func (t *Table) RMSNormForward(a *RMSNorm, row0, row1 int) {
	a.check(row1)
	d := len(a.Weight)
	check(a.Y.has(row1, a.Groups*d) && a.Y.DType == a.X.DType, "RMSNormForward: shape or type of Y")
	k := kind(a.X.DType)
	squares, apply := t.normSquares[k], t.normApply[k]
	for r := row0; r < row1; r++ {
		for g := range a.Groups {
			x := a.X.at(r, g*d)
			mean := squares(x, d) / float32(d)
			rstd := float32(1 / math.Sqrt(float64(mean+a.Eps)))
			a.RStd[r*a.Groups+g] = rstd
			apply(a.Y.at(r, g*d), x, a.weight(), d, rstd)
		}
	}
}

// RMSNormBackward writes rows [row0, row1) of DX. With xhat = x*rstd:
//
//	dx = rstd * (W*dy - xhat*mean(W*dy*xhat)) + residual
//
// The mean's sum has the lanes of the forward sum. DX may be DY or Residual.
func (t *Table) RMSNormBackward(a *RMSNorm, row0, row1 int) {
	a.check(row1)
	d := len(a.Weight)
	check(a.DX.has(row1, a.Groups*d) && a.DY.has(row1, a.Groups*d) && a.DX.DType == a.X.DType && a.DY.DType == a.X.DType,
		"RMSNormBackward: shape or type of DX or DY")
	hasResidual := a.Residual.Data != nil
	check(!hasResidual || a.Residual.has(row1, a.Groups*d) && a.Residual.DType == a.X.DType, "RMSNormBackward: shape or type of Residual")
	k := kind(a.X.DType)
	dot, grad, gradAdd := t.normDot[k], t.normGrad[k], t.normGradAdd[k]
	for r := row0; r < row1; r++ {
		for g := range a.Groups {
			x, dy, dx := a.X.at(r, g*d), a.DY.at(r, g*d), a.DX.at(r, g*d)
			rstd := a.RStd[r*a.Groups+g]
			mean := dot(x, a.weight(), dy, d, rstd) / float32(d)
			if hasResidual {
				gradAdd(dx, a.Residual.at(r, g*d), x, a.weight(), dy, d, rstd, mean)
			} else {
				grad(dx, x, a.weight(), dy, d, rstd, mean)
			}
		}
	}
}

// RMSNormWeightGrad adds the sum over all rows of dy*xhat to columns [col0, col1) of DWeight, row by row and group by
// group in order. Ranges that are multiples of 16 columns are fastest.
func (t *Table) RMSNormWeightGrad(a *RMSNorm, rows, col0, col1 int) {
	a.check(rows)
	d := len(a.Weight)
	check(0 <= col0 && col0 <= col1 && col1 <= d && len(a.DWeight) == d, "RMSNormWeightGrad: columns")
	check(a.DY.has(rows, a.Groups*d) && a.DY.DType == a.X.DType, "RMSNormWeightGrad: shape or type of DY")
	if col0 == col1 {
		return
	}
	f := t.normWeight[kind(a.X.DType)]
	dw := F32(a.DWeight[col0:col1])
	for r := range rows {
		for g := range a.Groups {
			f(dw.Data, a.X.at(r, g*d+col0), a.DY.at(r, g*d+col0), dw.Len, a.RStd[r*a.Groups+g])
		}
	}
}
