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

// errNotDir is that a path leads through a file.
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

// List lists the checkpoints of a run, newest first, with what Open says of each; manifests come without their files
// and the pieces of their extents, of which those of a large model are many. A directory that does not exist has
// none. It changes nothing and needs no lock: a run may be saving and pruning there.
func List(fsys vfs.FS, path string) ([]Entry, error) {
	entries, _, err := list(fsys, path, -1, false)
	return entries, err
}

// Latest opens the newest checkpoint that is complete. It also returns newer ones that are not complete, newest first,
// for a message to the user. C is nil if no checkpoint is complete.
func Latest(fsys vfs.FS, path string) (c *Checkpoint, broken []Entry, err error) {
	return LatestBelow(fsys, path, -1)
}

// LatestBelow is Latest of those whose step is below a given one; -1: of all.
func LatestBelow(fsys vfs.FS, path string, below int) (c *Checkpoint, broken []Entry, err error) {
	entries, c, err := list(fsys, path, below, true)
	if c != nil {
		entries = entries[:len(entries)-1]
	}
	return c, entries, err
}

// list opens the checkpoints of a run below a step (-1: of any), newest first: all, or those up to the first complete
// one. C is the last complete one.
func list(fsys vfs.FS, path string, below int, first bool) (entries []Entry, c *Checkpoint, err error) {
	steps, err := listSteps(fsys, path)
	if err != nil {
		return nil, nil, err
	}
	steps = slices.DeleteFunc(steps, func(step int) bool { return below >= 0 && step >= below })
	var waiting []*DamageError // of checkpoints that are newer than the last complete one
	for _, step := range steps {
		dir := filepath.Join(path, DirName(step))
		opened, err := openStep(fsys, dir, step)
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
		waiting, c = nil, opened
		entries = append(entries, Entry{Step: step, Dir: dir, Manifest: c.Manifest, Files: len(c.Manifest.Files)})
		if first {
			break
		}
		c.Manifest.dropPieces()
	}
	return entries, c, nil
}

// openStep opens a checkpoint that has the name of a step.
func openStep(fsys vfs.FS, dir string, step int) (*Checkpoint, error) {
	c, err := open(fsys, dir)
	if err == nil && c.Manifest.Step != step {
		return nil, &DamageError{Path: dir, Why: fmt.Sprintf("this is the checkpoint of step %d under another name", c.Manifest.Step)}
	}
	return c, err
}

// Steps are the steps of which a run has a checkpoint, by their names alone, newest first.
func Steps(fsys vfs.FS, path string) ([]int, error) { return listSteps(fsys, path) }

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

// previous returns the newest complete checkpoint of an earlier step in the directory of dir; empty if there is no such
// checkpoint.
func previous(fsys vfs.FS, dir string) string {
	path := filepath.Dir(filepath.Clean(dir))
	this, ok := stepOf(filepath.Base(filepath.Clean(dir)))
	if !ok {
		return "" // a copy under another name: its neighbours may belong to another run
	}
	steps, err := listSteps(fsys, path)
	if err != nil {
		return ""
	}
	for _, step := range steps {
		if step < this {
			dir := filepath.Join(path, DirName(step))
			if _, err := openStep(fsys, dir, step); err == nil {
				return dir
			}
		}
	}
	return ""
}
