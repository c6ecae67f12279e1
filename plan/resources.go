package plan

import (
	"slices"
)

// resource is something that operations read and write: a buffer, or an extent.
type resource struct {
	what resourceKind
	a, b int
}

type resourceKind uint8

const (
	hostWeights   resourceKind = iota // part
	hostGrad                          // part, or the room that it shares with others
	gradSum                           // part: fp32 gradient of a tied tile in host memory
	slotWeights                       // slot
	ownWeights                        // part: resident
	ownState                          // part: low halves and moments on the device
	ownRounded                        // part: rounded gradient of such a part
	stateSlot                         // slot: state that passes, with the rounded gradient
	gradSlot                          // slot
	ownGradient                       // part
	stageSlot                         // slot
	batchTokens                       //
	workingInput                      // parity, micro-batch: x between two layers
	betweenVisits                     // micro-batch: what a block in groups has between its visits
	keptSlot                          // slot
	hostKept                          // layer, micro-batch: what is kept, in host memory
	savedInput                        // layer, micro-batch: x kept on the device
	hostInput                         // layer, micro-batch: x in host memory
	inputGrad                         // micro-batch: dx
	sharedInput                       // buffer: x or dx of a micro-batch, where they share some
	headState                         // buffer: normed input, statistics, fp32 gradient of it
	scratch                           // the work arena of the compute lane
	results                           // scalars: of a micro-batch (0), of a part (1), the count of bad weights (2)
	logitChunk                        // a chunk's logits of a tile on the device
	hostLogits                        // the wanted logits in host memory
	resourceKinds
)

// touch is who touched a resource last.
type touch struct {
	written int        // the last operation that wrote it, plus one
	read    [Lanes]int // since then, the last operation of each lane that read it, plus one
}

// touch is the entry of a resource. There are as many as a step has micro-batches in all layers, and each is asked
// for often, so they are in arrays, by kind, that are made when they are needed.
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
	case inputGrad, headState, betweenVisits:
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
