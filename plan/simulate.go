package plan

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/trace"
)

// How long does a step take? The search asks that of hundreds of placements, before anything has run.
//
// The obvious answer adds up each lane and takes the longest. It fails twice. Lanes wait for each other: a ring of two
// slots makes the fetch of block 3 wait until compute is done with block 1, and such waits are the difference between the
// placements that the search compares. And lanes slow each other down: two copies share a link, an update and a copy share
// the memory of the host, and compute and update share the cores of a CPU.
//
// So walk follows the very schedule that the engine follows. It keeps a queue of operations for each lane, and two
// numbers of seconds for the operation at the head of each: work, and disk. An operation begins when those that it names
// in After are done. While the set of operations under way stays the same, each progresses at a constant rate, which
// Machine.slowed and Placement.diskShares give. The walk goes from one moment at which that set changes to the next: it
// takes the shortest time that finishes the work or the disk of any lane, gives all lanes that much progress, and looks
// again. Nothing is random, and two walks of one plan agree to the bit.
//
// Of a cluster one host is walked; awaitOthers says what stands for the others.
//
// Each device has a link and lanes of its own. What all of them share is the host: its memory, which copies of all
// devices and updates read and write, its update lane, and the disk. A copy from one device to another takes links that
// devices have to each other; where they have none (Machine.peersHaveLinks), it takes the link to the host, and is
// counted as a copy from there.
//
// The time of a walk grows with the number of operations, so micro-batches beyond simulatedMicros are walked in groups,
// and one that cannot beat the best plan so far ends early (walking.most). simulateEach is the reference without groups.

// Prediction has the figures of a simulated steady step.
type Prediction struct {
	StepSeconds float64 `json:"step_sec"`
	// LaneSeconds are the busy times of the lanes; the busiest one waits for the rest of the step. With several
	// devices, the lanes of a device have the times of the device whose lane is busiest.
	LaneSeconds LaneSeconds `json:"lane_sec"`
	Limit       string      `json:"limit"` // the busiest lane
	// DeviceSeconds are the busy times of the lanes of each device, where there are several.
	DeviceSeconds []trace.DeviceSeconds `json:"device_sec,omitempty"`

	UploadBytes   int64 `json:"upload_bytes"`         // host to device, per step
	DownloadBytes int64 `json:"download_bytes"`       // device to host, per step
	PeerBytes     int64 `json:"peer_bytes,omitempty"` // device to device, per step
	// HostTraffic is this host's traffic with others in a step, and NetworkHidden the share of its time in which a
	// device computes. Of several hosts only.
	HostTraffic
	NetworkHidden float64 `json:"network_hidden,omitempty"`
	// DiskReadBytes and DiskWrittenBytes are of one step.
	DiskReadBytes    int64 `json:"disk_read_bytes,omitempty"`
	DiskWrittenBytes int64 `json:"disk_written_bytes,omitempty"`
	FLOPs            int64 `json:"flops"` // executed, recomputation included
}

// LaneSeconds are seconds of each lane; as JSON an object with the lanes' names.
type LaneSeconds [Lanes]float64

// MarshalJSON names the lanes.
func (s LaneSeconds) MarshalJSON() ([]byte, error) {
	named := map[string]float64{}
	for lane, sec := range s {
		if l := Lane(lane); sec > 0 || !l.IsOptional() {
			named[l.String()] = sec
		}
	}
	return json.Marshal(named)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *LaneSeconds) UnmarshalJSON(doc []byte) error {
	var named map[string]float64
	if err := json.Unmarshal(doc, &named); err != nil {
		return err
	}
	for lane := range s {
		s[lane] = named[Lane(lane).String()]
	}
	return nil
}

// Simulate walks the steady schedule, or the forward pass of a frozen model, with each operation taking the time that
// the machine's rates give. Lanes run at the same time, as in the engine, and slow each other down as Machine.slowed
// says. All lanes that read or write the disk share it.
func (p *Plan) Simulate(m Machine, dev device.Info) Prediction {
	q, _ := p.walk(m, dev, walking{micros: simulatedMicros})
	return q
}

// PassSeconds predicts a pass between the steps of a model that trains, in which each text of the plan's caches grows
// by a token; 0 for a plan without.
func (p *Plan) PassSeconds(m Machine, dev device.Info) float64 {
	if !p.Trains() || !p.Outputs.Continues() {
		return 0
	}
	one := p.pass()
	one.Numerics.MicroBatch, one.Numerics.SequenceLen = 1, p.Outputs.Caches.Sequences
	one.accounts = &accounts{} // those of steps are of other rows
	q, _ := one.walk(m, dev, walking{pass: true, micros: 1})
	return q.StepSeconds
}

