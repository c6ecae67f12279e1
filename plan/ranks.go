package plan

import (
	"slices"

	"github.com/millrace/millrace/model"
)

// A rank is a device that computes. The blocks are dealt to ranks: a visit still runs all micro-batches of the step, on
// the rank of its block, while another rank works on the next block with the micro-batches that are done. A gradient is
// summed on one rank, in the order of micro-batches, so that no deal changes a bit.
//
// Inputs and their gradients pass between ranks by way of host memory. A deal rules out what one device's lanes share:
// state and inputs on disk, with staging memory by lane, the ring of layer inputs, and updates of state that passes.
// The planner deals nothing by itself yet. The simulator counts the bytes and the FLOPs of all ranks, and its seconds hold
// for one.

// Ranks is the number of ranks.
func (p *Plan) Ranks() int {
	if len(p.Placement.Deal) == 0 {
		return 1
	}
	return 1 + slices.Max(p.Placement.Deal)
}

// RankOf is the rank that computes a layer: a block, from 1, or the head after them.
func (p *Plan) RankOf(layer int) int {
	if len(p.Placement.Deal) == 0 {
		return 0
	}
	return p.Placement.Deal[min(layer, p.blocks())-1]
}

// rankOf is the rank of a part: that of its layer, and of a tile that the head shares with the embedding the head's.
func (p *Plan) rankOf(part int) int {
	switch known := &p.Model.Parts[part]; {
	case known.Kind == model.Embed && p.Model.Tied:
		return p.RankOf(p.blocks() + 1)
	case known.Layer == 0:
		return 0
	default:
		return p.RankOf(known.Layer)
	}
}

// crosses reports whether the output of a block (from 1) is the input of a block on another rank.
func (p *Plan) crosses(layer int) bool {
	return len(p.Placement.Deal) > 0 && layer >= 1 && layer < p.blocks() && p.RankOf(layer) != p.RankOf(layer+1)
}

// dealt is a deal that the model has room for, of one that is asked for: none on a unified device, none with a
// load-balancing loss, which sums over blocks, and none with sides, which do not pass between ranks.
func (p *Plan) dealt(asked []int, bound bool) []int {
	if balanced, _ := p.balanced(); balanced > 0 || len(p.Model.Sides) > 0 || bound || len(asked) != p.blocks() ||
		slices.Max(asked) == 0 || slices.Min(asked) < 0 {
		return nil
	}
	return slices.Clone(asked)
}
