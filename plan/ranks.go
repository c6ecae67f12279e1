package plan

import (
	"slices"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// A rank is a device that computes. The visits of a step are dealt to ranks: forward of each block, the head, backward
// of each block. A visit still runs all micro-batches of the step, on its rank, while another rank is at the next visit
// with the micro-batches that are done: the visits go through the devices like a wave. A gradient is summed on one
// rank, in the order of micro-batches, so that no deal changes a bit, and no sum passes between devices.
//
// The obvious answer, rows divided between devices, has each of them fetch every weight, and adds up gradients in
// another order for each number of devices. Here each weight travels over one link for each visit, whichever device has
// it.
//
// What passes between ranks are rows: x on the way up, dx on the way down. The exchange lane of the rank that reads
// them copies them from the device that wrote them, where devices can (device.Peers). Elsewhere that device's drain
// takes them to host memory, from where the exchange lane has them. It is a lane of its own because lanes keep their
// order: in the fetch lane, rows would wait until the weights before them have come.
//
// A deal rules out what one device's lanes share: the ring of layer inputs, and updates of state that passes. What
// stays on a device between the two visits of a block (its input, its weights, its state, kept activations) stays only
// if both visits are dealt to that device.

// visitsOfStep is the number of visits that are dealt.
func (p *Plan) visitsOfStep() int { return 2*p.blocks() + 1 }

// DealBlocks is the deal that has both visits of a block on the same rank, and the head's on that of the last block.
func DealBlocks(ranks []int) (deal []int) {
	if len(ranks) == 0 {
		return nil
	}
	deal = append(slices.Clone(ranks), ranks[len(ranks)-1])
	for _, rank := range slices.Backward(ranks) {
		deal = append(deal, rank)
	}
	return deal
}

// devices is the number of devices that there are: ranks, and others that have nothing to do.
func (p *Plan) devices() int {
	if p.asked == nil {
		return p.Ranks()
	}
	return max(p.Ranks(), p.asked.Devices)
}

// Ranks is the number of ranks.
func (p *Plan) Ranks() int {
	if len(p.Placement.Deal) == 0 {
		return 1
	}
	return 1 + slices.Max(p.Placement.Deal)
}

// RankOf is the rank that computes a layer in a direction: a block, from 1, or the head after them.
func (p *Plan) RankOf(layer int, to nn.Direction) int {
	switch deal := p.Placement.Deal; {
	case len(deal) == 0:
		return 0
	case to == nn.Backward && layer <= p.blocks():
		return deal[len(deal)-layer]
	default:
		return deal[layer-1]
	}
}

// rankOf is the rank of a part in a direction: that of its layer, and of a tile that the head shares with the embedding
// the head's; of a dealt head that of the tile.
func (p *Plan) rankOf(part int, to nn.Direction) int {
	if p.headDealt() {
		if tile := slices.Index(p.Model.HeadTiles, part); tile >= 0 {
			return p.Placement.HeadDeal[tile]
		}
	}
	switch known := &p.Model.Parts[part]; {
	case known.Kind == model.Embed && p.Model.Tied:
		return p.RankOf(p.blocks()+1, to)
	case known.Layer == 0:
		return 0
	default:
		return p.RankOf(known.Layer, to)
	}
}

// together reports whether both visits of a layer, a block or the head, are on one rank.
func (p *Plan) together(layer int) bool {
	return !p.Trains() || p.RankOf(layer, nn.Forward) == p.RankOf(layer, nn.Backward)
}

// crosses reports whether the rows between a layer and the next one pass from one rank to another in a direction. Those
// after the end of a chain are a side, and pass by themselves.
func (p *Plan) crosses(layer int, to nn.Direction) bool {
	return len(p.Placement.Deal) > 0 && layer >= 1 && layer <= p.blocks() && !p.Model.Ends(layer) &&
		p.RankOf(layer, to) != p.RankOf(layer+1, to)
}

// PeerCopies reports whether rows pass between ranks by copies from device to device.
func (p *Plan) PeerCopies() bool { return p.Placement.PeerCopies }

// throughHost reports whether rows that cross take the way through host memory.
func (p *Plan) throughHost(layer int, to nn.Direction) bool {
	return p.crosses(layer, to) && !p.PeerCopies()
}

// rowsPass reports whether rows that cross by way of host memory need buffers of micro-batches there: those do that are
// not saved in host memory.
func (p *Plan) rowsPass() bool {
	for layer := 1; layer <= p.blocks(); layer++ {
		if crosses := p.throughHost(layer, nn.Forward) || p.throughHost(layer, nn.Backward); crosses &&
			(!p.SavedOnHost(layer) || // as the input of the next layer
				p.microsDown() < p.Numerics.MicroBatches || p.Placement.Twice) {
			return true
		}
	}
	return false
}

// dealt is a deal that the model has room for, of one that is asked for. Bound memory stays with one device, and the
// first device has the rows of tables.
func (p *Plan) dealt(asked []int, bound bool) []int {
	if len(asked) != p.visitsOfStep() || slices.Max(asked) == 0 || slices.Min(asked) < 0 {
		return nil
	}
	deal := slices.Clone(asked)
	for b := range p.blocks() {
		if bound && p.Model.Begins(1+b) {
			deal[b] = 0
		}
		if bound || p.keptBytes(b, nn.KeepInput) > 0 { // it leaves something on the device in any case
			deal[len(deal)-1-b] = deal[b]
		}
	}
	if slices.Max(deal) == 0 {
		return nil
	}
	return deal
}
