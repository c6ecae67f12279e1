package session

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// goHeapSlack bounds the growth of the Go heap after a session is open: garbage of a few steps.
const goHeapSlack = 16 << 20

// hostShare is the part of the available memory that a run takes when memory.host is auto.
const hostShare = 0.9

// PlanRequest makes what a plan is asked for. Budgets that are auto come from what the machine has left now.
func (e *Env) PlanRequest(m *model.Model, n plan.Numerics, dev device.Info, devices int,
	mem runfile.Memory) (plan.Request, error) {
	r := plan.Request{Model: m, Numerics: n, Device: dev, Devices: devices,
		Machine: probe.Rates(e.CacheDir, dev, mem.Path), DeviceBytes: mem.Device.N, HostBytes: mem.Host.N,
		RecomputeAll: mem.Recompute == "always", Gradients: plan.Gradients(mem.Gradients), Guest: e.Guest}
	e.Cluster.Plan(&r)
	room, err := diskRoom(mem, e.Files())
	if err != nil {
		return r, err
	}
	setRoom(&r, mem, room)
	if r.DeviceBytes == 0 && !dev.Unified {
		r.DeviceBytes = dev.MemoryBytes
	}
	debug.FreeOSMemory() // the garbage of what was read and tokenized: the run has other uses for it
	r.DataBytes, r.TokenBytes = e.Accounts.Of(data.OrderPurpose).Bytes, e.Accounts.Of(data.TokensPurpose).Bytes
	r.ProgramBytes = plan.ProgramBytes(dev, devices)
	if e.Tests.ProgramBytes > 0 {
		r.ProgramBytes = e.Tests.ProgramBytes
	}
	// A size that the user gives is taken at its word, even beyond what is available now. Populating finds out.
	e.Accounts.GrowOnUse(r.HostBytes > 0 || e.MemoryGrows)
	if r.HostBytes == 0 {
		left, _, err := e.hostMemory()
		if err != nil {
			return r, fmt.Errorf("memory.host: how much memory there is cannot be told (%w); set it to a size such as 16GiB", err)
		}
		used, err := hostmem.RSS()
		if err != nil {
			used = 0
		}
		// The process has some of what the plan counts. Memory that a program with more in it has is not the plan's.
		r.HostBytes = int64(hostShare * float64(left/e.sharers()+min(used, r.ProgramBytes+r.DataBytes+r.TokenBytes)))
		if e.MemoryGrows && !e.growthNoted {
			e.growthNoted = true
			e.Note("memory.host: auto is %s, by what this machine shows now; it grows as it is used, so set memory.host to a "+
				"size",
				plan.FormatBytes(r.HostBytes))
		}
	}
	return r, nil
}

// sharers is the number of processes of a run that share this machine's memory.
func (e *Env) sharers() int64 { return int64(e.Cluster.Sharers()) }

// diskSharers is the number of processes of a run that share a drive of its state, with a directory: all, where that is
// in the file system of the output directory.
func (e *Env) diskSharers(c *runfile.Config, path string) int64 {
	if e.Cluster != nil && vfs.SameDrive(path, c.OutputDir) {
		return int64(e.Cluster.Count())
	}
	return e.sharers()
}

// hostMemory is the host memory that is available now, and that there is in all.
func (e *Env) hostMemory() (left, total int64, err error) {
	if e.Tests.Memory != nil {
		left, total = e.Tests.Memory()
		return left, total, nil
	}
	if left, _, err = hostmem.Available(); err == nil {
		total, err = hostmem.Total()
	}
	return left, total, err
}

// sizingShares are the parts of the memory of the device and of the host for which sizes are chosen where budgets are
// auto: the first ones that the run fits into. They leave room for other programs, more on a host than on a GPU.
var sizingShares = []struct{ device, host float64 }{{7. / 8, 1. / 2}, {7. / 8, 3. / 4}, {1, 1}}

// unlimitedDisk is a budget that no state exceeds.
const unlimitedDisk = 1 << 50

// sizing returns the requests that decide the sizes of a run, to be tried in order: those of the budgets that are
// given and, where a budget is auto, of shares of all that the machine has. The memory that is free differs from start
// to start, and so does whether tokens wait in memory or in a cache: both serve placements, which set no bits; sizes
// do.
func (e *Env) sizing(r plan.Request, mem runfile.Memory) ([]plan.Request, error) {
	r.TokenBytes = 0
	switch {
	case mem.Disk.IsAuto():
		r.DiskBytes = unlimitedDisk
	default:
		r.DiskBytes = mem.Disk.N
	}
	if len(r.Drives) > 0 {
		r.DealByRate(mem.Path, make([]int64, len(r.Drives))) // what has room on each now is for placements
	}
	ofDevice, ofHost := mem.Device.N == 0 && !r.Device.Unified, mem.Host.N == 0
	if !ofDevice && !ofHost {
		return []plan.Request{r}, nil
	}
	_, total, err := e.hostMemory()
	if ofHost && err != nil {
		return nil, err
	}
	var list []plan.Request
	for _, share := range sizingShares {
		if ofDevice {
			r.DeviceBytes = int64(share.device * float64(cmp.Or(r.Device.TotalBytes, r.Device.MemoryBytes)))
		}
		if ofHost {
			r.HostBytes = int64(share.host * float64(total/e.sharers()))
		}
		list = append(list, r)
	}
	return list, nil
}

