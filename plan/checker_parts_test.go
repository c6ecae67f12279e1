package plan_test

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// groups is the number of groups of an operation's block.
func (c *checker) groups(op plan.Op) int { return len(c.m.GroupParts[op.Layer-1]) }

// routed reports whether its groups are of experts, which see all micro-batches at once.
func (c *checker) routed(op plan.Op) bool {
	_, routed := c.m.Blocks[op.Layer-1].FeedForward.(nn.Routed)
	return routed
}

// micros are the micro-batches that an operation sees: one, or those of a cohort.
func (c *checker) micros(op plan.Op) (all []int) {
	if op.Micro >= 0 {
		return []int{op.Micro}
	}
	for _, o := range slices.Concat(op.Reads, op.Writes) {
		if o.What == plan.Held && !slices.Contains(all, o.Micro) {
			all = append(all, o.Micro)
		}
	}
	if n := c.p.Numerics.CohortMicros(); len(all) != n || all[0]%n != 0 {
		c.errs = append(c.errs, fmt.Sprintf("%v sees the micro-batches %v, and a cohort has %d", op, all, n))
	}
	return all
}

// sumAfter is the content of x[l+1] when some of the block's groups have added to it. normedAfter and gradientAfter are
// the content of what is between visits on the way up and down.
func (c *checker) sumAfter(op plan.Op, groups int) content {
	switch {
	case groups == c.groups(op) && c.m.Ends(op.Layer):
		return sideOf(c.m.ChainOf(op.Layer).Out, op.Micro)
	case groups == c.groups(op):
		return content{"x", op.Layer + 1, op.Micro}
	}
	return content{fmt.Sprintf("x after %d groups", groups), op.Layer + 1, op.Micro}
}

func (c *checker) normedAfter(op plan.Op, m, groups int) content {
	if !c.routed(op) {
		groups = 0 // they add to x
	}
	return content{fmt.Sprintf("normed after %d groups", groups), op.Layer, m}
}

func (c *checker) gradientAfter(op plan.Op, m, groups int) content {
	return content{fmt.Sprintf("gradient after %d groups", groups), op.Layer, m}
}

func (c *checker) forwardGroup(i int, op plan.Op) {
	group := c.m.Parts[op.Part].Group - 1
	c.read(i, c.weightsAt(op.Part, slotOf(op, plan.Weights)), fresh(op.Part))
	for _, m := range c.micros(op) {
		c.read(i, place{"between", m, 0}, c.normedAfter(op, m, group))
		if c.routed(op) {
			c.write(i, place{"between", m, 0}, c.normedAfter(op, m, group+1))
		}
	}
	if !c.routed(op) {
		x := c.yAt(op)
		c.read(i, x, c.sumAfter(op, group))
		c.write(i, x, c.sumAfter(op, group+1))
	}
	if group == 0 && slices.Contains(c.balanced(), op.Layer) {
		n := c.p.Numerics
		cohort := c.p.Cluster.Host*n.CohortCount() + c.micros(op)[0]/n.CohortMicros()
		c.write(i, place{"balance", op.Layer, cohort}, choices(op.Layer, cohort))
		own := func(w plan.Operand) bool { return w.What == plan.Balance && w.Cohort == cohort }
		if !slices.ContainsFunc(op.Writes, own) {
			c.errorf(i, "leaves no counts of cohort %d", cohort)
		}
	}
}

// balanced are the layers that share a load-balancing loss.
func (c *checker) balanced() (layers []int) {
	for l, d := range c.m.Blocks {
		if d.Balanced() != 0 {
			layers = append(layers, 1+l)
		}
	}
	return layers
}

// choices returns the content of a row that counts how often a cohort chose the experts of a layer.
func choices(layer, cohort int) content { return content{"choices", layer, cohort} }

// eachChoice calls do for what a load-balancing loss needs.
func (c *checker) eachChoice(do func(layer, cohort int)) {
	for _, layer := range c.balanced() {
		for cohort := range c.p.Whole.CohortCount() {
			do(layer, cohort)
		}
	}
}

// combine adds what experts made of a micro-batch's rows to x[l+1].
func (c *checker) combine(i int, op plan.Op) {
	n, x := c.groups(op), c.yAt(op)
	c.read(i, place{"between", op.Micro, 0}, c.normedAfter(op, op.Micro, n))
	c.read(i, x, c.sumAfter(op, 0))
	c.write(i, x, c.sumAfter(op, n))
	if c.leavesOutcome(op) {
		c.write(i, c.outcomeAt(op), content{"outcome", op.Layer, op.Micro})
	}
}

func (c *checker) backwardGroup(i int, op plan.Op) {
	done := c.groups(op) - c.m.Parts[op.Part].Group // groups come from the last one to the first
	if c.routed(op) {
		done = c.m.Parts[op.Part].Group - 1 // and those of experts from the first one to the last
	}
	if op.First != (done == 0) {
		c.errorf(i, "begins the gradient of what groups read, wrongly")
	}
	c.read(i, c.weightsAt(op.Part, slotOf(op, plan.Weights)), fresh(op.Part))
	for _, m := range c.micros(op) {
		if !c.routed(op) {
			c.read(i, c.dxAt(op, op.Layer, m), c.gradientAbove(op, m))
		}
		c.read(i, place{"between", m, 0}, c.gradientAfter(op, m, done))
		c.write(i, place{"between", m, 0}, c.gradientAfter(op, m, done+1))
	}
	if op.First && slices.Contains(c.balanced(), op.Layer) {
		c.eachChoice(func(layer, cohort int) { c.read(i, place{"balance", layer, cohort}, choices(layer, cohort)) })
	}
	c.contribute(i, op, op.Part)
}

// leavesOutcome reports whether backward needs what experts made of rows.
func (c *checker) leavesOutcome(op plan.Op) bool {
	return c.m.Blocks[op.Layer-1].LeavesOutcome() && c.p.Placement.Where.Inputs[op.Layer-1] != plan.Absent
}

// outcomeAt returns the place of that on the device: it stays there where the block's input does.
func (c *checker) outcomeAt(op plan.Op) place {
	if at := c.p.Placement.Where.Inputs[op.Layer-1]; at == plan.Device || at == plan.InPlace {
		return place{"outcome", op.Layer, op.Micro}
	}
	return place{"passing outcome", op.Micro, 0}
}

func (c *checker) readOutcome(i int, op plan.Op) {
	if c.leavesOutcome(op) {
		c.read(i, c.outcomeAt(op), content{"outcome", op.Layer, op.Micro})
	}
}
