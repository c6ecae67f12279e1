package plan

import (
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/trace"
)

// How long does a step take? The search asks that of hundreds of placements, before anything has run.
//
// The obvious answer adds up each lane and takes the longest. It fails twice. Lanes wait for each other: a ring of two
// slots makes the fetch of block 3 wait until compute is done with block 1, and such waits are the difference between
// the placements that the search compares. And lanes slow each other down: two copies share a link, an update and a
// copy share the memory of the host, and compute and update share the cores of a CPU.
//
// So Plan.walk follows the very schedule that the engine follows. It keeps a queue of operations for each lane, and
// two numbers of seconds for the operation at the head of each: work, and disk. An operation begins when those that it
// names in After are done. While the set of operations under way stays the same, each progresses at a constant rate,
// which walker.slow and walker.shareDisk give. The walk goes from one moment at which that set changes to the next: it
// takes the shortest time that finishes the work or the disk of any lane, gives all lanes that much progress, and
// looks again. Nothing is random, and two walks of one plan agree to the bit.
//
// Of a cluster one host is walked; awaitOthers says what stands for the others.
//
// Each device has a link and lanes of its own. What all of them share is the host: its memory, which copies of all
// devices and updates read and write, its update lane, and the disk. A copy from one device to another takes links that
// devices have to each other; where they have none (Machine.peersHaveLinks), it takes the link to the host, and is
// counted as a copy from there.
//
// The time of a walk grows with the number of operations, so micro-batches beyond simulatedMicros are walked in groups,
// and one that cannot beat the best plan so far ends early: as soon as what a lane or the disk has yet to do takes it
// past walking.most. simulateEach is the reference without groups.

