package kernels

import "unsafe"

// BiasAdd adds b, of y's type, to rows [row0, row1) of y.
func (t *Table) BiasAdd(y Mat, b Vec, row0, row1 int) {
	check(y.has(row1, b.Len) && y.DType == b.DType, "BiasAdd: shape or type")
	f := t.add[kind(y.DType)]
	for r := row0; r < row1; r++ {
		f(y.at(r, 0), y.at(r, 0), b.Data, b.Len)
	}
}

// BiasGrad adds the sum over the rows of dy, in order, to db in columns [col0, col1).
func (t *Table) BiasGrad(db []float32, dy Mat, col0, col1 int) {
	check(0 <= col0 && col0 <= col1 && col1 <= len(db) && dy.Cols >= col1, "BiasGrad: columns")
	if col0 == col1 {
		return
	}
	f := t.addTo[kind(dy.DType)]
	for r := range dy.Rows {
		f(unsafe.Pointer(&db[col0]), dy.at(r, col0), col1-col0)
	}
}
