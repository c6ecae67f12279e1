package kernels

import "unsafe"

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
