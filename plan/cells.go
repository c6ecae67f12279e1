package plan

import "github.com/millrace/millrace/store"

// Cell is the number of a piece of memory of a plan, on a device, in host memory or in the store: operands with the
// same number share it, and others do not.
type Cell int32

// Cells numbers the pieces of memory of a plan, row by row, and in a row rank by rank.
type Cells struct {
	plan  *Plan
	of    [whats][memories]numbered
	count Cell
}

// numbered holds the place of a row's cells among all cells.
type numbered struct {
	first  Cell
	byRank Cell // how many each rank has; 0: they are the host's
	inner  Cell // see row.count
	per    per
}

// Cells numbers the cells of a plan. Schedules for passes of one micro-batch have the numbers of the whole plan.
func (p *Plan) Cells() *Cells {
	c := &Cells{plan: p}
	for i := range rows {
		r := &rows[i]
		outer, inner := r.count(p)
		n, ranks, each := &c.of[r.what][r.in], 1, Cell(outer*inner)
		*n = numbered{first: c.count, inner: Cell(inner), per: r.per}
		if r.in != home && r.in != way {
			n.byRank, ranks = each, p.Ranks()
		}
		c.count += Cell(ranks) * each
	}
	// These share the cells of others.
	for _, same := range [...]struct {
		what What
		in   memory
		as   What
		at   memory
	}{
		{Weights, bound, Stored, home}, {Gradient, bound, Rounded, home}, {Tokens, bound, Tokens, home},
		{LogitRows, bound, LogitRows, home}, {TokenLosses, bound, TokenLosses, home}, {LossWeights, bound, LossWeights, home},
		{Picks, bound, Picks, home}, {PickedLogits, bound, PickedLogits, home}, {PickedGrads, bound, PickedLogits, home},
		{Drawn, bound, Drawn, home}, {PickedGrads, own, PickedLogits, own}, {PickedGrads, home, PickedLogits, home},
		{InputGrad, ring, Input, ring}, {InputGrad, home, Input, home},
		{InputGrad, way, Input, way}, {HeadDown, own, HeadUp, own},
	} {
		c.of[same.what][same.in] = c.of[same.as][same.at]
	}
	return c
}

// count is the number of a row's cells, of a rank or of the host: outer ones, and as many inner ones of each, which are
// alike.
func (r *row) count(p *Plan) (outer, inner int) {
	micros := p.Numerics.MicroBatches
	if r.per != perSlot && r.slots != nil && r.slots(p) == 0 {
		return 0, 0
	}
	switch r.per {
	case perSlot:
		return 1, r.slots(p)
	case perPart:
		return len(p.Model.Parts), 1
	case perLayer:
		return p.blocks() + 2, 1
	case perMicro:
		return 1, micros
	case perLayerMicro:
		return p.blocks() + 2, micros
	case perSideMicro:
		return len(p.Model.Sides), micros
	case perRank:
		return 1, p.Ranks()
	case perKind:
		return store.Kinds, 1
	case perHead:
		return 1, p.headBuffers()
	}
	return 1, 1
}

// find is the cell of an operand of a plan, which may be that of the cells with one micro-batch.
func (c *Cells) find(p *Plan, o *Operand) Cell {
	what, in, index, i := o.What, own, o.Index, 0
	switch {
	case o.At == InPlace:
		in = bound
	case o.At != Device && o.Slot == none:
		in = home
	case o.At != Device:
		in = way
	case o.Slot != none:
		in = ring
	}
	if in == own { // a value may have memory of its own there, or take turns
		switch {
		case what == Input && !(p.savedOn(o.Rank, index) && p.comesDown(o.Micro)): // two working buffers
			n := &c.of[Input][ring]
			return n.first + Cell(o.Rank)*n.byRank + Cell(index%2*c.plan.Numerics.MicroBatches+o.Micro)
		case what == Outcome && p.outcomePasses(index-1):
			in = ring
		case what == Held && index > p.blocks():
			what = HeadUp
		case what == InputGrad && p.Model.ChainOf(index).Out >= 0: // where the gradient of the side was
			what, index = SideGrad, p.Model.ChainOf(index).Out
		}
	}
	if what == SideGrad && p.gradTakesSide(index) {
		what = Side
	}
	micro := o.Micro
	if what == Kept {
		micro = p.keptMicro(micro)
	}
	n := &c.of[what][in]
	switch n.per {
	case perSlot:
		i = o.Slot
	case perPart, perLayer, perRank:
		i = index
	case perMicro:
		i = micro
	case perLayerMicro, perSideMicro:
		i = index*c.plan.Numerics.MicroBatches + micro
	case perHead:
		i = p.HeadBuffer(o.Micro)
	}
	return n.first + Cell(o.Rank)*n.byRank + Cell(i)
}
