package train

import (
	"context"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
)

// fitForward plans forward passes over any number of rows: micro-batches as large as the device likes and the rows allow, one
// at a time.
func (e *Env) fitForward(ctx context.Context, m *model.Model, n plan.Numerics, rows int, dev *Devices, mem runfile.Memory) (*plan.Plan, error) {
	r, err := e.PlanRequest(m, n, dev.Computes.Info(), mem)
	if err != nil {
		return nil, err
	}
	return plan.Fitting{Request: r, Rows: rows}.FitForward(ctx)
}