// simulateEach is Simulate with each micro-batch by itself: the slow reference.
func (p *Plan) simulateEach(m Machine, dev device.Info) Prediction {
	q, _ := p.walk(m, dev, walking{micros: math.MaxInt})
	return q
}

// simulatedMicros is the largest number of micro-batches that are simulated one by one. Beyond it, neighbours are
// simulated as one micro-batch that takes as long as all of them. A visit is then a row of at most simulatedMicros
// equal, longer operations, so that the time of a simulation does not grow with the number of micro-batches.
const simulatedMicros = 32

// microGroups are the micro-batches of a step in groups of neighbours: of each cohort as many, all but the last of one
// size.
type microGroups struct {
	count      int // of a step
	each       int // of a cohort
	size, last int // micro-batches of a group
}

func (n Numerics) groupMicros(atOnce int) microGroups {
	micros := n.CohortMicros()
	size := (micros-1)/max(atOnce/n.CohortCount(), 1) + 1
	each := (micros-1)/size + 1
	return microGroups{each * n.CohortCount(), each, size, micros - (each-1)*size}
}

// costs tells what each operation of a schedule of groups costs, as Plan.costs does of micro-batches. The first
// micro-batch of a cohort adds to gradients that hold nothing yet; the others cost the same.
func (g microGroups) costs(p *Plan) func(op *Op) cost {
	one := p.costs()
	type key struct {
		visit *nn.Visit // of micro-batches it is the same
		lane  Lane
		do    Do
		to    What
		at    Place
		index int
	}
	type costs struct{ first, other cost }
	known := map[key]costs{}
	return func(op *Op) cost {
		if op.Micro == none {
			return one(op) // there is no other one
		}
		k := key{op.Visit, op.Lane, op.Do, 0, 0, max(op.Layer, op.Part)}
		if len(op.Writes) > 0 && op.Do == DoMove {
			k.to, k.at = op.Writes[0].What, op.Writes[0].At
			if k.to == Side || k.to == SideGrad { // of which a layer may have several
				k.index = op.Writes[0].Index
			}
		}
		c, ok := known[k]
		if !ok {
			at := *op
			at.Micro = 0
			c.first = one(&at)
			at.Micro = 1
			c.other = one(&at)
			known[k] = c
		}
		size := g.size
		if op.Micro%g.each == g.each-1 {
			size = g.last
		}
		if op.Micro%g.each == 0 {
			return c.first.plus(c.other.times(size - 1))
		}
		return c.other.times(size)
	}
}

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
}

// walking says how to simulate.
type walking struct {
	pass   bool // of a model that trains: a pass between steps, and no step
	micros int  // that are simulated one by one: of a step with more, neighbours are one (microGroups)
	// seconds; a step that is seen to take longer is not walked to its end, and predicted to take forever; 0: no limit
	most    float64
	memory  *scheduleMemory // for the schedule; nil: memory of its own
	see     func(interval)
	stalled func(next, culprit *Op, seconds float64) // times in which the compute lane waits
}

