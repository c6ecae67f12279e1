package stream

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
)

// An objective that compares with a teacher reads, of each position, the logits of the teacher's tokens. The host
// says which tokens, the head takes their logits as it forms those of a tile, and these go to the host: the picks of a
// plan. Each position has plan.Outputs.Picks of them, the teacher's and then the target, if it is not one of these. The
// objective gives them gradients, and the head takes these instead of the cross-entropy's.

// picks are the tokens of a micro-batch of this host, and picked their logits, or what the objective makes of them; nil
// where the plan has none.
func (e *Engine) picks(m int) []int32 {
	return hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Home(plan.Picks, m)))
}

func (e *Engine) picked(m int) []float32 {
	if e.Plan.Outputs.TopK == 0 {
		return nil
	}
	return hostmem.F32(e.bytes(plan.TokensPurpose, e.host.Home(plan.PickedLogits, m)))
}

// putPicks lists the tokens of the positions of this host's micro-batches. It refuses tokens that are not in the
// vocabulary, or twice at a position, in the documents of any host.
func (e *Engine) putPicks(b *Batch) error {
	k, wide := e.Plan.Outputs.TopK, e.Plan.Outputs.Picks()
	if k == 0 {
		return nil
	}
	for m := range e.Plan.Numerics.MicroBatches {
		ids := e.picks(m)
		for i := range ids {
			ids[i] = -1
		}
	}
	latest := make([]int, e.Plan.Model.Vocab) // number of the position that has the token, from 1
	for i, d := range b.documents() {
		if d.TopIDs == nil {
			continue // the objective refuses it, if it is asked
		}
		if len(d.TopIDs) != k*d.Length || len(d.TopLogProbs) != k*d.Length {
			return fmt.Errorf("batch: document %d has %d tokens of a teacher and %d log-probabilities of them for %d "+
				"positions, and the objective needs %d at each", i, len(d.TopIDs), len(d.TopLogProbs), d.Length, k)
		}
		var here []int32
		if m := d.Micro - e.Plan.Cluster.Host*e.Plan.Numerics.MicroBatches; m >= 0 && m < e.Plan.Numerics.MicroBatches {
			here = e.picks(m)
		}
		for t := range d.Length {
			at := d.First + t
			target, number := b.Micro[d.Micro].Targets[at], d.Micro*len(b.Micro[d.Micro].IDs)+at+1
			if target < 0 {
				continue // nothing is compared there
			}
			for _, id := range d.TopIDs[t*k:][:k] {
				switch {
				case id < 0:
					continue
				case int(id) >= len(latest):
					return fmt.Errorf("batch: document %d has token %d of a teacher, and the vocabulary has %d", i, id, len(latest))
				case latest[id] == number:
					return fmt.Errorf("batch: document %d has token %d of a teacher twice at position %d", i, id, t)
				}
				latest[id] = number
			}
			if here == nil {
				continue
			}
			copy(here[at*wide:], d.TopIDs[t*k:][:k])
			if latest[target] != number {
				here[at*wide+k] = target
			}
		}
	}
	return nil
}

// giveTop gives sequences of micro-batches of the step from one on, which this host computes, what the teacher says of
// them, and the model's log-probabilities of the same tokens, where their logits were.
func (e *Engine) giveTop(sequences []objective.Sequence, first, n int) {
	k, wide := e.Plan.Outputs.TopK, e.Plan.Outputs.Picks()
	if k == 0 {
		return
	}
	own, i := e.Plan.Cluster.Host*e.Plan.Numerics.MicroBatches, 0
	for _, d := range e.asked.documents() {
		if d.Micro < first || d.Micro >= first+n {
			continue
		}
		s := &sequences[i]
		i++
		ids, values := e.picks(d.Micro - own)[d.First*wide:][:d.Length*wide],
			e.picked(d.Micro - own)[d.First*wide:][:d.Length*wide]
		for t, target := range s.Targets {
			if target >= 0 {
				normalize(values[t*wide:][:wide], ids[t*wide:][:wide], target, s.LogProbs[t])
			}
		}
		s.Top = &objective.Top{K: k, IDs: ids, Teacher: d.TopLogProbs, Student: values}
		if s.Weights != nil {
			s.Top.Slopes = values
		}
	}
}

// Compare runs the forward pass over a batch and returns what the objective makes of it, cohort by cohort as in a step:
// a result for each of the counts, by which losses are divided, such as those of all that is evaluated. The plan is one
// with [plan.Outputs.LogProbs]. Pending updates are carried out first.
func (e *Engine) Compare(ctx context.Context, b *Batch, counts ...objective.Counts) ([]objective.Result, error) {
	defer e.temper()()
	figures, err := e.Figures(ctx, b)
	if err != nil {
		return nil, err
	}
	n := e.Plan.Numerics
	byCohort := make([][]objective.Result, len(e.weighed))
	for cohort := range byCohort {
		first := e.Plan.Cluster.Host*n.MicroBatches + cohort*n.CohortMicros()
		sequences := b.Sequences(first, n.CohortMicros(), figures[first:][:n.CohortMicros()], nil)
		for i := range sequences {
			sequences[i].Weights = nil
		}
		e.giveTop(sequences, first, n.CohortMicros())
		for _, whole := range counts {
			res, err := objective.Weigh(e.Objective, &objective.Step{Whole: whole, Sequences: sequences})
			if err != nil {
				return nil, fmt.Errorf("objective: %w", err)
			}
			byCohort[cohort] = append(byCohort[cohort], res)
		}
	}
	all := make([]objective.Result, len(counts))
	for i := range all {
		for cohort, of := range byCohort {
			e.weighed[cohort] = of[i]
		}
		if all[i], err = e.exchangeObjective(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// normalize turns logits of a position into log-probabilities: it knows both of the target.
func normalize(values []float32, ids []int32, target int32, logProb float32) {
	for i, id := range ids {
		if id != target {
			continue
		}
		sum := float64(values[i]) - float64(logProb) // the logarithm of the sum of exponentials
		for j := range values {
			values[j] = float32(float64(values[j]) - sum)
		}
		return
	}
}

// scalePicked multiplies the gradients of a cohort's picks by that of the mean.
func (r *execution) scalePicked(cohort, micros int) {
	for m := cohort; m < cohort+micros; m++ {
		of := r.picked(m)
		for i := range of {
			of[i] *= r.scale
		}
	}
}
