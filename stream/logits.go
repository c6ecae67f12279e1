package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
)

// Logits runs the forward pass over a batch and returns, for each micro-batch, the logits of its rows from row first
// on: [Plan.Outputs.LogitRows, Vocab], row by row. They are good until the next call. Pending updates are carried out
// first. No plan for several hosts has such rows.
func (e *Engine) Logits(ctx context.Context, batch *Batch, first int) ([][]float32, error) {
	n := e.Plan.Outputs.LogitRows
	if e.Plan.Outputs.Draws {
		return nil, errors.New("logits: the plan has rows draw tokens, so that logits stay on the device; make it without " +
			"Draws")
	}
	if n == 0 || first < 0 || first > e.Plan.Numerics.Positions()-n {
		return nil, fmt.Errorf("logits: rows [%d, %d) of %d, and the plan is for %d", first, first+n, e.Plan.Numerics.Positions(), n)
	}
	if err := e.finishUpdates(ctx); err != nil {
		return nil, err
	}
	e.logitRow, e.wanted = first, n
	if _, err := e.run(ctx, plan.Logits, batch, 0); err != nil {
		return nil, err
	}
	all := make([][]float32, len(batch.Micro))
	for m := range all {
		all[m] = hostmem.F32(e.bytes(plan.LogitsPurpose, e.host.Home(plan.WantedLogits, m)))
		e.head.Cap(all[m])
	}
	return all, nil
}

// LogProbs returns the log-probabilities of [Engine.Figures] alone.
func (e *Engine) LogProbs(ctx context.Context, batch *Batch) (all [][]float32, err error) {
	figures, err := e.Figures(ctx, batch)
	for _, of := range figures {
		all = append(all, of.LogProbs)
	}
	return all, err
}

// Figures tells what a model makes of the target of each position of a micro-batch: F32[T], 0 where it has no target.
type Figures struct {
	LogProbs  []float32 // of the targets, in nats, or of a model that ends in scores the scores
	Entropies []float32 // of the distributions over the vocabulary, in nats
	Hits      []float32 // 1 where no token is likelier than the target
	Values    []float32 // a critic's, also where there is no target; nil: the model has none
}

// figuresIn views the figures of a micro-batch as a device has written them, with the losses of which it makes
// log-probabilities.
func (e *Engine) figuresIn(mem []byte) Figures {
	n, hasValues := e.Plan.Numerics.Positions(), e.Plan.Model.Head.Values
	all := hostmem.F32(mem)
	s := Figures{LogProbs: all[:n:n], Entropies: all[n : 2*n : 2*n], Hits: all[2*n : 3*n : 3*n]}
	if values := all[device.TokenFigures*n:]; hasValues {
		s.Values = values[:n:n]
	}
	for t, loss := range s.LogProbs {
		s.LogProbs[t] = -loss
	}
	return s
}

// Figures runs the forward pass over a batch and returns those of each micro-batch. They are good until the next call
// of any method. The plan is one with [plan.Outputs.LogProbs]. Pending updates are carried out first.
func (e *Engine) Figures(ctx context.Context, batch *Batch) ([]Figures, error) {
	if !e.Plan.Outputs.LogProbs {
		return nil, errors.New("log-probabilities: the plan has no room for them; make it with LogProbs")
	}
	if _, err := e.Eval(ctx, batch); err != nil {
		return nil, err
	}
	all, each := make([]Figures, len(batch.Micro)), e.Plan.Numerics.MicroBatches
	for m := range all {
		all[m] = e.figuresIn(e.results[m/each][e.Plan.TokenLossesAt(m%each):])
	}
	return all, nil
}

// logitChunk returns the first of a chunk's wanted rows, counted among all wanted ones, and their number; 0 for a chunk
// that the pass does not need.
func (r *execution) logitChunk(chunk int) (first, n int) {
	first = chunk * r.head.ChunkTokens
	return first, max(min(r.head.ChunkTokens, r.wanted-first), 0)
}
