package train

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
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/vfs"
)

// openTrained opens what has weights to run: a model, as [openModel] does, the output directory of a run, or one of its
// checkpoints. Of a run it takes the newer one of the model that the run has written and its latest whole checkpoint,
// and says which. With a checkpoint the run's tokenizer and chat template are the defaults; a model has its own.
func openTrained(ctx context.Context, env *Env, name string) (*source, error) {
	runDir, from, err := env.weightsOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if runDir == "" {
		return openModel(ctx, env, name)
	}
	run, err := env.readResolved(runDir)
	if err != nil {
		return nil, err
	}
	if run == nil && from != nil {
		return nil, fmt.Errorf("%s: its run file, which names the model, is not in %s; use millrace export --checkpoint %s "+
			"--model DIR --out DIR, and name what it writes", from.Dir(), runDir, from.Dir())
	}
	if run != nil {
		for _, path := range []*string{&run.Model, &run.Tokenizer, &run.ChatTemplate} {
			*path = whereRunStarted(runDir, run, *path)
		}
	}
	if from == nil {
		dir := filepath.Join(runDir, lastModel)
		env.note("using %s", dir)
		src, err := openModel(ctx, env, dir)
		if err == nil {
			src.run, src.runDir = run, runDir
		}
		return src, err
	}
	env.note("using %s", from.Dir())
	if err := env.mayFollow(runDir, "model", run.Model); err != nil {
		return nil, err
	}
	src, err := openModel(ctx, env, run.Model)
	if err != nil {
		return nil, fmt.Errorf("%s: the model that its run started from: %w", from.Dir(), err)
	}
	src.from, src.run, src.runDir, src.hands = from, run, runDir, handedOver(from)
	return src, src.readAs(from)
}

// mayFollow refuses a path of this machine that the run file of a run's directory names, outside of the directory, if
// no run has been started there: the directory may have come from elsewhere, and so the path, and what is at it would
// go into what is made of the directory.
func (e *Env) mayFollow(runDir, key, path string) error {
	if _, err := os.Stat(path); err != nil || below.AnyLink() {
		return nil // a hub id, or a word such as auto
	}
	dir, errDir := filepath.EvalSymlinks(runfile.Absolute(runDir))
	there, errThere := filepath.EvalSymlinks(runfile.Absolute(path))
	if rel, err := filepath.Rel(dir, there); errDir == nil && errThere == nil && err == nil && filepath.IsLocal(rel) {
		return nil
	}
	id, err := e.readIdentity(runDir)
	if err != nil {
		return err
	}
	if fresh := e.newIdentity(runDir); id != nil && id.isHere(e, &fresh) {
		return nil
	}
	return fmt.Errorf("%s: its run file has %s: %s, outside of the directory, and no run was started in this directory, "+
		"which may be a copy, or have come from elsewhere: name your own with a flag (millrace export --checkpoint DIR "+
		"--model DIR; --tokenizer, --chat-template), or set %s=1 if you trust the directory", runDir, key, path,
		below.FollowVariable)
}

// openToExport opens what an export reads: a model, whose weights are in a checkpoint if one is named, else whatever
// [openTrained] does.
func openToExport(ctx context.Context, env *Env, model, checkpoint string) (*source, error) {
	if checkpoint != "" {
		return openModel(ctx, env, model)
	}
	return openTrained(ctx, env, model)
}

// settings are the keys of a run file that say how text becomes tokens: what the user has asked for, and for what is
// auto, with a run's checkpoint, what the run had. The directory of a model that a run has written says that itself;
// only that conversations alone have the template is not in it.
func (s *source) settings(env *Env, tokenizer, chatTemplate string, kwargs data.Kwargs) (*runfile.Config, error) {
	c := &runfile.Config{Tokenizer: tokenizer, ChatTemplate: chatTemplate, ChatTemplateKwargs: kwargs}
	isAuto := func(v string) bool { return v == "" || v == "auto" }
	if s.run == nil {
		return c, nil
	}
	if s.from != nil && isAuto(c.Tokenizer) {
		if err := env.mayFollow(s.runDir, "tokenizer", s.run.Tokenizer); err != nil {
			return nil, err
		}
		c.Tokenizer = s.run.Tokenizer
	}
	if isAuto(c.ChatTemplate) && (s.from != nil || s.run.ChatTemplate == "conversations") {
		if s.hands == nil || s.hands.Templates == nil { // else the checkpoint has it
			if err := env.mayFollow(s.runDir, "chat_template", s.run.ChatTemplate); err != nil {
				return nil, err
			}
		}
		c.ChatTemplate = s.run.ChatTemplate
		if s.from != nil {
			c.ChatTemplateKwargs = kwargs.Over(s.run.ChatTemplateKwargs)
		}
	}
	return c, nil
}

