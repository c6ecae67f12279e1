package plan

// update carries out the pending updates of the trained ones among the parts, if the pass has updates, and saves all
// of the parts if the schedule does; of several hosts each does so with the parts that it owns. This includes parts
// that the device updates, while the first layer waits for the host's updates.
func (b *builder) update(parts ...int) {
	for _, part := range parts {
		if b.StateResident(part) {
			if b.Pass.Runs() {
				b.weights(part)
			} else {
				b.updateResident(part)
			}
			continue
		}
		if b.Pass.Runs() && b.updates() && b.StatePasses(part) {
			continue // with its forward visit
		}
		if b.Trained(part) && b.updates() {
			if b.Owns(part) {
				b.updateOnHost(part)
			}
			b.spread(part)
		}
		b.save(part)
	}
}

// updateOnHost updates a part in host memory.
func (b *builder) updateOnHost(part int) {
	o := op(LaneUpdate, 0, DoUpdate)
	o.Part = part
	b.add(o, []Operand{b.storedGradient(part)}, []Operand{of(Stored, part, Host)})
}

// updateNow updates a part from the gradient that this schedule has just taken to the host, where no update waits for
// the norm.
func (b *builder) updateNow(part int) {
	if b.UpdatesInBackward() && b.Pass.Half != ForNorm && b.Trained(part) {
		b.updateOnHost(part)
	}
}

// updateHere carries out the pending update of a part on the device, from the gradient among the operands or in its
// state. The first one begins the tally.
func (b *builder) updateHere(part int, reads, state []Operand) {
	rank := b.rank(part)
	o, counts := op(LaneCompute, rank, DoUpdate), &b.devices[rank].counts
	o.Part, o.First = part, !*counts
	*counts = true
	tally := of(Tally, none, Device)
	tally.Rank = rank
	b.add(o, reads, append(state[:len(state):len(state)], tally))
}

// updateResident carries out the pending update of a part whose state is on the device, writes it back and saves it,
// as far as the schedule does. Its weights are in their slot.
func (b *builder) updateResident(part int) {
	state := []Operand{b.here(Weights, part, Device), b.here(State, part, Device)}
	if b.updates() {
		b.updateHere(part, []Operand{b.residentGradient(part)}, state)
	}
	if b.WriteBack {
		b.movePart(LaneDrain, part, state, []Operand{of(Stored, part, Host)})
	}
	b.save(part)
}

// stateSlot is the operand on the device for the state of a part that passes, if it is the n-th that comes.
func (b *builder) stateSlot(part, n int) Operand {
	s := b.here(State, part, Device)
	s.Slot = n % b.Placement.Rings.State
	return s
}

// fetchPassing brings the state of the next part whose state passes to the device. The part before it is still there,
// so that one of them moves while the other one is updated.
func (b *builder) fetchPassing() {
	if len(b.passing) == 0 {
		return
	}
	part := b.passing[0]
	b.movePart(LaneFetch, part, []Operand{of(Stored, part, Host), b.storedGradient(part)},
		[]Operand{b.stateSlot(part, b.passed)})
	b.passing, b.passed = b.passing[1:], b.passed+1
}

// updatePassing updates the part whose state has come to the device, writes all of it back and has the next one come.
func (b *builder) updatePassing(weights Operand) {
	part := weights.Index
	state := []Operand{weights, b.stateSlot(part, b.passed-1)}
	b.updateHere(part, nil, state)
	b.movePart(LaneDrain, part, state, []Operand{of(Stored, part, Host)})
	b.save(part)
	b.fetchPassing()
}

// save takes the state of a part to a checkpoint, if the schedule does, and the host owns the part.
func (b *builder) save(part int) {
	if b.Saves && b.Owns(part) {
		o := op(LaneDisk, 0, DoSave)
		o.Part = part
		b.add(o, []Operand{of(Stored, part, Host)}, nil)
	}
}
