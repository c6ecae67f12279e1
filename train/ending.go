package train

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/runfile"
)

// hasModel reports whether the run has ended, and something has the name of its model.
func (id *identity) hasModel(c *runfile.Config) bool {
	return id.Ended != nil && !id.Ended.Diverged && exists(filepath.Join(c.OutputDir, lastModel))
}

// hasEnded reports whether the run had come to its end before: it takes no further step and the model is written. A
// checkpoint of the last step says so, or run.json, where the run was not to save its end. A model that run.json says
// is not the run's is an error: to train again would replace it.
func (t *trainer) hasEnded(ctx context.Context) (bool, error) {
	c := t.config
	model := filepath.Join(c.OutputDir, lastModel)
	if !exists(model) {
		return false, nil
	}
	isSaved := t.from != nil && (t.from.Manifest.Step >= t.rates.Steps || t.evals.outOfPatience() && t.isModelOf(model))
	isNoted := t.home.id.hasModel(c) && (t.home.id.Ended.Step >= t.rates.Steps || exhausts(t.home.id.Ended.Plateau, c.Stop.Patience))
	switch {
	case isSaved && !isNoted:
		return true, nil // it was killed before it could note that
	case !isSaved && (!isNoted || t.from != nil && len(t.history) > len(t.from.Manifest.History)):
		return false, nil // or the user has asked for other steps, with resume_with
	}
	got, err := (&source{dir: model}).fingerprint(ctx)
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil || got != t.home.id.Ended.ModelSHA256:
		return false, fmt.Errorf("output_dir: this run has ended, and %s is not the model that it has written; move that to "+
			"another directory to train again", model)
	}
	return true, nil
}

// isModelOf reports whether a model has the weights of the checkpoint that the run continues from, by its card: a run
// that ended early and was continued has an older one until it ends again.
func (t *trainer) isModelOf(dir string) bool {
	step, ok := stepOfCard(dir)
	return ok && step == t.from.Manifest.Step
}

// noteEnd writes to run.json that the run takes no further step and the model is written. A checkpoint may say so as
// well, so an error is no more than a warning.
func (t *trainer) noteEnd(ctx context.Context) {
	if !t.isOver() {
		return
	}
	sum, err := (&source{dir: t.summary.Model}).fingerprint(ctx)
	if err == nil {
		t.home.id.Ended = &ending{Step: t.steps, Plateau: t.evals.plateau, ModelSHA256: sum}
		err = t.home.writeIdentity()
	}
	if err != nil {
		t.env.warn("that the run has ended is not noted: %s", console.OneLine(err))
	}
}
