package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// CopyRow copies row r of x to row i of y, of the same type and width.
func (t *Table) CopyRow(y Mat, i int, x Mat, r int) {
	check(y.has(i+1, x.Cols) && x.has(r+1, x.Cols) && x.DType == y.DType, "CopyRow: shape or type")
	n := x.Cols * size(x.DType)
	copy(unsafe.Slice((*byte)(y.at(i, 0)), n), unsafe.Slice((*byte)(x.at(r, 0)), n))
}

// AddRow adds weight times n elements of row r of x, from column c on, to row i of sum, which is F32. The product is
// rounded before it is added.
func (t *Table) AddRow(sum Mat, i int, x Mat, r, c, n int, weight float32) {
	check(c+n <= x.Cols && sum.has(i+1, x.Cols) && x.has(r+1, x.Cols) && kind(sum.DType) == 0, "AddRow: shape or type")
	if weight == 1 {
		t.addTo[kind(x.DType)](sum.at(i, c), x.at(r, c), n)
		return
	}
	t.addScaled[kind(x.DType)](sum.at(i, c), x.at(r, c), n, weight)
}

// SumRows is row i of y = that of from + the sum of weights[j] times row places[j] of x: summed in the order of j, then
// added to from, in fp32, and rounded once. Without weights each is 1. Products are rounded before they are added. from
// is F32, or as y and x are, and may be y.
func (t *Table) SumRows(y, from Mat, i int, x Mat, places []int32, weights []float32) {
	check(y.has(i+1, y.Cols) && from.has(i+1, y.Cols) && x.Cols >= y.Cols && x.DType == y.DType &&
		(from.DType == y.DType || from.DType == tensor.F32), "SumRows: shape or type")
	var piece [512]float32
	for c := 0; c < y.Cols; c += len(piece) {
		n := min(len(piece), y.Cols-c)
		sum := MatF32(piece[:n], n)
		clear(piece[:n])
		for j, place := range places {
			weight := float32(1)
			if weights != nil {
				weight = weights[j]
			}
			t.AddRow(sum, 0, x.columns(c, n), int(place), 0, n, weight)
		}
		t.AddTo(piece[:n], from.vec(i, c, n))
		t.Convert(y.vec(i, c, n), F32(piece[:n]))
	}
}

// columns are n of m's, from the first one on.
func (m Mat) columns(first, n int) Mat {
	m.Data, m.Cols = m.at(0, first), n
	return m
}
