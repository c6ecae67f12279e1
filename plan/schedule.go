package plan

import (
	"slices"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/trace"
)

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
// names only the operands that the operation reads and writes. One place derives who waits for whom:
//
//	add(op, reads, writes):
//		for each r in reads:   wait for the last writer of r's memory
//		for each w in writes:  wait for the last writer of w's memory and for all its readers since
//		leave out waits that the own lane's order implies, and those this lane has already made
//
// What computes comes from the layers, which state their visits (nn.Visit): the loop in schedule_layers.go knows no
// layer. Where something is moved at all follows from comparing the place of a thing (Table) with the place where its
// reader needs it: weights that are streamed get a fetch before their visit, an input that spills gets a save after
// it was written and a load before it is read (schedule_moves.go). Tests draw any placement and replay the schedule in
// memory that forgets what is overwritten.

// builder writes a schedule in serial order and finds out what waits for what: an operation comes after the last one
// that wrote what it touches, and after all that read what it writes.
type builder struct {
	*Plan
	Mode
	scheduleMemory
	cells         *Cells
	at            visiting
	reads, writes []Operand // of the visit that is emitted

	waited [][]int // by worker: how far into each other worker's it has waited, plus one
	await  []int   // of the operation that is added: by worker

	crew     trace.Crew
	ranks    int
	devices  []onRank  // by rank
	passing  []int     // parts whose state passes, in order, that have yet to be updated
	passed   int       // how many of them are on the device, or were there
	gradOf   []int     // by part: the slot of its fp32 gradient, or none
	late     []int     // parts of the head whose gradients are complete and not rounded
	down     bool      // the backward pass has begun
	cohort   int       // whose visits are emitted
	weightOf []Operand // by part, by its number in the layer: its weights, for a stage
	summed   []int     // parts whose gradients a stage sums
	later    []nn.Uses // by stage of a layer: what the stages after it write
	summedOn []int     // by side and micro-batch: the rank that has its gradient, or none
	onHead   []onHead  // by micro-batch, of a dealt head
	sums     sumRing
}

// scheduleMemory holds a schedule. A search that reads one schedule after the other has them all in the
// same memory.
type scheduleMemory struct {
	ops      []Op
	operands []Operand // of the latest operations, which have slices of it
	waits    []int     // of all operations, which have slices of it
	listed   int       // operands of all operations
	written  []int32   // by cell: the last operation that wrote it, plus one
	read     []int32   // by cell and worker: since then, the last operation of the worker that read it, plus one
	holds    []content // by cell of a device: the value that is there, of values that take turns
}

// again is the memory for the next schedule, which overwrites the one that is there.
func (m scheduleMemory) again() scheduleMemory {
	if cap(m.operands) < m.listed {
		m.operands = make([]Operand, 0, m.listed+m.listed/8)
	}
	return scheduleMemory{ops: m.ops[:0], operands: m.operands[:0], waits: m.waits[:0], written: m.written,
		read: m.read, holds: m.holds}
}

// onRank is the progress of a schedule on one device.
type onRank struct {
	slots  slotRing
	grad   int   // next fp32 gradient slot of the ring
	stage  int   // next slot for rounded gradients
	kept   []int // by visit so far: slot of the ring of what is kept on the host
	cache  int   // next slot of the ring for caches
	counts bool  // weights that become infinite or NaN are counted here
}

// ScheduleOf is the schedule of a mode.
func (p *Plan) ScheduleOf(mode Mode) *Schedule {
	var mem scheduleMemory
	return p.scheduleIn(mode, &mem)
}

// scheduleIn is ScheduleOf in memory from which the schedule before vanishes.
func (p *Plan) scheduleIn(mode Mode, mem *scheduleMemory) *Schedule {
	cells := p.Cells()
	switch {
	case mode.Pass.Continues:
		p = p.pass()
	case mode.Pass.Steps() && !p.Trains():
		mode.Pass = Forwards // no gradient has memory
	}
	b := &builder{Plan: p, Mode: mode, scheduleMemory: mem.again(), cells: cells,
		gradOf:   slices.Repeat([]int{none}, len(p.Model.Parts)),
		summedOn: slices.Repeat([]int{none}, len(p.Model.Sides)*p.Numerics.MicroBatches)}
	b.ops = slices.Grow(b.ops, p.aboutOps())
	b.crew = p.Crew()
	workers, micros := len(b.crew.Workers()), p.Numerics.MicroBatches
	b.ranks, b.await, b.waited = b.crew.Ranks, make([]int, workers), make([][]int, workers)
	for w := range b.waited {
		b.waited[w] = make([]int, workers)
	}
	b.forget(cells.count, workers)
	b.devices, b.sums, b.onHead = make([]onRank, b.ranks), p.newSumRing(), make([]onHead, micros)
	ahead := b.looksAhead()
	tables := p.Model.Lookups
	for i := range tables {
		if ahead {
			b.lookup(DoLookupAhead, &tables[i], 0, 1)
		}
	}
	b.passing = b.toPass()
	b.fetchPassing()
	for _, part := range b.updateOrder() {
		b.update(part)
		if ahead && part == p.Model.BlockParts[0] {
			for i := range tables {
				b.lookup(DoLookupAhead, &tables[i], 1, micros)
			}
		}
		l := p.Model.LookupOf(part)
		if l != nil && part == l.Tiles[len(l.Tiles)-1] && !ahead && b.reachesTables() && !b.waitsForChain(l) {
			b.lookup(DoLookup, l, 0, micros)
		}
	}
	if b.Pass.Runs() {
		legs := b.walk()
		b.holdSaved()
		for rank := range b.devices {
			b.devices[rank].slots.plan(p.Placement.Rings.Weights, b.visited(legs, rank), len(p.Model.Parts))
			b.upload(rank)
		}
		waiting := b.waiting()
		for i, leg := range legs {
			head := leg.layer > b.blocks()
			if head && b.Pass.Steps() && b.Pass.Half != ForUpdates { // and then down
				b.gatherBalance()
			}
			if l := p.Model.TableOf(leg.layer); l != nil && leg.to != nn.Backward && b.waitsForChain(l) {
				b.lookup(DoLookup, l, 0, micros)
			}
			b.layer(leg)
			for _, part := range waiting[i*len(waiting)/len(legs) : (i+1)*len(waiting)/len(legs)] {
				b.updateOnHost(part)
			}
			if head && b.Pass.Steps() && b.reachesTables() {
				for i := range tables {
					b.prepareScatter(&tables[i])
				}
			}
		}
	}
	for i := range tables {
		if b.Pass.Steps() && b.reachesTables() {
			b.scatter(&tables[i])
		}
	}
	for rank := range b.devices {
		if b.Pass.Runs() && b.Pass.To != ToLogits || b.devices[rank].counts {
			b.collect(rank)
		}
	}
	*mem = b.scheduleMemory
	return &Schedule{Ops: b.ops}
}

