package train

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// lossOfSet is the loss of an evaluation set in a record; of the label "" it is that over all sets.
func lossOfSet(m trace.Metrics, label string) float64 {
	if label == "" {
		return *m.EvalLoss
	}
	return m.EvalSets[label][trace.SetLoss]
}

// evaluationsOf are the numbers of a run's evaluations, to the last bit.
func evaluationsOf(t *testing.T, c *runfile.Config) (all []string) {
	t.Helper()
	for _, m := range metricsOf(t, c.OutputDir) {
		if m.EvalLoss != nil {
			all = append(all, fmt.Sprint(m.Step, *m.EvalLoss, m.EvalSets))
		}
	}
	return all
}

// Each evaluation set has the numbers that it would have alone, the loss over all is that of a run without labels, and
// training has the same bits: with every objective, on several hosts and devices.
func TestEvaluationSets(t *testing.T) {
	for _, of := range []struct {
		name      string
		make      func(*testing.T) *runfile.Config
		tolerance float64 // of the loss over all; that of kto has a part of the documents that are computed together
	}{
		{"sft", func(t *testing.T) *runfile.Config { return smallConfig(t) }, 1e-12}, {"kto", labelsConfig, 0.05},
		{"dpo", preferenceConfig, 1e-12},
		{"reward", rewardConfig, 1e-12}, {"distill", distillConfig, 1e-12},
	} {
		t.Run(of.name, func(t *testing.T) {
			if testing.Short() && of.name != "sft" && of.name != "dpo" {
				t.Skip("make long: it trains, and sft and dpo have shown the rest")
			}
			evaluationSets(t, of.make(t), of.tolerance)
		})
	}
}

