package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"github.com/millrace/millrace/vfs"
)

// Directory has the checkpoints of one run, held for writing. Its methods may be called from several
// goroutines, but there is one save at a time.
type Directory struct {
	fsys vfs.FS
	path string
	lock vfs.Lock
	made []string // directories that were not there before, leaf first

	owner Owner        // whose directory it is
	known map[int]bool // steps whose checkpoints this process has written, or read whole

	mu     sync.Mutex
	saving bool
}

// Acquire holds the directory of a run, and removes what interrupted saves of that run have left.
func Acquire(fsys vfs.FS, path string, o Owner) (*Directory, error) {
	d, err := Hold(fsys, path)
	if err != nil {
		return nil, err
	}
	if err := d.Own(o); err != nil {
		_ = d.Abandon() // err is the one to report
		return nil, err
	}
	return d, nil
}

// Hold makes the directory if it is not there, and takes its lock. A run holds the directory before it makes or reads
// anything else in its output directory, says by Own which run it is before it saves, and closes when it ends; the lock
// of a process that is killed goes with it. Another process that holds the directory is an error that names the lock.
// A directory that another user can have prepared is a *vfs.NotOwnError, and is not touched.
func Hold(fsys vfs.FS, path string) (*Directory, error) {
	if err := vfs.CheckDir(fsys, path); err != nil {
		return nil, err
	}
	d := &Directory{fsys: fsys, path: path}
	err := d.hold()
	for range 10 { // each time another start has failed, and has just removed what it had made
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		err = d.hold()
	}
	if err != nil {
		_ = d.Abandon() // err is the one to report
		return nil, unusable(err)
	}
	return d, nil
}

// Own says which run holds the directory, and removes what interrupted saves of it, and of those that it continues,
// have left.
func (d *Directory) Own(o Owner) error {
	d.owner = o
	if err := d.recover(); err != nil {
		return unusable(err)
	}
	return nil
}

func unusable(err error) error {
	return fmt.Errorf("checkpoints cannot be saved: %w%s", err, fix(err))
}

// hold makes the directory if it is not there, and takes its lock.
func (d *Directory) hold() error {
	made, err := makeDir(d.fsys, d.path)
	d.made = append(made, d.made...)
	if err == nil {
		d.lock, err = takeLock(d.fsys, filepath.Join(d.path, lockName))
	}
	return err
}

// Retake makes sure that the directory is still the one that is held. Where its lock file or all of it was removed,
// Retake makes it if need be, holds it again, and lost names what vanished meanwhile: the path of the file, or of the
// directory; empty if nothing is lost. Another run may have written there meanwhile. The error matches vfs.ErrLocked if
// one holds it now.
func (d *Directory) Retake() (lost string, err error) {
	if is, err := d.lock.InPlace(); is || err != nil {
		return "", err
	}
	lost = filepath.Join(d.path, lockName)
	if _, err := d.fsys.Stat(d.path); errors.Is(err, fs.ErrNotExist) {
		lost, d.known = d.path, nil
	}
	before := d.lock
	if err := d.hold(); err != nil {
		d.lock = before
		return lost, unusable(err)
	}
	_ = before.Close() // it holds a file without a name
	return lost, nil
}

// Path is the directory's path.
func (d *Directory) Path() string { return d.path }

// Close gives up the lock. Writers must have ended.
func (d *Directory) Close() error { return d.lock.Close() }

