package train

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/verbs"
)

// trainedLoss is the loss of what a name has, on the data of a run.
func trainedLoss(t *testing.T, env *session.Env, name, compute string, sources []data.Source) float64 {
	t.Helper()
	l, err := verbs.Evaluate(t.Context(), env, verbs.EvalOptions{Model: name, Data: sources, Compute: compute,
		SequenceLen: 64,
		Tokenizer:   "bytes"})
	if err != nil {
		t.Fatal(err)
	}
	return l.Loss
}

// A checkpoint has the loss of its export, to the bit, in either type: of runs with split and with fp32 master weights,
// and in pieces.
func TestTrainedCheckpoints(t *testing.T) {
	for name, change := range map[string]func(*runfile.Config){
		"f32":  func(*runfile.Config) {},
		"bf16": func(c *runfile.Config) { c.Precision = runfile.Defaults().Precision },
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			change(c)
			c.MaxSteps, c.Save.Every, c.Save.Keep = 4, 2, 0
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			losses, few := map[float64]bool{}, fewOf(c)
			for _, step := range []string{"step-000002", "step-000004"} {
				from, out := filepath.Join(c.OutputDir, "checkpoints", step), filepath.Join(t.TempDir(), "model")
				if _, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Checkpoint: from, Model: c.Model, Dir: out,
					DType: tensor.F32}); err != nil {
					t.Fatal(err)
				}
				for _, compute := range []string{"f32", "bf16"} {
					want, got := trainedLoss(t, newEnv(t), out, compute, few), trainedLoss(t, newEnv(t), from, compute, few)
					if got != want {
						t.Errorf("%s in %s: loss %v, of the export %v", step, compute, got, want)
					}
					losses[got] = true
				}
			}
			if len(losses) != 4 {
				t.Errorf("losses %v: two steps in two types should differ", losses)
			}
		})
	}
}

