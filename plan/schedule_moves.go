package plan

import (
	"slices"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
)

// move emits a copy from one place to another.
func (b *builder) move(lane Lane, rank int, from, to Operand) {
	o := op(lane, rank, DoMove)
	o.Layer, o.Micro = to.Index, to.Micro
	b.add(o, []Operand{from}, []Operand{to})
}

// movePart emits a copy of what a part has.
func (b *builder) movePart(lane Lane, part int, from, to []Operand) {
	o := op(lane, b.rank(part), DoMove)
	o.Part = part
	b.add(o, from, to)
}

// of is an operand of a part outside of a device, and one of no part; with memory of its own.
func of(what What, part int, at Place) Operand {
	return Operand{What: what, Index: part, Micro: none, At: at, Slot: none}
}

// here is an operand of a part on its device.
func (b *builder) here(what What, part int, at Place) Operand {
	o := of(what, part, at)
	o.Rank = b.rank(part)
	return o
}

// way is the direction in which the schedule goes.
func (b *builder) way() nn.Direction {
	if b.down {
		return nn.Backward
	}
	return nn.Forward
}

// rank is the device of a part on the way that the schedule goes.
func (b *builder) rank(part int) int { return b.rankOf(part, b.way()) }

// bindable is the place of what a unified device uses in host memory, and other devices in their own.
func (b *builder) bindable() Place {
	if b.Bound() {
		return InPlace
	}
	return Device
}

func (b *builder) tokens(rank int) Operand {
	o := of(Tokens, none, b.bindable())
	o.Rank = rank
	return o
}

// upload brings the tokens of all micro-batches to a device.
func (b *builder) upload(rank int) {
	if !b.Bound() {
		b.add(op(LaneFetch, rank, DoMove), []Operand{of(Tokens, none, Host)}, []Operand{b.tokens(rank)})
	}
}

// lookup looks rows of a table up on the host for micro-batches [first, end), before or after its update; only the rows
// travel. Each micro-batch's come by themselves, since the first layer waits for the first ones; but a table on disk is
// read once.
func (b *builder) lookup(do Do, l *model.Lookup, first, end int) {
	var tables, rows []Operand
	once := false
	for _, p := range l.Tiles {
		tables = append(tables, of(Stored, p, Host))
		if do == DoLookupAhead {
			tables = append(tables, b.storedGradient(p))
		}
		once = once || b.OnDisk(store.ID{Part: p, Kind: store.Weights})
	}
	for m := first; m < end; m++ {
		switch {
		case l.Side >= 0:
			rows = append(rows, b.lookedUp(l.Side, m))
		case b.Bound():
			x := b.input(0, 1, m)
			b.wrote(1, m, x)
			rows = append(rows, x)
		default:
			rows = append(rows, b.home(Input, 1, m))
		}
		if !once {
			o := op(LaneUpdate, 0, do)
			o.Micro = m
			b.add(o, tables, rows)
			rows = rows[:0]
		}
	}
	if once {
		b.add(op(LaneUpdate, 0, do), tables, rows)
	}
}

// prepareScatter does what a table's gradient needs of the host before the rows of the step's tokens are there: it
// clears gradients that consist of these rows alone, and rounds what the head has left in the others.
func (b *builder) prepareScatter(l *model.Lookup) {
	for _, p := range l.Tiles {
		o, reads := op(LaneUpdate, 0, DoClear), []Operand(nil)
		switch {
		case !b.Trained(p):
			continue
		case b.RoundsEarly(p):
			o.Do, reads = DoRound, []Operand{of(Gradient, p, Host)}
		case !b.ClearsEarly(p):
			continue
		}
		o.Part = p
		b.add(o, reads, []Operand{b.storedGradient(p)})
	}
}

// weights makes sure that the part is on the device and returns where a visit finds it.
func (b *builder) weights(part int) Operand {
	r := b.here(Weights, part, b.bindable())
	switch {
	case b.Bound():
		return r
	case b.resident(part):
		if b.onDevice[part] {
			return r
		}
		b.onDevice[part] = true
		state := b.StateResident(part)
		if !(state || b.weightsStay()) || !b.Loaded {
			b.movePart(LaneFetch, part, []Operand{of(Stored, part, Host)}, []Operand{r})
		}
		if state {
			if !b.Loaded {
				b.movePart(LaneFetch, part, []Operand{of(Stored, part, Host)}, []Operand{b.here(State, part, Device)})
			}
			b.updateResident(part)
		}
		return r
	}
	slot, fetch := b.devices[r.Rank].slots.next(part)
	r.Slot = slot
	if fetch {
		b.movePart(LaneFetch, part, []Operand{of(Stored, part, Host)}, []Operand{r})
	}
	if b.updates() && !b.down && b.StatePasses(part) {
		b.updatePassing(r)
	}
	return r
}

