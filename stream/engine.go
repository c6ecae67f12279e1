// Package stream is the executor: it walks the schedules of a plan and decides nothing.
//
// An [Engine] has one goroutine per lane, from New to Close. Each lane does its own operations in order; before one it
// waits for the operations of other lanes that the schedule names. Fetch, compute and drain enqueue on streams of the
// device, so that a wait between them is a wait between streams; the update lane works on the host, and waits between
// host and device happen in the lane before it enqueues.
//
// A step ends with its norm; its update is pending until the next schedule carries it out (but where nothing is clipped, see
// [plan.Plan.UpdatesInBackward]). The next step does so below its own forward pass. An evaluation first settles it, in a
// schedule that has nothing else; a flush does the same, and behind a flush the store has all of the state. Of parts whose state
// lives on the device the store has a copy, which each update there makes stale: it is brought up to date ([plan.Home]) by a
// flush, and by whatever schedule saves, and not by an evaluation. A step whose norm is not finite has no update; what an
// earlier one left stale stays so.
//
// A lane that fails, or that is cancelled, skips its operations but still passes them, so that nobody hangs; whoever
// depends on a skipped operation is skipped as well. After that the engine is broken: its numbers are half of one step and half
// of the next, and it refuses to go on.
//
// The engine reads no values that could change what it does but two: a norm that is not finite skips the update, and
// of the embedding's gradient rows are summed that the step's tokens have.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

// Config is what an engine works with. The engine closes none of it.
type Config struct {
	Plan     *plan.Plan
	Device   device.Device // computes
	Host     device.Device // updates state in host memory; the same as Device where that is the CPU
	Store    store.Store   // keeps the extents
	Accounts *hostmem.Accounts
	Trace    *trace.Recorder // may be nil

	// Serial runs the operations one after the other: the reference that overlapped execution is compared with.
	Serial bool
	// Products are the matrix products of a step, with offsets in the device's arena, for a [device.ProductTuner]. They are timed before
	// anything lies there.
	Products []device.Product
	// AddressOnly reserves host buffers without memory, for rehearsals.
	AddressOnly bool
}

// Batch is the tokens of a step: for each micro-batch arrays of T entries, as package data makes them.
type Batch struct {
	Micro []MicroBatch
	// Targets is the number of positions of the step that count in the loss.
	Targets int
}

// MicroBatch are the arrays of one micro-batch: token ids, the target of each position (negative: does not count), the
// position in its document, and the first row of its document and one past the last.
type MicroBatch struct {
	IDs, Targets, Positions, DocStart, DocEnd []int32
}

// Update is how a step changes the weights.
type Update struct {
	Step        int // from 1
	Idle        int // steps before this one that updated nothing: AdamW's bias correction counts the others
	AdamW       optim.AdamW
	LR          float64
	MaxGradNorm float64 // 0: no clipping
}

// Result is what a step came to.
type Result struct {
	LossSum    float64 // over the positions that count
	GradNorm   float64
	ClipScale  float64
	Skipped    bool  // the norm was not finite: the update will not happen
	BadWeights int64 // weights that became infinite or NaN in the updates since the result before this one
}

// Engine runs steps. It is used by one goroutine.
type Engine struct {
	Config
	buffers *plan.Buffers
	head    *nn.Head
	types   [store.Kinds]tensor.DType
	specs   map[store.ID]store.Spec

	arena      device.Buffer
	registered map[*hostmem.Region]device.Mem // host memory as the device sees it, where it does
	onHost     map[*hostmem.Region]device.Mem // and as the host's driver sees it
	closers    []func() error

	tokens, inputs, kept, sum, ahead, results, logits *hostmem.Region
	inputAt                                           map[[2]int]int64 // by block and micro-batch: offset in inputs
	keptAt                                            map[[2]int]int64 // by layer and micro-batch: offset in kept
	sumAt                                             map[int]int64    // by tied tile: offset in sum

	streams [plan.Lanes]device.Stream
	origins [plan.Lanes]device.Event                 // recorded when a lane starts on a schedule
	moved   [plan.Lanes][piecesInFlight]device.Event // recorded behind the copy of a piece, in turn
	lanes   [plan.Lanes]chan *run
	done    fault.Group

	programs map[plan.Mode]*program
	versions versions
	touched  []int32 // tokens of the step, each once, rising, where the plan sums the rows of these alone
	logitRow int     // first wanted row
	pending  *pendingUpdate
	bad      int64    // weights that became infinite or NaN in updates of which no result has told
	loaded   bool     // what the plan keeps on the device is there
	stale    bool     // what the store has of it is older: it has been updated on the device since it came home
	save     SaveFunc // of the next schedule that is at a boundary; else nil
	broken   error
}

