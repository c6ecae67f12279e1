package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Models that do not rotate heads may learn where a token stands in its document: a table has a row for each position,
// and a block adds these rows to its input. The table is a tensor of the block (of the first one, in models that have
// it), so it is fetched, updated and saved with the block's others, and its gradient is summed where theirs are. The
// sums are computed again in backward, from the block's input.
//
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).

const positions = "positions.weight" // [Block.Positions, Hidden]

// positionFields are the tensor of a block with learned positions.
func (d *Block) positionFields() []tensor.Field {
	if d.Positions == 0 {
		return nil
	}
	return []tensor.Field{param(positions, d.Positions, d.Hidden)}
}

// placed returns what the block computes with: x [T, Hidden], or in a block with learned positions the sum of x and of
// each position's row, which is then in the visit's work.
func (d *Block) placed(p *Pass, x, sum device.Mat) device.Mat {
	if d.Positions == 0 {
		return x
	}
	p.Gather(sum, p.w.named(positions, 1), p.positions, 0)
	p.Add(sum, sum, x)
	return sum
}

// placedGrad adds the gradient of the rows of the micro-batch's positions, given dx, which is that of the sum and of
// x alike.
func (d *Block) placedGrad(p *Pass, dx device.Mat) {
	dw := p.g.named(positions, 1)
	if dw.IsZero() { // it is frozen, or the block does not learn positions
		return
	}
	if p.g.Fresh {
		p.Zero(dw.Mem)
	}
	p.ScatterAdd(dw, dx, p.positions, 0, 1)
}
