package train

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rundir"
)

// divergedError ends a run whose state is not worth saving.
type divergedError struct{ why string }

func (e *divergedError) Error() string { return e.why }

// SameOnAll says that all hosts find a run diverged by the same numbers.
func (e *divergedError) SameOnAll() {}

// health counts the unhealthy steps of a run.
type health struct {
	stop      runfile.Stop
	unhealthy int // steps in a row, up to the latest one
}

// note counts a step.
func (h *health) note(skipped bool, loss float64) {
	limit := h.stop.LossAbove
	if skipped || math.IsNaN(loss) || math.IsInf(loss, 0) || limit > 0 && loss > limit {
		h.unhealthy++
		return
	}
	h.unhealthy = 0
}

// hasDiverged reports whether the latest steps, as many as end a run, were all unhealthy; and what they were.
func (h *health) hasDiverged() (what string, is bool) {
	if most := h.stop.UnhealthySteps; most == 0 || h.unhealthy < most {
		return "", false
	}
	what = "the gradient norm or the loss was not finite"
	if limit := h.stop.LossAbove; limit > 0 {
		what += fmt.Sprintf(", or the loss above %g", limit)
	}
	return what, true
}

// diverged is the end of a run whose latest steps were all unhealthy.
func (t *trainer) diverged() error {
	what, is := t.health.hasDiverged()
	if !is {
		return nil
	}
	return &divergedError{fmt.Sprintf("step %d: the run has diverged: in the last %d steps %s; %s", t.steps,
		t.health.unhealthy, what, t.remedy())}
}

// endedUnhealthy is the error of a run that has come to its end while its latest steps were unhealthy, too few of them to
// end it for that: its model is written, and is not to be taken for a good one. nil for others.
func (t *trainer) endedUnhealthy(step, unhealthy int) error {
	if unhealthy == 0 {
		return nil
	}
	return fmt.Errorf("step %d: the run has ended, and its last %s: the gradient norm or the loss was not finite, or the "+
		"loss above stop.loss_above; %s is of this state; %s", step, export.UnhealthySteps(unhealthy),
		filepath.Join(t.config.OutputDir, rundir.LastModel), t.remedy())
}

// badWeights ends a run whose weights stopped being finite in the update of a step: there is nothing to save or to
// export.
func (t *trainer) badWeights(step int) error {
	if t.bad == 0 {
		return nil
	}
	return &divergedError{fmt.Sprintf("step %d: its update made %d weights NaN or infinite; %s", step, t.bad, t.remedy())}
}

// unclipped is the end of a run without clipping whose gradients are not finite.
func (t *trainer) unclipped(err error) error {
	return &divergedError{fmt.Sprintf("%v: set max_grad_norm; %s", err, t.remedy())}
}

// remedy says what a run that has diverged left, and what to do.
func (t *trainer) remedy() string {
	healthy, err := t.home.Newest(checkpoint.Query{Healthy: true})
	if (err != nil || healthy == nil) && t.from != nil && t.from.Manifest.UnhealthySteps == 0 {
		healthy = t.from // of another directory
	}
	if healthy == nil {
		return "there is no healthy checkpoint from before: lower learning_rate, or check the data, and start again in " +
			"another output_dir"
	}
	return fmt.Sprintf("the last healthy checkpoint is %s: to continue from it lower learning_rate and set resume_with: [learning_rate], or check the data",
		healthy.Dir())
}

// noteDivergence writes to run.json that the run has diverged, so that the next start continues from a healthy state.
func (t *trainer) noteDivergence(err error) {
	if diverged := (*divergedError)(nil); !errors.As(err, &diverged) || !t.env.Cluster.Leads() {
		return
	}
	t.home.ID.Ended = &rundir.Ending{Step: t.steps, Diverged: true}
	err = t.holdDir()
	if err == nil {
		err = t.home.WriteIdentity()
	}
	if err != nil {
		t.env.WarnOf(err)
	}
}

// rateOf is the learning rate of a step.
func (t *trainer) rateOf(step int) (float64, error) {
	if t.options.Rate == nil {
		return t.rates.At(step), nil
	}
	lr := t.options.Rate(step)
	if !(lr >= 0) || math.IsInf(lr, 0) {
		return 0, fmt.Errorf("step %d: Rate returns %v: it must be finite and not negative", step, lr)
	}
	return lr, nil
}
