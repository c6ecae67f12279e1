package plan

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
)

// The problem. A model of 48 blocks has, for each block, two places for its weights, three for its state, four levels
// of activations in two places and three places for its input: more placements than can be counted. Each takes memory
// of three kinds, and how fast a step is under it only a simulation tells, which takes a millisecond to a second.
//
// The obvious answer is to give each byte of memory to whatever saves most time for it, one move after the other. It
// fails twice. Moves are not alone: an update on the device saves nothing until the host is no longer late, and
// activations in host memory cost nothing until the link is busy. And the gain of a move depends on those made before
// it, so that greed takes a simulation for each move at each step: minutes. A greedy search by estimates instead of
// simulations was faster and wrong where lanes overlap.
//
// The answer here: the search knows a few dozen sensible orders in which to spend memory, the routes. A route is a list
// of stages. A stage is a list of moves of one kind, from the block that gains most to the one that gains least. Since
// each move takes memory, how far a stage goes is found by bisection, without a simulation. Only where a stage ends a
// step is simulated:
//
//	best = the smallest placement
//	for each start (rings of 1 to 3 slots; inputs in buffers of their own or shared):
//		bring the start into host memory: spill to disk what has no room there, or hold it on the device
//		for each route:
//			for each stage: make as many of its moves as fit; remember where it ends
//			stop at the first stage that does not end
//	simulate what is remembered; the fastest is the plan
//
// Most of these placements are seen to be slower than the fastest one without a simulation: see floor.
//
// Routes do not depend on the budgets, which only say how far one gets. So more memory makes no slower plan, except for
// anomalies of the simulated lanes such as a drain that begins later. The search records what it tried and where each
// route stopped: see [Plan.Why].

// The work of a search is divided among the cores: starts are brought into memory, routes are followed, and placements
// are simulated at the same time, each kind of work when all of the one before is done. The choice does not depend on
// the number of cores: placements are compared in their order.

// chooser is one search, or one of the workers of a search.
type chooser struct {
	Request
	ctx      context.Context // ends the search
	most     float64         // seconds; longer steps may be predicted to take forever; 0: no limit
	effort   effort
	alone    bool // of several devices one is used
	from     int  // Placement.TwiceFrom
	accounts *accounts
	measured *measured    // of the search; nil: nothing is remembered
	workers  int          // that search at the same time; 0: as many as there are cores, up to a limit
	memory   walkMemory   // of simulations
	extents  []store.Spec // of the placement that is measured
	owned    []int        // by part, if there are several hosts: its owner
	manifest int64        // with several hosts: see manifestBytes; 0: not yet counted
	note     func(Trial)  // told of each placement that is simulated; nil: no notes
}

// effort counts the work of a search, so that tests can bound it without a clock.
type effort struct {
	placements  int // whose memory was added up
	simulations int // of schedules, to their end or not
	operations  int // of those
}

// feasible returns the first starting plan that fits, or the reason why none does: of those that the device has room
// for, that of the one which takes the least host memory. It simulates nothing.
func (c *chooser) feasible() (*Plan, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	if c.Device.Unified && c.DeviceBytes == 0 && c.Gradients != GradientsTwice && c.Over == nil {
		p := c.measure(c.spill(c.smallest(true), 0))
		err := c.fits(p)
		if err == nil || c.DiskBytes == 0 && !c.Outputs.NoClip {
			return p, err
		}
		// Weights in place do not fit: they are streamed, from disk where they must, and without gradients in memory where
		// they may.
	}
	var best *Plan
	starts := c.streaming()
	for _, hold := range []bool{false, true} {
		for _, start := range starts {
			if start = c.roomForRows(start); hold {
				start = c.hold(start)
			}
			p := c.measure(c.spill(start, 0))
			if c.fits(p) == nil {
				return p, nil
			}
			if best == nil || !c.fitsDevice(best) || c.fitsDevice(p) && p.ProcessBytes() < best.ProcessBytes() {
				best = p
			}
		}
	}
	return best, c.fits(best)
}

// fitsDevice reports whether the device has room for a placement.
func (c *chooser) fitsDevice(p *Plan) bool { return c.roomOnDevice(c.whole(p)) }

func (c *chooser) roomOnDevice(whole *Plan) bool {
	return c.DeviceBytes == 0 || whole.DeviceTotalBytes() <= c.DeviceBytes
}

