package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// PlanOptions say what to plan in addition to the configuration.
type PlanOptions struct {
	Env             *session.Env       // nil in package millrace: millrace.NewEnv(nil)
	Machine         string             // plan for this named machine, or that of a file; empty: for the machine that runs this
	Devices         int                // of that machine; 0 is as many as it has
	Hosts           int                // plan for host 0 of that number of such machines; 0 and 1: for one alone
	Network         string             // between hosts (plan.Network); empty: what the machine file says
	On              *plan.NamedMachine // in place of Machine: plan for a machine that the caller describes
	Shape           string             // plan for this named shape instead of the configuration's model
	RatedWriteBytes int64              // rated endurance of the drive; 0: that of the run file, else of the named machine
	StreamAll       bool               // see plan.Request.StreamAll
	ServerPerSec    float64            // tokens a second of the server that rl.sampler names; 0: not known
	Quiet           bool               // show nothing of how far the search is
}

// elsewhere reports whether the plan is for another machine than the one that makes it.
func (o *PlanOptions) elsewhere() bool { return o.Machine != "" || o.On != nil }

// Planned is a plan with what it was made for.
type Planned struct {
	Plan     *plan.Plan
	Device   device.Info
	Machine  plan.Machine
	Sources  []string // of a named machine's rates
	Forecast plan.Forecast
	// AvailableBytes is the host memory that this machine has for the run; 0: of a named machine, or not known, or it
	// grows.
	AvailableBytes int64
	// Faster is the other compute type, where a CPU is measured to be faster with it; nil: it is not, or not known.
	Faster *FasterCompute
	// Larger is the number of tokens in a step from which on arithmetic bounds it; nil: it does, or see
	// plan.Plan.LargerBatch.
	Larger *plan.LargerBatch
	// LessWritten is the change of one key that has a run write less whose steps wait for the disk; nil: they do not, or
	// see plan.Plan.LessWritten.
	LessWritten *plan.LessWritten
	// Hosts says what the plan means for all hosts; nil: it is for one alone.
	Hosts *HostsPlanned
	// Reference is what the reference of a loop takes besides the plan; nil: the run has none.
	Reference *ReferencePlanned
}

