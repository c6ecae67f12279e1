package plan

import (
	"slices"
)

func (b *builder) backward() {
	b.down = true
	for layer := b.blocks(); layer >= b.lowestTrained(); layer-- {
		part := b.blockPart(layer)
		b.backwardGroups(layer)
		w := b.weights(part)
		b.zeroGrad(part)
		for m := range b.Numerics.MicroBatches {
			x := b.load(layer, m)
			o := op(LaneCompute, Backward)
			dx := b.inputGradient(m)
			o.Layer, o.Part, o.Micro, o.Slot, o.Grad, o.Input, o.Output = layer, part, m, b.slotOf(w), b.gradIndex(part),
				bufferOf(x), bufferOf(dx)
			writes := []resource{dx, b.gradResource(part), {scratch, 0, 0}}
			if len(b.Model.GroupParts[layer-1]) > 0 {
				writes = append(writes, resource{betweenVisits, m, 0})
			}
			if b.ActivationsPass(layer - 1) {
				kept := resource{}
				o.Kept, kept = b.nextKept(layer, m)
				if b.ActivationsSpill(layer - 1) {
					load := op(LaneFetch, LoadKept)
					load.Layer, load.Micro, load.Kept = layer, m, o.Kept
					b.add(load, []resource{{hostKept, layer, m}}, []resource{kept})
				}
				writes = append(writes, kept) // its buffers are reused for gradients
			}
			b.add(o, []resource{w, x, {batchTokens, 0, 0}}, writes)
			if layer == 1 {
				b.drainInput(m)
			}
		}
		b.finishGrad(part)
		b.finishLate(1)
	}
	b.finishLate(len(b.late))
}

// backwardGroups visits the groups of a block, if it has any, from the last one to the first, after its trunk has
// been opened again. The visit of the trunk that follows closes it.
func (b *builder) backwardGroups(layer int) {
	groups := b.Model.GroupParts[layer-1]
	if len(groups) == 0 {
		return
	}
	trunk := b.blockPart(layer)
	w := b.weights(trunk)
	for m := range b.Numerics.MicroBatches {
		x := b.load(layer, m)
		o := op(LaneCompute, Reopen)
		o.Layer, o.Part, o.Micro, o.Slot, o.Input = layer, trunk, m, b.slotOf(w), bufferOf(x)
		b.add(o, []resource{w, x, {batchTokens, 0, 0}}, []resource{{betweenVisits, m, 0}, {scratch, 0, 0}})
	}
	for i, group := range slices.Backward(groups) {
		w := b.weights(group)
		b.zeroGrad(group)
		for m := range b.Numerics.MicroBatches {
			dx := b.inputGradient(m)
			o := op(LaneCompute, Backward)
			o.Layer, o.Part, o.Micro, o.Slot, o.Grad, o.Output = layer, group, m, b.slotOf(w), b.gradIndex(group), bufferOf(dx)
			o.First = i == len(groups)-1
			b.add(o, []resource{w, dx}, []resource{b.gradResource(group), {betweenVisits, m, 0}, {scratch, 0, 0}})
		}
		b.finishGrad(group)
	}
}

// finishGrad rounds a gradient that has got all its contributions, and takes it to the host. A tied tile goes there
// unrounded.
func (b *builder) finishGrad(part int) {
	if !b.Trained(part) {
		return
	}
	g := b.gradResource(part)
	if b.Tied(part) {
		if !b.Bound() {
			o := op(LaneDrain, DrainSum)
			o.Part, o.Grad = part, b.gradIndex(part)
			b.add(o, []resource{g}, []resource{{gradSum, part, 0}})
		}
		return
	}
	round := op(LaneCompute, Round)
	round.Part, round.Grad = part, b.gradIndex(part)
	if b.Bound() {
		b.add(round, []resource{g}, []resource{b.hostGrad(part), {results, 1, part}})
		return
	}
	if b.StateResident(part) {
		writes := []resource{{results, 1, part}}
		if b.staged() {
			writes = append(writes, b.storedResident(part))
		}
		b.add(round, []resource{g}, writes)
		return
	}
	drain := op(LaneDrain, Drain)
	drain.Part = part
	from := g
	if b.staged() {
		round.Stage, drain.Stage = b.stage, b.stage
		b.stage = (b.stage + 1) % b.Placement.Rings.Rounded
		from = resource{stageSlot, round.Stage, 0}
		b.add(round, []resource{g}, []resource{from, {results, 1, part}})
	} else {
		drain.Grad = round.Grad
		b.add(round, []resource{g}, []resource{{results, 1, part}})
	}
	b.add(drain, []resource{from}, []resource{b.hostGrad(part)})
	b.updateNow(part)
}

// finishLate rounds n of the head's gradients that wait for it, and takes them to the host.
func (b *builder) finishLate(n int) {
	n = min(n, len(b.late))
	for _, part := range b.late[:n] {
		b.finishGrad(part)
	}
	b.late = b.late[n:]
}

// zeroGrad gives the part an fp32 gradient and clears it.
func (b *builder) zeroGrad(part int) {
	if !b.Trained(part) {
		return
	}
	if !b.ownGrad(part) && !b.GradInExtent(part) {
		b.gradOf[part] = b.grad
		b.grad = (b.grad + 1) % b.Placement.Rings.Gradients
	}
	o := op(LaneCompute, ZeroGrad)
	o.Part, o.Grad = part, b.gradIndex(part)
	b.add(o, nil, []resource{b.gradResource(part)})
}

// gradIndex is the ring slot of the part's fp32 gradient, or -1 where it has another place.
func (b *builder) gradIndex(part int) int {
	if g, ok := b.gradOf[part]; ok {
		return g
	}
	return none
}

func (b *builder) gradResource(part int) resource {
	switch {
	case b.GradInExtent(part) && b.Tied(part):
		return resource{gradSum, part, 0}
	case b.GradInExtent(part):
		return b.hostGrad(part)
	case b.ownGrad(part):
		return resource{ownGradient, part, 0}
	}
	return resource{gradSlot, b.gradIndex(part), 0}
}

// embedTrained reports whether anything needs the gradient of x[1].
func (b *builder) embedTrained() bool { return slices.ContainsFunc(b.Model.EmbedTiles, b.Trained) }

// drainInput takes the gradient of x[1][m] to the host as soon as there is one: what follows it ends the step.
func (b *builder) drainInput(m int) {
	if b.Bound() || !b.embedTrained() {
		return
	}
	o := op(LaneDrain, DrainInput)
	dx := b.inputGradient(m)
	o.Micro, o.Input = m, bufferOf(dx)
	// The gradient lands where x[1] was: its last reader is done.
	b.add(o, []resource{dx}, []resource{{hostInput, 1, m}})
}

// embeddingGrad adds the gradient of x[1] to the table's.
func (b *builder) embeddingGrad() {
	if !b.embedTrained() {
		return
	}
	var dx []resource
	for m := range b.Numerics.MicroBatches {
		r := resource{hostInput, 1, m}
		if b.Bound() {
			r = resource{inputGrad, m, 0}
		}
		dx = append(dx, r)
	}
	for _, p := range b.Model.EmbedTiles {
		o := op(LaneUpdate, Scatter)
		o.Part = p
		// Its sum of squares is the host's own: Collect brings others and does not wait for it.
		b.add(o, dx, []resource{{gradSum, p, 0}, b.hostGrad(p)})
		b.updateNow(p)
	}
}