func evaluationSets(t *testing.T, base *runfile.Config, tolerance float64) {
	t.Helper()
	text, err := os.ReadFile(base.Datasets[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	entry := func(from, to int, set string) data.Source {
		path := filepath.Join(t.TempDir(), "rows.jsonl")
		write(t, path, strings.Join(lines[from:to], ""))
		return data.Source{Path: path, Type: base.Datasets[0].Type, EvalSet: set}
	}
	labelled := []data.Source{entry(0, 4, "task"), entry(4, 12, ""), entry(12, 16, "task"), entry(16, 22, "forget")}
	bare := func(sets ...data.Source) []data.Source {
		for i := range sets {
			sets[i].EvalSet = ""
		}
		return sets
	}
	base.ValSize, base.MaxSteps, base.Save = 0, 4, runfile.Save{Every: 2, AtEnd: true}
	base.Numerics = runfile.Sizes{MicroBatch: 1, Groups: 2}
	cache := t.TempDir()
	configOf := func(sets []data.Source) *runfile.Config {
		c := *base
		c.Eval, c.OutputDir = runfile.Eval{Datasets: sets, Every: 2}, filepath.Join(t.TempDir(), "run")
		return &c
	}
	train := func(c *runfile.Config, devices int) *Summary {
		t.Helper()
		env := devicesEnv(t, devices)
		env.CacheDir = cache
		sum, err := Train(t.Context(), c, Options{Env: env})
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	plain, sets := configOf(bare(slices.Clone(labelled)...)), configOf(labelled)
	without, with := train(plain, 1), train(sets, 1)
	sameModel(t, with.Model, without.Model)
	records, want := metricsOf(t, sets.OutputDir), metricsOf(t, plain.OutputDir)
	for i, m := range records {
		isEvaluated := m.Step%2 == 0
		if isEvaluated != (m.EvalLoss != nil) || isEvaluated != (len(m.EvalSets) == 3) || want[i].EvalSets != nil {
			t.Fatalf("the record of step %d has the evaluation %v, %v, and without labels %v", m.Step, m.EvalLoss, m.EvalSets,
				want[i].EvalSets)
		}
		if isEvaluated && !(math.Abs(*m.EvalLoss/(*want[i].EvalLoss)-1) <= tolerance) {
			t.Errorf("step %d: the loss over all sets is %v, and without labels %v", m.Step, *m.EvalLoss, *want[i].EvalLoss)
		}
	}
	last := records[len(records)-1]
	if s := with.EvalSetsAfter; fmt.Sprint(s) != fmt.Sprint(last.EvalSets) || len(with.EvalSetsBefore) != 3 {
		t.Errorf("the summary has %v, the last record %v", s, last.EvalSets)
	}
	for label, of := range map[string][]data.Source{"task": bare(labelled[0], labelled[2]), "default": bare(labelled[1]),
		"forget": bare(labelled[3])} {
		alone := configOf(of)
		l, err := openRun(t, alone, cache, OpenOptions{From: lastCheckpoint(t, sets)}).Evaluate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := trace.Numbers{trace.SetLoss: l.Loss}
		for name, x := range l.Objective {
			got[name] = x
		}
		if fmt.Sprint(got) != fmt.Sprint(last.EvalSets[label]) || l.Loss == *last.EvalLoss {
			t.Errorf("%s: in the run %v, alone %v, all %v", label, last.EvalSets[label], got, *last.EvalLoss)
		}
	}
	two := configOf(labelled)
	train(two, 2)
	if got, want := evaluationsOf(t, two), evaluationsOf(t, sets); !slices.Equal(got, want) {
		t.Errorf("two devices: %v, one %v", got, want)
	}
	several := configOf(labelled)
	all := trainHosts(t, 2, several, func(h *aHost) { h.env.CacheDir = cache })
	succeed(t, all)
	sameModel(t, all[0].sum.Model, with.Model)
	if got, want := evaluationsOf(t, several), evaluationsOf(t, sets); !slices.Equal(got, want) {
		t.Errorf("two hosts: %v, one %v", got, want)
	}
}

// With eval.best the loss of that set decides which model is the best and when the run stops early. Another set in a
// run that continues begins both again.
func TestBestOfASet(t *testing.T) {
	c := overfitting(t)
	c.Eval.Datasets[0].EvalSet = "forget"
	task := fewOf(c)[0]
	task.EvalSet = "task"
	c.Eval.Datasets, c.Eval.Best = append(c.Eval.Datasets, task), "task"
	run := func(c *runfile.Config) (*Summary, *checkpoint.Manifest) {
		t.Helper()
		sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err != nil {
			t.Fatal(err)
		}
		from, err := checkpoint.Open(vfs.OS{}, lastCheckpoint(t, c))
		if err != nil {
			t.Fatal(err)
		}
		return sum, from.Manifest
	}
	sum, manifest := run(c)
	records := metricsOf(t, c.OutputDir)
	// lowest is the step up to one with the lowest loss of a set, and end the one at which the run ends for it.
	lowest := func(label string, to int) (step int) {
		least := math.Inf(1)
		for _, m := range records[1 : to+1] {
			if m.EvalLoss != nil && lossOfSet(m, label) < least {
				step, least = int(m.Step), lossOfSet(m, label)
			}
		}
		return step
	}
	end := 0
	for step := 2; step <= 40 && end == 0; step += 2 {
		if step-lowest("forget", step) == 2*c.Stop.Patience {
			end = step
		}
	}
	if end == 0 || sum.Steps <= end || lowest("task", end) == lowest("forget", end) {
		t.Fatalf("with task the run ends after step %d, with forget after %d, which tests nothing", sum.Steps, end)
	}
	if manifest.Best.Step != lowest("task", sum.Steps) || manifest.Best.EvalLoss == *manifest.EvalLoss {
		t.Errorf("the best of task is %+v, its loss over all %v", manifest.Best, *manifest.EvalLoss)
	}
	other := *c
	other.OutputDir, other.Eval.Best = filepath.Join(t.TempDir(), "other"), "forget"
	sum, manifest = run(&other)
	if sum.Steps != end || sum.EvalsNotLower != c.Stop.Patience || manifest.Best.Step != lowest("forget", end) {
		t.Errorf("it ends after step %d with the best %+v, want %d and %d", sum.Steps, manifest.Best, end,
			lowest("forget", end))
	}
	other.Eval.Best = "task"
	if sum, manifest = run(&other); sum.Steps <= end || manifest.Best.Step <= end {
		t.Errorf("with another set it continues to step %d, with the best %+v", sum.Steps, manifest.Best)
	}
	sameModel(t, sum.Model, filepath.Join(c.OutputDir, "model"))
}
