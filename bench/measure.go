// Package bench measures training steps of a model with random weights and random tokens, and compares them with the
// simulation of the same plan.
//
//   - [Measure] plans, runs and measures; [Result] has its findings.
//
// Invariants: a step does all the work that a training step does, whatever shares memory with [Options].AliasLayers.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/timeline"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

// Options say which step is measured.
type Options struct {
	Model       string  // a directory with config.json, or a hub id; weights are random
	Shape       string  // a named shape (plan.Shapes) instead of it
	SequenceLen int     // positions of a row, which is one document
	Tokens      int     // positions of a step
	Steps       int     // measured
	Warmup      int     // before them, not measured
	MicroBatch  int     // 0: chosen
	HeadChunk   int     // 0: chosen
	BlockChunk  int     // 0: chosen
	Compute     string  // bf16 (default) or f32
	Master      string  // split (default of bf16), split24 or f32
	Moments     string  // f32 (default), 8bit, 8+4 or 4bit
	MaxGradNorm float64 // 0: no clipping
	Memory      runfile.Memory
	Device      string // auto (default), or cpu
	// Stream is auto (default), where the plan keeps weights on the device as it sees fit, or always: every block passes
	// through the ring of slots in each of its visits (plan.Request.StreamAll).
	Stream string
	// AliasLayers has decoder blocks share host memory, for models whose state is larger than that: see store.Aliased.
	AliasLayers bool
	TracePath   string // of a Chrome trace of the last step, with DryRun of the simulated one; empty: none is written
	DryRun      bool   // only plan, and simulate the plan: nothing is reserved, and nothing is measured

	program int64 // memory of the process that is not planned, in tests that need to know; 0: it is measured
}

// Result has the measured step, and the simulation of the same plan to compare with.
type Result struct {
	Model        string   `json:"model"` // or shape
	Device       string   `json:"device"`
	Warning      string   `json:"warning,omitempty"`    // why the device is slower than it could be
	Algorithms   []string `json:"algorithms,omitempty"` // that were chosen for matrix products, where the device has a choice
	Parameters   int64    `json:"parameters"`
	Tokens       int      `json:"tokens"` // positions of a step, none of them padding
	SequenceLen  int      `json:"sequence_len"`
	MicroBatch   int      `json:"micro_batch"`   // sequences
	MicroBatches int      `json:"micro_batches"` // of a step
	Compute      string   `json:"compute"`       // bf16, with fp32 masters in halves, or f32
	Master       string   `json:"master"`        // split, split24 or f32
	Moments      string   `json:"moments"`       // f32, 8bit, 8+4 or 4bit
	Stream       string   `json:"stream"`
	Choices      []string `json:"choices"` // of the plan: what is computed again, what stays on the device (plan.Plan.Choices)
	// ResidentBlocks are the decoder blocks whose weights stay on the device for a whole step.
	ResidentBlocks int    `json:"resident_blocks"`
	Alias          *Alias `json:"alias,omitempty"`

	Steps          int         `json:"steps"`    // 0: only planned
	StepSec        float64     `json:"step_sec"` // median
	StepMinSec     float64     `json:"step_min_sec"`
	StepMaxSec     float64     `json:"step_max_sec"`
	StepSecs       []float64   `json:"step_secs"` // of each, in their order: a GPU that gets hot slows down
	TokensPerSec   float64     `json:"tokens_per_sec"`
	ModelTFLOPS    float64     `json:"model_tflops"`    // model.TrainFLOPs: 6N plus attention, no recomputation
	ExecutedTFLOPS float64     `json:"executed_tflops"` // recomputation included
	Lanes          trace.Lanes `json:"lanes"`           // busy seconds of a step, mean
	BusyShares     trace.Lanes `json:"busy_shares"`     // of the mean step
	Timeline       []string    `json:"timeline"`        // of the last step

	PredictedStepSec        float64     `json:"predicted_step_sec"`
	PredictedTokensPerSec   float64     `json:"predicted_tokens_per_sec"`
	PredictedModelTFLOPS    float64     `json:"predicted_model_tflops"`
	PredictedExecutedTFLOPS float64     `json:"predicted_executed_tflops"`
	PredictedLanes          trace.Lanes `json:"predicted_lanes"`
	PredictedBusyShares     trace.Lanes `json:"predicted_busy_shares"`
	PredictedTimeline       []string    `json:"predicted_timeline"`
	PredictedLimit          string      `json:"predicted_limit"` // the lane that should be busiest
	Machine                 string      `json:"machine"`         // whose rates that is predicted from
	// PlannedBy tells the source of those rates, by which the plan was chosen as well: probe, or guess. GuessReason
	// says why a guess.
	PlannedBy   string `json:"planned_by"`
	GuessReason string `json:"guess_reason,omitempty"`

	// Mean losses of the targets of the first step that was measured and of the last, and what a model has that gives
	// each of its tokens the same probability: ln(vocabulary). Random weights begin above it, by half the variance of
	// their logits: InitStd^2*hidden/2. These are no training's losses.
	LossFirst   float64 `json:"loss_first"`
	Loss        float64 `json:"loss"`
	LossUniform float64 `json:"loss_uniform"`

	ModelFLOPs    int64 `json:"model_flops"`    // of a step
	ExecutedFLOPs int64 `json:"executed_flops"` // of a step
	UploadBytes   int64 `json:"upload_bytes"`   // of a step, planned: the schedule fixes it
	DownloadBytes int64 `json:"download_bytes"` // of a step, planned

	DeviceBytes       int64 `json:"device_bytes"`        // reserved before the first step, in one allocation; what the driver takes for itself is not in it
	DeviceBudgetBytes int64 `json:"device_budget_bytes"` // 0: none
	// DeviceFreeMinBytes is the least that nothing held of a device's memory: after its products were tuned, for which
	// libraries load code, and after each step. 0: no device says.
	DeviceFreeMinBytes int64 `json:"device_free_min_bytes,omitempty"`
	DiskBytes          int64 `json:"disk_bytes"`          // that the plan keeps on disk
	PlannedBytes       int64 `json:"planned_bytes"`       // of resident host memory
	PeakBytes          int64 `json:"peak_rss_bytes"`      // of the process, as the kernel counts it
	ReservedPeakBytes  int64 `json:"reserved_peak_bytes"` // of host memory outside of the Go heap
	// Of the resident memory that asks for 2 MiB pages, how much has them: see hostmem.HugePages. 0: the system does
	// not say.
	HugePageBytes      int64 `json:"huge_page_bytes,omitempty"`
	HugePageAskedBytes int64 `json:"huge_page_asked_bytes,omitempty"`
}

