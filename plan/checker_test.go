package plan_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
)

// place is memory that operations touch. The checker names it by itself, from what the operations and the placement
// say.
type place struct {
	what string
	a, b int
}

// home are the places that are not of a device.
var home = map[string]bool{"host weights": true, "host gradient": true, "shared gradient": true, "embedding sum": true,
	"host x": true, "disk x": true, "passing x": true, "host kept": true, "host outcome": true, "host balance": true,
	"head on its way": true, "host losses": true, "host loss weights": true, "host picked": true, "host side": true,
	"host side gradient": true, "sum": true, "total": true}

// on is the place on the device of a rank.
func (p place) on(rank int) place {
	if rank > 0 && !home[p.what] {
		p.what = fmt.Sprintf("%s of rank %d", p.what, rank)
	}
	return p
}

// content describes the content of a place.
type content struct {
	what string
	a    int // layer or part
	n    int // version of weights, or contributions to a gradient
}

// checker executes a schedule on contents instead of numbers, and checks that any execution that keeps the order of
// lanes and the waits touches memory in the same order.
type checker struct {
	p      *plan.Plan
	m      *model.Model
	pass   plan.Pass
	mode   plan.Mode
	mem    map[place]content
	reach  [][]int // by operation: of each worker, how many operations (by index plus one) come before it for sure
	last   []int   // index plus one of each worker's latest
	access map[place][]touch
	ops    []plan.Op
	crew   trace.Crew
	errs   []string

	updates, homes, saves map[int]int     // by part: updates, gradients brought home, and copies to a checkpoint
	counted               map[int]bool    // by rank: the count of NaNs on the device has begun
	cleared               map[int]int     // by part: fp32 gradients zeroed
	arrives               content         // what comes with the message that is received
	head                  map[int]content // by micro-batch: what its latest visit of the head has left
	endings               int             // for how many micro-batches a device has room in a dealt head
	logits                []int           // by tile of a dealt head: for how many micro-batches logits are kept
}

type touch struct {
	op    int
	write bool
}

// check returns what is wrong with a schedule.
func check(p *plan.Plan, mode plan.Mode, s *plan.Schedule) []string {
	c := newChecker(p, mode, s)
	for i := range s.Ops {
		c.step(i)
	}
	return c.end()
}

// step executes operation i.
func (c *checker) step(i int) {
	c.order(i)
	c.onlyUp(i)
	c.run(i)
}

// end returns what is wrong with the schedule.
func (c *checker) end() []string {
	c.complete(c.mode.Saves)
	c.saved()
	return c.errs
}

func newChecker(p *plan.Plan, mode plan.Mode, s *plan.Schedule) *checker {
	c := &checker{p: p, m: p.Model, pass: mode.Pass, mode: mode, mem: map[place]content{},
		access: map[place][]touch{}, ops: s.Ops, crew: p.Crew(), last: make([]int, len(p.Workers())),
		counted: map[int]bool{}, cleared: map[int]int{}, head: map[int]content{}, updates: map[int]int{},
		homes: map[int]int{},
		saves: map[int]int{}}
	m := c.m
	for tile, rank := range p.Placement.HeadDeal {
		memory := p.Cells().Memory()
		memory.PlaceDevice(device.Mem{}, rank)
		here := memory.Arrays(rank)
		c.endings = len(here.Ending)
		if here.KeptLogits != nil {
			c.logits = append(c.logits, len(here.KeptLogits[tile]))
		}
	}
	for part := range m.Parts {
		fresh := 1
		if c.updating() && p.Trained(part) {
			fresh = 0
		}
		c.mem[place{"host weights", part, 0}] = content{"weights", part, fresh}
		if p.StateResident(part) && mode.Loaded {
			rank := c.rankOf(part, nn.Forward)
			c.mem[place{"own slot", part, 0}.on(rank)] = content{"weights", part, fresh}
			c.mem[place{"own state", part, 0}.on(rank)] = content{"state", part, fresh}
			c.mem[c.storedAt(part).on(rank)] = content{"new gradient", part, 0}
			c.mem[place{"host weights", part, 0}] = content{"stale weights", part, 0}
		}
		c.mem[c.hostGradient(part)] = content{"old gradient", part, 0}
	}
	if c.pass.Half == plan.ForUpdates {
		c.afterNorm()
	}
	return c
}

// afterNorm has memory be as the first half of a step leaves it.
func (c *checker) afterNorm() {
	first := newChecker(c.p, plan.Mode{Pass: plan.FirstHalf}, c.p.ScheduleOf(plan.Mode{Pass: plan.FirstHalf}))
	for i := range first.ops {
		first.step(i)
	}
	c.mem = first.mem
	for part := range c.m.Parts {
		if !c.p.GradWaits(part) {
			c.mem[c.hostGradient(part)] = content{"old gradient", part, 0}
		}
	}
}

// updating reports whether the schedule begins with pending updates.
func (c *checker) updating() bool {
	return (c.pass == plan.Steady || c.pass == plan.Flush) && !c.p.UpdatesInBackward()
}

// updatingNow reports whether parts are updated from this schedule's gradients.
func (c *checker) updatingNow() bool {
	return c.training() && c.p.UpdatesInBackward() && c.pass.Half != plan.ForNorm
}

// hostGradient returns the place of a part's gradient in host memory.
func (c *checker) hostGradient(part int) place {
	for _, spec := range c.p.Extents() {
		if spec.ID == (store.ID{Part: part, Kind: store.Grad}) && spec.Share > 0 {
			return place{"shared gradient", spec.Share, 0}
		}
	}
	return place{"host gradient", part, 0}
}

func (c *checker) training() bool { return c.pass.Steps() }

