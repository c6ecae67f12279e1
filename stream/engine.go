// Package stream is the executor: it walks the schedules of a plan and decides nothing.
//
// An [Engine] has one goroutine per worker, a lane of a rank, from New to Close. Each worker does its own operations
// in order; before one it waits for the operations of other workers that the schedule names. Fetch, compute and drain
// enqueue on streams of their rank's device, so that a wait between them is a wait between streams; the update lane
// works on the host, and waits between host and device, or between two devices, happen in the worker before it
// enqueues.
//
// A step ends with its norm. Its update is pending until the next schedule carries it out: the next step does so during
// its own forward pass, an evaluation finishes it first, and so does a flush. Where nothing is clipped, updates do not
// wait ([plan.Plan.UpdatesInBackward]).
//
// The store's copy of state that is resident on the device becomes dirty with every update there. A flush and every
// schedule that saves write it back ([plan.WriteBack]); an evaluation does not. After a flush the store has all of
// the state. A step whose norm is not finite has no update.
//
// A lane that fails or is cancelled skips its operations but still passes them, so that no lane hangs. Operations that
// depend on a skipped one are skipped as well. After that the engine is broken: its numbers are half of one step and
// half of the next, and it refuses to continue.
//
// Several hosts have an engine each, for the share of the micro-batches that its plan has, and [Peers] that connect
// them. All make the same calls in the same order, with the same arguments, and get the same results. One whose call
// fails makes no more, and the others wait for it until Peers find out.
//
// Only two values change what the engine does: a norm that is not finite skips the update, and the step's tokens decide
// which rows of the embedding's gradient are summed.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
)

// Config has all that an engine works with. The engine closes none of it.
type Config struct {
	Plan     *plan.Plan
	Devices  []device.Device // compute, by rank
	Host     device.Device   // updates state in host memory; the same as the only device where that is the CPU
	Store    store.Store     // keeps the extents
	Peers    Peers           // the other hosts of the plan's cluster; nil where there is one host
	Accounts *hostmem.Accounts
	Trace    *trace.Recorder // may be nil

	// Objective gives positions their weights, if the plan has one. It is asked once for each cohort of a step, by a
	// goroutine of the engine, one after the other.
	Objective objective.Objective

	// Over is an engine that rests while this one works, and the other way round (turn.go): this one has its plan made
	// over the other's, reads the same store, and works in the same memory of the same devices. It is closed before the
	// other one. Nil: it is alone, or the first of two.
	Over *Engine

	// Serial runs the operations one after the other: the reference that overlapped execution is compared with.
	Serial bool
	// AllRows computes padding like other rows: the reference that passes which leave it out are compared with.
	AllRows bool
	// Products are the matrix products of a step by rank, with offsets in the arena of the rank's device, for a
	// [device.ProductTuner]. They are timed before the arena holds anything. What one device has chosen, those after it
	// take over, and those of host 0 are before those of other hosts: so all compute the same bits.
	Products [][]device.Product
	// AddressOnly reserves host buffers without memory, for rehearsals. Peers may be nil; they touch no byte.
	AddressOnly bool
}

// Batch is the tokens of a step, on each of several hosts those of all.
type Batch struct {
	Micro []batch.Micro
	// Targets is the number of positions of the step that count in the loss. The gradient is that of the sum of weighted
	// losses over this number.
	Targets int
	// Documents are for an objective, those of a pair next to each other, in the order of the data. Nil: the documents
	// of the micro-batches, each by itself.
	Documents []Document
}

// Update says how a step changes the weights.
type Update struct {
	Step        int // from 1
	Idle        int // steps before this one that updated nothing: AdamW's bias correction counts the others
	AdamW       optim.AdamW
	Seed        uint64 // of the random bits that round states; the same in all steps of a run
	LR          float64
	Groups      []optim.Rates // of the tensors in groups, from group 1 on, instead of LR and the decay of AdamW
	MaxGradNorm float64       // 0: no clipping
}

