package train

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
)

// Another model with the same config.json, as every model that a run writes has, is not the one that a run began from:
// neither in the middle of the run nor at its end. A copy of the same weights is.
func TestOtherWeightsAreRefused(t *testing.T) {
	other := smallConfig(t)
	other.MaxSteps = 3
	trained, err := Train(context.Background(), other, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	c := smallConfig(t)
	c.Model, c.Datasets = other.Model, other.Datasets
	alone := *c
	alone.OutputDir = filepath.Join(t.TempDir(), "alone")
	want, err := Train(context.Background(), &alone, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	until(t, c, "step  4/12")
	copied := filepath.Join(t.TempDir(), "copied")
	copyTree(t, c.Model, copied)
	refused := func(name string, change func(*runfile.Config), say string) {
		t.Helper()
		before := files(t, c.OutputDir)
		run := *c
		change(&run)
		_, err := Train(context.Background(), &run, Options{Env: newEnv(t)})
		if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), say) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line with %q", name, err, say)
		}
		if !maps.Equal(files(t, c.OutputDir), before) {
			t.Errorf("%s: the directory has changed", name)
		}
	}
	began := "began from other weights than those of model " + trained.Model + "; it began from " + c.Model
	anotherModel := func(c *runfile.Config) { c.Model = trained.Model }
	refused("another model", anotherModel, began)
	refused("another init", func(c *runfile.Config) { c.Init = "random" },
		"began with init: pretrained, and init is random now")
	refused("another model, from a path", func(run *runfile.Config) {
		run.OutputDir, run.Resume = filepath.Join(t.TempDir(), "new"), filepath.Join(rundir.CheckpointsDir(c), "step-000004")
		run.Model = trained.Model
	}, began)
	own := *c
	own.Model = trained.Model
	_, err = Open(context.Background(), &own, OpenOptions{Env: newEnv(t), From: filepath.Join(rundir.CheckpointsDir(c),
		"step-000004")})
	if err == nil || !strings.Contains(err.Error(), began) {
		t.Errorf("a loop of its own: error %v", err)
	}
	moved := *c
	moved.Model = copied
	got, err := Train(context.Background(), &moved, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != 4 {
		t.Fatalf("a copy of the model: %+v, error %v", got, err)
	}
	sameModel(t, got.Model, want.Model)
	card, err := os.ReadFile(filepath.Join(got.Model, "README.md"))
	if err != nil || !strings.Contains(string(card), "trained further from `"+filepath.Base(c.Model)+"`") {
		t.Errorf("the card does not name the model that the run began from (%s): %v\n%s", c.Model, err, card)
	}
	refused("another model when the run has ended", anotherModel, began)
	// The model is not needed any more: what is in its place says nothing.
	if err := os.Remove(filepath.Join(copied, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	if got, err := Train(context.Background(), &moved, Options{Env: newEnv(t)}); err != nil || got.Steps != 12 {
		t.Errorf("without its weights: %+v, error %v", got, err)
	}
}