// homely reports whether the gradient of a part comes to where it is stored. In the first half of a step those do that
// wait for the norm, and tables, which the host sums there.
func (c *checker) homely(part int) bool {
	switch c.pass.Half {
	case plan.ForNorm:
		return c.p.GradWaits(part) || c.m.Parts[part].Kind.LookedUp()
	case plan.ForUpdates:
		return !c.p.GradWaits(part)
	}
	return c.training()
}

// passesOf are the passes that a plan's schedules come in.
func passesOf(p *plan.Plan) []plan.Pass {
	if p.Placement.Twice {
		return []plan.Pass{plan.FirstHalf, plan.SecondHalf, plan.Forwards}
	}
	return usualPasses
}

func (c *checker) errorf(i int, format string, args ...any) {
	c.errs = append(c.errs, fmt.Sprintf("%d %v: ", i, c.ops[i])+fmt.Sprintf(format, args...))
}

// order closes what happens before operation i over the lanes and the waits.
func (c *checker) order(i int) {
	op := c.ops[i]
	before := make([]int, len(c.last))
	join := func(d int) {
		for l, n := range c.reach[d] {
			before[l] = max(before[l], n)
		}
		w := c.crew.Index(c.ops[d].Worker)
		before[w] = max(before[w], d+1)
	}
	if n := c.last[c.crew.Index(op.Worker)]; n > 0 {
		join(n - 1)
	}
	for _, d := range op.After {
		if d < 0 || d >= i || c.ops[d].Worker == op.Worker {
			c.errorf(i, "waits for %d, which is not an earlier operation of another lane", d)
			continue
		}
		join(d)
	}
	c.reach = append(c.reach, before)
	c.last[c.crew.Index(op.Worker)] = i + 1
}

// use notes an access to memory of a device, or of the host, and checks it against all accesses before it.
func (c *checker) use(i int, at place, write bool) {
	for _, t := range c.access[at] {
		if (write || t.write) && t.op != i && c.reach[i][c.crew.Index(c.ops[t.op].Worker)] < t.op+1 {
			c.errorf(i, "touches %v and nothing orders it after %d %v", at, t.op, c.ops[t.op])
		}
	}
	c.access[at] = append(c.access[at], touch{i, write})
}

func (c *checker) read(i int, at place, want content) { c.readOn(i, c.ops[i].Rank, at, want) }

// readOn notes that an operation reads memory of a rank's device, and checks what is there.
func (c *checker) readOn(i, rank int, at place, want content) {
	at = at.on(rank)
	c.use(i, at, false)
	if got := c.mem[at]; got != want {
		c.errorf(i, "%v holds %v, not %v", at, got, want)
	}
}

// peerCopy checks a copy of rows from memory of another device.
func (c *checker) peerCopy(i int, from, to place, rows content) {
	op, rank := c.ops[i], c.ops[i].Reads[0].Rank
	if rank == op.Rank || !c.p.PeerCopies() {
		c.errorf(i, "copies from device %d", rank)
	}
	c.readOn(i, rank, from, rows)
	c.write(i, to, rows)
}

func (c *checker) write(i int, at place, what content) {
	at = at.on(c.ops[i].Rank)
	c.use(i, at, true)
	c.mem[at] = what
}

// fresh are the weights that this step computes with.
func fresh(part int) content { return content{"weights", part, 1} }

func (c *checker) bound() bool { return c.p.Bound() }

// weightsAt returns the place in which a compute operation finds a part.
func (c *checker) weightsAt(part, slot int) place {
	switch {
	case c.bound():
		return place{"host weights", part, 0}
	case slot >= 0:
		return place{"slot", slot, 0}
	}
	return place{"own slot", part, 0}
}

// slotOf is the slot that an operation has something in, and -1 if it has memory of its own.
func slotOf(op plan.Op, what plan.What) int {
	for _, o := range slices.Concat(op.Writes, op.Reads) {
		mayBeHome := what == plan.Rounded || what == plan.InputGrad
		if o.What == what && o.Slot >= 0 && (!mayBeHome || o.At == plan.Device) {
			return o.Slot
		}
	}
	return -1
}

// inputSlot is the shared buffer that an operation has the input of a layer in.
func inputSlot(op plan.Op, layer int) int {
	for _, o := range slices.Concat(op.Writes, op.Reads) {
		if o.What == plan.Input && o.Index == layer && o.At == plan.Device {
			return o.Slot
		}
	}
	return -1
}

// gradAt returns the place of a part's fp32 gradient.
func (c *checker) gradAt(op plan.Op, part int) place {
	switch {
	case cohortOf(op) > 0 && !c.p.Tied(part) && !c.p.Cluster.Several():
		if kind := c.m.Parts[part].Kind; c.p.Placement.HeadAtOnce && (kind == model.Norm || kind == model.HeadTile) {
			return place{"cohort sum", part, 0}
		}
		return place{"cohort sum", -1, 0} // parts take turns
	case c.p.GradInExtent(part) && c.p.Tied(part):
		return place{"embedding sum", part, cohortOf(op)}
	case c.p.GradInExtent(part):
		return c.hostGradient(part)
	case slotOf(op, plan.Gradient) >= 0:
		return place{"gradient slot", slotOf(op, plan.Gradient), 0}
	}
	return place{"own gradient", part, 0}
}

// passes reports whether the state of a part passes through the device in this schedule.
func (c *checker) passes(part int) bool { return c.pass == plan.Steady && c.p.StatePasses(part) }

// storedAt returns the place in which the gradient of a part whose state is on the device waits for its update.
func (c *checker) storedAt(part int) place {
	if c.split() {
		return place{"own rounded", part, 0}
	}
	return place{"own gradient", part, 0}
}

