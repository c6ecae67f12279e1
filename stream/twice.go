package stream

import (
	"context"
	"math"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
)

// stepTwice is Step where gradients are computed twice: for the norm, and for the update, which is done then. A step whose
// norm is not finite has no second half.
func (e *Engine) stepTwice(ctx context.Context, batch *Batch, update Update) (Result, error) {
	res, err := e.run(ctx, plan.FirstHalf, batch, update.Step)
	if err != nil {
		return Result{}, err
	}
	res.Targets = batch.Targets
	res.Updates.add(e.untold)
	e.untold = Updates{}
	if math.IsNaN(res.GradNorm) || math.IsInf(res.GradNorm, 0) {
		res.Skipped = true
		return res, nil
	}
	res.ClipScale = optim.ClipScale(res.GradNorm, update.MaxGradNorm)
	e.pending = &pendingUpdate{Update: update, clip: res.ClipScale}
	again, err := e.run(ctx, plan.SecondHalf, batch, update.Step)
	if err != nil {
		return Result{}, err
	}
	res.Updates.add(again.Updates)
	return res, nil
}
