package source

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
)

// OpenTrained opens what has weights to run: a model, as [OpenModel] does, the output directory of a run, or one of its
// checkpoints. Of a run it takes the newer one of the model that the run has written and its latest whole checkpoint,
// and says which. With a checkpoint the run's tokenizer and chat template are the defaults; a model has its own.
func OpenTrained(ctx context.Context, env *session.Env, name string) (*Source, error) {
	runDir, from, err := env.Runs().WeightsOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if runDir == "" {
		return OpenModel(ctx, env, name)
	}
	run, err := env.Runs().ReadResolved(runDir)
	if err != nil {
		return nil, err
	}
	if run == nil && from != nil {
		return nil, fmt.Errorf("%s: its run file, which names the model, is not in %s; use millrace export --checkpoint %s "+
			"--model DIR --out DIR, and name what it writes", from.Dir(), runDir, from.Dir())
	}
	if run != nil {
		for _, path := range []*string{&run.Model, &run.Tokenizer, &run.ChatTemplate} {
			*path = rundir.WhereRunStarted(runDir, run, *path)
		}
	}
	if from == nil {
		dir := filepath.Join(runDir, rundir.LastModel)
		env.Note("using %s", dir)
		src, err := OpenModel(ctx, env, dir)
		if err == nil {
			src.Run, src.runDir = run, runDir
		}
		return src, err
	}
	env.Note("using %s", from.Dir())
	if err := env.Runs().MayFollow(runDir, "model", run.Model); err != nil {
		return nil, err
	}
	src, err := OpenModel(ctx, env, run.Model)
	if err != nil {
		return nil, fmt.Errorf("%s: the model that its run started from: %w", from.Dir(), err)
	}
	src.From, src.Run, src.runDir, src.Hands = from, run, runDir, HandedOver(from)
	return src, src.ReadAs(from)
}

// OpenToExport opens what an export reads: a model, whose weights are in a checkpoint if one is named, else whatever
// [OpenTrained] does.
func OpenToExport(ctx context.Context, env *session.Env, model, checkpoint string) (*Source, error) {
	if checkpoint != "" {
		return OpenModel(ctx, env, model)
	}
	return OpenTrained(ctx, env, model)
}

// Settings are the keys of a run file that say how text becomes tokens: what the user has asked for, and for what is
// auto, with a run's checkpoint, what the run had. The directory of a model that a run has written says that itself;
// only that conversations alone have the template is not in it.
func (s *Source) Settings(env *session.Env, tokenizer, chatTemplate string,
	kwargs data.Kwargs) (*runfile.Config, error) {
	c := &runfile.Config{Tokenizer: tokenizer, ChatTemplate: chatTemplate, ChatTemplateKwargs: kwargs}
	isAuto := func(v string) bool { return v == "" || v == "auto" }
	if s.Run == nil {
		return c, nil
	}
	if s.From != nil && isAuto(c.Tokenizer) {
		if err := env.Runs().MayFollow(s.runDir, "tokenizer", s.Run.Tokenizer); err != nil {
			return nil, err
		}
		c.Tokenizer = s.Run.Tokenizer
	}
	if isAuto(c.ChatTemplate) && (s.From != nil || s.Run.ChatTemplate == "conversations") {
		if s.Hands == nil || s.Hands.Templates == nil { // else the checkpoint has it
			if err := env.Runs().MayFollow(s.runDir, "chat_template", s.Run.ChatTemplate); err != nil {
				return nil, err
			}
		}
		c.ChatTemplate = s.Run.ChatTemplate
		if s.From != nil {
			c.ChatTemplateKwargs = kwargs.Over(s.Run.ChatTemplateKwargs)
		}
	}
	return c, nil
}
