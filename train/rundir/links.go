package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// The user names output_dir, save.fallback and memory.path, so these may be links. Their contents may have come with an
// archive or a clone: a link there belongs to the user, and leads where its author wants the run to read, to write and
// to remove. So there is one rule for a link at checkpoints. It may lead
//
//   - to an empty directory, which has nothing to lose;
//   - to the directory that the run has noted in run.json, by its inode, when it was last started. A record that came
//     with the link is of no run here (see isHere), so it notes nothing;
//   - for those who only read, anywhere inside of the output directory;
//   - anywhere, if the user allows all links (below.FollowVariable). The run saves there if it has saved all that is
//     there, and notes it.

// checkLinks refuses links at the directories of a run's checkpoints and state that lead to what the run has not
// written. The error is a *vfs.NotOwnError.
func (f Files) checkLinks(c *runfile.Config, id *Identity) error {
	if err := f.checkSavesLink(CheckpointsDir(c), id); err != nil {
		return UnderKey("output_dir", err)
	}
	if at := id.FallbackDir(c); at != "" {
		for _, name := range []string{filepath.Dir(at), at} {
			if err := f.checkFallbackLink(name, at, id); err != nil {
				return UnderKey("save.fallback", err)
			}
		}
	}
	return f.CheckStateLinks(id.StateDirs(c))
}

// CheckStateLinks refuses links in place of a run's directories below memory.path.
func (f Files) CheckStateLinks(dirs runfile.Paths) error {
	for _, dir := range dirs {
		if err := f.CheckEmptyLink(dir); err != nil {
			return UnderKey("memory.path", err)
		}
	}
	return nil
}

// checkSavesLink refuses a link at the directory of a run's checkpoints to which the run may not write.
func (f Files) checkSavesLink(dir string, id *Identity) error {
	if !f.isLink(dir) || f.isNoted(dir, id.Saves) {
		return nil
	}
	is, err := checkpoint.IsUnused(f.FS, dir)
	if err == nil && !is && below.AnyLink() {
		is, err = checkpoint.IsOf(f.FS, dir, id.Owner())
	}
	if err != nil || is {
		return err
	}
	return notNoted(dir)
}

// checkFallbackLink refuses a link in save.fallback, a name, if the directory of checkpoints there has anything but what
// the run has saved.
func (f Files) checkFallbackLink(name, dir string, id *Identity) error {
	if !f.isLink(name) {
		return nil
	}
	is, err := checkpoint.IsOf(f.FS, dir, id.Owner())
	if err != nil || is {
		return err
	}
	return &vfs.NotOwnError{Path: name, Why: "is a link to files that this run has not written: remove it, or let it " +
		"lead to an empty directory, or to one with checkpoints of this run alone"}
}

// checkSavesRead refuses a link at the directory of a run's checkpoints that may not be read.
func (f Files) checkSavesRead(dir string, noted *vfs.Inode) error {
	if !f.isLink(dir) || f.isNoted(dir, noted) {
		return nil
	}
	if is, err := checkpoint.IsUnused(f.FS, dir); err != nil || is {
		return err
	}
	if vfs.CheckBelow(f.FS, filepath.Dir(dir), filepath.Base(dir)) == nil {
		return nil
	}
	return notNoted(dir)
}

// isNoted reports whether a directory is the one that a run has noted.
func (f Files) isNoted(dir string, noted *vfs.Inode) bool {
	there := vfs.InodeOf(f.FS, dir)
	return noted != nil && there != nil && there.Is(*noted)
}

// savesNoted returns the link at a run's checkpoints for a run that starts to note; nil without a link.
func (f Files) savesNoted(dir string) *vfs.Inode {
	if !f.isLink(dir) {
		return nil
	}
	return vfs.InodeOf(f.FS, dir)
}

func notNoted(dir string) error {
	return &vfs.NotOwnError{Path: dir, Why: "is a link to a directory that this run has not saved to by this link: remove " +
		"it, or let it lead to an empty directory; or, if you have made it for checkpoints of this run alone that were " +
		"moved, start the run once with " + below.FollowVariable + "=1"}
}

// CheckModelLinks refuses links in place of the models that a run is to write: nothing in a model says which run wrote
// it.
func (f Files) CheckModelLinks(c *runfile.Config) error {
	for _, name := range []string{LastModel, BestModel} {
		if err := f.CheckEmptyLink(filepath.Join(c.OutputDir, name)); err != nil {
			return UnderKey("output_dir", err)
		}
	}
	return nil
}

// CheckEmptyLink refuses a link to a directory that has files.
func (f Files) CheckEmptyLink(name string) error {
	if !f.isLink(name) {
		return nil
	}
	entries, err := f.FS.ReadDir(name)
	if err == nil && len(entries) > 0 {
		return &vfs.NotOwnError{Path: name, Why: "is a link to a directory with files, which a run does not replace: " +
			"remove it, or let it lead to an empty directory"}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

func (f Files) isLink(name string) bool {
	info, err := f.FS.Lstat(name)
	return err == nil && info.Mode()&fs.ModeSymlink != 0 // who opens it says what is wrong with it
}

// UnderKey names the key of the run file that an error is about.
func UnderKey(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", key, err)
}