// pass is the plan as passes that continue sequences see it: they have one micro-batch, however many a step has.
func (p *Plan) pass() *Plan {
	one := *p
	one.Numerics.MicroBatches, one.Numerics.Cohorts, one.Numerics.ForwardOnly = 1, 1, 0
	return &one
}

// aboutOps is about how many operations a step has, for room.
func (p *Plan) aboutOps() int {
	return p.Numerics.MicroBatches*(4*p.blocks()+2*len(p.Model.HeadTiles)+8) + 8*len(p.Model.Parts)
}

func op(lane Lane, rank int, do Do) Op {
	return Op{Worker: Worker{Lane: lane, Rank: rank}, Do: do, Layer: none, Part: none, Micro: none, Host: none}
}

// updates reports whether the schedule carries out the pending updates.
func (b *builder) updates() bool { return b.Pass.Updates && !b.UpdatesInBackward() }

// looksAhead reports whether rows of tables are looked up before the tables are updated.
func (b *builder) looksAhead() bool { return b.Pass.Runs() && b.updates() && b.Placement.LookAhead }

// waitsForChain reports whether rows of a table are looked up when their chain begins: a device that uses them where
// the host writes them has those of the chain before there.
func (b *builder) waitsForChain(l *model.Lookup) bool { return b.Bound() && l.Side < 0 && l.Layer > 1 }

// updateOrder lists the parts in the order of their updates. The first block travels while the tables are updated and
// looked up.
func (b *builder) updateOrder() []int {
	var tables, head []int
	for i := range b.Model.Lookups {
		tables = append(tables, b.Model.Lookups[i].Tiles...)
	}
	if !b.Model.Tied {
		head = b.Model.HeadTiles
	}
	blocks := b.Model.DecoderParts()
	rest := slices.Concat(blocks[1:], []int{b.Model.NormPart}, head)
	if b.looksAhead() {
		return slices.Concat(blocks[:1], rest, tables)
	}
	return slices.Concat(blocks[:1], tables, rest)
}

// toPass are the parts whose state passes through a device, in order.
func (b *builder) toPass() (parts []int) {
	for _, part := range b.Model.DecoderParts() {
		if b.Pass.Runs() && b.updates() && b.StatePasses(part) {
			parts = append(parts, part)
		}
	}
	return parts
}

// leg is a layer and its stages in one direction.
type leg struct {
	layer  int
	to     nn.Direction
	parts  []int // of the layer
	stages []nn.Stage
}

// walk lists what a schedule goes through: the blocks, the head, and the blocks down to the lowest one that is trained.
func (b *builder) walk() (legs []leg) {
	enter := func(layer int, to nn.Direction) {
		legs = append(legs, leg{layer, to, b.Model.LayerParts(layer), b.stages(layer, to)})
	}
	up := nn.Forward
	if b.Pass.Continues {
		up = nn.Continue
	}
	first := 1
	if b.Pass.Half == ForUpdates {
		first = b.blocks()
	}
	for layer := first; layer <= b.blocks(); layer++ {
		enter(layer, up)
	}
	switch {
	case b.Pass.Steps():
		enter(b.blocks()+1, nn.Backward)
	case b.Pass.To == ToLogits:
		enter(b.blocks()+1, nn.Logits)
	default:
		enter(b.blocks()+1, nn.Forward)
	}
	for layer := b.blocks(); b.Pass.Steps() && layer >= b.lowest(); layer-- {
		enter(layer, nn.Backward)
	}
	return legs
}

// visited are the parts that pass through a rank's ring of slots, in order.
func (b *builder) visited(legs []leg, rank int) (parts []int) {
	for _, r := range legs {
		if b.RankOf(r.layer, r.to) != rank {
			continue
		}
		for _, stage := range r.stages {
			for _, i := range partsOf(stage) {
				if part := r.parts[i]; b.streamed(part) {
					parts = append(parts, part)
				}
			}
		}
	}
	return parts
}

// partsOf are the parts of a stage's visits, by their number in the layer, each once and in order.
func partsOf(stage nn.Stage) (parts []int) {
	if len(stage) == 1 {
		return stage[0].Parts
	}
	for _, v := range stage {
		parts = append(parts, v.Parts...)
	}
	slices.Sort(parts)
	return slices.Compact(parts)
}
