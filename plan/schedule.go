package plan

import (
	"slices"
)

// Phase says which schedule of a run is asked for. A step ends when its norm is known; its updates belong to the next
// schedule, where they overlap with the forward pass.
type Phase uint8

// The phases.
const (
	Prologue Phase = iota // a step with no updates pending: the first one, and the one after a flush
	Steady                // the pending updates, then a step
	Flush                 // the pending updates alone
	Forwards              // evaluation: forward and loss, no updates pending
	Logits                // forward and the logits of the wanted rows, no updates pending
	Nothing               // no updates pending and no step: what a saving schedule has left to do
)

// String is the phase's name.
func (p Phase) String() string {
	return [...]string{"prologue", "steady", "flush", "forward", "logits", "nothing"}[p]
}

// Mode says which schedule is asked for.
type Mode struct {
	Phase Phase
	// Saves takes the state of every part to a checkpoint, behind its update if it has one. The state then is that of the step before.
	Saves bool
	// Loaded says that a schedule before has brought what lives on the device there; else this one does, if it runs layers.
	Loaded bool
	// Home copies what lives on the device to the store, behind its update, for who reads it there.
	Home bool
}

// usual is the mode in which a phase comes without a save: state is on the device from the second step on, and a flush takes it home.
func usual(phase Phase) Mode {
	return Mode{Phase: phase, Loaded: phase == Steady || phase == Flush, Home: phase == Flush}
}

// builder writes a schedule in serial order and finds out what waits for what: an operation comes after the last one
// that wrote what it touches, and after all that read what it writes.
type builder struct {
	*Plan
	Mode
	ops []Op

	touched [resourceKinds][]touch // by kind and index: see builder.touch
	waited  [Lanes][Lanes]int      // by lane: how far into each other lane it has waited, plus one
	waits   []int                  // of all operations, which have slices of it

	slots    slotRing
	passing  []int // parts whose state passes, in order, that have yet to be updated
	passed   int   // how many of them are on the device, or were there
	grad     int   // next fp32 gradient slot of the ring
	stage    int
	kept     []int          // by visit so far: slot of the ring of what is kept on the host
	keptIn   map[[2]int]int // by layer and micro-batch: slot of the ring that holds it until the backward visit
	inX      [2][]int       // by parity and micro-batch: the layer whose input the working buffer holds
	gradOf   map[int]int
	onDevice map[int]bool // resident parts that have been fetched, or updated, in this schedule
	late     []int        // tiles of the head whose gradients are complete and not rounded
	down     bool         // the backward pass has begun
	counts   bool         // weights that become infinite or NaN are counted on the device
}

// resource is something that operations read and write: a buffer, or an extent.
type resource struct {
	what resourceKind
	a, b int
}

type resourceKind uint8

const (
	hostWeights  resourceKind = iota // part
	hostGrad                         // part, or the room that it shares with others
	gradSum                          // part: fp32 gradient of a tied tile in host memory
	slotWeights                      // slot
	ownWeights                       // part: resident
	ownState                         // part: low halves and moments on the device
	ownRounded                       // part: rounded gradient of such a part
	stateSlot                        // slot: state that passes, with the rounded gradient
	gradSlot                         // slot
	ownGradient                      // part
	stageSlot                        // slot
	batchTokens                      //
	workingInput                     // parity, micro-batch: x between two layers
	keptSlot                         // slot
	hostKept                         // layer, micro-batch: what is kept, in host memory
	savedInput                       // layer, micro-batch: x kept on the device
	hostInput                        // layer, micro-batch: x in host memory
	inputGrad                        // micro-batch: dx
	sharedInput                      // buffer: x or dx of a micro-batch, where they share some
	headState                        // buffer: normed input, statistics, fp32 gradient of it
	scratch                          // the work arena of the compute lane
	results                          // scalars: of a micro-batch (0), of a part (1), the count of bad weights (2)
	logitChunk                       // a chunk's logits of a tile on the device
	hostLogits                       // the wanted logits in host memory
	resourceKinds
)

// touch is who touched a resource last.
type touch struct {
	written int        // the last operation that wrote it, plus one
	read    [Lanes]int // since then, the last operation of each lane that read it, plus one
}