// Alias says how decoder blocks shared host memory.
type Alias struct {
	Blocks      int    `json:"blocks"`
	Copies      int    `json:"copies"`       // that there are in host memory
	SharedBytes int64  `json:"shared_bytes"` // of state without memory of its own, since it shares another block's
	Warning     string `json:"warning"`
}

// check refuses options that cannot be, and fills in defaults.
func (o *Options) check() error {
	switch {
	case o.Model == "" && o.Shape == "":
		return errors.New("there is nothing to measure: give --shape NAME, or --model DIR")
	case o.Model != "" && o.Shape != "":
		return errors.New("--model and --shape: give one of them")
	case o.SequenceLen < 2:
		return fmt.Errorf("--sequence-len is %d: it must be at least 2", o.SequenceLen)
	case o.Tokens < o.SequenceLen || o.Tokens%o.SequenceLen != 0:
		return fmt.Errorf("--tokens is %d: it must be a multiple of --sequence-len (%d)", o.Tokens, o.SequenceLen)
	case o.Steps < 1:
		return fmt.Errorf("--steps is %d: it must be at least 1", o.Steps)
	case o.Warmup < 0:
		return fmt.Errorf("--warmup is %d: it must not be negative", o.Warmup)
	case !(o.MaxGradNorm >= 0) || math.IsInf(o.MaxGradNorm, 0):
		return fmt.Errorf("--max-grad-norm is %v: it must be finite and not negative; 0 turns clipping off", o.MaxGradNorm)
	case o.Stream != "" && o.Stream != "auto" && o.Stream != "always":
		return fmt.Errorf("--stream is %q: use auto or always", o.Stream)
	}
	if o.Moments == "" {
		o.Moments = "f32"
	}
	if o.Stream == "" {
		o.Stream = "auto"
	}
	return nil
}