// Result has the numbers of a step. Several hosts have the same.
type Result struct {
	LossSum float64 // over the positions that count, of micro-batches that are trained
	Targets int     // how many these are
	// EntropySum adds the entropies of the model's distributions over the vocabulary at these positions, in nats, and Hits
	// counts those where no token is likelier than the target.
	EntropySum, Hits float64
	GradNorm         float64
	Squares          []float64 // by part: of its gradient, before clipping; they add up to the square of GradNorm
	ClipScale        float64
	Skipped          bool             // the norm was not finite: the update will not happen
	Loads            [][]int          // by block: rows of the step that chose each of its experts; nil for a block without
	AuxLoss          float64          // the load-balancing loss, without its weight; 0 without one
	Objective        objective.Result // what the plan's objective came to
	weighed          bool             // there is one
	Updates                           // since the result before this one
}

// Updates tells what updates did to the weights.
type Updates struct {
	BadWeights int64 // that became infinite or NaN
	// LongestMove is the greatest change of a weight, without its decay, over its learning rate: as a rule at most
	// about 1, and more where a gradient is far above those of before. 0 where no weight moved; infinite where one
	// became NaN.
	LongestMove float64
}

func (u *Updates) add(o Updates) {
	u.BadWeights, u.LongestMove = u.BadWeights+o.BadWeights, max(u.LongestMove, o.LongestMove)
}

// Loss returns the loss of the objective, or the mean over the positions that count, in nats.
func (r Result) Loss() float64 {
	if r.weighed {
		return r.Objective.Loss
	}
	return r.LossSum / float64(r.Targets)
}

// Metrics returns the numbers of the objective, or of training for the next token, by TRL's names.
func (r Result) Metrics() map[string]float64 {
	if r.weighed {
		return r.Objective.Metrics()
	}
	return map[string]float64{objective.Entropy: r.EntropySum / float64(r.Targets),
		objective.MeanTokenAccuracy: r.Hits / float64(r.Targets)}
}

// Engine runs steps. It is used by one goroutine, except for Watch.
type Engine struct {
	Config
	head  *nn.Head
	forms store.Forms
	rule  optim.Rule
	specs map[store.ID]store.Spec

	onHost  map[*hostmem.Region]device.Mem // host memory as the host's driver sees it
	closers []func() error

	regions map[string]*hostmem.Region // by purpose: what the engine has of host memory itself
	host    plan.Memory                // as the host's driver sees it
	ranks   []rank
	crew    trace.Crew
	workers []worker // of the crew, by index
	done    fault.Group

	programs    map[plan.Mode]*program
	versions    versions
	aheadTokens []int              // by micro-batch: how many tokens occur in it (orderAhead)
	touched     [][]int32          // of the step, or of each of its cohorts (orderTokens): its tokens, each once, rising
	asked       *Batch             // of a step with an objective
	inStep      objective.Counts   // of that
	weighed     []objective.Result // by cohort of this host
	scale       float32            // of the gradient of the mean
	temperature float32            // of the head's logits: the objective's, in what it weighs; 0: 1
	logitRow    int                // first wanted row
	wanted      int                // how many rows are wanted
	drawVocab   int                // of rows that draw tokens: ids from here on are padding
	rows        []int              // by micro-batch of this host: that a pass computes, from the first one on (countRows)
	passRows    int                // the same of the only micro-batch of a pass that continues sequences
	reached     []int              // by sequence: one past the latest position that has come, 0 after a failure
	blocks      cacheBlocks        // of sequences
	takeover    nn.Takeover        // of the next pass
	pending     *pendingUpdate
	results     [][]byte // of the schedule before, by host
	untold      Updates  // of which no result has told
	turn        *turn
	loaded      bool     // what the plan keeps on the device is there
	continued   bool     // the latest schedule was of plan.Continue
	dirty       bool     // it has been updated on the device since it was written back: the store's copy is older
	keeps       bool     // devices have state that is written back
	save        SaveFunc // of the next schedule that is at a boundary; else nil
	broken      error

	current atomic.Pointer[execution] // that lanes walk; nil between two
	latest  atomic.Int64              // the step that the latest of them was of
}

// rank is one of the devices, with the memory that the engine has there.
type rank struct {
	device     device.Device
	arena      device.Mem // all of its memory there
	arrays     *plan.Arrays
	registered map[*hostmem.Region]device.Mem // host memory as the device sees it, where it does
	memory     plan.Memory                    // as the device sees it
}

// worker is a lane of a rank, which walks schedules.
type worker struct {
	plan.Worker
	device device.Device
	stream device.Stream
	origin device.Event                 // recorded when the worker starts on a schedule
	moved  [piecesInFlight]device.Event // recorded after the copy of a piece, in turn
	runs   chan *execution
}

