package data

import (
	"fmt"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/hostmem"
)

// MicroBatch is one micro-batch: Sequences rows of SequenceLen positions, row after row. A document here is a piece of
// one where a document was split. The target of a position is the label of the next token of its document, even where
// that token is in another row because the document was split; the last position of a document has no target. Padding
// is at the end of a row.
type MicroBatch struct {
	Sequences   int
	SequenceLen int
	batch.Micro
	// RealTokens counts the positions that are not padding, TargetTokens those with a target.
	RealTokens, TargetTokens int
}

// NewBatches makes n micro-batches of padding in mem, which has the bytes that they take (batch.Bytes).
func NewBatches(mem []byte, n, sequences, sequenceLen int) []MicroBatch {
	all := hostmem.I32(mem)
	each := len(all) / max(n, 1)
	batches := make([]MicroBatch, n)
	for i := range batches {
		batches[i] = MicroBatch{Sequences: sequences, SequenceLen: sequenceLen, Micro: batch.In(all[i*each:][:each])}
		batches[i].clear()
	}
	return batches
}

// clear makes it padding.
func (b *MicroBatch) clear() {
	b.RealTokens, b.TargetTokens = 0, 0
	b.Clear()
}

// place writes tokens as one document at flat position at. label(i) is the label of the token i of the document, and is
// asked for 1 to len(tokens), the last only with more.
func (b *MicroBatch) place(at int, tokens []int32, more bool, label func(i int) int32) {
	b.SetDocument(at, tokens)
	for i := range tokens {
		if i+1 < len(tokens) || more {
			if l := label(i + 1); l != Ignore {
				b.Targets[at+i] = l
				b.TargetTokens++
			}
		}
	}
	b.RealTokens += len(tokens)
}

// NewBatch makes a micro-batch of one row per example, unpacked. Labels may be any token or [Ignore]. sequenceLen must
// not be shorter than the longest example; 0 takes that length.
func NewBatch(examples []Example, sequenceLen int) (MicroBatch, error) {
	longest := 0
	for i, e := range examples {
		if len(e.InputIDs) == 0 || len(e.Labels) != len(e.InputIDs) {
			return MicroBatch{}, fmt.Errorf("sequence %d has %d tokens and %d labels: it needs as many of both, at least 1",
				i, len(e.InputIDs), len(e.Labels))
		}
		for t, id := range e.InputIDs {
			if l := e.Labels[t]; id < 0 || l < 0 && l != Ignore {
				return MicroBatch{}, fmt.Errorf("sequence %d has token %d with label %d at %d: neither may be negative, but a label %d",
					i, id, l, t, Ignore)
			}
		}
		longest = max(longest, len(e.InputIDs))
	}
	if sequenceLen == 0 {
		sequenceLen = longest
	}
	if longest > sequenceLen || longest == 0 {
		return MicroBatch{}, fmt.Errorf("the longest of %d sequences has %d tokens, and a row %d", len(examples), longest, sequenceLen)
	}
	b := MicroBatch{Sequences: len(examples), SequenceLen: sequenceLen, Micro: batch.New(len(examples) * sequenceLen)}
	for i, e := range examples {
		b.place(i*sequenceLen, e.InputIDs, false, func(t int) int32 { return e.Labels[t] })
	}
	return b, nil
}