// SaveFunc takes an extent of the state, at a version that does not change while it does, to a checkpoint.
type SaveFunc func(ctx context.Context, id store.ID, version uint64) error

// pendingUpdate is an update whose gradients are complete and which the next schedule carries out.
type pendingUpdate struct {
	Update
	clip float64
}

// New reserves everything that the plan asks for.
func New(c Config) (*Engine, error) {
	e := &Engine{Config: c, registered: map[*hostmem.Region]device.Mem{}, onHost: map[*hostmem.Region]device.Mem{},
		programs: map[plan.Mode]*program{}, types: c.Plan.Numerics.Scheme().Types()}
	if err := e.open(); err != nil {
		_ = e.Close() // the error at hand is the one to report
		return nil, err
	}
	return e, nil
}

func (e *Engine) open() error {
	if e.Plan.Trains() {
		for _, d := range e.Plan.Model.Blocks {
			heads, headDim := d.Mixer.QueryHeads()
			if err := e.Device.PrepareAttention(e.Plan.Numerics.Positions(), heads, headDim); err != nil {
				return err
			}
		}
	}
	buf, err := e.Device.Alloc("arena", e.Plan.DeviceBytes)
	if err != nil {
		return err
	}
	e.closers = append(e.closers, buf.Close)
	if err := e.tune(device.Whole(buf)); err != nil {
		return err
	}
	e.buffers = e.Plan.Place(device.Whole(buf))
	e.head = e.Plan.Head()

	var opts []hostmem.Option
	if e.AddressOnly {
		opts = append(opts, hostmem.AddressOnly)
	}
	regions := slices.Clone(e.Store.Regions())
	for _, h := range e.Plan.Host {
		switch h.Purpose {
		case plan.TokensPurpose:
			e.tokens, err = e.reserve(h) // real even in a rehearsal: small, and written by the host
		case plan.ResultsPurpose:
			e.results, err = e.reserve(h)
		case plan.InputsPurpose:
			e.inputs, err = e.reserve(h, opts...)
		case plan.KeptPurpose:
			e.kept, err = e.reserve(h, opts...)
		case plan.LogitsPurpose:
			e.logits, err = e.reserve(h, opts...)
		case plan.EmbeddingSumPurpose:
			e.sum, err = e.reserve(h, opts...)
		case plan.EmbeddingAheadPurpose:
			e.ahead, err = e.reserve(h, opts...)
		}
		if err != nil {
			return err
		}
	}
	for _, r := range []*hostmem.Region{e.tokens, e.results, e.inputs, e.kept, e.logits, e.sum, e.ahead} {
		if r != nil {
			regions = append(regions, r)
		}
	}
	if err := e.register(regions); err != nil {
		return err
	}
	e.placeHost()
	e.versions = newVersions(e.Plan, e.Store)
	e.specs = map[store.ID]store.Spec{}
	for _, spec := range slices.Concat(e.Plan.Extents(), e.Plan.InputExtents()) {
		e.specs[spec.ID] = spec
	}

	for lane := range plan.Lane(plan.Lanes) {
		on := e.Device
		if onHostLane(lane) {
			on = e.Host
		}
		s, err := on.NewStream(lane.String())
		if err != nil {
			return err
		}
		e.streams[lane] = s
		e.closers = append(e.closers, s.Close)
		events := []*device.Event{&e.origins[lane]}
		for i := range e.moved[lane] {
			events = append(events, &e.moved[lane][i])
		}
		for _, ev := range events {
			if *ev, err = on.NewEvent(); err != nil {
				return err
			}
			e.closers = append(e.closers, (*ev).Close)
		}
	}
	if err := e.loadTables(); err != nil {
		return err
	}
	for lane := range e.lanes {
		if e.streams[lane] == nil {
			continue
		}
		runs := make(chan *run)
		e.lanes[lane] = runs
		e.done.Go(func() {
			for r := range runs {
				r.walk(plan.Lane(lane))
				r.lanes.Done()
			}
		})
	}
	return nil
}

