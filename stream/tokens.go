package stream

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/objective"
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
	all := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Home(plan.Tokens, 0)))
	each := int(batch.Bytes(t) / 4)
	e.scale = 0
	if b.Targets > 0 {
		e.scale = float32(1 / float64(b.Targets))
	}
	if e.Objective != nil {
		if err := b.checkDocuments(); err != nil {
			return err
		}
		if err := e.putPicks(b); err != nil {
			return err
		}
		e.asked, e.inStep = b, b.Counts()
		e.weighed = make([]objective.Result, n.CohortCount())
	}
	own := e.share(b.Micro)
	for m, mb := range own {
		here := batch.In(all[m*each:][:each])
		here.Copy(mb)
		for i := range here.Weights {
			if here.Weights[i] *= e.scale; here.Targets[i] < 0 {
				here.Weights[i] = 0 // see nn.Head.Scores
			}
		}
		e.Plan.Model.Rotary().Place(here.Positions, here.DocStart, here.DocEnd, e.Plan.LongestDocument())
	}
	if !e.host.Home(plan.AheadTokens, 0).IsZero() {
		e.orderAhead(own)
	}
	if !e.host.Home(plan.Numbers, 0).IsZero() {
		e.orderTokens(b.Micro)
	}
	return nil
}

// orderAhead finds out which tokens occur in each micro-batch, and numbers them by their order.
func (e *Engine) orderAhead(micro []batch.Micro) {
	view := func(mem device.Mem) []int32 { return hostmem.I32(e.bytes(plan.TokensPurpose, mem)) }
	tokens, numbers, ofToken := view(e.host.Home(plan.AheadTokens, 0)), view(e.host.Home(plan.AheadNumbers, 0)),
		view(e.host.Home(plan.OfTokens, 0))
	each := e.Plan.Numerics.Positions()
	e.aheadTokens = e.aheadTokens[:0]
	for m := range micro {
		of := micro[m : m+1]
		e.aheadTokens = append(e.aheadTokens, len(order(of, tokens[m*each:m*each:(m+1)*each], ofToken)))
		number(of, ofToken, numbers[m*each:])
	}
}

// orderTokens finds out which tokens occur in a step, or with several hosts in each of its cohorts, whichever host
// computes it, and numbers those of this host's share by their order. Micro-batches that never come down have none.
func (e *Engine) orderTokens(micro []batch.Micro) {
	numbers := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Home(plan.Numbers, 0)))
	ofToken := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Home(plan.OfTokens, 0)))
	e.touched = e.touched[:0]
	n, down := e.Plan.Numerics.CohortMicros(), e.Plan.MicrosDown()
	if !e.Plan.Cluster.Several() {
		all := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Home(plan.Occurring, 0)))
		var of []batch.Micro
		for cohort := range slices.Chunk(micro, n) {
			of = append(of, cohort[:down]...)
		}
		e.touched = append(e.touched, order(of, all[:0], ofToken))
		number(micro, ofToken, numbers)
		return
	}
	own, each := e.Plan.Cluster.Host*e.Plan.Numerics.CohortCount(), n*e.Plan.Numerics.Positions()
	for cohort := range e.Plan.Whole.CohortCount() {
		of := micro[cohort*n:][:down]
		all := hostmem.I32(e.bytes(plan.TokensPurpose, e.host.Home(plan.Occurring, cohort)))
		e.touched = append(e.touched, order(of, all[:0], ofToken))
		if here := cohort - own; here >= 0 && here < e.Plan.Numerics.CohortCount() {
			number(of, ofToken, numbers[here*each:])
		}
	}
}

// order appends the tokens of micro-batches to a list, each once and rising, and sets ofToken to the number of each
// token in the list, -1 if it does not occur.
func order(micro []batch.Micro, list, ofToken []int32) []int32 {
	for token := range ofToken {
		ofToken[token] = -1
	}
	for _, mb := range micro {
		for _, token := range mb.IDs {
			ofToken[token] = 0
		}
	}
	for token, n := range ofToken {
		if n == 0 {
			ofToken[token] = int32(len(list))
			list = append(list, int32(token))
		}
	}
	return list
}

// number writes the numbers of the tokens at all positions.
func number(micro []batch.Micro, ofToken, numbers []int32) {
	for _, mb := range micro {
		for i, token := range mb.IDs {
			numbers[i] = ofToken[token]
		}
		numbers = numbers[len(mb.IDs):]
	}
}
