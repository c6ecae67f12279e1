package train

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// endNoted is the step after which the run has ended before, for the steps and the patience that it has now; 0 where it
// is to take steps. A checkpoint of the last step says so, or run.json, where the run was not to save its end.
func (t *trainer) endNoted(ctx context.Context) (step int, err error) {
	id, begun := &t.home.ID, 0
	if t.from != nil {
		begun = t.from.Manifest.Step
		if begun >= t.rates.Steps || t.evals.outOfPatience() {
			return begun, nil
		}
		isOther := t.home.ID.Ended == nil || t.home.ID.Ended.Settings != settingsSum(t.mathematics())
		if len(t.history) > len(t.from.Manifest.History) && isOther {
			return 0, nil // the user has asked for other steps, with resume_with
		}
	}
	switch end := id.Ended; {
	case end == nil && id.HasResult(rundir.LastModel): // it may have been killed before it could note its end
		is, err := id.PlacedAt(ctx, t.config.OutputDir, rundir.LastModel)
		if is.Holding == rundir.OwnModel && is.Step >= t.rates.Steps && is.Step > begun {
			return is.Step, err
		}
		return 0, err
	case end != nil && !end.Diverged && (end.Step >= t.rates.Steps ||
		!t.otherHeld && end.Plateau.Exhausts(t.config.Stop.Patience)):
		return end.Step, nil
	}
	return 0, nil
}

// hasEnded is the step after which the run has come to its end before, if all of its results are in place: there is
// nothing to do; 0 else. A result that is missing, or of another step, is written again.
func (t *trainer) hasEnded(ctx context.Context) (step int, err error) {
	if step, err = t.endNoted(ctx); step == 0 || err != nil {
		return 0, err
	}
	is, err := t.home.ID.PlacedAt(ctx, t.config.OutputDir, rundir.LastModel)
	if err != nil || !is.IsOf(step) {
		return 0, err
	}
	best := t.bestNoted(step)
	switch {
	case best == nil && t.mayBeBest(step):
		return 0, nil
	case best == nil:
		return step, nil
	}
	if is, err = t.home.ID.PlacedAt(ctx, t.config.OutputDir, rundir.BestModel); err != nil || is.IsOf(best.Step) {
		return step, err
	}
	from, err := t.openBest(best)
	if err != nil || from != nil {
		return 0, nil // the export says what is wrong with the checkpoint
	}
	t.noteNoBest(best, is)
	return step, nil
}

// mayBeBest reports whether a run that has ended after a step is to evaluate it, since save.best asks for the best
// model, and no evaluation has found any.
func (t *trainer) mayBeBest(step int) bool {
	return t.config.Save.Best && t.evalDue(step) && t.from != nil && t.from.Manifest.Step == step && t.from.Manifest.EvalLoss == nil
}

// bestNoted is the evaluation whose model the run that has ended after a step is to have as model-best; nil: it has none.
func (t *trainer) bestNoted(step int) (best *checkpoint.Best) {
	if !t.config.Save.Best {
		return nil
	}
	if end := t.home.ID.Ended; end != nil && end.Step == step && end.Best != nil {
		return end.Best // the last evaluation may have come after the last save
	}
	if t.from != nil && !t.otherHeld {
		best = t.from.Manifest.Best
	}
	if t.from == nil || t.from.Manifest.Step < step { // the best one may have come after the latest that was saved
		for _, r := range t.home.ID.Results {
			if r.Name == rundir.BestModel && !r.Left {
				best = &checkpoint.Best{Step: r.Step}
			}
		}
	}
	return best
}

// openBest opens the checkpoint with the best loss; nil if it is not there: it was removed, or saved in another
// directory by the run that this one has resumed from.
func (t *trainer) openBest(best *checkpoint.Best) (found *checkpoint.Checkpoint, err error) {
	own, name := t.home.ID.Owner(), checkpoint.DirName(best.Step)
	for _, dir := range []string{rundir.CheckpointsDir(t.config), t.home.ID.FallbackDir(t.config)} {
		if dir == "" || !vfs.Exists(filepath.Join(dir, name)) {
			continue
		}
		from, errOpen := checkpoint.Open(t.env.Files(), filepath.Join(dir, name))
		switch {
		case errOpen != nil:
			err = errOpen
		case own.Has(from.Manifest.Run):
			return from, nil
		}
	}
	return nil, err
}

// noteEnd writes to run.json that the run takes no further step and its models are written. A checkpoint may say so as
// well, so an error is no more than a warning.
func (t *trainer) noteEnd() {
	id := &t.home.ID
	id.IsPlaced(rundir.LastModel)
	id.IsPlaced(rundir.BestModel)
	if !t.isOver() {
		return
	}
	id.Ended = &rundir.Ending{Step: t.steps, Settings: settingsSum(t.mathematics()), Plateau: t.evals.plateau,
		Best: t.saves.best, UnhealthySteps: t.health.unhealthy}
	if err := t.home.WriteIdentity(); err != nil {
		t.env.Warn("that the run has ended is not noted: %s", console.OneLine(err))
	}
}

// refuseOthers refuses to start where the name of a result has a model that the run has not written, or other files: to
// write the result would remove them.
func (t *trainer) refuseOthers(ctx context.Context) error {
	end, err := t.endNoted(ctx)
	if err != nil {
		return err
	}
	for _, name := range t.resultNames() {
		dir := filepath.Join(t.config.OutputDir, name)
		is, err := t.home.ID.PlacedAt(ctx, t.config.OutputDir, name)
		switch {
		case err != nil:
			return err
		case is.Holding == rundir.OtherModel:
			return otherModelError(dir)
		case name == rundir.LastModel && end > 0 && is.IsOf(end):
			continue // it stays
		}
		if err := hf.CheckReplace(t.env.Files(), dir); err != nil {
			return fmt.Errorf("output_dir: %w", err)
		}
	}
	return nil
}

func otherModelError(dir string) error {
	return fmt.Errorf("output_dir: %s is not the model that the run has written; move it to another directory, and the "+
		"same "+
		"command writes the run's", dir)
}

// resultNames are the names of the models that the run writes.
func (t *trainer) resultNames() []string {
	if t.config.Save.Best {
		return []string{rundir.LastModel, rundir.BestModel}
	}
	return []string{rundir.LastModel}
}
