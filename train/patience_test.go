package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
)

// overfitting is a run of 40 steps whose evaluation loss falls, and then rises: it is evaluated on another text than it
// trains on.
func overfitting(t *testing.T) *runfile.Config {
	t.Helper()
	c := smallConfig(t)
	held := filepath.Join(t.TempDir(), "held.jsonl")
	write(t, held, strings.Repeat(`{"text": "a brook drives it slowly; no wheel."}`+"\n", 20))
	c.Eval = runfile.Eval{Datasets: []data.Source{{Path: held, Type: data.Text}}, Every: 2}
	c.Save, c.Stop.Patience = runfile.Save{Every: 3, AtEnd: true, Best: true}, 3
	c.BatchTokens, c.MaxSteps, c.Numerics = c.SequenceLen, 40, runfile.Sizes{MicroBatch: 1, HeadChunk: 32}
	return c
}

// endOf is the step after which a run with this patience ends, by its records.
func endOf(records []trace.Metrics, patience int) int {
	lowest, since := math.Inf(1), 0
	for _, m := range records {
		if m.EvalLoss == nil {
			continue
		}
		if since++; *m.EvalLoss < lowest {
			lowest, since = *m.EvalLoss, 0
		}
		if since == patience {
			return int(m.Step)
		}
	}
	return len(records)
}

