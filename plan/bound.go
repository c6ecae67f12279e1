package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/nn"
)

// How long does a step take at least? A search asks that before it simulates a placement, since most of those that it
// meets cannot win, and a simulation builds a schedule of thousands of operations to find that out.
//
// The obvious answer adds up each lane. It holds, and tells little: of 763 placements for a mixture of 30B parameters
// it leaves 657 that might be the fastest one. The others are slow since lanes wait for each other.
//
// So floor follows a step in whole stages of visits. A lane has its operations in the order of the schedule, and begins
// none before what it has to wait for in any case: a forward visit the update and the fetch of its weights, a fetch the
// visit that used its slot before, a drain the visit that wrote what it takes. All else is left out: that lanes slow
// each other down, other waits, and small operations. So a simulation never ends sooner, and a test holds both against
// each other.

// floor is on its way through a step, and knows when each lane is done with what it has had so far, at the least.
type floor struct {
	*builder // answers questions about the schedule, and emits nothing
	machine  *Machine
	costs    func(*Op) cost
	visits   *visitCosts
	from, to [1]Operand // of the move whose cost is asked for

	at     []float64   // by worker, except those that drain
	drains [][]release // by rank
	stored []float64   // by part: when it has been updated where it is stored
	ready  []float64   // by part: when its weights are on the device
	slotOf []int       // by part: of the ring
	free   [][]float64 // by rank and slot of the ring: when the visit that read it last is done
	state  float64     // when the state of the part that passes next is on the device

	// Seconds that the disk works: for all of the step; by part, for updates up to the part's; for those that visits so
	// far have waited for, and for what they have had fetched, and saved; and, by working buffer, for the input in it.
	readPerSec, writePerSec float64 // of the disk
	disk                    float64
	upTo                    []float64
	updated, fetched, saved float64
	saving                  [2]float64
	onDevice                []bool // by part: it is resident, and has been fetched or updated
}

// release is work that begins no sooner than a time.
type release struct{ from, sec float64 }

// leastSeconds is a time that no simulated step of the plan on the machine falls short of, except by rounding; 0 where
// none is known: of passes forward, and on devices that compute on the host's cores.
func (p *Plan) leastSeconds(m *Machine, visits *visitCosts) float64 {
	if !p.Trains() || p.Unified {
		return 0
	}
	if p.Placement.Twice {
		return p.leastOfPass(FirstHalf, m, visits) + p.leastOfPass(SecondHalf, m, visits)
	}
	return p.leastOfPass(Steady, m, visits)
}

// leastOfPass is the same of the schedule of a pass.
func (p *Plan) leastOfPass(pass Pass, m *Machine, visits *visitCosts) float64 {
	parts, crew := len(p.Model.Parts), p.Crew()
	workers, slots := len(crew.Workers()), p.Placement.Rings.Weights
	b := &builder{Plan: p, Mode: usual(pass), crew: crew, ranks: crew.Ranks, devices: make([]onRank, crew.Ranks)}
	f := &floor{builder: b, machine: m, visits: visits, costs: p.costs(m, visits), at: make([]float64, workers),
		stored: make([]float64, parts), upTo: make([]float64, parts), ready: make([]float64, parts),
		slotOf: make([]int, parts), onDevice: make([]bool, parts), free: make([][]float64, crew.Ranks),
		drains: make([][]release, crew.Ranks)}
	f.readPerSec, f.writePerSec = p.diskRates(m)
	rows := b.walk()
	for rank := range b.devices {
		f.free[rank] = make([]float64, slots)
		b.devices[rank].slots.plan(slots, b.visited(rows, rank), parts)
	}
	for part := range f.onDevice { // the first half of a step has brought them
		f.onDevice[part] = pass.Half == ForUpdates && b.resident(part)
	}
	b.passing = b.toPass()
	f.fetchState()
	for _, part := range b.updateOrder() {
		f.update(part)
	}
	for _, r := range rows {
		f.row(r)
	}
	for _, part := range b.waiting() {
		f.ofPart(LaneUpdate, DoUpdate, part, 1, 0)
	}
	return max(slices.Max(f.at), f.drained(), f.disk)
}

