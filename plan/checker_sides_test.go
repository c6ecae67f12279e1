package plan_test

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/plan"
)

// sideAt names the memory of a side of a micro-batch on a device, and sideGradAt that of its gradient, which may be the
// same.
func sideAt(side, m int) place { return place{"side", side, m} }

func (c *checker) sideGradAt(side, m int) place {
	if c.m.Sides[side].Sliced {
		return sideAt(side, m)
	}
	return place{"side gradient", side, m}
}

// atHome turns the memory of a side on a device into its place in host memory.
func (p place) atHome() place { return place{"host " + p.what, p.a, p.b} }

// lookedUp names the memory in which the host has a table's rows, and later their gradient.
func (c *checker) lookedUp(side, m int) place {
	if c.bound() {
		return sideAt(side, m)
	}
	return sideAt(side, m).atHome()
}

// readLookedUp reads the gradient of a table's rows, of the embedding or of one that a side begins with.
func (c *checker) readLookedUp(i int, op plan.Op, m int) {
	table := op.Table
	switch side := table.Side; {
	case side >= 0:
		c.read(i, c.lookedUp(side, m), c.sideGradAfter(side, c.m.Sides[side].Layers[0], m))
	case c.bound():
		c.read(i, c.dxAt(op, table.Layer, m), content{"dx", table.Layer, m})
	default:
		c.read(i, c.hostX(table.Layer, m), content{"dx", table.Layer, m})
	}
}

// rowsOf returns the rows of a table for a side, and sideOf the side as a block made it.
func rowsOf(side, m int) content { return content{fmt.Sprintf("rows of side %d", side), m, 0} }
func sideOf(side, m int) content { return content{fmt.Sprintf("side %d", side), m, 0} }

// sideGradAfter is a side's gradient when a layer has added to it: with a maker's own share, if a table comes before.
func (c *checker) sideGradAfter(side, layer, m int) content {
	return content{fmt.Sprintf("gradient of side %d", side), m, layer}
}

// sideGradBefore returns the gradient that a layer finds: none, or the value whose place the gradient takes.
func (c *checker) sideGradBefore(side, layer, m int) (found content, any bool) {
	of := c.m.Sides[side]
	if i := slices.Index(of.Layers, layer); i+1 < len(of.Layers) {
		return c.sideGradAfter(side, of.Layers[i+1], m), true
	}
	return sideOf(side, m), of.Sliced
}

// fromTable reports whether a side comes from the host's table, and not from another device.
func (c *checker) fromTable(i int) bool {
	op := c.ops[i]
	of := c.m.Sides[op.Writes[0].Index]
	return of.Lookup != nil && op.Layer == of.Layers[0] && !c.down(i)
}

// forwardSides reads and makes the sides of a block.
func (c *checker) forwardSides(i int, op plan.Op) {
	for _, s := range c.m.Blocks[op.Layer-1].Sides() {
		at := sideAt(s.Number, op.Micro)
		switch of := c.m.Sides[s.Number]; {
		case s.Makes:
			c.write(i, at, sideOf(s.Number, op.Micro))
		case of.Lookup != nil && op.Layer == of.Layers[0]:
			c.read(i, at, rowsOf(s.Number, op.Micro))
		default:
			c.read(i, at, sideOf(s.Number, op.Micro))
		}
	}
}

// backwardSides reads the sides of a block and adds to their gradients, if the visit does. Where a block both reads and
// makes a side, the maker comes last.
func (c *checker) backwardSides(i int, op plan.Op, adds bool) {
	for _, s := range c.m.Blocks[op.Layer-1].Sides() {
		n, m := s.Number, op.Micro
		before, any := c.sideGradBefore(n, op.Layer, m)
		after := c.sideGradAfter(n, op.Layer, m)
		switch {
		case s.Sliced && s.Makes && adds:
			c.read(i, c.sideGradAt(n, m), after) // the block's own share is in it
		case s.Sliced && !s.Makes:
			c.read(i, c.sideGradAt(n, m), before)
		case !s.Makes:
			c.read(i, sideAt(n, m), sideOf(n, m))
			fallthrough
		case adds && !s.Sliced:
			if adds && any {
				c.read(i, c.sideGradAt(n, m), before)
			}
		}
		if adds {
			c.write(i, c.sideGradAt(n, m), after)
		}
	}
}

// moveSide moves a side or its gradient between a device and host memory.
func (c *checker) moveSide(i int, op plan.Op) {
	n, m := op.Writes[0].Index, op.Micro
	from, to, what := sideAt(n, m), sideAt(n, m), sideOf(n, m)
	switch op.Name() {
	case "load-side":
		if from = from.atHome(); c.fromTable(i) {
			what = rowsOf(n, m)
		}
	case "save-side":
		to = to.atHome()
	case "load-side-grad":
		from, to = c.sideGradAt(n, m).atHome(), c.sideGradAt(n, m)
		what, _ = c.sideGradBefore(n, op.Layer, m)
	case "drain-side":
		from, to = c.sideGradAt(n, m), c.sideGradAt(n, m).atHome()
		what = c.sideGradAfter(n, op.Layer, m)
	}
	c.read(i, from, what)
	c.write(i, to, what)
}
