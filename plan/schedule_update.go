package plan

// update carries out the pending updates of the trained ones among the parts, if the phase has updates, and saves all
// of the parts if the schedule does. This includes parts that the device updates, while the first layer waits for the
// host's updates.
func (b *builder) update(parts ...int) {
	for _, part := range parts {
		if b.StateResident(part) {
			if b.runs() {
				b.weights(part)
			} else {
				b.updateResident(part)
			}
			continue
		}
		if b.runs() && b.updates() && b.StatePasses(part) {
			continue // with its forward visit
		}
		if b.Trained(part) && b.updates() {
			b.updateOnHost(part)
		}
		b.save(part)
	}
}

// updateOnHost updates a part in host memory.
func (b *builder) updateOnHost(part int) {
	o := op(LaneUpdate, Update)
	o.Part = part
	b.add(o, []resource{b.hostGrad(part)}, []resource{{hostWeights, part, 0}})
}

// updateNow updates a part from the gradient that this schedule has just taken to the host, where no update waits for
// the norm.
func (b *builder) updateNow(part int) {
	if b.UpdatesInBackward() && b.Trained(part) {
		b.updateOnHost(part)
	}
}

// updateResident carries out the pending update of a part whose state is on the device, writes it back and saves it,
// as far as the schedule does. Its weights are in their slot.
func (b *builder) updateResident(part int) {
	state := []resource{{ownWeights, part, 0}, {ownState, part, 0}}
	if b.updates() {
		o := op(LaneCompute, Update)
		o.Part, o.First = part, !b.counts
		b.counts = true
		b.add(o, []resource{b.storedResident(part)}, append(state, resource{results, 2, 0}))
	}
	if b.WriteBack {
		o := op(LaneDrain, WriteBack)
		o.Part = part
		b.add(o, state, []resource{{hostWeights, part, 0}})
	}
	b.save(part)
}

// fetchPassing brings the state of the next part whose state passes to the device. The part before it is still there,
// so that one of them moves while the other one is updated.
func (b *builder) fetchPassing() {
	if len(b.passing) == 0 {
		return
	}
	o := op(LaneFetch, FetchState)
	o.Part, o.State = b.passing[0], b.passed%b.Placement.Rings.State
	b.add(o, []resource{{hostWeights, o.Part, 0}, b.hostGrad(o.Part)}, []resource{{stateSlot, o.State, 0}})
	b.passing, b.passed = b.passing[1:], b.passed+1
}

// updatePassing updates the part whose state has come to the device, writes all of it back and has the next one come.
func (b *builder) updatePassing(part, slot int) {
	state := []resource{{slotWeights, slot, 0}, {stateSlot, (b.passed - 1) % b.Placement.Rings.State, 0}}
	o := op(LaneCompute, Update)
	o.Part, o.Slot, o.State, o.First = part, slot, state[1].a, !b.counts
	b.counts = true
	b.add(o, nil, append(state, resource{results, 2, 0}))
	back := op(LaneDrain, WriteBack)
	back.Part, back.Slot, back.State = part, slot, o.State
	b.add(back, state, []resource{{hostWeights, part, 0}})
	b.save(part)
	b.fetchPassing()
}

// save takes the state of a part to a checkpoint, if the schedule does.
func (b *builder) save(part int) {
	if b.Saves {
		o := op(LaneDisk, SaveState)
		o.Part = part
		b.add(o, []resource{{hostWeights, part, 0}}, nil)
	}
}

// hostGrad is the place of a part's gradient in host memory, in its stored type.
func (b *builder) hostGrad(part int) resource {
	if share := b.gradShare(part); share > 0 {
		return resource{hostGrad, none, share}
	}
	return resource{hostGrad, part, 0}
}

// storedResident is the gradient, in its stored type, of a part whose state is on the device.
func (b *builder) storedResident(part int) resource {
	if b.staged() {
		return resource{ownRounded, part, 0}
	}
	return b.gradResource(part)
}
