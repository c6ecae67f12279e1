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
	if r.layer == b.lowest() && r.to == nn.Backward {
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
		first, micros := b.cohort*b.Numerics.CohortMicros(), b.microsOf(r.layer, &stage[0])
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

// visiting is a visit that is emitted: of a layer in a direction, with one micro-batch, or with all of a cohort, of
// which micro is the first.
type visiting struct {
	leg
	*nn.Visit
	micro, rank int
}

// uses are the operands of what a visit may use, in the order in which values that are needed come, and reversed in
// that in which values leave that were made.
var uses = [...]struct {
	of       nn.Uses
	operands func(b *builder)
}{
	{nn.X, func(b *builder) { b.reads = append(b.reads, b.load(b.at.layer, b.at.micro)) }},
	{nn.Tokens, func(b *builder) { b.reads = append(b.reads, b.tokens(b.at.rank)) }},
	{nn.DX, func(b *builder) { b.use(nn.DX, b.gradientOf(b.at.layer, b.at.micro)) }},
	{nn.HeldRows, (*builder).held},
	{nn.Y, (*builder).output},
	{nn.Sides, (*builder).sides},
	{nn.Outcomes, (*builder).outcome},
	{nn.TokenLosses, (*builder).tokenLosses},
	{nn.LossWeights, (*builder).lossWeights},
	{nn.PickedLogits, (*builder).pickedLogits},
	{nn.PickedGrads, (*builder).pickedGrads},
	{nn.Loss, func(b *builder) { b.writes = append(b.writes, b.result(LossSum, none, b.at.micro)) }},
	{nn.Balancing, (*builder).balances},
	{nn.Drawn, func(b *builder) { b.writes = append(b.writes, b.result(Drawn, none, none)) }},
	{nn.Loads, func(b *builder) { b.writes = append(b.writes, b.result(Loads, b.at.layer, none)) }},
	// Values that are kept are written on the way down as well, where their buffers are reused for gradients.
	{nn.KeptRows, func(b *builder) { b.writes = append(b.writes, b.keep(b.at.layer, b.at.micro)) }},
	{nn.CacheRows, func(b *builder) { b.writes = append(b.writes, b.cache(b.at.layer)) }},
}

// output adds the output of the layer: the input of the next one, or where a chain ends a side.
func (b *builder) output() {
	if layer := b.at.layer; b.Model.Ends(layer) {
		b.writes = append(b.writes, on(b.at.rank, Side, b.Model.ChainOf(layer).Out, b.at.micro))
	} else {
		b.writes = append(b.writes, b.input(b.at.rank, layer+1, b.at.micro))
	}
}

// use adds an operand to what the visit writes, or only reads.
func (b *builder) use(of nn.Uses, o Operand) {
	if b.at.Writes.Has(of) {
		b.writes = append(b.writes, o)
	} else {
		b.reads = append(b.reads, o)
	}
}

// result is a scalar of the step, or several, that a visit writes.
func (b *builder) result(what What, index, micro int) Operand {
	o := on(b.at.rank, what, index, micro)
	if o.At = b.bindable(); what == Loads {
		o.Cohort = b.cohort
	}
	return o
}

// visit emits a visit with one micro-batch, or with all of a cohort, of which m is the first.
func (b *builder) visit(r leg, v *nn.Visit, weights []Operand, m int, later nn.Uses) {
	if v.OnHost && b.Pass.Half == ForUpdates {
		return // the objective is asked once
	}
	b.at = visiting{r, v, m, b.visitRank(r.layer, r.to, v)}
	o := op(LaneCompute, b.at.rank, DoVisit)
	if v.OnHost {
		o = op(LaneUpdate, 0, DoVisit)
	}
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
	b.reads, b.writes = b.reads[:0], b.writes[:0]
	for _, i := range v.Parts {
		b.reads = append(b.reads, weights[i])
		if v.Writes.Has(nn.Grads) && b.Trained(r.parts[i]) {
			b.writes = append(b.writes, b.sum(r.parts[i]))
		}
	}
	used, writes := v.Reads|v.Writes, [len(uses) + 1]int{}
	for i := range uses {
		if writes[i] = len(b.writes); used.Has(uses[i].of) {
			uses[i].operands(b)
		}
	}
	writes[len(uses)] = len(b.writes)
	if !v.OnHost {
		b.writes = append(b.writes, on(b.at.rank, Work, r.layer, none))
	}
	if used.Has(nn.LogitRows) {
		b.logits(o, b.reads, b.writes)
		return
	}
	b.add(o, b.reads, b.writes)
	for i := range slices.Backward(uses[:]) {
		for _, w := range b.writes[writes[i]:writes[i+1]] {
			b.made(w, later)
		}
	}
}

// held adds the rows that the layer has between its visits, of a micro-batch or of a cohort. Those of a dealt head come
// from the visit before.
func (b *builder) held() {
	if b.at.layer > b.blocks() {
		b.toHead()
	}
	last := b.at.micro
	if b.at.Over == nn.WholeStep {
		last += b.Numerics.CohortMicros() - 1
	}
	for micro := b.at.micro; micro <= last; micro++ {
		b.use(nn.HeldRows, on(b.at.rank, Held, b.at.layer, micro))
	}
}

// tokenLosses adds the losses of a micro-batch's positions, or to an objective those of a cohort.
func (b *builder) tokenLosses() {
	if b.at.OnHost {
		b.reads = b.ofCohort(b.reads, TokenLosses)
		return
	}
	b.writes = append(b.writes, b.result(TokenLosses, none, b.at.micro))
}

// lossWeights adds the weights of a micro-batch's positions, which come from the objective, and to that those of a
// cohort.
func (b *builder) lossWeights() {
	if b.at.OnHost {
		b.writes = b.ofCohort(b.writes, LossWeights)
		return
	}
	b.reads = append(b.reads, b.fromHost(LossWeights))
}

// pickedLogits adds the logits of some tokens of a micro-batch, and which tokens these are, or to an objective the
// logits of a cohort.
func (b *builder) pickedLogits() {
	if b.at.OnHost {
		b.reads = b.ofCohort(b.reads, PickedLogits)
		return
	}
	b.reads = append(b.reads, b.fromHost(Picks))
	b.writes = append(b.writes, b.result(PickedLogits, none, b.at.micro))
}

// pickedGrads adds their gradients, which come from the objective, and to that those of a cohort.
func (b *builder) pickedGrads() {
	if b.at.OnHost {
		b.writes = b.ofCohort(b.writes, PickedGrads)
		return
	}
	b.reads = append(b.reads, b.fromHost(Picks), b.fromHost(PickedGrads))
}

// fromHost has a value of a micro-batch on the device of a visit.
func (b *builder) fromHost(what What) Operand {
	o := b.result(what, none, b.at.micro)
	if !b.Bound() {
		b.need(LaneFetch, b.away(o), o)
	}
	return o
}

// ofCohort appends a value of each micro-batch of a cohort as the host has it.
func (b *builder) ofCohort(to []Operand, what What) []Operand {
	for m := range b.Numerics.CohortMicros() {
		o := b.result(what, none, b.at.micro+m)
		if o.Rank = 0; !b.Bound() {
			o.At = Host
		}
		to = append(to, o)
	}
	return to
}

// outcome adds what the block's parts made of a micro-batch's rows.
func (b *builder) outcome() {
	o := on(b.at.rank, Outcome, b.at.layer, b.at.micro)
	switch writes := b.at.Writes.Has(nn.Outcomes); {
	case writes && b.leavesOutcome(b.at.layer-1):
		b.writes = append(b.writes, o)
	case !writes && b.outcomePasses(b.at.layer-1):
		o = b.need(LaneFetch, b.away(o), o)
		fallthrough
	case !writes:
		b.reads = append(b.reads, o)
	}
}

// balances adds the choices that a visit makes, or all of them.
func (b *builder) balances() {
	if b.at.Writes.Has(nn.Balancing) {
		b.writes = append(b.writes, b.balance(b.at.rank, b.balanceRow(b.at.layer)))
	}
	if b.at.Reads.Has(nn.Balancing) {
		b.reads = append(b.reads, b.loadBalance(b.at.rank))
	}
}

// logits emits a visit for each chunk of the wanted rows of a micro-batch, and brings the chunk's logits of the tile to
// the host. Where everything is bound they are computed where the host reads them. Of rows that draw tokens it brings
// these alone, when all have seen the last tile.
func (b *builder) logits(o Op, reads, writes []Operand) {
	draws := b.Outputs.Draws
	for c := range b.logitChunks() {
		to := Operand{What: LogitRows, Index: c, Micro: o.Micro, At: b.bindable(), Rank: o.Rank, Slot: none}
		if draws {
			to.At = Device
		}
		b.add(o, reads, append(slices.Clone(writes), to))
		if to.At == Device && !draws {
			drain := op(LaneDrain, o.Rank, DoMove)
			drain.Part, drain.Micro = o.Part, o.Micro
			home := to
			home.At, home.Rank = Host, 0
			b.add(drain, []Operand{to}, []Operand{home})
		}
	}
	if o.Visit.Writes.Has(nn.Drawn) && !b.Bound() {
		drawn := b.result(Drawn, none, none)
		b.move(LaneDrain, o.Rank, drawn, b.away(drawn))
	}
}
