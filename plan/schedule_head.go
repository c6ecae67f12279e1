package plan

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
)

// The head is as long as several blocks. On one device, the others get its micro-batches more slowly than they need
// them, and wait.
//
// The obvious answer deals its micro-batches to the devices in turn. Each of them would then hold all of the head, and
// gradients would be summed in another order, or travel with the micro-batches.
//
// Here its tiles are dealt. A tile is about as large as a block, and its visits follow each other as those of blocks
// do: statistics of the logits from the first tile to the last, gradients back to the first. Each tile stays on its
// device with its gradient, which is summed there in the order of micro-batches. What passes between tiles is a
// micro-batch's normed rows and statistics on the way up, and on the way down the statistics of all tiles and the sum
// of the gradients of normed rows, in fp32. So every sum has the order that it has on one device, tile by tile.
//
// A device has visits of both ways at once. The schedule is a row of turns: in each, a device has one micro-batch on
// the way up and, as soon as there are any, an earlier one on the way down. It comes one turn later to a device than
// to the one before.

// headDealt reports whether tiles of the head are on several ranks.
func (p *Plan) headDealt() bool { return len(p.Placement.HeadDeal) > 0 }

// dealtHead is the deal of the head's tiles that the deal of the visits has room for, of one that is asked for. The
// first tile is with the final norm.
func (p *Plan) dealtHead(ask *Placement, bound bool) []int {
	deal := p.Placement.Deal
	if len(deal) == 0 || bound || p.Outputs.Objective || p.Outputs.TopK > 0 || p.Model.Head.Values || !ask.HeadAtOnce ||
		len(ask.HeadDeal) != len(p.Model.HeadTiles) {
		return nil
	}
	tiles, first, last := slices.Clone(ask.HeadDeal), deal[p.blocks()], slices.Max(deal)
	tiles[0] = first
	elsewhere := func(rank int) bool { return rank != first }
	if slices.Min(tiles) < 0 || slices.Max(tiles) > last || !slices.ContainsFunc(tiles, elsewhere) {
		return nil
	}
	return tiles
}

// visitRank is the rank of a visit of a layer in a direction: of the head that of the visit's tile, of the last tile
// for the loss, and of the first one for the final norm.
func (p *Plan) visitRank(layer int, to nn.Direction, v *nn.Visit) int {
	tiles := p.Placement.HeadDeal
	switch {
	case layer <= p.blocks() || len(tiles) == 0:
		return p.RankOf(layer, to)
	case len(v.Parts) == 0:
		return p.lossRank()
	}
	return tiles[max(v.Parts[0]-1, 0)]
}

// lossRank is the rank that computes the losses.
func (p *Plan) lossRank() int {
	if tiles := p.Placement.HeadDeal; len(tiles) > 0 {
		return tiles[len(tiles)-1]
	}
	return p.RankOf(p.blocks()+1, nn.Forward)
}

// turns are, by visit of a stage, how many turns it comes after the first one: as often as the rank has changed.
func (p *Plan) turns(layer int, to nn.Direction, stage nn.Stage) []int {
	all := make([]int, len(stage))
	for i := 1; i < len(stage); i++ {
		all[i] = all[i-1]
		if p.visitRank(layer, to, &stage[i]) != p.visitRank(layer, to, &stage[i-1]) {
			all[i]++
		}
	}
	return all
}

// headHops counts the changes of the rank of a micro-batch on its way up the head's tiles, from one of them on.
func (p *Plan) headHops(tile int) (n int) {
	for i := tile + 1; i < len(p.Placement.HeadDeal); i++ {
		if p.Placement.HeadDeal[i] != p.Placement.HeadDeal[i-1] {
			n++
		}
	}
	return n
}

// headRing is the number of micro-batches whose rows of a dealt head a rank has room for: all that are between their
// first turn and their last one, and one that comes.
func (p *Plan) headRing() int { return min(2*p.headHops(0)+2, p.Numerics.MicroBatches) }

// headTurns is the number of micro-batches of a tile that are between its visit on the way up and that on the way down.
func (p *Plan) headTurns(tile int) int { return min(2*p.headHops(tile)+1, p.Numerics.MicroBatches) }

// headPassing is the number of buffers in host memory for rows of the head on their way up between two ranks, and as
// many are for those on their way down: for each change of ranks, one that fills while another one empties.
func (p *Plan) headPassing() int {
	if p.PeerCopies() {
		return 0
	}
	return 2 * p.headHops(0)
}

func (p *Plan) passingHeadUpBytes(int, int) int64 { return p.headRowsBytes(&Operand{What: HeadUp}) }

func (p *Plan) passingHeadDownBytes(int, int) int64 {
	if !p.Trains() {
		return 0
	}
	return p.headRowsBytes(&Operand{What: HeadDown})
}

// headRowsBytes is the length of what passes of a micro-batch between the head's tiles.
func (p *Plan) headRowsBytes(o *Operand) int64 { return p.headRows(o).Len }

// headRowsAt returns their offset in the rows of a micro-batch that a device has.
func (p *Plan) headRowsAt(o *Operand) int64 {
	if o.At != Device {
		return 0
	}
	return p.headRows(o).Off
}

func (p *Plan) headRows(o *Operand) device.Mem {
	e := p.newEnding(device.NewArena(device.Mem{}))
	if o.What == HeadUp {
		return e.Up()
	}
	return e.Down()
}

// onHead follows a micro-batch through a dealt head.
type onHead struct {
	rank, hops int // how often it has passed
}

// toHead brings the rows of the head of the micro-batch that is visited to the rank of the visit, if the head is dealt.
func (b *builder) toHead() {
	if !b.headDealt() {
		return
	}
	rank, m := b.at.rank, b.at.micro
	head := &b.onHead[m]
	if b.at.Reads.Has(nn.X) && !b.at.Writes.Has(nn.DX) { // the first
		*head = onHead{rank: rank}
	}
	if head.rank == rank {
		return
	}
	rows := on(head.rank, HeadUp, b.blocks()+1, m)
	if b.at.Writes.Has(nn.Grads) {
		rows.What = HeadDown
	}
	to := rows
	to.Rank = rank
	if !b.PeerCopies() {
		home := b.away(rows)
		home.Slot = (2*head.hops + m%2) % b.headPassing()
		b.move(LaneDrain, rows.Rank, rows, home)
		rows = home
	}
	b.move(LaneExchange, rank, rows, to)
	*head = onHead{rank, head.hops + 1}
}

// headRanks is the number of ranks that have visits of the head.
func (p *Plan) headRanks() (n int) {
	for rank := range p.Ranks() {
		if p.hasHead(rank) {
			n++
		}
	}
	return n
}