// drained returns the time at which the last rank has drained all that it has to, in the order in which that can begin:
// no other order is faster.
func (f *floor) drained() (last float64) {
	for _, all := range f.drains {
		slices.SortFunc(all, func(a, b release) int { return cmp.Compare(a.from, b.from) })
		at := 0.0
		for _, d := range all {
			at = max(at, d.from) + d.sec
		}
		last = max(last, at)
	}
	return last
}

// spend has a worker work from a time on, or from when it is free, and returns when it is done. Nothing here waits for
// what drains.
func (f *floor) spend(w Worker, sec, from float64) float64 {
	if w.Lane == LaneDrain {
		f.drains[w.Rank] = append(f.drains[w.Rank], release{from, sec})
		return 0
	}
	at := &f.at[f.crew.Index(w)]
	*at = max(*at, from) + sec
	return *at
}

// run spends what an operation costs, n times.
func (f *floor) run(o *Op, n int, from float64) float64 {
	c := f.costs(o)
	disk := seconds(c.read, f.readPerSec) + seconds(c.written, f.writePerSec)
	f.disk += float64(n) * disk
	if o.Lane == LaneFetch {
		f.fetched += float64(n) * disk
	}
	sec := max(c.seconds(f.machine, f.Plan), disk/f.Placement.diskShare(o.Lane))
	return f.spend(o.Worker, float64(n)*sec, from)
}

// ofPart is run for an operation of a part that moves nothing.
func (f *floor) ofPart(lane Lane, do Do, part, n int, from float64) float64 {
	o := op(lane, 0, do)
	if o.Part = part; lane == LaneCompute {
		o.Rank = f.rank(part)
	}
	return f.run(&o, n, from)
}

// move is run for a copy of what a part has, if there is a part.
func (f *floor) move(lane Lane, rank, part, n int, a, b Operand, from float64) float64 {
	o := op(lane, rank, DoMove)
	f.from[0], f.to[0] = a, b
	o.Part, o.Reads, o.Writes = part, f.from[:], f.to[:]
	return f.run(&o, n, from)
}

// update has a part updated at the beginning of the step, as builder.update does.
func (f *floor) update(part int) {
	switch {
	case f.StateResident(part):
		f.onDevice[part] = true
		f.ofPart(LaneCompute, DoUpdate, part, 1, 0)
	case f.Trained(part) && f.updates() && f.Owns(part) && !f.StatePasses(part):
		f.stored[part] = f.ofPart(LaneUpdate, DoUpdate, part, 1, 0)
		f.upTo[part] = f.disk
	}
}

// fetchState brings the state of the next part whose state passes, as builder.fetchPassing does.
func (f *floor) fetchState() {
	if len(f.passing) > 0 {
		part := f.passing[0]
		f.state = f.move(LaneFetch, f.rank(part), part, 1, of(Stored, part, Host), f.here(State, part, Device), 0)
		f.passing = f.passing[1:]
	}
}

// weights has a part come to the device, as builder.weights does.
func (f *floor) weights(part int) {
	rank, from, fetch := f.rank(part), f.stored[part], !f.onDevice[part]
	if f.resident(part) {
		f.onDevice[part] = true
	} else {
		f.slotOf[part], fetch = f.devices[rank].slots.next(part)
		from = max(from, f.free[rank][f.slotOf[part]])
	}
	f.updated = max(f.updated, f.upTo[part])
	if fetch {
		f.ready[part] = f.move(LaneFetch, rank, part, 1, of(Stored, part, Host), f.here(Weights, part, Device), from)
	}
	if f.updates() && !f.down && f.StatePasses(part) {
		f.ready[part] = f.ofPart(LaneCompute, DoUpdate, part, 1, max(f.ready[part], f.state))
		f.move(LaneDrain, rank, part, 1, f.here(State, part, Device), of(Stored, part, Host), f.ready[part])
		f.fetchState()
	}
}

