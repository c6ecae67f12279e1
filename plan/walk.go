package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/trace"
)

// The problem. simulate.go says what a walk computes. A search walks through hundreds of schedules, of thousands of
// operations each, so an operation may cost no more than a few steps of the loop.
//
// The obvious answer keeps the times at which operations end in a heap, and takes the earliest. Lanes slow each other
// down, though: a copy that begins changes the rate of the copy next to it, and of the update. So each begin and each
// end moves times of others in the heap.
//
// The answer here keeps no times of ends. Each operation under way has the seconds of work and of disk that it would
// still need alone (activeOp). A turn of the loop in walk does this:
//
//	begin                each worker that is free takes the next operation of its queue, if the waits of that are over
//	slow, shareDisk      give each busy worker its rates
//	untilNext            finds the shortest time in which one of them is done with its work or its disk
//	spend, end           let that time pass for all of them, and free the workers that have nothing left
//
// A turn looks at workers, never at the operations that wait in queues. It finishes the work, the disk or both of at
// least one operation, so there are at most two turns for each. A schedule is written in a serial order. So the first
// operation that is not done waits for no other one. It is under way or at the head of its queue, and no walk gets
// stuck.

// interval has the time that an operation, or the disk for it, takes of a lane.
type interval struct {
	Worker
	op         *Op
	mark       byte // in the timeline
	begin, end float64
	until      float64 // when it has got as far, where other lanes slow it down; else the end
}

// activeOp is an operation that a worker is at. Its reads and writes of the disk pass through staging memory while it
// works, piece by piece. That memory is small compared with the whole, so the operation is done when work and disk are.
type activeOp struct {
	op         int
	work, disk float64 // seconds that are left if neither is shared
	read       float64 // share of reads in what the disk does for it
	apart      bool    // a copy that takes neither the link to the host nor its memory
	up, down   float64 // of a visit, shares of its work in which it reads and writes host memory over the link
}

// walking says how to simulate.
type walking struct {
	pass bool // of a model that trains: a pass between steps, and no step
	// unloaded is that another plan has had the device: what lives there comes again.
	unloaded bool
	micros   int // that are simulated one by one: of a step with more, neighbours are one (microGroups)
	// seconds; a step that is seen to take longer is not walked to its end, and predicted to take forever; 0: no limit
	most    float64
	memory  *walkMemory // nil: memory of its own
	see     func(interval)
	stalled func(next, culprit *Op, seconds float64) // times in which the compute lane waits
}

// walkMemory holds a schedule and what a walk through it needs. A search that walks through one schedule after the
// other has them all in the same memory. All are of plans for one request.
type walkMemory struct {
	schedule scheduleMemory
	pending  []activeOp // by operation: as it begins
	next     []int      // by operation: the next one of its worker, or none
	done     []bool     // by operation
	visits   visitCosts
}

// room makes room for a walk through n operations.
func (m *walkMemory) room(n int) {
	m.pending, m.next = slices.Grow(m.pending[:0], n)[:n], slices.Grow(m.next[:0], n)[:n]
	m.done = slices.Grow(m.done[:0], n)[:n]
	clear(m.done)
}

// walker is on its way through a schedule.
type walker struct {
	*walkMemory
	ops     []Op
	crew    trace.Crew
	workers []Worker
	link    []int      // by worker: the number of the link that it copies over; workers of one link follow each other
	head    []int      // by worker: its next operation, or none
	met     []int      // by worker: how many of the waits of that operation are known to be over
	at      []activeOp // by worker: what it is at
	busy    []int      // the workers that are at something, in order
	toCome  []float64  // by worker: see walk
	slowed  []float64  // by worker: the factor by which others slow down its work
	disk    []float64  // by worker: its share of the disk
	want    []int      // workers that want the disk
}

// newWalker makes a walker through operations, with room for what they cost.
func newWalker(ops []Op, crew trace.Crew, mem *walkMemory) *walker {
	mem.room(len(ops))
	workers := crew.Workers()
	n := len(workers)
	w := &walker{walkMemory: mem, ops: ops, crew: crew, workers: workers, link: make([]int, n), head: make([]int, n),
		met: make([]int, n), at: make([]activeOp, n), busy: make([]int, 0, n), toCome: make([]float64, n),
		slowed: make([]float64, n), disk: make([]float64, n), want: make([]int, 0, n)}
	for i := range workers {
		if w.head[i] = none; i > 0 {
			w.link[i] = w.link[i-1]
			if workers[i].Rank != workers[i-1].Rank {
				w.link[i]++
			}
		}
	}
	return w
}

// queue puts an operation at the end of its worker's queue; last is by worker the one that is there.
func (w *walker) queue(i int, last []int) (worker int) {
	worker = w.crew.Index(w.ops[i].Worker)
	w.next[i] = none
	if last[worker] == none {
		w.head[worker] = i
	} else {
		w.next[last[worker]] = i
	}
	last[worker] = i
	return worker
}

