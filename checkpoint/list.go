package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/millrace/millrace/vfs"
)

// errNotDir reports a path that leads through a file.
var errNotDir error = syscall.ENOTDIR

// Entry is a checkpoint in a directory of a run.
type Entry struct {
	Step     int
	Dir      string
	Manifest *Manifest // nil if there is an error; List leaves out its files and pieces
	Files    int       // their number, without the manifest
	// Err says what is wrong with the checkpoint, as far as the manifest alone tells.
	Err error
}

// List lists the checkpoints in a directory, newest first, with what Open says of each; manifests come without their
// files and the pieces of their extents, of which those of a large model are many. A directory that does not exist has
// none. It changes nothing and needs no lock: a run may be saving and pruning there.
func List(fsys vfs.FS, path string) ([]Entry, error) {
	entries, _, err := list(fsys, path, Query{}, false)
	return entries, err
}

// Query says which checkpoints are looked for.
type Query struct {
	Owner   *Owner // whose they are; nil: any run's
	Below   int    // of steps below this one; 0: of any
	Healthy bool   // those alone that no unhealthy step led to
}

// Latest opens the newest checkpoint that is complete, of any run. It also returns newer ones that are not complete,
// newest first, for a message to the user. C is nil if no checkpoint is complete.
func Latest(fsys vfs.FS, path string) (c *Checkpoint, broken []Entry, err error) {
	return Find(fsys, path, Query{})
}

// Find is Latest of those that are looked for. One that is damaged so that it does not say whose it is is among the
// broken ones.
func Find(fsys vfs.FS, path string, q Query) (c *Checkpoint, broken []Entry, err error) {
	entries, c, err := list(fsys, path, q, true)
	if c != nil {
		entries = entries[:len(entries)-1]
	}
	return c, entries, err
}

// list opens the checkpoints that are looked for, newest first: all, or those up to the first complete one. C is the
// last complete one.
func list(fsys vfs.FS, path string, q Query, first bool) (entries []Entry, c *Checkpoint, err error) {
	steps, err := listSteps(fsys, path)
	if err != nil {
		return nil, nil, err
	}
	steps = slices.DeleteFunc(steps, func(step int) bool { return q.Below > 0 && step >= q.Below })
	var waiting []*DamageError // of checkpoints that are newer than the last complete one
	for _, step := range steps {
		dir := filepath.Join(path, DirName(step))
		m, err := readStep(fsys, path, step)
		if err == nil && (q.Owner != nil && !q.Owner.Has(m.Run) || q.Healthy && m.UnhealthySteps > 0) {
			continue
		}
		if err == nil {
			err = m.checkFiles(fsys, dir)
		}
		if err != nil {
			if _, gone := fsys.Stat(dir); errors.Is(gone, fs.ErrNotExist) {
				continue // meanwhile, as happens below a run that prunes
			}
			if damage := (*DamageError)(nil); errors.As(err, &damage) {
				waiting = append(waiting, damage)
			}
			entries = append(entries, Entry{Step: step, Dir: dir, Err: err})
			continue
		}
		for _, damage := range waiting {
			damage.Previous = dir
		}
		waiting, c = nil, newCheckpoint(fsys, dir, m)
		entries = append(entries, Entry{Step: step, Dir: dir, Manifest: m, Files: len(m.Files)})
		if first {
			break
		}
		m.dropPieces()
	}
	return entries, c, nil
}

// readStep reads the manifest of a checkpoint that has the name of a step in a directory of checkpoints. A link out of
// that directory is no checkpoint of it: the directory may have come from elsewhere, and the link lead to those of
// another run.
func readStep(fsys vfs.FS, path string, step int) (*Manifest, error) {
	dir := filepath.Join(path, DirName(step))
	if err := vfs.CheckBelow(fsys, path, DirName(step)); err != nil {
		return nil, leadsOut(dir, err)
	}
	m, err := manifestIn(fsys, dir)
	if err == nil && m.Step != step {
		return nil, &DamageError{Path: dir, Why: fmt.Sprintf("this is the checkpoint of step %d under another name", m.Step)}
	}
	return m, err
}

