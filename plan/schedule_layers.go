package plan

import (
	"slices"

	"github.com/millrace/millrace/nn"
)

// layer emits the visits of a layer in one direction, with the moves before and after them.
func (b *builder) layer(r leg) {
	b.down = r.to == nn.Backward && r.layer <= b.blocks()
	// A micro-batch has written something when no later stage writes it.
	b.later = slices.Grow(b.later[:0], len(r.stages))[:len(r.stages)]
	later := nn.Uses(0)
	for i, stage := range slices.Backward(r.stages) {
		b.later[i] = later
		for v := range stage {
			later |= stage[v].Writes
		}
	}
	for i, stage := range r.stages {
		b.run(r, stage, b.later[i])
	}
	if b.down {
		b.finishLate(1)
	}
	if r.layer == b.lowestTrained() && r.to == nn.Backward {
		b.finishLate(len(b.late))
	}
}

// run emits a stage: its weights, the visits of each micro-batch, and its gradients to where they are stored.
func (b *builder) run(r leg, stage nn.Stage, later nn.Uses) {
	weights, summed := slices.Grow(b.weightOf[:0], len(r.parts))[:len(r.parts)], b.summed[:0]
	defer func() { b.weightOf, b.summed = weights, summed }()
	for _, i := range partsOf(stage) {
		part := r.parts[i]
		weights[i] = b.weights(part)
		if sums(stage, i) {
			b.clear(part)
			summed = append(summed, part)
		}
	}
	turns := b.turns(r.layer, r.to, stage)
	for b.cohort = range b.Numerics.CohortCount() {
		if b.cohort > 0 {
			for _, part := range summed {
				b.clear(part)
			}
		}
		first, micros := b.cohort*b.Numerics.CohortMicros(), b.Numerics.CohortMicros()
		if stage[0].Over == nn.WholeStep {
			micros = 1
		}
		for turn := range micros + turns[len(stage)-1] {
			for i := range stage {
				if m := turn - turns[i]; m >= 0 && m < micros {
					b.visit(r, &stage[i], weights, first+m, later)
				}
			}
		}
		for _, part := range slices.Backward(summed) {
			b.endCohort(part)
		}
	}
	b.cohort = 0
	if b.Cluster.Several() {
		for _, part := range slices.Backward(summed) {
			if b.Trained(part) && !b.Tied(part) {
				b.addSums(part)
			}
		}
		return
	}
	// Gradients are complete all at once where parts are. Those for which a slot is free are rounded now, less one slot
	// for the last of them. Each of the others is rounded after a block, while the gradients before it drain.
	free := slices.Repeat([]int{b.Placement.Rings.Rounded - 1}, b.ranks)
	for i, part := range slices.Backward(summed) {
		here := &free[b.rank(part)]
		if i == 0 || !b.staged() || b.Tied(part) || b.StateResident(part) || *here > 0 {
			b.finish(part)
			*here--
		} else {
			b.late = append(b.late, part)
		}
	}
}

// sums reports whether a stage sums the gradient of a part, by its number in the layer.
func sums(stage nn.Stage, i int) bool {
	return slices.ContainsFunc(stage, func(v nn.Visit) bool {
		return v.Writes.Has(nn.Grads) && slices.Contains(v.Parts, i)
	})
}

