package stream

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// run is one walk of the lanes over a schedule.
type run struct {
	*Engine
	*program
	ctx    context.Context
	stepNo int64
	scale  float32 // of the loss gradient: 1 over the step's targets
	lanes  fault.Group

	mu      sync.Mutex
	changed *sync.Cond
	passed  [plan.Lanes]int // by lane: operations before this index have been enqueued, or done, or skipped
	errs    []error         // by operation
	leases  [plan.Lanes][]*store.Lease
	update  *pendingUpdate

	// Each entry belongs to its lane.
	failed  [plan.Lanes]error
	flights [plan.Lanes]flight
	start   [plan.Lanes]time.Duration    // on the clock of the trace
	taken   [plan.Lanes][store.Kinds]int // loans from disk
	hinted  [plan.Lanes][store.Kinds]int // and those that the store has been told of
	first   [][store.Kinds]uint64        // versions before the schedule
	bound   map[store.ID]device.Mem      // compute lane: extents that are used where they lie
}

// run walks the schedule of a phase and collects its results.
func (e *Engine) run(ctx context.Context, phase plan.Phase, batch *Batch, step int) (Result, error) {
	return e.follow(ctx, e.mode(phase, false), batch, step)
}

// follow walks the schedule of a mode and collects its results.
func (e *Engine) follow(ctx context.Context, mode plan.Mode, batch *Batch, step int) (Result, error) {
	if e.broken != nil {
		return Result{}, e.broken
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err // nothing has been touched
	}
	p, err := e.program(mode)
	if err != nil {
		return Result{}, err
	}
	r := &run{Engine: e, program: p, ctx: ctx, stepNo: int64(step), errs: make([]error, len(p.ops)), update: e.pending, bound: map[store.ID]device.Mem{},
		first: slices.Clone(e.versions.of)}
	r.changed = sync.NewCond(&r.mu)
	if batch != nil {
		if err := e.putTokens(batch); err != nil {
			return Result{}, err
		}
		if batch.Targets > 0 {
			r.scale = float32(1 / float64(batch.Targets))
		}
	}
	clear(e.regions[plan.ResultsPurpose].Bytes())

	if e.Serial {
		for lane, s := range e.streams {
			if s != nil {
				r.begins(plan.Lane(lane))
			}
		}
		for i := range r.ops {
			r.do(i)
			r.errs[i] = firstError(r.errs[i], e.streams[r.ops[i].Lane].Sync())
			r.pass(i)
		}
		for lane := range r.leases {
			r.releaseAll(plan.Lane(lane))
		}
	} else {
		for _, lane := range e.lanes {
			if lane != nil {
				r.lanes.Add(1)
				lane <- r
			}
		}
		r.lanes.Wait()
	}
	if err := r.firstError(); err != nil {
		e.broken = fmt.Errorf("the engine stopped: %w", err)
		return Result{}, err
	}
	r.record()
	if mode.Phase == plan.Steady || mode.Phase == plan.Flush {
		e.pending, e.stale = nil, true
	}
	if mode.Home || !e.Plan.AnyStateResident() {
		e.stale = false
	}
	if batch != nil {
		e.loaded = true // all of it is visited
	}
	if mode.Saves {
		e.save = nil
	}
	e.versions.passed(mode.Phase)
	return e.collect(p.counts), nil
}

// firstError is the error of the first operation in schedule order that has one: the same line each time, whichever lane
// failed first by the clock. Errors that the device found late are in the events.
func (r *run) firstError() error {
	failed := false
	for _, err := range r.errs {
		failed = failed || err != nil
	}
	for _, s := range r.streams {
		if s != nil {
			failed = s.Sync() != nil || failed
		}
	}
	if !failed {
		return nil
	}
	for i, op := range r.ops {
		err := r.errs[i]
		if err == nil {
			err = r.end[i].Wait()
		}
		if err != nil && !isCarried(err) {
			return fmt.Errorf("%v lane: %s: %w", op.Lane, r.names[i], err)
		}
	}
	return fmt.Errorf("a lane failed after its last operation")
}

// carried marks the error of an operation that was skipped because of another one's.
type carried struct{ error }

