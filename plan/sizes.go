package plan

import (
	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// The lengths of cells and the numbers of slots that the table of rows asks for.

// size is the length of a cell.
type size = func(p *Plan, rank, i int) int64

func always(bytes func(*Plan) int64) size { return func(p *Plan, _, _ int) int64 { return bytes(p) } }

// unlessBound is for what a device has where it cannot use that of the host.
func unlessBound(bytes func(*Plan) int64) size {
	return func(p *Plan, _, _ int) int64 {
		if p.Bound() {
			return 0
		}
		return bytes(p)
	}
}

// ifAhead is for steps that look rows up ahead.
func ifAhead(bytes func(*Plan) int64) size {
	return func(p *Plan, _, _ int) int64 {
		if !p.Placement.LookAhead {
			return 0
		}
		return bytes(p)
	}
}

// ifAny is 1 if any block is something, else 0.
func ifAny(is func(p *Plan, block int) bool) func(*Plan) int {
	return func(p *Plan) (n int) {
		for block := 0; block < p.blocks() && n == 0; block++ {
			n = int(when(is(p, block), 1))
		}
		return n
	}
}

// when is a length, or 0.
func when(is bool, bytes int64) int64 {
	if is {
		return bytes
	}
	return 0
}

// Parts.

// isOn reports whether a part is on a rank, where it stays on one: that of all its visits. A model that is frozen as a
// whole has those of the way up alone.
func (p *Plan) isOn(rank, part int) bool {
	if len(p.Placement.Deal) == 0 {
		return true
	}
	to := nn.Backward
	if !p.Trains() {
		to = nn.Forward
	}
	return p.rankOf(part, to) == rank
}

// largest is the most that a part takes.
func (p *Plan) largest(bytes func(part int) int64) (most int64) {
	for part := range p.Model.Parts {
		most = max(most, bytes(part))
	}
	return most
}

func (p *Plan) weightSlots() int {
	if p.Bound() {
		return 0
	}
	return p.Placement.Rings.Weights
}

func (p *Plan) weightSlotBytes(int, int) int64 {
	return p.largest(func(part int) int64 { return when(p.streamed(part), p.weightBytes(part)) })
}

func (p *Plan) residentBytes(rank, part int) int64 {
	return when(p.resident(part) && p.isOn(rank, part), p.weightBytes(part))
}

// sumsOn reports whether visits of a rank sum the gradient of a part in a buffer of the device.
func (p *Plan) sumsOn(rank, part int) bool {
	return p.Trained(part) && !p.hostOnly(part) && !p.GradInExtent(part) && p.isOn(rank, part)
}

// A gradient in fp32 has a place of its own where it collects over several visits (ownGrad); else it passes through the
// ring. With a split master it is rounded into a stage on its way out.
func (p *Plan) ownGradBytes(rank, part int) int64 {
	return when(p.ownGrad(part) && p.sumsOn(rank, part), p.gradBytes(part))
}

func (p *Plan) gradSlotBytes(rank, _ int) int64 {
	return p.largest(func(part int) int64 { return when(!p.ownGrad(part) && p.sumsOn(rank, part), p.gradBytes(part)) })
}

func (p *Plan) stageSlots() int {
	if !p.staged() {
		return 0
	}
	return p.Placement.Rings.Rounded
}

func (p *Plan) stageBytes(rank, _ int) int64 {
	return p.largest(func(part int) int64 {
		return when(!p.Tied(part) && !p.StateResident(part) && p.sumsOn(rank, part), p.storedGradBytes(part))
	})
}

func (p *Plan) narrowedBytes(rank, _ int) int64 {
	if !p.Numerics.NarrowSums() {
		return 0
	}
	return p.largest(func(part int) int64 { return when(p.narrowsHere(part) && p.isOn(rank, part), p.SumBytes(part)) })
}

// stateRoom is the room for the state of a part: each kind begins where an arena would place it.
func (p *Plan) stateRoom(bytes func(store.Kind) int64) (sum int64) {
	for _, kind := range p.stateKinds() {
		sum += arenaBytes(bytes(kind))
	}
	return sum
}

func (p *Plan) residentStateBytes(rank, part int) int64 {
	if !p.StateResident(part) || !p.isOn(rank, part) {
		return 0
	}
	return p.stateRoom(func(kind store.Kind) int64 { return p.kindBytes(part, kind) })
}

func (p *Plan) residentGradBytes(rank, part int) int64 {
	return when(p.StateResident(part) && p.staged() && p.isOn(rank, part), p.storedGradBytes(part))
}

func (p *Plan) stateSlotBytes(int, int) int64 {
	if !p.anyStatePasses() {
		return 0
	}
	most := func(kind store.Kind) int64 {
		return p.largest(func(part int) int64 { return when(p.StatePasses(part), p.kindBytes(part, kind)) })
	}
	return p.stateRoom(most) + most(store.Grad)
}

// storedBytes is the length of all that the store keeps of a part from step to step.
func (p *Plan) storedBytes(part int) int64 { return p.weightBytes(part) + p.stateBytes(part) }

// fetchedStateBytes is the length of the state that comes to the device of a part that is updated there.
func (p *Plan) fetchedStateBytes(part int) int64 {
	return p.stateBytes(part) + when(p.StatePasses(part), p.storedGradBytes(part))
}

// Rows of layers.

// inputBuffers counts the buffers through which layer inputs pass: with spare ones for gradients as well.
func (p *Plan) inputBuffers() int {
	if p.sharesInputs() {
		return p.Numerics.MicroBatches + p.Placement.Rings.Inputs
	}
	return 2 * p.Numerics.MicroBatches // by parity of the layer
}

func (p *Plan) inputGradBytes(int, int) int64 {
	return when(!p.sharesInputs() && p.Trains(), p.widestInput())
}

func (p *Plan) savedHereBytes(rank, block int) int64 {
	return when(p.savedOn(rank, 1+block), p.inputBytes(1+block))
}

func (p *Plan) savedHomeBytes(_, block int) int64 {
	return when(p.SavedOnHost(block), p.inputBytes(1+block))
}

func (p *Plan) passingInputBytes(int, int) int64 { return when(p.rowsPass(), p.widestInput()) }

func (p *Plan) sideHereBytes(rank, side int) int64 {
	return when(p.hasSide(side, rank, nn.Forward) || p.Trains() && p.hasSide(side, rank, nn.Backward), p.sideBytes(side))
}

func (p *Plan) sideGradHereBytes(rank, side int) int64 {
	return when(p.Trains() && !p.gradTakesSide(side) && (p.hasSide(side, rank, nn.Backward) || p.inChainTo(side, rank)),
		p.sideBytes(side))
}

func (p *Plan) sideHomeBytes(_, side int) int64 {
	return when(p.sidePasses(side) || p.Model.Sides[side].Lookup != nil && !p.Bound(), p.sideBytes(side))
}

// sideGradHomeBytes is the size of a gradient with a place of its own: one of rows that are looked up lands where the
// value was.
func (p *Plan) sideGradHomeBytes(_, side int) int64 {
	return when(p.sidePasses(side) && !p.gradTakesSide(side) && p.Trains(), p.sideBytes(side))
}

// What blocks leave.

// heldBytes is the room for what any block has between its visits of one direction.
func (p *Plan) heldBytes(int, int) int64 {
	return p.overlaid(betweenVisits, func(a *device.Arena, block int) {
		p.heldIn(a, device.NewArena(device.Mem{}), block)
	})
}

// heldHomeBytes is the room in host memory for what is away of that.
func (p *Plan) heldHomeBytes(int, int) int64 {
	if p.Placement.HeldAway == nn.AllHere {
		return 0
	}
	return p.overlaid(betweenVisitsAway, func(a *device.Arena, block int) {
		p.heldIn(device.NewArena(device.Mem{}), a, block)
	})
}

// heldIn has what a block holds of each cohort in the memory of a device and of the host.
func (p *Plan) heldIn(here, host *device.Arena, block int) (held []*nn.Held) {
	n, memory := &p.Numerics, nn.HeldMemory{Here: here, Host: host, Away: p.Placement.HeldAway}
	for range n.CohortCount() {
		held = append(held, p.Model.Blocks[block].NewHeldIn(memory, n.Compute, n.Positions(), n.CohortMicros(),
			p.Trains()))
	}
	return held
}

// overlaid is the most that a block takes, of what blocks have in the same memory, since they are visited one after the
// other. Equal blocks that keep as much are asked once, for all plans of a search.
func (p *Plan) overlaid(what overlaid, place func(a *device.Arena, block int)) (most int64) {
	for i := range p.Model.Blocks {
		most = max(most, p.accounts.overlaid(overlayKey{what, p.Model.Like[i], p.Keep(i), p.Placement.HeldAway,
			p.cut().Call}, func() int64 {
			alone := device.NewArena(device.Mem{})
			place(alone, i)
			return alone.Mark()
		}))
	}
	return most
}

func (p *Plan) keptSlotBytes(int, int) (most int64) {
	for block := range p.blocks() {
		if p.ActivationsPass(block) {
			most = max(most, p.KeptBytes(block))
		}
	}
	return most
}

func (p *Plan) keptHereBytes(rank, block int) int64 {
	if p.ActivationsPass(block) || p.RankOf(1+block, nn.Backward) != rank {
		return 0
	}
	return p.KeptBytes(block)
}

func (p *Plan) keptHomeBytes(_, block int) int64 {
	if !p.ActivationsSpill(block) {
		return 0
	}
	return p.KeptBytes(block)
}

// hasOutcome reports whether visits of a rank have what a block's parts made of rows.
func (p *Plan) hasOutcome(rank, block int) bool {
	return p.leavesOutcome(block) && (p.RankOf(1+block, nn.Backward) == rank || p.RankOf(1+block, nn.Forward) == rank)
}

func (p *Plan) outcomeHereBytes(rank, block int) int64 {
	return when(!p.outcomePasses(block) && p.hasOutcome(rank, block), p.inputBytes(1+block))
}

func (p *Plan) passingOutcomeBytes(rank, _ int) (most int64) {
	for block := range p.blocks() {
		if p.outcomePasses(block) && p.hasOutcome(rank, block) {
			most = max(most, p.inputBytes(1+block))
		}
	}
	return most
}

func (p *Plan) outcomeHomeBytes(_, block int) int64 {
	return when(p.outcomePasses(block), p.inputBytes(1+block))
}

func (p *Plan) cacheSlotBytes(int, int) (most int64) {
	for block := range p.blocks() {
		most = max(most, p.cacheHomeBytes(0, block))
	}
	return most
}

func (p *Plan) cacheHereBytes(rank, block int) int64 {
	if at := p.cacheAt(block); at == Absent || at == Host || p.RankOf(1+block, nn.Forward) != rank {
		return 0
	}
	return p.CacheBytes(block)
}

func (p *Plan) cacheHomeBytes(_, block int) int64 {
	if p.cacheAt(block) != Host {
		return 0
	}
	return p.CacheBytes(block)
}

// The head.

func (p *Plan) logitChunkBytes(int, int) int64 {
	rows := min(p.Outputs.LogitRows, p.Numerics.HeadChunk)
	return when(!p.Bound() || p.Outputs.Draws, int64(rows)*int64(p.Model.Head.TileRows)*tensor.F32.Bytes())
}

func (p *Plan) logitBytes() int64 {
	return when(!p.Outputs.Draws, int64(p.Outputs.LogitRows)*int64(p.Model.Vocab)*tensor.F32.Bytes())
}

// drawBytes has a device.TokenDraw for each row that draws a token, and drawnBytes what comes of it.
func (p *Plan) drawBytes() int64 { return p.ofDraws(device.DrawWords) }

func (p *Plan) drawnBytes() int64 { return p.ofDraws(device.DrawnFigures) }

func (p *Plan) ofDraws(each int64) int64 {
	return when(p.Outputs.Draws, 4*each*int64(p.Outputs.LogitRows))
}

// logitBuffers has logits of all micro-batches, and those of a pass that continues sequences once.
func (p *Plan) logitBuffers() int {
	if p.Outputs.Continues() {
		return 1
	}
	return p.Numerics.MicroBatches
}

// dealtEndingBytes is the room for the rows of a micro-batch in a dealt head: they come from another rank while this
// one is at its blocks. Else they are scratch.
func (p *Plan) dealtEndingBytes(rank, _ int) int64 {
	if !p.headDealt() || !p.hasHead(rank) {
		return 0
	}
	a := device.NewArena(device.Mem{})
	p.newEnding(a)
	return a.Mark()
}

func (p *Plan) newEnding(a *device.Arena) *nn.Ending {
	return p.Head().NewEnding(a, p.Numerics.Compute, p.Numerics.Positions(), p.Trains())
}

// workBytes is the room for the scratch of all visits of a rank, which follow each other in the compute lane, and for
// the head's rows: blocks are done with theirs when the head begins, and begin again when it is done.
func (p *Plan) workBytes(rank, _ int) int64 {
	most := p.overlaid(scratch, func(a *device.Arena, block int) { p.newWork(a, block) })
	if p.hasHead(rank) {
		_, bytes := p.headScratch(device.NewArena(device.Mem{}), rank, true)
		most = max(most, bytes)
	}
	return most
}

// Tables, tokens and results.

// rotaryBytes is the room for the tables of a block's frequencies, if it is the first one that has them.
func (p *Plan) rotaryBytes(_, block int) int64 {
	f := p.Model.Blocks[block].Rotary()
	if f.HeadDim < 2 || p.Model.Like[block] < block {
		return 0
	}
	for i, d := range p.Model.Blocks[:block] {
		if p.Model.Like[i] == i && d.Rotary() == f {
			return 0
		}
	}
	n := p.rotaryTableBytes(f)
	return arenaBytes(n) + n
}

// rotaryTableBytes is the length of cosines, and of sines.
func (p *Plan) rotaryTableBytes(f nn.RopeFrequencies) int64 {
	return int64(f.Rows(p.LongestDocument())) * int64(f.HeadDim/2) * tensor.F32.Bytes()
}

func (p *Plan) constantBytes(_, block int) int64 {
	return int64(p.Model.Blocks[block].FeedConstants()) * tensor.F32.Bytes()
}

// tokenBytes is the length of the token arrays of all micro-batches (see Batch), with the draws of rows and the table
// of the blocks of caches after them.
func (p *Plan) tokenBytes() int64 { return p.DrawsAt() + p.drawBytes() + p.cacheTableBytes() }

// cacheTableBytes is the length of the table of the blocks of caches.
func (p *Plan) cacheTableBytes() int64 {
	c := p.Outputs.Caches
	return 4 * int64(c.Sequences) * int64(c.BlocksEach())
}

// CacheTable views the table of the blocks of caches in the memory of the tokens (I32, Caches.BlocksEach for each
// sequence); the zero Mem without blocks.
func (p *Plan) CacheTable(mem device.Mem) device.Mem {
	n := p.cacheTableBytes()
	if n == 0 {
		return device.Mem{}
	}
	return mem.Slice(p.DrawsAt()+p.drawBytes(), n)
}

// DrawsAt is the first byte of the draws of rows in the memory of the tokens: I32 [LogitRows, device.DrawWords].
func (p *Plan) DrawsAt() int64 {
	return int64(p.Numerics.MicroBatches) * batch.Bytes(p.Numerics.Positions())
}

// stepTokenBytes has a number for each position of a step.
func (p *Plan) stepTokenBytes() int64 { return 4 * int64(p.Numerics.StepPositions()) }

func (p *Plan) ofTokensBytes(int, int) int64 {
	return when(p.numbersTokens() || p.Placement.LookAhead, 4*int64(p.Model.Vocab))
}

func (p *Plan) numbersBytes(int, int) int64 { return when(p.numbersTokens(), p.stepTokenBytes()) }

// positionBytes has a number for each position of a micro-batch, figureBytes its figures, and weighedBytes what an
// objective gives it; the objective's the same if there is one.
func (p *Plan) positionBytes() int64 { return 4 * int64(p.Numerics.Positions()) }

func (p *Plan) figureBytes() int64 { return int64(p.Model.Head.Figures()) * p.positionBytes() }

func (p *Plan) weighedBytes() int64 { return int64(p.Head().Weighed()) * p.positionBytes() }

func (p *Plan) objectiveBytes() int64 {
	return when(p.Outputs.Objective && p.Trains(), p.weighedBytes())
}

func (p *Plan) objectiveFigureBytes() int64 {
	return when(p.Outputs.Objective && p.Trains(), p.figureBytes())
}

// ifPicks is 1 where logits of some tokens go to the host, and picksBytes has a number for each of them.
func (p *Plan) ifPicks() int { return min(p.Outputs.TopK, 1) }

func (p *Plan) picksBytes() int64 { return int64(p.Outputs.Picks()) * p.positionBytes() }

func (p *Plan) picksHereBytes(rank, _ int) int64 {
	return when(!p.Bound() && p.hasHead(rank), p.picksBytes())
}

// tokenLists is the number of lists of tokens that occur: in a step, or with several hosts in each of its cohorts.
func (p *Plan) tokenLists() int {
	if p.Cluster.Several() {
		return p.Whole.CohortCount()
	}
	return 1
}

func (p *Plan) occurringBytes(int, int) int64 {
	most := min(p.Numerics.StepPositions(), p.Model.Vocab)
	if p.Cluster.Several() {
		most = p.CohortTokens()
	}
	return when(p.numbersTokens(), 4*int64(most))
}

// The embedding's gradient.

func (p *Plan) tiedSumsBytes(_, part int) int64 {
	if !p.Tied(part) || !p.Bound() {
		return 0
	}
	return int64(p.Numerics.CohortCount()) * p.TiedSumStride(part)
}

// touchedBytes is the room for some of the rows of the step's tokens: a piece, and a row at least.
func (p *Plan) touchedBytes(int, int) int64 {
	return p.largest(func(part int) int64 {
		if !p.SumsTouchedRows(part) && !p.RoundsEarly(part) {
			return 0
		}
		return max(p.sumPieceBytes(part), p.TouchedBytesPerElem()*int64(p.Model.LookupOf(part).Cols))
	})
}

// sumPieceBytes is the length of the sum of a piece of a part.
func (p *Plan) sumPieceBytes(part int) int64 { return min(p.gradBytes(part), 4*p.PieceElems(part)) }

// totalRoom is the room for the sum of the cohorts' gradients: of a piece of the embedding, and with several hosts of
// any part.
func (p *Plan) totalRoom() int64 {
	return p.largest(func(part int) int64 {
		switch {
		case p.Cluster.Several():
			return p.gradBytes(part)
		case p.Numerics.CohortCount() == 1, !p.Model.Parts[part].Kind.LookedUp(), p.SumsTouchedRows(part):
			return 0
		}
		return p.sumPieceBytes(part)
	})
}

// castBytes is the room for elements of a sum while they are rounded: as many bytes as a piece has elements at most,
// 4 MiB, which stay in the caches of cores.
func (p *Plan) castBytes() int64 {
	if !p.Numerics.NarrowSums() {
		return 0
	}
	return min(p.totalRoom(), max(p.Numerics.pieceElems()/tensor.Align, 1)*tensor.Align)
}

// aheadBytes is the room for a kind of the state of rows that are looked up ahead, some at a time.
func (p *Plan) aheadBytes(_, kind int) (most int64) {
	if !p.Placement.LookAhead {
		return 0
	}
	form := p.forms()[kind]
	for i := range p.Model.Lookups {
		l := &p.Model.Lookups[i]
		most = max(most, form.Bytes(int64(p.AheadRows(l)*l.Cols)))
	}
	return store.AlignUp(most)
}

func (p *Plan) tallyBytes() int64 { return device.TallyBytes }