// touch is the entry of a resource. There are as many as a step has micro-batches in all layers, and each is asked for often, so they
// lie in arrays, by kind, that are made when they are needed.
func (b *builder) touch(r resource) *touch {
	parts, micros := len(b.Model.Parts), b.Numerics.MicroBatches
	count, i := 0, r.a
	switch r.what {
	case hostGrad:
		if count = parts + sharedGrads + 1; r.a == none {
			i = parts + r.b
		}
	case slotWeights:
		count = b.Placement.Rings.Weights
	case gradSlot: // none is that of parts that are frozen
		count, i = b.Placement.Rings.Gradients+1, r.a+1
	case stageSlot:
		count = b.Placement.Rings.Rounded
	case stateSlot:
		count = b.Placement.Rings.State
	case keptSlot:
		count = b.Placement.Rings.Activations
	case workingInput:
		count, i = 2*micros, r.a*micros+r.b
	case hostKept, savedInput, hostInput:
		count, i = (b.blocks()+2)*micros, r.a*micros+r.b
	case inputGrad, headState:
		count = micros
	case sharedInput:
		count = micros + b.Placement.Rings.Inputs
	case results: // of micro-batches, of parts, the count of bad weights
		count, i = micros+parts+1, [...]int{0, micros, micros + parts}[r.a]+r.b
	case batchTokens, scratch, logitChunk, hostLogits:
		count = 1
	default: // of a part
		count = parts
	}
	if b.touched[r.what] == nil {
		b.touched[r.what] = make([]touch, count)
	}
	return &b.touched[r.what][i]
}

// ScheduleOf is the schedule of a mode.
func (p *Plan) ScheduleOf(mode Mode) *Schedule {
	b := &builder{Plan: p, Mode: mode, ops: make([]Op, 0, p.aboutOps()), gradOf: map[int]int{}, onDevice: map[int]bool{}, keptIn: map[[2]int]int{}}
	for parity := range b.inX {
		b.inX[parity] = make([]int, p.Numerics.MicroBatches)
	}
	ahead := b.runs() && b.updates() && p.Placement.LookAhead
	if ahead {
		b.gather(GatherAhead)
	}
	if b.runs() && b.updates() {
		for _, part := range p.Model.BlockParts {
			if p.StatePasses(part) {
				b.passing = append(b.passing, part)
			}
		}
		b.fetchPassing()
	}
	// The first block travels while the embedding is updated and looked up.
	b.update(p.Model.BlockParts[0])
	if !ahead {
		b.update(p.Model.EmbedTiles...)
		if b.runs() {
			b.gather(Gather)
		}
	}
	b.update(p.Model.BlockParts[1:]...)
	b.update(p.Model.NormPart)
	if !p.Model.Tied {
		b.update(p.Model.HeadTiles...)
	}
	if ahead {
		b.update(p.Model.EmbedTiles...)
	}
	if b.runs() {
		b.slots.plan(p.Placement.Rings.Weights, b.visits())
		b.forward()
		b.head()
	}
	if b.backwards() {
		b.backward()
		b.embeddingGrad()
	}
	if b.runs() && b.Phase != Logits || b.counts {
		b.collect()
	}
	return &Schedule{Ops: b.ops}
}

// aboutOps is about how many operations a step has, for room.
func (p *Plan) aboutOps() int {
	return p.Numerics.MicroBatches*(4*p.blocks()+2*len(p.Model.HeadTiles)+8) + 8*len(p.Model.Parts)
}

// add appends an operation and works out what it waits for.
func (b *builder) add(op Op, reads, writes []resource) int {
	var need [Lanes]int
	for _, r := range reads {
		b.needWriter(&need, b.touch(r))
	}
	for _, w := range writes {
		t := b.touch(w)
		b.needWriter(&need, t)
		for l, last := range t.read {
			need[l] = max(need[l], last)
		}
	}
	first := len(b.waits)
	for l, n := range need {
		// Lanes run in order: what a lane has waited for once, and all before it, is done.
		if Lane(l) != op.Lane && n > b.waited[op.Lane][l] {
			b.waited[op.Lane][l] = n
			b.waits = append(b.waits, n-1)
		}
	}
	if n := len(b.waits); n > first {
		op.After = b.waits[first:n:n]
		slices.Sort(op.After)
	}
	i := len(b.ops)
	b.ops = append(b.ops, op)
	for _, w := range writes {
		*b.touch(w) = touch{written: i + 1}
	}
	for _, r := range reads {
		b.touch(r).read[op.Lane] = i + 1
	}
	return i
}

// needWriter has an operation wait for the last one that wrote a resource.
func (b *builder) needWriter(need *[Lanes]int, t *touch) {
	if t.written > 0 {
		l := b.ops[t.written-1].Lane
		need[l] = max(need[l], t.written)
	}
}

