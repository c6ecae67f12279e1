package train

import (
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// allMoves has TestResultsAreOfTheirSteps make each move: minutes, for what usualMoves show in half of one.
var allMoves = flag.Bool("moves", false, "TestResultsAreOfTheirSteps makes all moves of an operator")

var usualMoves = []string{"extended, stopped, shortened to where it is", "extended, and ended before the best model has its name", "without model-best"}

// resultsConfig is a run of some steps with an evaluation after every second one, and a model of the best.
func resultsConfig(t *testing.T, steps int) *runfile.Config {
	c := smallConfig(t)
	c.MaxSteps, c.LRScheduler, c.WarmupSteps = steps, "constant", 0
	c.Eval = runfile.Eval{Datasets: fewOf(c), Every: 2}
	c.Save = runfile.Save{Every: 2, Best: true, AtEnd: true}
	return c
}

// failing is an environment whose first operation on files for which it holds fails, and all that follow.
func failing(t *testing.T, does func(vfs.Op) bool) *session.Env {
	t.Helper()
	env, files, isOver := newEnv(t), vfs.NewFaulty(vfs.OS{}), false
	env.FS = files
	files.Intercept(func(op vfs.Op) vfs.Outcome {
		if isOver = isOver || does(op); isOver {
			return vfs.Outcome{Err: syscall.EIO}
		}
		return vfs.Outcome{}
	})
	return env
}

// Whatever an operator does, and wherever a process ends, after a start with status 0 model/ and model-best/ are those of
// a run of as many steps that was left alone; a second start then writes nothing; and push means the same model.
func TestResultsAreOfTheirSteps(t *testing.T) {
	const steps = 4
	alone := map[int]map[string]map[string]string{}
	for _, n := range []int{steps, steps + 3, steps + 4} {
		c := resultsConfig(t, n)
		if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
			t.Fatal(err)
		}
		alone[n] = map[string]map[string]string{}
		for _, name := range []string{rundir.LastModel, rundir.BestModel} {
			alone[n][name] = modelFiles(t, filepath.Join(c.OutputDir, name))
		}
	}
	// stopped has the run continue to a step beyond its end.
	stopped := func(t *testing.T, c *runfile.Config) {
		c.MaxSteps, c.ResumeWith = 40, []string{"max_steps"}
		until(t, c, "step  7/40")
		c.MaxSteps = 7
	}
	fails := func(t *testing.T, c *runfile.Config, does func(vfs.Op) bool) {
		t.Helper()
		if sum, err := Train(t.Context(), c, Options{Env: failing(t, does)}); err == nil {
			t.Fatalf("%+v, no error", sum)
		}
	}
	// In the directory in which a model is written, and as that gets its name.
	staged := func(name string) func(vfs.Op) bool {
		return func(op vfs.Op) bool { return strings.Contains(op.Name, "/."+name+".tmp-") }
	}
	named := func(name string) func(vfs.Op) bool {
		return func(op vfs.Op) bool {
			return filepath.Base(op.Name) == name && (op.Kind == vfs.OpRename || op.Kind == vfs.OpExchange)
		}
	}
	in := func(c *runfile.Config, name string) string { return filepath.Join(c.OutputDir, name) }
	remove := func(names ...string) func(*testing.T, *runfile.Config) {
		return func(t *testing.T, c *runfile.Config) {
			for _, name := range names {
				if err := os.RemoveAll(in(c, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	extend := func(c *runfile.Config) {
		c.MaxSteps, c.ResumeWith = steps+4, []string{"max_steps"}
	}
	for name, move := range map[string]func(*testing.T, *runfile.Config){
		"nothing": func(*testing.T, *runfile.Config) {},
		"extended, stopped, shortened to where it is": stopped,
		"the same, without run.json": func(t *testing.T, c *runfile.Config) {
			stopped(t, c)
			remove(rundir.IdentityName)(t, c)
		},
		"extended, and no room for the model": func(t *testing.T, c *runfile.Config) {
			extend(c)
			fails(t, c, staged(rundir.LastModel))
		},
		"extended, and ended before the model has its name": func(t *testing.T, c *runfile.Config) {
			extend(c)
			fails(t, c, named(rundir.LastModel))
		},
		"extended, and no room for the best model": func(t *testing.T, c *runfile.Config) {
			extend(c)
			fails(t, c, staged(rundir.BestModel))
		},
		"extended, and ended before the best model has its name": func(t *testing.T, c *runfile.Config) {
			extend(c)
			fails(t, c, named(rundir.BestModel))
		},
		"without model-best":         remove(rundir.BestModel),
		"without model":              remove(rundir.LastModel),
		"without both":               remove(rundir.LastModel, rundir.BestModel),
		"without weights":            remove(rundir.LastModel + "/model.safetensors"),
		"without the best's weights": remove(rundir.BestModel + "/model.safetensors"),
		"with half of the weights": func(t *testing.T, c *runfile.Config) {
			if err := os.Truncate(in(c, rundir.LastModel+"/model.safetensors"), 5000); err != nil {
				t.Fatal(err)
			}
		},
		"models exchanged": func(t *testing.T, c *runfile.Config) {
			extend(c)
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			c.Save.Best = false
			stoppedAt := *c
			stoppedAt.MaxSteps = 40
			until(t, &stoppedAt, "step  9/40")
			remove("checkpoints/step-000009")(t, c)
			c.Save.Best = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !*allMoves && !slices.Contains(usualMoves, name) {
				t.Skip("-moves makes this move, too")
			}
			c := resultsConfig(t, steps)
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			move(t, c)
			sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			if err != nil || sum.Steps != c.MaxSteps || sum.BestModel == "" {
				t.Fatalf("%+v, error %v", sum, err)
			}
			for _, name := range []string{rundir.LastModel, rundir.BestModel} {
				if got := modelFiles(t, in(c, name)); !maps.Equal(got, alone[c.MaxSteps][name]) {
					step, _ := rundir.StepOfCard(in(c, name))
					t.Errorf("%s, of step %d, is not that of a run of %d steps that was left alone", name, step, c.MaxSteps)
				}
			}
			if err := pushes(t, c.OutputDir); err != nil {
				t.Errorf("push: error %v", err)
			}
			before := files(t, c.OutputDir)
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			for name, text := range files(t, c.OutputDir) {
				if before[name] != text {
					t.Errorf("another start has changed %s", name)
				}
			}
		})
	}
}

// The step of a result is not all: a run that has gone back, and has come to the same step on another way, writes it
// again. And save.best that is set after the end gives the best of the checkpoints that there are.
func TestResultsOfAnotherWay(t *testing.T) {
	c := resultsConfig(t, 4)
	c.Save.Best = false
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	first := modelFiles(t, filepath.Join(c.OutputDir, rundir.LastModel))
	if err := os.RemoveAll(filepath.Join(rundir.CheckpointsDir(c), "step-000004")); err != nil {
		t.Fatal(err)
	}
	c.LearningRate, c.ResumeWith = 1e-3, []string{"learning_rate"}
	atEnd := func(op vfs.Op) bool { return strings.Contains(op.Name, "/.model.tmp-") }
	if sum, err := Train(t.Context(), c, Options{Env: failing(t, atEnd)}); err == nil {
		t.Fatalf("%+v, no error", sum)
	}
	_, from, err := newEnv(t).Runs().WeightsOf(t.Context(), c.OutputDir)
	if err != nil || from == nil || from.Manifest.Step != 4 {
		t.Errorf("the latest weights: %v, error %v; want the checkpoint of step 4", from, err)
	}
	c.ResumeWith = nil
	sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err != nil || sum.BestModel != "" {
		t.Fatalf("%+v, error %v", sum, err)
	}
	if second := modelFiles(t, sum.Model); maps.Equal(first, second) {
		t.Error("the model is that of the first way")
	}
	c.Save.Best = true
	if sum, err = Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil || sum.BestModel == "" {
		t.Fatalf("with save.best: %+v, error %v", sum, err)
	}
	if step, _ := rundir.StepOfCard(sum.BestModel); step != 4 {
		t.Errorf("the best model is of step %d", step)
	}
}

// A model that the run has not written is left alone, wherever the run is, and no verb takes it for the run's.
func TestResultsOfOthersStay(t *testing.T) {
	for _, name := range []string{rundir.LastModel, rundir.BestModel} {
		for _, isLonger := range []bool{false, true} {
			c := resultsConfig(t, 2)
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(c.OutputDir, name)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			copyTree(t, c.Model, dir)
			if isLonger {
				c.MaxSteps, c.ResumeWith = 4, []string{"max_steps"}
			}
			before := files(t, c.OutputDir)
			_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			if err == nil || !strings.Contains(err.Error(), "is not the model that the run has written") ||
				!strings.Contains(blame.BadRequest(err).Error(), dir) {
				t.Errorf("%s, longer: %v: error %v", name, isLonger, err)
			}
			if !maps.Equal(files(t, c.OutputDir), before) {
				t.Error("the directory has changed")
			}
			err = pushes(t, c.OutputDir)
			if isRefused := err != nil; isRefused != (name == rundir.LastModel) {
				t.Errorf("push, with another %s: error %v", name, err)
			}
		}
	}
}

// A run that is shortened to an end which it has passed has the model of the step that it has come to, also where its
// place in the data is beyond the epochs that it is to have.
func TestShortenedBeyondItsData(t *testing.T) {
	c := smallConfig(t)
	c.Datasets[0].MaxSamples, c.MaxSteps = 8, 6 // three epochs
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(c.OutputDir, rundir.LastModel)
	before := modelFiles(t, model)
	if err := os.RemoveAll(model); err != nil {
		t.Fatal(err)
	}
	c.MaxSteps, c.Epochs, c.ResumeWith = 0, 1, []string{"max_steps", "epochs"}
	sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err != nil || sum.Steps != 6 || !maps.Equal(modelFiles(t, model), before) {
		t.Errorf("%+v, error %v", sum, err)
	}
}

// A model without its config.json is written again. Where the name of a result has other files, the run does not start:
// it would find that after its last step.
func TestFilesInPlaceOfResults(t *testing.T) {
	c := resultsConfig(t, 2)
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{rundir.LastModel, rundir.BestModel} {
		dir := filepath.Join(c.OutputDir, name)
		before := modelFiles(t, dir)
		if err := os.Remove(filepath.Join(dir, "config.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil || !maps.Equal(modelFiles(t, dir), before) {
			t.Errorf("%s without config.json: error %v", name, err)
		}
		write(t, filepath.Join(dir, "thesis.txt"), "years")
		if sum, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil || sum.TargetTokens > 0 {
			t.Errorf("%s has another file, and there is nothing to do: %+v, error %v", name, sum, err)
		}
		longer := *c
		longer.MaxSteps, longer.ResumeWith = 4, []string{"max_steps"}
		all := files(t, c.OutputDir)
		_, err := Train(t.Context(), &longer, Options{Env: newEnv(t)})
		if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "thesis.txt") {
			t.Errorf("%s has another file: error %v", name, err)
		}
		if !maps.Equal(files(t, c.OutputDir), all) {
			t.Error("the directory has changed")
		}
		if err := os.Remove(filepath.Join(dir, "thesis.txt")); err != nil {
			t.Fatal(err)
		}
	}
}

// A run whose settings have changed with resume_with, and that has not saved its end, has ended all the same.
func TestEndAfterAChange(t *testing.T) {
	c := smallConfig(t)
	c.Save = runfile.Save{Every: 4}
	until(t, c, "step  5/12")
	c.MaxSteps, c.LearningRate, c.ResumeWith = 7, 2e-3, []string{"max_steps", "learning_rate"}
	for i := range 2 {
		sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err != nil || sum.Steps != 7 || (sum.TargetTokens == 0) != (i == 1) {
			t.Fatalf("start %d: %+v, error %v", i, sum, err)
		}
	}
	c.LearningRate = 1e-3
	if sum, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil || sum.ResumedAfter != 5 {
		t.Errorf("with another rate: %+v, error %v", sum, err)
	}
}

// A run that is to have its best model, and was never evaluated, is evaluated after its end.
func TestBestOfARunThatHasEnded(t *testing.T) {
	c := resultsConfig(t, 2)
	eval := c.Eval
	c.Eval, c.Save.Best = runfile.Eval{}, false
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	c.Eval, c.Save.Best = eval, true
	for i := range 2 {
		sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err != nil || sum.TargetTokens > 0 || sum.BestModel == "" || (sum.EvalAfter != nil) != (i == 0) {
			t.Fatalf("start %d: %+v, error %v", i, sum, err)
		}
	}
	sameModel(t, filepath.Join(c.OutputDir, rundir.BestModel), filepath.Join(c.OutputDir, rundir.LastModel))
	if records := metricsOf(t, c.OutputDir); len(records) != 2 || records[1].EvalLoss == nil {
		t.Errorf("%d records", len(records))
	}

	// Without a checkpoint there is nothing to evaluate, and a line says so.
	if err := os.RemoveAll(c.OutputDir); err != nil {
		t.Fatal(err)
	}
	c.Eval, c.Save = runfile.Eval{}, runfile.Save{}
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	c.Eval, c.Save.Best = eval, true
	env, said := newEnv(t), strings.Builder{}
	env.Progress = &said
	if sum, err := Train(t.Context(), c, Options{Env: env}); err != nil || sum.TargetTokens > 0 || sum.BestModel != "" ||
		!strings.Contains(said.String(), "no checkpoint of a best evaluation") {
		t.Errorf("%+v, error %v; it says %s", sum, err, said.String())
	}
}

// pushes is the error of a push of a run's output directory, of which a model alone is pushed.
func pushes(t *testing.T, dir string) error {
	_, err := export.Push(t.Context(), newEnv(t), export.PushOptions{Path: dir, Repo: "a/b", DryRun: true})
	return err
}
