package stream_test

import (
	"context"
	"math"
	"testing"

	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
)

// The embedding's gradient, which is summed for the rows of a step's tokens alone, has the bits of sums over the
// whole table.
func TestRowsOfTokensAreTheWholeGradient(t *testing.T) {
	t.Run("few of the vocabulary", func(t *testing.T) { rowsOfTokens(t, 700, 300, 6, 350) })
	t.Run("nearly all, in several turns", func(t *testing.T) { rowsOfTokens(t, 300, 4096, 30, 300) })
}

// rowsOfTokens takes steps in which at most a number of tokens of the vocabulary occur.
func rowsOfTokens(t *testing.T, vocab, pieceElems, micros, most int) {
	s := tiny
	s.BF16, s.MicroBatch, s.Micro, s.Vocab, s.PieceElems = true, 2, micros, vocab, pieceElems
	sub := s.subject(t, 2)
	r := start(t, sub, setup{change: streamed(2)})
	defer r.close(t)
	for i, batch := range sub.batches[:2] {
		if _, err := r.engine.Step(context.Background(), batch, sub.updates[i]); err != nil {
			t.Fatal(err)
		}
		table := make([]float32, s.Vocab*s.Hidden)
		found := map[int32]bool{}
		for m, micro := range batch.Micro {
			dx := r.engine.EmbeddingGrad(m)
			for row, id := range micro.IDs {
				found[id] = true
				for c := range s.Hidden {
					table[int(id)*s.Hidden+c] += tensor.F32FromBF16(dx[row*s.Hidden+c])
				}
			}
		}
		if len(found) < 20 || len(found) > most {
			t.Fatalf("%d tokens of %d occur", len(found), s.Vocab)
		}
		nonzero := 0
		for _, p := range r.plan.Model.EmbedTiles {
			part := &r.plan.Model.Parts[p]
			got, err := stream.Grads(context.Background(), r.plan, r.store, p)
			if err != nil {
				t.Fatal(err)
			}
			for j := range part.Layout.Fields[0].Elems {
				want := tensor.F32FromBF16(tensor.BF16FromF32(table[part.FirstRow*s.Hidden+int(j)]))
				if math.Float32bits(got[j]) != math.Float32bits(want) {
					t.Fatalf("step %d: element %d of %s is %v, want %v", i, j, part.Name, got[j], want)
				}
				if want != 0 {
					nonzero++
				}
			}
		}
		if nonzero < 10*s.Hidden {
			t.Errorf("only %d elements have a gradient", nonzero)
		}
	}
}