// shared is a buffer that inputs and gradients share, or where else they are.
func (c *checker) shared(buffer int, own place) place {
	if (buffer >= 0) != (c.p.Placement.Rings.Inputs > 0) {
		c.errs = append(c.errs, fmt.Sprintf("buffer %d, which is not what is planned", buffer))
	}
	if buffer >= 0 {
		return place{"shared", buffer, 0}
	}
	return own
}

// xAt names the memory of a layer's input on the device of an operation.
func (c *checker) xAt(op plan.Op, layer int) place {
	return c.shared(inputSlot(op, layer), c.ownX(op.Rank, layer, op.Micro))
}

// dxAt returns the place of that input's gradient. A chain that ends in a side has it where the side's was.
func (c *checker) dxAt(op plan.Op, layer, m int) place {
	if side := c.m.ChainOf(layer).Out; side >= 0 {
		return c.sideGradAt(side, m)
	}
	return c.shared(slotOf(op, plan.InputGrad), place{"dx", m, 0})
}

// gradientAbove returns the content that a block finds there: the gradient of the input of the next one, or of the side
// that it makes.
func (c *checker) gradientAbove(op plan.Op, m int) content {
	if c.m.Ends(op.Layer) {
		side := c.m.ChainOf(op.Layer).Out
		return c.sideGradAfter(side, c.m.Sides[side].Layers[1], m)
	}
	return content{"dx", op.Layer + 1, m}
}

// yAt names the memory of a block's output.
func (c *checker) yAt(op plan.Op) place {
	if c.m.Ends(op.Layer) {
		return sideAt(c.m.ChainOf(op.Layer).Out, op.Micro)
	}
	return c.xAt(op, op.Layer+1)
}

func (c *checker) ownX(rank, layer, m int) place {
	if layer <= len(c.m.Blocks) && rank == c.p.RankOf(layer, nn.Backward) && c.comesDown(m) {
		if at := c.p.Placement.Where.Inputs[layer-1]; at == plan.Device || at == plan.InPlace {
			return place{"saved x", layer, m}
		}
	}
	return place{"working x", layer % 2, m}
}

// keptAt returns the place on the device of the values that a block keeps.
func (c *checker) keptAt(op plan.Op) place {
	if c.p.ActivationsPass(op.Layer - 1) {
		return place{"kept slot", slotOf(op, plan.Kept), 0}
	}
	if !c.comesDown(op.Micro) {
		return place{"kept", op.Layer, c.microsDown()} // nothing reads it
	}
	return place{"kept", op.Layer, op.Micro}
}

// headAt returns the place of the head's arrays of a micro-batch.
func (c *checker) headAt(m int) place {
	switch {
	case c.p.Placement.HeadDeal != nil:
		m %= c.endings
	case c.p.Placement.HeadAtOnce && !c.p.Outputs.Objective:
		m = 0
	case c.p.Placement.HeadAtOnce && !c.comesDown(m):
		m = c.microsDown()
	}
	return place{"head", m, 0}
}

// passHead takes a micro-batch's rows of the head from one device to another one, or a part of the way. On the way down
// the other one has had them before.
func (c *checker) passHead(i int, op plan.Op) {
	m, from, to, down := op.Micro, op.Reads[0], op.Writes[0], strings.HasSuffix(op.Name(), "-grad")
	rows := c.head[m]
	if down != (rows.what == "gradients") {
		c.errorf(i, "passes %v", rows)
	}
	earlier := c.mem[c.headAt(m).on(to.Rank)]
	if down && to.At == plan.Device && (earlier.what == "" || earlier.a != m) {
		c.errorf(i, "comes to where %v was", earlier)
	}
	at := func(o plan.Operand) place {
		if o.At == plan.Host {
			return place{"head on its way", o.Slot, int(o.What)}
		}
		return c.headAt(m)
	}
	if op.Name() == "pass-head" || op.Name() == "pass-head-grad" {
		c.peerCopy(i, at(from), at(to), rows)
		return
	}
	c.read(i, at(from), rows)
	c.write(i, at(to), rows)
}

// logitsAt returns the place in which a tile's logits of a micro-batch wait for their gradients.
func (c *checker) logitsAt(tile, m int) place { return place{"logits", tile, m % c.logits[tile]} }

// rankOf is the rank that has a part in a direction.
func (c *checker) rankOf(part int, to nn.Direction) int {
	if tile := slices.Index(c.m.HeadTiles, part); tile >= 0 && c.p.Placement.HeadDeal != nil {
		return c.p.Placement.HeadDeal[tile]
	}
	return c.p.RankOf(max(c.m.Parts[part].Layer, 1), to)
}

// lossRank is the rank that computes losses.
func (c *checker) lossRank() int {
	if tiles := c.p.Placement.HeadDeal; tiles != nil {
		return tiles[len(tiles)-1]
	}
	return c.p.RankOf(len(c.m.Blocks)+1, nn.Forward)
}

// hostX names the place of x[layer][m] when it has left the device to be saved.
func (c *checker) hostX(layer, m int) place {
	if c.p.SavedOnDisk(layer - 1) {
		if c.p.SavedOnHost(layer-1) || c.m.Begins(layer) {
			c.errs = append(c.errs, fmt.Sprintf("the input of layer %d is both on disk and in memory", layer))
		}
		return place{"disk x", layer, m}
	}
	if !c.bound() && !c.p.SavedOnHost(layer-1) {
		c.errs = append(c.errs, fmt.Sprintf("the input of layer %d is saved and has no place", layer))
	}
	return place{"host x", layer, m}
}

