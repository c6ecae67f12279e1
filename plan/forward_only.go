package plan

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// Some objectives compare documents that are trained with others that are not. KTO, for one, needs the
// log-probabilities of completions after prompts of others, and gives their positions weights of 0.
//
// The obvious answer takes all of them down. Their backward pass adds zeros: with as many rows as are trained, a step
// takes twice as long. The other one, a pass before the step, moves all weights once more.
//
// Here the last Numerics.ForwardOnly micro-batches of each cohort only go up. The objective sees their
// log-probabilities, and they have no visit on the way down, and so no gradient: nothing that such a visit reads is
// saved or kept, and no table gets a share of theirs. Gradients have the bits that weights of 0 give, since sums of
// micro-batches are added one by one, and the first of each cohort is trained.
//
// Experts are the exception. They see the rows of a cohort at once, on both ways, and a load-balancing loss has a
// gradient in all of them. So all micro-batches of a model with experts come down, and the engine gives the positions
// of those that are not trained weights of 0.
//
// A plan has cells for them all. Those that would wait for the way down have no memory (Plan.placed). The values that
// a block keeps have one cell for all of them, since visits write them in any case, and a head that is visited at once
// has one set of buffers.

// TrainedMicros is the number of micro-batches of a cohort whose losses count: the first ones.
func (n Numerics) TrainedMicros() int { return n.CohortMicros() - n.ForwardOnly }

// TrainsMicro reports whether the losses of a micro-batch count.
func (n Numerics) TrainsMicro(micro int) bool { return micro%n.CohortMicros() < n.TrainedMicros() }

// checkForwardOnly refuses a number of micro-batches that leaves none to train.
func (n Numerics) checkForwardOnly() error {
	if n.ForwardOnly < 0 || n.TrainedMicros() < 1 {
		return fmt.Errorf("numerics.forward_only is %d: it must leave one to train of the %d micro-batches of a group",
			n.ForwardOnly, n.CohortMicros())
	}
	return nil
}

// checkObjective refuses micro-batches that are not trained in steps without an objective.
func (r Request) checkObjective() error {
	if r.Numerics.ForwardOnly > 0 && !r.Outputs.Objective {
		return errors.New("numerics.forward_only is for steps with an objective, which alone reads the losses of " +
			"micro-batches that are not trained; leave it out")
	}
	return nil
}

// MicrosDown is the number of micro-batches of a cohort that have visits on the way down: those that are trained, and
// of a model with experts all.
func (p *Plan) MicrosDown() int {
	if p.Numerics.ForwardOnly == 0 || p.Model.Routed() {
		return p.Numerics.CohortMicros()
	}
	return p.Numerics.TrainedMicros()
}

// microsDown is their number in a step.
func (p *Plan) microsDown() int { return p.MicrosDown() * p.Numerics.CohortCount() }

// comesDown reports whether a micro-batch is one of them.
func (p *Plan) comesDown(micro int) bool {
	return p.Numerics.ForwardOnly == 0 || micro%p.Numerics.CohortMicros() < p.MicrosDown()
}

// NumberDown is the number of a micro-batch among them.
func (p *Plan) NumberDown(micro int) int {
	each := p.Numerics.CohortMicros()
	return micro/each*p.MicrosDown() + micro%each
}

// microsOf is the number of micro-batches of a cohort with which a visit of a layer comes, one by one or at once.
func (p *Plan) microsOf(layer int, v *nn.Visit) int {
	if down := v.To == nn.Backward && (layer <= p.blocks() || v.Writes.Has(nn.Grads)); down {
		return p.MicrosDown()
	}
	return p.Numerics.CohortMicros()
}

// keptMicro is the micro-batch in whose memory a block keeps what it does of one.
func (p *Plan) keptMicro(micro int) int {
	if p.comesDown(micro) {
		return micro
	}
	return p.MicrosDown() // the first one that does not
}

// placed is the number of the cells of a row, of an outer one, that have memory: all of them, unless they wait for the
// way down.
func (p *Plan) placed(r *row, outer, inner int) int {
	waits := r.per == perLayerMicro || r.per == perMicro && r.what == InputGrad
	switch down := p.microsDown(); {
	case !waits || down == inner, r.what == Input && r.in == home && p.Model.Begins(outer): // rows of a table
		return inner
	case r.what == Kept && r.in == own:
		return down + 1
	default:
		return down
	}
}

// placedMicro is the micro-batch that has the i-th of those cells.
func (p *Plan) placedMicro(i int) int {
	if down := p.MicrosDown(); i < p.microsDown() {
		return i/down*p.Numerics.CohortMicros() + i%down
	}
	return p.keptMicro(p.Numerics.CohortMicros() - 1)
}

// scatteredBytes is the length of the gradients of the rows that a step looks up in a table.
func (p *Plan) scatteredBytes(l *model.Lookup) int64 {
	return p.rowBytes(l.Cols) * int64(p.microsDown())
}
