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
	if o.Layer, o.Micro = to.Index, to.Micro; to.What == Side || to.What == SideGrad {
		o.Layer = b.at.layer
	}
	b.add(o, []Operand{from}, []Operand{to})
}

// content names a value: whatever it is of.
type content struct {
	what         What
	index, micro int32
}

func (o *Operand) content() content { return content{o.What, int32(o.Index), int32(o.Micro)} }

// has reports whether a value is in its cell on a device, where others take turns with it.
func (b *builder) has(o Operand) bool { return b.holds[b.cells.find(b.Plan, &o)] == o.content() }

// hold notes that a value is in its cell.
func (b *builder) hold(o Operand) { b.holds[b.cells.find(b.Plan, &o)] = o.content() }

// need has a value on a device: it is brought from elsewhere, unless it is there.
func (b *builder) need(lane Lane, from, to Operand) Operand {
	if !b.has(to) {
		b.hold(to)
		b.move(lane, to.Rank, from, to)
	}
	return to
}

// needFrom is need of a value that another device has: it is copied from there, or comes by way of host memory.
func (b *builder) needFrom(there, away, to Operand) Operand {
	if b.PeerCopies() {
		away = there
	}
	return b.need(LaneExchange, away, to)
}

// on is a value on a device, with memory of its own there.
func on(rank int, what What, index, micro int) Operand {
	return Operand{What: what, Index: index, Micro: micro, At: Device, Rank: rank, Slot: none}
}

