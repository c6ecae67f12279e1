package plan

import (
	"slices"
)

// What says what an operand is.
type What uint8

// What operations read and write. Index is of a part, a layer or a chunk.
const (
	Stored    What = iota // part: all that the store keeps of it from step to step
	Weights               // part
	State                 // part: its low halves and moments; of state that passes, the rounded gradient as well
	Gradient              // part: the fp32 sum over micro-batches; of a tied tile in host memory, of a cohort
	CohortSum             // part: the fp32 sum over the micro-batches of a cohort, before it is added to the others
	Narrowed              // part: such a sum, rounded to bf16 (Numerics.Exchange)
	Total                 // part: the fp32 sum of those of all hosts, in their order
	Rounded               // part: its gradient in the type that is stored
	Tokens                // of all micro-batches
	Input                 // layer and micro-batch: x
	InputGrad             // micro-batch: dx
	Kept                  // layer and micro-batch: what forward leaves for backward
	Outcome               // layer and micro-batch: what its parts made of rows, which forward leaves for backward
	Cache                 // layer: what it keeps from pass to pass
	Side                  // side and micro-batch: what crosses blocks besides x
	SideGrad              // side and micro-batch: its gradient
	Held                  // layer and micro-batch: what the layer has between its visits of one direction
	HeadUp                // micro-batch: of what the head has, what passes from tile to tile before there are losses
	HeadDown              // micro-batch: and after
	Work                  // scratch of the compute lane
	LossSum               // micro-batch
	Loads                 // layer: how many rows chose each expert
	Balance               // block with a load-balancing loss, none for all: how often its experts were chosen
	Squares               // part: the sum of squares of its rounded gradient
	Tally                 // what updates tell: device.OptimizerOps
	LogitRows             // chunk of the wanted rows, and micro-batch
	Results               // the scalars of a step together
	whats
)

// Operand is something that an operation reads or writes, and where it is. The schedule names it; the engine knows the
// memory of each.
type Operand struct {
	What         What
	Index, Micro int // none where it has no such index
	At           Place
	Rank         int // of a place on a device
	Slot         int // of a ring, or of buffers that inputs share or pass through; none where it has memory of its own
	// Cohort is the one whose sum it is, where cohorts have sums of their own; else 0. Cohorts are numbered on their
	// host, but in a CohortSum in host memory and in a Balance in the whole step. Of a Balance, none stands for all.
	Cohort int
}

// touches are who touched pieces of memory last.
type touches struct {
	written []int // by piece: the last operation that wrote it, plus one
	read    []int // by piece and worker: since then, the last operation of the worker that read it, plus one
}

// forget makes it hold nothing, with room for as much.
func (t *touches) forget() { t.written, t.read = t.written[:0], t.read[:0] }

// hold makes it hold pieces that no operation has touched.
func (t *touches) hold(pieces, workers int) {
	t.written = slices.Grow(t.written, pieces)[:pieces]
	t.read = slices.Grow(t.read, pieces*workers)[:pieces*workers]
	clear(t.written)
	clear(t.read)
}

// touch is one of them.
type touch struct {
	written *int
	read    []int
}

// The kinds of memory of an operand.
const (
	ownMemory = iota // of the part, the layer or the micro-batch
	ringMemory
	homeMemory // outside of the device
	memories
)

