package data

import "fmt"

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

// newBatch returns a micro-batch of padding.
func newBatch(sequences, sequenceLen int) Batch {
	n := sequences * sequenceLen
	all := make([]int32, 5*n)
	b := Batch{Sequences: sequences, SequenceLen: sequenceLen,
		Tokens: all[:n:n], Targets: all[n : 2*n : 2*n], Positions: all[2*n : 3*n : 3*n],
		DocStart: all[3*n : 4*n : 4*n], DocEnd: all[4*n:]}
	for t := range n {
		b.Targets[t] = -1
		b.DocStart[t] = int32(t)
		b.DocEnd[t] = int32(t + 1)
	}
	return b
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

// fill writes pieces of a dataset into a row.
func (b *Batch) fill(row int, d *Dataset, ps []piece, members []int32) {
	at := row * b.SequenceLen
	for _, i := range members {
		p := ps[i]
		run := d.run(p.start)
		start := p.start - run.base
		b.place(at, run.tokens[start:start+int64(p.length)], p.more, func(i int) int32 {
			if t := start + int64(i); run.isCounted(t) {
				return run.tokens[t]
			}
			return Ignore
		})
		at += int(p.length)
	}
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
	b := newBatch(len(examples), sequenceLen)
	for i, e := range examples {
		b.place(i*sequenceLen, e.InputIDs, false, func(t int) int32 { return e.Labels[t] })
	}
	return b, nil
}
