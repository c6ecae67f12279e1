package rundir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// WeightsOf tells a run's directory, and a checkpoint, from other names; for those runDir is empty. A nil checkpoint
// stands for the model that the run has written.
func (f Files) WeightsOf(ctx context.Context, name string) (runDir string, from *checkpoint.Checkpoint, err error) {
	if name == "" {
		return "", nil, nil
	}
	dir := runfile.Absolute(name)
	if vfs.Exists(filepath.Join(dir, checkpoint.ManifestName)) || filepath.Base(filepath.Dir(dir)) == CheckpointsName &&
		vfs.Exists(dir) {
		from, err := checkpoint.Open(f.FS, name)
		return filepath.Dir(filepath.Dir(dir)), from, blame.BadName(err)
	}
	if vfs.Exists(filepath.Join(dir, "config.json")) {
		return "", nil, nil
	}
	dir = filepath.Clean(name) // as the user knows it
	if full := runfile.Absolute(name); filepath.Base(full) == CheckpointsName {
		dir = filepath.Dir(full)
	}
	written, errModel := vfs.StatBelow(vfs.OS{}, dir, filepath.Join(LastModel, "config.json"))
	saved, errSaves := os.Stat(filepath.Join(dir, CheckpointsName)) // ownerOf judges a link
	for _, err := range []error{errModel, errSaves} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return "", nil, blame.BadName(err) // whether there is a model or a checkpoint is not known
		}
	}
	if errModel != nil && (errSaves != nil || !saved.IsDir()) {
		return "", nil, nil
	}
	id, err := f.IdentityOf(dir, nil)
	if err != nil {
		return "", nil, err
	}
	own := id.Owner()
	dirs, err := f.CheckpointDirs(dir)
	if err != nil {
		return "", nil, err
	}
	from, broken, err := f.newestOf(dirs, checkpoint.Query{Owner: &own})
	if err != nil {
		return "", nil, err
	}
	for _, entry := range broken {
		f.Note("%v", entry.Err)
	}
	if errModel != nil {
		switch {
		case from == nil && len(broken) > 0:
			err = blame.BadName(fmt.Errorf("%s has no model, and no whole checkpoint; of the newest: %w", name, broken[0].Err))
		case from == nil:
			err = fmt.Errorf("%s has neither a model nor a whole checkpoint yet; name a model, or wait until the run has saved",
				name)
		}
		return dir, from, err
	}
	isOlder, err := f.isOlder(ctx, &id, from, dir, written)
	if err != nil || isOlder {
		return dir, nil, err
	}
	return dir, from, nil
}

// isOlder reports whether the latest checkpoint of a run, nil for none, is no newer than the model that the run has
// written, as run.json has noted or, of an older version, the model's card; where neither has its step, by the times of
// their files. written is the model's configuration. A model that the run has not written is an error.
func (f Files) isOlder(ctx context.Context, id *Identity, from *checkpoint.Checkpoint, runDir string,
	written fs.FileInfo) (bool, error) {
	is, err := id.PlacedAt(ctx, runDir, LastModel)
	switch {
	case err != nil:
		return false, err
	case is.Holding == OtherModel && id.HasResult(LastModel):
		dir := filepath.Join(runDir, LastModel)
		return false, fmt.Errorf("%s is not the model that the run in %s has written; name %s itself if you mean that, or "+
			"move "+
			"it to another directory", dir, runDir, dir)
	case from == nil:
		return true, nil
	case is.Holding == OwnModel:
		return from.Manifest.Step <= is.Step, nil
	case is.Holding != OtherModel:
		return false, nil
	}
	manifest, err := os.Stat(filepath.Join(from.Dir(), checkpoint.ManifestName))
	if err != nil {
		return false, blame.BadName(err)
	}
	return !manifest.ModTime().After(written.ModTime()), nil
}

// CheckpointDirs lists where the run of an output directory has its checkpoints: there and, if its run file has
// save.fallback, in that. A directory may not be there.
func (f Files) CheckpointDirs(runDir string) ([]string, error) {
	dirs := []string{filepath.Join(runDir, CheckpointsName)}
	run, err := f.ReadResolved(runDir)
	if err != nil {
		return dirs, err
	}
	var where *runfile.Config
	if run != nil {
		c := *run
		c.Save.Fallback = WhereRunStarted(runDir, run, run.Save.Fallback)
		where = &c
	}
	id, err := f.IdentityOf(runDir, where)
	if not := (*vfs.NotOwnError)(nil); errors.As(err, &not) || blame.IsOfMachine(err) {
		return dirs, err
	}
	if err != nil || !id.Begun || where == nil {
		return dirs, nil // the run has nothing elsewhere, or it is not known which one this is
	}
	if dir := id.FallbackDir(where); dir != "" {
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// WhereRunStarted is a path of a run file, as it reads in the working directory that the run had. That is known where
// the run's directory ends as output_dir says.
func WhereRunStarted(runDir string, c *runfile.Config, path string) string {
	base, ok := strings.CutSuffix(runfile.Absolute(runDir), string(filepath.Separator)+filepath.Clean(c.OutputDir))
	if !ok || path == "" || filepath.IsAbs(path) {
		return path
	}
	there := filepath.Join(base, path)
	if _, err := os.Stat(there); errors.Is(err, fs.ErrNotExist) {
		return path // a hub id, or a word such as auto
	}
	return there
}

// MayFollow refuses a path of this machine that the run file of a run's directory names, outside of the directory, if
// no run has been started there: the directory may have come from elsewhere, and so the path, and what is at it would
// go into what is made of the directory.
func (f Files) MayFollow(runDir, key, path string) error {
	if _, err := os.Stat(path); err != nil || below.AnyLink() {
		return nil // a hub id, or a word such as auto
	}
	dir, errDir := filepath.EvalSymlinks(runfile.Absolute(runDir))
	there, errThere := filepath.EvalSymlinks(runfile.Absolute(path))
	if rel, err := filepath.Rel(dir, there); errDir == nil && errThere == nil && err == nil && filepath.IsLocal(rel) {
		return nil
	}
	id, err := f.ReadIdentity(runDir)
	if err != nil {
		return err
	}
	if fresh := f.NewIdentity(runDir); id != nil && id.isHere(f, &fresh) {
		return nil
	}
	return fmt.Errorf("%s: its run file has %s: %s, outside of the directory, and no run was started in this directory, "+
		"which may be a copy, or have come from elsewhere: name your own with a flag (millrace export --checkpoint DIR "+
		"--model DIR; --tokenizer, --chat-template), or set %s=1 if you trust the directory", runDir, key, path,
		below.FollowVariable)
}