func isCarried(err error) bool {
	_, ok := err.(carried)
	return ok
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// walk does the operations of one lane.
func (r *run) walk(lane plan.Lane) {
	r.begins(lane)
	for i, op := range r.ops {
		if op.Lane == lane {
			r.do(i)
			r.pass(i)
		}
	}
	r.releaseAll(lane)
}

// begins notes when the lane starts on the schedule, and has the first reads begin.
func (r *run) begins(lane plan.Lane) {
	r.start[lane] = r.Trace.Now()
	r.streams[lane].Record(r.origins[lane])
	for kind := range store.Kind(store.Kinds) {
		r.hint(lane, kind)
	}
}

// record hands the times of all operations to the trace. They are the stream's own: from when an operation's turn came to
// when it was done, however early it was enqueued.
func (r *run) record() {
	if r.Trace == nil {
		return
	}
	for i, op := range r.ops {
		start := r.start[op.Lane] + r.begin[i].Since(r.origins[op.Lane])
		r.Trace.Record(op.Lane, r.names[i], r.stepNo, start, start+r.end[i].Since(r.begin[i]))
	}
}

// releaseAll ends the lane's work on the schedule: when all is done, what it borrowed goes back.
func (r *run) releaseAll(lane plan.Lane) {
	if s := r.streams[lane]; s != nil {
		s.Sync() // its error is found by firstError
	}
	r.release(lane)
}

// release gives back what the lane has borrowed; all work on it is done.
func (r *run) release(lane plan.Lane) {
	for _, l := range r.leases[lane] {
		l.Release()
	}
	r.leases[lane] = nil
}

// do waits for what operation i depends on, then enqueues it between its two events.
func (r *run) do(i int) {
	op := &r.ops[i]
	stream := r.streams[op.Lane]
	err := r.ctx.Err()
	for _, d := range op.After {
		if e := r.await(d); e != nil && err == nil {
			err = carried{e}
		}
		if err != nil {
			continue
		}
		if op.Lane != plan.LaneDisk && r.sameDevice(op.Lane, r.ops[d].Lane) {
			stream.Wait(r.end[d]) // the disk lane works itself and not by its stream
		} else if e := r.end[d].Wait(); e != nil {
			err = carried{e}
		}
	}
	if err == nil && r.failed[op.Lane] != nil {
		err = carried{r.failed[op.Lane]} // a lane that failed does nothing more
	}
	if err == nil {
		stream.Record(r.begin[i])
		err = r.exec(op)
	}
	// The event is recorded even after a failure, since others wait for it.
	stream.Record(r.end[i])
	if err == nil && op.Lane == plan.LaneUpdate {
		// Leases of the update lane end with the operation: the next reader borrows the new version.
		err = r.end[i].Wait()
		r.release(op.Lane)
	}
	r.failed[op.Lane] = err
	r.mu.Lock()
	r.errs[i] = err
	r.mu.Unlock()
}

// pass lets the waiters for operation i go on.
func (r *run) pass(i int) {
	r.mu.Lock()
	r.passed[r.ops[i].Lane] = i + 1
	r.mu.Unlock()
	r.changed.Broadcast()
}

// await blocks until operation d has been enqueued, and returns its error if it failed or was skipped.
func (r *run) await(d int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.passed[r.ops[d].Lane] <= d {
		r.changed.Wait()
	}
	return r.errs[d]
}

// onHostLane reports whether the lane is a stream of the host.
func onHostLane(l plan.Lane) bool { return l == plan.LaneUpdate || l == plan.LaneDisk }

// sameDevice reports whether two lanes are streams of one device.
func (r *run) sameDevice(a, b plan.Lane) bool {
	return r.Device == r.Host || onHostLane(a) == onHostLane(b)
}

// program is a schedule with an event before and behind each operation, from the device of its lane.
type program struct {
	ops        []plan.Op
	begin, end []device.Event
	names      []string // for errors and traces
	counts     bool     // weights that became NaN are counted on the device as well
	disk       [plan.Lanes][store.Kinds][]loan
}

func (e *Engine) program(mode plan.Mode) (*program, error) {
	if p := e.programs[mode]; p != nil {
		return p, nil
	}
	p := &program{ops: e.Plan.ScheduleOf(mode).Ops}
	p.disk = e.loans(p.ops)
	for _, op := range p.ops {
		p.names = append(p.names, e.describe(op))
		p.counts = p.counts || op.Kind == plan.Update && op.Lane == plan.LaneCompute
		on := e.Device
		if onHostLane(op.Lane) {
			on = e.Host
		}
		for _, list := range []*[]device.Event{&p.begin, &p.end} {
			ev, err := on.NewEvent()
			if err != nil {
				return nil, err
			}
			e.closers = append(e.closers, ev.Close)
			*list = append(*list, ev)
		}
	}
	e.programs[mode] = p
	return p, nil
}

// describe names an operation for errors and traces.
func (e *Engine) describe(op plan.Op) string {
	s := op.Kind.String()
	if op.Part >= 0 {
		s += " " + e.Plan.Model.Parts[op.Part].Name
	}
	if op.Micro >= 0 {
		s += fmt.Sprintf(" micro-batch %d", op.Micro)
	}
	return s
}

// collect adds up the scalars that the schedule brought home, parts and their pieces in order, in fp64. The count of NaNs on the
// device is of this schedule only if it has updated there.
func (e *Engine) collect(counted bool) Result {
	host, dev := e.bytes(plan.ResultsPurpose, e.host.HostResults), e.bytes(plan.ResultsPurpose, e.host.DeviceResults)
	float := func(off int64) float64 {
		return math.Float64frombits(binary.NativeEndian.Uint64(host[off:])) + math.Float64frombits(binary.NativeEndian.Uint64(dev[off:]))
	}
	var res Result
	for m := range e.Plan.Numerics.MicroBatches {
		res.LossSum += float(e.Plan.LossAt(m))
	}
	squares := 0.0
	for at := e.Plan.SquaresAt(0); at < e.Plan.ResultBytes(); at += 8 {
		squares += float(at)
	}
	res.GradNorm = math.Sqrt(squares)
	res.BadWeights = int64(binary.NativeEndian.Uint64(host[e.Plan.BadAt():]))
	if counted {
		res.BadWeights += int64(binary.NativeEndian.Uint64(dev[e.Plan.BadAt():]))
	}
	return res
}