// Prediction has the figures of a simulated steady step.
type Prediction struct {
	StepSeconds float64 `json:"step_sec"`
	// LaneSeconds are the busy times of the lanes; the busiest one waits for the rest of the step. With several
	// devices, the lanes of a device have the times of the device whose lane is busiest.
	LaneSeconds trace.Lanes `json:"lane_sec"`
	Limit       string      `json:"limit"` // the busiest lane
	// DeviceSeconds are the busy times of the lanes of each device, where there are several.
	DeviceSeconds []trace.DeviceSeconds `json:"device_sec,omitempty"`

	// ReachSeconds is the part of the compute lane's seconds in which visits read and write host memory over the link:
	// see Placement.HeldAway.
	ReachSeconds float64 `json:"reach_sec,omitempty"`

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

// Simulate walks the steady schedule, or the forward pass of a frozen model, with each operation taking the time that
// the machine's rates give. Lanes run at the same time, as in the engine, and slow each other down as Machine.slowed
// says. All lanes that read or write the disk share it.
func (p *Plan) Simulate(m Machine, dev device.Info) Prediction {
	q, _ := p.walk(m, dev, walking{micros: simulatedMicros})
	return q
}

// PassSeconds predicts a pass in which each text of the plan's caches grows by a token, at the end of a text of the
// greatest length: of a model that trains one between steps. It is 0 for a plan without caches.
func (p *Plan) PassSeconds(m Machine, dev device.Info) float64 {
	if !p.Outputs.Continues() {
		return 0
	}
	_, q := p.passOf(m, dev, p.Outputs.Caches.Sequences, p.Outputs.Caches.Positions)
	return q.StepSeconds
}

// passOf predicts a pass over a number of rows, each of which sees as many positions of its text, in whole blocks. It
// also returns the pass as a plan.
func (p *Plan) passOf(m Machine, dev device.Info, rows, positions int) (*Plan, Prediction) {
	one := p.grown(rows, positions)
	q, _ := one.walk(m, dev, walking{pass: true, micros: 1})
	return one, q
}

// grown is a pass over a number of rows, as a plan: see passOf.
func (p *Plan) grown(rows, positions int) *Plan {
	one := p.pass()
	one.Numerics.MicroBatch, one.Numerics.SequenceLen = 1, rows
	if one.Outputs.Caches.BlockRows > 0 { // what is there of them, and moves, stays
		one.Outputs.Caches.Positions = positions
	}
	one.accounts = &accounts{} // those of steps are of other rows
	return one
}

// bringSeconds predicts how much longer the first pass of a plan takes than those after it, since it brings what stays.
func (p *Plan) bringSeconds(m Machine, dev device.Info, after Prediction) float64 {
	first, _ := p.walk(m, dev, walking{pass: true, micros: 1, unloaded: true})
	return max(first.StepSeconds-after.StepSeconds, 0)
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

// microGroups are the micro-batches of a step in groups of neighbours: of each cohort as many, all of one size but the
// last of those that are trained, and the last one.
type microGroups struct {
	count         int // of a step
	each, trained int // of a cohort, and of its micro-batches that are trained
	size          int // micro-batches of a group
	of            Numerics
}

func (n Numerics) groupMicros(atOnce int) microGroups {
	size := (n.CohortMicros()-1)/max(atOnce/n.CohortCount(), 1) + 1
	trained := (n.TrainedMicros()-1)/size + 1
	each := trained + (n.ForwardOnly+size-1)/size
	return microGroups{each * n.CohortCount(), each, trained, size, n}
}

// span returns the first micro-batch of a group by its number in its cohort, and how many the group has.
func (g microGroups) span(group int) (first, micros int) {
	group %= g.each
	if first = group * g.size; group < g.trained {
		return first, min(g.size, g.of.TrainedMicros()-first)
	}
	first = g.of.TrainedMicros() + (group-g.trained)*g.size
	return first, min(g.size, g.of.CohortMicros()-first)
}

// costs tells what each operation of a schedule of groups costs, as Plan.costs does of micro-batches. The first
// micro-batch of a cohort adds to gradients that hold nothing yet; the others cost the same.
func (g microGroups) costs(p *Plan, m *Machine, known *visitCosts) func(op *Op) cost {
	one := p.costs(m, known)
	var at Op // one for all calls: there are as many as a schedule has operations
	return func(op *Op) (c cost) {
		if op.Micro == none {
			return one(op) // there is no other one
		}
		first, size := g.span(op.Micro)
		at = *op
		if first == 0 {
			at.Micro = 0
			c = one(&at)
			size--
		}
		if size > 0 {
			at.Micro = 1
			other := one(&at)
			c = c.plus(other.times(size))
		}
		return c
	}
}

// add adds the bytes and operations of an operation.
func (q *Prediction) add(c *cost) {
	q.DiskReadBytes += c.read
	q.DiskWrittenBytes += c.written
	q.UploadBytes += c.up
	q.DownloadBytes += c.down
	q.PeerBytes += c.peer
	q.SentBytes += c.sent
	q.ReceivedBytes += c.received
	q.FLOPs += c.flops
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
	q.limit()
}

// limit notes the busiest lane.
func (q *Prediction) limit() {
	busiest := LaneFetch
	for lane := range Lane(Lanes) {
		if q.LaneSeconds[lane] > q.LaneSeconds[busiest] {
			busiest = lane
		}
	}
	q.Limit = busiest.String()
}

// then is the prediction of a step of two halves, which one host has.
func (q Prediction) then(second *Prediction) Prediction {
	q.StepSeconds += second.StepSeconds
	for lane := range q.LaneSeconds {
		q.LaneSeconds[lane] += second.LaneSeconds[lane]
	}
	devices := slices.Clone(q.DeviceSeconds)
	for i := range devices {
		d, of := &devices[i], &second.DeviceSeconds[i]
		d.Fetch, d.Compute = d.Fetch+of.Fetch, d.Compute+of.Compute
		d.Drain, d.Exchange = d.Drain+of.Drain, d.Exchange+of.Exchange
	}
	if len(devices) > 0 { // the busiest one of the step need not be that of its halves
		most := func(of func(*trace.DeviceSeconds) float64) (sec float64) {
			for i := range devices {
				sec = max(sec, of(&devices[i]))
			}
			return sec
		}
		q.LaneSeconds[LaneFetch] = most(func(d *trace.DeviceSeconds) float64 { return d.Fetch })
		q.LaneSeconds[LaneCompute] = most(func(d *trace.DeviceSeconds) float64 { return d.Compute })
		q.LaneSeconds[LaneDrain] = most(func(d *trace.DeviceSeconds) float64 { return d.Drain })
		q.LaneSeconds[LaneExchange] = most(func(d *trace.DeviceSeconds) float64 { return d.Exchange })
	}
	q.DeviceSeconds = devices
	q.UploadBytes, q.DownloadBytes = q.UploadBytes+second.UploadBytes, q.DownloadBytes+second.DownloadBytes
	q.PeerBytes += second.PeerBytes
	q.DiskReadBytes, q.DiskWrittenBytes = q.DiskReadBytes+second.DiskReadBytes, q.DiskWrittenBytes+second.DiskWrittenBytes
	q.FLOPs += second.FLOPs
	q.limit()
	return q
}
