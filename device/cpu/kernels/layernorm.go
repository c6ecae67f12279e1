package kernels

import (
	"math"
	"unsafe"
)

// LayerNorm is layer normalisation of rows:
//
//	y = W * xhat + b      xhat = (x - mean) * rstd      rstd = 1/sqrt(mean((x - mean)^2) + Eps)
//
// The mean's sum is in fp64, in the lanes of [Table.Sum] over pieces of the row; the sum of squares is in fp32, in the
// lanes of [RMSNorm] over each piece, and pieces are added in order. y is rounded once.
type LayerNorm struct {
	X, Y   Mat       // [rows, D], of one type
	Weight []float32 // [D]: W
	Bias   []float32 // [D]: b; empty for none
	Stat   []float32 // [rows*2]: mean and rstd of each row, written by forward and read by backward
	Eps    float32

	// Backward only.
	DX, DY   Mat       // [rows, D], the type of X
	Residual Mat       // [rows, D] added to dx; zero value: none
	DWeight  []float32 // [D]
}

// The loops of RMSNorm, for fp32, do the work on unitPiece elements of a row: x minus the mean, in fp32, takes the
// place of x.

// centred writes n elements of a row, from column c on, minus the mean.
func (t *Table) centred(to *[unitPiece]float32, x Mat, row, c, n int, mean float32) unsafe.Pointer {
	t.Convert(F32(to[:n]), x.vec(row, c, n))
	t.plus(to[:n], -mean)
	return unsafe.Pointer(to)
}

// plus adds a number to each element of a piece.
func (t *Table) plus(x []float32, by float32) {
	t.addScaled[0](unsafe.Pointer(unsafe.SliceData(x)), unsafe.Pointer(&ones), len(x), by)
}

// address returns the address of element i.
func address(x []float32, i int) unsafe.Pointer { return unsafe.Pointer(&x[i]) }

func (a *LayerNorm) check(rows int) {
	d := len(a.Weight)
	check(a.X.has(rows, d) && len(a.Stat) >= rows*2, "LayerNorm: shape of X or Stat")
}

// LayerNormForward writes rows [row0, row1) of Y and Stat. Y may be X.
func (t *Table) LayerNormForward(a *LayerNorm, row0, row1 int) {
	a.check(row1)
	d := len(a.Weight)
	check(a.Y.has(row1, d) && a.Y.DType == a.X.DType && (len(a.Bias) == 0 || len(a.Bias) == d),
		"LayerNormForward: shape or type of Y or Bias")
	var row [unitPiece]float32
	for r := row0; r < row1; r++ {
		sum, squares := 0.0, float32(0)
		for c := 0; c < d; c += unitPiece {
			n := min(unitPiece, d-c)
			t.Convert(F32(row[:n]), a.X.vec(r, c, n))
			sum += t.sum(unsafe.Pointer(&row), n)
		}
		mean := float32(sum / float64(d))
		for c := 0; c < d; c += unitPiece {
			n := min(unitPiece, d-c)
			squares += t.normSquares[0](t.centred(&row, a.X, r, c, n, mean), n)
		}
		rstd := float32(1 / math.Sqrt(float64(squares/float32(d)+a.Eps)))
		a.Stat[2*r], a.Stat[2*r+1] = mean, rstd
		for c := 0; c < d; c += unitPiece {
			n := min(unitPiece, d-c)
			x := t.centred(&row, a.X, r, c, n, mean)
			t.normApply[0](x, x, address(a.Weight, c), n, rstd)
			if len(a.Bias) > 0 {
				t.add[0](x, x, address(a.Bias, c), n)
			}
			t.Convert(a.Y.vec(r, c, n), F32(row[:n]))
		}
	}
}

// LayerNormBackward writes rows [row0, row1) of DX:
//
//	dx = rstd * (W*dy - xhat*mean(W*dy*xhat)) - rstd*mean(W*dy) + residual
//
// Sums have the lanes of forward's squares. DX may be DY or Residual.
func (t *Table) LayerNormBackward(a *LayerNorm, row0, row1 int) {
	a.check(row1)
	d := len(a.Weight)
	check(a.DX.has(row1, d) && a.DY.has(row1, d) && a.DX.DType == a.X.DType && a.DY.DType == a.X.DType,
		"LayerNormBackward: shape or type of DX or DY")
	hasResidual := a.Residual.Data != nil
	check(!hasResidual || a.Residual.has(row1, d) && a.Residual.DType == a.X.DType,
		"LayerNormBackward: shape or type of Residual")
	var row, grad [unitPiece]float32
	dy, dx := unsafe.Pointer(&grad), unsafe.Pointer(&row)
	for r := row0; r < row1; r++ {
		mean, rstd := a.Stat[2*r], a.Stat[2*r+1]
		var dots, sums float32
		for c := 0; c < d; c += unitPiece {
			n, w := min(unitPiece, d-c), address(a.Weight, c)
			t.Convert(F32(grad[:n]), a.DY.vec(r, c, n))
			dots += t.normDot[0](t.centred(&row, a.X, r, c, n, mean), w, dy, n, rstd)
			sums += t.dot[0](w, dy, n)
		}
		dots, sums = dots/float32(d), sums/float32(d)
		for c := 0; c < d; c += unitPiece {
			n := min(unitPiece, d-c)
			t.Convert(F32(grad[:n]), a.DY.vec(r, c, n))
			x := t.centred(&row, a.X, r, c, n, mean)
			t.normGrad[0](dx, x, address(a.Weight, c), dy, n, rstd, dots)
			t.plus(row[:n], -rstd*sums)
			if hasResidual {
				t.AddTo(row[:n], a.Residual.vec(r, c, n))
			}
			t.Convert(a.DX.vec(r, c, n), F32(row[:n]))
		}
	}
}

// LayerNormWeightGrad adds the sum over all rows of dy*xhat to columns [col0, col1) of DWeight, row by row in order.
// Ranges that are multiples of 16 columns are fastest.
func (t *Table) LayerNormWeightGrad(a *LayerNorm, rows, col0, col1 int) {
	a.check(rows)
	d := len(a.Weight)
	check(0 <= col0 && col0 <= col1 && col1 <= d && len(a.DWeight) == d, "LayerNormWeightGrad: columns")
	check(a.DY.has(rows, d) && a.DY.DType == a.X.DType, "LayerNormWeightGrad: shape or type of DY")
	var row, grad [unitPiece]float32
	for c := col0; c < col1; c += unitPiece {
		n := min(unitPiece, col1-c)
		for r := range rows {
			t.Convert(F32(grad[:n]), a.DY.vec(r, c, n))
			x := t.centred(&row, a.X, r, c, n, a.Stat[2*r])
			t.normWeight[0](address(a.DWeight, c), x, unsafe.Pointer(&grad), n, a.Stat[2*r+1])
		}
	}
}
