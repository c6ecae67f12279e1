package plan

// gather looks the embedding up on the host, before or after its update; only the rows travel.
func (b *builder) gather(kind Kind) {
	var tables []resource
	for _, p := range b.Model.EmbedTiles {
		tables = append(tables, resource{hostWeights, p, 0})
		if kind == GatherAhead {
			tables = append(tables, b.hostGrad(p))
		}
	}
	var rows []resource
	for m := range b.Numerics.MicroBatches {
		to := resource{hostInput, 1, m}
		if b.Bound() {
			if to = b.input(1, m); to.what == workingInput {
				b.inX[1][m] = 1
			}
		}
		rows = append(rows, to)
	}
	b.add(op(LaneUpdate, kind), tables, rows)
}

func (b *builder) forward() {
	if !b.Bound() {
		b.add(op(LaneFetch, Upload), nil, []resource{{batchTokens, 0, 0}})
	}
	for layer := 1; layer <= b.blocks(); layer++ {
		part, groups := b.blockPart(layer), b.Model.GroupParts[layer-1]
		w := b.weights(part)
		for m := range b.Numerics.MicroBatches {
			x, y := b.load(layer, m), b.input(layer+1, m)
			o := op(LaneCompute, Forward)
			o.Layer, o.Part, o.Micro, o.Slot, o.Input, o.Output = layer, part, m, b.slotOf(w), bufferOf(x), bufferOf(y)
			writes := []resource{y, {scratch, 0, 0}}
			if len(groups) > 0 {
				writes = append(writes, resource{betweenVisits, m, 0})
			}
			kept := resource{}
			if b.ActivationsPass(layer - 1) {
				o.Kept, kept = b.nextKept(layer, m)
				writes = append(writes, kept)
			}
			b.add(o, []resource{w, x, {batchTokens, 0, 0}}, writes)
			if b.backwards() && b.ActivationsSpill(layer-1) {
				save := op(LaneDrain, SaveKept)
				save.Layer, save.Micro, save.Kept = layer, m, o.Kept
				b.add(save, []resource{kept}, []resource{{hostKept, layer, m}})
			}
			if y.what == workingInput {
				b.inX[(layer+1)%2][m] = layer + 1
			}
			if len(groups) == 0 {
				b.saveInput(layer+1, m, y)
			}
		}
		for i, group := range groups {
			w := b.weights(group)
			for m := range b.Numerics.MicroBatches {
				y := b.input(layer+1, m)
				o := op(LaneCompute, Forward)
				o.Layer, o.Part, o.Micro, o.Slot, o.Output = layer, group, m, b.slotOf(w), bufferOf(y)
				b.add(o, []resource{w, {betweenVisits, m, 0}}, []resource{y, {scratch, 0, 0}})
				if i == len(groups)-1 {
					b.saveInput(layer+1, m, y)
				}
			}
		}
	}
}

// saveInput takes the input of a layer to where it waits for the backward pass, if it spills. It is complete.
func (b *builder) saveInput(layer, m int, x resource) {
	if x.what == savedInput || layer > b.blocks() || !b.inputSpills(layer-1) || !b.backwards() {
		return
	}
	o := op(LaneDrain, Save)
	o.Layer, o.Micro, o.Input = layer, m, bufferOf(x)
	b.add(o, []resource{x}, []resource{{hostInput, layer, m}})
}

// weights makes sure that the part is on the device and returns what the visit reads.
func (b *builder) weights(part int) resource {
	switch {
	case b.Bound():
		return resource{hostWeights, part, 0}
	case b.resident(part):
		r := resource{ownWeights, part, 0}
		if b.onDevice[part] {
			return r
		}
		b.onDevice[part] = true
		stays := b.StateResident(part)
		if !stays || !b.Loaded {
			o := op(LaneFetch, Fetch)
			o.Part = part
			b.add(o, []resource{{hostWeights, part, 0}}, []resource{r})
		}
		if stays {
			if !b.Loaded {
				o := op(LaneFetch, FetchState)
				o.Part = part
				b.add(o, []resource{{hostWeights, part, 0}}, []resource{{ownState, part, 0}})
			}
			b.updateResident(part)
		}
		return r
	}
	slot, fetch := b.slots.next(part)
	r := resource{slotWeights, slot, 0}
	if fetch {
		o := op(LaneFetch, Fetch)
		o.Part, o.Slot = part, slot
		b.add(o, []resource{{hostWeights, part, 0}}, []resource{r})
	}
	if b.updates() && !b.down && b.StatePasses(part) {
		b.updatePassing(part, slot)
	}
	return r
}

// slotOf is the ring slot that holds a part after weights; -1 for parts that have none.
func (b *builder) slotOf(r resource) int {
	if r.what == slotWeights {
		return r.a
	}
	return none
}

// load brings x[layer][m] to the device unless it is there.
func (b *builder) load(layer, m int) resource {
	r := b.input(layer, m)
	switch {
	case r.what == sharedInput:
		if layer > 1 && !b.down {
			return r
		}
	case r.what == savedInput:
		if b.touch(r).written > 0 {
			return r
		}
	case b.inX[layer%2][m] == layer:
		return r
	default:
		b.inX[layer%2][m] = layer
	}
	o := op(LaneFetch, Load)
	o.Layer, o.Micro, o.Input = layer, m, bufferOf(r)
	b.add(o, []resource{{hostInput, layer, m}}, []resource{r})
	return r
}

// input is the buffer of x[layer][m] on the device.
func (b *builder) input(layer, m int) resource {
	if b.sharesInputs() {
		return resource{sharedInput, b.inputBuffer(layer, m, b.down), 0}
	}
	if layer <= b.blocks() && b.savedOnDevice(layer-1) {
		return resource{savedInput, layer, m}
	}
	return resource{workingInput, layer % 2, m}
}

// inputGradient is the buffer of dx[m] on the device.
func (b *builder) inputGradient(m int) resource {
	if b.sharesInputs() {
		return resource{sharedInput, b.inputGradBuffer(m), 0}
	}
	return resource{inputGrad, m, 0}
}

// bufferOf returns the number of a shared buffer, -1 for any other resource.
func bufferOf(r resource) int {
	if r.what == sharedInput {
		return r.a
	}
	return none
}

// nextKept returns the ring's slot for the activations of a block in a visit, forward or backward: the slot that was
// given out longest ago, unless the activations are still in one.
func (b *builder) nextKept(layer, m int) (int, resource) {
	slot, held := b.keptIn[[2]int{layer, m}]
	if !held {
		slot = len(b.kept)
		if slot >= b.Placement.Rings.Activations {
			slot = b.kept[len(b.kept)-b.Placement.Rings.Activations]
		}
	}
	if !b.ActivationsSpill(layer - 1) {
		b.keptIn[[2]int{layer, m}] = slot
	}
	b.kept = append(b.kept, slot)
	return slot, resource{keptSlot, slot, 0}
}