// Of a run the newer one of model and checkpoint is taken. A checkpoint has the run's tokenizer, and a model its own.
// The names may be relative to another working directory than that of the run.
func TestTrainedRuns(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.Save.Every = 2, 1
	base := t.TempDir()
	t.Chdir(base)
	if err := os.Rename(c.Model, "start"); err != nil {
		t.Fatal(err)
	}
	c.Model, c.OutputDir = "start", filepath.Join("runs", "a")
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	run := filepath.Join(base, "runs", "a")
	last := filepath.Join(run, "checkpoints", "step-000002")
	opened := func(name string) (*source.Source, string) {
		t.Helper()
		var said strings.Builder
		env := newEnv(t)
		env.Progress = &said
		src, err := source.OpenTrained(t.Context(), env, name)
		if err != nil {
			t.Fatal(err)
		}
		return src, said.String()
	}
	src, said := opened(run)
	if src.From != nil || src.Dir != filepath.Join(run, "model") || !strings.Contains(said, src.Dir) ||
		tokenizerOf(t, src, "auto") != "auto" {
		t.Errorf("%s, %s: a run that has ended", src.Dir, said)
	}
	if src, _ := opened(src.Dir); src.Run != nil || src.From != nil || tokenizerOf(t, src, "x") != "x" {
		t.Error("a model directory is one of a run")
	}
	// The steps decide, and the times of files only where neither run.json nor the model's card has one.
	later := time.Unix(1<<32, 0) // in 2106
	if err := os.Chtimes(filepath.Join(last, "manifest.json"), later, later); err != nil {
		t.Fatal(err)
	}
	if src, _ := opened(run); src.From != nil {
		t.Error("a checkpoint of the model's step is taken for a newer one, by its time")
	}
	if err := os.Remove(filepath.Join(run, "model", "README.md")); err != nil {
		t.Fatal(err)
	}
	if src, _ := opened(run); src.From != nil {
		t.Error("without a card a checkpoint of the model's step is taken for a newer one")
	}
	if err := os.Remove(filepath.Join(run, rundir.IdentityName)); err != nil {
		t.Fatal(err)
	}
	if _, err := source.OpenTrained(t.Context(), newEnv(t), run); err == nil ||
		!strings.Contains(err.Error(), below.FollowVariable) {
		t.Errorf("a model outside of a directory in which no run was started: error %v", err)
	}
	below.Allow(below.Links{Anywhere: true})
	defer below.Allow(below.Links{})
	for _, name := range []string{run, filepath.Join(run, "checkpoints"), last} {
		src, said := opened(name)
		if src.From == nil || src.From.Dir() != last || src.Dir != filepath.Join(base, "start") ||
			!strings.Contains(said, last) || tokenizerOf(t, src, "auto") != "bytes" {
			t.Errorf("%s: %s, %s", name, src.Dir, said)
		}
	}
	if err := os.RemoveAll(filepath.Join(run, "model")); err != nil {
		t.Fatal(err)
	}
	if src, _ := opened(run); src.From == nil {
		t.Error("a run without a model has its checkpoint")
	}

	// What cannot be opened.
	write(t, filepath.Join(last, "manifest.json"), "{")
	if src, said := opened(run); src.From.Manifest.Step != 1 || !strings.Contains(said, "step-000002") {
		t.Errorf("a damaged checkpoint: %d, %s", src.From.Manifest.Step, said)
	}
	refused := func(name, want string) {
		t.Helper()
		_, err := generate.Text(t.Context(), newEnv(t), generate.Options{Model: name, Prompt: "x", MaxTokens: 1})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	refused(last, "step-000002")
	first := filepath.Join(run, "checkpoints", "step-000001")
	if err := os.Remove(filepath.Join(run, "run.yaml")); err != nil {
		t.Fatal(err)
	}
	refused(first, "millrace export --checkpoint "+first)
	empty := t.TempDir()
	refused(empty, "config.json is missing")
	if err := os.Mkdir(filepath.Join(empty, "checkpoints"), 0o755); err != nil {
		t.Fatal(err)
	}
	refused(empty, "neither a model nor a whole checkpoint")
	refused(filepath.Join(empty, "no"), "no such path")
}

// A checkpoint is refused where its run's model has become another.
func TestTrainedOfAnotherModel(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.Save.Every = 1, 1
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	other := writeConfig(t, map[string]any{"rope_theta": 500.0})
	if err := os.Rename(filepath.Join(other, "config.json"), filepath.Join(c.Model, "config.json")); err != nil {
		t.Fatal(err)
	}
	_, err := source.OpenTrained(t.Context(), newEnv(t), filepath.Join(c.OutputDir, "checkpoints", "step-000001"))
	if err == nil || !strings.Contains(err.Error(), "is not of model") {
		t.Error(err)
	}
}

// TestTrainedOfAFallback: of a run that has saved in its fallback directory the newest checkpoint is there, and it is
// newer than a model of an earlier step, whatever the times of files.
func TestTrainedOfAFallback(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.Save.Every, c.Save.Keep = 4, 1, 0
	c.Save.Fallback = t.TempDir()
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t), OnStep: func(m trace.Metrics) error {
		if m.Step == 2 {
			return ErrStop // with a model of this step
		}
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(c.OutputDir, rundir.LastModel, "config.json")
	if step, ok := rundir.StepOfCard(filepath.Dir(model)); step != 2 || !ok {
		t.Fatalf("the model is of step %d, %v", step, ok)
	}
	c.Resume = "auto"
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	// As if the disk had been full from step 3 on, and the run killed.
	old := readAll(t, filepath.Join(filepath.Dir(model), hf.CardName))
	write(t, filepath.Join(filepath.Dir(model), hf.CardName), strings.Replace(string(old), rundir.StepKey+"4",
		rundir.StepKey+"2", 1))
	later := time.Unix(1<<32, 0)
	if err := os.Chtimes(model, later, later); err != nil {
		t.Fatal(err)
	}
	resolved, err := newEnv(t).Runs().ReadResolved(c.OutputDir)
	if err != nil {
		t.Fatal(err)
	}
	there := idOf(t, resolved).FallbackDir(resolved)
	if err := os.MkdirAll(there, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"step-000003", "step-000004"} {
		if err := os.Rename(filepath.Join(rundir.CheckpointsDir(c), name), filepath.Join(there, name)); err != nil {
			t.Fatal(err)
		}
	}
	src, err := source.OpenTrained(t.Context(), newEnv(t), c.OutputDir)
	if err != nil || src.From == nil || src.From.Dir() != filepath.Join(there, "step-000004") {
		t.Fatalf("%+v, %v", src, err)
	}
}

// tokenizerOf is the tokenizer of a source for a key of a run file.
func tokenizerOf(t *testing.T, src *source.Source, key string) string {
	t.Helper()
	c, err := src.Settings(newEnv(t), key, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Tokenizer
}
