package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/train/reference"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// openOldOfData is openOld of the data of a run that is no loop. run and step are the run's.
func (r *Run) openOldOfData(ctx context.Context, dir string, run checkpoint.RunID, step int) error {
	return r.openOld(ctx, r.data, dir, fmt.Sprintf("%s after step %d", run, r.at.Since), step > r.at.Since)
}

// openOld finds what the model made of answers before its first update with them, or evaluates it now unless updates
// have begun. weights name the model of then, and dir has the files; empty: they are temporary. The state is open, so
// that it is the run's own model which is evaluated, by the same passes as its steps.
func (r *Run) openOld(ctx context.Context, of *data.Dataset, dir, weights string, begun bool) (err error) {
	if r.aim.objective == nil || of == nil || !r.aim.objective.Needs().OldOfStart || !of.HasRollouts() {
		return nil
	}
	o := reference.Options{Model: r.src, Weights: weights, Session: r.session, Dir: dir, Begun: begun}
	if o.Numerics, err = r.config.Types(); err != nil {
		return err
	}
	o.Numerics.SequenceLen = r.config.SequenceLen
	r.aim.old, err = reference.Open(ctx, r.env, r.dev, o, of.Parts())
	return err
}

// openOldInHome is openOldOfData with files in the output directory, where the run finds them when it continues. Those
// of other answers go: a run that comes back to these begins with them again.
func (t *trainer) openOldInHome(ctx context.Context) error {
	dir := t.home.File(rundir.OldName)
	if of := t.aim.objective; of == nil || !of.Needs().OldOfStart {
		return nil
	}
	files := rundir.Files{FS: t.env.Files()}
	if err := vfs.CheckDir(files.FS, dir); err != nil {
		return rundir.UnderKey("output_dir", err)
	}
	if err := files.CheckEmptyLink(dir); err != nil {
		return rundir.UnderKey("output_dir", err)
	}
	if err := t.openOldOfData(ctx, dir, t.home.ID.Run, t.steps); err != nil || t.aim.old == nil {
		return err
	}
	own := t.aim.old.Files()
	all, err := filepath.Glob(filepath.Join(dir, "*"+reference.FileSuffix))
	for _, name := range all {
		if err == nil && !slices.Contains(own, name) {
			err = os.Remove(name)
		}
	}
	return blame.NotRequest(err)
}
