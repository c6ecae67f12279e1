package plan

import (
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// All memory on the device is one allocation. Where is each buffer in it, and how large is the whole?
//
// The obvious answer is a function for the size and another one for the places. The two drift apart with the first change
// that is made to one of them, and the run then dies of memory, or of a buffer on top of another, hours later. So there is
// one function: buffers walks what a plan keeps and takes it from a device.Arena. The planner gives it an arena over no
// memory, which only counts; the engine gives it the allocation. So the engine uses what the planner has counted, to
// the byte.
//
// Three rules keep it small:
//
//   - What is never in use at the same time has the same memory. Blocks are visited one after the other, and so overlay
//     places the values between visits of all blocks at one address; work does the same with the scratch of all visits,
//     forward and backward, and with the head's, which begins when the blocks are done.
//   - Rings have equal slots, each as large as the largest part that passes through it, so that any part fits any slot and
//     the schedule alone says which.
//   - What each micro-batch has comes in a row of equal buffers. A count takes one of them and multiplies (micros), since
//     the search counts plans of thousands of micro-batches.
//
// The order of the groups below is the order of addresses, and the names of the groups are the rows of the memory table
// that people read.

// Buffers are all that a run keeps on the device, placed in one arena. The plan places them in an arena that only
// counts, and the engine in the one allocation that the plan asked for, with this same code.
type Buffers struct {
	Slots  []device.Mem // ring of weight slots
	Own    []device.Mem // by part: weight slot of a resident part
	Grads  []device.Mem // ring of fp32 gradients
	OwnG   []device.Mem // by part: fp32 gradient with a place of its own
	Stages []device.Mem // ring of rounded gradients
	// CohortSums are, by part, the fp32 gradients of cohorts after the first; parts take turns in the same memory.
	CohortSums []device.Mem
	// Narrowed is room for the sum of a cohort in bf16, of one part at a time, where sums are rounded to that.
	Narrowed device.Mem
	// State holds, by part and kind, the state that stays on the device from step to step in addition to the weights:
	// low halves, moments, and the gradient in its stored type.
	State [][store.Kinds]device.Mem
	// StateRing is the same by slot and kind, of parts whose state passes.
	StateRing [][store.Kinds]device.Mem

	Working [2][]device.Mat // by parity of the layer and micro-batch: x [T, H]
	Saved   [][]device.Mat  // by block and micro-batch: x [T, H] where it stays on the device
	DX      []device.Mat    // by micro-batch: gradient of x [T, H]
	Shared  []device.Mat    // instead of Working and DX where these share buffers: [T, H]
	// Sides and their gradients, by side and micro-batch: [T, Side.Cols]. A gradient may be in the value's place.
	Sides, SideGrads [][]device.Mat
	Held             [][]*nn.Held // by block and cohort: of its micro-batches; blocks take turns in the same memory
	Kept             [][]*nn.Kept // by block and micro-batch, or by slot where those of the block wait in host memory
	KeptRing         []device.Mem // by slot: the memory of Kept

	// Outcomes are, by block and micro-batch, what the block's parts made of rows: [T, H]. Blocks whose outcomes pass
	// have them in the same memory.
	Outcomes [][]device.Mat

	Caches    [][]*nn.Cache // by block: its cache, or one for each slot where the cache waits in host memory
	CacheRing []device.Mem  // by slot: the memory of those

	Balance device.Mat // F32 [cohorts of the step * blocks with experts, experts], with a load-balancing loss

	Ending []*nn.Ending // the head's, in scratch, by Plan.HeadBuffer
	// KeptLogits are, by tile of a dealt head that the rank has, logits of micro-batches, which take turns: scratch.
	KeptLogits [][]*nn.HeadWork

	Rope      []*nn.Rope   // by block, shared by those with equal frequencies; nil: no rotation
	Constants []device.Mat // by block: F32 [1, nn.Block.FeedConstants]; the zero Mat for a block without
	Logits    device.Mem   // F32 [a chunk of the wanted rows, rows of a tile]; none where logits are bound
	Batches   device.Mem   // token arrays of the micro-batches, see package batch; none where they are bound
	Results   device.Mem   // see ResultBytes; none where they are bound

	// Work is scratch by direction and block; all share memory with each other and with the head's.
	Work [2][]*nn.Work
}

// Batch views the arrays of micro-batch m in mem, which holds those of all micro-batches.
func Batch(mem device.Mem, m, positions int) *nn.MicroBatch {
	l, first := batch.LayoutOf(positions), int64(m)*batch.Bytes(positions)
	at := func(offset int64) device.Mem { return mem.Slice(first+offset, l.ArrayBytes) }
	return &nn.MicroBatch{T: positions, IDs: at(l.IDs), Targets: at(l.Targets), Weights: at(l.Weights),
		Docs:   device.Docs{Positions: at(l.Positions), Start: at(l.DocStart), End: at(l.DocEnd)},
		Places: at(l.Targets)} // passes that continue sequences have no targets
}

// The scalars of a step are 8 bytes each: the two that updates tell (device.TallyBytes), the loss of each micro-batch,
// and the sums of squares of each part, of which the embedding's have one for each piece. After them come the loads of
// experts, and the losses by position. The host has all of them twice: what its own lane writes, and what comes from
// the device; each scalar is zero in one of the two.

// TallyAt is the place of what updates tell.
func (p *Plan) TallyAt() int64 { return 0 }

// LossAt is the place of the micro-batch's loss.
func (p *Plan) LossAt(m int) int64 { return device.TallyBytes + int64(m)*8 }

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

// TokenLossesAt is the place of the micro-batch's losses by position, F32[T], where Outputs.LogProbs asks for them.
func (p *Plan) TokenLossesAt(m int) int64 {
	return p.LoadsAt(p.blocks(), 0) + int64(m)*((int64(p.Numerics.Positions())*tensor.F32.Bytes()+7)/8*8)
}

// buffers lays out those of a rank. groups, if given, learns the bytes by purpose; the arena then only counts, and what
// each micro-batch has is taken once and counted as often as there are micro-batches.
func (p *Plan) buffers(a *device.Arena, rank int, groups func(purpose string, bytes int64)) *Buffers {
	b := &Buffers{}
	last := a.Mark()
	group := func(purpose string) {
		if groups != nil {
			groups(purpose, a.Mark()-last)
		}
		last = a.Mark()
	}
	// The parts and the blocks that are on the rank, where they stay on one.
	var parts []int
	for part := range p.Model.Parts {
		if p.rankOf(part, nn.Backward) == rank {
			parts = append(parts, part)
		}
	}
	runs := func(block int) bool { return p.RankOf(1+block, nn.Backward) == rank }
	num, t, m := p.Numerics, p.Numerics.Positions(), p.Numerics.MicroBatches
	hidden := p.Model.Hidden
	counts := groups != nil
	micros := func(take func()) {
		mark := a.Mark()
		take()
		if counts {
			a.Again(m-1, mark)
			return
		}
		for range m - 1 {
			take()
		}
	}
	mats := func(dtype tensor.DType, rows, cols int) (all []device.Mat) {
		micros(func() { all = append(all, a.Mat(dtype, rows, cols)) })
		return all
	}
	byPart := func() []device.Mem {
		if counts {
			return nil // a search counts thousands of plans of thousands of parts
		}
		return make([]device.Mem, len(p.Model.Parts))
	}
	take := func(list []device.Mem, part int, bytes int64) {
		if mem := a.Take(bytes); !counts {
			list[part] = mem
		}
	}

	if !p.Bound() {
		var ring int64
		b.Own = byPart()
		for part := range p.Model.Parts {
			if p.streamed(part) {
				ring = max(ring, p.weightBytes(part))
			}
		}
		for range p.Placement.Rings.Weights {
			b.Slots = append(b.Slots, a.Take(ring))
		}
		group("weight slots")
		for _, part := range parts {
			if p.resident(part) {
				take(b.Own, part, p.weightBytes(part))
			}
		}
		group("resident weights")
	}

	// A gradient in fp32 has a place of its own where it collects over several visits (ownGrad); else it passes through the
	// ring. With a split master it is rounded into a stage on its way out.
	var ring, stage int64
	b.OwnG = byPart()
	for _, part := range parts {
		if p.hostOnly(part) || p.GradInExtent(part) || !p.Trained(part) {
			continue
		}
		if p.ownGrad(part) {
			take(b.OwnG, part, p.gradBytes(part))
		} else {
			ring = max(ring, p.gradBytes(part))
		}
		if !p.Tied(part) && !p.StateResident(part) {
			stage = max(stage, p.storedGradBytes(part))
		}
	}
	if ring > 0 {
		for range p.Placement.Rings.Gradients {
			b.Grads = append(b.Grads, a.Take(ring))
		}
	}
	if p.staged() {
		for range p.Placement.Rings.Rounded {
			b.Stages = append(b.Stages, a.Take(stage))
		}
	}
	group("gradients")
	b.CohortSums = byPart()
	p.cohortSums(a, parts, func(part int) { take(b.CohortSums, part, p.gradBytes(part)) })
	var narrowed int64
	for _, part := range parts {
		if p.narrowsHere(part) {
			narrowed = max(narrowed, p.SumBytes(part))
		}
	}
	if narrowed > 0 {
		b.Narrowed = a.Take(narrowed)
	}
	group("gradients of micro-batch groups")
	if !counts {
		b.State = make([][store.Kinds]device.Mem, len(p.Model.Parts))
	}
	for _, part := range parts {
		if !p.StateResident(part) {
			continue
		}
		var state [store.Kinds]device.Mem
		for _, kind := range p.stateKinds() {
			state[kind] = a.Take(p.kindBytes(part, kind))
		}
		if p.staged() {
			state[store.Grad] = a.Take(p.kindBytes(part, store.Grad))
		}
		if counts {
			continue
		}
		if !p.staged() {
			state[store.Grad] = b.OwnG[part] // rounded to the type that it has
		}
		b.State[part] = state
	}
	group("resident state")
	var passing [store.Kinds]int64
	for part := range p.Model.Parts {
		if p.StatePasses(part) {
			for _, kind := range append(p.stateKinds(), store.Grad) {
				passing[kind] = max(passing[kind], p.kindBytes(part, kind))
			}
		}
	}
	if passing[store.Grad] > 0 {
		for range p.Placement.Rings.State {
			var slot [store.Kinds]device.Mem
			for kind, n := range passing {
				if n > 0 {
					slot[kind] = a.Take(n)
				}
			}
			b.StateRing = append(b.StateRing, slot)
		}
	}
	group("state that passes")

	// Rows of x between two blocks: forward writes one set while it reads the other, and backward passes dx down. A ring of
	// one buffer for each micro-batch and a few spare ones can serve all three (inputBuffer says in which order).
	if p.sharesInputs() {
		b.Shared = mats(num.Compute, t, hidden)
		for range p.Placement.Rings.Inputs {
			b.Shared = append(b.Shared, a.Mat(num.Compute, t, hidden))
		}
	} else {
		b.Working = [2][]device.Mat{mats(num.Compute, t, hidden), mats(num.Compute, t, hidden)}
		if p.Trains() {
			b.DX = mats(num.Compute, t, hidden)
		}
	}
	group("layer inputs in use")
	b.Sides, b.SideGrads = make([][]device.Mat, len(p.Model.Sides)), make([][]device.Mat, len(p.Model.Sides))
	for i, side := range p.Model.Sides {
		up, down := p.hasSide(i, rank, nn.Forward), p.Trains() && p.hasSide(i, rank, nn.Backward)
		if up || down {
			b.Sides[i] = mats(num.Compute, t, side.Cols)
		}
		switch {
		case down && p.gradTakesSide(i):
			b.SideGrads[i] = b.Sides[i]
		case down:
			b.SideGrads[i] = mats(num.Compute, t, side.Cols)
		}
	}
	group("values that cross blocks")
	p.overlay(a, counts, betweenVisits, func(a *device.Arena, block int) {
		var held []*nn.Held
		for range num.CohortCount() {
			held = append(held, p.Model.Blocks[block].NewHeld(a, num.Compute, t, num.CohortMicros(), p.Trains()))
		}
		b.Held = append(b.Held, held)
	})
	group("between visits of groups")
	b.Saved = make([][]device.Mat, p.blocks())
	for i := range b.Saved {
		if p.savedOn(rank, 1+i) {
			b.Saved[i] = mats(num.Compute, t, hidden)
		}
	}
	group("saved layer inputs")
	b.Kept = make([][]*nn.Kept, p.blocks())
	var kept int64
	for i := range p.Model.Blocks {
		if p.ActivationsPass(i) {
			kept = max(kept, p.KeptBytes(i))
		}
	}
	if kept > 0 {
		for range p.Placement.Rings.Activations {
			b.KeptRing = append(b.KeptRing, a.Take(kept))
		}
	}
	for i, d := range p.Model.Blocks {
		if p.ActivationsPass(i) {
			for _, slot := range b.KeptRing {
				if counts {
					break // they have been counted
				}
				b.Kept[i] = append(b.Kept[i], d.NewKept(device.NewArena(slot), num.Compute, t, p.Keep(i)))
			}
			continue
		}
		level := p.Keep(i)
		if !runs(i) {
			level = nn.KeepInput // nothing
		}
		if counts {
			if n := p.keptBytes(i, level); n > 0 {
				micros(func() { a.Take(n) })
			}
			continue
		}
		micros(func() { b.Kept[i] = append(b.Kept[i], d.NewKept(a, num.Compute, t, level)) })
	}
	group("kept activations")
	b.Outcomes = make([][]device.Mat, p.blocks())
	var inTurn []device.Mat
	for i := range b.Outcomes {
		switch here := runs(i) || p.RankOf(1+i, nn.Forward) == rank; {
		case !p.leavesOutcome(i) || !here:
		case !p.outcomePasses(i):
			b.Outcomes[i] = mats(num.Compute, t, hidden)
		default:
			if inTurn == nil {
				inTurn = mats(num.Compute, t, hidden)
			}
			b.Outcomes[i] = inTurn
		}
	}
	group("sums of experts")

	p.caches(a, b, rank)
	group("caches")

	if p.Outputs.LogitRows > 0 && !p.Bound() {
		b.Logits = a.Take(int64(min(p.Outputs.LogitRows, num.HeadChunk)) * int64(p.Model.Head.TileRows) * tensor.F32.Bytes())
		group("logits")
	}

	tables := map[nn.RopeFrequencies]*nn.Rope{}
	for i, d := range p.Model.Blocks {
		if counts && p.Model.Like[i] < i {
			continue // it has been counted
		}
		f := d.Rotary()
		if half := f.HeadDim / 2; half > 0 && tables[f] == nil {
			rows := f.Rows(p.LongestDocument())
			tables[f] = &nn.Rope{Cos: a.Mat(tensor.F32, rows, half), Sin: a.Mat(tensor.F32, rows, half)}
		}
		b.Rope = append(b.Rope, tables[f])
	}
	if rows, experts := p.balanced(); rows > 0 {
		b.Balance = a.Mat(tensor.F32, p.Whole.CohortCount()*rows, experts)
	}
	b.Constants = make([]device.Mat, p.blocks())
	for i, d := range p.Model.Blocks {
		if n := d.FeedConstants(); n > 0 {
			b.Constants[i] = a.Mat(tensor.F32, 1, n)
		}
	}
	if !p.Bound() {
		b.Batches = a.Take(int64(m) * batch.Bytes(t))
		b.Results = a.Take(p.ResultBytes())
	}
	group("tables, tokens and results")

	if p.headDealt() && p.hasHead(rank) { // rows come from another rank while this one is at its blocks
		p.endings(a, b, counts)
		group("rows of the head")
	}
	p.work(a, b, rank, counts)
	group("work")
	return b
}

// caches places what blocks keep from pass to pass on the rank that has their forward visits.
func (p *Plan) caches(a *device.Arena, b *Buffers, rank int) {
	var ring int64
	for i := range p.Model.Blocks {
		if p.cacheAt(i) == Host {
			ring = max(ring, p.CacheBytes(i))
		}
	}
	if ring > 0 {
		for range cacheSlots {
			b.CacheRing = append(b.CacheRing, a.Take(ring))
		}
	}
	b.Caches = make([][]*nn.Cache, p.blocks())
	for i, d := range p.Model.Blocks {
		places := []*device.Arena{a}
		switch at := p.cacheAt(i); {
		case at == Absent, p.RankOf(1+i, nn.Forward) != rank:
			places = nil
		case at == Host:
			places = nil
			for _, slot := range b.CacheRing {
				places = append(places, device.NewArena(slot))
			}
		}
		for _, place := range places {
			b.Caches[i] = append(b.Caches[i], d.NewCache(place, p.Numerics.Compute, p.Outputs.Caches))
		}
	}
}

// overlay places what each block has in the same memory, since blocks are visited one after the other. If it only
// counts, what equal blocks take that keep as much is counted once, for all plans of a search.
func (p *Plan) overlay(a *device.Arena, counts bool, what overlaid, place func(a *device.Arena, block int)) {
	first := a.Mark()
	end := first
	for i := range p.Model.Blocks {
		a.Release(first)
		if !counts {
			place(a, i)
		} else if n := p.accounts.overlaid(overlayKey{what, p.Model.Like[i], p.Keep(i), p.cut().Call}, func() int64 {
			alone := device.NewArena(device.Mem{})
			place(alone, i)
			return alone.Mark()
		}); n > 0 {
			a.Take(n)
		}
		end = max(end, a.Mark())
	}
	a.Release(end)
}

// work places the scratch of all visits in the same memory, since visits follow each other in the compute lane. The
// head's rows of micro-batches are scratch too: blocks are done with theirs when the head begins, and begin again when
// it is done.
func (p *Plan) work(a *device.Arena, b *Buffers, rank int, counts bool) {
	first := a.Mark()
	t, cut, compute := p.Numerics.Positions(), p.cut(), p.Numerics.Compute
	p.overlay(a, counts, scratch, func(a *device.Arena, i int) {
		first := a.Mark()
		d, keep := p.Model.Blocks[i], p.Keep(i)
		b.Work[nn.Forward] = append(b.Work[nn.Forward], d.NewForwardWork(a, compute, t, cut, keep))
		end := a.Mark()
		if p.Trains() {
			a.Release(first)
			b.Work[nn.Backward] = append(b.Work[nn.Backward], d.NewBackwardWork(a, compute, t, cut, keep))
		}
		a.Release(max(end, a.Mark()))
	})
	if !p.hasHead(rank) {
		return
	}
	end := a.Mark()
	a.Release(first)
	head := p.Head()
	if !p.headDealt() {
		p.endings(a, b, counts)
	}
	first = a.Mark()
	byTile := head.NewStatsWork(a, compute, t)
	end = max(end, a.Mark())
	var atOnce *nn.HeadWork
	if p.Placement.HeadAtOnce && !p.headDealt() {
		a.Release(first)
		atOnce = head.NewVisitWork(a, compute, t)
		end = max(end, a.Mark())
	}
	for _, e := range b.Ending {
		e.ByTile, e.AtOnce = byTile, atOnce
	}
	if p.Placement.KeptLogits {
		p.keptLogits(a, b, rank)
		end = max(end, a.Mark())
	}
	a.Release(end)
}

// hasHead reports whether a rank has visits of the head.
func (p *Plan) hasHead(rank int) bool {
	return rank == p.RankOf(p.blocks()+1, nn.Backward) || slices.Contains(p.Placement.HeadDeal, rank)
}

// endings places the head's rows of micro-batches.
func (p *Plan) endings(a *device.Arena, b *Buffers, counts bool) {
	first, n := a.Mark(), p.headBuffers()
	for range n {
		b.Ending = append(b.Ending, p.Head().NewEnding(a, p.Numerics.Compute, p.Numerics.Positions(), p.Trains()))
		if counts {
			a.Again(n-1, first)
			break
		}
	}
}

// cut is the rows that operations of blocks take at once.
func (p *Plan) cut() nn.Cut {
	rows := p.Numerics.BlockRows()
	return nn.Cut{Chunk: rows, Call: rows * p.Placement.CallChunks}
}

// HeadBuffer returns the number of the head's buffers for a micro-batch: see headBuffers.
func (p *Plan) HeadBuffer(m int) int { return m % p.headBuffers() }

// headBuffers is the number of sets of buffers of the head that a rank has. All micro-batches share one where each is
// done before the next one comes.
func (p *Plan) headBuffers() int {
	switch {
	case p.headDealt():
		return p.headRing()
	case p.Placement.HeadAtOnce:
		return 1
	}
	return p.Numerics.MicroBatches
}

// Head is the model's head with the run's chunks.
func (p *Plan) Head() *nn.Head {
	h := p.Model.Head
	h.NormTokens = p.Numerics.BlockRows()
	h.ChunkTokens = p.Numerics.HeadChunk
	h.KeepLogits = p.Placement.KeptLogits
	return &h
}

// Bytes is an entry of a memory table.
type Bytes struct {
	Purpose string `json:"purpose"`
	Bytes   int64  `json:"bytes"`
}

// byPurpose lists the entries of all tables, with one for each purpose.
func byPurpose(tables ...[]Bytes) (all []Bytes) {
	for _, e := range slices.Concat(tables...) {
		if i := slices.IndexFunc(all, func(b Bytes) bool { return b.Purpose == e.Purpose }); i >= 0 {
			all[i].Bytes += e.Bytes
		} else {
			all = append(all, e)
		}
	}
	return all
}
