package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/vfs"
)

// takenError ends a run whose output directory has become that of another run.
type takenError struct{ lost string }

func (e *takenError) Error() string {
	return fmt.Sprintf("output_dir: %s was removed or moved while the run was using it, and another run has the "+
		"directory now", e.lost)
}

// holdDir makes sure that the output directory is the run's, before the run writes there by name. It makes again what
// was removed, with the run's files. Where another run has begun in it, the error is a *takenError, from now on.
func (t *trainer) holdDir() error {
	s, c := &t.saves, t.config
	if s.taken != nil {
		return s.taken
	}
	was := vfs.InodeOf(t.env.files(), c.OutputDir) // Retake makes another one
	lost, err := s.dir.Retake()
	if lost != "" {
		isHere := was != nil && t.id.Inode != nil && was.Is(*t.id.Inode)
		if !isHere {
			lost = c.OutputDir
		}
		t.forgetLost()
		there, errThere := t.env.readIdentity(c.OutputDir)
		isOther := there != nil && there.Run != t.id.Run ||
			!isHere && errThere == nil && there == nil && t.env.refuseRun(c) != nil
		if errors.Is(err, vfs.ErrLocked) || isOther {
			s.taken = &takenError{lost}
			return s.taken
		}
		s.remake = lost
	}
	if err != nil || s.remake == "" {
		return err
	}
	if err := t.remakeFiles(); err != nil {
		return err
	}
	lost, s.remake = s.remake, ""
	t.env.say("warning: output_dir: %s was removed or moved while the run was using it; it is made again, without what "+
		"was there", lost)
	return nil
}

// forgetLost forgets the checkpoints that are no longer there.
func (t *trainer) forgetLost() {
	s := &t.saves
	has := func(dir string) bool {
		_, err := t.env.files().Stat(dir)
		return !errors.Is(err, fs.ErrNotExist)
	}
	if t.summary.Checkpoint != "" && !has(t.summary.Checkpoint) {
		s.saved, t.summary.Checkpoint = 0, ""
	}
	if s.best == nil {
		return
	}
	name := checkpoint.DirName(s.best.Step)
	if !has(filepath.Join(s.dir.Path(), name)) && (s.fallback == nil || !has(filepath.Join(s.fallback.Path(), name))) {
		s.best = nil
	}
}

// remakeFiles writes what a run has in its output directory from its beginning, as far as that is not there.
func (t *trainer) remakeFiles() error {
	t.id.Inode = vfs.InodeOf(t.env.files(), t.config.OutputDir)
	if err := t.writeIdentity(); err != nil {
		return err
	}
	if err := t.writeRunFiles(); err != nil {
		return err
	}
	return t.remakeMetrics()
}

// remakeMetrics gives the run's records their name again. The file at the name may be the one that they are in.
func (t *trainer) remakeMetrics() error {
	fsys, name := t.env.files(), filepath.Join(t.config.OutputDir, metricsName)
	held, err := t.metricsFile.Stat()
	if err != nil {
		return err
	}
	if there, err := fsys.Stat(name); err == nil && os.SameFile(held, there) {
		return nil
	}
	temp := name + ".tmp"
	if err := fsys.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	if err := t.metrics.MoveTo(f); err != nil {
		_ = f.Close() // the first error is the one to report
		return err
	}
	t.metricsFile = f
	return fsys.Rename(temp, name)
}
