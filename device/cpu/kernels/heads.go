package kernels

import "unsafe"

// Joined has matrices of which one is the other two side by side, head by head.
type Joined struct {
	Y     Mat // [rows, Heads*d]
	A     Mat // [rows, Heads*n]: the first n columns of each head of Y
	B     Mat // [rows, Heads*(d-n)], or [rows, d-n], which all heads share; no columns: there is no B
	Heads int
}

// widths are d and n.
func (j *Joined) widths(rows int) (d, n int) {
	d, n = j.Y.Cols/j.Heads, j.A.Cols/j.Heads
	check(j.Y.has(rows, j.Heads*d) && j.A.has(rows, j.Heads*n) && j.A.DType == j.Y.DType && n <= d,
		"Joined: shape or type of A")
	check(j.B.Cols == 0 || j.B.has(rows, d-n) && j.B.DType == j.Y.DType &&
		(j.B.Cols == d-n || j.B.Cols == j.Heads*(d-n)), "Joined: shape or type of B")
	return d, n
}

// move copies n elements of row r of a matrix, from column c on, to columns of the same row of another.
func move(to Mat, toCol int, from Mat, c, r, n int) {
	if n > 0 {
		bytes := n * size(to.DType)
		copy(unsafe.Slice((*byte)(to.at(r, toCol)), bytes), unsafe.Slice((*byte)(from.at(r, c)), bytes))
	}
}

// JoinHeads writes rows [row0, row1) of Y: each head of A, and after it that of B, or zeros.
func (t *Table) JoinHeads(j *Joined, row0, row1 int) {
	d, n := j.widths(row1)
	step := 0 // from head to head of B
	if j.B.Cols > d-n {
		step = d - n
	}
	for r := row0; r < row1; r++ {
		for h := range j.Heads {
			move(j.Y, h*d, j.A, h*n, r, n)
			switch {
			case j.B.Cols > 0:
				move(j.Y, h*d+n, j.B, h*step, r, d-n)
			case n < d:
				clear(unsafe.Slice((*byte)(j.Y.at(r, h*d+n)), (d-n)*size(j.Y.DType)))
			}
		}
	}
}

// SplitHeads writes rows [row0, row1) of A and B from those of Y. A row of B that all heads share is the sum of theirs,
// in the order of heads and in fp32, rounded once.
func (t *Table) SplitHeads(j *Joined, row0, row1 int) {
	d, n := j.widths(row1)
	shared := j.B.Cols == d-n && j.Heads > 1
	for r := row0; r < row1; r++ {
		for h := range j.Heads {
			move(j.A, h*n, j.Y, h*d, r, n)
			if j.B.Cols > 0 && !shared {
				move(j.B, h*(d-n), j.Y, h*d+n, r, d-n)
			}
		}
		if j.B.Cols > 0 && shared {
			t.sumHeads(j, d, n, r)
		}
	}
}

// sumHeads writes a row of a B that all heads share.
func (t *Table) sumHeads(j *Joined, d, n, r int) {
	var piece [512]float32
	for c := n; c < d; c += len(piece) {
		sum := piece[:min(len(piece), d-c)]
		clear(sum)
		for h := range j.Heads {
			t.AddTo(sum, j.Y.vec(r, h*d+c, len(sum)))
		}
		t.Convert(j.B.vec(r, c-n, len(sum)), F32(sum))
	}
}
