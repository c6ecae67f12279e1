package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/vfs"
)

// takenError ends a run whose output directory has become that of another run.
type takenError struct{ dir string }

func (e *takenError) Error() string {
	return fmt.Sprintf("output_dir: %s was removed while the run was using it, and another run has it now", e.dir)
}

// holdDir makes sure that the output directory is the run's, before the run writes there by name. One that was removed
// is made again, with the run's files. Where another run has begun in it, the error is a *takenError, from now on.
func (t *trainer) holdDir() error {
	s, c := &t.saves, t.config
	if s.taken != nil {
		return s.taken
	}
	lost, err := s.dir.Retake()
	if lost {
		if dir := t.id.fallbackDir(c); dir == "" || filepath.Dir(t.summary.Checkpoint) != dir {
			s.saved, s.best, t.summary.Checkpoint = 0, nil, "" // they were there
		}
		there, errThere := t.env.readIdentity(c.OutputDir)
		isOther := there != nil && there.Run != t.id.Run || errThere == nil && there == nil && t.env.refuseRun(c) != nil
		if errors.Is(err, vfs.ErrLocked) || isOther {
			s.taken = &takenError{c.OutputDir}
			return s.taken
		}
		s.remake = true
	}
	if err != nil || !s.remake {
		return err
	}
	if err := t.remakeFiles(); err != nil {
		return err
	}
	s.remake = false
	t.env.say("warning: output_dir: %s was removed while the run was using it; it is made again, and what was saved "+
		"there is gone", c.OutputDir)
	return nil
}

// remakeFiles writes what a run has in its output directory from its beginning.
func (t *trainer) remakeFiles() error {
	t.id.Inode = vfs.InodeOf(t.env.files(), t.config.OutputDir)
	if err := t.writeIdentity(t.env); err != nil {
		return err
	}
	if err := t.writeRunFiles(); err != nil {
		return err
	}
	name := filepath.Join(t.config.OutputDir, metricsName)
	f, err := t.env.files().OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	return t.metrics.MoveTo(f)
}
