package plan

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// Arrays holds the matrices that layers have on a rank's device in the memory of cells: many matrices, which layers
// know by themselves.
type Arrays struct {
	Held [][]*nn.Held  // by block and cohort: of its micro-batches; blocks take turns in the same memory
	Work [2][]*nn.Work // by direction and block: all share memory with each other and with the head's

	Ending []*nn.Ending // the head's, by Plan.HeadBuffer
	// KeptLogits are, by tile of a dealt head that the rank has, logits of micro-batches, which take turns: scratch.
	KeptLogits [][]*nn.HeadWork

	Rope      []*nn.Rope   // by block, shared by those with equal frequencies; nil: no rotation
	Constants []device.Mat // by block: F32 [1, nn.Block.FeedConstants]; the zero Mat for a block without
}

// Arrays has those of a rank in the memory of its cells. Memory must have those of the host as well if a placement has
// rows of Held there.
func (m Memory) Arrays(rank int) *Arrays {
	p, arrays := m.plan, &Arrays{}
	tables := map[nn.RopeFrequencies]*nn.Rope{}
	for i, d := range p.Model.Blocks {
		here, host := device.NewArena(m.Here(Held, rank, 0)), device.NewArena(m.Home(HeldRows, 0))
		arrays.Held = append(arrays.Held, p.heldIn(here, host, i))
		forward, backward := p.newWork(device.NewArena(m.Here(Work, rank, 0)), i)
		arrays.Work[nn.Forward] = append(arrays.Work[nn.Forward], forward)
		if backward != nil {
			arrays.Work[nn.Backward] = append(arrays.Work[nn.Backward], backward)
		}
		f := d.Rotary()
		if mem := m.Here(Rotary, rank, 1+i); mem.Len > 0 {
			half, n := f.HeadDim/2, p.rotaryTableBytes(f)
			table := func(off int64) device.Mat {
				return device.NewMat(mem.Slice(off, n), tensor.F32, int(n/(int64(half)*tensor.F32.Bytes())), half)
			}
			tables[f] = &nn.Rope{Cos: table(0), Sin: table(arenaBytes(n))}
		}
		arrays.Rope = append(arrays.Rope, tables[f])
		constants := device.Mat{}
		if mem := m.Here(Constants, rank, 1+i); mem.Len > 0 {
			constants = device.NewVec(mem, tensor.F32, d.FeedConstants())
		}
		arrays.Constants = append(arrays.Constants, constants)
	}
	if !p.hasHead(rank) {
		return arrays
	}
	head, _ := p.headScratch(device.NewArena(m.Here(Work, rank, 0)), rank, false)
	if p.headDealt() {
		for i := range p.headBuffers() {
			head.endings = append(head.endings, p.newEnding(device.NewArena(m.Here(HeadUp, rank, i))))
		}
	}
	for _, e := range head.endings {
		e.ByTile, e.AtOnce = head.byTile, head.atOnce
	}
	arrays.Ending, arrays.KeptLogits = head.endings, head.kept
	return arrays
}

// newWork places the scratch of a block's visits; none of backward where there are no such visits.
func (p *Plan) newWork(a *device.Arena, block int) (forward, backward *nn.Work) {
	first := a.Mark()
	d, keep := p.Model.Blocks[block], p.Keep(block)
	t, cut, compute := p.Numerics.Positions(), p.cut(), p.Numerics.Compute
	forward = d.NewForwardWork(a, compute, t, cut, keep)
	end := a.Mark()
	if p.Trains() {
		a.Release(first)
		backward = d.NewBackwardWork(a, compute, t, cut, keep)
	}
	a.Release(max(end, a.Mark()))
	return forward, backward
}

// headScratch holds the arrays of the head's visits in the scratch of a rank.
type headScratch struct {
	endings        []*nn.Ending // if the head is not dealt
	byTile, atOnce *nn.HeadWork
	kept           [][]*nn.HeadWork
}

// headScratch places it, and returns how much it takes. If it only counts, equal rows of micro-batches are counted
// together.
func (p *Plan) headScratch(a *device.Arena, rank int, counts bool) (s headScratch, end int64) {
	head, compute, t := p.Head(), p.Numerics.Compute, p.Numerics.Positions()
	if !p.headDealt() {
		first, n := a.Mark(), p.headBuffers()
		for range n {
			s.endings = append(s.endings, p.newEnding(a))
			if counts {
				a.Again(n-1, first)
				break
			}
		}
	}
	first := a.Mark()
	s.byTile = head.NewStatsWork(a, compute, t)
	end = a.Mark()
	if p.Placement.HeadAtOnce && !p.headDealt() && !head.Stops {
		a.Release(first)
		s.atOnce = head.NewVisitWork(a, compute, t)
		end = max(end, a.Mark())
	}
	if p.Placement.KeptLogits {
		s.kept = make([][]*nn.HeadWork, len(p.Model.HeadTiles))
		for tile, of := range p.Placement.HeadDeal {
			for range p.headTurns(tile) {
				if of == rank {
					s.kept[tile] = append(s.kept[tile], head.NewKept(a, s.byTile, tile, t))
				}
			}
		}
		end = max(end, a.Mark())
	}
	return s, end
}

// hasHead reports whether a rank has visits of the head.
func (p *Plan) hasHead(rank int) bool {
	return rank == p.RankOf(p.blocks()+1, nn.Backward) || slices.Contains(p.Placement.HeadDeal, rank)
}

// cut is the rows that operations of blocks take at once.
func (p *Plan) cut() nn.Cut {
	rows := p.Numerics.BlockRows()
	return nn.Cut{Chunk: rows, Call: rows * p.Placement.CallChunks}
}

// HeadBuffer returns the number of the head's buffers for a micro-batch: see headBuffers.
func (p *Plan) HeadBuffer(m int) int {
	switch n := p.headBuffers(); {
	case !p.headSharesUp():
		return m % n
	case p.comesDown(m):
		return p.NumberDown(m)
	default:
		return n - 1
	}
}

// headBuffers is the number of sets of buffers of the head that a rank has. All micro-batches share one where each is
// done before the next one comes.
func (p *Plan) headBuffers() int {
	switch {
	case p.headDealt():
		return p.headRing()
	case p.Placement.HeadAtOnce && !p.Outputs.Objective:
		return 1
	case p.headSharesUp():
		return p.microsDown() + 1
	}
	return p.Numerics.MicroBatches
}

// headSharesUp reports whether the micro-batches that only go up share a set of them: each is at its losses before the
// next one comes.
func (p *Plan) headSharesUp() bool {
	return p.Placement.HeadAtOnce && p.Outputs.Objective && p.microsDown() < p.Numerics.MicroBatches
}

// Head is the model's head with the run's chunks.
func (p *Plan) Head() *nn.Head {
	h := p.Model.Head
	h.NormTokens = p.Numerics.BlockRows()
	h.ChunkTokens = p.Numerics.HeadChunk
	h.KeepLogits, h.Stops, h.Picks = p.Placement.KeptLogits, p.Outputs.Objective, p.Outputs.Picks()
	h.Draws, h.Entropies = p.Outputs.Draws, p.Outputs.Entropies
	return &h
}