// walk simulates, and counts the operations that it has simulated.
func (p *Plan) walk(m Machine, dev device.Info, walk walking) (out Prediction, operations int) {
	phase := Steady
	switch {
	case p.Outputs.Continues() && (walk.pass || !p.Trains()):
		phase = Continue
	case !p.Trains():
		phase = Forwards
	}
	mode := usual(phase)
	mode.Loaded = true
	groups := p.Numerics.groupMicros(walk.micros)
	grouped := *p
	grouped.Numerics.MicroBatches = groups.count
	if walk.memory == nil {
		walk.memory = new(scheduleMemory)
	}
	ops := grouped.scheduleIn(mode, walk.memory).Ops
	if p.Cluster.Several() {
		p.awaitOthers(ops)
	}
	cost := groups.costs(p)
	crew := p.Crew()
	workers := crew.Workers()
	queues := make([][]int, len(workers)) // operations to come, by worker
	spent := make([]float64, len(workers))
	active := make([]activeOp, len(ops))
	for i := range ops {
		w := crew.Index(ops[i].Worker)
		queues[w] = append(queues[w], i)
		c := cost(&ops[i])
		read, write := seconds(c.read, m.DiskReadBytesPerSec), seconds(c.written, m.DiskWriteBytesPerSec)
		active[i] = activeOp{op: i, work: c.seconds(&m, p), disk: read + write,
			read: read / max(read+write, math.SmallestNonzeroFloat64), apart: c.peer > 0 && m.peersHaveLinks()}
		if dev.Unified && ops[i].Lane == LaneCompute {
			active[i].work *= float64(p.devices()) // which divide the cores
		}
		spent[w] += active[i].work
		spent[LaneDisk] += active[i].disk
		out.DiskReadBytes += c.read
		out.DiskWrittenBytes += c.written
		out.UploadBytes += c.up
		out.DownloadBytes += c.down
		out.PeerBytes += c.peer
		out.SentBytes += c.sent
		out.ReceivedBytes += c.received
		out.FLOPs += c.flops + c.attention
	}
	out.busy(workers, spent)
	// A worker needs at least the seconds of its operations that have not begun, so that now + toCome is a lower bound
	// of the step, and rises as waits show.
	toCome := spent // for the disk, of all operations
	done := make([]bool, len(ops))
	ready := func(i int) bool {
		for _, d := range ops[i].After {
			if !done[d] {
				return false
			}
		}
		return true
	}
	at, busy := make([]activeOp, len(workers)), make([]bool, len(workers))
	slowed, disk := make([]float64, len(workers)), make([]float64, len(workers))
	network, hidden := 0.0, 0.0 // seconds in which messages pass, and in which a device computes as well
	for now, left := 0.0, len(ops); left > 0; {
		// Each worker that is free takes its next operation, if nothing holds that up: none overtakes within its queue.
		for w := range workers {
			if busy[w] || len(queues[w]) == 0 || !ready(queues[w][0]) {
				continue
			}
			i := queues[w][0]
			queues[w], busy[w] = queues[w][1:], true
			at[w] = active[i]
			if walk.most > 0 && now+toCome[w] > walk.most*(1+rounding) {
				out.StepSeconds = math.Inf(1)
				return out, len(ops)
			}
			toCome[w] -= at[w].work
		}
		// Until the next one of them has done its work, or has all that it wants of the disk, the shares stay.
		m.slowed(dev.Unified, workers, at, slowed)
		p.Placement.diskShares(workers, at, disk)
		step := math.Inf(1)
		for w := range workers {
			f := &at[w]
			switch {
			case !busy[w]:
			case f.work <= 0 && f.disk <= 0:
				step = 0
			default:
				if f.work > 0 {
					step = min(step, f.work*slowed[w])
				}
				if f.disk > 0 {
					step = min(step, f.disk/disk[w])
				}
			}
		}
		if walk.stalled != nil && step > 0 {
			for w := range workers {
				if workers[w].Lane != LaneCompute || busy[w] {
					continue
				}
				var next *Op
				if q := queues[w]; len(q) > 0 {
					next = &ops[q[0]]
				}
				walk.stalled(next, culprit(crew, ops, done, queues, busy, at, next), step)
			}
		}
		if messages, computes := underWay(workers, busy); messages {
			if network += step; computes {
				hidden += step
			}
		}
		served := now
		for w := range workers {
			f := &at[w]
			if !busy[w] {
				continue
			}
			if f.disk > 0 && walk.see != nil {
				part := step * disk[w]
				between := served + part*f.read
				walk.see(interval{Worker{Lane: LaneDisk}, &ops[f.op], readMark, served, between, between})
				walk.see(interval{Worker{Lane: LaneDisk}, &ops[f.op], writeMark, between, served + part, served + part})
				served += part
			}
			if f.work > 0 && walk.see != nil {
				walk.see(interval{workers[w], &ops[f.op], MarkOf(ops[f.op].Name()), now, now + step/slowed[w],
					now + step})
			}
			f.work, f.disk = spend(f.work, step/slowed[w]), spend(f.disk, step*disk[w])
			if f.work == 0 && f.disk == 0 {
				busy[w], done[f.op] = false, true
				left--
			}
		}
		now += step
		out.StepSeconds = now
	}
	if network > 0 {
		out.NetworkHidden = hidden / network
	}
	return out, len(ops)
}

// underWay reports whether messages pass, and whether a device computes.
func underWay(workers []Worker, busy []bool) (messages, computes bool) {
	for w, of := range workers {
		messages = messages || busy[w] && of.OnNetwork()
		computes = computes || busy[w] && of.Lane == LaneCompute
	}
	return messages, computes
}

// busy enters what each worker is busy with.
func (q *Prediction) busy(workers []Worker, seconds []float64) {
	for w, sec := range seconds {
		lane := workers[w].Lane
		q.LaneSeconds[lane] = max(q.LaneSeconds[lane], sec)
	}
	if devices := trace.ByDevice(workers, seconds); len(devices) > 1 {
		q.DeviceSeconds = devices
	}
	busiest := LaneFetch
	for lane := range Lane(Lanes) {
		if q.LaneSeconds[lane] > q.LaneSeconds[busiest] {
			busiest = lane
		}
	}
	q.Limit = busiest.String()
}

