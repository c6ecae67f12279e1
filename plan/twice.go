package plan

import (
	"context"
	"fmt"
	"math"

	"github.com/millrace/millrace/nn"
)

// Exact clipping needs the norm of all gradients before the first update. So a step keeps them: two bytes a parameter,
// which leave the device, wait in host memory or on disk, and come back for the update. Where the drive is what a step
// waits for, these bytes cost more than the arithmetic that makes them.
//
// A step that computes its gradients twice keeps none. Its first half goes up and down, rounds each gradient as it
// would be stored, adds its squares to the norm, and drops it. Its second half goes down again, with the norm: each
// gradient updates its part while it leaves, as without clipping. A gradient depends on the weights, the saved inputs
// and the order of its sums, and none of these changes between the halves; so both times it has the bits of one that is
// kept.
//
// The first time down overwrites these, so they cannot serve the second one:
//
//	the head's input         is computed again: the last block goes up once more
//	the inputs of block 1    have given their place to their gradients: rows of the tables are looked up again
//	kept activations         are not kept: blocks recompute all
//	what crosses blocks      (Model.Sides) is replaced by its gradient: such models keep their gradients
//
// All else is where the first half has left it: saved inputs, the outcomes of experts, the choices of all routers, the
// weights that an objective has given to positions. An objective is asked in the first half alone.

// beginsAgain reports whether a layer is the first one that the second half of a step visits.
func (b *builder) beginsAgain(layer int) bool {
	return b.Pass.Half == ForUpdates && layer == b.blocks()
}

// holdSaved notes what the first half of a step has left on the devices: the inputs that are saved there.
func (b *builder) holdSaved() {
	if b.Pass.Half != ForUpdates {
		return
	}
	for layer := b.lowest(); layer <= b.blocks(); layer++ {
		for m := range b.Numerics.MicroBatches {
			if b.savedOnDevice(layer-1) && b.comesDown(m) {
				b.hold(b.input(b.RankOf(layer, nn.Backward), layer, m))
			}
		}
	}
}

// Where a step waits for the drive at some times and for arithmetic at others, some of both can be best: gradients of
// the layers from Placement.TwiceFrom on are computed twice, and those below wait for the norm. The second half ends
// with that layer. Updates of the layers below are spread over its visits, so that the drive works all the time.

// waiting are the parts whose gradients have waited for the norm, in the second half of a step.
func (b *builder) waiting() (parts []int) {
	for _, part := range b.updateOrder() {
		if b.Pass.Half == ForUpdates && b.GradWaits(part) && b.Trained(part) {
			parts = append(parts, part)
		}
	}
	return parts
}

// BlocksTwice is the number of blocks whose gradients a step computes twice.
func (p *Plan) BlocksTwice() int {
	if !p.Placement.Twice {
		return 0
	}
	return p.blocks() + 1 - max(p.lowestTrained(), p.Placement.TwiceFrom, 1)
}

// SummedOnHost reports whether the host sums the gradient of a part, and its squares.
func (p *Plan) SummedOnHost(part int) bool { return p.Model.Parts[part].Kind.LookedUp() }

// lowest is the layer with which the way down of a pass ends.
func (b *builder) lowest() int {
	if b.Pass.Half == ForUpdates {
		return max(b.lowestTrained(), b.Placement.TwiceFrom)
	}
	return b.lowestTrained()
}

// reachesTables reports whether a pass goes through the layers down to the tables that begin them.
func (b *builder) reachesTables() bool {
	return b.Pass.Runs() && (b.Pass.Half != ForUpdates || b.Placement.TwiceFrom == 0)
}

// Gradients says what a step does with gradients until their norm is known. Empty is GradientsAuto.
type Gradients string

// The ways.
const (
	GradientsAuto  Gradients = "auto"  // whichever is predicted to be faster
	GradientsKept  Gradients = "keep"  // they wait in host memory or on disk
	GradientsTwice Gradients = "twice" // they are computed twice: Placement.Twice
)

// Known reports whether there is such a way.
func (g Gradients) Known() bool {
	return g == "" || g == GradientsAuto || g == GradientsKept || g == GradientsTwice
}

// with is the request with one way.
func (r Request) with(way Gradients) Request {
	r.Gradients = way
	return r
}

// mayChoose reports whether a request has both ways.
func (r Request) mayChoose() bool {
	return r.Gradients != GradientsKept && r.Gradients != GradientsTwice && r.notTwice() == ""
}

func (r Request) notTwice() string {
	return (&Plan{Model: r.Model, Outputs: r.Outputs, Cluster: r.Cluster, Numerics: r.Numerics}).notTwice()
}

