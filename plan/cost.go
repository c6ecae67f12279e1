package plan

import (
	"slices"
	"sync"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// The problem. A walk (walk.go) needs the seconds of each operation of a schedule, for a model that has never run and
// for hundreds of placements of it.
//
// The obvious answer is a formula for each kind of layer, of products and a rate. It describes the layer a second time.
// The two descriptions drift apart with the first change of the layer, and a plan then chooses by a figure that no run
// shows.
//
// The answer here: an operation is counted before it is timed. A cost has bytes and floating-point operations, each
// under the resource that works on them: the device, the link, the host, the disk, the network. A move counts the bytes
// of its operand. A visit counts itself: Plan.account calls the function that the engine calls, with a stream that
// counts (nn.Layer's Measure), and visitCost adds the weights and gradients that each chunk reads again. All others
// count how often they read and write the bytes of their part: of DoAdd 3 * gradBytes, since it reads two gradients and
// writes one. cost.seconds divides the counts by the machine's rates. Seconds of the disk are not among them, because
// the disk works while the operation does (activeOp).
//
// A search asks for the same visits thousands of times, so two tables remember them: accounts has the counts, whatever
// the machine, and visitCosts the costs on one machine. A key names all that the figure depends on. One that leaves
// something out would give a placement the figure of another one.

// cost is the work of an operation.
type cost struct {
	flops          int64   // of products, attention and gated delta nets
	visit          float64 // seconds of a visit's operations on the device
	moved          int64   // bytes that copies, casts and sums move there, and products of weights and gradients
	updated8       int64   // bytes read and written by updates there with moments in 8 bits
	up, down       int64   // bytes over the link
	peer           int64   // bytes from another device
	adamw, host    int64   // bytes read and written by updates, and by other work on the host
	read, written  int64   // bytes from and to disk
	sent, received int64   // bytes to and from other hosts
}

// times returns the cost of n such operations.
func (c cost) times(n int) cost {
	m := int64(n)
	return cost{c.flops * m, c.visit * float64(n), c.moved * m, c.updated8 * m, c.up * m, c.down * m, c.peer * m,
		c.adamw * m,
		c.host * m, c.read * m, c.written * m, c.sent * m, c.received * m}
}

// plus returns the cost of both.
func (c cost) plus(d cost) cost {
	return cost{c.flops + d.flops, c.visit + d.visit, c.moved + d.moved, c.updated8 + d.updated8, c.up + d.up,
		c.down + d.down, c.peer + d.peer, c.adamw + d.adamw, c.host + d.host, c.read + d.read, c.written + d.written,
		c.sent + d.sent, c.received + d.received}
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
	all, forms := make([][store.Kinds]int64, len(p.Model.Parts)), p.forms()
	var specs []store.Spec
	for part := range all {
		specs = p.extents(specs[:0], part, forms)
		for _, spec := range specs {
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

// wholeBlocks returns the bytes that direct I/O moves for n bytes.
func wholeBlocks(n int64) int64 { return (n + vfs.DirectAlign - 1) / vfs.DirectAlign * vfs.DirectAlign }

// seconds is the time that the work takes on a machine.
func (c *cost) seconds(m *Machine, p *Plan) float64 {
	n := &p.Numerics
	on := func(class nn.Class, bytes int64) float64 {
		if bytes == 0 {
			return 0
		}
		rate, _ := Operation{Class: class, Compute: n.Compute, Unified: p.Unified}.On(m)
		return float64(bytes) / rate
	}
	return c.visit + on(nn.OfMoves, c.moved) + on(nn.OfUpdates8, c.updated8) +
		float64(c.up)/m.UploadBytesPerSec + float64(c.down)/m.DownloadBytesPerSec +
		float64(c.peer)/m.peerBytesPerSec() +
		float64(c.adamw)/m.updateBytesPerSec(n.Scheme()) + float64(c.host)/m.HostBytesPerSec +
		seconds(c.sent+c.received, m.NetworkBytesPerSec)
}

// objectiveReads counts the reads of a number that take as long as what an objective computes for each token that it
// compares: two exponentials.
const objectiveReads = 32

// costs tells what each operation of a schedule costs. Attention is counted as if each sequence were one document: the
// longest that packing can make it. known has the costs of visits that other plans for the same request have asked for,
// whose machine is m; nil: it has none.
func (p *Plan) costs(m *Machine, known *visitCosts) func(op *Op) cost {
	onDisk := p.diskBytes()
	if known == nil {
		known = new(visitCosts)
	}
	return func(op *Op) (c cost) {
		disk := func(part int, kind store.Kind, reads, writes int64) {
			if onDisk != nil {
				c.read += reads * onDisk[part][kind]
				c.written += writes * onDisk[part][kind]
			}
		}
		switch op.Do {
		case DoMove:
			c = p.moveCost(op.Reads[0], op.Writes[0])
			switch part := op.Part; op.Writes[0].What {
			case Weights:
				disk(part, store.Weights, 1, 0)
			case Rounded:
				disk(part, store.Grad, 0, 1)
			case Gradient: // of one cohort
				disk(part, store.GradSum, 0, 1)
				c.written /= int64(p.Numerics.CohortCount())
			case LogitRows:
				rows := min(p.Numerics.HeadChunk, p.Outputs.LogitRows-op.Writes[0].Index*p.Numerics.HeadChunk)
				c.down = int64(rows*p.Model.Parts[part].Layout.Fields[0].Shape[0]) * tensor.F32.Bytes()
			}
		case DoVisit:
			if c = known.of(p, m, op); op.Visit.OnHost {
				c.host = int64(p.Numerics.CohortMicros()) * (p.figureBytes() + p.weighedBytes() + objectiveReads*p.picksBytes())
			}
		case DoClear:
			if op.Lane == LaneUpdate {
				c.host = p.storedGradBytes(op.Part)
				break
			}
			c.moved = nn.ClearedBytes(p.Model.Parts[op.Part].Layout)
		case DoAdd:
			c.moved = 3 * p.gradBytes(op.Part)
		case DoNarrow:
			c.moved = int64(len(op.Writes)) * (p.gradBytes(op.Part) + p.SumBytes(op.Part))
		case DoRound:
			if op.Lane == LaneUpdate {
				c.host = p.gradBytes(op.Part) + p.storedGradBytes(op.Part)
				break
			}
			c.moved = p.gradBytes(op.Part) + 2*p.storedGradBytes(op.Part)
		case DoUpdate:
			bytes := p.updateBytes(op.Part)
			if op.Lane == LaneCompute {
				if p.Numerics.Moments.Coded() {
					c.updated8 = bytes
				} else {
					c.moved = bytes
				}
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
		case DoLookup:
			l := op.Table
			for _, tile := range l.Tiles {
				disk(tile, store.Weights, 1, 0)
			}
			if c.host = 2 * p.rowBytes(l.Cols); op.Micro == none {
				c.host = 2 * p.lookedUpBytes(l)
			}
		case DoLookupAhead:
			// Copies of the rows are updated, and looked up: as if no token occurred twice in a micro-batch.
			l := op.Table
			for kind, form := range p.forms() {
				bytes := form.Bytes(int64(p.Numerics.Positions() * l.Cols))
				c.host += 2 * bytes
				if c.adamw += bytes; store.Kind(kind) != store.Grad {
					c.adamw += bytes // written
				}
			}
			c.host += 2 * p.rowBytes(l.Cols)
		case DoSend:
			if c.sent = p.messageBytes(op.Reads[0]); op.Reads[0].What == Stored {
				disk(op.Part, store.Weights, 1, 0)
			}
		case DoReceive:
			if c.received = p.messageBytes(op.Writes[0]); op.Writes[0].What == Stored {
				disk(op.Part, store.Weights, 0, 1)
			}
		case DoTotal:
			c.host = p.sentSumBytes(op.Part) + 2*tensor.F32.Bytes()*p.sentSumElems(op.Part)
			switch {
			case op.First && p.SendsRows(op.Part): // the rows that have no tokens are cleared
				c.host += p.gradBytes(op.Part)
			case op.First:
				c.host -= p.gradBytes(op.Part)
			}
			if len(op.Writes) > 1 { // rounded and squared
				c.host += p.gradBytes(op.Part) + 2*p.storedGradBytes(op.Part)
				disk(op.Part, store.Grad, 0, 1)
			}
		case DoScatter, DoScatterOnto:
			l := op.Table
			if p.Cluster.Several() { // of one cohort: onto zeros, or a copy of what the head has left
				cohorts, sum := int64(p.Numerics.CohortCount()), tensor.F32.Bytes()*p.sentSumElems(op.Part)
				c.host = sum + 3*p.scatteredBytes(l)/(int64(len(l.Tiles))*cohorts)
				if p.Numerics.NarrowSums() { // made elsewhere, and rounded to there
					c.host += sum + p.sentSumBytes(op.Part)
				}
				if p.Tied(op.Part) {
					c.host += p.gradBytes(op.Part)
					disk(op.Part, store.GradSum, 1, 0)
					c.read /= cohorts
				}
				break
			}
			disk(op.Part, store.GradSum, 1, 1)
			disk(op.Part, store.Grad, 0, 1)
			elems := p.Model.Parts[op.Part].Layout.StateElems
			rows := p.scatteredBytes(l) / int64(len(l.Tiles))
			c.host = 3*p.gradBytes(op.Part) + 3*rows
			// Of touched rows there are no more than tokens: cleared, rounded and put in place. All rows are cleared
			// and squared.
			touched := min(elems, elems*int64(p.microsDown()*p.Numerics.Positions())/int64(p.Model.Vocab))
			switch {
			case p.SumsTouchedRows(op.Part):
				elems = touched
				c.host = 3*rows + 2*p.storedGradBytes(op.Part) + 14*elems
				if p.ClearsEarly(op.Part) {
					c.host -= p.storedGradBytes(op.Part)
				}
			case p.RoundsEarly(op.Part): // added to, copied, rounded and put in place
				c.host = rows + p.storedGradBytes(op.Part) + 26*touched
			}
			// A further cohort is cleared, and added to the sum.
			c.host += 16 * elems * int64(p.Numerics.CohortCount()-1)
			if p.Numerics.NarrowSums() { // rounded where it is, by way of a piece
				c.host += 8 * elems * int64(p.Numerics.CohortCount())
			}
		}
		return c
	}
}

// lookedUpBytes is the length of the rows that a step looks up in a table.
func (p *Plan) lookedUpBytes(l *model.Lookup) int64 {
	return p.rowBytes(l.Cols) * int64(p.Numerics.MicroBatches)
}

// updateBytes counts the bytes that an update reads and writes of a part.
func (p *Plan) updateBytes(part int) (bytes int64) {
	for kind, form := range p.forms() {
		n := form.Bytes(p.Model.Parts[part].Layout.StateElems)
		bytes += n // read
		if store.Kind(kind) != store.Grad {
			bytes += n // written
		}
	}
	return bytes
}

// moveCost is the cost of a copy between the device and host memory, or between two devices, by what it writes, without
// extents on disk.
func (p *Plan) moveCost(from, to Operand) (c cost) {
	bytes := p.bytes(&to)
	switch to.What {
	case Input, InputGrad:
		if pieces, each := p.InputPieces(to.Index); from.At == Disk || to.At == Disk {
			c.read = int64(pieces) * wholeBlocks(each)
		}
	case CohortSum:
		if p.Bound() { // in the host's memory already
			return cost{host: 2 * bytes}
		}
	}
	switch {
	case isPeerCopy(from, to):
		return cost{peer: bytes}
	case to.At == Device:
		c.up = bytes
	default:
		c.down, c.read, c.written = bytes, 0, c.read
	}
	return c
}

// messageBytes is the length of a message.
func (p *Plan) messageBytes(o Operand) int64 {
	switch o.What {
	case CohortSum:
		return p.sentSumBytes(o.Index)
	case Stored:
		return p.weightBytes(o.Index)
	}
	return p.bytes(&o)
}

// visitCost is the cost of a visit with one micro-batch, or with all of a cohort if it is over the whole step; fresh
// says that gradients hold nothing yet. Besides what the visit asks for, each chunk of positions reads the weights
// again, and adds to gradients that it reads and writes, all but the first chunk of all. The weights of experts count
// with their products.
func (p *Plan) visitCost(m *Machine, layer int, v *nn.Visit, fresh bool) (c cost) {
	if layer == none {
		layer = p.blocks() + 1
	}
	a := p.account(layer, v)
	c = cost{flops: a.FLOPs(), visit: seconds(int64(a.Ops), m.DeviceOpsPerSec), moved: a.Work[nn.OfMoves], up: a.Up,
		down: a.Down}
	c.visit += p.seconds(m, &a, func(class nn.Class) bool { return class != nn.OfMoves })
	chunks := int64(p.Numerics.BlockChunks())
	if layer > p.blocks() {
		t, chunk := int64(p.Numerics.Positions()), int64(p.Numerics.HeadChunk)
		chunks = (t + chunk - 1) / chunk
	}
	parts := p.Model.LayerParts(layer)
	for _, i := range v.Parts {
		part := parts[i]
		if p.Model.Parts[part].Kind == model.Norm || a.ExpertRows > 0 && i > 0 { // rates of experts' products have them
			continue
		}
		c.moved += chunks * p.weightBytes(part)
		if v.Writes.Has(nn.Grads) {
			c.moved += chunks * (p.weightBytes(part) + 2*p.gradBytes(part))
			if fresh && p.Trained(part) {
				c.moved -= p.gradBytes(part) - nn.ClearedBytes(p.Model.Parts[part].Layout)
			}
		}
	}
	return c
}

// visitCosts remembers what visits cost in the plans for one request. Those of a search ask for the same ones thousands
// of times.
type visitCosts struct {
	known map[visitKey]cost
	steps map[visitKey]float64 // see secondsOf
}

// visitKey is a visit in a plan, which has it in memory once (Plan.stages).
type visitKey struct {
	visit *nn.Visit
	level nn.Keep
	away  nn.Away
	call  int  // rows
	fresh bool // see Plan.visitCost
	kept  bool // logits, of a visit of the head
}

// of is the cost of an operation that is a visit.
func (k *visitCosts) of(p *Plan, m *Machine, op *Op) cost {
	key := p.visitKey(op.Layer, op.Visit)
	key.fresh = p.Numerics.BeginsCohort(op.Micro)
	c, ok := k.known[key]
	if !ok {
		if k.known == nil {
			k.known = map[visitKey]cost{}
		}
		c = p.visitCost(m, op.Layer, op.Visit, key.fresh)
		k.known[key] = c
	}
	return c
}

// visitKey is the key of a visit of a layer, or of the head.
func (p *Plan) visitKey(layer int, v *nn.Visit) visitKey {
	key := visitKey{visit: v, call: p.Placement.CallChunks, away: p.Placement.HeldAway}
	if layer != none && layer <= p.blocks() {
		key.level = p.Keep(layer - 1)
	} else {
		key.kept = p.Placement.KeptLogits
	}
	return key
}

// secondsOf returns the seconds of a visit of a layer with all micro-batches of a step.
func (k *visitCosts) secondsOf(p *Plan, m *Machine, layer int, v *nn.Visit) float64 {
	key := p.visitKey(layer, v)
	sec, ok := k.steps[key]
	if !ok {
		if k.steps == nil {
			k.steps = map[visitKey]float64{}
		}
		c := p.visitCost(m, layer, v, true)
		if v.Over == nn.EachMicro {
			other := p.visitCost(m, layer, v, false)
			c = c.plus(other.times(p.microsOf(layer, v) - 1))
		}
		sec = float64(p.Numerics.CohortCount()) * c.seconds(m, p)
		k.steps[key] = sec
	}
	return sec
}

// accounts remembers what visits were measured to ask for, and what blocks keep. A search asks for the same ones
// thousands of times.
type accounts struct {
	mu       sync.Mutex
	known    map[accountKey]nn.Account
	kept     map[keptKey]int64
	overlays map[overlayKey]int64
	// stages are those of layers, which a search has in memory once.
	stages map[stagesKey][]nn.Stage
}

// stagesKey is a layer in a direction.
type stagesKey struct {
	layer             int
	to                nn.Direction
	headAtOnce, dealt bool
}

// stages returns the stages of a layer, a block from 1 or the head, in a direction; callers leave them as they are. All
// visits of a dealt head are one stage: its tiles stay where they are.
func (p *Plan) stages(layer int, to nn.Direction) []nn.Stage {
	key := stagesKey{layer, to, p.Placement.HeadAtOnce, layer > p.blocks() && p.headDealt()}
	a := p.accounts
	a.mu.Lock()
	defer a.mu.Unlock()
	stages, ok := a.stages[key]
	if !ok {
		if a.stages == nil {
			a.stages = map[stagesKey][]nn.Stage{}
		}
		if stages = p.Layer(layer).Stages(to, key.headAtOnce && !key.dealt); key.dealt {
			stages = []nn.Stage{slices.Concat(stages...)}
		}
		a.stages[key] = stages
	}
	return stages
}

// overlaid says what blocks have in the same memory.
type overlaid uint8

const (
	betweenVisits     overlaid = iota // see nn.Held
	betweenVisitsAway                 // what is away of it
	scratch                           // see nn.Work
)

// overlayKey names the share of a block, as of the first one that is equal to it, at its level.
type overlayKey struct {
	what  overlaid
	like  int
	level nn.Keep
	away  nn.Away
	call  int // rows
}

// overlaid returns the bytes that a block has of it. It asks count once for equal blocks.
func (a *accounts) overlaid(key overlayKey, count func() int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, ok := a.overlays[key]
	if !ok {
		if a.overlays == nil {
			a.overlays = map[overlayKey]int64{}
		}
		n = count()
		a.overlays[key] = n
	}
	return n
}

// keptKey is a block, as the first one that is equal to it, and its level.
type keptKey struct {
	like  int
	level nn.Keep
}

// keptBytes returns the bytes that a block keeps of a micro-batch at a level. It asks count once for equal blocks.
func (a *accounts) keptBytes(like int, level nn.Keep, count func() int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := keptKey{like, level}
	n, ok := a.kept[key]
	if !ok {
		n = count()
		if a.kept == nil {
			a.kept = map[keptKey]int64{}
		}
		a.kept[key] = n
	}
	return n
}

type accountKey struct {
	like   int // block, or -1
	name   string
	part   int // the visit's first, or -1
	layout *tensor.Layout
	to     nn.Direction
	level  nn.Keep
	away   nn.Away
	call   int  // rows
	kept   bool // logits
}

// account measures what a visit of a layer asks of the device, at the level that the plan keeps.
func (p *Plan) account(layer int, v *nn.Visit) nn.Account {
	level := nn.Keep(0)
	if layer <= p.blocks() {
		level = p.Keep(layer - 1)
	}
	return p.accountAt(layer, v, level)
}

func (p *Plan) accountAt(layer int, v *nn.Visit, level nn.Keep) nn.Account {
	key := accountKey{like: none, name: v.Name, part: none, to: v.To, level: level, away: p.Placement.HeldAway,
		call: p.cut().Call,
		kept: p.Placement.KeptLogits && layer > p.blocks()}
	if layer <= p.blocks() {
		key.like = p.Model.Like[layer-1]
	}
	if len(v.Parts) > 0 {
		key.part, key.layout = v.Parts[0], p.Model.Parts[p.Model.LayerParts(layer)[v.Parts[0]]].Layout
	}
	known := p.accounts
	known.mu.Lock()
	defer known.mu.Unlock()
	a, ok := known.known[key]
	if !ok {
		n := &p.Numerics
		a = p.Layer(layer).Measure(*v, nn.Shape{Docs: slices.Repeat([]int{n.SequenceLen}, n.MicroBatch), DType: n.Compute,
			Micros: n.CohortMicros(), Cut: p.cut(), Level: level, Away: p.Placement.HeldAway, Caches: p.Outputs.Caches,
			Wanted: min(p.Outputs.LogitRows, n.HeadChunk)}, p.Model.Layouts(layer, v.Parts)...)
		if known.known == nil {
			known.known = map[accountKey]nn.Account{}
		}
		known.known[key] = a
	}
	return a
}

// visitsOf sums what a block's visits in one direction ask of the device for one micro-batch, at a level.
func (p *Plan) visitsOf(block int, to nn.Direction, level nn.Keep) (sum nn.Account) {
	for _, stage := range p.stages(1+block, to) {
		for i := range stage {
			sum = sum.Plus(p.accountAt(1+block, &stage[i], level))
		}
	}
	return sum
}

// Layer is a block, from 1, or the head with the run's chunks.
func (p *Plan) Layer(layer int) nn.Layer {
	if layer <= p.blocks() {
		return p.Model.Blocks[layer-1]
	}
	return p.Head()
}
