package data

import (
	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/objective"
)

// Placed is a document of a step, or a piece of one that was split, and its place in the micro-batches of the step.
type Placed struct {
	Micro         int // the micro-batch
	First, Length int // the position of its first token there, and the number of its tokens
	Document      int // its number in the dataset
	Group         int // number of its pair in the step, or of itself
	Side          objective.Side
	Cut           bool // tokens of the document are not in it
}

// ScoreAt returns the position of a document whose score is the document's, given its tokens.
type ScoreAt func(tokens []int32) int

// SetScore leaves a document of a micro-batch one target, at the position of its score: the token there, which a model
// that scores does not predict.
func SetScore(m batch.Micro, first, length int, at ScoreAt) {
	for t := range length {
		m.Targets[first+t] = -1
	}
	t := first + at(m.IDs[first:][:length])
	m.Targets[t], m.Weights[t] = m.IDs[t], 1
}

// writer writes the pieces of a step into micro-batches, and notes their places.
type writer struct {
	tokens  []int32   // room for a piece and the token after it
	weights []float32 // likewise, of a piece that has weights
	bits    bitReader
	prompts bool // tokens that do not count are targets too, of weight 0
	scoreAt ScoreAt
	placed  []Placed
}

func newWriter(sequenceLen int, prompts bool, scoreAt ScoreAt) writer {
	return writer{tokens: make([]int32, sequenceLen+1), weights: make([]float32, sequenceLen+1),
		bits:    bitReader{words: make([]uint64, sequenceLen/64+2)},
		prompts: prompts, scoreAt: scoreAt}
}

// begin makes the micro-batches of a step padding.
func (w *writer) begin(into []MicroBatch) {
	w.placed = w.placed[:0]
	for m := range into {
		into[m].clear()
	}
}

// fill writes pieces, which are no side of a pair, into a row of micro-batch m.
func (w *writer) fill(into []MicroBatch, m, row int, ps *pieces, members []int32) error {
	at := row * into[m].SequenceLen
	for _, i := range members {
		p := ps.find(i)
		if err := w.put(into, m, at, p, len(w.placed), ps.d.Side(p.document)); err != nil {
			return err
		}
		at += int(p.length)
	}
	return nil
}

// put writes a piece at a position of micro-batch m.
func (w *writer) put(into []MicroBatch, m, at int, p piece, group int, side objective.Side) error {
	b := &into[m]
	before := b.TargetTokens
	tokens := w.tokens[:p.length]
	if p.more {
		tokens = w.tokens[:p.length+1]
	}
	err := p.run.readTokens(tokens, p.start)
	hasWeights := p.run.columns[TokenWeights] != nil
	if err == nil && hasWeights {
		err = p.run.readColumn(int(TokenWeights), w.weights[:len(tokens)], p.start)
	}
	if err != nil {
		return err
	}
	b.place(at, tokens[:p.length], p.more, func(i int) int32 {
		counted, bad := w.bits.isCounted(p.run, p.start+int64(i))
		switch {
		case bad != nil:
			err = bad
		case counted && hasWeights:
			b.Weights[at+i-1] = w.weights[i]
		case counted:
		case w.prompts:
			b.Weights[at+i-1] = 0
		default:
			return Ignore
		}
		return tokens[i]
	})
	if w.scoreAt != nil {
		b.TargetTokens = before + 1
		SetScore(b.Micro, at, int(p.length), w.scoreAt)
	}
	w.placed = append(w.placed, Placed{Micro: m, First: at, Length: int(p.length), Document: p.document, Group: group,
		Side: side, Cut: !p.whole})
	return err
}
