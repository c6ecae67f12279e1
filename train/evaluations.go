package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/trace"
)

// evalDue reports whether an evaluation follows a step.
func (t *trainer) evalDue(step int) bool {
	every := cmp.Or(t.evals.every, t.config.Eval.Every)
	return every > 0 && step%every == 0 || t.evaluates() && step == t.rates.Steps
}

// evaluateAfter evaluates after the latest step, and reports whether the model is the best so far. If the run is asked
// to stop, the evaluation ends without a loss, and the run evaluates when it continues.
func (t *trainer) evaluateAfter(ctx context.Context) (isBest bool, err error) {
	if t.steps > t.begun {
		t.env.WillFinish(fmt.Sprintf("ending the evaluation, and saving step %d", t.steps))
	}
	l, err := t.evaluate(ctx, fmt.Sprintf("after step %d", t.steps))
	err = t.env.Cluster.Alone(err)
	t.leaveOut()
	if errors.Is(err, ErrInterrupted) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	e, deciding := l.Evaluation(), t.decidingLoss(&l)
	t.evals.note(e, deciding)
	t.summary.EvalAfter, t.summary.ObjectiveAfter, t.summary.EvalSetsAfter = &e.Loss, e.Objective, e.Sets
	t.tell(Evaluated{Step: t.steps, Evaluation: e, Late: t.steps == t.begun})
	return t.saves.improved(deciding), nil
}

// evaluateAgain makes up for the evaluation of the step that the run continues after, if that was interrupted. The step
// is saved, so that nothing but its record is missing.
func (t *trainer) evaluateAgain(ctx context.Context) error {
	if t.begun == 0 || t.evals.loss != nil || !t.evalDue(t.begun) {
		return nil
	}
	_, err := t.evaluateAfter(ctx)
	return err
}

// evaluations holds the evaluations of a run: the latest result, and for how long no loss was lower.
type evaluations struct {
	patience int                 // stop.patience
	every    int                 // steps, as the user of Controls has asked; 0: eval.every
	loss     *float64            // after the latest step, over all sets, if there was an evaluation
	plateau  *checkpoint.Plateau // of all so far, by the loss that decides
	latest   trace.Evaluation    // of the latest evaluation of this process
}

// note counts an evaluation after the latest step; deciding is the loss that decides when the run stops.
func (e *evaluations) note(of trace.Evaluation, deciding float64) {
	e.loss, e.latest, e.plateau = &of.Loss, of, e.plateau.After(deciding)
}

// outOfPatience reports whether the run ends here, whatever steps are left: its latest evaluations found no lower loss.
func (e *evaluations) outOfPatience() bool { return e.plateau.Exhausts(e.patience) }

// noteEarlyEnd says why the run ends before its last step, if it does.
func (t *trainer) noteEarlyEnd() {
	if !t.evals.outOfPatience() || t.steps >= t.rates.Steps {
		return
	}
	t.summary.EvalsNotLower = t.evals.plateau.Evaluations
	why := t.evals.plateau.NotLower()
	if set := t.config.Eval.Best; set != "" {
		why = set + ": " + why
	}
	t.tell(Stopping{Step: t.steps, Steps: t.rates.Steps, Why: why})
}
