package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/millrace/millrace/internal/vfs"
)

// Directory is where the checkpoints of one run lie, held for writing. Its methods may be called from several goroutines,
// but there is one save at a time.
type Directory struct {
	fsys vfs.FS
	path string
	lock io.Closer

	mu     sync.Mutex
	saving bool
}

// Acquire makes the directory if it is not there, takes its lock, and removes what interrupted saves have left. A run
// acquires before it reads the checkpoint that it resumes from, and closes when it ends; the lock of a process that is
// killed goes with it. Another process that holds the directory is an error that names the lock.
func Acquire(fsys vfs.FS, path string) (*Directory, error) {
	fail := func(err error) (*Directory, error) {
		return nil, fmt.Errorf("checkpoints cannot be saved: %w%s", err, mend(err))
	}
	if err := makeDir(fsys, path); err != nil {
		return fail(err)
	}
	l, err := takeLock(fsys, filepath.Join(path, lockName))
	if err != nil {
		return fail(err)
	}
	d := &Directory{fsys: fsys, path: path, lock: l}
	if err := d.recover(); err != nil {
		_ = l.Close() // the error at hand is the one to report
		return fail(err)
	}
	return d, nil
}

// Path is the directory's path.
func (d *Directory) Path() string { return d.path }

// Close gives up the lock. Writers must have ended.
func (d *Directory) Close() error { return d.lock.Close() }

// makeDir makes a directory and those above it, durably.
func makeDir(fsys vfs.FS, path string) error {
	missing := []string{}
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		_, err := fsys.Stat(dir)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return err
		}
		missing = append(missing, dir)
	}
	if err := fsys.MkdirAll(path, 0o777); err != nil {
		return err
	}
	for _, dir := range missing {
		if err := fsys.SyncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}

// recover ends what an interrupted run has begun: a checkpoint that was about to be replaced gets its name back, if the new
// one did not get it, and everything else that is hidden goes. What cannot be removed costs space and is left for the
// next time.
func (d *Directory) recover() error {
	entries, err := d.fsys.ReadDir(d.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		step, suffix, ok := hiddenStep(e.Name())
		if !ok {
			continue
		}
		hidden, visible := filepath.Join(d.path, e.Name()), filepath.Join(d.path, DirName(step))
		if suffix == replacedSuffix {
			_, err := d.fsys.Stat(visible)
			if errors.Is(err, fs.ErrNotExist) {
				if err = d.fsys.Rename(hidden, visible); err == nil {
					err = d.fsys.SyncDir(d.path)
				}
				if err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return err
			}
		}
		_ = vfs.RemoveAll(d.fsys, hidden) // see above
	}
	return nil
}

// Prune removes the checkpoints that are older than the newest keep complete ones, but for that of step best (-1 for none).
// It returns the steps that it removed. If keep is 0 or less it removes nothing. What is not complete does not count, and
// goes when what is older than it goes.
func (d *Directory) Prune(keep, best int) (removed []int, err error) {
	if keep <= 0 {
		return nil, nil
	}
	entries, err := List(d.fsys, d.path)
	if err != nil {
		return nil, err
	}
	complete := 0
	for _, e := range entries {
		switch {
		case complete < keep:
			if e.Err == nil {
				complete++
			}
		case e.Step != best:
			if err := d.remove(e.Step); err != nil {
				return removed, fmt.Errorf("an old checkpoint was not removed: %w%s", err, mend(err))
			}
			removed = append(removed, e.Step)
		}
	}
	return removed, nil
}

// remove takes a checkpoint's name away, durably, before it removes its files: half a checkpoint never looks whole.
func (d *Directory) remove(step int) error {
	hidden := filepath.Join(d.path, hiddenName(step, prunedSuffix))
	// What it has replaced goes first, should some of it be left: with the name free, recover would bring it back.
	for _, left := range []string{hiddenName(step, replacedSuffix), hiddenName(step, prunedSuffix)} {
		if err := vfs.RemoveAll(d.fsys, filepath.Join(d.path, left)); err != nil {
			return err
		}
	}
	if err := d.fsys.Rename(filepath.Join(d.path, DirName(step)), hidden); err != nil {
		return err
	}
	if err := d.fsys.SyncDir(d.path); err != nil {
		return err
	}
	return vfs.RemoveAll(d.fsys, hidden)
}
