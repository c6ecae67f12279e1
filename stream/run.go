package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// The problem. Five lanes work at once: a copy up, arithmetic, a copy down, updates on the host's cores, and saves.
// Each is an ordered queue, and operations of different lanes depend on each other in both directions: compute waits
// for a fetch, the next fetch into the slot waits for compute.
//
// The obvious answer is a goroutine for each operation that waits for its dependencies, or a scheduler that starts
// what is ready. Both take order away from the lanes: which copy goes first would depend on the clock, and with it
// how much memory is held, and an error would come from whichever operation failed first. A deadlock would be a
// matter of luck.
//
// The answer here: a goroutine for each lane walks the same list, in order, and runs the operations of its lane. The
// list could also run serially in its order, so walking it cannot deadlock: the first operation in the list that is not
// done never waits for a later one.
//
//	walk(lane): for each operation of the lane, in order:
//		for each operation d that it waits for (of another lane):
//			wait until d has been enqueued; if it failed, carry the error
//			same device: have the stream wait for d's event; the host continues
//			else:        wait for d's event
//		record begin; enqueue (move.go, visit.go, update.go, embedding.go, disk.go); record end
//		pass: let others wait for this one's event
//
// Enqueuing runs ahead of the device, so that a stream never starves; leases of the store (lease.go) are held until
// the work that reads or writes them is done. A lane that fails still passes its operations, so that no lane hangs,
// and the reported error comes from the first failed operation of the list: the same line each time.

// execution is one walk of the lanes over a schedule.
type execution struct {
	*Engine
	*program
	ctx    context.Context
	stepNo int64

	network context.Context // of messages between hosts: it ends with ctx, or when an operation of this host fails
	giveUp  context.CancelFunc

	group fault.Group

	mu      sync.Mutex
	changed *sync.Cond
	passed  []int   // by worker: operations before this index have been enqueued, or done, or skipped
	meeting []int   // by worker: one past the index of the latest message that has been under way
	over    bool    // all lanes have done their work
	errs    []error // by operation
	update  *pendingUpdate
	at      []onWorker            // by worker, each its own
	first   [][store.Kinds]uint64 // versions before the schedule
}

// onWorker is the progress of a worker in an execution.
type onWorker struct {
	failed error
	leases []*store.Lease
	pieces enqueuedPieces
	start  time.Duration           // on the clock of the trace
	taken  [store.Kinds]int        // loans from disk
	hinted [store.Kinds]int        // and those that the store has been told of
	bound  map[store.ID]device.Mem // extents that are used where they are
}

// run walks the schedule of a pass and collects its results.
func (e *Engine) run(ctx context.Context, pass plan.Pass, batch *Batch, step int) (Result, error) {
	if err := e.takeTurn(ctx); err != nil {
		return Result{}, err
	}
	return e.follow(ctx, e.mode(pass, false), batch, step)
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
	r := &execution{Engine: e, program: p, ctx: ctx, stepNo: int64(step), errs: make([]error, len(p.ops)), update: e.pending,
		passed: make([]int, len(e.workers)), meeting: make([]int, len(e.workers)),
		at: make([]onWorker, len(e.workers)), first: slices.Clone(e.versions.of)}
	r.changed = sync.NewCond(&r.mu)
	r.network, r.giveUp = context.WithCancel(ctx)
	defer r.giveUp()
	if batch != nil {
		if err := e.putTokens(batch); err != nil {
			return Result{}, err
		}
		e.countRows(mode.Pass, batch)
	}
	e.clearResults(p.half)
	if step > 0 {
		e.latest.Store(int64(step))
	}
	e.current.Store(r)
	defer e.current.Store(nil)

	var errPeers error
	if e.Serial {
		for w := range e.workers {
			r.begins(w)
		}
		for i := range r.ops {
			r.do(i)
			r.errs[i] = firstError(r.errs[i], e.workers[r.indexOf(&r.ops[i])].stream.Sync())
			r.pass(i)
		}
		for w := range e.workers {
			r.releaseAll(w)
		}
	} else {
		r.group.Add(len(e.workers))
		for i := range e.workers {
			e.workers[i].runs <- r
		}
		errPeers = r.finish(mode.Saves)
	}
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	if err = r.firstError(); errPeers != nil && (err == nil || errors.Is(err, errAfterLast)) {
		err = errPeers
	}
	if err == nil {
		r.record()
		err = e.exchange(e.gather(p))
	}
	weighs := e.Objective != nil && mode.Pass.Steps() && mode.Pass.Half != plan.ForUpdates
	var weighed objective.Result
	if err == nil && weighs {
		weighed, err = e.exchangeObjective()
	}
	if err != nil {
		e.broken = fmt.Errorf("the engine stopped: %w", err)
		return Result{}, err
	}
	if mode.Pass.Updates {
		e.pending, e.dirty = nil, true
	}
	if mode.WriteBack || !e.keeps {
		e.dirty = false
	}
	if mode.Pass.Runs() {
		e.loaded = true // all of it is visited
	}
	e.continued = mode.Pass == plan.Continue
	if mode.Saves {
		e.save = nil
	}
	e.versions.passed(mode.Pass)
	res := e.collect(r.update, mode.Pass.Steps())
	res.Objective, res.weighed = weighed, weighs
	return res, nil
}

