package plan

import (
	"slices"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// Sides cross blocks, and with several devices they pass between these, too: directly or by way of host memory, as x
// does.
//
// On the way up, each other device that reads a side has it once from the one that makes it, before its first visit
// that does. Rows of a table come from the host to the device of the first block.
//
// On the way down, a gradient goes from block to block, as that of x does: each adds its share to what those after it
// have summed. So it is on one device at a time and has the bits of one device. Where it takes the value's place, what
// passes has the gradients of the blocks after, and the values of the blocks before.

// gradTakesSide reports whether the gradient of a side takes the value's place.
func (p *Plan) gradTakesSide(side int) bool { return p.Model.Sides[side].Sliced }

// sideBytes is the length of a side of a micro-batch.
func (p *Plan) sideBytes(side int) int64 { return p.rowBytes(p.Model.Sides[side].Cols) }

// hasSide reports whether visits of a rank in a direction have a side.
func (p *Plan) hasSide(side, rank int, to nn.Direction) bool {
	return slices.ContainsFunc(p.Model.Sides[side].Layers, func(layer int) bool { return p.RankOf(layer, to) == rank })
}

// inChainTo reports whether a rank has visits on the way down of the chain that ends in a side: they have the gradients
// of their inputs where that of the side was.
func (p *Plan) inChainTo(side, rank int) bool {
	return slices.ContainsFunc(p.Model.Chains, func(c model.Chain) bool {
		for layer := c.First; c.Out == side && layer <= c.Last; layer++ {
			if p.RankOf(layer, nn.Backward) == rank {
				return true
			}
		}
		return false
	})
}

// sidePasses reports whether visits of several ranks have a side, which passes between them by way of host memory.
func (p *Plan) sidePasses(side int) bool {
	if p.PeerCopies() {
		return false
	}
	layers := p.Model.Sides[side].Layers
	first := p.RankOf(layers[0], nn.Forward)
	return slices.ContainsFunc(layers, func(layer int) bool {
		return p.RankOf(layer, nn.Forward) != first || p.Trains() && p.RankOf(layer, nn.Backward) != first
	})
}

// sideLeaves reports whether visits of a schedule that read a side are on other ranks than the one that has made it.
func (b *builder) sideLeaves(o Operand) bool {
	down := b.Pass.Steps() && b.comesDown(o.Micro)
	return slices.ContainsFunc(b.Model.Sides[o.Index].Readers, func(layer int) bool {
		return b.RankOf(layer, nn.Forward) != o.Rank ||
			down && layer >= b.lowestTrained() && b.RankOf(layer, nn.Backward) != o.Rank
	})
}

// lookedUp returns the operand to which the host writes the rows of a table that a side begins with, or in which it
// finds their gradient.
func (b *builder) lookedUp(what What, side, m int) Operand {
	o := on(0, what, side, m)
	if !b.Bound() {
		return b.away(o)
	}
	if what == Side {
		b.hold(o)
	}
	return o
}

// sides adds what a visit of a block reads and writes of its sides, which come to its device first.
func (b *builder) sides() {
	r, m := b.at.leg, b.at.micro
	down, changes := r.to == nn.Backward, b.at.Writes.Has(nn.Sides)
	for _, s := range b.Model.Blocks[r.layer-1].Sides() {
		value, grad := on(b.at.rank, Side, s.Number, m), on(b.at.rank, SideGrad, s.Number, m)
		table := b.Model.Sides[s.Number].Lookup != nil
		switch {
		case down && s.Sliced:
			b.loadSideGrad(value, grad)
		case !s.Makes, table && !down:
			b.loadSide(value)
		}
		if down && changes && !s.Sliced {
			b.loadSideGrad(value, grad)
		}
		switch {
		case down && changes && s.Makes:
			b.writes = append(b.writes, grad)
		case down && changes:
			b.reads, b.writes = append(b.reads, value), append(b.writes, grad)
		case !down && s.Makes:
			b.writes = append(b.writes, value)
		case !s.Makes:
			b.reads = append(b.reads, value)
		}
	}
}

// loadSide has a side on a device: rows of a table come to the first block, and else what another device has made.
func (b *builder) loadSide(value Operand) {
	maker := b.Model.Sides[value.Index].Layers[0]
	if !b.down && b.at.layer == maker {
		b.need(LaneFetch, b.away(value), value)
		return
	}
	b.needFrom(on(b.RankOf(maker, nn.Forward), Side, value.Index, value.Micro), b.away(value), value)
}

// loadSideGrad brings the gradient that later blocks have summed to a device, unless it is there. Before the first of
// them a gradient that takes the value's place is the value.
func (b *builder) loadSideGrad(value, grad Operand) {
	summed := &b.summedOn[grad.Index*b.Numerics.MicroBatches+grad.Micro]
	there := on(*summed, SideGrad, grad.Index, grad.Micro)
	*summed = grad.Rank
	switch {
	case there.Rank == none && b.gradTakesSide(grad.Index):
		b.loadSide(value)
	case there.Rank != none && there.Rank != grad.Rank:
		from := b.away(grad)
		if b.PeerCopies() {
			from = there
		}
		b.move(LaneExchange, grad.Rank, from, grad)
	}
}

// drainSides takes gradients to the host, after the last visit of a block that has them: for the device of the next
// block that does, unless it copies them, or for the table.
func (b *builder) drainSides(layer, m int) {
	rank := b.RankOf(layer, nn.Backward)
	for n, side := range b.Model.Sides {
		leaves := false
		switch i := slices.Index(side.Layers, layer); {
		case i > 0:
			next := side.Layers[i-1]
			leaves = !b.PeerCopies() && next >= b.lowestTrained() && b.RankOf(next, nn.Backward) != rank
		case i == 0 && !b.Bound():
			leaves = side.Lookup != nil && slices.ContainsFunc(side.Lookup.Tiles, b.Trained)
		}
		if grad := on(rank, SideGrad, n, m); leaves {
			b.move(LaneDrain, rank, grad, b.away(grad))
		}
	}
}
