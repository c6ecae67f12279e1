package train

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// What resume_with lists may change; the change is recorded, and a run that is stopped again after it continues to
// the bit.
func TestResumeWith(t *testing.T) {
	const masterBack = "the former master"
	for name, o := range map[string]struct {
		change func(*testing.T, *runfile.Config)
		with   []string
		record string
	}{
		"rate": {func(_ *testing.T, c *runfile.Config) { c.LearningRate = 3e-3 }, []string{"learning_rate"}, "after step 5: learning_rate 0.01 -> 0.003"},
		"floor": {func(_ *testing.T, c *runfile.Config) { c.MinRate = 2e-3 }, []string{"min_learning_rate"},
			"after step 5: min_learning_rate not set -> 0.002"},
		"longer":   {func(_ *testing.T, c *runfile.Config) { c.MaxSteps = 18 }, []string{"max_steps"}, "after step 5: max_steps 12 -> 18"},
		"clipping": {func(_ *testing.T, c *runfile.Config) { c.MaxGradNorm = 0.1 }, []string{"eval", "max_grad_norm"}, "after step 5: max_grad_norm 1 -> 0.1"},
		"no clipping": {func(_ *testing.T, c *runfile.Config) { c.MaxGradNorm = 0 }, []string{"max_grad_norm"},
			"after step 5: max_grad_norm 1 -> 0"},
		"data":   {func(t *testing.T, c *runfile.Config) { c.Datasets = []data.Source{{Path: other(t), Type: data.Text}} }, []string{"datasets"}, "after step 5: datasets "},
		"rows":   {func(_ *testing.T, c *runfile.Config) { c.SequenceLen = 32 }, []string{"sequence_len"}, "after step 5: sequence_len 64 -> 32"},
		"batch":  {func(_ *testing.T, c *runfile.Config) { c.BatchTokens = 512 }, []string{"batch_tokens"}, "after step 5: batch_tokens 256 -> 512"},
		"epochs": {func(t *testing.T, c *runfile.Config) { c.MaxSteps, c.Epochs = 0, 2 }, []string{"epochs"}, "after step 5: max_steps 12 -> "},
		"several": {func(_ *testing.T, c *runfile.Config) {
			c.LRScheduler, c.WeightDecay, c.WarmupSteps = "constant", 0.1, 0
		},
			[]string{"lr_scheduler", "weight_decay", "warmup_steps"}, "after step 5: weight_decay 0.01 -> 0.1"},
		"master": {func(_ *testing.T, c *runfile.Config) { c.Precision.Master = "split24" }, []string{runfile.MasterKey},
			"after step 5: precision.master split -> split24"},
		masterBack: {func(_ *testing.T, c *runfile.Config) { c.Precision.Master = "split" }, []string{runfile.MasterKey},
			"after step 5: precision.master split24 -> split"},
	} {
		t.Run(name, func(t *testing.T) {
			if alike := []string{"floor", "longer", "several"}; testing.Short() && slices.Contains(alike, name) {
				t.Skip("with -short others of its kind run: a rate, an end, a norm")
			}
			c := smallConfig(t)
			c.Save = runfile.Save{Every: 100, AtEnd: true}
			switch name {
			case "master":
				c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "f32"}
			case masterBack:
				c.Precision = runfile.Precision{Compute: "bf16", Master: "split24", Moments: "8bit"}
			}
			until(t, c, "step  5/12")
			changed := *c
			o.change(t, &changed)
			if _, err := Train(context.Background(), &changed, Options{Env: newEnv(t)}); !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "resume_with: [") {
				t.Fatalf("without resume_with: error %v", err)
			}
			changed.ResumeWith = o.with
			changed.Resume = filepath.Join(rundir.CheckpointsDir(c), "step-000005")

			whole := changed
			whole.OutputDir = filepath.Join(t.TempDir(), "whole")
			var said strings.Builder
			env := newEnv(t)
			env.Progress = &said
			want, err := Train(context.Background(), &whole, Options{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			if want.ResumedAfter != 5 || want.Steps <= 8 || !strings.Contains(said.String(), o.record) {
				t.Errorf("%+v; it says: %s", want, said.String())
			}

			parts := changed
			parts.OutputDir = filepath.Join(t.TempDir(), "parts")
			until(t, &parts, fmt.Sprintf("step %*d/%d", digits(want.Steps), 8, want.Steps))
			got, err := Train(context.Background(), &parts, Options{Env: newEnv(t)})
			if err != nil || got.ResumedAfter != 8 {
				t.Fatalf("%+v, error %v", got, err)
			}
			sameModel(t, got.Model, want.Model)

			last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(&parts))
			if err != nil {
				t.Fatal(err)
			}
			var history []string
			for _, change := range last.Manifest.History {
				history = append(history, change.String())
			}
			if !strings.Contains(strings.Join(history, "\n"), o.record) {
				t.Errorf("history %v, want %s in it", history, o.record)
			}
		})
	}
}