// streaming returns the starting placements where weights are streamed: with a buffer for each layer input and gradient
// of a micro-batch and, if that takes less memory, with shared buffers.
func (c *chooser) streaming() []Placement {
	starts := []Placement{c.smallest(false)}
	if c.share().MicroBatches > spareInputs {
		shared := starts[0]
		shared.Rings.Inputs = spareInputs
		starts = append(starts, c.leastHead(shared))
	}
	return starts
}

// roomForRows has as much of what blocks hold between visits wait in host memory as the device lacks room for. It
// leaves a placement as it is that does not fit then.
func (c *chooser) roomForRows(place Placement) Placement {
	if c.Device.Unified || !c.Device.ReachesHost {
		return place
	}
	for moved := place; ; moved.HeldAway++ {
		p := c.measure(moved)
		switch {
		case c.fitsDevice(p):
			return moved
		case p.Placement.HeldAway < moved.HeldAway || moved.HeldAway == nn.NormAway:
			return place
		}
	}
}

// spareInputs are the shared buffers beyond one for each micro-batch: one is computed with while another one moves.
const spareInputs = 2

// leastHead gives the head one visit if that takes less device memory: its tiles stay there, and its buffers hold a
// single micro-batch.
func (c *chooser) leastHead(place Placement) Placement {
	once := place
	once.HeadAtOnce = true
	if c.RecomputeAll || c.measure(place).DeviceBytes <= c.measure(once).DeviceBytes {
		return place
	}
	return once
}

// choose looks for the fastest plan; unless it is to be thorough, among those that spend memory on overlap alone.
func (c *chooser) choose(thorough bool) (*Plan, error) {
	defer func() { c.memory, c.extents, c.measured = walkMemory{}, nil, nil }() // a plan keeps its chooser
	c.measured = newMeasured()
	best, err := c.feasible()
	if err != nil {
		return nil, err
	}
	best.Predicted = c.simulate(best, c.most)
	all := c.ringed(best.Bound())
	first := make([]Placement, len(all))
	for i, d := range all {
		first[i] = d.first
	}
	best = c.search(first, best, thorough)
	best = c.search(c.others(all, best), best, thorough)
	if c.ctx.Err() != nil {
		return nil, c.ctx.Err()
	}
	if c.Devices > 1 && !c.alone {
		return c.chooseAlone(best, thorough)
	}
	return best, nil
}

// ringed are the starts of a search with each deal and number of slots of rings.
func (c *chooser) ringed(bound bool) (all []dealt) {
	starts := []Placement{c.smallest(true)}
	if !bound {
		starts = c.streaming()
	}
	for _, start := range starts {
		for _, d := range c.deals(start) {
			for _, d.first.Rings = range c.rings(start) {
				d.whole.Rings = d.first.Rings
				all = append(all, dealt{c.roomForRows(d.first), c.roomForRows(d.whole)})
			}
		}
	}
	return all
}

// others are the placements to try after the first ones of starts: with the rings that were best, or with all if no
// deal was found that is worth it.
func (c *chooser) others(all []dealt, best *Plan) (others []Placement) {
	rings, none := best.Placement.Rings, best.Ranks() == 1 || math.IsInf(best.Predicted.StepSeconds, 1)
	for _, d := range all {
		r := c.plan(d.first).Placement.Rings // as the best plan has them: resolved
		if none || r.Weights == rings.Weights && r.Rounded == rings.Rounded && r.Inputs == rings.Inputs {
			others = append(others, d.others()...)
		}
	}
	return others
}

// chooseAlone returns the fastest plan of one of several devices where no deal fits, or where a step has one
// micro-batch and several devices are not faster: no two of them compute at once then. Else it returns the dealt plan.
// CPU devices have a share of the cores each, so one of them is no faster.
func (c *chooser) chooseAlone(dealt *Plan, thorough bool) (*Plan, error) {
	fits := dealt.Ranks() > 1
	if fits && (c.Device.Unified || c.share().MicroBatches > 1) {
		return dealt, nil
	}
	c.alone = true
	one, err := c.choose(thorough)
	if err != nil || !fits {
		return one, err
	}
	if one.Predicted.StepSeconds > dealt.Predicted.StepSeconds {
		return dealt, nil
	}
	one.fasterAlone = true
	return one, nil
}

// brought returns a start that is brought into host memory: by way of the disk, which overlap is worth and all else is
// not; and with as much on the device as host memory lacks, if it needs no disk then, or does not fit otherwise.
func (c *chooser) brought(start Placement, thorough bool) []Placement {
	most := c.most
	if thorough {
		most = 0
	}
	spilled := c.fastest(c.spills(start, thorough), most)
	if c.HostBytes == 0 || c.whole(c.measure(start)).ProcessBytes() <= c.HostBytes {
		return []Placement{spilled}
	}
	held := c.spill(c.hold(start), 0)
	if held.Where.onDisk() && c.fits(c.measure(spilled)) == nil {
		return []Placement{spilled}
	}
	return []Placement{spilled, held}
}