// load brings x[layer][m] to the device unless it is there.
func (b *builder) load(layer, m int) Operand {
	rank := b.RankOf(layer, b.way())
	x := b.input(rank, layer, m)
	switch {
	case x.Slot != none:
		if layer > 1 && !b.down {
			return x
		}
	case b.savedOn(rank, layer):
		if b.written[b.cells.find(b.Plan, &x)] > 0 {
			return x
		}
	case b.devices[rank].inX[layer%2][m] == layer:
		return x
	}
	b.wrote(layer, m, x)
	lane, from := LaneFetch, b.home(Input, layer, m)
	if !b.down && b.crosses(layer-1, nn.Forward) {
		if lane, from = LaneExchange, b.betweenDevices(Input, layer, m); b.PeerCopies() {
			from = b.input(b.RankOf(layer-1, nn.Forward), layer, m)
		}
	}
	b.move(lane, rank, from, x)
	return x
}

// wrote notes whose input a working buffer holds.
func (b *builder) wrote(layer, m int, x Operand) {
	if x.Slot == none && !b.savedOn(x.Rank, layer) {
		b.devices[x.Rank].inX[layer%2][m] = layer
	}
}

// input is x[layer][m] on a device.
func (b *builder) input(rank, layer, m int) Operand {
	x := Operand{What: Input, Index: layer, Micro: m, At: Device, Rank: rank, Slot: none}
	if b.sharesInputs() {
		x.Slot = b.inputBuffer(layer, m, b.down)
	}
	return x
}

// gradientOf is dx[m] on the device of a layer whose visit reads or writes it: brought there if the layer above is on
// another one.
func (b *builder) gradientOf(layer, m int) Operand {
	rank := b.RankOf(layer, nn.Backward)
	dx := b.inputGradient(rank, m)
	if b.crosses(layer, nn.Backward) && b.devices[rank].inDX[m] != layer {
		o := op(LaneExchange, rank, DoMove)
		o.Layer, o.Micro = layer, m
		from := b.betweenDevices(InputGrad, layer+1, m)
		if b.PeerCopies() {
			from = b.inputGradient(b.RankOf(layer+1, nn.Backward), m)
		}
		b.add(o, []Operand{from}, []Operand{dx})
	}
	b.devices[rank].inDX[m] = layer
	return dx
}

// inputGradient is dx[m] on a device.
func (b *builder) inputGradient(rank, m int) Operand {
	dx := Operand{What: InputGrad, Index: none, Micro: m, At: Device, Rank: rank, Slot: none}
	if b.sharesInputs() {
		dx.Slot = b.inputGradBuffer(m)
	}
	return dx
}

// home is the operand outside of the device for the input of a layer, or for its gradient.
func (b *builder) home(what What, layer, m int) Operand {
	at := Host
	if b.SavedOnDisk(layer - 1) {
		at = Disk
	}
	return Operand{What: what, Index: layer, Micro: m, At: at, Slot: none}
}

// betweenDevices is the operand in host memory for rows on their way to another device, at the input of a layer: where
// that is saved, or a buffer of the micro-batch.
func (b *builder) betweenDevices(what What, layer, m int) Operand {
	o := Operand{What: what, Index: layer, Micro: m, At: Host, Slot: none}
	if !b.SavedOnHost(layer - 1) {
		o.Slot = m
	}
	return o
}

// saveInput takes the input of a layer to where another device has it from, if that cannot copy it, and to where it
// waits for the backward pass, if it spills. It is complete.
func (b *builder) saveInput(layer, m int, x Operand) {
	var way Operand
	if b.throughHost(layer-1, nn.Forward) {
		way = b.betweenDevices(Input, layer, m)
		b.move(LaneDrain, x.Rank, x, way)
	}
	spills := layer <= b.blocks() && b.Phase.Steps() && !b.savedOnDevice(layer-1) && b.inputSpills(layer-1)
	if home := b.home(Input, layer, m); spills && home != way {
		b.move(LaneDrain, x.Rank, x, home)
	}
}

