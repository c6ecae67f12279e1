package train

import (
	"context"
	"errors"
	"fmt"
)

// interruption is an ErrInterrupted that says what is saved and how the run continues.
type interruption string

func (i interruption) Error() string        { return string(i) }
func (i interruption) Is(target error) bool { return target == ErrInterrupted }

// interrupted returns the result of a run. One that was stopped before it had done a step, or with all saved, has lost
// nothing.
func (t *trainer) interrupted(ctx context.Context, sum *Summary, err error) (*Summary, error) {
	isCancelled := errors.Is(err, context.Canceled) || ctx.Err() != nil && errors.Is(err, ctx.Err())
	hasSteps := t.steps > t.begun
	if err != nil && ctx.Err() != nil && !t.started {
		isCancelled = true // whatever it met, its work had not begun
	}
	if (isCancelled || errors.Is(err, ErrInterrupted)) && !hasSteps || isCancelled && t.allSaved() {
		return nil, t.interruption()
	}
	return sum, err
}

// allSaved reports whether a checkpoint has the last step.
func (t *trainer) allSaved() bool {
	return t.steps > 0 && t.isOver() && t.saves.saved == t.steps
}

// interruption is the end of a run that has saved what it has done.
func (t *trainer) interruption() error {
	again := "run the same command to continue"
	if t.config.Resume == "never" {
		again = "set resume to auto, and run the same command to continue"
	}
	switch {
	case t.allSaved():
		return interruption(fmt.Sprintf("interrupted before the model was written: all %d steps are saved in %s; %s", t.steps, t.saves.path, again))
	case t.steps > t.begun:
		return interruption(fmt.Sprintf("interrupted after step %d, saved in %s; %s", t.steps, t.saves.path, again))
	case t.begun > 0:
		return interruption(fmt.Sprintf("interrupted before step %d: the checkpoint of step %d is still the latest; %s", t.begun+1, t.begun, again))
	}
	return interruption("interrupted before a step was done: nothing is lost, and checkpoints are as they were; run the same command again")
}