// visit emits a visit with one micro-batch, or with all of a cohort, of which m is the first.
func (b *builder) visit(r leg, v *nn.Visit, weights []Operand, m int, later nn.Uses) {
	rank := b.visitRank(r.layer, r.to, v)
	o := op(LaneCompute, rank, DoVisit)
	o.Visit, o.First = v, v.First
	if v.Over == nn.EachMicro {
		o.Micro = m
	}
	block := r.layer <= b.blocks()
	if block {
		o.Layer = r.layer
	}
	if len(v.Parts) == 1 && (block || v.Parts[0] > 0) {
		o.Part = r.parts[v.Parts[0]]
	}
	reads, writes := b.reads[:0], b.writes[:0]
	defer func() { b.reads, b.writes = reads, writes }()
	for _, i := range v.Parts {
		reads = append(reads, weights[i])
		if v.Writes.Has(nn.Grads) && b.Trained(r.parts[i]) {
			writes = append(writes, b.sum(r.parts[i]))
		}
	}
	uses := v.Reads | v.Writes
	if v.Reads.Has(nn.X) {
		reads = append(reads, b.load(r.layer, m))
	}
	if v.Reads.Has(nn.Tokens) {
		reads = append(reads, b.tokens(rank))
	}
	if v.Reads.Has(nn.DX) && !v.Writes.Has(nn.DX) {
		reads = append(reads, b.gradientOf(r.layer, m))
	}
	if uses.Has(nn.HeldRows) && !block {
		b.toHead(rank, m, v)
	}
	if v.Reads.Has(nn.HeldRows) && !v.Writes.Has(nn.HeldRows) {
		reads = b.held(reads, rank, r.layer, v, m)
	}
	if v.Reads.Has(nn.Outcomes) {
		reads = append(reads, b.loadOutcome(r.layer, m))
	}
	writesOutcome := v.Writes.Has(nn.Outcomes) && b.leavesOutcome(r.layer-1)
	if writesOutcome {
		writes = append(writes, b.outcome(r.layer, m))
	}
	var y Operand
	if v.Writes.Has(nn.Y) {
		y = b.input(rank, r.layer+1, m)
		writes = append(writes, y)
	}
	if v.Writes.Has(nn.DX) {
		writes = append(writes, b.gradientOf(r.layer, m))
	}
	if v.Writes.Has(nn.HeldRows) {
		writes = b.held(writes, rank, r.layer, v, m)
	}
	if uses.Has(nn.Sides) {
		reads, writes = b.sides(reads, writes, r, v, m)
	}
	if v.Writes.Has(nn.Loss) {
		writes = append(writes, Operand{What: LossSum, Index: none, Micro: m, At: b.bindable(), Rank: rank, Slot: none})
	}
	if v.Writes.Has(nn.Balancing) {
		writes = append(writes, b.balance(rank, b.balanceRow(r.layer)))
	}
	if v.Reads.Has(nn.Balancing) {
		reads = append(reads, b.loadBalance(rank))
	}
	if v.Writes.Has(nn.Loads) {
		writes = append(writes, Operand{What: Loads, Index: r.layer, Micro: none, At: b.bindable(), Rank: rank,
			Slot: none, Cohort: b.cohort})
	}
	writes = append(writes, Operand{What: Work, Index: r.layer, Micro: none, At: Device, Rank: rank, Slot: none})
	if uses.Has(nn.LogitRows) {
		b.logits(o, reads, writes)
		return
	}
	kept := Operand{}
	if uses.Has(nn.KeptRows) {
		kept = b.keep(r.layer, m, r.to == nn.Backward)
		writes = append(writes, kept) // also on the way down, where its buffers are reused for gradients
	}
	cache := Operand{}
	if uses.Has(nn.CacheRows) {
		cache = b.cache(r.layer)
		writes = append(writes, cache)
	}
	b.add(o, reads, writes)
	if cache.Slot != none && uses.Has(nn.CacheRows) {
		b.move(LaneDrain, rank, cache, b.cacheHome(r.layer))
	}
	if r.to == nn.Forward && uses.Has(nn.KeptRows) && b.Phase.Steps() && b.ActivationsSpill(r.layer-1) {
		b.move(LaneDrain, rank, kept, Operand{What: Kept, Index: r.layer, Micro: m, At: Host, Slot: none})
	}
	if writesOutcome {
		b.saveOutcome(r.layer, m)
	}
	if r.to != nn.Backward && v.Writes.Has(nn.Sides) {
		b.saveSides(r.layer, m)
	}
	if v.Writes.Has(nn.Y) {
		b.wrote(r.layer+1, m, y)
		if !later.Has(nn.Y) {
			b.saveInput(r.layer+1, m, y)
		}
	}
	if v.Writes.Has(nn.DX) && !later.Has(nn.DX) {
		b.drainInput(r.layer, m)
		b.drainSides(r.layer, m)
	}
}

// held appends the rows that a layer has between its visits, of a micro-batch or of a cohort.
func (b *builder) held(all []Operand, rank, layer int, v *nn.Visit, m int) []Operand {
	last := m
	if v.Over == nn.WholeStep {
		last += b.Numerics.CohortMicros() - 1
	}
	for micro := m; micro <= last; micro++ {
		all = append(all, Operand{What: Held, Index: layer, Micro: micro, At: Device, Rank: rank, Slot: none})
	}
	return all
}

// logits emits a visit for each chunk of the wanted rows of a micro-batch, and brings the chunk's logits of the tile to
// the host. Where everything is bound they are computed where the host reads them.
func (b *builder) logits(o Op, reads, writes []Operand) {
	for c := range b.logitChunks() {
		to := Operand{What: LogitRows, Index: c, Micro: o.Micro, At: b.bindable(), Rank: o.Rank, Slot: none}
		b.add(o, reads, append(slices.Clone(writes), to))
		if to.At == Device {
			drain := op(LaneDrain, o.Rank, DoMove)
			drain.Part, drain.Micro = o.Part, o.Micro
			home := to
			home.At, home.Rank = Host, 0
			b.add(drain, []Operand{to}, []Operand{home})
		}
	}
}