// tune has the device choose its algorithms for the products, in the arena.
func (e *Engine) tune(arena device.Mem) error {
	tuner, ok := e.Device.(device.ProductTuner)
	if !ok || len(e.Products) == 0 {
		return nil
	}
	products := slices.Clone(e.Products)
	for i := range products {
		p := &products[i]
		for _, m := range []*device.Mat{&p.C, &p.A, &p.B, &p.Onto} {
			if !m.IsZero() {
				m.Mem = arena.Slice(m.Off, m.Len)
			}
		}
	}
	return tuner.TuneProducts(products, arena)
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

// register makes regions known to the host's driver, and to the device where that copies them. All are pinned at once, since a driver
// takes seconds for a large one.
func (e *Engine) register(regions []*hostmem.Region) error {
	type known struct {
		onHost, here device.Buffer // nil: not made
		err          error
	}
	all := make([]known, len(regions))
	var group fault.Group
	for i, r := range regions {
		if r.Len() == 0 {
			continue
		}
		group.Go(func() {
			k := &all[i]
			if k.onHost, k.err = e.Host.Register(r); k.err == nil && e.Host != e.Device && e.Plan.Pinned(r.Purpose()) {
				k.here, k.err = e.Device.Register(r)
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
		if e.Host == e.Device {
			k.here = k.onHost
		} else if k.here != nil {
			e.closers = append(e.closers, k.here.Close)
		}
		if k.here != nil {
			e.registered[regions[i]] = device.Whole(k.here)
		}
	}
	return first
}

// placeHost lays out the embedding's gradient sum, and the saved inputs and kept activations that go to host memory.
func (e *Engine) placeHost() {
	e.inputAt, e.keptAt, e.sumAt = map[[2]int]int64{}, map[[2]int]int64{}, map[int]int64{}
	micros := e.Plan.Numerics.MicroBatches
	var at int64
	for _, p := range e.Plan.Model.EmbedTiles {
		if e.Plan.Tied(p) && e.Plan.Bound() {
			e.sumAt[p] = at
			at += e.gradBytes(p)
		}
	}
	at = 0
	for layer := 1; e.kept != nil && layer <= len(e.Plan.Model.Blocks); layer++ {
		for m := range micros {
			if e.Plan.ActivationsSpill(layer - 1) {
				e.keptAt[[2]int{layer, m}] = at
				at += e.Plan.KeptBytes(layer - 1)
			}
		}
	}
	if e.inputs == nil {
		return
	}
	var off int64
	for layer := 1; layer <= len(e.Plan.Model.Blocks); layer++ {
		if !e.Plan.SavedOnHost(layer - 1) {
			continue
		}
		for m := range micros {
			e.inputAt[[2]int{layer, m}] = off
			off += e.inputBytes()
		}
	}
}

func (e *Engine) inputBytes() int64 {
	return int64(e.Plan.Numerics.Positions()) * int64(e.Plan.Model.Hidden) * e.Plan.Numerics.Compute.Bytes()
}

// loadTables fills the rotary tables, once: some positions at a time, since those of a long context are large.
func (e *Engine) loadTables() error {
	cos, sin := e.buffers.Rope.Cos, e.buffers.Rope.Sin
	n := int64(min(rotaryRows, cos.Rows)) * int64(cos.Cols) * cos.DType.Bytes()
	r, err := e.Accounts.Reserve("rotary tables, while loading", 2*n)
	if err != nil {
		return err
	}
	defer r.Close()
	b, err := e.Device.Register(r)
	if err != nil {
		return err
	}
	defer b.Close()
	s, mem := e.streams[plan.LaneFetch], device.Whole(b)
	for first := 0; first < cos.Rows; first += rotaryRows {
		rows := min(rotaryRows, cos.Rows-first)
		c, d := e.Plan.Model.Rope.Tables(first, rows)
		copy(hostmem.F32(r.Bytes()[:n]), c)
		copy(hostmem.F32(r.Bytes()[n:]), d)
		to := cos.RowRange(first, rows).Mem
		s.Copy(to, mem.Slice(0, to.Len))
		to = sin.RowRange(first, rows).Mem
		s.Copy(to, mem.Slice(n, to.Len))
		if err := s.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// rotaryRows is of how many positions the rotary tables are loaded at a time.
const rotaryRows = 4096

// ErrNotFinite is in the error that ends a run without clipping whose gradients are not finite: its weights are spoiled.
var ErrNotFinite = errors.New("without clipping updates do not wait to know")

// Step runs one training step over the batch and plans its update, which the next call carries out: the next Step,
// beside its forward pass, or Flush. A plan without updates ends with the gradients; one without clipping
// ([plan.Wants.NoClip]) that updates in the backward pass has done so. A norm that is not finite is [ErrNotFinite] in any plan without
// clipping, since where updates do not wait for it they cannot be left out.
func (e *Engine) Step(ctx context.Context, batch *Batch, update Update) (Result, error) {
	if e.Plan.Wants.NoClip && update.MaxGradNorm != 0 {
		panic("stream: a step that clips, of a plan that does not")
	}
	now := e.Plan.UpdatesInBackward()
	if now {
		e.pending = &pendingUpdate{Update: update, clip: 1}
	}
	phase := plan.Prologue
	if e.pending != nil {
		phase = plan.Steady
	}
	res, err := e.run(ctx, phase, batch, update.Step)
	if err != nil {
		if now {
			e.pending = nil // nothing has been touched, or all is broken
		}
		return Result{}, err
	}
	res.BadWeights, e.bad = res.BadWeights+e.bad, 0
	res.ClipScale = optim.ClipScale(res.GradNorm, update.MaxGradNorm)
	switch finite := !math.IsNaN(res.GradNorm) && !math.IsInf(res.GradNorm, 0); {
	case !finite && e.Plan.Wants.NoClip:
		e.broken = fmt.Errorf("the norm of the gradients is %v, and %w", res.GradNorm, ErrNotFinite)
		return Result{}, e.broken
	case !finite:
		res.Skipped, res.ClipScale = true, 0
	case !e.Plan.Wants.NoUpdates && !now:
		e.pending = &pendingUpdate{Update: update, clip: res.ClipScale}
	}
	return res, nil
}

// Eval is the sum of the token losses of a batch, without gradients. Pending updates are carried out first.
func (e *Engine) Eval(ctx context.Context, batch *Batch) (lossSum float64, err error) {
	if err := e.settle(ctx); err != nil {
		return 0, err
	}
	res, err := e.run(ctx, plan.Forwards, batch, 0)
	return res.LossSum, err
}

// Flush carries out a pending update, and a save that was asked for; the store then has all of the state. It returns the number of
// weights that became infinite or NaN in it, and in others of which no Result has told.
func (e *Engine) Flush(ctx context.Context) (badWeights int64, err error) {
	if err := e.finish(ctx, true); err != nil {
		return 0, err
	}
	badWeights, e.bad = e.bad, 0
	return badWeights, nil
}

// settle carries out a pending update before a forward pass, and a save that was asked for. What lives on the device stays there, and
// the store need not have it.
func (e *Engine) settle(ctx context.Context) error { return e.finish(ctx, false) }

// finish carries out a pending update, and a save that was asked for; home says that the store is to have all of the state.
func (e *Engine) finish(ctx context.Context, home bool) error {
	phase, step := plan.Nothing, 0
	if e.pending != nil {
		phase, step = plan.Flush, e.pending.Step
	}
	if phase == plan.Nothing && e.save == nil && !(home && e.stale) {
		return e.broken
	}
	res, err := e.follow(ctx, e.mode(phase, home), nil, step)
	e.bad += res.BadWeights
	return err
}

// mode is in which mode the schedule of a phase comes now; home says that the store is to have all of the state behind it, as it does
// where the schedule saves.
func (e *Engine) mode(phase plan.Phase, home bool) plan.Mode {
	m := plan.Mode{Phase: phase, Saves: e.save != nil && phase != plan.Forwards && phase != plan.Logits}
	if e.Plan.AnyStateResident() {
		m.Loaded = e.loaded
		m.Home = (home || m.Saves) && (e.stale || e.pending != nil)
	}
	return m
}

// Save makes the next Step or Flush hand the state, as it will be after the pending update, to save: each part's as soon as
// it is updated, beside the rest of the schedule. When that call has returned, all of the state has been handed over.
func (e *Engine) Save(save SaveFunc) { e.save = save }

// Saving reports whether a save that was asked for has not been done.
func (e *Engine) Saving() bool { return e.save != nil }

// Close stops the lanes and gives back all that New reserved.
func (e *Engine) Close() error {
	for i, lane := range e.lanes {
		if lane != nil {
			close(lane)
			e.lanes[i] = nil
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
	return fmt.Sprintf("engine of %d parts on %s", len(e.Plan.Model.Parts), e.Device.Info().Name)
}