// touch is the entry of an operand's memory. Two operands may have the same: weights that are used where they are stored,
// slots of a ring, buffers that inputs share. There are as many entries as a step has micro-batches in all layers, and
// each is asked for often, so they are in arrays, by kind, that are made when they are needed.
func (b *builder) touch(o Operand) touch {
	parts, micros := len(b.Model.Parts), b.Numerics.MicroBatches
	what, memory, count, i, rank := o.What, ownMemory, parts, o.Index, o.Rank
	ring := func(n int) {
		if o.Slot != none {
			memory, count, i = ringMemory, n, o.Slot
		}
	}
	inLayer := func() { count, i = (b.blocks()+2)*micros, o.Index*micros+o.Micro }
	outside := o.At == Host || o.At == Disk
	switch rings := &b.Placement.Rings; what {
	case Weights:
		if ring(rings.Weights); o.At == InPlace {
			what, rank = Stored, 0 // of the host, whichever device uses them
		}
	case State:
		ring(rings.State)
	case Gradient:
		switch ring(rings.Gradients); {
		case o.At == InPlace: // summed where it is stored
			what, memory, count = Rounded, homeMemory, parts+sharedGrads+1
		case outside:
			memory = homeMemory
		}
	case Rounded:
		if ring(rings.Rounded); outside {
			memory, count = homeMemory, parts+sharedGrads+1
			if o.Slot != none {
				i = parts + o.Slot
			}
		}
	case Input, InputGrad:
		switch {
		case outside && o.Slot != none: // rows on their way
			what, memory = InputGrad, homeMemory
			count, i = micros, o.Slot
		case outside: // a gradient lands where the input was
			what, memory = Input, homeMemory
			inLayer()
		case o.Slot != none:
			what = Input
			ring(micros + rings.Inputs)
		case what == InputGrad:
			count, i = micros, o.Micro
		case b.savedOn(rank, o.Index):
			inLayer()
		default: // two working buffers take turns
			memory, count, i = ringMemory, 2*micros, o.Index%2*micros+o.Micro
		}
	case Kept:
		if inLayer(); outside {
			memory = homeMemory
		} else {
			ring(rings.Activations)
		}
	case Outcome:
		switch inLayer(); {
		case outside:
			memory = homeMemory
		case b.outcomePasses(o.Index - 1): // through a buffer of the micro-batch
			memory, count, i = ringMemory, micros, o.Micro
		}
	case Cache:
		if count = b.blocks() + 1; outside {
			memory = homeMemory
		} else {
			ring(cacheSlots)
		}
	case Side, SideGrad:
		if count, i = len(b.Model.Sides)*micros, o.Index*micros+o.Micro; outside {
			memory = homeMemory
		}
		if b.gradTakesSide(o.Index) {
			what = Side
		}
	case Held, HeadUp, HeadDown: // of one layer at a time
		switch what = Held; {
		case outside:
			what, memory, count, i = HeadUp, homeMemory, 2*headPassing*b.headHops(0), o.Slot
		case o.Index > b.blocks():
			count, i = 2*micros, micros+b.HeadBuffer(o.Micro)
		default:
			count, i = 2*micros, o.Micro
		}
	case LossSum:
		count, i = micros, o.Micro
	case CohortSum:
		if count, i = 1, 0; outside { // on a device parts take turns
			memory, count, i = homeMemory, b.sums.slots, o.Slot
		}
	case Total: // of one part at a time
		memory, count, i = homeMemory, 1, 0
	case Squares, Stored:
	case Results:
		memory, count, i = homeMemory, b.ranks, o.Index
	default:
		count, i = 1, 0
		if outside || what == LogitRows && o.At == InPlace {
			memory = homeMemory
		}
	}
	if memory != homeMemory {
		count, i = count*b.ranks, rank*count+i
	}
	list, workers := &b.touched[what][memory], len(b.waited)
	if len(list.written) == 0 {
		list.hold(count, workers)
	}
	return touch{&list.written[i], list.read[i*workers:][:workers]}
}

// add appends an operation on what it reads and writes, and works out what it waits for.
func (b *builder) add(op Op, reads, writes []Operand) *Op {
	op.Reads, op.Writes = b.list(reads), b.list(writes)
	need, worker := b.need, b.crew.Index(op.Worker)
	clear(need)
	touching := b.touching[:0]
	for _, r := range reads {
		t := b.touch(r)
		touching = append(touching, t)
		b.needWriter(t)
	}
	for _, w := range writes {
		t := b.touch(w)
		touching = append(touching, t)
		b.needWriter(t)
		for l, last := range t.read {
			need[l] = max(need[l], last)
		}
	}
	first := len(b.waits)
	for l, n := range need {
		// Workers go in order: what a worker has waited for once, and all before it, is done.
		if waited := &b.waited[worker][l]; l != worker && n > *waited {
			*waited = n
			b.waits = append(b.waits, n-1)
		}
	}
	if n := len(b.waits); n > first {
		op.After = b.waits[first:n:n]
		slices.Sort(op.After)
	}
	i := len(b.ops)
	b.ops = append(b.ops, op)
	for _, t := range touching[len(reads):] {
		*t.written = i + 1
		clear(t.read)
	}
	for _, t := range touching[:len(reads)] {
		t.read[worker] = i + 1
	}
	b.touching = touching
	return &b.ops[i]
}

// list is a copy that lives as long as the schedule; all of a schedule's are in few allocations.
func (b *builder) list(all []Operand) []Operand {
	b.listed += len(all)
	if len(b.operands)+len(all) > cap(b.operands) {
		b.operands = make([]Operand, 0, max(4096, len(all)))
	}
	first := len(b.operands)
	b.operands = append(b.operands, all...)
	return b.operands[first:len(b.operands):len(b.operands)]
}

// needWriter has an operation wait for the last one that wrote an operand's memory.
func (b *builder) needWriter(t touch) {
	if n := *t.written; n > 0 {
		w := b.crew.Index(b.ops[n-1].Worker)
		b.need[w] = max(b.need[w], n)
	}
}
