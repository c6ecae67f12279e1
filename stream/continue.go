package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
)

// Position is a position of a sequence, with what a pass needs to compute it.
type Position struct {
	Token    int32
	Sequence int // by number, less than the plan's
	At       int // in the sequence, from 0
	// Length is how long the sequence is, at most: the rotary positions of a model may depend on that. Those of all
	// positions of a sequence must agree about it.
	Length int
}

// Continue runs the forward pass over some positions whose sequences continue what passes before have left in caches.
// It returns the logits of the last wanted ones, F32 [wanted][Vocab], in their order; they are good until the next
// call.
//
// Of a sequence, all positions before those of the pass have come in passes before, or come in this one, in any order;
// positions that have come before may come again, with other tokens, and then all that follow them must, too. Blocks
// that remember a sequence in a state cannot go back. Of a model that has some, as [model.Model.CanGoBack] says, the
// positions of a sequence come in order: each after the one before it, or from 0 again, as they must after a pass that
// failed. A pass has one position to as many as Plan.Numerics.Positions. The plan is one with [plan.Outputs.Caches].
//
// Pending updates are carried out first. Caches do not know of that: after a step sequences begin again.
func (e *Engine) Continue(ctx context.Context, positions []Position, wanted int) ([][]float32, error) {
	if !e.Plan.Outputs.Continues() {
		return nil, errors.New("continue: the plan has no caches; make it with Caches")
	}
	if n := e.Plan.Outputs.LogitRows; wanted < 1 || wanted > min(n, len(positions)) {
		return nil, fmt.Errorf("continue: logits of %d rows of %d, and the plan is for %d", wanted, len(positions), n)
	}
	if err := e.putPositions(positions); err != nil {
		return nil, err
	}
	if err := e.refuseGoingBack(positions); err != nil {
		return nil, err
	}
	if err := e.finishUpdates(ctx); err != nil {
		return nil, err
	}
	e.passRows, e.logitRow, e.wanted = len(positions), len(positions)-wanted, wanted
	for _, p := range positions {
		e.reached[p.Sequence] = 0 // until the pass has ended well
	}
	if _, err := e.run(ctx, plan.Continue, nil, 0); err != nil {
		return nil, err
	}
	for _, p := range positions {
		e.reached[p.Sequence] = p.At + 1
	}
	all, vocab := make([][]float32, wanted), e.Plan.Model.Vocab
	logits := hostmem.F32(e.bytes(plan.LogitsPurpose, e.host.Home(plan.WantedLogits, 0)))
	for i := range all {
		all[i] = logits[i*vocab : (i+1)*vocab : (i+1)*vocab]
		e.head.Cap(all[i])
	}
	return all, nil
}

// refuseGoingBack refuses positions that do not follow those before them, where the model cannot go back.
func (e *Engine) refuseGoingBack(positions []Position) error {
	if e.Plan.Model.CanGoBack() {
		return nil
	}
	next := slices.Clone(e.reached)
	for _, p := range positions {
		if p.At != 0 && p.At != next[p.Sequence] {
			return fmt.Errorf("continue: position %d of sequence %d, where %d is the next; the model cannot go back, "+
				"so begin again at 0", p.At, p.Sequence, next[p.Sequence])
		}
		next[p.Sequence] = p.At + 1
	}
	return nil
}

// putPositions copies positions to where lanes read them, as rows of the micro-batch. It refuses what would make an
// operation leave its bounds.
func (e *Engine) putPositions(positions []Position) error {
	caches, t := e.Plan.Outputs.Caches, e.Plan.Numerics.Positions()
	if len(positions) > t {
		return fmt.Errorf("continue: a pass of %d positions, and the plan is for %d", len(positions), t)
	}
	here := batch.In(hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Home(plan.Tokens, 0)))[:batch.Bytes(t)/4])
	for i, p := range positions {
		switch {
		case p.Token < 0 || int(p.Token) >= e.Plan.Model.Vocab:
			return fmt.Errorf("continue: token %d is outside of the vocabulary of %d", p.Token, e.Plan.Model.Vocab)
		case p.Sequence < 0 || p.Sequence >= caches.Sequences,
			p.At < 0 || p.At >= p.Length || p.Length > caches.Positions:
			return fmt.Errorf("continue: position %d of %d of sequence %d is outside of caches for %d sequences of %d",
				p.At, p.Length, p.Sequence, caches.Sequences, caches.Positions)
		}
		// The rotary table of a position follows from the length of its document.
		here.IDs[i], here.Positions[i] = p.Token, int32(p.At)
		here.DocStart[i], here.DocEnd[i] = 0, int32(p.Length)
	}
	n := len(positions)
	e.Plan.Model.Rotary().Place(here.Positions[:n], here.DocStart[:n], here.DocEnd[:n], caches.Positions)
	for i, p := range positions {
		start := p.Sequence * caches.Positions
		here.DocStart[i], here.DocEnd[i] = int32(start), int32(start+p.At+1)
		here.Targets[i] = int32(start + p.At) // nn.MicroBatch.Places
	}
	return nil
}
