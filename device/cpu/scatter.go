package cpu

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// A table's gradient is a sum of rows: each token adds a row of dy to the row of its id, in the order of tokens. Which
// worker does what? Cut between columns, workers need not agree on anything, but each of them goes through all tokens
// and takes a few cache lines from each: 32,768 rows of 3,584 took 7 times as long as here. So the tokens are
// listed by row of the table first, which keeps the order of those of one row, and a task has whole rows: a row's sum
// stays in the nearest cache while its tokens come, and all of dy is read once, in long runs. The sums are the same.

// ScatterAdd implements device.EmbeddingOps.
func (s *Stream) ScatterAdd(dtable, dy device.Mat, ids device.Mem, first int, by float32) {
	s.operands.ScatterAdd(dtable, dy, ids, first, by)
	s.enqueue(func() {
		a := &kernels.Embedding{IDs: ints(ids, dy.Rows), RowFirst: first, DTable: mat(dtable), DY: mat(dy), By: by}
		s.found, s.rowEnds = kernels.TokensByRow(s.found, s.rowEnds, a.IDs, first, dtable.Rows)
		s.spans = spansOf(s.spans[:0], s.rowEnds, dy.Cols, dy.DType.Bytes())
		s.crew.runAll(len(s.spans), func(i int) {
			of := s.spans[i]
			s.crew.EmbeddingScatterAdd(a, s.found[of.first:of.end], of.col0, of.col1)
		})
	})
}

// span is the work of one task of a ScatterAdd: some of the tokens in the order of their rows, and columns.
type span struct{ first, end, col0, col1 int }

// leastColumns is the width of the narrowest span: what is read of a row of dy is then several cache lines.
const leastColumns = 256

// spansOf appends the tasks of a ScatterAdd: whole rows of the table, as many as make up a task, so that a row's sum
// stays in a cache while its tokens come one after the other; and columns of a row that has more tokens than that.
func spansOf(spans []span, rowEnds []int32, cols int, elem int64) []span {
	first, end := 0, 0
	whole := func() {
		if end > first {
			spans = append(spans, span{first, end, 0, cols})
		}
		first = end
	}
	perToken := int64(cols) * elem
	for _, rowEnd := range rowEnds {
		next := int(rowEnd)
		if int64(next-end)*perToken > 2*taskBytes {
			whole()
			width := max(leastColumns, int(taskBytes/(int64(next-end)*elem))/columns*columns)
			for col := 0; col < cols; col += width {
				spans = append(spans, span{end, next, col, min(col+width, cols)})
			}
			first, end = next, next
			continue
		}
		if end = next; int64(end-first)*perToken >= taskBytes {
			whole()
		}
	}
	whole()
	return spans
}
