package plan_test

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
)

// microsDown is the number of micro-batches of a cohort that come down: all of a model with experts, and else those
// that are trained.
func (c *checker) microsDown() int {
	n := c.p.Numerics
	if slices.ContainsFunc(c.m.Parts, func(p model.Part) bool {
		return p.Group > 0 &&
			c.routed(plan.Op{Layer: p.Layer})
	}) {
		return n.MicroBatches / n.CohortCount()
	}
	return n.MicroBatches/n.CohortCount() - n.ForwardOnly
}

// comesDown reports whether a micro-batch is one of them.
func (c *checker) comesDown(m int) bool { return m%c.p.Numerics.CohortMicros() < c.microsDown() }

// endOf is one past the last of them in a cohort.
func (c *checker) endOf(cohort int) int { return cohort*c.p.Numerics.CohortMicros() + c.microsDown() }

// onlyUp refuses an operation of the way down with a micro-batch that only goes up.
func (c *checker) onlyUp(i int) {
	op := c.ops[i]
	if op.Micro < 0 || c.comesDown(op.Micro) {
		return
	}
	down := []string{"head-grad", "head-input", "reopen", "backward", "load-kept", "save-kept", "drain-input",
		"drain-side", "load-side-grad", "load-loss-weights", "load-picked-grads", "pass-input", "load-input"}
	if slices.Contains(down, op.Name()) {
		c.errorf(i, "is of a micro-batch that only goes up")
	}
}

// drawForwardOnly has plans of a step have an objective, or not, and if so some micro-batches of each cohort only go
// up.
func drawForwardOnly(rt *rapid.T, plans ...*plan.Plan) {
	if !rapid.Bool().Draw(rt, "objective") {
		return
	}
	n := rapid.IntRange(0, plans[0].Numerics.CohortMicros()-1).Draw(rt, "forward only")
	k := rapid.IntRange(0, 2).Draw(rt, "top k")
	for _, p := range plans {
		p.Outputs.TopK = k
		p.Outputs.Objective, p.Numerics.ForwardOnly, p.Whole.ForwardOnly = true, n, n
	}
}
