package data

import (
	"fmt"

	"github.com/millrace/millrace/internal/hostmem"
)

// Batch is one micro-batch: Sequences rows of SequenceLen positions. The arrays are flat, row after row, each of
// Sequences*SequenceLen entries.
//
// A position that is padding has token 0, target -1, position 0, and is a document of its own: DocStart[t] = t and
// DocEnd[t] = t+1. Padding stands at the end of a row.
type Batch struct {
	Sequences   int
	SequenceLen int
	// Tokens are the inputs.
	Tokens []int32
	// Targets[t] is the token that position t learns to predict, or -1 where nothing counts: it is the label of the
	// next token of t's document, even where the next token lies in another row because the document was split. The
	// last position of a document has none.
	Targets []int32
	// Positions count from 0 in each document or piece of one.
	Positions []int32
	// DocStart[t] and DocEnd[t] bound the flat positions that belong to t's document or piece: attention from t may see
	// DocStart[t]..t.
	DocStart, DocEnd []int32
	// RealTokens counts the positions that are not padding, TargetTokens those with a target.
	RealTokens, TargetTokens int
}

// positionBytes is what a position takes in a batch.
const positionBytes = 5 * 4

// BatchBytes is what micro-batches with so many positions together take.
func BatchBytes(positions int) int64 { return positionBytes * int64(positions) }

// NewBatches makes n micro-batches of padding in mem, which has the bytes that they take.
func NewBatches(mem []byte, n, sequences, sequenceLen int) []Batch {
	all := hostmem.I32(mem)
	each := len(all) / max(n, 1)
	batches := make([]Batch, n)
	for i := range batches {
		batches[i] = batchIn(all[i*each:][:each], sequences, sequenceLen)
	}
	return batches
}

// batchIn makes a micro-batch of padding in memory of its size.
func batchIn(all []int32, sequences, sequenceLen int) Batch {
	n := sequences * sequenceLen
	b := Batch{Sequences: sequences, SequenceLen: sequenceLen,
		Tokens: all[:n:n], Targets: all[n : 2*n : 2*n], Positions: all[2*n : 3*n : 3*n],
		DocStart: all[3*n : 4*n : 4*n], DocEnd: all[4*n : 5*n : 5*n]}
	b.clear()
	return b
}

// clear makes it padding.
func (b *Batch) clear() {
	b.RealTokens, b.TargetTokens = 0, 0
	clear(b.Tokens)
	clear(b.Positions)
	for t := range b.Targets {
		b.Targets[t] = -1
		b.DocStart[t] = int32(t)
		b.DocEnd[t] = int32(t + 1)
	}
}

// place writes tokens as one document at flat position at. label(i) is the label of the token i of the document, and is
// asked for 1 to len(tokens), the last only with more.
func (b *Batch) place(at int, tokens []int32, more bool, label func(i int) int32) {
	copy(b.Tokens[at:], tokens)
	for i := range tokens {
		t := at + i
		b.Positions[t] = int32(i)
		b.DocStart[t] = int32(at)
		b.DocEnd[t] = int32(at + len(tokens))
		if i+1 < len(tokens) || more {
			if l := label(i + 1); l != Ignore {
				b.Targets[t] = l
				b.TargetTokens++
			}
		}
	}
	b.RealTokens += len(tokens)
}

// pieceReader has room for a piece and the token after it.
type pieceReader struct {
	tokens []int32
	bits   bitReader
}

func newPieceReader(sequenceLen int) pieceReader {
	return pieceReader{make([]int32, sequenceLen+1), bitReader{words: make([]uint64, sequenceLen/64+2)}}
}

// fill writes pieces into a row.
func (b *Batch) fill(row int, ps *pieces, members []int32, r *pieceReader) error {
	at := row * b.SequenceLen
	for _, i := range members {
		p := ps.find(i)
		tokens := r.tokens[:p.length]
		if p.more {
			tokens = r.tokens[:p.length+1]
		}
		err := p.run.readTokens(tokens, p.start)
		if err != nil {
			return err
		}
		b.place(at, tokens[:p.length], p.more, func(i int) int32 {
			counted, bad := r.bits.isCounted(p.run, p.start+int64(i))
			if bad != nil {
				err = bad
			}
			if !counted {
				return Ignore
			}
			return tokens[i]
		})
		if err != nil {
			return err
		}
		at += int(p.length)
	}
	return nil
}

// NewBatch makes a micro-batch of one row per example, unpacked. Labels may be any token or [Ignore]. sequenceLen must
// not be shorter than the longest example; 0 takes that length.
func NewBatch(examples []Example, sequenceLen int) (Batch, error) {
	longest := 0
	for i, e := range examples {
		if len(e.InputIDs) == 0 || len(e.Labels) != len(e.InputIDs) {
			return Batch{}, fmt.Errorf("sequence %d has %d tokens and %d labels: it needs as many of both, at least 1",
				i, len(e.InputIDs), len(e.Labels))
		}
		for t, id := range e.InputIDs {
			if l := e.Labels[t]; id < 0 || l < 0 && l != Ignore {
				return Batch{}, fmt.Errorf("sequence %d has token %d with label %d at %d: neither may be negative, but a label %d",
					i, id, l, t, Ignore)
			}
		}
		longest = max(longest, len(e.InputIDs))
	}
	if sequenceLen == 0 {
		sequenceLen = longest
	}
	if longest > sequenceLen || longest == 0 {
		return Batch{}, fmt.Errorf("the longest of %d sequences has %d tokens, and a row %d", len(examples), longest, sequenceLen)
	}
	b := batchIn(make([]int32, 5*len(examples)*sequenceLen), len(examples), sequenceLen)
	for i, e := range examples {
		b.place(i*sequenceLen, e.InputIDs, false, func(t int) int32 { return e.Labels[t] })
	}
	return b, nil
}