// keep is the operand for the values that a block's forward leaves for its backward, on the way up or down. A value
// that waits in host memory passes through a ring: a visit gets the slot that was given out longest ago, unless its
// values are still in one.
func (b *builder) keep(layer, m int, down bool) Operand {
	rank := b.RankOf(layer, b.way())
	here := &b.devices[rank]
	kept := Operand{What: Kept, Index: layer, Micro: m, At: Device, Rank: rank, Slot: none}
	if !b.ActivationsPass(layer - 1) {
		return kept
	}
	slot, held := b.keptIn[[2]int{layer, m}]
	if !held {
		slot = len(here.kept)
		if slot >= b.Placement.Rings.Activations {
			slot = here.kept[len(here.kept)-b.Placement.Rings.Activations]
		}
	}
	spills := b.ActivationsSpill(layer - 1)
	if !spills {
		b.keptIn[[2]int{layer, m}] = slot
	}
	here.kept = append(here.kept, slot)
	kept.Slot = slot
	if down && spills {
		b.move(LaneFetch, kept.Rank, Operand{What: Kept, Index: layer, Micro: m, At: Host, Slot: none}, kept)
	}
	return kept
}

// outcome is the operand on the device for what a block's parts made of a micro-batch's rows.
func (b *builder) outcome(layer, m int) Operand {
	return Operand{What: Outcome, Index: layer, Micro: m, At: Device, Rank: b.RankOf(layer, b.way()), Slot: none}
}

// outcomeHome is its place in host memory.
func (b *builder) outcomeHome(layer, m int) Operand {
	return Operand{What: Outcome, Index: layer, Micro: m, At: Host, Slot: none}
}

// saveOutcome takes an outcome that passes to host memory, for the backward visits.
func (b *builder) saveOutcome(layer, m int) {
	if !b.outcomePasses(layer - 1) {
		return
	}
	from := b.outcome(layer, m)
	b.devices[from.Rank].outcomeOf[m] = layer
	if b.Phase.Steps() {
		b.move(LaneDrain, from.Rank, from, b.outcomeHome(layer, m))
	}
}

// loadOutcome brings an outcome to the device unless it is there.
func (b *builder) loadOutcome(layer, m int) Operand {
	to := b.outcome(layer, m)
	if of := b.devices[to.Rank].outcomeOf; b.outcomePasses(layer-1) && of[m] != layer {
		of[m] = layer
		b.move(LaneFetch, to.Rank, b.outcomeHome(layer, m), to)
	}
	return to
}

// cache is the operand for what a block keeps from pass to pass: in a slot of the ring, to which it is brought, if it
// waits in host memory.
func (b *builder) cache(layer int) Operand {
	c := Operand{What: Cache, Index: layer, Micro: none, At: Device, Rank: b.RankOf(layer, nn.Forward), Slot: none}
	if b.cacheAt(layer-1) == Host {
		here := &b.devices[c.Rank]
		c.Slot, here.cache = here.cache, (here.cache+1)%cacheSlots
		b.move(LaneFetch, c.Rank, b.cacheHome(layer), c)
	}
	return c
}

// cacheHome is the place in host memory of what a block keeps from pass to pass.
func (b *builder) cacheHome(layer int) Operand {
	return Operand{What: Cache, Index: layer, Micro: none, At: Host, Slot: none}
}

// clear gives the part an fp32 gradient for a cohort and zeroes it.
func (b *builder) clear(part int) {
	if !b.Trained(part) {
		return
	}
	apart := b.cohort > 0 && b.sumsApart(part)
	if !apart && !b.ownGrad(part) && !b.GradInExtent(part) {
		here := &b.devices[b.rank(part)]
		b.gradOf[part] = here.grad
		here.grad = (here.grad + 1) % b.Placement.Rings.Gradients
	}
	o := op(LaneCompute, b.rank(part), DoClear)
	o.Part = part
	b.add(o, nil, []Operand{b.sum(part)})
}

// gradient is the fp32 gradient of a part: in a slot of the ring, in a place of its own, or where it is stored. That of a
// tied tile that is bound is the sum in host memory to which the embedding adds.
func (b *builder) gradient(part int) Operand {
	g := b.here(Gradient, part, Device)
	switch slot := b.gradOf[part]; {
	case slot != none:
		g.Slot = slot
	case b.GradInExtent(part) && b.Tied(part):
		g.At = Host
	case b.GradInExtent(part):
		g.At = InPlace
	}
	return g
}

// storedGradient is the place of a part's gradient in host memory, in its stored type.
func (b *builder) storedGradient(part int) Operand {
	g := of(Rounded, part, Host)
	if share := b.gradShare(part); share > 0 {
		g.Slot = share
	}
	return g
}