// awayX names the place outside of devices of x[layer][m] or its gradient: saved, or on its way between two.
func (c *checker) awayX(op plan.Op, layer int) place {
	for _, o := range slices.Concat(op.Reads, op.Writes) {
		if o.At == plan.Host && o.Slot >= 0 {
			again := c.p.Placement.Twice && (op.Name() == "drain-input" || op.Name() == "load-input")
			if c.p.SavedOnHost(layer-1) && c.comesDown(op.Micro) && !again {
				c.errs = append(c.errs, fmt.Sprintf("%v passes by where its rows are saved", op))
			}
			return place{"passing x", o.Slot, 0}
		}
	}
	return c.hostX(layer, op.Micro)
}

// stops reports whether the head stops for an objective in this schedule.
func (c *checker) stops() bool { return c.p.Outputs.Objective && c.training() }

// unlessBound names memory of a device, which is the host's where that is bound.
func (c *checker) unlessBound(what string, m int) place {
	if c.bound() {
		what = "host " + what
	}
	return place{what, m, 0}
}

func (c *checker) split() bool { return c.p.Numerics.Master == optim.Split }

// cohortOf is the cohort that an operation has a sum of.
func cohortOf(op plan.Op) (cohort int) {
	for _, o := range slices.Concat(op.Reads, op.Writes) {
		cohort = max(cohort, o.Cohort)
	}
	return cohort
}

// sumOf is the sum of the gradients of a part over the micro-batches before the n-th: of one cohort alone where it is
// not the first, and else of all.
func sumOf(part, cohort, n int) content {
	if cohort > 0 {
		return content{fmt.Sprintf("gradient in cohort %d", cohort), part, n}
	}
	return content{"gradient", part, n}
}

// wholeOf is the sum of a cohort.
func (c *checker) wholeOf(part, cohort int) content {
	return sumOf(part, cohort, c.endOf(cohort))
}

// contribute adds the micro-batches of a visit to a gradient.
func (c *checker) contribute(i int, op plan.Op, part int) {
	if !c.p.Trained(part) {
		return
	}
	at, micros := c.gradAt(op, part), c.micros(op)
	cohort := micros[0] / c.p.Numerics.CohortMicros()
	c.read(i, at, sumOf(part, cohort, micros[0]))
	c.write(i, at, sumOf(part, cohort, micros[0]+len(micros)))
}

func (c *checker) whole(part int) content {
	return content{"gradient", part, c.endOf(c.p.Numerics.CohortCount() - 1)}
}

