package kernels

// Picks are some columns of a tile of logits, others in each row: those of N tokens, of which the tile has some.
type Picks struct {
	Logits   Mat // [rows, tile columns], F32
	DLogits  Mat // [rows, tile columns], F32 or BF16: of PutLogitGrads
	ColFirst int // the vocabulary index of the tile's first column

	N      int
	IDs    []int32   // [rows*N]
	Values []float32 // [rows*N]: the logits of these tokens, capped, or their gradients

	SoftCap float32 // as in CrossEntropy
}

// PickLogits writes Values of rows [row0, row1), of the tokens in the tile.
func (t *Table) PickLogits(a *Picks, row0, row1 int) {
	check(a.Logits.has(row1, a.Logits.Cols) && kind(a.Logits.DType) == 0 && len(a.IDs) >= row1*a.N &&
		len(a.Values) >= row1*a.N, "PickLogits: shape or type")
	for r := row0; r < row1; r++ {
		for i, id := range a.IDs[r*a.N:][:a.N] {
			if c := int(id) - a.ColFirst; id >= 0 && c >= 0 && c < a.Logits.Cols {
				a.Values[r*a.N+i] = t.pick(a, r, c)
			}
		}
	}
}

// PutLogitGrads writes the columns of DLogits of the tokens in the tile, in rows [row0, row1): Values, times 1 -
// (capped logit/SoftCap)^2 if there is a cap, rounded once.
func (t *Table) PutLogitGrads(a *Picks, row0, row1 int) {
	check(a.Logits.has(row1, a.Logits.Cols) && kind(a.Logits.DType) == 0 && a.DLogits.has(row1, a.Logits.Cols) &&
		len(a.IDs) >= row1*a.N && len(a.Values) >= row1*a.N, "PutLogitGrads: shape or type")
	for r := row0; r < row1; r++ {
		for i, id := range a.IDs[r*a.N:][:a.N] {
			c := int(id) - a.ColFirst
			if id < 0 || c < 0 || c >= a.Logits.Cols {
				continue
			}
			v := [1]float32{a.Values[r*a.N+i]}
			if a.SoftCap != 0 {
				x := [1]float32{t.pick(a, r, c)}
				SoftCapGrad(v[:], x[:], 0, 1, a.SoftCap)
			}
			store(a.DLogits.at(r, c), kind(a.DLogits.DType), v[0])
		}
	}
}

// pick is a logit, capped.
func (t *Table) pick(a *Picks, row, col int) float32 {
	x := *(*float32)(a.Logits.at(row, col))
	if a.SoftCap != 0 {
		x = t.capOne(x, a.SoftCap)
	}
	return x
}
