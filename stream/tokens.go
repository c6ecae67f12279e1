package stream

import (
	"fmt"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
)

// share are the micro-batches that this host computes, of those of a step.
func (e *Engine) share(micro []batch.Micro) []batch.Micro {
	n := e.Plan.Numerics.MicroBatches
	return micro[e.Plan.Cluster.Host*n:][:n]
}

// putTokens copies the tokens of this host's share of a step to where the lanes read them. It refuses what would make
// an operation leave its bounds, in any share, so that all hosts refuse it.
func (e *Engine) putTokens(b *Batch) error {
	n := e.Plan.Numerics
	t := n.Positions()
	if whole := e.Plan.Whole.MicroBatches; len(b.Micro) != whole {
		return fmt.Errorf("batch: %d micro-batches, the plan has %d", len(b.Micro), whole)
	}
	for _, mb := range b.Micro {
		if err := mb.Check(t, n.SequenceLen, e.Plan.Model.Vocab); err != nil {
			return err
		}
	}
	all := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Batches))
	each := int(batch.Bytes(t) / 4)
	scale := float32(0) // of the gradient of the mean
	if b.Targets > 0 {
		scale = float32(1 / float64(b.Targets))
	}
	own := e.share(b.Micro)
	for m, mb := range own {
		here := batch.In(all[m*each:][:each])
		here.Copy(mb)
		for i := range here.Weights {
			here.Weights[i] *= scale
		}
		e.Plan.Model.Rotary().Place(here.Positions, here.DocStart, here.DocEnd, e.Plan.LongestDocument())
	}
	if e.Plan.NumbersTokens() {
		e.orderTokens(own)
	}
	return nil
}

// orderTokens finds out which tokens occur in this host's share of a step, and numbers them by their order.
func (e *Engine) orderTokens(own []batch.Micro) {
	numbers := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Numbers))
	ofToken := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.OfTokens))
	for token := range ofToken {
		ofToken[token] = -1
	}
	for _, mb := range own {
		for _, token := range mb.IDs {
			ofToken[token] = 0
		}
	}
	e.touched = e.touched[:0]
	for token, n := range ofToken {
		if n == 0 {
			ofToken[token] = int32(len(e.touched))
			e.touched = append(e.touched, int32(token))
		}
	}
	for m, mb := range own {
		for i, token := range mb.IDs {
			numbers[m*len(mb.IDs)+i] = ofToken[token]
		}
	}
}
