package train

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/rundir"
)

// openTrained opens what has weights to run: a model, as [openModel] does, the output directory of a run, or one of its
// checkpoints. Of a run it takes the newer one of the model that the run has written and its latest whole checkpoint,
// and says which. With a checkpoint the run's tokenizer and chat template are the defaults; a model has its own.
func openTrained(ctx context.Context, env *Env, name string) (*source, error) {
	runDir, from, err := env.Runs().WeightsOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if runDir == "" {
		return openModel(ctx, env, name)
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
		env.note("using %s", dir)
		src, err := openModel(ctx, env, dir)
		if err == nil {
			src.run, src.runDir = run, runDir
		}
		return src, err
	}
	env.note("using %s", from.Dir())
	if err := env.Runs().MayFollow(runDir, "model", run.Model); err != nil {
		return nil, err
	}
	src, err := openModel(ctx, env, run.Model)
	if err != nil {
		return nil, fmt.Errorf("%s: the model that its run started from: %w", from.Dir(), err)
	}
	src.from, src.run, src.runDir, src.hands = from, run, runDir, handedOver(from)
	return src, src.readAs(from)
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
		if err := env.Runs().MayFollow(s.runDir, "tokenizer", s.run.Tokenizer); err != nil {
			return nil, err
		}
		c.Tokenizer = s.run.Tokenizer
	}
	if isAuto(c.ChatTemplate) && (s.from != nil || s.run.ChatTemplate == "conversations") {
		if s.hands == nil || s.hands.Templates == nil { // else the checkpoint has it
			if err := env.Runs().MayFollow(s.runDir, "chat_template", s.run.ChatTemplate); err != nil {
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