// search returns the fastest of a plan and the plans that the routes lead to from the starts.
func (c *chooser) search(starts []Placement, best *Plan, thorough bool) *Plan {
	brought := make([][]Placement, len(starts))
	c.each(len(starts), func(w *chooser, i int) {
		for _, start := range w.brought(starts[i], thorough) {
			if w.ctx.Err() != nil {
				return
			}
			brought[i] = append(brought[i], w.withCalls(start))
		}
	})
	type way struct {
		start Placement
		route Route
	}
	var ways []way
	for _, start := range slices.Concat(brought...) {
		routes := []Route{nil}
		if thorough && c.ctx.Err() == nil {
			routes = c.routes(start)
		}
		for _, route := range routes {
			ways = append(ways, way{start, route})
		}
	}
	rests := make([][]rest, len(ways))
	c.each(len(ways), func(w *chooser, i int) { rests[i] = w.follow(ways[i].start, ways[i].route) })
	seen := map[placementKey]bool{} // routes meet
	met := func(r rest) bool {
		spent := r.Placement.Clone()
		spent.Where.offDisk() // what is on disk follows from the rings
		key := spent.key()
		defer func() { seen[key] = true }()
		return seen[key]
	}
	found := slices.DeleteFunc(slices.Concat(rests...), met)

	serial := c.Overlap && best.Placement.Rings.Weights == 1 // the smallest, which any other one replaces
	var least shortest
	if c.most > 0 {
		least.lower(c.most)
	}
	if !serial {
		least.lower(best.Predicted.StepSeconds)
	}
	c.each(len(found), func(w *chooser, i int) { found[i].least = w.leastSeconds(found[i].Plan) })
	// Those first that may be fastest: what they take spares the others their simulations.
	order := slices.Clone(found)
	slices.SortStableFunc(order, soonest)
	c.each(len(order), func(w *chooser, i int) {
		p, most := order[i].Plan, least.seconds()
		if most > 0 && order[i].least > most*(1+rounding) {
			p.Predicted.StepSeconds = math.Inf(1)
		} else {
			p.Predicted = w.simulate(p, most)
			least.lower(p.Predicted.StepSeconds)
		}
		w.tell(order[i])
	})
	if c.ctx.Err() != nil {
		return best
	}
	for _, r := range found {
		if serial || r.Predicted.StepSeconds < best.Predicted.StepSeconds {
			best, serial = r.Plan, false
		}
	}
	return best
}

// withCalls is a start that looks up rows of tables ahead where that is worth it, and gives experts the largest calls.
func (c *chooser) withCalls(start Placement) Placement {
	// A row that is looked up ahead is read and written with 18 bytes a parameter, or fewer; the table is updated with
	// 26.
	if start.LookAhead = 2*c.Numerics.StepPositions() <= 3*c.Model.Vocab; c.fits(c.measure(start)) != nil {
		start.LookAhead = false
	}
	return c.withLargestCalls(start)
}

// searchedCallChunks are the most chunks of a call of experts that the search tries. On a device of its own each
// operation costs a launch, also those that find no rows; on the host's cores it costs next to nothing, and small calls
// stay in the caches.
const searchedCallChunks = 8

// withLargestCalls is a placement that gives experts the largest calls that there is room for.
func (c *chooser) withLargestCalls(place Placement) Placement {
	if c.Device.Unified || !c.Model.Routed() {
		return place
	}
	for place.CallChunks = searchedCallChunks; place.CallChunks > 1 && c.fits(c.measure(place)) != nil; {
		place.CallChunks /= 2
	}
	return place
}

// fastest is the placement with the shortest step of those that fit, and the first of all if none fits, or none takes
// less than most seconds. 0 means no limit: longer steps than are worthwhile count too, where moves that follow make
// them shorter.
func (c *chooser) fastest(places []Placement, most float64) Placement {
	if len(places) == 1 {
		return places[0]
	}
	var fit []rest
	for i, place := range places {
		if c.ctx.Err() != nil {
			break
		}
		if p := c.measure(place); c.fits(p) == nil {
			fit = append(fit, rest{Plan: p, number: i, least: c.leastSeconds(p)})
		}
	}
	slices.SortStableFunc(fit, soonest)
	best := 0
	for _, r := range fit {
		if c.ctx.Err() != nil || most > 0 && r.least > most*(1+rounding) {
			break
		}
		if sec := c.simulate(r.Plan, most).StepSeconds; most == 0 || sec < most || sec == most && r.number < best {
			best, most = r.number, sec
		}
	}
	return places[best]
}