// PlanFor plans what Train would run, from config.json alone: it reads no data and no weights. For a named shape on a
// named machine it reads nothing at all.
func PlanFor(ctx context.Context, c *runfile.Config, o PlanOptions) (r *Planned, err error) {
	env := o.Env
	if env == nil {
		return nil, session.ErrNoEnv
	}
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	if o.Quiet {
		ctx = plan.WithProgress(ctx, func(plan.Progress) {})
	}
	ctx, end := env.ShowSearch(ctx)
	defer end()
	begun := false
	if !o.elsewhere() {
		if err := rundir.CheckPaths(c.Budgets()); err != nil {
			return nil, err
		}
	}
	id, errID := env.Runs().IdentityOf(c.OutputDir, c)
	if errID == nil && (id.Begun || len(id.CopiedFrom) > 0) && !o.elsewhere() {
		own := *c
		if o.Shape == "" {
			if begun, err = continueSizes(env, &own, id); err != nil {
				return nil, err
			}
		}
		own.Memory.Path = id.StateDirs(c) // what the run has left there is free
		c = &own
	}
	m, weights, err := modelToPlan(ctx, env, c.Model, o.Shape, c.Objective.Scores())
	if err == nil && !c.Objective.Scores() {
		err = source.CheckScores(m, c.Model, c.Objective.Type)
	}
	if err == nil {
		m, err = source.Configured(m, c)
	}
	if err != nil {
		return nil, err
	}
	samples, err := generate.SamplesToPlan(ctx, env, c, o.Shape)
	if err != nil {
		return nil, err
	}
	// As if prompts were as long as they can be.
	samples = samples.With(generate.AnswersMemory(c, c.SequenceLen-c.RL.MaxTokens, m.MaxPositions))
	if r := samples.Round; r != nil {
		if o.Hosts > 1 {
			return nil, errors.New("rl: a loop is for one host yet: plan for one")
		}
		r.ServerPerSec = o.ServerPerSec
	}
	if err := checkServerRate(o.ServerPerSec, samples.Round); err != nil {
		return nil, err
	}
	alone := *c // what one host is planned for
	if alone.Numerics.Groups == 0 && o.Hosts > 1 {
		alone.Numerics.Exchange = "" // of one group there is nothing to exchange
	}
	shared := *c
	c = &shared
	c.Memory.RatedWrites.N = cmp.Or(o.RatedWriteBytes, c.Memory.RatedWrites.N)
	cluster, err := o.cluster(c)
	if err != nil {
		return nil, err
	}
	if cluster != nil {
		defer func(was *hosts.Cluster) { env.Cluster = was }(env.Cluster)
		env.Cluster = cluster
	}
	r = &Planned{}
	var again func(*runfile.Config) (*plan.Plan, error) // for the cluster that env has
	named := o.On
	if o.elsewhere() {
		if named == nil {
			found, err := MachineToPlan(o.Machine)
			if err != nil {
				return nil, err
			}
			named = &found
		}
		c.Memory.RatedWrites.N = cmp.Or(c.Memory.RatedWrites.N, named.RatedWriteBytes)
		r.Device, r.Machine, r.Sources = named.Device, named.Machine, named.Sources
		if err := checkNetwork(cluster, r.Machine); err != nil {
			return nil, err
		}
		again = func(c *runfile.Config) (*plan.Plan, error) { return planOn(ctx, env, c, m, named, &o, samples) }
		if r.Plan, err = again(c); err == nil && named.DiskBytes > 0 {
			r.Plan.Space = session.SpaceOf(c, r.Plan, weights, c.MaxSteps)
			r.Plan.Space.StateBytes, r.Plan.Space.FreeBytes = r.Plan.DiskBytes, &named.DiskBytes // it has one drive
			// Or it has several, with checkpoints on the first.
			if n := len(r.Plan.ByDrive); n > 0 {
				free := named.DiskBytes / int64(n)
				r.Plan.Space.StateBytes, r.Plan.Space.FreeBytes = r.Plan.ByDrive[0], &free
			}
		}
		if err == nil {
			r.Plan.Wear = session.WearElsewhere(c, r.Plan, c.MaxSteps)
		}
	} else {
		dev, openErr := env.OpenDevices(string(c.Device))
		if openErr != nil {
			return nil, openErr
		}
		defer dev.Close()
		r.Device = dev.Info()
		r.Machine = probe.Rates(env.CacheDir, r.Device, c.Budgets().Path)
		if err := checkNetwork(cluster, r.Machine); err != nil {
			return nil, err
		}
		again = func(c *runfile.Config) (*plan.Plan, error) {
			if o.StreamAll && r.Device.Unified && c.Budgets().Device.N == 0 {
				return nil, errors.New("the CPU uses weights where they are and streams nothing; to stream, set " +
					"memory.device to a size such as 64MiB")
			}
			return env.MakePlan(ctx, c, m, weights, c.MaxSteps, plan.Outputs{}, samples, begun, o.StreamAll, r.Device,
				len(dev.Computes))
		}
		r.Plan, err = again(c)
		if err == nil && !begun && !o.StreamAll {
			r.Faster = fasterCompute(ctx, env, c, m, weights, r.Plan, r.Device, len(dev.Computes))
		}
		if !env.MemoryGrows {
			r.AvailableBytes = available()
		}
	}
	if err != nil {
		return nil, err
	}
	if cluster != nil {
		r.Machine.NetworkBytesPerSec = cluster.Network(r.Machine)
		r.Hosts, err = hostsPlanned(ctx, r.Plan, func() (*plan.Plan, error) {
			env.Cluster = nil
			return again(&alone)
		})
		if err != nil {
			return nil, err
		}
	}
	r.Forecast = r.Plan.Forecast(r.Machine, r.Device, c.MaxSteps)
	if r.Reference, err = referencePlanned(ctx, env, c, m, r.Device, r.Machine, named); err != nil {
		return nil, err
	}
	if r.Reference != nil && r.Plan.Round != nil {
		r.Plan.Round.AddReference(r.Reference.Seconds)
	}
	if r.Larger, err = r.Plan.LargerBatch(ctx); err != nil {
		return r, err
	}
	r.LessWritten, err = r.Plan.LessWritten(ctx)
	return r, err
}

// checkServerRate refuses the rate of a server that does not sample for the run.
func checkServerRate(perSec float64, r *plan.Round) error {
	switch {
	case perSec == 0:
		return nil
	case !(perSec > 0) || perSec > 1e12:
		return fmt.Errorf("--server-rate %v: write the tokens a second that the server samples, such as 3500", perSec)
	case r == nil || !r.Server:
		return errors.New("--server-rate: the run has no server that samples (rl.sampler): leave it out")
	}
	return nil
}

// continueSizes gives a configuration the sizes that a run which has begun in its output directory continues with, and
// reports whether there is one. What Train refuses there is not a plan's to refuse.
func continueSizes(e *session.Env, c *runfile.Config, id rundir.Identity) (begun bool, err error) {
	b, errBeginning := e.Runs().FindBeginning(c, &id)
	if errBeginning != nil {
		return false, nil
	}
	if err := b.AdoptSizes(c); err != nil || !b.HasSizes() {
		return false, err
	}
	e.Note("the run in %s continues with its sizes: micro_batch %d, head_chunk %d, block_chunk %d", c.OutputDir,
		c.Numerics.MicroBatch, c.Numerics.HeadChunk, c.Numerics.BlockChunk)
	return true, nil
}

// available is the memory that this process has and may still take; 0 where that is not known.
func available() int64 {
	free, _, err := hostmem.Available()
	if err != nil {
		return 0
	}
	used, err := hostmem.RSS()
	if err != nil {
		used = 0
	}
	return free + used
}