// walk does the operations of one worker.
func (r *execution) walk(w int) {
	r.begins(w)
	for i := range r.ops {
		if r.indexOf(&r.ops[i]) == w {
			r.do(i)
			r.pass(i)
		}
	}
	r.releaseAll(w)
}

// begins notes when the worker starts on the schedule, and has the first reads begin.
func (r *execution) begins(w int) {
	r.at[w].start = r.Trace.Now()
	r.workers[w].stream.Record(r.workers[w].origin)
	for kind := range store.Kind(store.Kinds) {
		r.hint(w, kind)
	}
}

// do waits for what operation i depends on, then enqueues it between its two events.
func (r *execution) do(i int) {
	op, w := &r.ops[i], r.indexOf(&r.ops[i])
	stream, at := r.workers[w].stream, &r.at[w]
	err := r.ctx.Err()
	for _, d := range op.After {
		if e := r.await(d); e != nil && err == nil {
			err = carried{e}
		}
		if err != nil {
			continue
		}
		if !worksItself(op) && r.workers[w].device == r.workers[r.indexOf(&r.ops[d])].device {
			stream.Wait(r.end[d])
		} else if e := r.end[d].Wait(); e != nil {
			err = carried{e}
		}
	}
	if err == nil && at.failed != nil {
		err = carried{at.failed} // a lane that failed does nothing more
	}
	if err == nil {
		stream.Record(r.begin[i])
		err = r.exec(i)
	}
	// The event is recorded even after a failure, since others wait for it.
	stream.Record(r.end[i])
	if err == nil && op.Lane == plan.LaneUpdate {
		// Leases of the update lane end with the operation: the next reader borrows the new version.
		err = r.end[i].Wait()
		r.release(w)
	}
	if at.failed = err; err != nil {
		r.giveUp()
	}
	r.mu.Lock()
	r.errs[i] = err
	r.mu.Unlock()
}

// worksItself reports whether an operation is done on the goroutine of its lane, and not by a stream.
func worksItself(op *plan.Op) bool { return op.Lane == plan.LaneDisk || op.OnNetwork() }

// exec enqueues one operation on its lane's stream.
func (r *execution) exec(i int) error {
	op := &r.ops[i]
	s := r.workers[r.indexOf(op)].stream
	switch op.Do {
	case plan.DoMove:
		return r.move(s, i)
	case plan.DoVisit:
		if op.Visit.OnHost {
			return r.objective(s, op)
		}
		return r.visit(s, op)
	case plan.DoClear, plan.DoRound, plan.DoUpdate, plan.DoAdd, plan.DoNarrow:
		switch {
		case op.Lane != plan.LaneUpdate:
			return r.onPart(s, op)
		case op.Do == plan.DoUpdate:
			return r.updatePart(s, op.Part)
		}
		return r.prepareScatter(s, op)
	case plan.DoLookup:
		return r.lookup(s, op)
	case plan.DoLookupAhead:
		return r.lookupAhead(s, op)
	case plan.DoScatter, plan.DoScatterOnto:
		return r.scatter(s, op)
	case plan.DoTotal:
		return r.addToTotal(s, op)
	case plan.DoSend, plan.DoReceive:
		r.mu.Lock()
		r.meeting[r.indexOf(op)] = i + 1
		r.mu.Unlock()
		return r.transfer(op)
	case plan.DoSave:
		return r.saveState(op.Part)
	}
	panic(fmt.Sprintf("stream: no way to do %v on the %v lane", op, op.Lane))
}

// pass lets the waiters for operation i continue.
func (r *execution) pass(i int) {
	r.mu.Lock()
	r.passed[r.indexOf(&r.ops[i])] = i + 1
	r.mu.Unlock()
	r.changed.Broadcast()
}

// await blocks until operation d has been enqueued, and returns its error if it failed or was skipped.
func (r *execution) await(d int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.passed[r.indexOf(&r.ops[d])] <= d {
		r.changed.Wait()
	}
	return r.errs[d]
}

// releaseAll ends the worker's work on the schedule: when all is done, what it borrowed goes back.
func (r *execution) releaseAll(w int) {
	r.workers[w].stream.Sync() // its error is found by firstError
	r.release(w)
}

// syncAndRelease waits until a stream has done its work, and gives back what the worker has borrowed for it.
func (r *execution) syncAndRelease(s device.Stream, w int) error {
	if err := s.Sync(); err != nil {
		return err
	}
	r.release(w)
	return nil
}

// release gives back what the worker has borrowed; all work on it is done.
func (r *execution) release(w int) {
	for _, l := range r.at[w].leases {
		l.Release()
	}
	r.at[w].leases = nil
}
