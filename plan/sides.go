package plan

import (
	"slices"

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

// sideLeaves reports whether visits of a schedule that read a side are on other ranks than a given one.
func (b *builder) sideLeaves(side, rank int) bool {
	return slices.ContainsFunc(b.Model.Sides[side].Readers, func(layer int) bool {
		return b.RankOf(layer, nn.Forward) != rank ||
			b.Phase.Steps() && layer >= b.lowestTrained() && b.RankOf(layer, nn.Backward) != rank
	})
}

// sidesOn says, of each side and micro-batch, on which devices it is.
type sidesOn struct {
	value map[[3]int]bool // by side, micro-batch and rank
	grad  map[[2]int]int  // by side and micro-batch: the rank, if anything has been summed
}

// side is a side of a micro-batch, or its gradient, on a device.
func (b *builder) side(what What, side, m, rank int) Operand {
	return Operand{What: what, Index: side, Micro: m, At: Device, Rank: rank, Slot: none}
}

// sideHome is its place in host memory.
func (b *builder) sideHome(what What, side, m int) Operand {
	return Operand{What: what, Index: side, Micro: m, At: Host, Slot: none}
}

// lookedUp returns the operand to which the host writes the rows of a table that a side begins with.
func (b *builder) lookedUp(side, m int) Operand {
	if b.Bound() {
		b.sidesOn.value[[3]int{side, m, 0}] = true
		return b.side(Side, side, m, 0)
	}
	return b.sideHome(Side, side, m)
}

// sideSummed returns the operand in which the host finds the gradient of those rows.
func (b *builder) sideSummed(side, m int) Operand {
	if b.Bound() {
		return b.side(SideGrad, side, m, 0)
	}
	return b.sideHome(SideGrad, side, m)
}

// sides appends what a visit of a block reads and writes of its sides, which come to its device first.
func (b *builder) sides(reads, writes []Operand, r leg, v *nn.Visit, m int) ([]Operand, []Operand) {
	rank := b.RankOf(r.layer, r.to)
	for _, s := range b.Model.Blocks[r.layer-1].Sides() {
		value, grad := b.side(Side, s.Number, m, rank), b.side(SideGrad, s.Number, m, rank)
		table := b.Model.Sides[s.Number].Lookup != nil
		down, changes := r.to == nn.Backward, v.Writes.Has(nn.Sides)
		switch {
		case down && s.Sliced:
			b.loadSideGrad(value, grad, r.layer)
		case !s.Makes, table && !down:
			b.loadSide(value, r.layer)
		}
		if down && changes && !s.Sliced {
			b.loadSideGrad(value, grad, r.layer)
		}
		switch {
		case down && changes && s.Makes:
			writes = append(writes, grad)
		case down && changes:
			reads, writes = append(reads, value), append(writes, grad)
		case !down && s.Makes:
			writes = append(writes, value)
			b.sidesOn.value[[3]int{s.Number, m, rank}] = true
		case !s.Makes:
			reads = append(reads, value)
		}
	}
	return reads, writes
}

// loadSide brings a side to a device, unless it is there: rows of a table to the first block, and else what another
// device has made.
func (b *builder) loadSide(value Operand, layer int) {
	at := [3]int{value.Index, value.Micro, value.Rank}
	if b.sidesOn.value[at] {
		return
	}
	b.sidesOn.value[at] = true
	lane, from := LaneExchange, b.sideHome(Side, value.Index, value.Micro)
	switch maker := b.Model.Sides[value.Index].Layers[0]; {
	case !b.down && layer == maker:
		lane = LaneFetch
	case b.PeerCopies():
		from = b.side(Side, value.Index, value.Micro, b.RankOf(maker, nn.Forward))
	}
	b.moveSide(lane, layer, from, value)
}

// loadSideGrad brings the gradient that later blocks have summed to a device, unless it is there. Before the first of
// them a gradient that takes the value's place is the value.
func (b *builder) loadSideGrad(value, grad Operand, layer int) {
	at := [2]int{grad.Index, grad.Micro}
	rank, begun := b.sidesOn.grad[at]
	b.sidesOn.grad[at] = grad.Rank
	switch {
	case begun && rank != grad.Rank:
		from := b.sideHome(SideGrad, grad.Index, grad.Micro)
		if b.PeerCopies() {
			from = b.side(SideGrad, grad.Index, grad.Micro, rank)
		}
		b.moveSide(LaneExchange, layer, from, grad)
	case !begun && b.gradTakesSide(grad.Index):
		b.loadSide(value, layer)
	}
}

// saveSides takes what a block makes to the host, if visits on other devices read it and cannot copy it.
func (b *builder) saveSides(layer, m int) {
	rank := b.RankOf(layer, nn.Forward)
	for _, s := range b.Model.Blocks[layer-1].Sides() {
		if s.Makes && !b.PeerCopies() && b.sideLeaves(s.Number, rank) {
			b.moveSide(LaneDrain, layer, b.side(Side, s.Number, m, rank), b.sideHome(Side, s.Number, m))
		}
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
		if leaves {
			b.moveSide(LaneDrain, layer, b.side(SideGrad, n, m, rank), b.sideHome(SideGrad, n, m))
		}
	}
}

func (b *builder) moveSide(lane Lane, layer int, from, to Operand) {
	rank := to.Rank
	if to.At == Host {
		rank = from.Rank
	}
	o := op(lane, rank, DoMove)
	o.Layer, o.Micro = layer, to.Micro
	b.add(o, []Operand{from}, []Operand{to})
}