// A run with stop.patience ends well after n evaluations without a lower loss, with its last and its best model.
// Killed and stopped anywhere it ends after the same step, with the same bits. Started again it does nothing, and with
// more patience it continues as if it had never ended.
func TestPatience(t *testing.T) {
	patient := overfitting(t)
	patient.Stop.Patience = 0
	all, err := Train(context.Background(), patient, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	records3 := metricsOf(t, patient.OutputDir)
	end, later := endOf(records3, 3), endOf(records3, 5)
	if all.Steps != 40 || all.EvalsNotLower != 0 || end < 8 || later <= end || later >= 40 {
		t.Fatalf("%d steps; patience would end it after %d and %d, which tests nothing: %s", all.Steps, end, later,
			recordsOf(t, patient.OutputDir))
	}

	whole := *patient
	whole.OutputDir, whole.Stop.Patience = filepath.Join(t.TempDir(), "whole"), 3
	env := newEnv(t)
	var said strings.Builder
	env.Progress = &said
	want, err := Train(context.Background(), &whole, Options{Env: env})
	if err != nil || want.Steps != end || want.EvalsNotLower != 3 || want.BestModel == "" {
		t.Fatalf("%+v, error %v, want an end after step %d", want, err, end)
	}
	if line := fmt.Sprintf("stopping after step %d of 40: the eval loss was not lower than", end); !strings.Contains(said.String(), line) {
		t.Errorf("no %q in %s", line, said.String())
	}
	if line := "The run was of 40 steps at most, and ended here: "; !strings.Contains(files(t, want.Model)[hf.CardName], line) ||
		strings.Contains(files(t, want.BestModel)[hf.CardName], line) || strings.Contains(files(t, all.Model)[hf.CardName], line) {
		t.Errorf("%q should be in the card of the last model of the run that ended early, and in no other", line)
	}

	before := files(t, whole.OutputDir)
	env, said = newEnv(t), strings.Builder{}
	env.Progress = &said
	again, err := Train(context.Background(), &whole, Options{Env: env})
	if err != nil || again.Steps != end || again.ResumedAfter != end || !strings.Contains(said.String(), "this run has ended after step") {
		t.Errorf("again: %+v, error %v, it says %s", again, err, said.String())
	}
	if !maps.Equal(files(t, whole.OutputDir), before) {
		t.Error("again: the directory has changed")
	}

	stride := 1
	if testing.Short() {
		stride = 4
	}
	for step := 1; step <= end; step += stride {
		for i, how := range []string{"killed", "stopped"} {
			if testing.Short() && i != step/stride%2 {
				continue // they take turns
			}
			c := whole
			c.OutputDir = filepath.Join(t.TempDir(), "parts")
			env, stop := newEnv(t), make(chan struct{})
			env.Stop = stop
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Train(ctx, &c, Options{Env: env, OnStep: func(m trace.Metrics) error {
				switch {
				case int(m.Step) != step:
				case how == "killed":
					cancel() // what is not saved is lost
				default:
					close(stop)
				}
				return nil
			}})
			cancel()
			if err == nil {
				t.Fatalf("%s after step %d: it came to its end", how, step)
			}
			got, err := Train(t.Context(), &c, Options{Env: newEnv(t)})
			if err != nil || got.Steps != end {
				t.Fatalf("%s after step %d: %+v, error %v", how, step, got, err)
			}
			sameModel(t, got.Model, want.Model)
			sameModel(t, got.BestModel, want.BestModel)
			if a, b := files(t, got.Model)[hf.CardName], files(t, want.Model)[hf.CardName]; strings.ReplaceAll(a, "parts", "whole") != b {
				t.Errorf("%s after step %d: the card is\n%s\nwant\n%s", how, step, a, b)
			}
		}
	}

	more := whole
	more.Stop.Patience = 5
	got, err := Train(context.Background(), &more, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != end || got.Steps != later {
		t.Errorf("with more patience: %+v, error %v, want an end after step %d", got, err, later)
	}
	more.Stop.Patience = 0
	got, err = Train(context.Background(), &more, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != later || got.Steps != 40 {
		t.Fatalf("without stop.patience: %+v, error %v", got, err)
	}
	sameModel(t, got.Model, all.Model)
	if a, b := recordsOf(t, more.OutputDir), recordsOf(t, patient.OutputDir); a != b {
		t.Errorf("records\n%s, want\n%s", a, b)
	}
}

// A run that ended early and saved nothing stays ended, by run.json. One whose model could not be written has its last
// state, and writes the model when it is started again. With less patience than it had it ends at once.
func TestPatienceAtTheEnd(t *testing.T) {
	c := overfitting(t)
	c.Save = runfile.Save{}
	want, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil || want.EvalsNotLower != 3 {
		t.Fatalf("%+v, error %v", want, err)
	}
	before := files(t, c.OutputDir)
	again, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil || again.Steps != want.Steps || !maps.Equal(files(t, c.OutputDir), before) {
		t.Errorf("without a checkpoint: %+v, error %v", again, err)
	}

	saved := *c
	saved.Save, saved.OutputDir = runfile.Save{AtEnd: true}, filepath.Join(t.TempDir(), "saved")
	first, err := Train(context.Background(), &saved, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(t.TempDir(), "kept")
	if err := os.Rename(first.Model, kept); err != nil {
		t.Fatal(err)
	}
	again, err = Train(context.Background(), &saved, Options{Env: newEnv(t)})
	if err != nil || again.ResumedAfter != want.Steps || again.Steps != want.Steps {
		t.Fatalf("without the model: %+v, error %v", again, err)
	}
	sameModel(t, again.Model, kept)

	hasty := *c
	hasty.Stop.Patience, hasty.Save, hasty.OutputDir = 0, runfile.Save{Every: want.Steps}, filepath.Join(t.TempDir(), "hasty")
	until(t, &hasty, fmt.Sprintf("step %2d/40", want.Steps))
	hasty.Stop.Patience = 2
	again, err = Train(context.Background(), &hasty, Options{Env: newEnv(t)})
	if err != nil || again.Steps != want.Steps || again.EvalsNotLower != 3 {
		t.Errorf("with less patience: %+v, error %v", again, err)
	}
	sameModel(t, again.Model, kept)
}

// A run that ended early, was continued, and gets its old patience again ends where it is now: its old model is not
// that of its latest state.
func TestPatienceRaisedAndLowered(t *testing.T) {
	c := overfitting(t)
	first, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil || first.EvalsNotLower != 3 {
		t.Fatalf("%+v, error %v", first, err)
	}
	c.Stop.Patience = 0
	until(t, c, fmt.Sprintf("step %2d/40", first.Steps+3))
	c.Stop.Patience = 3
	second, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil || second.Steps != first.Steps+3 || second.ResumedAfter != second.Steps {
		t.Fatalf("%+v, error %v", second, err)
	}
	if step, ok := rundir.StepOfCard(second.Model); !ok || step != second.Steps {
		t.Errorf("the model is of step %d, want %d", step, second.Steps)
	}
}

// A run that is stopped in the evaluation that would end it evaluates when it continues, and ends there.
func TestPatienceInterruptedEvaluation(t *testing.T) {
	whole := overfitting(t)
	counts := map[string]int64{}
	o := &operations{}
	env := countedEnv(t, o)
	env.Progress = lines(func(line string) {
		if f := strings.Fields(line); f[0] == "step" {
			counts[f[1]] = o.done.Load()
		}
	})
	want, err := Train(context.Background(), whole, Options{Env: env})
	if err != nil || want.EvalsNotLower == 0 {
		t.Fatalf("%+v, error %v", want, err)
	}
	c := *whole
	c.OutputDir = filepath.Join(t.TempDir(), "stopped")
	before, after := counts[fmt.Sprintf("%d/40", want.Steps-1)], counts[fmt.Sprintf("%d/40", want.Steps)]
	stop := make(chan struct{})
	o = &operations{at: before + (after-before)*3/4, f: func() { close(stop) }}
	env = countedEnv(t, o)
	env.Stop = stop
	if _, err := Train(context.Background(), &c, Options{Env: env}); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	saved, err := checkpoint.Open(env.Files(), filepath.Join(rundir.CheckpointsDir(&c), checkpoint.DirName(want.Steps)))
	if err != nil || saved.Manifest.EvalLoss != nil || saved.Manifest.Plateau.Evaluations != 2 {
		t.Fatalf("%+v, error %v", saved, err)
	}
	got, err := Train(context.Background(), &c, Options{Env: newEnv(t)})
	if err != nil || got.Steps != want.Steps || got.EvalsNotLower != 3 {
		t.Fatalf("%+v, error %v", got, err)
	}
	sameModel(t, got.Model, want.Model)
}