func (c *checker) run(i int) {
	op := c.ops[i]
	m, top := op.Micro, len(c.m.Blocks)+1
	tokens, scratch := place{"tokens", 0, 0}, place{"scratch", 0, 0}
	reads := func() {
		if !c.bound() {
			c.read(i, tokens, content{"tokens", 0, 0})
		}
	}
	weights := func(part int) { c.read(i, c.weightsAt(part, slotOf(op, plan.Weights)), fresh(part)) }
	head := func(from, to content) {
		c.read(i, c.headAt(m), from)
		c.write(i, c.headAt(m), to)
		c.head[m] = to
	}
	index := func(part int) int { return slices.Index(c.m.HeadTiles, part) }
	tiles := len(c.m.HeadTiles)
	loss := place{"device loss", m, 0}
	lanes := map[plan.Lane][]string{
		plan.LaneFetch: {"load-input", "upload", "fetch", "fetch-state", "load", "load-kept", "load-sums",
			"load-balance", "load-side", "load-side-grad", "load-loss-weights", "load-picks",
			"load-picked-grads"},
		plan.LaneCompute: {"forward", "combine", "head-norm", "head-stats", "head-loss", "zero-grad", "add",
			"narrow", "head-grad", "head-visit", "head-input", "reopen", "backward", "round"},
		plan.LaneDrain: {"save", "save-kept", "save-sums", "write-back", "drain", "drain-sum", "drain-input",
			"collect", "save-balance", "save-side", "drain-side", "save-head", "save-head-grad", "save-losses",
			"save-picked"},
		plan.LaneExchange: {"pass", "pass-input", "pass-side", "pass-side-grad", "pass-head", "pass-head-grad",
			"load-head", "load-head-grad"},
		plan.LaneUpdate:  {"update", "gather", "gather-ahead", "zero-table", "round-table", "scatter", "total", "objective"},
		plan.LaneDisk:    {"save-state"},
		plan.LaneSend:    {"send-sum", "send-weights", "send-balance"},
		plan.LaneReceive: {"receive-sum", "receive-weights", "receive-balance"},
	}
	want := op.Lane
	for lane, names := range lanes {
		if slices.Contains(names, op.Name()) {
			want = lane
		}
	}
	if op.Name() == "update" && (c.p.StateResident(op.Part) || c.passes(op.Part)) {
		want = plan.LaneCompute
	}
	again := c.pass.Half == plan.ForUpdates && op.Layer == len(c.m.Blocks) // where it was saved
	passed := op.Name() == "load-input" || op.Name() == "load-side-grad" ||
		op.Name() == "load-balance" && c.p.Ranks() > 1 ||
		op.Name() == "load-side" && !c.fromTable(i) ||
		op.Name() == "load" && !c.m.Begins(op.Layer) && (op.Layer > len(c.m.Blocks) || !c.down(i)) && !again &&
			c.p.RankOf(op.Layer-1, nn.Forward) != op.Rank
	if passed { // from another device
		want = plan.LaneExchange
		if c.p.PeerCopies() && op.Name() != "load-balance" {
			c.errorf(i, "takes the way through host memory")
		}
	}
	if op.Lane != want {
		c.errorf(i, "is on lane %v", op.Lane)
	}
	if op.Lane == plan.LaneCompute {
		c.use(i, scratch.on(op.Rank), true)
	}

	switch op.Name() {
	case "update":
		c.updates[op.Part]++
		if op.Lane == plan.LaneCompute {
			if op.First == c.counted[op.Rank] {
				c.errorf(i, "begins the count of NaNs, wrongly")
			}
			c.counted[op.Rank] = true
			c.use(i, place{"device count", 0, 0}.on(op.Rank), true)
		}
		if c.passes(op.Part) {
			slot, state := c.weightsAt(op.Part, slotOf(op, plan.Weights)), place{"state slot", slotOf(op, plan.State), 0}
			c.read(i, slot, content{"weights", op.Part, 0})
			c.write(i, slot, fresh(op.Part))
			c.read(i, state, content{"state", op.Part, 0})
			c.write(i, state, content{"state", op.Part, 1})
			break
		}
		if c.p.StateResident(op.Part) {
			c.read(i, c.storedAt(op.Part), content{"new gradient", op.Part, 0})
			c.read(i, place{"own slot", op.Part, 0}, content{"weights", op.Part, 0})
			c.write(i, place{"own slot", op.Part, 0}, fresh(op.Part))
			c.read(i, place{"own state", op.Part, 0}, content{"state", op.Part, 0})
			c.write(i, place{"own state", op.Part, 0}, content{"state", op.Part, 1})
			break
		}
		if c.updatingNow() {
			c.read(i, c.hostGradient(op.Part), content{"new gradient", op.Part, 0})
			c.read(i, place{"host weights", op.Part, 0}, fresh(op.Part))
			c.write(i, place{"host weights", op.Part, 0}, content{"weights", op.Part, 2})
			break
		}
		c.read(i, c.hostGradient(op.Part), content{"old gradient", op.Part, 0})
		c.read(i, place{"host weights", op.Part, 0}, content{"weights", op.Part, 0})
		c.write(i, place{"host weights", op.Part, 0}, fresh(op.Part))
	case "save-state":
		c.saves[op.Part]++
		c.read(i, place{"host weights", op.Part, 0}, fresh(op.Part))
	case "gather", "gather-ahead":
		table := op.Table
		for _, p := range table.Tiles {
			if op.Name() == "gather" {
				c.read(i, place{"host weights", p, 0}, fresh(p))
				continue
			}
			c.read(i, place{"host weights", p, 0}, content{"weights", p, 0})
			c.read(i, c.hostGradient(p), content{"old gradient", p, 0})
		}
		for m := range c.p.Numerics.MicroBatches {
			if op.Micro >= 0 && op.Micro != m {
				continue
			}
			if table.Side >= 0 {
				c.write(i, c.lookedUp(table.Side, m), rowsOf(table.Side, m))
				continue
			}
			to := c.hostX(table.Layer, m)
			if c.bound() {
				to = c.ownX(0, table.Layer, m)
			}
			c.write(i, to, content{"x", table.Layer, m})
		}
	case "upload":
		c.write(i, tokens, content{"tokens", 0, 0})
	case "fetch":
		from := fresh(op.Part)
		if c.passes(op.Part) && c.updates[op.Part] == 0 {
			from.n = 0
		}
		c.read(i, place{"host weights", op.Part, 0}, from)
		c.write(i, c.weightsAt(op.Part, slotOf(op, plan.Weights)), from)
	case "fetch-state":
		if c.passes(op.Part) {
			c.read(i, place{"host weights", op.Part, 0}, content{"weights", op.Part, 0})
			c.read(i, c.hostGradient(op.Part), content{"old gradient", op.Part, 0})
			c.write(i, place{"state slot", slotOf(op, plan.State), 0}, content{"state", op.Part, 0})
			break
		}
		c.read(i, place{"host weights", op.Part, 0}, fresh(op.Part))
		c.write(i, place{"own state", op.Part, 0}, content{"state", op.Part, 1})
	case "write-back":
		if c.passes(op.Part) {
			c.read(i, c.weightsAt(op.Part, slotOf(op, plan.Weights)), fresh(op.Part))
			c.read(i, place{"state slot", slotOf(op, plan.State), 0}, content{"state", op.Part, 1})
			c.write(i, place{"host weights", op.Part, 0}, fresh(op.Part))
			break
		}
		c.read(i, place{"own slot", op.Part, 0}, fresh(op.Part))
		c.read(i, place{"own state", op.Part, 0}, content{"state", op.Part, 1})
		c.write(i, place{"host weights", op.Part, 0}, fresh(op.Part))
	case "load":
		c.read(i, c.awayX(op, op.Layer), content{"x", op.Layer, m})
		c.write(i, c.xAt(op, op.Layer), content{"x", op.Layer, m})
	case "pass":
		c.peerCopy(i, c.ownX(op.Reads[0].Rank, op.Layer, m), c.xAt(op, op.Layer), content{"x", op.Layer, m})
	case "pass-input":
		dx := c.dxAt(op, op.Layer, m)
		c.peerCopy(i, dx, dx, content{"dx", op.Layer + 1, m})
	case "save":
		c.read(i, c.xAt(op, op.Layer), content{"x", op.Layer, m})
		c.write(i, c.awayX(op, op.Layer), content{"x", op.Layer, m})
	case "forward":
		if c.m.Parts[op.Part].Group > 0 {
			c.forwardGroup(i, op)
			break
		}
		reads()
		weights(op.Part)
		c.forwardSides(i, op)
		c.read(i, c.xAt(op, op.Layer), content{"x", op.Layer, m})
		c.write(i, c.yAt(op), c.sumAfter(op, 0))
		c.write(i, c.keptAt(op), content{"kept", op.Layer, m})
		if c.groups(op) > 0 {
			c.write(i, place{"between", m, 0}, c.normedAfter(op, m, 0))
		}
	case "combine":
		c.combine(i, op)
	case "save-sums":
		c.read(i, c.outcomeAt(op), content{"outcome", op.Layer, m})
		c.write(i, place{"host outcome", op.Layer, m}, content{"outcome", op.Layer, m})
	case "load-sums":
		c.read(i, place{"host outcome", op.Layer, m}, content{"outcome", op.Layer, m})
		c.write(i, c.outcomeAt(op), content{"outcome", op.Layer, m})
	case "pass-side":
		n := op.Writes[0].Index
		c.peerCopy(i, sideAt(n, m), sideAt(n, m), sideOf(n, m))
	case "pass-side-grad":
		n := op.Writes[0].Index
		sum, _ := c.sideGradBefore(n, op.Layer, m)
		c.peerCopy(i, c.sideGradAt(n, m), c.sideGradAt(n, m), sum)
	case "load-side", "save-side", "load-side-grad", "drain-side":
		c.moveSide(i, op)
	case "pass-head", "pass-head-grad", "save-head", "save-head-grad", "load-head", "load-head-grad":
		c.passHead(i, op)
	case "save-balance":
		cohort := op.Reads[0].Cohort
		c.read(i, place{"balance", op.Layer, cohort}, choices(op.Layer, cohort))
		c.write(i, place{"host balance", op.Layer, cohort}, choices(op.Layer, cohort))
	case "load-balance":
		c.eachChoice(func(layer, cohort int) {
			c.read(i, place{"host balance", layer, cohort}, choices(layer, cohort))
			c.write(i, place{"balance", layer, cohort}, choices(layer, cohort))
		})
	case "save-kept":
		c.read(i, c.keptAt(op), content{"kept", op.Layer, m})
		c.write(i, place{"host kept", op.Layer, m}, content{"kept", op.Layer, m})
	case "load-kept":
		c.read(i, place{"host kept", op.Layer, m}, content{"kept", op.Layer, m})
		c.write(i, c.keptAt(op), content{"kept", op.Layer, m})
	case "head-norm":
		weights(c.m.NormPart)
		c.read(i, c.xAt(op, top), content{"x", top, m})
		c.head[m] = content{"statistics", m, 0}
		c.write(i, c.headAt(m), c.head[m])
	case "head-stats":
		reads()
		weights(op.Part)
		head(content{"statistics", m, index(op.Part)}, content{"statistics", m, index(op.Part) + 1})
		if c.logits != nil {
			c.write(i, c.logitsAt(index(op.Part), m), content{"logits", index(op.Part), m})
		}
		if c.p.Outputs.TopK > 0 {
			if !c.bound() {
				c.read(i, place{"picks", m, 0}, content{"picks", m, 0})
			}
			if index(op.Part) > 0 {
				c.read(i, c.unlessBound("picked", m), content{"picked logits", m, index(op.Part)})
			}
			c.write(i, c.unlessBound("picked", m), content{"picked logits", m, index(op.Part) + 1})
		}
	case "head-loss":
		reads()
		head(content{"statistics", m, tiles}, content{"gradients", m, tiles})
		c.write(i, loss, content{"loss", 0, 0})
		if c.stops() {
			c.write(i, c.unlessBound("losses", m), content{"losses", m, 0})
		}
	case "load-picks":
		c.write(i, place{"picks", m, 0}, content{"picks", m, 0})
	case "save-picked":
		c.read(i, place{"picked", m, 0}, content{"picked logits", m, tiles})
		c.write(i, place{"host picked", m, 0}, content{"picked logits", m, tiles})
	case "load-picked-grads":
		c.read(i, place{"host picked", m, 0}, content{"picked gradients", m, 0})
		c.write(i, place{"picked", m, 0}, content{"picked gradients", m, 0})
	case "save-losses":
		c.read(i, place{"losses", m, 0}, content{"losses", m, 0})
		c.write(i, place{"host losses", m, 0}, content{"losses", m, 0})
	case "objective":
		micros := c.p.Numerics.CohortMicros()
		if each := min(c.p.Outputs.TopK, 1) + 1; len(op.Reads) != each*micros || len(op.Writes) != len(op.Reads) {
			c.errorf(i, "reads %d and writes %d", len(op.Reads), len(op.Writes))
		}
		for _, of := range op.Reads[micros:] {
			c.read(i, place{"host picked", of.Micro, 0}, content{"picked logits", of.Micro, tiles})
			c.write(i, place{"host picked", of.Micro, 0}, content{"picked gradients", of.Micro, 0})
		}
		for k, of := range op.Reads[:micros] {
			if op.Writes[k].Micro != of.Micro || of.Micro != op.Reads[0].Micro+k {
				c.errorf(i, "mixes micro-batches")
			}
			c.read(i, place{"host losses", of.Micro, 0}, content{"losses", of.Micro, 0})
			c.write(i, place{"host loss weights", of.Micro, 0}, content{"loss weights", of.Micro, 0})
		}
	case "load-loss-weights":
		c.read(i, place{"host loss weights", m, 0}, content{"loss weights", m, 0})
		c.write(i, place{"loss weights", m, 0}, content{"loss weights", m, 0})
	case "zero-grad":
		cohort := cohortOf(op)
		if c.p.Cluster.Several() && !c.p.Tied(op.Part) { // in any slot of the ring
			cohort = c.cleared[op.Part]
		}
		c.cleared[op.Part]++
		c.write(i, c.gradAt(op, op.Part), sumOf(op.Part, cohort, cohort*c.p.Numerics.CohortMicros()))
	case "zero-table":
		c.write(i, c.hostGradient(op.Part), content{"no gradient", op.Part, 0})
	case "round-table":
		c.read(i, place{"embedding sum", op.Part, 0}, c.wholeOf(op.Part, 0))
		c.write(i, c.hostGradient(op.Part), content{"the head's gradient", op.Part, 0})
	case "narrow":
		c.narrow(i, op)
	case "add":
		cohort := cohortOf(op)
		total := op
		total.Reads = nil
		before := content{"gradient", op.Part, c.endOf(cohort - 1)}
		if cohort == 1 {
			before = c.exchanged(op.Part, 0)
		}
		c.read(i, c.gradAt(op, op.Part), c.exchanged(op.Part, cohort))
		c.read(i, c.gradAt(total, op.Part), before)
		c.write(i, c.gradAt(total, op.Part), content{"gradient", op.Part, c.endOf(cohort)})
	case "head-grad":
		reads()
		weights(op.Part)
		if op.First != (index(op.Part) == tiles-1) {
			c.errorf(i, "overwrites or adds, wrongly")
		}
		if c.stops() {
			c.read(i, c.unlessBound("loss weights", m), content{"loss weights", m, 0})
			if c.p.Outputs.TopK > 0 {
				c.read(i, c.unlessBound("picked", m), content{"picked gradients", m, 0})
			}
		}
		if c.logits != nil {
			c.read(i, c.logitsAt(index(op.Part), m), content{"logits", index(op.Part), m})
		}
		c.contribute(i, op, op.Part)
		head(content{"gradients", m, index(op.Part) + 1}, content{"gradients", m, index(op.Part)})
	case "head-visit":
		reads()
		for _, p := range c.m.HeadTiles {
			weights(p)
			c.contribute(i, op, p)
		}
		head(content{"statistics", m, 0}, content{"gradients", m, 0})
		c.write(i, loss, content{"loss", 0, 0})
	case "head-input":
		weights(c.m.NormPart)
		c.read(i, c.xAt(op, top), content{"x", top, m})
		head(content{"gradients", m, 0}, content{"spent", m, 0})
		c.contribute(i, op, c.m.NormPart)
		c.write(i, c.dxAt(op, top, m), content{"dx", top, m})
	case "reopen":
		reads()
		weights(op.Part)
		c.read(i, c.xAt(op, op.Layer), content{"x", op.Layer, m})
		c.readKept(i, op)
		c.backwardSides(i, op, false)
		if c.routed(op) {
			c.read(i, c.dxAt(op, op.Layer, m), c.gradientAbove(op, m))
		}
		c.readOutcome(i, op)
		c.write(i, place{"between", m, 0}, c.gradientAfter(op, m, 0))
	case "backward":
		if c.m.Parts[op.Part].Group > 0 {
			c.backwardGroup(i, op)
			break
		}
		if n := c.groups(op); n > 0 {
			c.read(i, place{"between", m, 0}, c.gradientAfter(op, m, n))
			c.write(i, place{"between", m, 0}, content{"closed", op.Layer, m})
			c.readOutcome(i, op)
		}
		reads()
		weights(op.Part)
		c.read(i, c.xAt(op, op.Layer), content{"x", op.Layer, m})
		c.readKept(i, op)
		c.backwardSides(i, op, true)
		c.write(i, c.keptAt(op), content{"spent", op.Layer, m})
		c.contribute(i, op, op.Part)
		c.read(i, c.dxAt(op, op.Layer, m), c.gradientAbove(op, m))
		c.write(i, c.dxAt(op, op.Layer, m), content{"dx", op.Layer, m})
	case "round":
		c.read(i, c.gradAt(op, op.Part), c.whole(op.Part))
		c.write(i, place{"device squares", op.Part, 0}, content{"squares", op.Part, 0})
		switch {
		case c.bound():
			c.write(i, c.hostGradient(op.Part), content{"new gradient", op.Part, 0})
			c.homes[op.Part]++
		case c.p.StateResident(op.Part):
			c.write(i, c.storedAt(op.Part), content{"new gradient", op.Part, 0})
			c.homes[op.Part]++
		case c.split():
			c.write(i, place{"stage", slotOf(op, plan.Rounded), 0}, content{"rounded", op.Part, 0})
		}
	case "drain":
		if c.split() {
			c.read(i, place{"stage", slotOf(op, plan.Rounded), 0}, content{"rounded", op.Part, 0})
		} else {
			c.read(i, c.gradAt(op, op.Part), c.whole(op.Part))
		}
		c.write(i, c.hostGradient(op.Part), content{"new gradient", op.Part, 0})
		c.homes[op.Part]++
	case "drain-sum":
		if op.Writes[0].What == plan.CohortSum {
			c.drainSum(i, op)
			break
		}
		sum := c.wholeOf(op.Part, cohortOf(op))
		c.read(i, c.gradAt(op, op.Part), sum)
		c.write(i, place{"embedding sum", op.Part, cohortOf(op)}, sum)
	case "drain-input":
		layer := op.Reads[0].Index
		c.read(i, c.dxAt(op, layer, m), content{"dx", layer, m})
		c.write(i, c.awayX(op, layer), content{"dx", layer, m})
	case "load-input":
		c.read(i, c.awayX(op, op.Layer+1), content{"dx", op.Layer + 1, m})
		c.write(i, c.dxAt(op, op.Layer, m), content{"dx", op.Layer + 1, m})
	case "scatter":
		if c.p.Cluster.Several() {
			c.scatterSum(i, op)
			break
		}
		for m := range c.p.Numerics.MicroBatches {
			if c.comesDown(m) {
				c.readLookedUp(i, op, m)
			}
		}
		if c.p.Tied(op.Part) {
			for cohort := range c.p.Numerics.CohortCount() {
				c.read(i, place{"embedding sum", op.Part, cohort}, c.wholeOf(op.Part, cohort))
			}
		}
		if c.p.ClearsEarly(op.Part) {
			c.read(i, c.hostGradient(op.Part), content{"no gradient", op.Part, 0})
		}
		if c.p.RoundsEarly(op.Part) {
			c.read(i, c.hostGradient(op.Part), content{"the head's gradient", op.Part, 0})
		}
		sum := place{"embedding sum", op.Part, 0}
		if !c.p.Tied(op.Part) {
			sum.a = -1 // all untied tiles share one
		}
		c.write(i, sum, content{"spent", op.Part, 0})
		c.write(i, c.hostGradient(op.Part), content{"new gradient", op.Part, 0})
		c.homes[op.Part]++
	case "collect":
		c.use(i, place{"device count", 0, 0}.on(op.Rank), false)
		if c.pass == plan.Flush {
			break
		}
		for m := range c.p.Numerics.MicroBatches {
			if op.Rank == c.lossRank() {
				c.read(i, place{"device loss", m, 0}, content{"loss", 0, 0})
			}
		}
		for part, p := range c.m.Parts {
			if c.training() && c.p.Trained(part) && !c.p.Cluster.Several() && !p.Kind.LookedUp() &&
				op.Rank == c.rankOf(part, nn.Backward) {
				c.read(i, place{"device squares", part, 0}, content{"squares", part, 0})
			}
		}
	default:
		if !c.network(i, op) {
			c.errorf(i, "is unknown to the checker")
		}
	}
}