// Lacks says in a line that this machine has less host memory than the plan takes; it is empty where it has not.
func (r *Planned) Lacks() string {
	if r.AvailableBytes == 0 || r.Plan.ProcessBytes() <= r.AvailableBytes {
		return ""
	}
	return fmt.Sprintf("this machine has only %s of host memory for the %s that the run takes: it would not start here, unless memory is added as it is used (MILLRACE_MEMORY_GROWS=1); lower memory.host",
		plan.FormatBytes(r.AvailableBytes), plan.FormatBytes(r.Plan.ProcessBytes()))
}

// String returns the plan as text for people: memory by tier and purpose, the place of all state, and the predicted
// time of a step.
func (r *Planned) String() string {
	text := r.Plan.Explain(r.Device, r.Machine, r.Forecast)
	if r.Hosts != nil {
		text += "\n" + r.Hosts.String()
	}
	if r.Reference != nil {
		text += "\n" + r.Reference.String() + "\n"
	}
	if r.Faster != nil {
		text += "\n" + r.Faster.String() + "\n"
	}
	if r.Larger != nil {
		text += "\n" + r.Larger.String() + "\n"
	}
	if r.LessWritten != nil {
		text += "\n" + r.LessWritten.String() + "\n"
	}
	if lacks := r.Lacks(); lacks != "" {
		text += "\n" + lacks + "\n"
	}
	for _, source := range r.Sources {
		text += "\n" + source
	}
	if len(r.Sources) > 0 {
		text += "\n"
	}
	return text
}

// MachineToPlan is a named machine or, if no machine has that name, the one that a file describes.
func MachineToPlan(name string) (plan.NamedMachine, error) {
	named, err := plan.FindMachine(name)
	if err == nil {
		return named, nil
	}
	_, errStat := os.Stat(name)
	isPath := errStat == nil || strings.ContainsRune(name, filepath.Separator) ||
		slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
	if !isPath {
		return named, fmt.Errorf("%w; or name a file that describes yours (docs/plan.md)", err)
	}
	named, err = runfile.ReadMachine(name)
	return named, blame.BadName(err)
}

// ModelToPlan is a model, or a named shape if there is one, with the type that its weights are exported in.
func ModelToPlan(ctx context.Context, env *session.Env, name, shape string) (*model.Model, tensor.DType, error) {
	return modelToPlan(ctx, env, name, shape, false)
}

// modelToPlan is the same, as a reward model where a run makes it one.
func modelToPlan(ctx context.Context, env *session.Env, name, shape string, scores bool) (*model.Model, tensor.DType,
	error) {
	if shape == "" {
		src, err := source.OpenModel(ctx, env, name)
		if err == nil && scores {
			err = src.EndInScoreOf(tokenizer.None)
		}
		if err != nil {
			return nil, tensor.Invalid, err
		}
		return src.Model, src.ExportType(), nil
	}
	text, err := plan.Shape(shape)
	if err != nil {
		return nil, tensor.Invalid, err
	}
	parsed, err := hf.ParseConfig(shape, text)
	if err != nil {
		return nil, tensor.Invalid, err
	}
	if scores {
		if text, err = model.ScoringConfig(parsed, tokenizer.None); err != nil {
			return nil, tensor.Invalid, fmt.Errorf("objective reward: %w", err)
		}
		if parsed, err = hf.ParseConfig(shape, text); err != nil {
			return nil, tensor.Invalid, err
		}
	}
	m, err := model.New(parsed)
	return m, source.ExportType(parsed), err
}

// planOn plans for a named machine. Budgets that the configuration gives come before the machine's.
func planOn(ctx context.Context, e *session.Env, c *runfile.Config, m *model.Model, on *plan.NamedMachine,
	o *PlanOptions, samples session.SampleMemory) (*plan.Plan, error) {
	n, err := c.StepNumerics()
	if err != nil {
		return nil, err
	}
	machine := *on
	machine.Devices = cmp.Or(o.Devices, machine.Devices)
	r := machine.Request(m, n)
	e.Cluster.Plan(&r)
	r.StreamAll, r.RecomputeAll = o.StreamAll, c.Memory.Recompute == "always"
	r.Gradients = plan.Gradients(c.Memory.Gradients)
	if b := c.Memory.Device.N; b > 0 {
		r.DeviceBytes = b
	}
	if b := c.Memory.Host.N; b > 0 {
		r.HostBytes = b
	}
	if d := c.Memory.Disk; !d.IsAuto() {
		r.DiskBytes = d.N
	}
	rows, forward := c.StepRows()
	f := plan.Fitting{Request: r, Rows: rows, ForwardRows: forward, Cuts: c.Numerics.Cuts(),
		OutputsOf: func(plan.Numerics) plan.Outputs { return c.Outputs() }}
	p, err := f.Fit(ctx)
	if err != nil {
		return nil, err
	}
	return samples.Fit(ctx, f, p)
}
