package train

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/verbs"
)

// A verb that is told to end while it plans ends with that, and does not say that the plan does not fit.
func TestVerbsPassTheirContextToThePlan(t *testing.T) {
	dir, tokens := writeModel(t, nil), filepath.Join(t.TempDir(), "tokens.json")
	write(t, tokens, `{"input_ids": [[1, 2, 3]], "labels": [[1, 2, 3]]}`)
	little := budget(t, "1kB")
	run := smallConfig(t)
	run.Memory = little
	for verb, call := range map[string]func(context.Context, *session.Env) error{
		"train": func(ctx context.Context, env *session.Env) error {
			_, err := Train(ctx, run, Options{Env: env})
			return err
		},
		"plan": func(ctx context.Context, env *session.Env) error {
			_, err := verbs.PlanFor(ctx, run, verbs.PlanOptions{Env: env})
			return err
		},
		"eval": func(ctx context.Context, env *session.Env) error {
			_, err := verbs.Evaluate(ctx, env, verbs.EvalOptions{Model: dir, Data: []data.Source{{Path: corpus(t),
				Type: data.Text}}, Tokenizer: "bytes", SequenceLen: 32, Memory: little})
			return err
		},
		"generate": func(ctx context.Context, env *session.Env) error {
			_, err := generate.Text(ctx, env, generate.Options{Model: dir, Prompt: "the", Tokenizer: "bytes", MaxTokens: 2,
				Memory: little})
			return err
		},
		"grad": func(ctx context.Context, env *session.Env) error {
			_, err := verbs.Gradients(ctx, env, verbs.GradOptions{Model: dir, Tokens: tokens,
				Out: filepath.Join(t.TempDir(), "out"), Memory: little})
			return err
		},
	} {
		t.Run(verb, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			env := newEnv(t)
			open := env.Open
			env.Open = func(name string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
				cancel() // devices are opened before the plan is made
				return open(name, a)
			}
			if err := call(ctx, env); !errors.Is(err, context.Canceled) && !errors.Is(err, ErrInterrupted) {
				t.Errorf("%v; want %v", err, context.Canceled)
			}
		})
	}
}
