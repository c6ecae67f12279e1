package plan

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// Prediction is what the simulation says of a steady step.
type Prediction struct {
	StepSeconds float64 `json:"step_sec"`
	// LaneSeconds is how long each lane is busy; what the busiest one lacks of the step is waiting.
	LaneSeconds LaneSeconds `json:"lane_sec"`
	Limit       string      `json:"limit"` // the busiest lane

	UploadBytes   int64 `json:"upload_bytes"`   // host to device, per step
	DownloadBytes int64 `json:"download_bytes"` // device to host, per step
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
		named[Lane(lane).String()] = sec
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

// simulateEach is Simulate with each micro-batch by itself: the slow reference.
func (p *Plan) simulateEach(m Machine, dev device.Info) Prediction {
	q, _ := p.walk(m, dev, walking{micros: math.MaxInt})
	return q
}

// simulatedMicros is the largest number of micro-batches that are simulated one by one. Beyond it, neighbours are
// simulated as one micro-batch that takes as long as all of them. A visit is then a row of at most simulatedMicros
// equal, longer operations, so that the time of a simulation does not grow with the number of micro-batches.
const simulatedMicros = 32

// microGroups are the micro-batches of a step in groups of neighbours, all but the last of one size.
type microGroups struct{ count, size, last int }

func groupMicros(micros, atOnce int) microGroups {
	size := (micros-1)/atOnce + 1
	count := (micros-1)/size + 1
	return microGroups{count, size, micros - (count-1)*size}
}

// costs tells what each operation of a schedule of groups costs, as Plan.costs does of micro-batches.
func (g microGroups) costs(p *Plan) func(op *Op) cost {
	one := p.costs()
	type known struct {
		lane        Lane
		layer, part int
		cost        cost
	}
	var latest [Kinds]*known // of the micro-batches of a visit it is the same
	return func(op *Op) cost {
		k := latest[op.Kind]
		if k == nil || k.lane != op.Lane || k.layer != op.Layer || k.part != op.Part {
			k = &known{op.Lane, op.Layer, op.Part, one(op)}
			latest[op.Kind] = k
		}
		switch {
		case op.Micro == none:
			return k.cost
		case op.Micro == g.count-1:
			return k.cost.times(g.last)
		}
		return k.cost.times(g.size)
	}
}

// span is the time that an operation, or the disk for it, takes of a lane.
type span struct {
	lane       Lane
	op         *Op
	mark       byte // in the timeline
	begin, end float64
	until      float64 // when it has got as far, where other lanes slow it down; else the end
}

// flight is an operation that a lane works on. Its reads and writes of the disk pass through staging memory while it
// works, piece by piece. That memory is small compared with the whole, so the operation is done when work and disk are.
type flight struct {
	op         int
	work, disk float64 // seconds that are left if neither is shared
	read       float64 // share of reads in what the disk does for it
}

// walking says how to simulate.
type walking struct {
	micros int // that are simulated one by one: of a step with more, neighbours are one (microGroups)
	// seconds; a step that is seen to take longer is not walked to its end, and predicted to take forever; 0: no limit
	most    float64
	see     func(span)
	stalled func(next, culprit *Op, seconds float64) // times in which the compute lane waits
}

// walk simulates. operations is how many it has simulated.
func (p *Plan) walk(m Machine, dev device.Info, w walking) (out Prediction, operations int) {
	phase := Steady
	if !p.Trains() {
		phase = Forwards
	}
	mode := usual(phase)
	mode.Loaded = true
	groups := groupMicros(p.Numerics.MicroBatches, w.micros)
	grouped := *p
	grouped.Numerics.MicroBatches = groups.count
	ops := grouped.ScheduleOf(mode).Ops
	cost := groups.costs(p)
	var queues [Lanes][]int // operations to come
	flights := make([]flight, len(ops))
	for i := range ops {
		lane := ops[i].Lane
		queues[lane] = append(queues[lane], i)
		c := cost(&ops[i])
		read, write := seconds(c.read, m.DiskReadBytesPerSec), seconds(c.written, m.DiskWriteBytesPerSec)
		flights[i] = flight{op: i, work: c.seconds(&m, p), disk: read + write, read: read / max(read+write, math.SmallestNonzeroFloat64)}
		out.LaneSeconds[lane] += flights[i].work
		out.LaneSeconds[LaneDisk] += flights[i].disk
		out.DiskReadBytes += c.read
		out.DiskWrittenBytes += c.written
		out.UploadBytes += c.up
		out.DownloadBytes += c.down
		out.FLOPs += c.flops + c.attention
	}
	toCome := out.LaneSeconds // of operations that have not begun; for the disk, of all
	done := make([]bool, len(ops))
	ready := func(i int) bool {
		for _, d := range ops[i].After {
			if !done[d] {
				return false
			}
		}
		return true
	}
	var at [Lanes]flight
	var busy [Lanes]bool
	for now, left := 0.0, len(ops); left > 0; {
		for lane := range Lane(Lanes) {
			if busy[lane] || len(queues[lane]) == 0 || !ready(queues[lane][0]) {
				continue
			}
			i := queues[lane][0]
			queues[lane], busy[lane] = queues[lane][1:], true
			at[lane] = flights[i]
			if w.most > 0 && now+toCome[lane] > w.most*(1+rounding) {
				out.StepSeconds = math.Inf(1)
				return out, len(ops)
			}
			toCome[lane] -= at[lane].work
		}
		// Until the next one of them has done its work, or has all that it wants of the disk, the shares stay.
		slowed := m.slowed(dev.Unified, &at)
		disk := p.Placement.diskShares(&at)
		step := math.Inf(1)
		for lane := range Lane(Lanes) {
			f := &at[lane]
			switch {
			case !busy[lane]:
			case f.work <= 0 && f.disk <= 0:
				step = 0
			default:
				if f.work > 0 {
					step = min(step, f.work*slowed[lane])
				}
				if f.disk > 0 {
					step = min(step, f.disk/disk[lane])
				}
			}
		}
		if w.stalled != nil && !busy[LaneCompute] && step > 0 {
			var next *Op
			if q := queues[LaneCompute]; len(q) > 0 {
				next = &ops[q[0]]
			}
			w.stalled(next, culprit(ops, done, &queues, &busy, &at, next), step)
		}
		served := now
		for lane := range Lane(Lanes) {
			f := &at[lane]
			if !busy[lane] {
				continue
			}
			if f.disk > 0 && w.see != nil {
				part := step * disk[lane]
				between := served + part*f.read
				w.see(span{LaneDisk, &ops[f.op], readMark, served, between, between})
				w.see(span{LaneDisk, &ops[f.op], writeMark, between, served + part, served + part})
				served += part
			}
			if f.work > 0 && w.see != nil {
				w.see(span{lane, &ops[f.op], ops[f.op].Kind.Mark(), now, now + step/slowed[lane], now + step})
			}
			f.work, f.disk = spend(f.work, step/slowed[lane]), spend(f.disk, step*disk[lane])
			if f.work == 0 && f.disk == 0 {
				busy[lane], done[f.op] = false, true
				left--
			}
		}
		now += step
		out.StepSeconds = now
	}
	busiest := LaneFetch
	for lane := range Lane(Lanes) {
		if out.LaneSeconds[lane] > out.LaneSeconds[busiest] {
			busiest = lane
		}
	}
	out.Limit = busiest.String()
	return out, len(ops)
}

// slowed is how many times longer the work of each lane takes for what other lanes work on. On a unified device
// compute and update share the cores. Otherwise copies in both directions share the link, which takes no longer than
// one after the other, and the copies and an update take the host's memory from each other. The probe measures an
// update with both copies; one copy slows it by half as much, and is slowed by half as much.
func (m *Machine) slowed(unified bool, at *[Lanes]flight) [Lanes]float64 {
	slowed := [Lanes]float64{}
	for lane := range slowed {
		slowed[lane] = 1
	}
	works := func(lane Lane) bool { return at[lane].work > 0 }
	if unified {
		if works(LaneCompute) && works(LaneUpdate) {
			slowed[LaneCompute], slowed[LaneUpdate] = 2, 2
		}
		return slowed
	}
	loss := func(alone, together float64) float64 {
		if together == 0 {
			return 1 // not measured
		}
		return max(alone/together, 1)
	}
	copies := 0.0
	for _, lane := range []Lane{LaneFetch, LaneDrain} {
		if works(lane) {
			copies++
		}
	}
	if copies == 2 {
		slowed[LaneFetch] = min(loss(m.UploadBytesPerSec, m.DuplexUploadBytesPerSec), 2)
		slowed[LaneDrain] = min(loss(m.DownloadBytesPerSec, m.DuplexDownloadBytesPerSec), 2)
	}
	share := func(alone, together float64) float64 { return 1 + (min(loss(alone, together), 3)-1)*copies/2 }
	slowed[LaneUpdate] = 1 + (loss(m.AdamWBytesPerSec, m.AdamWUnderCopiesBytesPerSec)-1)*copies/2
	if works(LaneUpdate) {
		slowed[LaneFetch] = max(slowed[LaneFetch], share(m.UploadBytesPerSec, m.UploadUnderAdamWBytesPerSec))
		slowed[LaneDrain] = max(slowed[LaneDrain], share(m.DownloadBytesPerSec, m.DownloadUnderAdamWBytesPerSec))
	}
	return slowed
}

// diskShares divides the disk evenly between the lanes that want it; a lane's surplus above its diskShare goes to the
// others.
func (p *Placement) diskShares(at *[Lanes]flight) (share [Lanes]float64) {
	want := make([]Lane, 0, Lanes)
	for lane := range Lane(Lanes) {
		if at[lane].disk > 0 {
			want = append(want, lane)
		}
	}
	if len(want) == 0 {
		return share
	}
	slices.SortStableFunc(want, func(a, b Lane) int { return cmp.Compare(p.diskShare(a), p.diskShare(b)) })
	left := 1.0
	for i, lane := range want {
		share[lane] = min(left/float64(len(want)-i), p.diskShare(lane))
		left -= share[lane]
	}
	return share
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

// cost is the work of an operation.
type cost struct {
	flops, attention int64 // of matrix products, and of attention
	ops              int64 // operations on the device, where there are many
	element          int64 // bytes read and written by element-wise work on the device
	up, down         int64 // bytes over the link
	adamw, host      int64 // bytes read and written by updates, and by other work on the host
	read, written    int64 // bytes from and to disk
}

// times returns the cost of n such operations.
func (c cost) times(n int) cost {
	m := int64(n)
	return cost{c.flops * m, c.attention * m, c.ops * m, c.element * m, c.up * m, c.down * m, c.adamw * m, c.host * m, c.read * m, c.written * m}
}

// seconds is the time that bytes take at a rate; none at a rate that is not known.
func seconds(bytes int64, perSec float64) float64 {
	if perSec == 0 {
		return 0
	}
	return float64(bytes) / perSec
}

// diskBytes is the length of each extent that is on disk, by part and kind, in the whole blocks that are moved.
func (p *Plan) diskBytes() [][store.Kinds]int64 {
	if !p.anyOnDisk() {
		return nil
	}
	all := make([][store.Kinds]int64, len(p.Model.Parts))
	for part := range all {
		for _, spec := range p.extents(part) {
			if !p.OnDisk(spec.ID) {
				continue
			}
			for _, n := range spec.Pieces() {
				all[part][spec.Kind] += wholeBlocks(n)
			}
		}
	}
	return all
}

// wholeBlocks is what direct I/O moves of n bytes.
func wholeBlocks(n int64) int64 { return (n + vfs.DirectAlign - 1) / vfs.DirectAlign * vfs.DirectAlign }

func (c *cost) seconds(m *Machine, p *Plan) float64 {
	n := &p.Numerics
	return float64(c.flops)/m.MatMulFLOPsPerSec(n.Compute) +
		float64(c.attention)/m.AttentionFLOPsPerSecAt(n.Compute, n.SequenceLen) + seconds(c.ops, m.DeviceOpsPerSec) +
		float64(c.element)/m.ElementBytesPerSec(n.Compute) +
		float64(c.up)/m.UploadBytesPerSec + float64(c.down)/m.DownloadBytesPerSec +
		float64(c.adamw)/m.AdamWBytesPerSec + float64(c.host)/m.HostBytesPerSec
}

// costs tells what each operation of a schedule costs. Attention is counted as if each sequence were one document: the
// longest that packing can make it.
func (p *Plan) costs() func(op *Op) cost {
	t := p.Numerics.Positions()
	elem := p.Numerics.Compute.Bytes()
	x := p.inputBytes()
	head, chunks := p.Head(), int64(p.Numerics.BlockChunks())
	statsOps, gradOps, visitOps := head.Ops(t)
	types := p.types()
	onDisk := p.diskBytes()
	pieces, pieceBytes := p.InputPieces()
	inputs := int64(pieces) * wholeBlocks(pieceBytes)
	return func(op *Op) (c cost) {
		disk := func(part int, kind store.Kind, reads, writes int64) {
			if onDisk != nil {
				c.read += reads * onDisk[part][kind]
				c.written += writes * onDisk[part][kind]
			}
		}
		switch op.Kind {
		case Update:
			params := p.Model.Parts[op.Part].Layout.StateElems
			var bytes int64
			for kind, dt := range types {
				n := store.Kind(kind).Elems(params) * dt.Bytes()
				bytes += n // read
				if store.Kind(kind) != store.Grad {
					bytes += n // written
				}
			}
			if op.Lane == LaneCompute {
				c.element = bytes
				break
			}
			c.adamw = bytes
			for kind := range store.Kind(store.Kinds) {
				switch kind {
				case store.Grad:
					disk(op.Part, kind, 1, 0)
				case store.GradSum:
				default:
					disk(op.Part, kind, 1, 1)
				}
			}
		case Gather:
			for _, tile := range p.Model.EmbedTiles {
				disk(tile, store.Weights, 1, 0)
			}
			c.host = 2 * x * int64(p.Numerics.MicroBatches)
		case GatherAhead:
			c.adamw = x * int64(p.Numerics.MicroBatches) // written
			for kind, dt := range types {                // read
				c.adamw += store.Kind(kind).Elems(int64(p.Numerics.StepPositions()*p.Model.Hidden)) * dt.Bytes()
			}
		case Scatter:
			disk(op.Part, store.GradSum, 1, 1)
			disk(op.Part, store.Grad, 0, 1)
			c.host = 3*p.gradBytes(op.Part) + 3*x*int64(p.Numerics.MicroBatches)/int64(len(p.Model.EmbedTiles))
			if p.SumsTouchedRows() { // of which there are no more than tokens: cleared, rounded and put in place; all are cleared and squared
				elems := p.Model.Parts[op.Part].Layout.StateElems
				touched := min(elems, elems*int64(p.Numerics.StepPositions())/int64(p.Model.Vocab))
				c.host += 2*p.storedGradBytes(op.Part) + 14*touched - 3*p.gradBytes(op.Part)
			}
		case Upload:
			c.up = int64(p.Numerics.MicroBatches) * batch.Bytes(t)
		case Fetch:
			c.up = p.weightBytes(op.Part)
			disk(op.Part, store.Weights, 1, 0)
		case FetchState:
			c.up = p.stateBytes(op.Part)
			if p.StatePasses(op.Part) {
				c.up += p.storedGradBytes(op.Part)
			}
		case WriteBack:
			c.down = p.weightBytes(op.Part) + p.stateBytes(op.Part)
		case Load:
			c.up = x
			if p.SavedOnDisk(op.Layer - 1) {
				c.read = inputs
			}
		case Save:
			c.down = x
			if p.SavedOnDisk(op.Layer - 1) {
				c.written = inputs
			}
		case SaveKept:
			c.down = p.KeptBytes(op.Layer - 1)
		case LoadKept:
			c.up = p.KeptBytes(op.Layer - 1)
		case DrainInput:
			c.down = x
		case Drain:
			c.down = p.storedGradBytes(op.Part)
			disk(op.Part, store.Grad, 0, 1)
		case DrainSum:
			c.down = p.gradBytes(op.Part)
			disk(op.Part, store.GradSum, 0, 1)
		case Collect:
			c.down = p.ResultBytes()
		case ZeroGrad:
			c.element = nn.ClearedBytes(p.Model.Parts[op.Part].Layout)
		case Round:
			c.element = p.gradBytes(op.Part) + 2*p.storedGradBytes(op.Part)
		case Forward, Reopen, Backward:
			d := p.Model.Blocks[op.Layer-1]
			if d.Groups() > 0 {
				p.groupCost(&c, op, d, int(chunks))
				break
			}
			pairs := p.pairs(d)
			all, back, again := d.FLOPs(t, pairs)
			none, backNone, againNone := d.FLOPs(t, 0)
			keep := p.Keep(op.Layer - 1)
			forwardElems, backwardElems := d.ElementTraffic(keep)
			forwardOps, backwardOps, againOps := d.Ops(int(chunks))
			if op.Kind == Forward {
				c.ops = int64(forwardOps)
				c.flops, c.attention, c.element = none, all-none, forwardElems*int64(t)*elem+chunks*p.weightBytes(op.Part)
				break
			}
			c.ops = int64(backwardOps + againOps[keep])
			c.flops = backNone + againNone[keep] - p.frozenFLOPs(op.Part)
			c.attention = back - backNone + again[keep] - againNone[keep]
			// Each chunk of each micro-batch reads the weights again, and adds to a gradient that it reads and writes.
			c.element = backwardElems*int64(t)*elem + chunks*(2*p.weightBytes(op.Part)+2*p.gradBytes(op.Part))
			c.element -= p.freshBytes(op.Part, op.Micro)
		case HeadNorm, HeadInput:
			c.element, c.ops = 4*x, 2*chunks
		case HeadStats:
			c = p.tileCost(op.Part, head, 1)
			c.ops = int64(statsOps)
		case HeadGrad:
			c = p.tileCost(op.Part, head, 3)
			c.ops = int64(gradOps)
			c.flops -= p.frozenFLOPs(op.Part)
			c.element -= p.freshBytes(op.Part, op.Micro)
		case HeadVisit:
			for _, tile := range p.Model.HeadTiles {
				one := p.tileCost(tile, head, 3)
				c.flops += one.flops - p.frozenFLOPs(tile)
				c.element += one.element - p.freshBytes(tile, op.Micro)
				c.ops += int64(visitOps)
			}
		}
		return c
	}
}

// groupCost is the cost of a visit of a block in groups: of its trunk, or of a group.
func (p *Plan) groupCost(c *cost, op *Op, d *nn.Block, chunks int) {
	t, elem, pairs, keep := p.Numerics.Positions(), p.Numerics.Compute.Bytes(), p.pairs(d), p.Keep(op.Layer-1)
	whole, products := [3]nn.Account{}, [3]nn.Account{} // the latter without what attention computes from pairs
	whole[0], whole[1], whole[2] = d.TrunkAccounts(t, chunks, pairs, keep)
	products[0], products[1], products[2] = d.TrunkAccounts(t, chunks, 0, keep)
	if p.Model.Parts[op.Part].Group > 0 {
		whole[0], whole[2] = d.GroupAccounts(t, chunks)
		products = whole
	}
	i := map[Kind]int{Forward: 0, Reopen: 1, Backward: 2}[op.Kind]
	c.ops, c.flops, c.attention = int64(whole[i].Ops), products[i].FLOPs, whole[i].FLOPs-products[i].FLOPs
	c.element = whole[i].Traffic*int64(t)*elem + int64(chunks)*p.weightBytes(op.Part)
	if op.Kind == Backward {
		c.flops -= p.frozenFLOPs(op.Part)
		c.element += int64(chunks)*(p.weightBytes(op.Part)+2*p.gradBytes(op.Part)) - p.freshBytes(op.Part, op.Micro)
	}
}

// freshBytes are those that the first micro-batch does not read of a gradient, since its first chunk writes it
// (nn.Params.Fresh).
func (p *Plan) freshBytes(part, micro int) int64 {
	if micro > 0 || !p.Trained(part) {
		return 0
	}
	l := p.Model.Parts[part].Layout
	return p.gradBytes(part) - nn.ClearedBytes(l)
}

// pairs is the number of pairs of query and key that one head scores in a micro-batch, each sequence being one
// document.
func (p *Plan) pairs(d *nn.Block) int64 {
	return int64(p.Numerics.MicroBatch) * d.Mixer.Pairs([]int{p.Numerics.SequenceLen})
}

// frozenFLOPs is the arithmetic that a micro-batch's backward visit of the part saves: the products for gradients of
// frozen weights.
func (p *Plan) frozenFLOPs(part int) int64 {
	var n int64
	for _, f := range p.Model.Parts[part].Layout.Fields {
		if !f.Trainable && len(f.Shape) == 2 {
			n += 2 * int64(p.Numerics.Positions()) * f.Elems
		}
	}
	return n
}

// tileCost is the cost of that number of products of a vocabulary tile with a micro-batch, with the passes over the
// logits that come with them.
func (p *Plan) tileCost(part int, head *nn.Head, products int64) cost {
	rows := int64(p.Model.Parts[part].Layout.Fields[0].Shape[0])
	t := int64(p.Numerics.Positions())
	product := 2 * t * rows * int64(head.Hidden)
	// Each chunk of positions reads the tile for each product, and adds to a gradient that it reads and writes.
	chunks := (t + int64(p.Numerics.HeadChunk) - 1) / int64(p.Numerics.HeadChunk)
	again := min(products, 2) * p.weightBytes(part)
	if products > 1 {
		again += 2 * p.gradBytes(part)
	}
	return cost{flops: products * product, element: products*t*rows*4 + chunks*again}
}