// ready reports whether nothing holds up the next operation of a worker.
func (w *walker) ready(worker int) bool {
	after, met := w.ops[w.head[worker]].After, w.met[worker]
	for met < len(after) && w.done[after[met]] {
		met++
	}
	w.met[worker] = met
	return met == len(after)
}

// begin has each worker that is free take its next operation, if nothing holds that up: none overtakes within its
// queue. It reports false if the step cannot end within most seconds, where most is not 0.
func (w *walker) begin(now, most float64) bool {
	late := func(sec float64) bool { return most > 0 && now+sec > most*(1+rounding) }
	if late(w.toCome[LaneDisk]) {
		return false
	}
	b := 0 // in w.busy
	for worker, head := range w.head {
		switch {
		case b < len(w.busy) && w.busy[b] == worker:
			b++
		case head == none:
		case late(w.toCome[worker]):
			return false
		case w.ready(worker):
			w.at[worker] = w.pending[head]
			w.head[worker], w.met[worker] = w.next[head], 0
			w.toCome[worker] -= w.at[worker].work
			w.busy = slices.Insert(w.busy, b, worker)
			b++
		}
	}
	return true
}

// end has the workers that are done with their operations be free.
func (w *walker) end() (ended int) {
	busy := w.busy[:0]
	for _, worker := range w.busy {
		if at := &w.at[worker]; at.work == 0 && at.disk == 0 {
			w.done[at.op] = true
			ended++
		} else {
			busy = append(busy, worker)
		}
	}
	w.busy = busy
	return ended
}

// walk simulates, and counts the operations that it has simulated.
func (p *Plan) walk(m Machine, dev device.Info, walk walking) (out Prediction, operations int) {
	switch {
	case p.Outputs.Continues() && (walk.pass || !p.Trains()):
		return p.walkPass(Continue, m, dev, walk)
	case !p.Trains():
		return p.walkPass(Forwards, m, dev, walk)
	case !p.Placement.Twice:
		return p.walkPass(Steady, m, dev, walk)
	}
	out, operations = p.walkPass(FirstHalf, m, dev, walk)
	if walk.most > 0 && out.StepSeconds >= walk.most {
		out.StepSeconds = math.Inf(1)
		return out, operations
	}
	again := walk
	if walk.most > 0 {
		again.most = walk.most - out.StepSeconds
	}
	if begin := out.StepSeconds; walk.see != nil {
		again.memory = nil // the operations of the first half are known by their addresses
		again.see = func(s interval) {
			s.begin, s.end, s.until = begin+s.begin, begin+s.end, begin+s.until
			walk.see(s)
		}
	}
	second, more := p.walkPass(SecondHalf, m, dev, again)
	return out.then(&second), operations + more
}

// walkPass simulates the schedule of a pass.
func (p *Plan) walkPass(pass Pass, m Machine, dev device.Info, walk walking) (out Prediction, operations int) {
	mode := usual(pass)
	mode.Loaded, mode.Again = !walk.unloaded, pass == Continue && !walk.unloaded
	groups := p.Numerics.groupMicros(walk.micros)
	grouped := *p
	grouped.Numerics.MicroBatches, grouped.Numerics.ForwardOnly = groups.count, groups.each-groups.trained
	if walk.memory == nil {
		walk.memory = new(walkMemory)
	}
	ops := grouped.scheduleIn(mode, &walk.memory.schedule).Ops
	if p.Cluster.Several() {
		p.awaitOthers(ops, &walk.memory.schedule)
	}
	w := newWalker(ops, p.Crew(), walk.memory)
	cost := groups.costs(p, &m, &w.visits)
	last, spent := slices.Clone(w.head), w.toCome
	readPerSec, writePerSec := p.diskRates(&m)
	for i := range ops {
		c, worker := cost(&ops[i]), w.queue(i, last)
		read, write := seconds(c.read, readPerSec), seconds(c.written, writePerSec)
		a := activeOp{op: i, work: c.seconds(&m, p), disk: read + write,
			read: read / max(read+write, math.SmallestNonzeroFloat64), apart: c.peer > 0 && m.peersHaveLinks()}
		if ops[i].Do == DoVisit && a.work > 0 {
			up, down := float64(c.up)/m.UploadBytesPerSec, float64(c.down)/m.DownloadBytesPerSec
			a.up, a.down = up/a.work, down/a.work
			out.ReachSeconds += up + down
		}
		if dev.Unified && ops[i].Lane == LaneCompute {
			a.work *= float64(p.devices()) // which divide the cores
		}
		w.pending[i] = a
		spent[worker] += a.work
		spent[LaneDisk] += a.disk
		out.add(&c)
	}
	out.busy(w.workers, spent)
	// A worker needs at least the seconds of its operations that have not begun, and the disk, which one lane uses at a
	// time or several share, those that it has not worked. So now + toCome is a lower bound of the step, and rises as
	// waits show.
	network, hidden := 0.0, 0.0 // seconds in which messages pass, and in which a device computes as well
	for now, left := 0.0, len(ops); left > 0; {
		if !w.begin(now, walk.most) {
			out.StepSeconds = math.Inf(1)
			return out, len(ops)
		}
		// Until the next one of them has done its work, or has all that it wants of the disk, the shares stay.
		w.slow(&m, dev.Unified)
		w.shareDisk(&p.Placement)
		step := w.untilNext()
		if walk.stalled != nil && step > 0 {
			w.stalls(walk.stalled, step)
		}
		if messages, computes := w.underWay(); messages {
			if network += step; computes {
				hidden += step
			}
		}
		if walk.see != nil {
			w.show(walk.see, now, step)
		}
		for _, i := range w.busy {
			f := &w.at[i]
			f.work, f.disk = spend(f.work, step/w.slowed[i]), spend(f.disk, step*w.disk[i])
			w.toCome[LaneDisk] -= step * w.disk[i]
		}
		left -= w.end()
		now += step
		out.StepSeconds = now
	}
	if network > 0 {
		out.NetworkHidden = hidden / network
	}
	return out, len(ops)
}

