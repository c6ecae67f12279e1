package session

import (
	"context"
	"slices"

	"github.com/millrace/millrace/plan"
)

// MostPassRows is the number of positions of prompts that one pass takes at most, of texts that continue.
const MostPassRows = 512

// FitTexts plans for as many texts as are fastest together. Where memory has no room for the caches of all at their
// greatest length, they share blocks for half of that; where that does not fit either, half as many texts grow
// together, and so on. Where weights or caches come to the device for each token, since the caches of all these texts
// have no room there, fewer may make more tokens in a second. f.Numerics.SequenceLen is the length of the longest
// prompt.
func FitTexts(ctx context.Context, f plan.Fitting, count, positions int) (*plan.Plan, error) {
	prompt := f.Numerics.SequenceLen
	of := func(count, share int) plan.Fitting {
		with, caches := f, TextCaches(count, positions)
		caches.Blocks = max(caches.Blocks/share, caches.BlocksEach())
		with.Outputs.LogitRows, with.Outputs.Caches = count, caches
		with.Numerics.SequenceLen = max(count, min(count*prompt, MostPassRows))
		with.Cuts = plan.Cuts{MicroBatch: 1, HeadChunk: count} // the head has no other rows than those that are wanted
		return with
	}
	fit := func(count int) (*plan.Plan, error) { // of as many texts as there is room for
		for ; count > 1; count /= 2 {
			for _, share := range []int{1, 2} {
				if with := of(count, share); with.Fits(ctx) == nil {
					return with.Fit(ctx)
				}
			}
		}
		return of(1, 1).Fit(ctx)
	}
	together := func(p *plan.Plan) int { return p.Outputs.Caches.Sequences }
	rate := func(p *plan.Plan) float64 { return float64(together(p)) / p.PassSeconds(f.Machine, f.Device) }

	p, err := fit(count)
	if err != nil || nothingMoves(p) {
		return p, err
	}
	best, most := p, together(p) // most: the next larger number that was tried
	for last := p; together(last) > 1 && !nothingMoves(last); last = p {
		if p, err = fit(together(last) / 2); err != nil {
			return nil, err
		}
		if rate(p) > rate(best) {
			best, most = p, together(last)
		}
	}
	for together(best)+max(together(best)/8, 1) < most {
		middle := (together(best) + most) / 2
		if p, err = fit(middle); err != nil {
			return nil, err
		}
		if together(p) == middle && rate(p) > rate(best) {
			best = p
		} else {
			most = middle
		}
	}
	return best, nil
}

// nothingMoves reports whether a pass that continues texts brings neither weights nor caches to the device.
func nothingMoves(p *plan.Plan) bool {
	loaded := plan.Mode{Pass: plan.Continue, Loaded: true, Again: true}
	return !slices.ContainsFunc(p.ScheduleOf(loaded).Ops, func(op plan.Op) bool {
		return op.Do == plan.DoMove && op.Lane == plan.LaneFetch && len(op.Writes) > 0 &&
			(op.Writes[0].What == plan.Weights || op.Writes[0].What == plan.Cache)
	})
}
