package stream

import (
	"fmt"

	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/plan"
)

// putTokens copies a step's tokens to where the lanes read them. It refuses what would make an operation leave its
// bounds.
func (e *Engine) putTokens(b *Batch) error {
	n := e.Plan.Numerics
	t := n.Positions()
	if len(b.Micro) != n.MicroBatches {
		return fmt.Errorf("batch: %d micro-batches, the plan has %d", len(b.Micro), n.MicroBatches)
	}
	all := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Batches))
	per := int(plan.BatchBytes(t) / 4)
	for m, mb := range b.Micro {
		for i, array := range [][]int32{mb.IDs, mb.Targets, mb.Positions, mb.DocStart, mb.DocEnd} {
			if len(array) != t {
				return fmt.Errorf("batch: an array of %d entries, the plan has %d positions", len(array), t)
			}
			copy(all[m*per+i*t:], array)
		}
		vocab := int32(e.Plan.Model.Vocab)
		for i := range t {
			at := int32(i)
			switch {
			case mb.IDs[i] < 0 || mb.IDs[i] >= vocab || mb.Targets[i] >= vocab:
				return fmt.Errorf("batch: token %d or target %d is outside of the vocabulary of %d", mb.IDs[i], mb.Targets[i], vocab)
			case mb.Positions[i] < 0 || int(mb.Positions[i]) >= n.SequenceLen,
				mb.DocStart[i] < 0 || mb.DocStart[i] > at || mb.DocEnd[i] <= at || int(mb.DocEnd[i]) > t:
				return fmt.Errorf("batch: position %d has place %d in a document at [%d, %d)", i, mb.Positions[i], mb.DocStart[i], mb.DocEnd[i])
			}
		}
	}
	if e.Plan.SumsTouchedRows() {
		e.orderTokens(b)
	}
	return nil
}

// orderTokens finds out which tokens occur in a step, and numbers them by their order.
func (e *Engine) orderTokens(b *Batch) {
	numbers := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Numbers))
	ofToken := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.OfTokens))
	for token := range ofToken {
		ofToken[token] = -1
	}
	for _, mb := range b.Micro {
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
	for m, mb := range b.Micro {
		for i, token := range mb.IDs {
			numbers[m*len(mb.IDs)+i] = ofToken[token]
		}
	}
}