// slowed sets, by worker, the factor by which the work of others slows it down. On a unified device compute and update
// share the cores. Otherwise copies in both directions share a device's link, which takes no longer than one after the
// other, and copies and an update take the host's memory from each other. The probe measures an update with both copies
// of one device; one copy slows it by half as much, and is slowed by half as much. Of several devices, and while
// messages pass, all copies, the update and the messages share what the memory gives, by how much each asks for; copies
// that are apart ask for none.
func (m *Machine) slowed(unified bool, workers []Worker, at []activeOp, slowed []float64) {
	for w := range slowed {
		slowed[w] = 1
	}
	loss := func(alone, together float64) float64 {
		if together == 0 {
			return 1 // not measured
		}
		return max(alone/together, 1)
	}
	updates := at[LaneUpdate].work > 0
	if unified {
		for w, of := range workers {
			if updates && of.Lane == LaneCompute && at[w].work > 0 {
				slowed[w], slowed[LaneUpdate] = 2, 2
			}
		}
		return
	}
	copies, asked := 0.0, 0.0 // in how many directions of links, and by them of the host's memory
	devices, messages := 0, false
	for first := 0; first < len(workers); { // a device
		rank := workers[first].Rank
		next := first
		if !workers[first].OnNetwork() {
			devices++
		}
		up, down := 0.0, 0.0 // copies under way
		for ; next < len(workers) && workers[next].Rank == rank; next++ {
			switch of := workers[next].Lane; {
			case at[next].work <= 0, at[next].apart:
			case of == LaneFetch, of == LaneExchange:
				up++
			case of == LaneDrain:
				down++
			case workers[next].OnNetwork():
				messages, asked = true, asked+m.NetworkBytesPerSec
			}
		}
		upload, download := 1.0, 1.0
		if up > 0 && down > 0 {
			upload = min(loss(m.UploadBytesPerSec, m.DuplexUploadBytesPerSec), 2)
			download = min(loss(m.DownloadBytesPerSec, m.DuplexDownloadBytesPerSec), 2)
		}
		for w := first; w < next; w++ {
			switch of := workers[w].Lane; {
			case at[w].apart:
			case of == LaneFetch, of == LaneExchange:
				slowed[w] = max(up, 1) * upload
			case of == LaneDrain:
				slowed[w] = download
			}
		}
		if up > 0 {
			copies, asked = copies+1, asked+m.UploadBytesPerSec/upload
		}
		if down > 0 {
			copies, asked = copies+1, asked+m.DownloadBytesPerSec/download
		}
		first = next
	}
	if devices == 1 && !messages {
		share := func(alone, together float64) float64 { return 1 + (min(loss(alone, together), 3)-1)*copies/2 }
		slowed[LaneUpdate] = 1 + (loss(m.AdamWBytesPerSec, m.AdamWUnderCopiesBytesPerSec)-1)*copies/2
		if updates {
			slowed[LaneFetch] = max(slowed[LaneFetch], share(m.UploadBytesPerSec, m.UploadUnderAdamWBytesPerSec))
			slowed[LaneDrain] = max(slowed[LaneDrain], share(m.DownloadBytesPerSec, m.DownloadUnderAdamWBytesPerSec))
		}
		return
	}
	if updates {
		asked += m.AdamWBytesPerSec
	}
	if over := asked / m.memoryBytesPerSec(); over > 1 {
		for w, of := range workers {
			if of.Lane != LaneCompute && of.Lane != LaneDisk && !at[w].apart {
				slowed[w] *= over
			}
		}
	}
}

// diskShares sets the share of the disk that each worker has: it is divided evenly between those that want it; a
// worker's surplus above its lane's diskShare goes to the others.
func (p *Placement) diskShares(workers []Worker, at []activeOp, share []float64) {
	clear(share)
	want := make([]int, 0, Lanes)
	for w := range at {
		if at[w].disk > 0 {
			want = append(want, w)
		}
	}
	if len(want) == 0 {
		return
	}
	slices.SortStableFunc(want, func(a, b int) int {
		return cmp.Compare(p.diskShare(workers[a].Lane), p.diskShare(workers[b].Lane))
	})
	left := 1.0
	for i, w := range want {
		share[w] = min(left/float64(len(want)-i), p.diskShare(workers[w].Lane))
		left -= share[w]
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
