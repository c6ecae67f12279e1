package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/train/reference"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// openOld finds what the model made of the answers before its first update with them, or evaluates it now if there was
// none since. run and step are the run's, and dir has the files; empty: they are temporary. The state is open, so that
// it is the run's own model which is evaluated, by the same passes as its steps.
func (r *Run) openOld(ctx context.Context, dir string, run checkpoint.RunID, step int) (err error) {
	if r.aim.objective == nil || r.data == nil || !r.aim.objective.Needs().OldOfStart || !r.data.HasRollouts() {
		return nil
	}
	o := reference.Options{Model: r.src, Weights: fmt.Sprintf("%s after step %d", run, r.at.Since),
		Session: r.session, Dir: dir, Begun: step > r.at.Since}
	if o.Numerics, err = r.config.Types(); err != nil {
		return err
	}
	o.Numerics.SequenceLen = r.config.SequenceLen
	r.aim.old, err = reference.Open(ctx, r.env, r.dev, o, r.data.Parts())
	return err
}

// openOldInHome is openOld with files in the output directory, where the run finds them when it continues. Those of
// other answers go: a run that comes back to these begins with them again.
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
	if err := t.openOld(ctx, dir, t.home.ID.Run, t.steps); err != nil || t.aim.old == nil {
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