// saved checks that inputs leave the device to be loaded again, and that each has one place. A trunk is visited twice
// on the way down, and may have its input loaded for each of the visits.
func (c *checker) saved() {
	if c.pass.Half == plan.ForUpdates {
		return // the first half has saved what this one loads
	}
	saves, loads := map[int]int{}, map[int]int{}
	for _, op := range c.ops {
		switch name := op.Name(); {
		case name == "save" && op.Writes[0].Slot < 0: // it is not only on its way
			saves[op.Layer]++
		case name == "load" && op.Lane == plan.LaneFetch:
			loads[op.Layer]++
		}
	}
	for layer := 2; layer <= len(c.m.Blocks); layer++ {
		if c.m.Begins(layer) {
			continue // the host has it
		}
		crosses := c.p.RankOf(layer, nn.Forward) != c.p.RankOf(layer-1, nn.Forward) ||
			c.p.RankOf(layer, nn.Backward) != c.p.RankOf(layer-1, nn.Backward)
		switch {
		case crosses && !c.p.PeerCopies() && !c.training():
			continue // it passes between devices where it would be saved
		case c.p.RankOf(layer, nn.Forward) != c.p.RankOf(layer, nn.Backward):
			continue // the device of its backward visit may have made it
		}
		again := loads[layer]
		if len(c.m.GroupParts[layer-1]) > 0 && again > saves[layer] {
			again -= saves[layer]
		}
		if c.p.Placement.Twice && again == 0 {
			again = saves[layer] // it is still there for the first time down, and loaded for the second one
		}
		if saves[layer] != again || saves[layer] != 0 && saves[layer] != c.microsDown()*c.p.Numerics.CohortCount() {
			c.errs = append(c.errs, fmt.Sprintf("the inputs of layer %d are saved %d times and loaded %d times", layer, saves[layer], loads[layer]))
		}
		if c.training() && (saves[layer] > 0) != (c.p.SavedOnHost(layer-1) || c.p.SavedOnDisk(layer-1)) {
			c.errs = append(c.errs, fmt.Sprintf("the inputs of layer %d are saved %d times, which is not what is planned", layer, saves[layer]))
		}
	}
}

