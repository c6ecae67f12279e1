package train

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/train/rundir"
)

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
		if err := hf.CheckReplace(t.env.files(), dir); err != nil {
			return fmt.Errorf("output_dir: %w", err)
		}
	}
	return nil
}

func otherModelError(dir string) error {
	return fmt.Errorf("output_dir: %s is not the model that the run has written; move it to another directory, and the same "+
		"command writes the run's", dir)
}

// resultNames are the names of the models that the run writes.
func (t *trainer) resultNames() []string {
	if t.config.Save.Best {
		return []string{rundir.LastModel, rundir.BestModel}
	}
	return []string{rundir.LastModel}
}