// ShowSearch has the searches of a context show on a terminal how far they are, unless they do. The function removes
// what was drawn.
func (e *Env) ShowSearch(ctx context.Context) (context.Context, func()) {
	if plan.HasProgress(ctx) {
		return ctx, func() {}
	}
	line := e.out().Line("plan")
	return plan.WithProgress(ctx, func(q plan.Progress) {
		where := fmt.Sprintf("%d placements tried", q.Placements)
		if q.StepSeconds > 0 {
			where += ", the best takes " + plan.FormatSeconds(q.StepSeconds) + " a step"
		}
		line.Show(where)
	}), line.End
}

// fit plans with sizes that follow from the budgets and, where those are auto, from what the machine has, never from
// what is left of that now or from what tokens take of it.
func (e *Env) fit(ctx context.Context, f plan.Fitting, mem runfile.Memory) (*plan.Plan, error) {
	ctx, end := e.ShowSearch(ctx)
	defer end()
	if f.Cuts.MicroBatch > 0 && f.Cuts.HeadChunk > 0 {
		return f.Fit(ctx)
	}
	list, err := e.sizing(f.Request, mem)
	if err != nil {
		return nil, err
	}
	sized := f
	for _, r := range list {
		g := f
		g.Request = r
		p, err := g.Fit(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			continue
		}
		if r.DeviceBytes == f.DeviceBytes && r.HostBytes == f.HostBytes && r.DiskBytes == f.DiskBytes && f.TokenBytes == 0 &&
			len(f.Drives) == 0 {
			return p, nil
		}
		sized.Cuts.MicroBatch, sized.Cuts.HeadChunk = p.Numerics.MicroBatch, p.Numerics.HeadChunk
		break
	}
	if sized.Cuts == f.Cuts { // not even all of the machine has room
		return f.Fit(ctx)
	}
	p, err := sized.Fit(ctx)
	if err == nil || ctx.Err() != nil {
		return p, err
	}
	return nil, notNow(ctx, f, sized.Cuts, mem, err)
}

// notNow says what to do of a request whose sizes have no room next to the tokens, or in what is left of the machine:
// where smaller sizes would fit, how they are chosen; else what err says.
func notNow(ctx context.Context, f plan.Fitting, sized plan.Cuts, mem runfile.Memory, err error) error {
	if f.TokenBytes > 0 {
		return noRoomForTokens(ctx, f, sized, err)
	}
	var keys []string
	if mem.Device.N == 0 && !f.Device.Unified {
		f.DeviceBytes = f.DeviceBytes >> 20 << 20
		keys = append(keys, fmt.Sprintf("memory.device=%dMiB", f.DeviceBytes>>20))
	}
	if mem.Host.N == 0 {
		f.HostBytes = f.HostBytes >> 20 << 20
		keys = append(keys, fmt.Sprintf("memory.host=%dMiB", f.HostBytes>>20))
	}
	if len(keys) == 0 || f.Check(ctx) != nil {
		return err
	}
	return fmt.Errorf("memory: steps of the sizes that this machine is for (micro_batch %d, head_chunk %d) have no room "+
		"in what other programs leave of it now: end some of them, or set %s, which chooses smaller sizes and so other "+
		"last bits", sized.MicroBatch, sized.HeadChunk, strings.Join(keys, " and "))
}

