package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/nn"
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
// failed. A pass has one position to as many as Plan.Numerics.Positions. The plan is one with [plan.Outputs.Caches]; if
// these are in blocks, positions have the place that [Engine.SetBlocks] gives them.
//
// Pending updates are carried out first. Caches do not know of that: after a step sequences begin again.
func (e *Engine) Continue(ctx context.Context, positions []Position, wanted int) ([][]float32, error) {
	if e.Plan.Outputs.Draws {
		return nil, errors.New("continue: the plan has rows draw tokens, so that logits stay on the device; call Draw")
	}
	if wanted < 1 {
		return nil, errors.New("continue: no row is wanted")
	}
	if err := e.advance(ctx, positions, wanted); err != nil {
		return nil, err
	}
	all, vocab := make([][]float32, wanted), e.Plan.Model.Vocab
	logits := hostmem.F32(e.bytes(plan.LogitsPurpose, e.host.Home(plan.WantedLogits, 0)))
	for i := range all {
		all[i] = logits[i*vocab : (i+1)*vocab : (i+1)*vocab]
		e.head.Cap(all[i])
	}
	return all, nil
}

// Drawn is a token that a row has drawn, and the natural logarithm of its probability; -1 and 0 where the row's logits
// are not finite.
type Drawn struct {
	ID      int32
	LogProb float32
}

// Draw is [Engine.Continue] for a plan with [plan.Outputs.Draws]: the last positions draw a token each, on the device,
// of the ids below vocab, as [device.HeadOps.DrawTokens] has it. A pass that only reads a text has no draws.
func (e *Engine) Draw(ctx context.Context, positions []Position, draws []device.TokenDraw, vocab int) ([]Drawn, error) {
	if !e.Plan.Outputs.Draws {
		return nil, errors.New("draw: the plan has no rows that draw tokens; make it with Draws")
	}
	if vocab < 1 || vocab > e.Plan.Model.Vocab {
		return nil, fmt.Errorf("draw: of %d tokens, and the model has %d", vocab, e.Plan.Model.Vocab)
	}
	if len(draws) > e.Plan.Outputs.LogitRows {
		return nil, fmt.Errorf("draw: %d rows draw tokens, and the plan is for %d", len(draws), e.Plan.Outputs.LogitRows)
	}
	words := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Home(plan.Tokens, 0)))[e.Plan.DrawsAt()/4:]
	for i, d := range draws {
		d.Put(words[i*device.DrawWords:])
	}
	e.drawVocab = vocab
	if err := e.advance(ctx, positions, len(draws)); err != nil {
		return nil, err
	}
	all, figures := make([]Drawn, len(draws)), hostmem.F32(e.bytes(plan.TokensPurpose, e.host.Home(plan.Drawn, 0)))
	for i := range all {
		all[i] = Drawn{int32(figures[i*device.DrawnFigures]), figures[i*device.DrawnFigures+1]}
	}
	return all, nil
}

// advance runs a pass over positions, of which the last ones are wanted.
func (e *Engine) advance(ctx context.Context, positions []Position, wanted int) error {
	if !e.Plan.Outputs.Continues() {
		return errors.New("continue: the plan has no caches; make it with Caches")
	}
	if n := e.Plan.Outputs.LogitRows; len(positions) == 0 || wanted > min(n, len(positions)) {
		return fmt.Errorf("continue: logits of %d rows of %d, and the plan is for %d", wanted, len(positions), n)
	}
	if err := e.putPositions(positions); err != nil {
		return err
	}
	if err := e.refuseGoingBack(positions); err != nil {
		return err
	}
	if err := e.finishUpdates(ctx); err != nil {
		return err
	}
	e.passRows, e.logitRow, e.wanted = len(positions), len(positions)-wanted, wanted
	for _, p := range positions {
		e.reached[p.Sequence] = 0 // until the pass has ended well
	}
	_, err := e.run(ctx, plan.Continue, nil, 0)
	if err != nil {
		for _, l := range e.takeover.Latest {
			e.reached[l[1]] = 0
		}
	}
	e.takeover = nn.Takeover{}
	if err != nil {
		return err
	}
	for _, p := range positions {
		e.reached[p.Sequence] = p.At + 1
	}
	return nil
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
	home := e.host.Home(plan.Tokens, 0)
	here := batch.In(hostmem.I32(e.bytes(plan.TokensPurpose, home))[:batch.Bytes(t)/4])
	if table := e.Plan.CacheTable(home); !table.IsZero() {
		copy(hostmem.I32(e.bytes(plan.TokensPurpose, table)), e.blocks.table)
	}
	for i, p := range positions {
		switch {
		case p.Token < 0 || int(p.Token) >= e.Plan.Model.Vocab:
			return fmt.Errorf("continue: token %d is outside of the vocabulary of %d", p.Token, e.Plan.Model.Vocab)
		case p.Sequence < 0 || p.Sequence >= caches.Sequences,
			p.At < 0 || p.At >= p.Length || p.Length > caches.Positions:
			return fmt.Errorf("continue: position %d of %d of sequence %d is outside of caches for %d sequences of %d",
				p.At, p.Length, p.Sequence, caches.Sequences, caches.Positions)
		}
		row, err := e.blocks.row(p.Sequence, p.At)
		if err != nil {
			return err
		}
		// The rotary table of a position follows from the length of its document.
		here.IDs[i], here.Positions[i] = p.Token, int32(p.At)
		here.DocStart[i], here.DocEnd[i] = 0, int32(p.Length)
		here.Targets[i] = int32(row) // nn.MicroBatch.Places
	}
	n := len(positions)
	e.Plan.Model.Rotary().Place(here.Positions[:n], here.DocStart[:n], here.DocEnd[:n], caches.Positions)
	for i, p := range positions {
		start := p.Sequence * caches.Each()
		here.DocStart[i], here.DocEnd[i] = int32(start), int32(start+p.At+1)
	}
	return nil
}