// residentGradient is the gradient, in its stored type, of a part whose state is on the device.
func (b *builder) residentGradient(part int) Operand {
	if b.staged() {
		return b.here(Rounded, part, Device)
	}
	return b.gradient(part)
}

// finish rounds a gradient that has got all its contributions, and takes it to the host. A tied tile is there already,
// unrounded (endCohort).
func (b *builder) finish(part int) {
	if !b.Trained(part) || b.Tied(part) {
		return
	}
	g := b.gradient(part)
	to, drains := g, false
	switch {
	case b.Bound():
		to = b.storedGradient(part)
	case b.StateResident(part):
		to = b.residentGradient(part)
	case b.staged():
		to, drains = b.here(Rounded, part, Device), true
		stage := &b.devices[to.Rank].stage
		to.Slot = *stage
		*stage = (*stage + 1) % b.Placement.Rings.Rounded
	default:
		drains = true
	}
	round := op(LaneCompute, g.Rank, DoRound)
	round.Part = part
	writes := []Operand{b.here(Squares, part, b.bindable())}
	if to != g {
		writes = append(writes, to)
	}
	b.add(round, []Operand{g}, writes)
	if drains {
		b.movePart(LaneDrain, part, []Operand{to}, []Operand{b.storedGradient(part)})
		b.updateNow(part)
	}
}

// finishLate rounds n of the gradients that wait for it, and takes them to the host.
func (b *builder) finishLate(n int) {
	n = min(n, len(b.late))
	for _, part := range b.late[:n] {
		b.finish(part)
	}
	b.late = b.late[n:]
}

// embedTrained reports whether anything needs the gradient of x[1].
func (b *builder) embedTrained() bool { return slices.ContainsFunc(b.Model.EmbedTiles, b.Trained) }

// drainInput takes the gradient of x[layer][m] to the host, where that is on its way: of the first block, as soon as
// there is one, since what follows it ends the step; or of a block whose neighbour below is on another device that
// cannot copy it. It lands where x was: its last reader is done.
func (b *builder) drainInput(layer, m int) {
	first := layer == 1 && !b.Bound() && b.embedTrained()
	if next := layer > b.lowestTrained() && b.throughHost(layer-1, nn.Backward); !first && !next {
		return
	}
	rank := b.RankOf(layer, nn.Backward)
	o := op(LaneDrain, rank, DoMove)
	o.Micro = m
	if layer > 1 {
		o.Layer = layer
	}
	b.add(o, []Operand{b.inputGradient(rank, m)}, []Operand{b.betweenDevices(InputGrad, layer, m)})
}

// scatter adds the gradient of rows that were looked up to the table's.
func (b *builder) scatter(l *model.Lookup) {
	if !slices.ContainsFunc(l.Tiles, b.Trained) {
		return
	}
	var dx []Operand
	for m := range b.Numerics.MicroBatches {
		switch {
		case l.Side >= 0:
			dx = append(dx, b.sideSummed(l.Side, m))
		case b.Bound():
			dx = append(dx, b.inputGradient(0, m))
		default:
			dx = append(dx, b.home(InputGrad, 1, m))
		}
	}
	if b.Cluster.Several() {
		b.scatterSums(l, dx)
		return
	}
	for _, p := range l.Tiles {
		o := op(LaneUpdate, 0, DoScatter)
		o.Part = p
		// Its sum of squares is the host's own: what is collected from the device does not wait for it.
		b.add(o, dx, []Operand{of(Gradient, p, Host), b.storedGradient(p)})
		b.updateNow(p)
	}
}

// collect ends a step: the sums of squares and losses of a device come to the host together. Where results are bound
// they are there.
func (b *builder) collect(rank int) {
	if b.Bound() {
		return
	}
	of := func(what What, index, micro int) Operand {
		return Operand{What: what, Index: index, Micro: micro, At: Device, Rank: rank, Slot: none}
	}
	reads := []Operand{of(Tally, none, none)}
	for part := range b.Model.Parts {
		reads = append(reads, of(Squares, part, none))
	}
	for m := range b.Numerics.MicroBatches {
		reads = append(reads, of(LossSum, none, m))
	}
	for block, d := range b.Model.Blocks {
		if d.Loads() > 0 && b.RankOf(1+block, nn.Forward) == rank {
			reads = append(reads, of(Loads, 1+block, none))
		}
	}
	results := Operand{What: Results, Index: rank, Micro: none, At: Host, Slot: none}
	b.add(op(LaneDrain, rank, DoMove), reads, []Operand{results})
}
