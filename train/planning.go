package train

import (
	"context"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// sizesOf are the sizes of a plan as a configuration has them, none of them auto.
func sizesOf(n plan.Numerics) Sizes {
	return Sizes{MicroBatch: Auto(n.MicroBatch), HeadChunk: Auto(n.HeadChunk), BlockChunk: Auto(n.BlockRows())}
}

// cuts are the sizes of a configuration as a plan has them.
func (s Sizes) cuts() plan.Cuts {
	return plan.Cuts{MicroBatch: int(s.MicroBatch), HeadChunk: int(s.HeadChunk), BlockChunk: int(s.BlockChunk)}
}

// makePlan plans a run of a model with weights of a type, of so many steps if that is known. Sizes that are auto become the largest that fit.
func (e *Env) makePlan(ctx context.Context, c *Config, m *model.Model, weights tensor.DType, steps int, dev device.Info) (*plan.Plan, error) {
	n, err := c.types()
	if err != nil {
		return nil, err
	}
	n.SequenceLen = c.SequenceLen
	mem := c.memory()
	if sameDrive(mem.Path, c.OutputDir) {
		if mem.kept, err = e.spaceToLeave(c, m, n); err != nil {
			return nil, err
		}
	}
	p, err := e.fitPlan(ctx, m, n, c.BatchTokens/c.SequenceLen, c.Numerics, dev, mem, func(plan.Numerics) plan.Wants { return c.wants() })
	if err != nil {
		return nil, err
	}
	p.Space = c.space(p, weights, steps)
	if free, err := freeBytes(e.files(), c.OutputDir); err == nil {
		p.Space.FreeBytes = &free
	}
	return p, nil
}

// wants is what the run wants of its plan.
func (c *Config) wants() plan.Wants { return plan.Wants{NoClip: c.MaxGradNorm == 0} }

// fitPlan plans steps of so many rows of n.SequenceLen positions. wants, if given, is asked for each choice of sizes.
func (e *Env) fitPlan(ctx context.Context, m *model.Model, n plan.Numerics, rows int, sizes Sizes, dev device.Info, mem Memory,
	wants func(plan.Numerics) plan.Wants) (*plan.Plan, error) {
	r, err := e.request(m, n, dev, mem)
	if err != nil {
		return nil, err
	}
	return fitRequest(ctx, r, rows, sizes, wants)
}

// fitRequest completes a request with sizes, and plans it. It ends soon after the context does, with the context's error.
func fitRequest(ctx context.Context, r plan.Request, rows int, sizes Sizes, wants func(plan.Numerics) plan.Wants) (*plan.Plan, error) {
	return plan.Fitting{Request: r, Rows: rows, Cuts: sizes.cuts(), WantsOf: wants}.Fit(ctx)
}

// checkFits refuses a run that no sizes bring into its budgets: before its data are read, which takes long and only makes it larger.
func (e *Env) checkFits(ctx context.Context, c *Config, m *model.Model, dev device.Info) error {
	n, err := c.types()
	if err != nil {
		return err
	}
	n.SequenceLen = c.SequenceLen
	r, err := e.request(m, n, dev, c.memory())
	if err != nil {
		return err
	}
	f := plan.Fitting{Request: r, Rows: c.BatchTokens / c.SequenceLen, Cuts: c.Numerics.cuts(),
		WantsOf: func(plan.Numerics) plan.Wants { return c.wants() }}
	return f.Check(ctx)
}