// complete checks what a schedule has to have done by its end.
func (c *checker) complete(saves bool) {
	once := func(want bool, n int) bool { return want && n == 1 || !want && n == 0 }
	for part, p := range c.m.Parts {
		trained, owns := c.p.Trained(part), c.p.Owns(part)
		if at := (place{"host weights", part, 0}); c.mode.WriteBack && c.mem[at] != fresh(part) && !c.updatingNow() {
			c.errs = append(c.errs, fmt.Sprintf("%s does not come home: the store has %v", p.Name, c.mem[at]))
		}
		if n := c.updates[part]; !once(owns && trained && (c.updating() || c.updatingNow()), n) {
			c.errs = append(c.errs, fmt.Sprintf("%s is updated %d times", p.Name, n))
		}
		if n := c.saves[part]; !once(owns && saves, n) {
			c.errs = append(c.errs, fmt.Sprintf("%s is saved %d times", p.Name, n))
		}
		if n := c.homes[part]; !once(owns && trained && c.homely(part), n) {
			c.errs = append(c.errs, fmt.Sprintf("the gradient of %s comes home %d times", p.Name, n))
		}
	}
	runs := c.pass != plan.Flush && c.pass != plan.Nothing
	collected := slices.ContainsFunc(c.ops, func(op plan.Op) bool { return op.Name() == "collect" })
	if want := runs && !c.bound() || len(c.counted) > 0; collected != want {
		c.errs = append(c.errs, fmt.Sprintf("results are collected: %v", collected))
	}
	for m := range c.p.Numerics.MicroBatches {
		if _, ok := c.mem[place{"device loss", m, 0}.on(c.lossRank())]; ok != runs {
			c.errs = append(c.errs, fmt.Sprintf("micro-batch %d has a loss: %v", m, ok))
		}
	}
}

// readKept reads what forward has left, if it has left anything.
func (c *checker) readKept(i int, op plan.Op) {
	if c.p.Keep(op.Layer-1) > nn.KeepInput {
		c.read(i, c.keptAt(op), content{"kept", op.Layer, op.Micro})
	}
}

// down reports whether an operation comes after the head's first, when inputs come back.
func (c *checker) down(i int) bool {
	return slices.ContainsFunc(c.ops[:i], func(op plan.Op) bool {
		return op.Do == plan.DoVisit && strings.HasPrefix(op.Visit.Name, "head-")
	})
}