// weightsOf tells a run's directory, and a checkpoint, from other names; for those runDir is empty. A nil checkpoint
// stands for the model that the run has written.
func (e *Env) weightsOf(ctx context.Context, name string) (runDir string, from *checkpoint.Checkpoint, err error) {
	if name == "" {
		return "", nil, nil
	}
	dir := runfile.Absolute(name)
	if exists(filepath.Join(dir, checkpoint.ManifestName)) || filepath.Base(filepath.Dir(dir)) == checkpointsName &&
		exists(dir) {
		from, err := checkpoint.Open(e.files(), name)
		return filepath.Dir(filepath.Dir(dir)), from, blame.BadName(err)
	}
	if exists(filepath.Join(dir, "config.json")) {
		return "", nil, nil
	}
	dir = filepath.Clean(name) // as the user knows it
	if full := runfile.Absolute(name); filepath.Base(full) == checkpointsName {
		dir = filepath.Dir(full)
	}
	written, errModel := vfs.StatBelow(vfs.OS{}, dir, filepath.Join(lastModel, "config.json"))
	saved, errSaves := os.Stat(filepath.Join(dir, checkpointsName)) // ownerOf judges a link
	for _, err := range []error{errModel, errSaves} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return "", nil, blame.BadName(err) // whether there is a model or a checkpoint is not known
		}
	}
	if errModel != nil && (errSaves != nil || !saved.IsDir()) {
		return "", nil, nil
	}
	id, err := e.identityOf(dir, nil)
	if err != nil {
		return "", nil, err
	}
	own := id.owner()
	dirs, err := e.CheckpointDirs(dir)
	if err != nil {
		return "", nil, err
	}
	var broken []checkpoint.Entry
	for _, at := range dirs {
		latest, not, err := checkpoint.Find(e.files(), at, checkpoint.Query{Owner: &own})
		if err != nil {
			return "", nil, err
		}
		for _, entry := range not {
			e.note("%v", entry.Err)
		}
		broken = append(broken, not...)
		if latest != nil && (from == nil || latest.Manifest.Step > from.Manifest.Step) {
			from = latest
		}
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
	isOlder, err := e.isOlder(ctx, &id, from, dir, written)
	if err != nil || isOlder {
		return dir, nil, err
	}
	return dir, from, nil
}

// isOlder reports whether the latest checkpoint of a run, nil for none, is no newer than the model that the run has
// written, as run.json has noted or, of an older version, the model's card; where neither has its step, by the times of
// their files. written is the model's configuration. A model that the run has not written is an error.
func (e *Env) isOlder(ctx context.Context, id *identity, from *checkpoint.Checkpoint, runDir string,
	written fs.FileInfo) (bool, error) {
	is, err := id.placedAt(ctx, runDir, lastModel)
	switch {
	case err != nil:
		return false, err
	case is.holding == otherModel && id.hasResult(lastModel):
		dir := filepath.Join(runDir, lastModel)
		return false, fmt.Errorf("%s is not the model that the run in %s has written; name %s itself if you mean that, or move "+
			"it to another directory", dir, runDir, dir)
	case from == nil:
		return true, nil
	case is.holding == ownModel:
		return from.Manifest.Step <= is.step, nil
	case is.holding != otherModel:
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
func (e *Env) CheckpointDirs(runDir string) ([]string, error) {
	dirs := []string{filepath.Join(runDir, checkpointsName)}
	run, err := e.readResolved(runDir)
	if err != nil {
		return dirs, err
	}
	var where *runfile.Config
	if run != nil {
		c := *run
		c.Save.Fallback = whereRunStarted(runDir, run, run.Save.Fallback)
		where = &c
	}
	id, err := e.identityOf(runDir, where)
	if not := (*vfs.NotOwnError)(nil); errors.As(err, &not) || blame.IsOfMachine(err) {
		return dirs, err
	}
	if err != nil || !id.Begun || where == nil {
		return dirs, nil // the run has nothing elsewhere, or it is not known which one this is
	}
	if dir := id.fallbackDir(where); dir != "" {
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// whereRunStarted is a path of a run file, as it reads in the working directory that the run had. That is known where
// the run's directory ends as output_dir says.
func whereRunStarted(runDir string, c *runfile.Config, path string) string {
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

// fillFrom brings the weights of the source's checkpoint into the store, a part at a time.
func (s *Session) fillFrom(ctx context.Context, src *source) error {
	if len(src.model.ConstantTensors()) > 0 {
		if err := src.findAs(ctx, src.from, func() error {
			_, err := src.findCarried(ctx)
			return err
		}); err != nil {
			return err
		}
		if err := s.readConstants(src); err != nil {
			return err
		}
	}
	weights := src.from.Weights(src.model)
	b := s.env.bar("loading " + filepath.Base(src.from.Dir()))
	defer b.End()
	return stream.Fill(ctx, s.plan, s.Store, func(p *model.Part, to model.Values) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		// The checkpoint's part has other pieces, and all of it may be more than the plan leaves for the Go heap.
		layout := src.model.Parts[p.Index].Layout
		first, n := to.Span(layout, p.Layout)
		read, err := weights.Range(p.Index, first, n, true)
		if err != nil {
			return err
		}
		b.Set(int64(p.Index+1), int64(len(s.plan.Model.Parts)))
		if err := read.CopyTo(layout, to, p.Layout); err != nil {
			return fmt.Errorf("%s: %s: %w", src.from.Dir(), p.Name, err)
		}
		return nil
	})
}