// untilNext returns the seconds until a worker has done its work, or has all that it wants of the disk.
func (w *walker) untilNext() float64 {
	step := math.Inf(1)
	for _, i := range w.busy {
		f := &w.at[i]
		if f.work <= 0 && f.disk <= 0 {
			return 0
		}
		if f.work > 0 {
			step = min(step, f.work*w.slowed[i])
		}
		if f.disk > 0 {
			step = min(step, f.disk/w.disk[i])
		}
	}
	return step
}

// show shows what workers and the disk do from now on.
func (w *walker) show(see func(interval), now, step float64) {
	served := now
	for _, i := range w.busy {
		f := &w.at[i]
		op := &w.ops[f.op]
		if f.disk > 0 {
			part := step * w.disk[i]
			between := served + part*f.read
			see(interval{Worker{Lane: LaneDisk}, op, readMark, served, between, between})
			see(interval{Worker{Lane: LaneDisk}, op, writeMark, between, served + part, served + part})
			served += part
		}
		if f.work > 0 {
			see(interval{w.workers[i], op, MarkOf(op.Name()), now, now + step/w.slowed[i], now + step})
		}
	}
}

// underWay reports whether messages pass, and whether a device computes.
func (w *walker) underWay() (messages, computes bool) {
	for _, i := range w.busy {
		messages = messages || w.workers[i].OnNetwork()
		computes = computes || w.workers[i].Lane == LaneCompute
	}
	return messages, computes
}

// stalls tells of the compute lanes that have nothing to do.
func (w *walker) stalls(stalled func(next, culprit *Op, seconds float64), step float64) {
	for i, worker := range w.workers {
		if worker.Lane != LaneCompute || slices.Contains(w.busy, i) {
			continue
		}
		var next *Op
		if w.head[i] != none {
			next = &w.ops[w.head[i]]
		}
		stalled(next, w.culprit(next), step)
	}
}

// culprit is the operation under way that another one has to wait for in the end, by the schedule's waits and the
// order of the lanes; next is nil after the last operation of its lane, where everything under way has to end.
func (w *walker) culprit(next *Op) *Op {
	if next == nil {
		last := none
		for _, i := range w.busy {
			last = max(last, w.at[i].op)
		}
		return &w.ops[last]
	}
	for {
		for _, d := range next.After {
			if w.done[d] {
				continue
			}
			i := w.crew.Index(w.ops[d].Worker)
			if slices.Contains(w.busy, i) {
				return &w.ops[w.at[i].op]
			}
			next = &w.ops[w.head[i]]
			break
		}
	}
}

