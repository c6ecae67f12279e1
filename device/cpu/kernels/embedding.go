package kernels

import (
	"slices"
	"unsafe"
)

// Embedding looks tokens up in rows [RowFirst, RowFirst+Table.Rows) of a vocabulary. An id outside of them is left
// alone, so that a vocabulary may be visited in several parts.
type Embedding struct {
	IDs      []int32 // [tokens]
	RowFirst int
	Table    Mat // [rows, D], gather
	Y        Mat // [tokens, D], gather; the type of Table

	DTable Mat     // [rows, D], F32, scatter
	DY     Mat     // [tokens, D], F32 or BF16, scatter
	By     float32 // scatter
}

// TokensByRow lists the tokens whose ids are in [first, first+rows): those of one row after those of the row before it,
// and each row's in order. It writes to found, and counts in ends, which then has the place in the list where each row's
// tokens end; it returns both, as long as they had to be. A table is cut into many pieces, each of which has few of a
// step's tokens: they are looked for once and not by each worker.
func TokensByRow(found, ends, ids []int32, first, rows int) (byRow, rowEnds []int32) {
	ends = append(ends[:0], make([]int32, rows)...)
	for _, id := range ids {
		if r := int(id) - first; r >= 0 && r < rows {
			ends[r]++
		}
	}
	n := int32(0)
	for r, count := range ends {
		ends[r], n = n, n+count // where the row's tokens begin
	}
	found = slices.Grow(found[:0], int(n))[:n]
	for t, id := range ids {
		if r := int(id) - first; r >= 0 && r < rows {
			found[ends[r]] = int32(t)
			ends[r]++
		}
	}
	return found, ends
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

// EmbeddingScatterAdd adds By*dy[t] to dtable[ids[t] - RowFirst] for the given tokens, all of which the table has, in
// order, in columns [col0, col1).
func (t *Table) EmbeddingScatterAdd(a *Embedding, tokens []int32, col0, col1 int) {
	check(0 <= col0 && col0 <= col1 && col1 <= a.DTable.Cols && kind(a.DTable.DType) == 0, "EmbeddingScatterAdd: columns or type of DTable")
	check(a.DY.has(len(a.IDs), col1), "EmbeddingScatterAdd: shape of DY")
	k := kind(a.DY.DType)
	for _, tok := range tokens {
		to, from := a.DTable.at(int(a.IDs[tok])-a.RowFirst, col0), a.DY.at(int(tok), col0)
		if a.By == 1 {
			t.addTo[k](to, from, col1-col0)
		} else {
			t.addScaled[k](to, from, col1-col0, a.By)
		}
	}
}
