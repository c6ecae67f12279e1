package train

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// goHeapSlack is what the Go heap may grow by after the plan is made: garbage of a few steps.
const goHeapSlack = 16 << 20

// hostShare is the part of the available memory that a run takes when memory.host is auto.
const hostShare = 0.9

// PlanRequest makes what a plan is asked for. Budgets that are auto come from the machine.
func (e *Env) PlanRequest(m *model.Model, n plan.Numerics, dev device.Info, mem runfile.Memory) (plan.Request, error) {
	r := plan.Request{Model: m, Numerics: n, Device: dev, Machine: probe.Rates(e.CacheDir, dev, mem.Path), DeviceBytes: mem.Device.N, HostBytes: mem.Host.N,
		RecomputeAll: mem.Recompute == "always"}
	var err error
	if r.DiskBytes, err = diskBytes(mem, e.files()); err != nil {
		return r, err
	}
	if r.DeviceBytes == 0 && !dev.Unified {
		r.DeviceBytes = dev.MemoryBytes
	}
	debug.FreeOSMemory() // the garbage of what was read and tokenized
	used, err := hostmem.RSS()
	if err != nil {
		used = 0 // nothing to read it from on this system; the plan then leaves it out
	}
	// The order of the data is resident already, and has a line of its own in the plan. So has the memory that a
	// unified device takes for itself, which is not resident before its first operation.
	r.DataBytes = e.Accounts.Of(data.OrderPurpose).Bytes
	r.ProgramBytes = max(used-r.DataBytes, 0) + goHeapSlack
	if e.program > 0 {
		r.ProgramBytes = e.program
	}
	// A size that the user gives is taken at its word, even beyond what is available now. Populating finds out.
	e.Accounts.GrowOnUse(r.HostBytes > 0 || e.MemoryGrows)
	if r.HostBytes == 0 {
		free, _, err := hostmem.Available()
		if err != nil {
			return r, fmt.Errorf("memory.host: how much memory there is cannot be told (%w); set it to a size such as 16GiB", err)
		}
		r.HostBytes = int64(hostShare * float64(free+used))
		if e.MemoryGrows && !e.growthNoted {
			e.growthNoted = true
			e.say("memory.host: auto is %s, by what this machine shows now; it grows as it is used, so set memory.host to a size",
				plan.FormatBytes(r.HostBytes))
		}
	}
	return r, nil
}

// diskShare is the part of the free space that a run takes when memory.disk is auto, its checkpoints included where
// they are on the same drive.
const diskShare = 0.9

// diskBytes is the budget of the disk tier: what may be kept in the file system that holds Path.
func diskBytes(m runfile.Memory, fsys vfs.FS) (int64, error) {
	if m.Disk.IsNone() || m.Disk.N == 0 && !m.Disk.IsAuto() {
		return 0, nil
	}
	if m.Path == "" {
		return 0, errors.New("memory.disk: set memory.path to a directory on the drive that may be used")
	}
	free, err := freeBytes(fsys, m.Path)
	if err != nil {
		return 0, fmt.Errorf("memory.path: %w", err)
	}
	free += store.LeftBytes(m.Path) // else a run that was killed could not have again what it had
	if m.Disk.N > 0 {
		return min(m.Disk.N, free), nil
	}
	return max(int64(diskShare*float64(free)), 1), nil // not 0, which is no disk at all
}

// sizesOf are the sizes of a plan as a configuration has them, none of them auto.
func sizesOf(n plan.Numerics) runfile.Sizes {
	return runfile.Sizes{MicroBatch: runfile.Auto(n.MicroBatch), HeadChunk: runfile.Auto(n.HeadChunk), BlockChunk: runfile.Auto(n.BlockRows())}
}

// makePlan plans a run of a model with weights of a type; steps is 0 if their number is not known. Sizes that are
// auto become the largest that fit. logitRows is the number of positions of each micro-batch whose logits the caller
// wants; a micro-batch that has fewer gives all.
func (e *Env) makePlan(ctx context.Context, c *runfile.Config, m *model.Model, weights tensor.DType, steps,
	logitRows int,
	dev device.Info) (*plan.Plan, error) {
	n, err := c.Types()
	if err != nil {
		return nil, err
	}
	n.SequenceLen = c.SequenceLen
	mem := c.Budgets()
	r, err := e.PlanRequest(m, n, dev, mem)
	if err != nil {
		return nil, err
	}
	if mem.Disk.IsAuto() && vfs.SameDrive(mem.Path, c.OutputDir) {
		leave, err := e.spaceToLeave(c, m, n)
		if err != nil {
			return nil, err
		}
		r.DiskBytes = max(r.DiskBytes-leave, 1) // not 0, which is no disk at all
	}
	p, err := fitRequest(ctx, r, c.BatchTokens/c.SequenceLen, c.Numerics, func(n plan.Numerics) plan.Outputs {
		out := c.Outputs()
		out.LogitRows = min(logitRows, n.Positions())
		return out
	})
	if err != nil {
		return nil, err
	}
	p.Space = spaceOf(c, p, weights, steps)
	if free, err := freeBytes(e.files(), c.OutputDir); err == nil {
		p.Space.FreeBytes = &free
	}
	return p, nil
}

// fitPlan plans steps that have that number of rows of n.SequenceLen positions. outputs, if given, is asked for each
// choice of sizes.
func (e *Env) fitPlan(ctx context.Context, m *model.Model, n plan.Numerics, rows int, sizes runfile.Sizes, dev device.Info, mem runfile.Memory,
	outputs func(plan.Numerics) plan.Outputs) (*plan.Plan, error) {
	r, err := e.PlanRequest(m, n, dev, mem)
	if err != nil {
		return nil, err
	}
	return fitRequest(ctx, r, rows, sizes, outputs)
}

// fitRequest completes a request with sizes, and plans it. It ends soon after the context does, with the context's
// error.
func fitRequest(ctx context.Context, r plan.Request, rows int, sizes runfile.Sizes,
	outputs func(plan.Numerics) plan.Outputs) (*plan.Plan, error) {
	return plan.Fitting{Request: r, Rows: rows, Cuts: sizes.Cuts(), OutputsOf: outputs}.Fit(ctx)
}

// checkFits refuses a run that no sizes bring into its budgets: before its data are read, which takes long and only
// makes it larger.
func (e *Env) checkFits(ctx context.Context, c *runfile.Config, m *model.Model, dev device.Info) error {
	n, err := c.Types()
	if err != nil {
		return err
	}
	n.SequenceLen = c.SequenceLen
	r, err := e.PlanRequest(m, n, dev, c.Budgets())
	if err != nil {
		return err
	}
	f := plan.Fitting{Request: r, Rows: c.BatchTokens / c.SequenceLen, Cuts: c.Numerics.Cuts(),
		OutputsOf: func(plan.Numerics) plan.Outputs { return c.Outputs() }}
	return f.Check(ctx)
}

// fitForward plans forward passes over any number of rows: micro-batches as large as the device likes and the rows
// allow, one at a time.
func (e *Env) fitForward(ctx context.Context, m *model.Model, n plan.Numerics, rows int, dev *Devices, mem runfile.Memory) (*plan.Plan, error) {
	r, err := e.PlanRequest(m, n, dev.Computes.Info(), mem)
	if err != nil {
		return nil, err
	}
	return plan.Fitting{Request: r, Rows: rows}.FitForward(ctx)
}