// indexOf is the number of the worker of an operation.
func (e *Engine) indexOf(op *plan.Op) int { return e.crew.Index(op.Worker) }

// SaveFunc takes an extent of the state, at a version that does not change while it does, to a checkpoint.
type SaveFunc func(ctx context.Context, id store.ID, version uint64) error

// pendingUpdate is an update whose gradients are complete and which the next schedule carries out.
type pendingUpdate struct {
	Update
	clip float64
}

// New reserves everything that the plan asks for.
func New(c Config) (*Engine, error) {
	e := &Engine{Config: c, regions: map[string]*hostmem.Region{}, onHost: map[*hostmem.Region]device.Mem{},
		programs: map[plan.Mode]*program{}, forms: c.Plan.Numerics.Scheme().Forms(),
		rule: c.Plan.Numerics.Scheme().Rule(), reached: make([]int, c.Plan.Outputs.Caches.Sequences),
		blocks: newCacheBlocks(c.Plan.Outputs.Caches),
		crew:   c.Plan.Crew(), keeps: c.Plan.ModeOf(plan.Mode{WriteBack: true}).WriteBack}
	if err := e.open(); err != nil {
		_ = e.Close() // err is the one to report
		return nil, err
	}
	return e, nil
}

func (e *Engine) open() error {
	if n := e.Plan.Ranks(); len(e.Devices) < n {
		return fmt.Errorf("the plan deals blocks to %d devices, and there are %d; open more, or plan for fewer",
			n, len(e.Devices))
	} else if e.Plan.PeerCopies() && !device.Peers(e.Devices[:n]) {
		return errors.New("the plan has devices copy from each other, and these do not; plan again for these")
	}
	if d := e.Devices[0].Info(); e.Plan.ReachesHost() && !d.ReachesHost {
		return fmt.Errorf("the plan has rows of experts in host memory, which operations of %s do not reach; plan again "+
			"for this device", d.Name)
	}
	if (e.Objective != nil) != e.Plan.Outputs.Objective {
		return errors.New("the plan and the engine must both have an objective, or neither")
	}
	if e.Objective != nil {
		if err := e.checkNeeds(e.Objective.Needs()); err != nil {
			return err
		}
	}
	if err := e.openPeers(); err != nil {
		return err
	}
	if err := e.takeAlgorithms(); err != nil {
		return err
	}
	onDevices := e.Plan.Cells().Memory()
	for number, d := range e.Devices[:e.Plan.Ranks()] {
		for _, a := range e.Plan.AttentionShapes() {
			n := e.Plan.Numerics
			if err := d.PrepareAttention(n.Positions(), a.Heads, a.HeadDim, n.Compute); err != nil {
				return err
			}
		}
		arena, err := e.arena(number)
		if err != nil {
			return err
		}
		if err := e.tune(number, arena); err != nil {
			return err
		}
		onDevices.PlaceDevice(arena, number)
		e.ranks = append(e.ranks, rank{device: d, arena: arena, registered: map[*hostmem.Region]device.Mem{}})
	}
	if err := e.giveAlgorithms(); err != nil {
		return err
	}
	e.head = e.Plan.Head()

	var err error
	var opts []hostmem.Option
	if e.AddressOnly {
		opts = append(opts, hostmem.AddressOnly)
	}
	var regions []*hostmem.Region
	if e.Over == nil {
		regions = slices.Clone(e.Store.Regions())
	} else {
		e.shareStore()
	}
	for _, h := range e.Plan.EngineHost() {
		switch h.Purpose {
		case plan.TokensPurpose, plan.ResultsPurpose: // real even in a rehearsal: small, and written by the host
			e.regions[h.Purpose], err = e.reserve(h)
		default:
			e.regions[h.Purpose], err = e.reserve(h, opts...)
		}
		if err != nil {
			return err
		}
		regions = append(regions, e.regions[h.Purpose])
	}
	if err := e.register(regions); err != nil {
		return err
	}
	e.host = onDevices.WithHost(func(purpose string) device.Mem { return e.onHost[e.regions[purpose]] })
	for i := range e.ranks {
		known := e.ranks[i].registered
		e.ranks[i].memory = onDevices.WithHost(func(purpose string) device.Mem { return known[e.regions[purpose]] })
		e.ranks[i].arrays = e.ranks[i].memory.Arrays(i)
	}
	e.versions = newVersions(e.Plan, e.Store)
	e.specs = map[store.ID]store.Spec{}
	for _, spec := range slices.Concat(e.Plan.Extents(), e.Plan.InputExtents()) {
		e.specs[spec.ID] = spec
	}

	for _, of := range e.Plan.Workers() {
		w := worker{Worker: of, device: e.ranks[of.Rank].device}
		if of.OnHost() {
			w.device = e.Host
		}
		if w.stream, err = w.device.NewStream(of.Lane.String()); err != nil {
			return err
		}
		e.closers = append(e.closers, w.stream.Close)
		events := []*device.Event{&w.origin}
		for i := range w.moved {
			events = append(events, &w.moved[i])
		}
		for _, ev := range events {
			if *ev, err = w.device.NewEvent(); err != nil {
				return err
			}
			e.closers = append(e.closers, (*ev).Close)
		}
		e.workers = append(e.workers, w)
	}
	if err := e.beginTurns(); err != nil {
		return err
	}
	for i := range e.workers {
		runs := make(chan *execution)
		e.workers[i].runs = runs
		// Of several devices with a context each, a lane keeps its own on a thread.
		keeps := len(e.ranks) > 1 && !e.workers[i].device.Info().Unified
		e.done.Go(func() {
			if keeps {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread() // the thread stays: drivers keep memory for each
			}
			for r := range runs {
				r.walk(i)
				r.group.Done()
			}
		})
	}
	return nil
}

