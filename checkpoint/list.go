package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/millrace/millrace/internal/vfs"
)

// errNotDir is that a path leads through a file.
var errNotDir error = syscall.ENOTDIR

// Entry is a checkpoint in a directory of a run.
type Entry struct {
	Step     int
	Dir      string
	Manifest *Manifest // nil if there is an error
	// Err is what is wrong with it, as far as can be told without reading more than the manifest.
	Err error
}

// List lists the checkpoints of a run, newest first, with what Open says of each. A directory that does not exist has
// none. It changes nothing and needs no lock: a run may be saving and pruning there.
func List(fsys vfs.FS, path string) ([]Entry, error) {
	steps, err := listSteps(fsys, path)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, step := range steps {
		if e, ok := look(fsys, path, step); ok {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// Latest opens the newest checkpoint that is complete. Those newer ones that are not are returned as well, newest first,
// for the user to be told. C is nil if there is none.
func Latest(fsys vfs.FS, path string) (c *Checkpoint, broken []Entry, err error) {
	steps, err := listSteps(fsys, path)
	if err != nil {
		return nil, nil, err
	}
	for _, step := range steps {
		c, err := open(fsys, filepath.Join(path, DirName(step)))
		if err == nil {
			return c, broken, nil
		}
		if e, ok := entryOf(fsys, path, step, nil, err); ok {
			broken = append(broken, e)
		}
	}
	return nil, broken, nil
}

// listSteps lists the steps that have a directory, newest first.
func listSteps(fsys vfs.FS, path string) ([]int, error) {
	entries, err := fsys.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoints cannot be listed: %w%s", err, mend(err))
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

// look opens one of them.
func look(fsys vfs.FS, path string, step int) (Entry, bool) {
	c, err := open(fsys, filepath.Join(path, DirName(step)))
	if err != nil {
		return entryOf(fsys, path, step, nil, err)
	}
	return entryOf(fsys, path, step, c.Manifest, nil)
}

// entryOf makes an entry. It is none if the directory has gone meanwhile, which a run that prunes does.
func entryOf(fsys vfs.FS, path string, step int, m *Manifest, err error) (Entry, bool) {
	dir := filepath.Join(path, DirName(step))
	if err == nil && m.Step != step {
		err = &DamageError{Path: dir, Why: fmt.Sprintf("this is the checkpoint of step %d under another name", m.Step)}
		m = nil
	}
	if err != nil {
		if _, gone := fsys.Stat(dir); errors.Is(gone, fs.ErrNotExist) {
			return Entry{}, false
		}
	}
	return Entry{step, dir, m, err}, true
}

// previous is the newest complete checkpoint beside one and of an earlier step; it is empty if there is none.
func previous(fsys vfs.FS, dir string) string {
	path := filepath.Dir(filepath.Clean(dir))
	this, ok := stepOf(filepath.Base(filepath.Clean(dir)))
	if !ok {
		return "" // a copy under another name: what lies beside it need not belong to it
	}
	steps, err := listSteps(fsys, path)
	if err != nil {
		return ""
	}
	for _, step := range steps {
		if step < this {
			if e, ok := look(fsys, path, step); ok && e.Err == nil {
				return e.Dir
			}
		}
	}
	return ""
}