// simulate predicts a step of a placement. A step that takes longer than most seconds is predicted to take forever; 0
// means no limit.
func (c *chooser) simulate(p *Plan, most float64) Prediction {
	walk := walking{micros: simulatedMicros, most: most, memory: &c.memory}
	if c.continuesAlone() {
		p = p.grown(p.Outputs.Caches.Sequences, p.Outputs.Caches.Positions)
	}
	q, operations := p.walk(c.Machine, c.Device, walk)
	c.effort.simulations++
	c.effort.operations += operations
	watchOf(c.ctx).simulated(stepSize{c.Numerics.StepPositions(), c.Cluster.Count()}, q.StepSeconds)
	return q
}

// continuesAlone reports whether passes that continue texts are all that the plan is for. The fastest one is that in
// which each text grows by a token: there are as many of these as texts have tokens, and prompts are read once.
func (c *chooser) continuesAlone() bool { return c.Outputs.Continues() && !trains(c.Model) }

// leastSeconds bounds the seconds of a placement's step from below; 0 for a search that takes notes, which says how
// long the steps of slower placements take, and for passes that continue texts.
func (c *chooser) leastSeconds(p *Plan) float64 {
	if c.note != nil || c.continuesAlone() {
		return 0
	}
	return p.leastSeconds(&c.Machine, &c.memory.visits)
}

// rest lists the moves with which a route can end.
type rest struct {
	*Plan
	number  int     // of its placement, among those that fastest compares
	least   float64 // seconds of a step, which may take longer
	taken   []StageTaken
	blocked error // why the next move was not made; nil: it was, or no move is left
}

// soonest compares what steps take at least.
func soonest(a, b rest) int { return cmp.Compare(a.least, b.least) }

// follow goes along a route as far as the budgets allow, and returns where it rested: at the start, where a stage
// ended, and at the end. The end is the fastest of them, unless lanes get in each other's way.
func (c *chooser) follow(start Placement, route Route) []rest {
	p := c.measure(start)
	if c.fits(p) != nil {
		return nil
	}
	rests, place := []rest{{Plan: p}}, start
	var taken []StageTaken
	for _, stage := range route {
		if c.ctx.Err() != nil {
			break
		}
		n := c.room(rests[len(rests)-1].Plan, place, stage)
		if n > 0 {
			place = c.with(place, stage[:n])
			if c.note != nil {
				taken = append(taken, StageTaken{stage.String(), n, len(stage)})
			}
			rests = append(rests, rest{Plan: c.measure(place), taken: slices.Clone(taken)})
		}
		if n < len(stage) {
			if c.note != nil {
				rests[len(rests)-1].blocked = c.fits(c.measure(c.with(place, stage[n:n+1])))
			}
			break
		}
	}
	return rests
}

// tell notes what was simulated.
func (c *chooser) tell(r rest) {
	if c.note == nil {
		return
	}
	t := Trial{Rings: r.Placement.Rings, Stages: r.taken, StepSeconds: r.Predicted.StepSeconds}
	if math.IsInf(t.StepSeconds, 1) {
		t.StepSeconds = 0
	}
	if r.blocked != nil {
		t.StoppedBy, _, _ = strings.Cut(r.blocked.Error(), ":")
	}
	c.note(t)
}

// rings are the depths of the rings that make lanes overlap, from a start.
func (c *chooser) rings(start Placement) []Rings {
	if start.Where.Bound() {
		return []Rings{start.Rings}
	}
	depth := func(weights, rounded, gradients int) Rings {
		r := start.Rings
		r.Weights, r.Rounded, r.Gradients = weights, rounded, gradients
		return r
	}
	grads := 1
	if c.Model.Tied || c.Cluster.Several() || c.Numerics.Scheme().Forms()[store.Grad].Type.Bytes() == 4 {
		grads = 2 // gradients drain from where they were summed
	}
	if c.Overlap {
		return []Rings{depth(2, 1, 1), depth(2, 2, grads), depth(3, 2, grads)}
	}
	return []Rings{depth(1, 1, 1), depth(2, 1, 1), depth(2, 2, grads), depth(3, 2, grads)}
}
