package kernels

// Conv is a short causal convolution of each column by itself, and silu of it:
//
//	z[t,c] = sum over j of w[c,j]*x[t-K+1+j,c]      y = z*s with s = 1/(1 + exp(-z))
//
// Rows before the first one of a document count as zeros. The sum begins at +0 and takes the products, each rounded, in
// the order of j. exp is that of [Exp]. All matrices have the same type.
type Conv struct {
	X, Y, W Mat     // [rows, C] twice, [C, K]
	Start   []int32 // [rows], the first row of a row's document

	DX, DY Mat // [rows, C], backward
	DW     Mat // [C, K], F32; the zero value: none
}

// MostTaps is the greatest K.
const MostTaps = 16

// ConvColumns is the most columns that ConvBackward takes at once.
const ConvColumns = 512

func (a *Conv) check(rows, col0, col1 int) {
	check(a.X.has(rows, col1) && a.W.Rows == a.X.Cols && a.W.Cols <= MostTaps && a.W.DType == a.X.DType &&
		len(a.Start) >= rows && 0 <= col0 && col0 <= col1, "Conv: shape or type of X or W")
}

// ConvForward writes rows [row0, row1) of Y.
func (t *Table) ConvForward(a *Conv, row0, row1 int) {
	a.check(row1, 0, a.X.Cols)
	check(a.Y.has(row1, a.X.Cols) && a.Y.DType == a.X.DType, "ConvForward: shape or type of Y")
	var taps convTaps
	for c := 0; c < a.X.Cols; c += ConvColumns {
		n := min(ConvColumns, a.X.Cols-c)
		taps.read(t, a, c, n)
		for r := row0; r < row1; r++ {
			z := taps.sums(t, a, r, c, n)
			for i, x := range z {
				z[i] = x * sigmoid(x)
			}
			t.Convert(a.Y.vec(r, c, n), F32(z))
		}
	}
}

// convTaps has the weights of some columns, tap by tap, and room for a row.
type convTaps struct {
	w       [MostTaps][ConvColumns]float32
	x, sum  [ConvColumns]float32
	dz      [MostTaps][ConvColumns]float32 // of the last rows, by row mod K
	dw      [MostTaps][ConvColumns]float32
	tapsOfW [MostTaps]float32
}

// read reads the weights of n columns.
func (p *convTaps) read(t *Table, a *Conv, col, n int) {
	for c := range n {
		t.Convert(F32(p.tapsOfW[:a.W.Cols]), a.W.vec(col+c, 0, a.W.Cols))
		for j, w := range p.tapsOfW[:a.W.Cols] {
			p.w[j][c] = w
		}
	}
}

// sums is z in n columns of a row.
func (p *convTaps) sums(t *Table, a *Conv, row, col, n int) []float32 {
	z := p.sum[:n]
	clear(z)
	for j := max(0, a.W.Cols-1-row+int(a.Start[row])); j < a.W.Cols; j++ {
		x := p.x[:n]
		t.Convert(F32(x), a.X.vec(row-a.W.Cols+1+j, col, n))
		for i, w := range p.w[j][:n] {
			z[i] += float32(w * x[i])
		}
	}
	return z
}

// ConvBackward writes columns [col0, col1) of DX, no more than ConvColumns of them, and adds to those rows of DW:
//
//	dz = dy*(s*(1 + z*(1-s)))      dx[t] = sum over j of w[j]*dz[t+K-1-j]      dw[j] += sum over t of dz[t]*x[t-K+1+j]
//
// The sum over j falls with j and has the rows of the document only; the sum over t begins at +0, in the order of rows.
func (t *Table) ConvBackward(a *Conv, rows, col0, col1 int) {
	a.check(rows, col0, col1)
	n, k := col1-col0, a.W.Cols
	check(n <= ConvColumns && a.DX.has(rows, col1) && a.DY.has(rows, col1) && a.DX.DType == a.X.DType &&
		a.DY.DType == a.X.DType, "ConvBackward: shape or type of DX or DY")
	var p convTaps
	p.read(t, a, col0, n)
	for r := range rows {
		z, dz := p.sums(t, a, r, col0, n), p.dz[r%k][:n]
		t.Convert(F32(dz), a.DY.vec(r, col0, n))
		for i, x := range z {
			s := sigmoid(x)
			dz[i] *= s * (1 + float32(x*(1-s)))
		}
		if a.DW.Data != nil {
			for j := max(0, k-1-r+int(a.Start[r])); j < k; j++ {
				x, dw := p.x[:n], p.dw[j][:n]
				t.Convert(F32(x), a.X.vec(r-k+1+j, col0, n))
				for i, d := range dz {
					dw[i] += float32(d * x[i])
				}
			}
		}
		// The rows that no later row adds to: of the document's end all that are left.
		first := max(int(a.Start[r]), r-k+1)
		last := first
		switch {
		case r+1 == rows || int(a.Start[r+1]) == r+1:
			last = r
		case r-k+1 < int(a.Start[r]):
			continue
		}
		for to := first; to <= last; to++ {
			dx := p.sum[:n]
			clear(dx)
			for from := to; from <= min(r, to+k-1); from++ {
				w := p.w[k-1-(from-to)][:n]
				for i, d := range p.dz[from%k][:n] {
					dx[i] += float32(w[i] * d)
				}
			}
			t.Convert(a.DX.vec(to, col0, n), F32(dx))
		}
	}
	if a.DW.Data == nil {
		return
	}
	for c := range n {
		for j := range k {
			*(*float32)(a.DW.at(col0+c, j)) += p.dw[j][c]
		}
	}
}