func op(lane Lane, kind Kind) Op {
	return Op{Lane: lane, Kind: kind, Layer: none, Part: none, Micro: none, Slot: none, Grad: none, Kept: none, Stage: none,
		Chunk: none, State: none, Input: none, Output: none}
}

// runs reports whether the schedule runs layers.
func (b *builder) runs() bool { return b.Phase != Flush && b.Phase != Nothing }

// updates reports whether the schedule carries out the pending updates.
func (b *builder) updates() bool {
	return (b.Phase == Steady || b.Phase == Flush) && !b.UpdatesInBackward()
}

// updateNow updates a part from the gradient that this schedule has just brought home, where no update waits for the norm.
func (b *builder) updateNow(part int) {
	if b.UpdatesInBackward() && b.Trained(part) {
		b.updateAtHome(part)
	}
}

// updateAtHome updates a part in host memory.
func (b *builder) updateAtHome(part int) {
	o := op(LaneUpdate, Update)
	o.Part = part
	b.add(o, []resource{b.hostGrad(part)}, []resource{{hostWeights, part, 0}})
}

// hostGrad is the place of a part's gradient in host memory, in its stored type.
func (b *builder) hostGrad(part int) resource {
	if share := b.gradShare(part); share > 0 {
		return resource{hostGrad, none, share}
	}
	return resource{hostGrad, part, 0}
}

