package train

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// The user names output_dir, save.fallback and memory.path, so these may be links. Their contents may have come with an
// archive or a clone: a link there belongs to the user, and leads where its author wants the run to write and to
// remove. So the run follows a link only to a directory that has nothing to lose, or that has the run's own
// checkpoints: others do not know a run's id.

// checkLinks refuses links at the directories of a run's checkpoints and state that lead to what the run has not
// written. The error is a *vfs.NotOwnError.
func (e *Env) checkLinks(c *runfile.Config, id *identity) error {
	if err := e.checkSavesLink(checkpointsDir(c), id); err != nil {
		return underKey("output_dir", err)
	}
	if at := id.fallbackDir(c); at != "" {
		if err := e.checkSavesLink(at, id, filepath.Dir(at)); err != nil {
			return underKey("save.fallback", err)
		}
	}
	return underKey("memory.path", e.checkEmptyLink(id.stateDir(c)))
}

// checkSavesLink refuses a directory of checkpoints if it, or one of those above it that are given, is a link, and the
// directory has anything but what the run has saved.
func (e *Env) checkSavesLink(dir string, id *identity, above ...string) error {
	for _, name := range append(above, dir) {
		if !e.isLink(name) {
			continue
		}
		is, err := checkpoint.IsOf(e.files(), dir, id.owner())
		if err != nil || is {
			return err
		}
		return &vfs.NotOwnError{Path: name, Why: "is a link to files that this run has not written: remove it, or let it " +
			"lead to an empty directory, or to one with checkpoints of this run alone"}
	}
	return nil
}

// checkModelLinks refuses links in place of the models that a run is to write: nothing in a model says which run wrote
// it.
func (e *Env) checkModelLinks(c *runfile.Config) error {
	for _, name := range []string{lastModel, bestModel} {
		if err := e.checkEmptyLink(filepath.Join(c.OutputDir, name)); err != nil {
			return underKey("output_dir", err)
		}
	}
	return nil
}

// checkEmptyLink refuses a link to a directory that has files.
func (e *Env) checkEmptyLink(name string) error {
	if !e.isLink(name) {
		return nil
	}
	entries, err := e.files().ReadDir(name)
	if err == nil && len(entries) > 0 {
		return &vfs.NotOwnError{Path: name, Why: "is a link to a directory with files, which a run does not replace: " +
			"remove it, or let it lead to an empty directory"}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

func (e *Env) isLink(name string) bool {
	info, err := e.files().Lstat(name)
	return err == nil && info.Mode()&fs.ModeSymlink != 0 // who opens it says what is wrong with it
}

// underKey names the key of the run file that an error is about.
func underKey(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", key, err)
}
