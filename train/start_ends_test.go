package train

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/verbs"
)

// endsAt is a context that ends when it is asked for its error for the nth time.
type endsAt struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int64
}

func newEndsAt(t *testing.T, n int64) *endsAt {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	e := &endsAt{Context: ctx, cancel: cancel}
	e.left.Store(n)
	return e
}

func (e *endsAt) Err() error {
	if e.left.Add(-1) == 0 {
		e.cancel()
	}
	return e.Context.Err()
}

// A verb whose context ends in its start is interrupted, at whatever check, and whatever else is wrong: it is never a bad
// request then.
func TestStartsThatEnd(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps = 1
	good := c.Model
	bad := writeConfig(t, nil) // without weights
	verbs := map[string]func(ctx context.Context, model string) error{
		"train": func(ctx context.Context, model string) error {
			run := *c
			run.Model, run.OutputDir = model, filepath.Join(t.TempDir(), "run")
			_, err := Train(ctx, &run, Options{Env: newEnv(t)})
			return err
		},
		"train, random": func(ctx context.Context, _ string) error {
			run := *c
			run.Model, run.Init, run.OutputDir = writeConfig(t, glm), "random", filepath.Join(t.TempDir(), "run")
			_, err := Train(ctx, &run, Options{Env: newEnv(t)})
			return err
		},
		"export": func(ctx context.Context, model string) error {
			_, err := export.HuggingFace(ctx, newEnv(t), export.Options{Model: model, Dir: filepath.Join(t.TempDir(), "out"),
				DType: tensor.F32})
			return err
		},
		"eval": func(ctx context.Context, model string) error {
			_, err := verbs.Evaluate(ctx, newEnv(t), verbs.EvalOptions{Model: model, Data: c.Datasets, SequenceLen: 64,
				Tokenizer: "bytes"})
			return err
		},
		"generate": func(ctx context.Context, model string) error {
			_, err := generate.Text(ctx, newEnv(t), generate.Options{Model: model, Tokenizer: "bytes", Prompt: "x",
				MaxTokens: 1})
			return err
		},
		"plan": func(ctx context.Context, model string) error {
			run := *c
			run.Model = model
			_, err := verbs.PlanFor(ctx, &run, verbs.PlanOptions{Env: newEnv(t)})
			return err
		},
		"gguf": func(ctx context.Context, model string) error {
			_, err := export.GGUF(ctx, newEnv(t), export.GGUFOptions{Model: model, File: filepath.Join(t.TempDir(), "a.gguf")})
			return err
		},
	}
	for name, verb := range verbs {
		if testing.Short() && name != "train, random" && name != "export" {
			continue
		}
		for _, model := range []string{good, bad} {
			for n := int64(1); n < 1<<10; n *= 2 {
				ctx := newEndsAt(t, n)
				err := verb(ctx, model)
				if ctx.Context.Err() == nil {
					break // it does not ask that often
				}
				if errors.Is(err, blame.ErrRequest) {
					t.Errorf("%s of %s, ended at check %d: bad request: %v", name, filepath.Base(model), n, err)
				}
			}
		}
	}
}