// update carries out the pending update of those of the parts that are trained, if the phase has one, and saves all of
// them if the schedule does. What is updated on the device is as well, while the first layer waits for the host's updates.
func (b *builder) update(parts ...int) {
	for _, part := range parts {
		if b.StateResident(part) {
			if b.runs() {
				b.weights(part)
			} else {
				b.updateHere(part)
			}
			continue
		}
		if b.runs() && b.updates() && b.StatePasses(part) {
			continue // with its forward visit
		}
		if b.Trained(part) && b.updates() {
			b.updateAtHome(part)
		}
		b.save(part)
	}
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

// updatePassing updates the part whose state has come to the device, takes all of it home and has the next one come.
func (b *builder) updatePassing(part, slot int) {
	here := []resource{{slotWeights, slot, 0}, {stateSlot, (b.passed - 1) % b.Placement.Rings.State, 0}}
	o := op(LaneCompute, Update)
	o.Part, o.Slot, o.State, o.First = part, slot, here[1].a, !b.counts
	b.counts = true
	b.add(o, nil, append(here, resource{results, 2, 0}))
	home := op(LaneDrain, Home)
	home.Part, home.Slot, home.State = part, slot, o.State
	b.add(home, here, []resource{{hostWeights, part, 0}})
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

// updateHere carries out the pending update of a part whose state is on the device, takes it home and saves it, as far as the
// schedule does. Its weights are in their slot.
func (b *builder) updateHere(part int) {
	here := []resource{{ownWeights, part, 0}, {ownState, part, 0}}
	if b.updates() {
		o := op(LaneCompute, Update)
		o.Part, o.First = part, !b.counts
		b.counts = true
		b.add(o, []resource{b.storedHere(part)}, append(here, resource{results, 2, 0}))
	}
	if b.Home {
		o := op(LaneDrain, Home)
		o.Part = part
		b.add(o, here, []resource{{hostWeights, part, 0}})
	}
	b.save(part)
}

// storedHere is the gradient, in its stored type, of a part whose state is on the device.
func (b *builder) storedHere(part int) resource {
	if b.staged() {
		return resource{ownRounded, part, 0}
	}
	return b.gradResource(part)
}

// visits are the parts that pass through the ring, in order.
func (b *builder) visits() []int {
	var v []int
	see := func(part int) {
		if b.streamed(part) {
			v = append(v, part)
		}
	}
	blocks := b.Model.BlockParts
	tiles := b.Model.HeadTiles
	for _, p := range blocks {
		see(p)
	}
	for _, p := range tiles {
		see(p)
	}
	if !b.backwards() {
		return v
	}
	for _, p := range slices.Backward(tiles) {
		see(p)
	}
	for _, p := range slices.Backward(blocks[b.lowestTrained()-1:]) {
		see(p)
	}
	return v
}

// backwards reports whether the schedule has a backward pass.
func (b *builder) backwards() bool { return b.Phase == Prologue || b.Phase == Steady }

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
			b.updateHere(part)
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

// input is where x[layer][m] lies on the device.
func (b *builder) input(layer, m int) resource {
	if b.sharesInputs() {
		return resource{sharedInput, b.inputBuffer(layer, m, b.down), 0}
	}
	if layer <= b.blocks() && b.savedOnDevice(layer-1) {
		return resource{savedInput, layer, m}
	}
	return resource{workingInput, layer % 2, m}
}

// inputGradient is where dx[m] lies on the device.
func (b *builder) inputGradient(m int) resource {
	if b.sharesInputs() {
		return resource{sharedInput, b.inputGradBuffer(m), 0}
	}
	return resource{inputGrad, m, 0}
}

// bufferOf is the shared buffer that a resource is, -1 for what is none.
func bufferOf(r resource) int {
	if r.what == sharedInput {
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

// gather looks the embedding up on the host, before its update or behind it; only the rows travel.
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
		part := b.blockPart(layer)
		w := b.weights(part)
		for m := range b.Numerics.MicroBatches {
			x, y := b.load(layer, m), b.input(layer+1, m)
			o := op(LaneCompute, Forward)
			o.Layer, o.Part, o.Micro, o.Slot, o.Input, o.Output = layer, part, m, b.slotOf(w), bufferOf(x), bufferOf(y)
			writes := []resource{y, {scratch, 0, 0}}
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
			if y.what != savedInput {
				if layer < b.blocks() && b.inputSpills(layer) && b.backwards() {
					o := op(LaneDrain, Save)
					o.Layer, o.Micro, o.Input = layer+1, m, bufferOf(y)
					b.add(o, []resource{y}, []resource{{hostInput, layer + 1, m}})
				}
			}
		}
	}
}

// head is the visit of the head. With all tiles on the device each micro-batch goes through it before the next one comes, so that what
// the head has of one is room for all; else each tile sees all of them.
func (b *builder) head() {
	norm := b.weights(b.Model.NormPart)
	if b.Placement.HeadAtOnce {
		b.headAtOnce(norm)
	} else {
		b.headByTiles(norm)
	}
	if b.backwards() {
		b.finishGrad(b.Model.NormPart)
	}
}

func (b *builder) headAtOnce(norm resource) {
	tiles := b.Model.HeadTiles
	var weights, grads []resource
	if b.backwards() {
		b.zeroGrad(b.Model.NormPart)
	}
	for _, p := range tiles {
		weights = append(weights, b.weights(p))
		if b.backwards() {
			b.zeroGrad(p)
			grads = append(grads, b.gradResource(p))
		}
	}
	for m := range b.Numerics.MicroBatches {
		b.headNorm(m, norm)
		switch {
		case b.backwards():
			b.headMicro(HeadVisit, m, append(weights, resource{batchTokens, 0, 0}), append(grads, b.headState(m), resource{results, 0, m}))
			b.headInput(m, norm)
			continue
		case b.Phase == Logits:
			for i, p := range tiles {
				b.logits(p, m, weights[i])
			}
			continue
		}
		for i, p := range tiles {
			b.headStats(p, m, weights[i])
		}
		b.headLoss(m)
	}
	if !b.backwards() {
		return
	}
	// The tiles are complete all at once. Those that a slot waits for are rounded now, less the norm's that follows; the others each
	// behind a block, while the gradients before them drain.
	free := b.Placement.Rings.Rounded - 1
	for _, p := range slices.Backward(tiles) {
		if !b.staged() || b.Tied(p) || b.StateResident(p) || free > 0 {
			b.finishGrad(p)
			free--
		} else {
			b.late = append(b.late, p)
		}
	}
}

func (b *builder) headByTiles(norm resource) {
	tiles, micros := b.Model.HeadTiles, b.Numerics.MicroBatches
	for m := range micros {
		b.headNorm(m, norm)
	}
	if b.backwards() {
		b.zeroGrad(b.Model.NormPart)
	}
	for _, p := range tiles {
		w := b.weights(p)
		for m := range micros {
			if b.Phase == Logits {
				b.logits(p, m, w)
			} else {
				b.headStats(p, m, w)
			}
		}
	}
	if b.Phase == Logits {
		return
	}
	for m := range micros {
		b.headLoss(m)
	}
	if !b.backwards() {
		return
	}
	for i, p := range slices.Backward(tiles) {
		w := b.weights(p)
		b.zeroGrad(p)
		for m := range micros {
			o := op(LaneCompute, HeadGrad)
			o.Part, o.Micro, o.Slot, o.Grad = p, m, b.slotOf(w), b.gradIndex(p)
			o.First = i == len(tiles)-1
			b.add(o, []resource{w, {batchTokens, 0, 0}}, []resource{b.gradResource(p), b.headState(m), {scratch, 0, 0}})
		}
		b.finishGrad(p)
	}
	for m := range micros {
		b.headInput(m, norm)
	}
}

// headState is what the head has of a micro-batch: its normed input, statistics, the gradient of the input.
func (b *builder) headState(m int) resource { return resource{headState, b.HeadBuffer(m), 0} }

func (b *builder) headMicro(kind Kind, m int, reads, writes []resource) {
	o := op(LaneCompute, kind)
	o.Micro = m
	b.add(o, reads, append(writes, resource{scratch, 0, 0}))
}

func (b *builder) headNorm(m int, norm resource) {
	o, x := op(LaneCompute, HeadNorm), b.input(b.blocks()+1, m)
	o.Micro, o.Input = m, bufferOf(x)
	b.add(o, []resource{norm, x}, []resource{b.headState(m), {scratch, 0, 0}})
}

func (b *builder) headStats(part, m int, w resource) {
	o := op(LaneCompute, HeadStats)
	o.Part, o.Micro, o.Slot = part, m, b.slotOf(w)
	b.add(o, []resource{w, {batchTokens, 0, 0}}, []resource{b.headState(m), {scratch, 0, 0}})
}

func (b *builder) headLoss(m int) {
	b.headMicro(HeadLoss, m, []resource{{batchTokens, 0, 0}}, []resource{b.headState(m), {results, 0, m}})
}

func (b *builder) headInput(m int, norm resource) {
	o, x, dx := op(LaneCompute, HeadInput), b.input(b.blocks()+1, m), b.inputGradient(m)
	o.Micro, o.Input, o.Output = m, bufferOf(x), bufferOf(dx)
	b.add(o, []resource{norm, x, b.headState(m)}, []resource{dx, b.gradResource(b.Model.NormPart), {scratch, 0, 0}})
}

// logits brings the logits of the wanted rows of a micro-batch to the host, a tile's columns and a chunk at a time. Where everything is
// bound they are computed where the host reads them.
func (b *builder) logits(part, m int, w resource) {
	for c := range b.logitChunks() {
		compute := op(LaneCompute, HeadLogits)
		compute.Part, compute.Micro, compute.Slot, compute.Chunk = part, m, b.slotOf(w), c
		reads := []resource{w, b.headState(m)}
		if b.Bound() {
			b.add(compute, reads, []resource{{hostLogits, 0, 0}})
			continue
		}
		b.add(compute, reads, []resource{{logitChunk, 0, 0}})
		drain := op(LaneDrain, DrainLogits)
		drain.Part, drain.Micro, drain.Chunk = part, m, c
		b.add(drain, []resource{{logitChunk, 0, 0}}, []resource{{hostLogits, 0, 0}})
	}
}

func (b *builder) backward() {
	b.down = true
	for layer := b.blocks(); layer >= b.lowestTrained(); layer-- {
		part := b.blockPart(layer)
		w := b.weights(part)
		b.zeroGrad(part)
		for m := range b.Numerics.MicroBatches {
			x := b.load(layer, m)
			o := op(LaneCompute, Backward)
			dx := b.inputGradient(m)
			o.Layer, o.Part, o.Micro, o.Slot, o.Grad, o.Input, o.Output = layer, part, m, b.slotOf(w), b.gradIndex(part), bufferOf(x), bufferOf(dx)
			writes := []resource{dx, b.gradResource(part), {scratch, 0, 0}}
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

// finishLate rounds so many of the head's gradients that wait for it, and brings them home.
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

// finishGrad rounds a gradient that has got all its contributions, and brings it home. A tied tile goes home unrounded.
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
			writes = append(writes, b.storedHere(part))
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

// embedTrained reports whether anything needs the gradient of x[1].
func (b *builder) embedTrained() bool { return slices.ContainsFunc(b.Model.EmbedTiles, b.Trained) }

// drainInput takes the gradient of x[1][m] home as soon as there is one: what follows it ends the step.
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

// collect ends a step: its sums of squares and losses come home together. Where results are bound they are there.
func (b *builder) collect() {
	if b.Bound() {
		return
	}
	reads := []resource{{results, 2, 0}}
	for part := range b.Model.Parts {
		reads = append(reads, resource{results, 1, part})
	}
	for m := range b.Numerics.MicroBatches {
		reads = append(reads, resource{results, 0, m})
	}
	b.add(op(LaneDrain, Collect), reads, nil)
}