// A run that has ended becomes longer with resume_with, in its own directory.
func TestAnEndedRunIsMadeLonger(t *testing.T) {
	c := smallConfig(t)
	c.LRScheduler = "constant"
	whole := *c
	whole.MaxSteps, whole.OutputDir = 20, filepath.Join(t.TempDir(), "whole")
	want, err := Train(context.Background(), &whole, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	longer := *c
	longer.MaxSteps, longer.ResumeWith = 20, []string{"max_steps"}
	got, err := Train(context.Background(), &longer, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != 12 || got.Steps != 20 {
		t.Fatalf("%+v, error %v", got, err)
	}
	sameModel(t, got.Model, want.Model)
	if a, b := losses(t, c.OutputDir), losses(t, whole.OutputDir); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("losses %v, want %v", a, b)
	}
}

// A better loss on other data is no better loss.
func TestBestIsOfTheSameData(t *testing.T) {
	c := withEval(smallConfig(t))
	c.Eval.Every, c.Save = 2, runfile.Save{Best: true, AtEnd: true}
	until(t, c, "step  6/12")
	before, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil || before.Manifest.Best == nil {
		t.Fatalf("%+v, error %v", before, err)
	}
	c.Eval.Datasets = []data.Source{{Path: other(t), Type: data.Text}}
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	after, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil || after.Manifest.Best == nil || after.Manifest.Best.Step <= 6 || after.Manifest.Best.EvalLoss <= before.Manifest.Best.EvalLoss {
		t.Errorf("best %+v, before %+v, error %v", after.Manifest.Best, before.Manifest.Best, err)
	}
}

// Where the checkpoints since a change of the data are damaged, the run continues from one before it: the new data
// begin there.
func TestDamageSinceAChangeOfData(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.Epochs, c.Save = 0, 3, runfile.Save{Every: 2, AtEnd: true}
	until(t, c, "step   5/")
	changed := *c
	changed.Datasets = []data.Source{{Path: other(t), Type: data.Text}}
	changed.ResumeWith = []string{"datasets"}
	env, stop := newEnv(t), make(chan struct{})
	env.Stop, env.Progress = stop, writeFunc(func(line []byte) {
		var step int
		if _, err := fmt.Sscanf(string(line), "step %d/", &step); err == nil && step == 8 {
			close(stop)
		}
	})
	if _, err := Train(context.Background(), &changed, Options{Env: env}); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	for _, step := range []int{5, 6, 8} {
		damage(t, filepath.Join(rundir.CheckpointsDir(c), checkpoint.DirName(step)), "norm.weights")
	}

	// As if the data had been changed after step 4.
	direct := changed
	direct.OutputDir, direct.Resume = filepath.Join(t.TempDir(), "direct"), filepath.Join(rundir.CheckpointsDir(c),
		"step-000004")
	want, err := Train(context.Background(), &direct, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Train(context.Background(), &changed, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != 4 || got.Steps != want.Steps {
		t.Fatalf("%+v, error %v; want the steps of %+v", got, err, want)
	}
	sameModel(t, got.Model, want.Model)
}