// reserve takes host memory that lives as long as the engine.
func (e *Engine) reserve(b plan.Bytes, opts ...hostmem.Option) (*hostmem.Region, error) {
	r, err := e.Accounts.Reserve(b.Purpose, b.Bytes, opts...)
	if err != nil {
		return nil, err
	}
	e.closers = append(e.closers, r.Close)
	return r, r.Populate()
}

// register makes regions known to the host's driver, and to the devices where they copy them. All are pinned at once,
// since a driver takes seconds for a large one.
func (e *Engine) register(regions []*hostmem.Region) error {
	type known struct {
		onHost   device.Buffer   // nil: not made
		onDevice []device.Buffer // by rank
		err      error
	}
	all := make([]known, len(regions))
	var group fault.Group
	for i, r := range regions {
		if r.Len() == 0 {
			continue
		}
		group.Go(func() {
			k := &all[i]
			k.onHost, k.err = e.Host.Register(r)
			for _, rank := range e.ranks {
				switch {
				case k.err != nil:
				case rank.device == e.Host:
					k.onDevice = append(k.onDevice, k.onHost)
				case e.Plan.Pinned(r.Purpose()):
					var b device.Buffer
					if b, k.err = rank.device.Register(r); k.err == nil {
						k.onDevice = append(k.onDevice, b)
					}
				}
			}
		})
	}
	group.Wait()
	var first error
	for i, k := range all {
		first = cmp.Or(first, k.err)
		if k.onHost != nil {
			e.closers = append(e.closers, k.onHost.Close)
			e.onHost[regions[i]] = device.Whole(k.onHost)
		}
		for rank, b := range k.onDevice {
			if b != k.onHost {
				e.closers = append(e.closers, b.Close)
			}
			e.ranks[rank].registered[regions[i]] = device.Whole(b)
		}
	}
	return first
}

// bytes is memory of the engine's as Go sees it.
func (e *Engine) bytes(purpose string, mem device.Mem) []byte {
	return e.regions[purpose].Bytes()[mem.Off:][:mem.Len]
}

