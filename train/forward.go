package train

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
)

// numericsOf are the types of a compute type, which is def if it is empty: what is computed in bf16 has a split master.
func numericsOf(compute, def string) (plan.Numerics, error) {
	if compute == "" {
		compute = def
	}
	switch compute {
	case "bf16":
		return plan.Numerics{Compute: tensor.BF16, Master: optim.Split}, nil
	case "f32":
		return plan.Numerics{Compute: tensor.F32, Master: optim.F32}, nil
	}
	return plan.Numerics{}, fmt.Errorf("compute is %q: use bf16 or f32", compute)
}

// fitForward plans forward passes over any number of rows: micro-batches as large as the device likes and the rows allow, one
// at a time.
func (e *Env) fitForward(ctx context.Context, m *model.Model, n plan.Numerics, rows int, dev *devices, mem runfile.Memory) (*plan.Plan, error) {
	r, err := e.request(m, n, dev.computes.Info(), mem)
	if err != nil {
		return nil, err
	}
	return plan.Fitting{Request: r, Rows: rows}.FitForward(ctx)
}