// Measure measures training steps on random weights and random tokens: AdamW and clipping included, as in training. A
// step is timed from norm to norm, so the update that belongs to it runs below the forward pass of the next. All
// blocks begin with the same weights, and so do tiles of one size: that changes no amount of work.
func Measure(ctx context.Context, env *train.Env, o Options) (r *Result, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	if err := o.check(); err != nil {
		return nil, err
	}
	n, err := runfile.NumericsOf(o.Compute, "bf16")
	if err != nil {
		return nil, err
	}
	if o.Master != "" {
		if n.Master, err = optim.ParseMaster(o.Master); err != nil {
			return nil, err
		}
		if (n.Compute == tensor.F32) != (n.Master == optim.F32) {
			return nil, fmt.Errorf("--master %v does not go with --compute %v: leave --master out, which then follows from "+
				"--compute", n.Master, n.Compute)
		}
	}
	if n.Moments, err = optim.ParseMoments(o.Moments); err != nil {
		return nil, err
	}
	n.SequenceLen = o.SequenceLen
	m, _, err := verbs.ModelToPlan(ctx, env, o.Model, o.Shape)
	if err != nil {
		return nil, err
	}
	if m.Scores() {
		return nil, fmt.Errorf("model %s is a reward model, and the benchmark trains on text: name a model of text", o.Model)
	}
	dev, err := env.OpenDevices(o.Device)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	b := &benchmark{Options: o, env: env, dev: dev, info: dev.Info(), model: m}
	if o.TracePath != "" { // made now, so that a long benchmark does not end in finding that it cannot be
		if b.trace, err = vfs.CreateOutput(o.TracePath); err != nil {
			return nil, fmt.Errorf("--trace: %w", err)
		}
		defer b.trace.Abort()
	}
	b.machine, b.guess = probe.Measured(env.CacheDir, b.info, o.Memory.Path)
	if err := b.makePlan(ctx, n); err != nil {
		return nil, err
	}
	if b.guess != "" {
		b.out().Say("planned by a guess, since %s: run `millrace probe --device %s` first", b.guess, cmp.Or(o.Device, "auto"))
	}
	ask.IsOver = true
	if o.DryRun {
		return b.planned(), b.writeTrace(b.plan.Trace(b.machine, b.info, b.about()))
	}
	s, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return b.measure(ctx, s)
}

// benchmark is a benchmark under way.
type benchmark struct {
	Options
	trace   *vfs.Output // nil: none is written
	env     *train.Env
	dev     *session.Devices
	info    device.Info
	machine plan.Machine
	guess   string // why the rates are one; empty: they were measured
	model   *model.Model
	plan    *plan.Plan
	alias   *aliasing // nil: blocks have memory of their own
}

// out takes its messages.
func (b *benchmark) out() console.Out {
	return console.Out{Writer: b.env.Progress, Terminal: b.env.Terminal}
}

// makePlan plans the step that is measured.
func (b *benchmark) makePlan(ctx context.Context, n plan.Numerics) error {
	r, err := b.env.PlanRequest(b.model, n, b.info, len(b.dev.Computes), b.Memory)
	if err != nil {
		return err
	}
	if b.info.Unified && r.DeviceBytes == 0 && (b.Stream == "always" || b.AliasLayers) {
		return errors.New("the CPU uses weights where they are and streams nothing; to stream, set --memory-device to a " +
			"size such as 64MiB")
	}
	if b.program > 0 {
		r.ProgramBytes = b.program
	}
	r.StreamAll, r.HostUpdates = b.Stream == "always", b.AliasLayers
	r.Outputs.NoClip = b.MaxGradNorm == 0 && !b.AliasLayers // blocks that share memory share it with their gradients
	budget := r.HostBytes
	if b.AliasLayers {
		r.Gradients = plan.GradientsKept
		if r.DiskBytes > 0 {
			return errors.New("--alias-layers is for state in host memory: leave --memory-disk out")
		}
		b.alias = aliasBlocks(b.model, n)
		r.HostBytes += b.alias.sharedBytes() // what the plan counts and the host need not have
	}
	cuts := plan.Cuts{MicroBatch: b.MicroBatch, HeadChunk: b.HeadChunk, BlockChunk: b.BlockChunk}
	ctx, end := b.env.ShowSearch(ctx)
	defer end()
	b.plan, err = plan.Fitting{Request: r, Rows: b.Tokens / b.SequenceLen, Cuts: cuts}.Fit(ctx)
	if err != nil && b.alias != nil {
		return fmt.Errorf("with %s of blocks that share memory: %w", plan.FormatBytes(b.alias.sharedBytes()), err)
	}
	if err != nil {
		return err
	}
	if b.alias != nil {
		b.alias.grow(budget - b.hostBytes())
	}
	return nil
}

