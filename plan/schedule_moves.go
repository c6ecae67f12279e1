package plan

import (
	"slices"
)

// move emits a copy from one place to another.
func (b *builder) move(lane Lane, from, to Operand) {
	o := op(lane, DoMove)
	o.Layer, o.Micro = to.Index, to.Micro
	b.add(o, []Operand{from}, []Operand{to})
}

// movePart emits a copy of what a part has.
func (b *builder) movePart(lane Lane, part int, from, to []Operand) {
	o := op(lane, DoMove)
	o.Part = part
	b.add(o, from, to)
}

// of is an operand of a part, with memory of its own.
func of(what What, part int, at Place) Operand {
	return Operand{What: what, Index: part, Micro: none, At: at, Slot: none}
}

// bindable is where the device finds what it can use in host memory: there, or in its own.
func (b *builder) bindable() Place {
	if b.Bound() {
		return InPlace
	}
	return Device
}

func (b *builder) tokens() Operand { return of(Tokens, none, b.bindable()) }

// upload brings the tokens of all micro-batches to the device.
func (b *builder) upload() {
	if !b.Bound() {
		b.add(op(LaneFetch, DoMove), []Operand{of(Tokens, none, Host)}, []Operand{b.tokens()})
	}
}

// lookup looks the embedding up on the host, before or after its update; only the rows travel.
func (b *builder) lookup(do Do) {
	var tables, rows []Operand
	for _, p := range b.Model.EmbedTiles {
		tables = append(tables, of(Stored, p, Host))
		if do == DoLookupAhead {
			tables = append(tables, b.storedGradient(p))
		}
	}
	for m := range b.Numerics.MicroBatches {
		to := b.home(Input, 1, m)
		if b.Bound() {
			to = b.input(1, m)
			b.wrote(1, m, to)
		}
		rows = append(rows, to)
	}
	b.add(op(LaneUpdate, do), tables, rows)
}

// weights makes sure that the part is on the device and returns where a visit finds it.
func (b *builder) weights(part int) Operand {
	r := of(Weights, part, b.bindable())
	switch {
	case b.Bound():
		return r
	case b.resident(part):
		if b.onDevice[part] {
			return r
		}
		b.onDevice[part] = true
		stays := b.StateResident(part)
		if !stays || !b.Loaded {
			b.movePart(LaneFetch, part, []Operand{of(Stored, part, Host)}, []Operand{r})
		}
		if stays {
			if !b.Loaded {
				b.movePart(LaneFetch, part, []Operand{of(Stored, part, Host)}, []Operand{of(State, part, Device)})
			}
			b.updateResident(part)
		}
		return r
	}
	slot, fetch := b.slots.next(part)
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
	x := b.input(layer, m)
	switch {
	case x.Slot != none:
		if layer > 1 && !b.down {
			return x
		}
	case b.savedHere(layer):
		if b.touch(x).written > 0 {
			return x
		}
	case b.inX[layer%2][m] == layer:
		return x
	}
	b.wrote(layer, m, x)
	b.move(LaneFetch, b.home(Input, layer, m), x)
	return x
}

// savedHere reports whether the input of a layer waits in a buffer of its own on the device.
func (b *builder) savedHere(layer int) bool { return layer <= b.blocks() && b.savedOnDevice(layer-1) }

// wrote notes whose input a working buffer holds.
func (b *builder) wrote(layer, m int, x Operand) {
	if x.Slot == none && !b.savedHere(layer) {
		b.inX[layer%2][m] = layer
	}
}

// input is x[layer][m] on the device.
func (b *builder) input(layer, m int) Operand {
	x := Operand{What: Input, Index: layer, Micro: m, At: Device, Slot: none}
	if b.sharesInputs() {
		x.Slot = b.inputBuffer(layer, m, b.down)
	}
	return x
}

// inputGradient is dx[m] on the device.
func (b *builder) inputGradient(m int) Operand {
	dx := Operand{What: InputGrad, Index: none, Micro: m, At: Device, Slot: none}
	if b.sharesInputs() {
		dx.Slot = b.inputGradBuffer(m)
	}
	return dx
}

// home is where the input of a layer waits outside of the device, and the gradient of x[1].
func (b *builder) home(what What, layer, m int) Operand {
	at := Host
	if b.SavedOnDisk(layer - 1) {
		at = Disk
	}
	return Operand{What: what, Index: layer, Micro: m, At: at, Slot: none}
}

// saveInput takes the input of a layer to where it waits for the backward pass, if it spills. It is complete.
func (b *builder) saveInput(layer, m int, x Operand) {
	if layer <= b.blocks() && !b.savedOnDevice(layer-1) && b.inputSpills(layer-1) && b.backwards() {
		b.move(LaneDrain, x, b.home(Input, layer, m))
	}
}

