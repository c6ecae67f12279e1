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
	// Saves takes the state of every part to a checkpoint, after its update if it has one. The state is then the one
	// after the step before.
	Saves bool
	// Loaded says that a schedule before has brought what lives on the device there; else this one does, if it runs
	// layers.
	Loaded bool
	// WriteBack copies state that is resident on the device to the store, after its update, for who reads it there.
	WriteBack bool
}

// usual is the mode in which a phase comes without a save: state is on the device from the second step on, and a
// flush writes it back.
func usual(phase Phase) Mode {
	return Mode{Phase: phase, Loaded: phase == Steady || phase == Flush, WriteBack: phase == Flush}
}

// The problem. A step has thousands of operations on five lanes that overlap: a layer is fetched while another one
// computes, gradients drain while the next layer's are summed, parts are updated while the first layers run forward.
// Each operation must wait for just those that it depends on: one too few spoils bits once in a thousand steps, one
// too many serializes lanes.
//
// The obvious answer is to write the dependencies down: "a forward visit waits for the fetch of its weights, a fetch
// waits until the slot's last reader is done, a drain waits for the rounding". The first version did. Every feature
// (state on the device, spilled activations, shared buffers) touched every rule that it met, and the rules that were
// forgotten showed as rare differences in bits.
//
// The answer here: the builder emits operations in an order in which they could run one after the other. For each it
// names only the resources that the operation reads and writes (a slot, a buffer, an extent). One place derives who
// waits for whom:
//
//	add(op, reads, writes):
//		for each r in reads:   wait for the last writer of r
//		for each w in writes:  wait for the last writer of w and for all its readers since
//		leave out waits that the own lane's order implies, and those this lane has already made
//
// Where an operation is emitted at all follows from comparing the place of a thing (Table) with the place where its
// reader needs it: weights that are streamed get a fetch before their visit, an input that spills gets a save after
// it was written and a load before it is read. The files schedule_forward.go, schedule_head.go, schedule_backward.go
// and schedule_update.go have the visits; resources.go has add. Tests draw any placement and replay the schedule in
// memory that forgets what is overwritten.

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
		for _, part := range p.Model.DecoderParts() {
			if p.StatePasses(part) {
				b.passing = append(b.passing, part)
			}
		}
		b.fetchPassing()
	}
	// The first block travels while the embedding is updated and looked up.
	first, others := p.Model.BlockParts[0], p.Model.DecoderParts()[1:]
	b.update(first)
	if !ahead {
		b.update(p.Model.EmbedTiles...)
		if b.runs() {
			b.gather(Gather)
		}
	}
	b.update(others...)
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

// backwards reports whether the schedule has a backward pass.
func (b *builder) backwards() bool { return b.Phase == Prologue || b.Phase == Steady }

// visits are the parts that pass through the ring, in order.
func (b *builder) visits() []int {
	var v []int
	see := func(part int) {
		if b.streamed(part) {
			v = append(v, part)
		}
	}
	tiles := b.Model.HeadTiles
	for _, p := range b.Model.DecoderParts() {
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
	for block := b.blocks() - 1; block >= b.lowestTrained()-1; block-- {
		trunk, groups := b.Model.BlockParts[block], b.Model.GroupParts[block]
		if len(groups) > 0 {
			see(trunk)
		}
		for _, p := range slices.Backward(groups) {
			see(p)
		}
		see(trunk)
	}
	return v
}

// collect ends a step: its sums of squares and losses come to the host together. Where results are bound they are
// there.
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