// Abandon is Close for a run that has not begun. It removes the files and directories that Acquire made, except
// directories that have other contents by now. Earlier files stay, the lock's file included. The lock works even if its
// file is removed while it is held: see vfs.FS.
func (d *Directory) Abandon() error {
	if len(d.made) > 0 && d.lock != nil {
		_ = d.fsys.Remove(filepath.Join(d.path, lockName)) // what is left costs nothing
	}
	vfs.RemoveEmpty(d.fsys, d.made)
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// makeDir makes a directory and those above it, durably. It returns those that it made, leaf first.
func makeDir(fsys vfs.FS, path string) (made []string, err error) {
	made, err = vfs.MakeDirs(fsys, path, 0o775)
	if err != nil {
		return made, err
	}
	for _, dir := range made {
		if err := fsys.SyncDir(filepath.Dir(dir)); err != nil {
			return made, err
		}
	}
	return made, nil
}

// recover ends what an interrupted process of the run, or of one that it continues in a copy, has begun: a checkpoint
// that was about to be replaced gets its name back, if the new one did not get it, and everything else that is hidden
// goes. Files that cannot be removed cost space and are left for the next time.
func (d *Directory) recover() error {
	entries, err := d.fsys.ReadDir(d.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		step, suffix, ok := hiddenStep(e.Name(), d.owner)
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

// Pruned reports the work of Prune.
type Pruned struct {
	Removed []int    // steps
	Aside   []string // new paths of damaged checkpoints that were set aside
}

// Prune removes the run's checkpoints that are older than the newest keep of those up to step latest, except the one of
// step best (-1: no exception). If keep is 0 or less it removes nothing.
//
// Latest is the step that was just saved: it stays, and newer ones, which are of a time that the run has left, are
// neither counted nor removed. A checkpoint is counted if it is complete, if no unhealthy step led to it, and if this
// process has written it or read it whole (see Trust). Before it removes one, Prune reads those that it would count and
// that are not known to be whole. It sets aside those that are damaged. One that does not say whose it is stays.
func (d *Directory) Prune(ctx context.Context, latest, keep, best int) (done Pruned, err error) {
	if keep <= 0 {
		return done, nil
	}
	for {
		counted, rest, err := d.rank(latest, keep)
		if err != nil {
			return done, err
		}
		rest = slices.DeleteFunc(rest, func(step int) bool { return step == best || step == latest })
		if len(rest) == 0 {
			return done, nil
		}
		aside, err := d.verify(ctx, counted)
		if err != nil {
			return done, fmt.Errorf("old checkpoints were not removed: %w", err)
		}
		if aside != "" {
			done.Aside = append(done.Aside, aside)
			continue
		}
		for _, step := range rest {
			if err := d.remove(step); err != nil {
				return done, fmt.Errorf("an old checkpoint was not removed: %w%s", err, fix(err))
			}
			done.Removed = append(done.Removed, step)
		}
		return done, nil
	}
}

// rank lists the run's checkpoints up to a step, newest first: keep of those that count, as far as their manifests
// tell, and all that are older than these.
func (d *Directory) rank(latest, keep int) (counted, rest []int, err error) {
	steps, err := listSteps(d.fsys, d.path)
	if err != nil {
		return nil, nil, err
	}
	for _, step := range steps {
		if step > latest {
			continue
		}
		dir := filepath.Join(d.path, DirName(step))
		m, err := readStep(d.fsys, d.path, step)
		switch {
		case err != nil || !d.owner.Has(m.Run):
		case len(counted) == keep:
			rest = append(rest, step)
		case m.UnhealthySteps == 0 && m.checkFiles(d.fsys, dir) == nil:
			counted = append(counted, step)
		}
	}
	return counted, rest, nil
}

// verify reads the checkpoints that are not known to be whole. It sets the first damaged one aside, and returns its new
// path.
func (d *Directory) verify(ctx context.Context, steps []int) (aside string, err error) {
	for _, step := range steps {
		if d.knows(step) {
			continue
		}
		c, err := Open(d.fsys, filepath.Join(d.path, DirName(step)))
		if err == nil {
			err = c.Verify(ctx, nil)
		}
		if damage := (*DamageError)(nil); errors.As(err, &damage) && damage.Lasts() {
			return d.SetAside(step, Damaged)
		}
		if err != nil {
			return "", err
		}
		d.Trust(step)
	}
	return "", nil
}

// Trust notes that this process has read the checkpoint of a step whole. A run does so for the one that it continues
// from.
func (d *Directory) Trust(step int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[int]bool{}
	}
	d.known[step] = true
}

func (d *Directory) knows(step int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[step]
}

// SetAside renames a checkpoint that the run does not continue from, so that it is no longer one, and returns its new
// path: "step-000020.damaged" for the reason "damaged". Its files stay, for a user to look at and to remove.
func (d *Directory) SetAside(step int, reason string) (string, error) {
	name := filepath.Join(d.path, DirName(step))
	for n := 1; ; n++ {
		aside := name + "." + reason
		if n > 1 {
			aside = fmt.Sprintf("%s-%d", aside, n)
		}
		_, err := d.fsys.Stat(aside)
		if err == nil {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = d.fsys.Rename(name, aside)
		}
		if err == nil {
			err = d.fsys.SyncDir(d.path)
		}
		if err != nil {
			return "", fmt.Errorf("%s cannot be set aside: %w%s", name, err, fix(err))
		}
		return aside, nil
	}
}

// makeRoom looks at what has the name that a checkpoint is to get.
func (d *Directory) makeRoom(step int) error {
	dir := filepath.Join(d.path, DirName(step))
	if _, err := d.fsys.Stat(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	m, err := readStep(d.fsys, d.path, step)
	if damage := (*DamageError)(nil); errors.As(err, &damage) && damage.Lasts() {
		_, err = d.SetAside(step, Damaged)
		return err
	}
	if err == nil && !d.owner.Has(m.Run) {
		err = fmt.Errorf("%s is a checkpoint of another run: move it to another directory", dir)
	}
	return err
}

// Why a checkpoint is set aside.
const (
	Damaged  = "damaged"  // its contents are not those that were saved
	Diverged = "diverged" // unhealthy steps led to it, and the run continues from an older one
)

// remove takes a checkpoint's name away, durably, before it removes its files: half a checkpoint never looks whole.
func (d *Directory) remove(step int) error {
	hidden := filepath.Join(d.path, hiddenName(step, d.owner.Run, prunedSuffix))
	// A replaced checkpoint goes first, if some of it is left: with the name free, recover would bring it back.
	for _, suffix := range []string{replacedSuffix, prunedSuffix} {
		for _, run := range append([]RunID{d.owner.Run}, d.owner.Earlier...) {
			left := hiddenName(step, run, suffix)
			if err := vfs.RemoveAll(d.fsys, filepath.Join(d.path, left)); err != nil {
				return err
			}
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
