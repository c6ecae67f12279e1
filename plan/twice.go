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
	for layer := b.lowestTrained(); layer <= b.blocks(); layer++ {
		for m := range b.Numerics.MicroBatches {
			if b.savedOnDevice(layer-1) && b.comesDown(m) {
				b.hold(b.input(b.RankOf(layer, nn.Backward), layer, m))
			}
		}
	}
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

// chooseGradients makes a plan of the way that is asked for. Auto compares both where a plan that keeps gradients has
// something on disk, or does not fit: arithmetic is worth more than bytes only where steps wait for a drive.
func (r Request) chooseGradients(ctx context.Context, thorough bool, most float64) (*Plan, error) {
	choose := func(way Gradients, most float64) (*Plan, error) {
		return (&chooser{Request: r.with(way), ctx: ctx, most: most}).choose(thorough)
	}
	if !r.mayChoose() {
		return choose(r.Gradients, most)
	}
	kept, err := choose(GradientsKept, most)
	if ctx.Err() != nil || err == nil && !kept.anyOnDisk() {
		return kept, err
	}
	twice, errTwice := choose(GradientsTwice, most)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errTwice != nil && err == nil:
		return kept, nil
	case err != nil && errTwice != nil:
		return nil, errTwice // which needs less
	case err != nil:
		return twice, nil
	case twice.Predicted.StepSeconds < kept.Predicted.StepSeconds:
		twice.OtherStepSeconds = finite(kept.Predicted.StepSeconds)
		return twice, nil
	}
	kept.OtherStepSeconds = finite(twice.Predicted.StepSeconds)
	return kept, nil
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
	text, other := "gradients: kept until the norm is known", "computed twice"
	switch {
	case p.Placement.Twice:
		text, other = "gradients: computed twice, for the norm and for updates, so none is kept", "kept"
	case p.OtherStepSeconds == 0:
		return ""
	}
	if sec := p.OtherStepSeconds; sec > 0 {
		text += fmt.Sprintf("; a step with gradients %s would take %s s", other, three(sec))
	}
	return text
}
