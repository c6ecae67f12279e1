package train

import (
	"context"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/vfs"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
)

// sizesOf are the sizes of a plan as a configuration has them, none of them auto.
func sizesOf(n plan.Numerics) runfile.Sizes {
	return runfile.Sizes{MicroBatch: runfile.Auto(n.MicroBatch), HeadChunk: runfile.Auto(n.HeadChunk), BlockChunk: runfile.Auto(n.BlockRows())}
}

// makePlan plans a run of a model with weights of a type, of so many steps if that is known. Sizes that are auto become the largest that fit.
func (e *Env) makePlan(ctx context.Context, c *runfile.Config, m *model.Model, weights tensor.DType, steps int, dev device.Info) (*plan.Plan, error) {
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
	p, err := fitRequest(ctx, r, c.BatchTokens/c.SequenceLen, c.Numerics, func(plan.Numerics) plan.Wants { return c.Wants() })
	if err != nil {
		return nil, err
	}
	p.Space = spaceOf(c, p, weights, steps)
	if free, err := freeBytes(e.files(), c.OutputDir); err == nil {
		p.Space.FreeBytes = &free
	}
	return p, nil
}

// fitPlan plans steps of so many rows of n.SequenceLen positions. wants, if given, is asked for each choice of sizes.
func (e *Env) fitPlan(ctx context.Context, m *model.Model, n plan.Numerics, rows int, sizes runfile.Sizes, dev device.Info, mem runfile.Memory,
	wants func(plan.Numerics) plan.Wants) (*plan.Plan, error) {
	r, err := e.PlanRequest(m, n, dev, mem)
	if err != nil {
		return nil, err
	}
	return fitRequest(ctx, r, rows, sizes, wants)
}

// fitRequest completes a request with sizes, and plans it. It ends soon after the context does, with the context's error.
func fitRequest(ctx context.Context, r plan.Request, rows int, sizes runfile.Sizes, wants func(plan.Numerics) plan.Wants) (*plan.Plan, error) {
	return plan.Fitting{Request: r, Rows: rows, Cuts: sizes.Cuts(), WantsOf: wants}.Fit(ctx)
}

// checkFits refuses a run that no sizes bring into its budgets: before its data are read, which takes long and only makes it larger.
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
		WantsOf: func(plan.Numerics) plan.Wants { return c.Wants() }}
	return f.Check(ctx)
}