// loadTables fills the rotary tables of a rank's device, once: some positions at a time, since those of a long context
// are large.
func (e *Engine) loadTables(rank int) error {
	tables := e.ranks[rank].arrays.Rope
	for i, rope := range tables {
		if rope != nil && slices.Index(tables, rope) == i {
			if err := e.loadTable(rank, rope, e.Plan.Model.Blocks[i].Rotary()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Engine) loadTable(rank int, rope *nn.Rope, f nn.RopeFrequencies) error {
	cos, sin := rope.Cos, rope.Sin
	n := int64(min(rotaryRows, cos.Rows)) * int64(cos.Cols) * cos.DType.Bytes()
	return e.upload(rank, "rotary tables, while loading", 2*n, func(s device.Stream, from device.Mem,
		bytes []byte) error {
		for first := 0; first < cos.Rows; first += rotaryRows {
			rows := min(rotaryRows, cos.Rows-first)
			c, d := f.Tables(e.Plan.LongestDocument(), first, rows)
			copy(hostmem.F32(bytes[:n]), c)
			copy(hostmem.F32(bytes[n:]), d)
			to := cos.RowRange(first, rows).Mem
			s.Copy(to, from.Slice(0, to.Len))
			to = sin.RowRange(first, rows).Mem
			s.Copy(to, from.Slice(n, to.Len))
			if err := s.Sync(); err != nil {
				return err
			}
		}
		return nil
	})
}

// loadConstants copies the constants of blocks to a rank's device, once; zeros where the model has none.
func (e *Engine) loadConstants(rank int) error {
	for i, to := range e.ranks[rank].arrays.Constants {
		if to.IsZero() {
			continue
		}
		if err := e.upload(rank, "constants, while loading", to.Mem.Len, func(s device.Stream, from device.Mem,
			bytes []byte) error {
			clear(bytes)
			if all := e.Plan.Model.Constants; all != nil {
				copy(hostmem.F32(bytes), all[i])
			}
			s.Copy(to.Mem, from)
			return s.Sync()
		}); err != nil {
			return err
		}
	}
	return nil
}

// upload has do copy to a rank's device from memory that is reserved for that alone.
func (e *Engine) upload(rank int, purpose string, n int64, do func(s device.Stream, from device.Mem,
	bytes []byte) error) error {
	r, err := e.Accounts.Reserve(purpose, n)
	if err != nil {
		return err
	}
	defer r.Close()
	b, err := e.ranks[rank].device.Register(r)
	if err != nil {
		return err
	}
	defer b.Close()
	return do(e.workers[e.crew.Index(plan.LaneFetch.Of(rank))].stream, device.Whole(b).Slice(0, n),
		r.Bytes()[:n])
}

// rotaryRows is of how many positions the rotary tables are loaded at a time.
const rotaryRows = 4096

// ErrNotFinite is in the error that ends a run without clipping whose gradients are not finite: its weights are
// damaged.
var ErrNotFinite = errors.New("without clipping the updates have been applied already")

// Step runs one training step over the batch and plans its update, which the next call carries out: the next Step,
// during its forward pass, or Flush. A plan without updates ends with the gradients; a plan without clipping
// ([plan.Outputs.NoClip]) that updates in the backward pass has done its updates. A norm that is not finite is
// [ErrNotFinite] in any plan without clipping, since updates that do not wait for the norm cannot be left out.
func (e *Engine) Step(ctx context.Context, batch *Batch, update Update) (Result, error) {
	if e.Plan.Outputs.NoClip && update.MaxGradNorm != 0 {
		panic("stream: a step that clips, of a plan that does not")
	}
	if e.Plan.ComputesTwice() {
		return e.stepTwice(ctx, batch, update)
	}
	now := e.Plan.UpdatesInBackward()
	if now {
		e.pending = &pendingUpdate{Update: update, clip: 1}
	}
	res, err := e.step(ctx, batch, update.Step)
	if err != nil {
		if now {
			e.pending = nil // nothing has been touched, or all is broken
		}
		return Result{}, err
	}
	res.ClipScale = optim.ClipScale(res.GradNorm, update.MaxGradNorm)
	switch finite := !math.IsNaN(res.GradNorm) && !math.IsInf(res.GradNorm, 0); {
	case !finite && e.Plan.Outputs.NoClip:
		e.broken = fmt.Errorf("the norm of the gradients is %v, and %w", res.GradNorm, ErrNotFinite)
		return Result{}, e.broken
	case !finite:
		res.Skipped, res.ClipScale = true, 0
	case !e.Plan.Outputs.NoUpdates && !now:
		e.pending = &pendingUpdate{Update: update, clip: res.ClipScale}
	}
	return res, nil
}

// step carries out a pending update, and computes the loss and the gradients of a batch.
func (e *Engine) step(ctx context.Context, batch *Batch, number int) (Result, error) {
	pass := plan.Prologue
	if e.pending != nil {
		pass = plan.Steady
	}
	defer e.temper()()
	res, err := e.run(ctx, pass, batch, number)
	if err != nil {
		return Result{}, err
	}
	res.Targets = batch.Targets
	res.Updates.add(e.untold)
	e.untold = Updates{}
	return res, nil
}

// Gradients computes the loss and the gradients of a batch, as Step does, and plans no update. [GradFields] reads the
// gradients until the next call. The plan must keep them ([plan.Outputs.Gradients] or NoUpdates).
func (e *Engine) Gradients(ctx context.Context, batch *Batch, step int) (Result, error) {
	if e.Plan.UpdatesInBackward() {
		panic("stream: gradients of a plan that does not keep them")
	}
	return e.step(ctx, batch, step)
}

// Reload has the next schedule read the weights again from the store, where the caller has written them after a Flush.
// An engine that takes turns with this one does so, too.
func (e *Engine) Reload() {
	e.reload()
	if e.turn.of != e {
		e.turn.of.reload()
	}
}

func (e *Engine) reload() {
	e.loaded, e.continued, e.versions = false, false, newVersions(e.Plan, e.Store)
}

// Eval is the sum of the token losses of a batch, without gradients. Pending updates are carried out first.
func (e *Engine) Eval(ctx context.Context, batch *Batch) (lossSum float64, err error) {
	res, err := e.Measure(ctx, batch)
	return res.LossSum, err
}

// Measure is Eval with the other sums over the positions that count.
func (e *Engine) Measure(ctx context.Context, batch *Batch) (Result, error) {
	if err := e.finishUpdates(ctx); err != nil {
		return Result{}, err
	}
	res, err := e.run(ctx, plan.Forwards, batch, 0)
	res.Targets = batch.Targets
	return res, err
}

// Flush carries out a pending update, and a save that was asked for; the store then has all of the state. It returns
// the number of weights that became infinite or NaN in it, and in others of which no Result has told.
func (e *Engine) Flush(ctx context.Context) (badWeights int64, err error) {
	if err := e.finish(ctx, true); err != nil {
		return 0, err
	}
	badWeights, e.untold.BadWeights = e.untold.BadWeights, 0
	return badWeights, nil
}

// finishUpdates carries out a pending update before a forward pass, and a save that was asked for. What lives on the
// device stays there, and the store need not have it.
func (e *Engine) finishUpdates(ctx context.Context) error { return e.finish(ctx, false) }

// finish carries out a pending update, and a save that was asked for; writeBack says that the store is to have all of
// the state.
func (e *Engine) finish(ctx context.Context, writeBack bool) error {
	pass, step := plan.Nothing, 0
	if e.pending != nil {
		pass, step = plan.Flush, e.pending.Step
	}
	if pass == plan.Nothing && e.save == nil && !(writeBack && e.dirty) {
		return e.broken
	}
	if err := e.takeTurn(ctx); err != nil {
		return err
	}
	res, err := e.follow(ctx, e.mode(pass, writeBack), nil, step)
	e.untold.add(res.Updates)
	return err
}

// mode is in which mode the schedule of a pass comes now; writeBack says that the store is to have all of the state
// after it, as it does where the schedule saves.
func (e *Engine) mode(pass plan.Pass, writeBack bool) plan.Mode {
	saves := e.save != nil && !pass.ForwardOnly()
	return e.Plan.ModeOf(plan.Mode{Pass: pass, Saves: saves, Loaded: e.loaded, Again: e.continued,
		WriteBack: (writeBack || saves) && (e.dirty || e.pending != nil)})
}

// Save makes the next Step or Flush hand the state, as it will be after the pending update, to save: each part's state
// as soon as it is updated, during the rest of the schedule. When that call has returned, all of the state has been
// handed over.
func (e *Engine) Save(save SaveFunc) { e.save = save }

// Saving reports whether a save that was asked for has not been done.
func (e *Engine) Saving() bool { return e.save != nil }

// Close stops the lanes and gives back all that New reserved.
func (e *Engine) Close() error {
	for i := range e.workers {
		if w := &e.workers[i]; w.runs != nil {
			close(w.runs)
			w.runs = nil
		}
	}
	e.done.Wait()
	var first error
	for i := len(e.closers) - 1; i >= 0; i-- {
		if err := e.closers[i](); e.broken == nil {
			first = cmp.Or(first, err)
		}
	}
	e.closers = nil
	return first
}

func (e *Engine) String() string {
	return fmt.Sprintf("engine of %d parts on %s", len(e.Plan.Model.Parts), e.Devices[0].Info().Name)
}