// hostBytes is the host memory that the process should be seen to take.
func (b *benchmark) hostBytes() int64 {
	n := b.plan.ProcessBytes()
	if b.alias != nil {
		n -= b.alias.sharedBytes()
	}
	return n
}

// open reserves everything and draws the weights.
func (b *benchmark) open(ctx context.Context) (*session.Session, error) {
	wanted := func(int) bool { return true }
	o := session.SessionOptions{StateDirs: b.Memory.Path}
	if b.alias != nil {
		on := b.alias.copyOf(len(b.plan.Model.Parts))
		wanted = func(part int) bool { return on[part] == part }
		var err error
		if o.Store, err = openAliased(b.env.Accounts, b.plan, on); err != nil {
			return nil, err
		}
	}
	o.Fill = func(_ context.Context, s *session.Session) error { return b.fillAlike(ctx, s, wanted) }
	return b.env.OpenSession(ctx, b.plan, b.dev, o)
}

// measure runs the steps.
func (b *benchmark) measure(ctx context.Context, s *session.Session) (*Result, error) {
	steady := b.plan.Schedule(plan.Steady)
	// All of a step, and the end of the one before.
	s.Engine.Trace = trace.NewRecorder(b.plan.Crew(), len(steady.Ops)+1)
	bar := b.out().Bar("measuring steps")
	defer bar.End()
	var times, losses []float64
	var busy time.Duration     // of the disk, before what is measured
	free, err := b.freeBytes() // the session has tuned products
	if err != nil {
		return nil, err
	}
	for step := 1; step <= b.Warmup+b.Steps; step++ {
		if step == b.Warmup+1 {
			s.Engine.Trace.TakeBusy()
			if s.Disk != nil {
				busy = s.Disk.Traffic().Busy
			}
		}
		batch := randomBatch(b.plan, uint64(step))
		begin := time.Now()
		result, err := s.Engine.Step(ctx, batch, stream.Update{Step: step, LR: 1e-5, MaxGradNorm: b.MaxGradNorm,
			AdamW: optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}})
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		if step > b.Warmup {
			times = append(times, time.Since(begin).Seconds())
			losses = append(losses, result.Loss())
		}
		now, err := b.freeBytes()
		if err != nil {
			return nil, err
		}
		free = min(free, now)
		bar.Set(int64(step), int64(b.Warmup+b.Steps))
	}
	lanes, _ := s.Engine.Trace.TakeBusy()
	if s.Disk != nil {
		lanes[trace.Disk] += (s.Disk.Traffic().Busy - busy).Seconds()
	}
	r := b.result(times, losses, lanes.Times(1/float64(b.Steps)))
	r.Algorithms, r.DeviceFreeMinBytes = s.Algorithms(), free
	traced := s.Engine.Trace.Trace(b.about())
	last, err := timeline.Of(traced, int64(b.Warmup+b.Steps))
	if err != nil {
		return nil, err
	}
	r.Timeline = last.Chart()
	return r, b.writeTrace(traced)
}

// freeBytes returns the free memory of the device that has the least; 0 if no device reports it.
func (b *benchmark) freeBytes() (least int64, err error) {
	said := false
	for _, d := range b.dev.Computes {
		r, ok := d.(device.MemoryReporter)
		if !ok {
			continue
		}
		free, err := r.FreeBytes()
		if err != nil {
			return 0, err
		}
		if !said || free < least {
			least, said = free, true
		}
	}
	return least, nil
}

// about describes the subject of a trace of the benchmark.
func (b *benchmark) about() trace.About {
	return trace.About{Model: b.Model + b.Shape, Device: b.plan.DeviceName(b.info), Tokens: int64(b.Tokens)}
}

// writeTrace writes a Chrome trace where one is asked for.
func (b *benchmark) writeTrace(t *trace.Trace) error {
	if b.trace == nil {
		return nil
	}
	err := t.WriteChrome(b.trace)
	if err == nil {
		err = b.trace.Commit()
	}
	if err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	return nil
}

