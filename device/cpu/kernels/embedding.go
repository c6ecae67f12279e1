package kernels

import "unsafe"

// Embedding looks tokens up in rows [RowFirst, RowFirst+Table.Rows) of a vocabulary. An id outside of them is left
// alone, so that a vocabulary may be visited in several parts.
type Embedding struct {
	IDs      []int32 // [tokens]
	RowFirst int
	Table    Mat // [rows, D], gather
	Y        Mat // [tokens, D], gather; the type of Table

	DTable Mat // [rows, D], F32, scatter
	DY     Mat // [tokens, D], F32 or BF16, scatter
}

// EmbeddingGather writes tokens [tok0, tok1) of Y: y[t] = table[ids[t] - RowFirst].
func (t *Table) EmbeddingGather(a *Embedding, tok0, tok1 int) {
	d := a.Table.Cols
	check(a.Y.has(tok1, d) && a.Y.DType == a.Table.DType && len(a.IDs) >= tok1, "EmbeddingGather: shape or type")
	n := d * size(a.Y.DType)
	for tok := tok0; tok < tok1; tok++ {
		if r := int(a.IDs[tok]) - a.RowFirst; r >= 0 && r < a.Table.Rows {
			copy(unsafe.Slice((*byte)(a.Y.at(tok, 0)), n), unsafe.Slice((*byte)(a.Table.at(r, 0)), n))
		}
	}
}

// EmbeddingScatterAdd adds dy[t] to dtable[ids[t] - RowFirst] for all tokens in order, in columns [col0, col1).
func (t *Table) EmbeddingScatterAdd(a *Embedding, col0, col1 int) {
	check(0 <= col0 && col0 <= col1 && col1 <= a.DTable.Cols && kind(a.DTable.DType) == 0, "EmbeddingScatterAdd: columns or type of DTable")
	check(a.DY.has(len(a.IDs), col1), "EmbeddingScatterAdd: shape of DY")
	f := t.addTo[kind(a.DY.DType)]
	for tok, id := range a.IDs {
		if r := int(id) - a.RowFirst; r >= 0 && r < a.DTable.Rows {
			f(a.DTable.at(r, col0), a.DY.at(tok, col0), col1-col0)
		}
	}
}
