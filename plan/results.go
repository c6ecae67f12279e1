package plan

import (
	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
)

// Batch views the arrays of micro-batch m in mem, which holds those of all micro-batches.
func Batch(mem device.Mem, m, positions int) *nn.MicroBatch {
	l, first := batch.LayoutOf(positions), int64(m)*batch.Bytes(positions)
	at := func(offset int64) device.Mem { return mem.Slice(first+offset, l.ArrayBytes) }
	return &nn.MicroBatch{T: positions, IDs: at(l.IDs), Targets: at(l.Targets), Weights: at(l.Weights),
		Docs:   device.Docs{Positions: at(l.Positions), Start: at(l.DocStart), End: at(l.DocEnd)},
		Places: at(l.Targets)} // passes that continue sequences have no targets
}

// The scalars of a step are 8 bytes each: the two that updates tell (device.TallyBytes), the sums of the figures of
// each micro-batch's positions (device.TokenFigures), and the sums of squares of each part, of which the embedding's
// have one for each piece. After them come the loads of experts, and the figures by position. The host has all of them
// twice: what its own lane writes, and what comes from the device; each scalar is zero in one of the two.

// TallyAt is the place of what updates tell.
func (p *Plan) TallyAt() int64 { return 0 }

// LossAt is the place of the sums of the micro-batch's figures, of its losses first.
func (p *Plan) LossAt(m int) int64 { return device.TallyBytes + int64(m)*p.lossSumBytes() }

func (p *Plan) lossSumBytes() int64 { return 8 * device.TokenFigures }

func (p *Plan) SquaresAt(part int) int64 {
	sums := int64(part) // one of each but of those that are looked up
	for _, l := range p.Model.Lookups {
		for _, tile := range l.Tiles {
			if tile < part {
				sums += p.squares(tile) - 1
			}
		}
	}
	return p.LossAt(p.Numerics.MicroBatches) + sums*8
}

// squares is the number of the part's sums of squares.
func (p *Plan) squares(part int) int64 {
	if !p.Model.Parts[part].Kind.LookedUp() {
		return 1
	}
	n := p.PieceElems(part)
	return max((p.Model.Parts[part].Layout.StateElems+n-1)/n, 1)
}

func (p *Plan) ResultBytes() int64 {
	if p.Outputs.LogProbs {
		return p.TokenLossesAt(p.Numerics.MicroBatches)
	}
	return p.LoadsAt(p.blocks(), 0)
}

// LoadsAt is the place of the block's loads in a cohort, of nn.Block.LoadBytes.
func (p *Plan) LoadsAt(block, cohort int) int64 {
	at := p.SquaresAt(len(p.Model.Parts))
	bytes := func(d *nn.Block) int64 { return (d.LoadBytes() + 7) / 8 * 8 }
	for _, d := range p.Model.Blocks[:block] {
		at += int64(p.Numerics.CohortCount()) * bytes(d)
	}
	if cohort > 0 {
		at += int64(cohort) * bytes(p.Model.Blocks[block])
	}
	return at
}

// loadsAt and loadBytes are the place and the length of the loads that an operand names.
func (p *Plan) loadsAt(o *Operand) int64 { return p.LoadsAt(o.Index-1, o.Cohort) }

func (p *Plan) loadBytes(block int) int64 { return p.Model.Blocks[block].LoadBytes() }

// TokenLossesAt is the place of the figures of the micro-batch's positions, F32 [nn.Head.Figures, T], where
// Outputs.LogProbs asks for them.
func (p *Plan) TokenLossesAt(m int) int64 {
	return p.LoadsAt(p.blocks(), 0) + int64(m)*((p.figureBytes()+7)/8*8)
}
