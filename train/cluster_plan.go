package train

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
)

// Hosts have a plan each, within their own budgets, and the same sizes.

// planAlike plans the run on each host. Sizes that are auto become the smallest that any of them chooses for itself:
// what has room with larger sizes has room with smaller ones.
func (t *trainer) planAlike(ctx context.Context, b *rundir.Beginning, asked runfile.Sizes) error {
	c := t.env.Cluster
	plans := func(ctx context.Context) error {
		return t.makePlan(ctx, t.rates.Steps, plan.Outputs{}, t.samples.memory(), b.HasSizes())
	}
	err := t.env.together(ctx, func(ctx context.Context) error {
		return blame.OfStart(ctx, ofBudgets(t.keptSizes(ctx, asked, plans(ctx))))
	})
	if err != nil || c == nil {
		return err
	}
	all, err := exchange(c, runfile.SizesOf(t.plan.Whole))
	if err != nil {
		return err
	}
	sizes, of := smallestSizes(all)
	t.config.Numerics = sizes
	err = t.env.together(ctx, func(ctx context.Context) error {
		if sizes == all[c.Host] {
			return nil
		}
		return blame.OfStart(ctx, ofBudgets(c.choiceOf(of, sizes, plans(ctx))))
	})
	if err != nil {
		return err
	}
	if sizes != all[0] {
		t.env.note("micro_batch %d, head_chunk %d and block_chunk %d are for the budgets of %s; %s alone would have "+
			"%d, %d and %d", sizes.MicroBatch, sizes.HeadChunk, sizes.BlockChunk, c.Name(of), c.Name(0),
			all[0].MicroBatch, all[0].HeadChunk, all[0].BlockChunk)
	}
	return t.waitAsPlanned()
}

// smallestSizes are the smallest of those that hosts have chosen, and the first host that has the smallest
// micro-batches, and of these the smallest chunk of the head.
func smallestSizes(all []runfile.Sizes) (sizes runfile.Sizes, of int) {
	for host, s := range all {
		if least := all[of]; s.MicroBatch < least.MicroBatch ||
			s.MicroBatch == least.MicroBatch && s.HeadChunk < least.HeadChunk {
			of = host
		}
	}
	sizes = all[of]
	for _, s := range all {
		sizes.HeadChunk = min(sizes.HeadChunk, s.HeadChunk)
		if s.MicroBatch == sizes.MicroBatch { // a chunk of other micro-batches need not divide these well
			sizes.BlockChunk = min(sizes.BlockChunk, s.BlockChunk)
		}
	}
	return sizes, of
}

// choiceOf adds to the error of a plan whose sizes they are.
func (c *Cluster) choiceOf(host int, sizes runfile.Sizes, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; micro_batch %d, head_chunk %d and block_chunk %d are for the budgets of %s: set smaller "+
		"numerics.micro_batch and numerics.head_chunk", err, sizes.MicroBatch, sizes.HeadChunk, sizes.BlockChunk,
		c.Name(host))
}

// budgetsError is an error that one host's budgets, or its machine, may have, and others not: it is told with the name
// of its host, also where that is host 0.
type budgetsError struct{ error }

func (e budgetsError) Unwrap() error { return e.error }

func ofBudgets(err error) error {
	if err == nil {
		return nil
	}
	return budgetsError{err}
}

// waitAsPlanned lets hosts wait for each other as long as they need by their plans.
func (t *trainer) waitAsPlanned() error {
	all, err := exchange(t.env.Cluster, t.plan.Predicted.StepSeconds)
	if err != nil {
		return err
	}
	if longer := t.waitForSteps(slices.Max(all)); longer > 0 {
		t.env.note("a step takes about %s: hosts wait up to %v for each other", console.Seconds(slices.Max(all)),
			runfile.Duration(longer))
	}
	return t.noteOtherDevices()
}
