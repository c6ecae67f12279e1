package stream

import (
	"context"
	"fmt"
	"math"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
)

// stepTwice is Step where gradients are computed twice: for the norm, and for the update, which is done then. A step
// whose norm is not finite has no second half.
func (e *Engine) stepTwice(ctx context.Context, batch *Batch, update Update) (Result, error) {
	defer e.temper()()
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
	again, err := e.run(ctx, plan.SecondHalf, nil, update.Step) // what the batch has is where lanes read it
	if err != nil {
		e.pending = nil // nothing has been touched, or all is broken
		return Result{}, err
	}
	if again.GradNorm != res.GradNorm {
		e.broken = fmt.Errorf("the gradients of step %d had the norm %v when they were computed for clipping, and %v for "+
			"the update: this machine computes wrong, or this is a bug; continue from a checkpoint, with memory.gradients: keep",
			update.Step, res.GradNorm, again.GradNorm)
		return Result{}, e.broken
	}
	res.Updates.add(again.Updates)
	return res, nil
}