// row follows the visits of a layer in one direction, as builder.layer does.
func (f *floor) row(r leg) {
	f.down = r.to == nn.Backward && r.layer <= f.blocks()
	began := math.Inf(1) // the first visit
	loaded := nn.Uses(0)
	for _, stage := range r.stages {
		before := slices.Clone(f.at)
		for _, i := range partsOf(stage) {
			f.weights(r.parts[i])
			if f.Trained(r.parts[i]) && sums(stage, i) {
				f.ofPart(LaneCompute, DoClear, r.parts[i], f.Numerics.CohortCount(), 0)
			}
		}
		last := 0.0 // what the last of the stage's visits waits for
		for i := range stage {
			if uses := (stage[i].Reads | stage[i].Writes) &^ loaded; f.down {
				last = max(last, f.load(r.layer, uses))
				loaded |= uses
			}
		}
		for i := range stage {
			v := &stage[i]
			if v.OnHost {
				continue
			}
			w, from := Worker{Lane: LaneCompute, Rank: f.visitRank(r.layer, r.to, v)}, 0.0
			for _, i := range v.Parts {
				from = max(from, f.ready[r.parts[i]])
			}
			began = min(began, max(from, f.at[f.crew.Index(w)]))
			end := f.spend(w, f.visits.secondsOf(f.Plan, f.machine, r.layer, v), from)
			for _, i := range v.Parts {
				if f.streamed(r.parts[i]) {
					f.free[w.Rank][f.slotOf[r.parts[i]]] = end
				}
			}
		}
		if r.layer <= f.blocks() {
			if f.ranks == 1 { // of several, not all visits of a layer come before those of the next one
				last = max(last, f.updated+f.fetched+f.saved)
			}
			f.spend(Worker{Lane: LaneCompute, Rank: f.RankOf(r.layer, r.to)}, 0, last)
		}
		for _, i := range partsOf(stage) {
			if f.Trained(r.parts[i]) && sums(stage, i) {
				f.drainGradient(r.parts[i], before)
			}
		}
	}
	if r.to == nn.Forward {
		f.save(r.layer, began)
	}
}

// load brings what the visits of a block on the way down use of each micro-batch, and returns when it is there.
func (f *floor) load(layer int, uses nn.Uses) (at float64) {
	micros, rank := f.microsDown(), f.RankOf(layer, nn.Backward)
	if uses.Has(nn.X) && f.inputSpills(layer-1) && f.ranks == 1 { // of several, one may have it still
		at = f.move(LaneFetch, rank, none, micros, f.away(f.input(rank, layer, 0)), f.input(rank, layer, 0), 0)
	}
	if uses.Has(nn.KeptRows) && f.ActivationsSpill(layer-1) {
		at = f.move(LaneFetch, rank, none, micros, of(Kept, layer, Host), of(Kept, layer, Device), 0)
	}
	return at
}

// save takes what a block leaves of each micro-batch to where it waits. Its visits began at a time.
func (f *floor) save(layer int, began float64) {
	micros, rank := f.microsDown(), f.RankOf(layer, nn.Forward)
	if f.ActivationsSpill(layer - 1) {
		f.move(LaneDrain, rank, none, micros, of(Kept, layer, Device), of(Kept, layer, Host), began)
	}
	y, before := layer+1, f.disk
	if buffer := &f.saving[y%2]; !f.savedOn(rank, y) && f.Placement.Rings.Inputs <= f.Numerics.MicroBatches {
		f.saved, *buffer = f.saved+*buffer, 0 // what was there has been saved, since another input is
	}
	if y <= f.blocks() && !f.Model.Begins(y) && f.inputSpills(y-1) {
		f.move(LaneDrain, rank, none, micros, f.input(rank, y, 0), f.away(f.input(rank, y, 0)), began)
	}
	f.saving[y%2] += f.disk - before
}

// drainGradient takes the gradient of a part to the host, as builder.endCohort and builder.finish do: from the slot to
// which it is rounded, after all visits of a stage, else from where it is summed, at some time in the stage.
func (f *floor) drainGradient(part int, before []float64) {
	rank, n := f.rank(part), 1
	computes, to := f.crew.Index(Worker{Lane: LaneCompute, Rank: rank}), of(Rounded, part, Host)
	from := before[computes]
	switch {
	case f.Tied(part):
		n, to.What = f.Numerics.CohortCount(), Gradient
	case f.Cluster.Several():
		n, to.What = f.Numerics.CohortCount(), CohortSum
	case f.StateResident(part), !f.leaves(part):
		return
	case f.staged():
		from = f.at[computes]
	}
	f.move(LaneDrain, rank, part, n, f.here(Gradient, part, Device), to, from)
	if f.UpdatesInBackward() && !f.Tied(part) && !f.GradWaits(part) {
		f.ofPart(LaneUpdate, DoUpdate, part, 1, 0) // at once
	}
}