// keep is where a block's visit has what forward leaves for backward, on the way up or down. What waits in host memory
// passes through a ring: a visit gets the slot that was given out longest ago, unless its values are still in one.
func (b *builder) keep(layer, m int, down bool) Operand {
	kept := Operand{What: Kept, Index: layer, Micro: m, At: Device, Slot: none}
	if !b.ActivationsPass(layer - 1) {
		return kept
	}
	slot, held := b.keptIn[[2]int{layer, m}]
	if !held {
		slot = len(b.kept)
		if slot >= b.Placement.Rings.Activations {
			slot = b.kept[len(b.kept)-b.Placement.Rings.Activations]
		}
	}
	spills := b.ActivationsSpill(layer - 1)
	if !spills {
		b.keptIn[[2]int{layer, m}] = slot
	}
	b.kept = append(b.kept, slot)
	kept.Slot = slot
	if down && spills {
		b.move(LaneFetch, Operand{What: Kept, Index: layer, Micro: m, At: Host, Slot: none}, kept)
	}
	return kept
}

// clear gives the part an fp32 gradient and zeroes it.
func (b *builder) clear(part int) {
	if !b.Trained(part) {
		return
	}
	if !b.ownGrad(part) && !b.GradInExtent(part) {
		b.gradOf[part] = b.grad
		b.grad = (b.grad + 1) % b.Placement.Rings.Gradients
	}
	o := op(LaneCompute, DoClear)
	o.Part = part
	b.add(o, nil, []Operand{b.gradient(part)})
}

// gradient is the fp32 gradient of a part: in a slot of the ring, in a place of its own, or where it is stored. That of a
// tied tile that is bound is the sum in host memory to which the embedding adds.
func (b *builder) gradient(part int) Operand {
	g := of(Gradient, part, Device)
	switch slot, ok := b.gradOf[part]; {
	case ok:
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
		return of(Rounded, part, Device)
	}
	return b.gradient(part)
}

// finish rounds a gradient that has got all its contributions, and takes it to the host. A tied tile goes there
// unrounded.
func (b *builder) finish(part int) {
	if !b.Trained(part) {
		return
	}
	g := b.gradient(part)
	if b.Tied(part) {
		if !b.Bound() {
			b.movePart(LaneDrain, part, []Operand{g}, []Operand{of(Gradient, part, Host)})
		}
		return
	}
	to, drains := g, false
	switch {
	case b.Bound():
		to = b.storedGradient(part)
	case b.StateResident(part):
		to = b.residentGradient(part)
	case b.staged():
		to, drains = of(Rounded, part, Device), true
		to.Slot = b.stage
		b.stage = (b.stage + 1) % b.Placement.Rings.Rounded
	default:
		drains = true
	}
	round := op(LaneCompute, DoRound)
	round.Part = part
	writes := []Operand{of(Squares, part, b.bindable())}
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

// drainInput takes the gradient of x[1][m] to the host as soon as there is one: what follows it ends the step. It lands
// where x[1] was: its last reader is done.
func (b *builder) drainInput(m int) {
	if !b.Bound() && b.embedTrained() {
		o := op(LaneDrain, DoMove)
		o.Micro = m
		b.add(o, []Operand{b.inputGradient(m)}, []Operand{b.home(InputGrad, 1, m)})
	}
}

// embeddingGrad adds the gradient of x[1] to the table's.
func (b *builder) embeddingGrad() {
	if !b.embedTrained() {
		return
	}
	var dx []Operand
	for m := range b.Numerics.MicroBatches {
		if b.Bound() {
			dx = append(dx, b.inputGradient(m))
		} else {
			dx = append(dx, b.home(InputGrad, 1, m))
		}
	}
	for _, p := range b.Model.EmbedTiles {
		o := op(LaneUpdate, DoScatter)
		o.Part = p
		// Its sum of squares is the host's own: what is collected from the device does not wait for it.
		b.add(o, dx, []Operand{of(Gradient, p, Host), b.storedGradient(p)})
		b.updateNow(p)
	}
}

// collect ends a step: its sums of squares and losses come to the host together. Where results are bound they are
// there.
func (b *builder) collect() {
	if b.Bound() {
		return
	}
	reads := []Operand{of(BadCount, none, Device)}
	for part := range b.Model.Parts {
		reads = append(reads, of(Squares, part, Device))
	}
	for m := range b.Numerics.MicroBatches {
		reads = append(reads, Operand{What: LossSum, Index: none, Micro: m, At: Device, Slot: none})
	}
	b.add(op(LaneDrain, DoMove), reads, []Operand{of(Results, none, Host)})
}