// noRoomForTokens is notNow where tokens are in memory. Budgets that have room for them would choose larger sizes.
func noRoomForTokens(ctx context.Context, f plan.Fitting, sized plan.Cuts, err error) error {
	var how []string
	cached := f
	cached.Cuts, cached.TokenBytes = sized, 0
	if cached.Check(ctx) == nil {
		how = append(how, "have a token cache that can be written (MILLRACE_CACHE names its place)")
	}
	if p, errFit := f.Fit(ctx); errFit == nil {
		how = append(how, fmt.Sprintf("set numerics.micro_batch=%d and numerics.head_chunk=%d, which have other last bits",
			p.Numerics.MicroBatch, p.Numerics.HeadChunk))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(how) == 0 {
		return err
	}
	return fmt.Errorf("memory: steps of the sizes that are chosen whether or not tokens are cached (micro_batch %d, "+
		"head_chunk %d) have no room next to the %s of tokens in memory: %s", sized.MicroBatch, sized.HeadChunk,
		plan.FormatBytes(f.TokenBytes), strings.Join(how, ", or "))
}

// MakePlan plans a run of a model with weights of a type; steps is 0 if their number is not known. Sizes that are
// auto become the largest that fit. also has LogitRows and LogProbs for the caller; a micro-batch that has fewer rows
// than LogitRows gives all. begun and streamAll are plan.Request.Begun and StreamAll.
func (e *Env) MakePlan(ctx context.Context, c *runfile.Config, m *model.Model, weights tensor.DType,
	steps int, also plan.Outputs, samples SampleMemory, begun, streamAll bool, dev device.Info,
	devices int) (*plan.Plan, error) {
	n, err := c.StepNumerics()
	if err != nil {
		return nil, err
	}
	mem := c.Budgets()
	r, err := e.PlanRequest(m, n, dev, devices, mem)
	if err != nil {
		return nil, err
	}
	r.Begun, r.StreamAll = begun, streamAll
	room, err := e.roomOfRun(c, func() (int64, error) { return e.spaceToLeave(c, m, n) })
	if err != nil {
		return nil, err
	}
	setRoom(&r, mem, room)
	rows, forward := c.StepRows()
	f := plan.Fitting{Request: r, Rows: rows, ForwardRows: forward, Cuts: c.Numerics.Cuts(),
		OutputsOf: func(n plan.Numerics) plan.Outputs {
			out := c.Outputs()
			out.LogitRows, out.LogProbs = min(also.LogitRows, n.Positions()), also.LogProbs || out.LogProbs
			out.Gradients, out.Objective = also.Gradients, also.Objective || out.Objective
			out.TopK, out.Entropies = max(also.TopK, out.TopK), also.Entropies || out.Entropies
			return out
		}}
	p, err := e.fitDealt(ctx, &f, mem)
	if err == nil {
		p, err = samples.Fit(ctx, f, p)
	}
	if err != nil {
		return nil, err
	}
	p.Space = SpaceOf(c, p, weights, steps)
	p.Wear = WearOf(c, p, steps)
	if free, err := FreeBytes(e.Files(), c.OutputDir); err == nil {
		p.Space.FreeBytes = &free
	}
	return p, nil
}

// FitPlan plans steps that have that number of rows of n.SequenceLen positions. outputs, if given, is asked for each
// choice of sizes.
func (e *Env) FitPlan(ctx context.Context, m *model.Model, n plan.Numerics, rows int, sizes runfile.Sizes,
	dev device.Info, mem runfile.Memory,
	outputs func(plan.Numerics) plan.Outputs) (*plan.Plan, error) {
	r, err := e.PlanRequest(m, n, dev, 1, mem)
	if err != nil {
		return nil, err
	}
	return e.fitDealt(ctx, &plan.Fitting{Request: r, Rows: rows, Cuts: sizes.Cuts(), OutputsOf: outputs}, mem)
}

// CheckFits refuses a run that no sizes bring into its budgets: before its data are read, which takes long and only
// makes it larger.
func (e *Env) CheckFits(ctx context.Context, c *runfile.Config, m *model.Model, samples SampleMemory, begun bool,
	dev device.Info) error {
	n, err := c.StepNumerics()
	if err != nil {
		return err
	}
	r, err := e.PlanRequest(m, n, dev, 1, c.Budgets())
	if err != nil {
		return err
	}
	r.Begun = begun
	if len(r.Drives) > 0 { // as if all had room for their shares: which has too little is seen when the run is planned
		r.DealByRate(c.Budgets().Path, make([]int64, len(r.Drives)))
	}
	rows, forward := c.StepRows()
	f := plan.Fitting{Request: r, Rows: rows, ForwardRows: forward, Cuts: c.Numerics.Cuts(),
		OutputsOf: func(plan.Numerics) plan.Outputs { return c.Outputs() }}
	err = f.Check(ctx)
	if err == nil {
		return samples.check(ctx, f)
	}
	if ctx.Err() != nil {
		return err
	}
	f.DataBytes = max(f.DataBytes, unreadDataBytes) // else what is advised has no room for them
	return f.Check(ctx)
}

// unreadDataBytes allows in advice for the order of data that are not read yet: that of some 30,000 documents.
const unreadDataBytes = 1 << 20

// FitForward plans forward passes over any number of rows: micro-batches as large as the device likes and the rows
// allow, one at a time.
func (e *Env) FitForward(ctx context.Context, m *model.Model, n plan.Numerics, rows int, dev *Devices,
	mem runfile.Memory, also plan.Outputs) (*plan.Plan, error) {
	r, err := e.PlanRequest(m, n, dev.Info(), 1, mem)
	if err != nil {
		return nil, err
	}
	return plan.Fitting{Request: r, Rows: rows,
		OutputsOf: func(n plan.Numerics) plan.Outputs {
			out := also
			out.LogitRows = min(also.LogitRows, n.Positions())
			return out
		}}.FitForward(ctx)
}