// notTwice says why steps cannot compute their gradients twice; empty: they can.
func (p *Plan) notTwice() string {
	switch o := p.Outputs; {
	case !p.Trains():
		return "nothing is trained"
	case p.lowestTrained() > p.blocks():
		return "no block is trained"
	case o.NoClip:
		return "with max_grad_norm: 0 no gradient waits for a norm"
	case o.keepGradients():
		return "gradients are to be read after the step"
	case p.Cluster.Several():
		return "several hosts add up their gradients"
	case len(p.Model.Chains) > 1 || len(p.Model.Sides) > 0:
		return "blocks of this model use values of other blocks, whose gradients take the place of these values"
	case p.Numerics.ForwardOnly > 0:
		return "the objective compares with documents that are not trained"
	}
	return ""
}

// checkGradients refuses gradients that are to be computed twice and cannot be.
func (r Request) checkGradients() error {
	if why := r.notTwice(); r.Gradients == GradientsTwice && why != "" && trains(r.Model) && !r.Outputs.keepGradients() {
		return fmt.Errorf("memory.gradients is twice, and %s: set it to keep, or leave it out", why)
	}
	return nil
}

// chooseGradients makes a plan of the way that is asked for, or of the faster one.
func (r Request) chooseGradients(ctx context.Context, thorough bool, most float64) (*Plan, error) {
	choose := func(way Gradients, from int, most float64) (*Plan, error) {
		return (&chooser{Request: r.with(way), ctx: ctx, most: most, from: from}).choose(thorough)
	}
	if !r.mayChoose() {
		return choose(r.Gradients, 0, most)
	}
	best, err := fasterWay(ctx, most, thorough, choose)
	if err == nil {
		err = ctx.Err()
	}
	return best, err
}

// chooseWay makes a plan of a way, with gradients computed twice from a layer on. Steps of more than most seconds may
// be predicted to take forever; 0 is no limit.
type chooseWay func(way Gradients, from int, most float64) (*Plan, error)

// fasterWay compares both ways where a plan that keeps gradients has something on disk, or does not fit: arithmetic is
// worth more than bytes only where steps wait for a drive. A thorough one then tries some of each.
func fasterWay(ctx context.Context, most float64, thorough bool, choose chooseWay) (*Plan, error) {
	kept, err := choose(GradientsKept, 0, most)
	if ctx.Err() != nil || err == nil && !kept.anyOnDisk() {
		return kept, err
	}
	twice, errTwice := choose(GradientsTwice, 0, most)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errTwice != nil && err == nil:
		return kept, nil
	case err != nil && errTwice != nil:
		return nil, errTwice // which needs less
	case err != nil:
		return twice, nil
	}
	best, other := kept, twice
	if twice.Predicted.StepSeconds < kept.Predicted.StepSeconds {
		best, other = twice, kept
	}
	best.OtherStepSeconds = finite(other.Predicted.StepSeconds)
	if thorough && finite(best.Predicted.StepSeconds) > 0 { // else all take longer than is asked for
		best = inPart(best, choose)
	}
	return best, nil
}

// inPart looks for a layer from which on gradients are computed twice that makes steps faster than the best way for
// all, whichever it is: gradients of the lowest blocks are kept then. An eighth of the blocks is tried first, and more
// and fewer if that is faster. Updates of kept gradients wait for the norm, and then have only the second half of the
// step to be done in, so more blocks than these were never better (docs/log.md).
func inPart(best *Plan, choose chooseWay) *Plan {
	whole := best
	for _, eighths := range []float64{1, 2, 0.5} {
		kept := int(eighths * float64(best.blocks()) / 8)
		if kept == 0 {
			continue
		}
		p, err := choose(GradientsTwice, 1+kept, best.Predicted.StepSeconds)
		if err != nil || p.Predicted.StepSeconds >= best.Predicted.StepSeconds {
			if best == whole {
				break
			}
			continue
		}
		best = p
		best.OtherStepSeconds = finite(whole.Predicted.StepSeconds)
	}
	return best
}

// finite is the seconds of a step that was simulated to its end; else 0.
func finite(sec float64) float64 {
	if math.IsInf(sec, 1) {
		return 0
	}
	return sec
}

// gradientsText says how a plan treats gradients, where it might do otherwise; empty: it was not asked.
func (p *Plan) gradientsText() string {
	text, other := "gradients: kept until the norm is known", "with gradients computed twice"
	switch from := p.Placement.TwiceFrom; {
	case from > 0:
		text = fmt.Sprintf("gradients: computed twice from block %d of %d on, for the norm and for updates; those of the "+
			"blocks before are kept until the norm is known", from, p.blocks())
		other = "with all of them kept, or all computed twice,"
	case p.Placement.Twice:
		text, other = "gradients: computed twice, for the norm and for updates, so none is kept", "with gradients kept"
	case p.OtherStepSeconds == 0:
		return ""
	}
	if sec := p.OtherStepSeconds; sec > 0 {
		text += fmt.Sprintf("; a step %s would take %s s", other, three(sec))
	}
	return text
}