// away is the same value outside of devices, where it waits.
func (b *builder) away(o Operand) Operand {
	o.At, o.Rank, o.Slot = Host, 0, none
	if (o.What == Input || o.What == InputGrad) && b.SavedOnDisk(o.Index-1) {
		o.At = Disk
	}
	return o
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
			rows = append(rows, b.lookedUp(Side, l.Side, m))
		case b.Bound():
			x := b.input(0, l.Layer, m)
			b.hold(x)
			rows = append(rows, x)
		default:
			rows = append(rows, b.away(on(0, Input, l.Layer, m)))
		}
		if !once {
			o := op(LaneUpdate, 0, do)
			o.Micro, o.Table = m, l
			b.add(o, tables, rows)
			rows = rows[:0]
		}
	}
	if once {
		o := op(LaneUpdate, 0, do)
		o.Table = l
		b.add(o, tables, rows)
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
	case b.has(r):
		return r
	case b.resident(part):
		b.hold(r)
		state := b.StateResident(part)
		if b.Pass.Half != ForUpdates && !((state || b.weightsStay()) && b.Loaded) && !b.Again {
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

// load has x[layer][m] on the device that reads it.
func (b *builder) load(layer, m int) Operand {
	x := b.input(b.RankOf(layer, b.way()), layer, m)
	if !b.down && b.crosses(layer-1, nn.Forward) && !b.beginsAgain(layer) {
		return b.needFrom(b.input(b.RankOf(layer-1, nn.Forward), layer, m), b.betweenDevices(x), x)
	}
	if b.down && x.Slot != none {
		b.holds[b.cells.find(b.Plan, &x)] = content{} // it is brought for each visit
	}
	return b.need(LaneFetch, b.away(x), x)
}

// input is x[layer][m] on a device.
func (b *builder) input(rank, layer, m int) Operand {
	x := on(rank, Input, layer, m)
	if b.sharesInputs() {
		x.Slot = b.inputBuffer(layer, m, b.down)
	}
	return x
}

// gradientOf is the gradient of x[layer][m], or before the last visit of the layer that of what comes out of it, on the
// device of the layer: brought there if the layer above is on another one.
func (b *builder) gradientOf(layer, m int) Operand {
	dx := b.inputGradient(b.RankOf(layer, nn.Backward), layer, m)
	switch out := b.Model.ChainOf(layer).Out; {
	case b.Model.Ends(layer):
		if !b.has(dx) { // it begins with what readers have left in the same memory
			b.loadSideGrad(on(dx.Rank, Side, out, m), on(dx.Rank, SideGrad, out, m))
		}
	case b.crosses(layer, nn.Backward):
		above := b.inputGradient(b.RankOf(layer+1, nn.Backward), layer+1, m)
		b.needFrom(above, b.betweenDevices(above), dx)
	}
	b.hold(dx)
	return dx
}

// inputGradient is dx[m] on a device.
func (b *builder) inputGradient(rank, layer, m int) Operand {
	dx := on(rank, InputGrad, layer, m)
	if b.sharesInputs() && b.Model.ChainOf(layer).Out < 0 {
		dx.Slot = b.inputGradBuffer(m)
	}
	return dx
}

// betweenDevices are rows in host memory on their way to another device, at the input of a layer: where that is saved,
// or in a buffer of the micro-batch.
func (b *builder) betweenDevices(rows Operand) Operand {
	rows.At, rows.Rank, rows.Slot = Host, 0, none
	again := b.Placement.Twice && rows.What == InputGrad && !b.Model.Begins(rows.Index) // what is saved is read again
	if !b.SavedOnHost(rows.Index-1) || !b.comesDown(rows.Micro) || again {
		rows.Slot = rows.Micro
	}
	return rows
}

// saveInput takes the input of a layer to where another device has it from, if that cannot copy it, and to where it
// waits for the backward pass, if it spills. It is complete.
func (b *builder) saveInput(x Operand) {
	layer, way := x.Index, Operand{}
	if b.throughHost(layer-1, nn.Forward) {
		way = b.betweenDevices(x)
		b.move(LaneDrain, x.Rank, x, way)
	}
	spills := layer <= b.blocks() && b.Pass.Steps() && b.comesDown(x.Micro) && !b.savedOnDevice(layer-1) &&
		b.inputSpills(layer-1)
	if home := b.away(x); spills && home != way {
		b.move(LaneDrain, x.Rank, x, home)
	}
}

// keep has the values that a block's forward leaves for its backward, on the way up or down. A value that waits in host
// memory passes through a ring: a visit gets the slot that was given out longest ago, unless its values are still in
// one.
func (b *builder) keep(layer, m int) Operand {
	kept := on(b.RankOf(layer, b.way()), Kept, layer, m)
	if !b.ActivationsPass(layer - 1) {
		return kept
	}
	here, slots, spills := &b.devices[kept.Rank], b.Placement.Rings.Activations, b.ActivationsSpill(layer-1)
	for kept.Slot = range slots {
		if b.has(kept) {
			break
		}
	}
	if !b.has(kept) {
		if kept.Slot = len(here.kept); kept.Slot >= slots {
			kept.Slot = here.kept[len(here.kept)-slots]
		}
		if b.hold(kept); spills {
			b.holds[b.cells.find(b.Plan, &kept)] = content{} // on the way down it comes from host memory
		}
	}
	here.kept = append(here.kept, kept.Slot)
	if b.down && spills {
		b.move(LaneFetch, kept.Rank, b.away(kept), kept)
	}
	return kept
}

// cache has what a block keeps from pass to pass: in a slot of the ring, to which it is brought, if it waits in host
// memory.
func (b *builder) cache(layer int) Operand {
	c := on(b.RankOf(layer, nn.Forward), Cache, layer, none)
	if b.cacheAt(layer-1) == Host {
		here := &b.devices[c.Rank]
		c.Slot, here.cache = here.cache, (here.cache+1)%cacheSlots
		b.move(LaneFetch, c.Rank, b.away(c), c)
	}
	return c
}

// made notes that a visit has made a value, and takes it to where others have it from.
func (b *builder) made(o Operand, later nn.Uses) {
	leaves := false
	switch layer := b.at.layer; o.What {
	case Cache:
		leaves = o.Slot != none
	case Kept:
		leaves = b.at.to == nn.Forward && b.Pass.Steps() && b.comesDown(o.Micro) && b.ActivationsSpill(layer-1)
	case TokenLosses:
		leaves = !b.Bound() && b.Pass.Half != ForUpdates // which has the weights that came of them
	case PickedLogits:
		last := b.at.Writes.Has(nn.Loss) // the visit after all tiles
		leaves = !b.Bound() && last && b.Pass.Half != ForUpdates
	case Outcome:
		b.hold(o)
		leaves = b.Pass.Steps() && b.outcomePasses(layer-1)
	case Side:
		if b.hold(o); b.Model.Ends(layer) && later.Has(nn.Y) {
			break
		}
		leaves = !b.PeerCopies() && b.sideLeaves(o)
	case Input:
		if b.hold(o); !later.Has(nn.Y) {
			b.saveInput(o)
		}
	case InputGrad:
		if !later.Has(nn.DX) {
			b.drainInput(o)
			b.drainSides(layer, o.Micro)
		}
	}
	if leaves {
		b.move(LaneDrain, o.Rank, o, b.away(o))
	}
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

// gradient is the fp32 gradient of a part: in a slot of the ring, in a place of its own, or where it is stored. That
// of a tied tile that is bound is the sum in host memory to which the embedding adds.
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
	if drains && b.leaves(part) {
		b.movePart(LaneDrain, part, []Operand{to}, []Operand{b.storedGradient(part)})
		b.updateNow(part)
	}
}

// leaves reports whether a gradient goes to the host in this pass: in the half of a step that it is updated from.
func (b *builder) leaves(part int) bool {
	return b.Pass.Half == Whole || (b.Pass.Half == ForNorm) == b.GradWaits(part)
}

// finishLate rounds n of the gradients that wait for it, and takes them to the host.
func (b *builder) finishLate(n int) {
	n = min(n, len(b.late))
	for _, part := range b.late[:n] {
		b.finish(part)
	}
	b.late = b.late[n:]
}

// drainInput takes the gradient of x[layer][m] to the host, where that is on its way: of the first block of a chain, as
// soon as there is one, since what follows it ends the step; or of a block whose neighbour below is on another device
// that cannot copy it. It lands where x was: its last reader is done.
func (b *builder) drainInput(dx Operand) {
	layer := dx.Index
	begins := b.Model.Begins(layer)
	first := begins && !b.Bound() && slices.ContainsFunc(b.Model.TableOf(layer).Tiles, b.Trained)
	if next := layer > b.lowest() && b.throughHost(layer-1, nn.Backward); !first && !next {
		return
	}
	o := op(LaneDrain, dx.Rank, DoMove)
	if o.Micro = dx.Micro; !begins {
		o.Layer = layer
	}
	b.add(o, []Operand{dx}, []Operand{b.betweenDevices(dx)})
}

// scatter adds the gradient of rows that were looked up to the table's.
func (b *builder) scatter(l *model.Lookup) {
	if !slices.ContainsFunc(l.Tiles, b.Trained) {
		return
	}
	var dx []Operand
	for m := range b.Numerics.MicroBatches {
		switch {
		case !b.comesDown(m):
		case l.Side >= 0:
			dx = append(dx, b.lookedUp(SideGrad, l.Side, m))
		case b.Bound():
			dx = append(dx, b.inputGradient(0, l.Layer, m))
		default:
			dx = append(dx, b.away(on(0, InputGrad, l.Layer, m)))
		}
	}
	if b.Cluster.Several() {
		b.scatterSums(l, dx)
		return
	}
	for _, p := range l.Tiles {
		o := op(LaneUpdate, 0, DoScatter)
		if o.Part, o.Table = p, l; b.ClearsEarly(p) || b.RoundsEarly(p) {
			o.Do = DoScatterOnto
		}
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