// Steps are the steps of which a run has a checkpoint in a directory, newest first, by their manifests alone.
func Steps(fsys vfs.FS, path string, o Owner) ([]int, error) {
	all, err := listSteps(fsys, path)
	return slices.DeleteFunc(all, func(step int) bool {
		m, err := readStep(fsys, path, step)
		return err != nil || !o.Has(m.Run)
	}), err
}

// Runs are the ids of the runs that have complete checkpoints in a directory: first that of the newest one, with those
// that it was copied from, and then others, of runs that have nothing to do with it.
func Runs(fsys vfs.FS, path string) (newest, others []RunID, err error) {
	entries, err := List(fsys, path)
	for _, e := range entries {
		switch {
		case e.Err != nil:
		case newest == nil:
			newest = append([]RunID{e.Manifest.Run}, e.Manifest.CopiedFrom...)
		case !slices.Contains(newest, e.Manifest.Run) && !slices.Contains(others, e.Manifest.Run):
			others = append(others, e.Manifest.Run)
		}
	}
	return newest, others, err
}

// isNote reports whether a name in a directory of checkpoints is that of its lock, or of its owner's note.
func isNote(name string) bool { return name == lockName || name == OwnerName }

// IsUnused reports whether a directory is missing, or has nothing but the lock and the owner's note of one of
// checkpoints.
func IsUnused(fsys vfs.FS, path string) (bool, error) {
	entries, err := fsys.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("checkpoints cannot be listed: %w%s", err, fix(err))
	}
	return !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !isNote(e.Name()) }), nil
}

// IsOf reports whether a directory has nothing but what a run has saved: it is missing or empty, or each of its
// checkpoints that can be read is of the run, and there is one. Other files next to those of the run do no harm.
func IsOf(fsys vfs.FS, path string, o Owner) (bool, error) {
	entries, err := fsys.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("checkpoints cannot be listed: %w%s", err, fix(err))
	}
	has, strange := false, false
	for _, e := range entries {
		step, isStep := stepOf(e.Name())
		if !isStep {
			_, _, isHidden := hiddenStep(e.Name(), o)
			strange = strange || !isHidden && !isNote(e.Name())
			continue
		}
		switch m, err := readStep(fsys, path, step); {
		case err != nil:
			strange = true
		case !o.Has(m.Run):
			return false, nil
		default:
			has = true
		}
	}
	return has || !strange, nil
}

// Aside are the paths of what SetAside has renamed in a directory, newest first.
func Aside(fsys vfs.FS, path string) ([]string, error) {
	entries, err := fsys.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if _, ok := asideStep(e.Name()); ok {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	slices.Reverse(names)
	return names, nil
}

// listSteps lists the steps that have a directory, newest first.
func listSteps(fsys vfs.FS, path string) ([]int, error) {
	entries, err := fsys.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, errNotDir) {
		return nil, fmt.Errorf("%s is a file, not a directory; choose another output_dir", path)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoints cannot be listed: %w%s", err, fix(err))
	}
	var steps []int
	for _, e := range entries {
		if step, ok := stepOf(e.Name()); ok {
			steps = append(steps, step)
		}
	}
	slices.SortFunc(steps, func(a, b int) int { return cmp.Compare(b, a) })
	return steps, nil
}

// previous returns the newest complete checkpoint of an earlier step in the directory of dir, of a run (nil: of any);
// empty if there is no such checkpoint.
func previous(fsys vfs.FS, dir string, of *RunID) string {
	path := filepath.Dir(filepath.Clean(dir))
	this, ok := stepOf(filepath.Base(filepath.Clean(dir)))
	if !ok || this == 0 {
		return "" // a copy under another name: its neighbours may belong to another run
	}
	q := Query{Below: this}
	if of != nil {
		q.Owner = &Owner{Run: *of}
	}
	if c, _, err := Find(fsys, path, q); err == nil && c != nil {
		return c.dir
	}
	return ""
}