// planned has what the plan says before a step.
func (b *benchmark) planned() *Result {
	p := b.plan
	docs := make([]int, b.Tokens/b.SequenceLen)
	for i := range docs {
		docs[i] = b.SequenceLen
	}
	r := &Result{Model: b.Model + b.Shape, Device: p.DeviceName(b.info), Warning: b.info.Warning, Tokens: b.Tokens,
		SequenceLen: b.SequenceLen,
		MicroBatch:  p.Numerics.MicroBatch, MicroBatches: p.Numerics.MicroBatches,
		Compute: p.Numerics.Compute.String(), Master: p.Numerics.Master.String(), Moments: b.Moments,
		Stream: b.Stream, Choices: p.Choices(), LossUniform: math.Log(float64(b.model.Vocab)),
		PredictedStepSec: p.Predicted.StepSeconds, PredictedLanes: p.Predicted.LaneSeconds,
		PredictedTimeline: p.Timeline(b.machine, b.info), PredictedLimit: p.Predicted.Limit, Machine: b.machine.Name,
		ModelFLOPs: b.model.TrainFLOPs(docs), ExecutedFLOPs: p.Predicted.FLOPs, UploadBytes: p.Predicted.UploadBytes,
		DownloadBytes: p.Predicted.DownloadBytes, DeviceBytes: p.DeviceBytes, DeviceBudgetBytes: p.DeviceBudget, DiskBytes: p.DiskBytes,
		PlannedBytes: b.hostBytes()}
	r.PlannedBy, r.GuessReason = "probe", b.guess
	if b.guess != "" {
		r.PlannedBy = "guess"
	}
	r.Parameters, _ = b.model.Params()
	for _, part := range p.Model.BlockParts {
		if p.Placement.Where.Weights[part] == plan.Device {
			r.ResidentBlocks++
		}
	}
	if b.alias != nil {
		r.Alias = b.alias.report()
	}
	r.PredictedTokensPerSec = float64(b.Tokens) / r.PredictedStepSec
	r.PredictedModelTFLOPS = float64(r.ModelFLOPs) / r.PredictedStepSec / 1e12
	r.PredictedExecutedTFLOPS = float64(r.ExecutedFLOPs) / r.PredictedStepSec / 1e12
	r.PredictedBusyShares = r.PredictedLanes.Times(1 / r.PredictedStepSec)
	return r
}

// result puts the measured step and the plan together.
func (b *benchmark) result(times, losses []float64, lanes trace.Lanes) *Result {
	var sum float64
	for _, sec := range times {
		sum += sec
	}
	r := b.planned()
	r.StepSecs = slices.Clone(times)
	slices.Sort(times)
	r.Steps, r.StepSec, r.StepMinSec, r.StepMaxSec = b.Steps, trace.Median(times), times[0], times[len(times)-1]
	r.Lanes, r.BusyShares = lanes, lanes.Times(float64(len(times))/sum)
	r.LossFirst, r.Loss = losses[0], losses[len(losses)-1]
	r.TokensPerSec = float64(b.Tokens) / r.StepSec
	r.ModelTFLOPS, r.ExecutedTFLOPS = float64(r.ModelFLOPs)/r.StepSec/1e12, float64(r.ExecutedFLOPs)/r.StepSec/1e12
	r.PeakBytes, _ = hostmem.PeakRSS() // 0 on systems that do not say
	r.HugePageBytes, r.HugePageAskedBytes, _ = hostmem.HugePages()
	_, r.ReservedPeakBytes = b.env.Accounts.Total()
	return r
}

// randomBatch is a step of rows full of random tokens.
func randomBatch(p *plan.Plan, step uint64) *stream.Batch {
	n, t := p.Numerics, p.Numerics.Positions()
	b := &stream.Batch{}
	for m := range n.MicroBatches {
		draw := rng.New(0, "benchmark", step, uint64(m))
		micro, row := batch.New(t), make([]int32, n.SequenceLen)
		for first := 0; first < t; first += len(row) {
			for i := range row {
				row[i] = int32(draw.Uint64N(uint64(p.Model.Vocab)))
			}
			micro.SetDocument(first, row)
			b.Targets += copy(micro.Targets[first:], row[1:])
		}
		b.Micro = append(b.Micro, micro)
	}
	return b
}