// slow sets, by worker, the factor by which the work of others slows it down.
//
// Any set of lanes of any number of devices can be at work together. A table with a factor for each set would need a
// measurement of each. The probe measures two: copies in both directions of one device, and both with an update. Four
// rules make factors of these.
//
//   - On a unified device compute and update share the cores: each takes twice as long while both work.
//   - Copies in both directions share a device's link. Together they take no longer than one after the other, so this
//     factor is at most 2. Fetch and exchange, which both copy to the device, divide the rate of their direction.
//   - A visit that reads or writes host memory takes a share of the link, as a copy that is as long as that takes it
//     alone: it slows copies down by its share, and they its share of its own work.
//   - Copies of one device and an update take the host's memory from each other. One copy slows the update by half as
//     much as both do, and is slowed by half as much. A copy has the larger factor of the link's and the memory's.
//   - Of several devices, and while messages pass, all copies, the update and the messages share the rate of the host's
//     memory. If they ask for more than it gives, each of them gets the same fraction of its own rate. Copies that are
//     apart (activeOp) ask for none.
func (w *walker) slow(m *Machine, unified bool) {
	for _, i := range w.busy {
		w.slowed[i] = 1
	}
	loss := func(alone, together float64) float64 {
		if together == 0 {
			return 1 // not measured
		}
		return max(alone/together, 1)
	}
	updates := w.at[LaneUpdate].work > 0
	if unified {
		for _, i := range w.busy {
			if updates && w.workers[i].Lane == LaneCompute && w.at[i].work > 0 {
				w.slowed[i], w.slowed[LaneUpdate] = 2, 2
			}
		}
		return
	}
	copies, asked := 0.0, 0.0 // in how many directions of links, and by them of the host's memory
	messages := false
	for rest := w.busy; len(rest) > 0; { // a link
		n := 1
		for n < len(rest) && w.link[rest[n]] == w.link[rest[0]] {
			n++
		}
		here := rest[:n]
		rest = rest[n:]
		up, down := 0.0, 0.0           // copies under way
		upShare, downShare := 0.0, 0.0 // of a visit
		for _, i := range here {
			switch of := w.workers[i].Lane; {
			case w.at[i].work <= 0, w.at[i].apart:
			case of == LaneCompute:
				upShare, downShare = w.at[i].up, w.at[i].down
			case of == LaneFetch, of == LaneExchange:
				up++
			case of == LaneDrain:
				down++
			case w.workers[i].OnNetwork():
				messages, asked = true, asked+m.NetworkBytesPerSec
			}
		}
		upload, download := 1.0, 1.0
		if up > 0 && down > 0 {
			upload = min(loss(m.UploadBytesPerSec, m.DuplexUploadBytesPerSec), 2)
			download = min(loss(m.DownloadBytesPerSec, m.DuplexDownloadBytesPerSec), 2)
		}
		for _, i := range here {
			switch of := w.workers[i].Lane; {
			case w.at[i].apart:
			case of == LaneFetch, of == LaneExchange:
				w.slowed[i] = (max(up, 1) + upShare) * upload
			case of == LaneDrain:
				w.slowed[i] = (1 + downShare) * download
			case of == LaneCompute:
				w.slowed[i] = 1 + float64(upShare*min(up, 1)) + float64(downShare*down)
			}
		}
		if up > 0 {
			copies, asked = copies+1, asked+m.UploadBytesPerSec/upload
		}
		copies += upShare + downShare
		if down > 0 {
			copies, asked = copies+1, asked+m.DownloadBytesPerSec/download
		}
	}
	if max(w.crew.Ranks, 1) == 1 && !messages {
		copies = min(copies, 2)
		share := func(alone, together float64) float64 { return 1 + (min(loss(alone, together), 3)-1)*copies/2 }
		w.slowed[LaneUpdate] = 1 + (loss(m.AdamWBytesPerSec, m.AdamWUnderCopiesBytesPerSec)-1)*copies/2
		if updates {
			fetch, drain := &w.slowed[LaneFetch], &w.slowed[LaneDrain]
			*fetch = max(*fetch, share(m.UploadBytesPerSec, m.UploadUnderAdamWBytesPerSec))
			*drain = max(*drain, share(m.DownloadBytesPerSec, m.DownloadUnderAdamWBytesPerSec))
		}
		return
	}
	if updates {
		asked += m.AdamWBytesPerSec
	}
	if over := asked / m.memoryBytesPerSec(); over > 1 {
		for _, i := range w.busy {
			if of := w.workers[i].Lane; of != LaneCompute && of != LaneDisk && !w.at[i].apart {
				w.slowed[i] *= over
			}
		}
	}
}

// shareDisk sets the share of the disk that each busy worker has: it is divided evenly between those that want it; a
// worker's surplus above its lane's diskShare goes to the others.
func (w *walker) shareDisk(p *Placement) {
	w.want = w.want[:0]
	for _, i := range w.busy {
		if w.disk[i] = 0; w.at[i].disk > 0 {
			w.want = append(w.want, i)
		}
	}
	share := func(i int) float64 { return p.diskShare(w.workers[i].Lane) }
	if len(w.want) > 1 {
		slices.SortStableFunc(w.want, func(a, b int) int { return cmp.Compare(share(a), share(b)) })
	}
	left := 1.0
	for n, i := range w.want {
		w.disk[i] = min(left/float64(len(w.want)-n), share(i))
		left -= w.disk[i]
	}
}

// rounding is more than what sums of a step's seconds lose.
const rounding = 1e-9

// spend takes seconds from what is left; nothing is left of what rounding leaves.
func spend(left, sec float64) float64 {
	if left-sec <= 1e-12*left {
		return 0
	}
	return left - sec
}
