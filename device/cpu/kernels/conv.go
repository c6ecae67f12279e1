package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/device"
)

// Conv is a short causal convolution of each column by itself, and silu of it:
//
//	z[t,c] = sum over j of w[c,j]*x[t-K+1+j,c]      y = z*s with s = 1/(1 + exp(-z))
//
// Rows before the first one of a document count as zeros. The sum begins at +0 and takes the products, each rounded, in
// the order of j. exp is that of [Exp]. All matrices have the same type, but DW.
type Conv struct {
	X, Y, W Mat     // [rows, C] twice, [C, K]
	Start   []int32 // [rows], the first row of a row's document

	DX, DY Mat // [rows, C], backward
	DW     Mat // [C, K], F32; the zero value: none
}

// ConvColumns is the most columns that a call takes. K is device.MostTaps at most.
const ConvColumns = 512

// convBlock has some columns of a convolution in fp32: the weights, tap by tap, the last K rows of x and of dz, each at
// its row mod K, and rows of what is computed.
type convBlock struct {
	*Table
	*Conv
	col, n, taps  int
	w, x, dz, dw  [device.MostTaps][ConvColumns]float32
	z, y, t, ones [ConvColumns]float32
}

func (b *convBlock) begin(t *Table, a *Conv, rows, col0, col1 int, others ...Mat) {
	b.Table, b.Conv, b.col, b.n, b.taps = t, a, col0, col1-col0, a.W.Cols
	ok := a.W.Rows == a.X.Cols && 1 <= b.taps && b.taps <= device.MostTaps && len(a.Start) >= rows && 0 <= col0 &&
		0 <= b.n && b.n <= ConvColumns && a.W.DType == a.X.DType
	for _, m := range append(others, a.X) {
		ok = ok && m.has(rows, col1) && m.DType == a.X.DType
	}
	check(ok, "Conv: shape or type")
	for c := range b.n {
		for j := range b.taps {
			b.w[j][c] = a.W.element(col0+c, j)
		}
		b.ones[c] = 1
	}
}

// element is element (r, c) of m.
func (m Mat) element(r, c int) float32 { return m.vec(r, c, 1).At(0) }

// read takes a row of x in.
func (b *convBlock) read(row int) {
	b.Convert(F32(b.x[row%b.taps][:b.n]), b.X.vec(row, b.col, b.n))
}

// first is the tap that the first row of the document that row r sees is multiplied by.
func (b *convBlock) first(r int) int { return max(0, b.taps-1-r+int(b.Start[r])) }

// sum computes z of row r, from rows that were taken in. first is the first tap that it sees.
func (b *convBlock) sum(r, first int) {
	z := b.z[:b.n]
	clear(z)
	for j := first; j < b.taps; j++ {
		b.MulAdd(z, b.x[(r-b.taps+1+j)%b.taps][:b.n], b.w[j][:b.n])
	}
}

// write writes silu of the sum to row r of Y.
func (b *convBlock) write(r int) {
	b.swiglu[0](unsafe.Pointer(&b.y), unsafe.Pointer(&b.z), unsafe.Pointer(&b.ones), b.n)
	b.Convert(b.Y.vec(r, b.col, b.n), F32(b.y[:b.n]))
}

// ConvForward writes rows [row0, row1) and columns [col0, col1) of Y, no more than ConvColumns of them.
func (t *Table) ConvForward(a *Conv, row0, row1, col0, col1 int) {
	var b convBlock
	b.begin(t, a, row1, col0, col1, a.Y)
	for r := max(0, row0-b.taps+1); r < row1; r++ {
		if b.read(r); r < row0 {
			continue
		}
		b.sum(r, b.first(r))
		b.write(r)
	}
}

// ConvContinue writes columns [col0, col1) of some rows of Y, no more than ConvColumns of them. The rows are those of a
// sequence from the position at on, and a.Start is not read. tail keeps the K-1 latest rows of X, that of position p at
// p mod (K-1).
func (t *Table) ConvContinue(a *Conv, tail Mat, rows []int32, at, col0, col1 int) {
	var b convBlock
	b.begin(t, a, 0, col0, col1, a.Y, tail)
	kept := b.taps - 1
	check(tail.has(kept, col1), "ConvContinue: shape of the tail")
	for p := max(0, at-kept); p < at; p++ {
		b.Convert(F32(b.x[p%b.taps][:b.n]), tail.vec(p%kept, col0, b.n))
	}
	for i, row := range rows {
		p, r := at+i, int(row)
		check(a.X.has(r+1, col1) && a.Y.has(r+1, col1), "ConvContinue: rows")
		b.Convert(F32(b.x[p%b.taps][:b.n]), a.X.vec(r, col0, b.n))
		b.sum(p, max(0, kept-p))
		b.write(r)
	}
	for i := max(0, len(rows)-kept); i < len(rows); i++ {
		p := at + i
		b.Convert(tail.vec(p%kept, col0, b.n), F32(b.x[p%b.taps][:b.n]))
	}
}

// ConvBackward writes columns [col0, col1) of DX, no more than ConvColumns of them, and adds to those rows of DW:
//
//	dz = dy*(s*(1 + z*(1-s)))      dx[t] = sum over j of w[j]*dz[t+K-1-j]      dw[j] += sum over t of dz[t]*x[t-K+1+j]
//
// Sums begin at +0. The one for dx falls with j, and the one for dw is in the order of rows.
func (t *Table) ConvBackward(a *Conv, rows, col0, col1 int) {
	var b convBlock
	b.begin(t, a, rows, col0, col1, a.DX, a.DY)
	for r := range rows {
		b.read(r)
		b.sum(r, b.first(r))
		dz := b.dz[r%b.taps][:b.n]
		t.Convert(F32(dz), a.DY.vec(r, col0, b.n))
		at := unsafe.Pointer(&dz[0])
		t.swigluGrad[0](at, unsafe.Pointer(&b.y), unsafe.Pointer(&b.t), at, unsafe.Pointer(&b.z),
			unsafe.Pointer(&b.ones), b.n)
		if a.DW.Data != nil {
			for j := b.first(r); j < b.taps; j++ {
				b.MulAdd(b.dw[j][:b.n], dz, b.x[(r-b.taps+1+j)%b.taps][:b.n])
			}
		}
		if r+1 == rows || int(a.Start[r+1]) == r+1 { // the rows that are left of the document
			for to := max(int(a.Start[r]), r-b.taps+1); to <= r; to++ {
				b.writeDX(to, r)
			}
		} else if to := r - b.taps + 1; to >= int(a.Start[r]) {
			b.writeDX(to, r)
		}
	}
	if a.DW.Data == nil {
		return
	}
	check(a.DW.has(col1, b.taps) && kind(a.DW.DType) == 0, "ConvBackward: shape or type of DW")
	for c := range b.n {
		for j := range b.taps {
			*(*float32)(a.DW.at(col0+c, j)) += b.dw[j][c]
		}
	}
}

// writeDX writes row r of DX, where last is the last row whose dz counts.
func (b *convBlock) writeDX(r, last int) {
	dx := b.t[:b.n]
	clear(dx)
	for from := r; from <= last; from++ {
		b.MulAdd(dx, b.dz[from%b.taps][:b.n], b.w[b.taps-1-(from-r)][:b.n])
	}
	b.Convert(b.DX.vec(r, b.col, b.n), F32(dx))
}
