package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
)

// distillConfig is a run that learns from another model, with some of its documents held out.
func distillConfig(t *testing.T) *runfile.Config {
	c := smallConfig(t)
	c.Datasets, c.ValSize = []data.Source{{Path: corpus(t), Type: data.Text}}, 4
	teacher := writeConfig(t, nil)
	writeWeights(t, teacher, 7)
	c.Objective = runfile.Objective{Type: "distill", Teacher: teacher, TopK: 6}
	c.LearningRate, c.WeightDecay, c.MaxSteps, c.Eval.Every = 1e-3, 0, 6, 3
	return c
}

// A run that learns from another model comes nearer to it; TestObjectivesHaveTheSameBits stops and moves it.
func TestDistill(t *testing.T) {
	c := distillConfig(t)
	env, told := newEnv(t), &strings.Builder{}
	env.Progress = told
	if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(told.String(), "raise sequence_len, or set overlong to truncate or drop\n") {
		t.Errorf("of long documents the run says %s", told)
	}
	all := metricsOf(t, c.OutputDir)
	before, after := all[0], all[len(all)-1]
	if !(*after.EvalLoss < *before.EvalLoss/2) || math.Abs(after.Objective["eval_kl"]/(*after.EvalLoss)-1) > 1e-12 ||
		!(after.Objective["kl"] > 0) || !(after.Objective["nll_loss"] > 0) {
		t.Errorf("from %v, %v to %v, %v", *before.EvalLoss, before.Objective, *after.EvalLoss, after.Objective)
	}
}

// A model that is its own teacher has nothing to learn from it, at any temperature.
func TestOwnTeacher(t *testing.T) {
	for _, temperature := range []float64{1, 3} {
		c := distillConfig(t)
		writeWeights(t, c.Model, 7)
		c.Objective.Teacher, c.Objective.TopK, c.Objective.Temperature = c.Model, 64, optim.Given(temperature)
		if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
			t.Fatal(err)
		}
		all := metricsOf(t, c.OutputDir)
		before, first, limit := *all[0].EvalLoss, all[1].Loss, 1e-6*temperature*temperature
		if math.Abs(before) > limit || math.Abs(first) > limit {
			t.Errorf("temperature %v: before training %v, in the first step %v", temperature, before, first)
		}
	}
}

// A temperature is of what the objective compares, in steps and in evaluations: its loss is the divergence times the
// square. A program that asks for losses, log-probabilities and logits has those of the model as it is used.
func TestTemperatureIsOfTheObjective(t *testing.T) {
	var plain, accuracies, entropies []float64
	for _, temperature := range []float64{1, 2} {
		c := distillConfig(t)
		c.Objective.Temperature = optim.Given(temperature)
		r := openRun(t, c, "", OpenOptions{LogProbs: true, LogitRows: 2})
		held, err := r.Evaluate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		loss, err := r.Eval(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		numbers := []float64{loss}
		for _, of := range []func() ([][]float32, error){
			func() ([][]float32, error) { return r.LogProbs(t.Context(), b) },
			func() ([][]float32, error) { return r.Logits(t.Context(), b, 1) },
		} {
			all, err := of()
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range slices.Concat(all...) {
				numbers = append(numbers, float64(x))
			}
		}
		if temperature == 1 {
			plain = numbers
		} else if !slices.Equal(numbers, plain) {
			t.Errorf("at temperature %v a program has a loss of %v and other numbers, at 1 %v", temperature, loss, plain[0])
		}
		res, err := r.Step(t.Context(), b, r.Update(1e-3))
		if err != nil {
			t.Fatal(err)
		}
		of := res.Objective.Metrics()
		for what, x := range map[string][2]float64{"held-out data": {held.Loss, held.Objective["kl"]},
			"a step": {res.Loss(), of["kl"]}} {
			if math.Abs(x[0]/(x[1]*temperature*temperature)-1) > 1e-12 {
				t.Errorf("at temperature %v %s have the loss %v and the divergence %v", temperature, what, x[0], x[1])
			}
		}
		accuracies = append(accuracies, of["mean_token_accuracy"], held.Objective["mean_token_accuracy"])
		entropies = append(entropies, of["entropy"], held.Objective["entropy"])
	}
	if !slices.Equal(accuracies[:2], accuracies[2:]) || !(entropies[0] < entropies[2]) || !(entropies[1] < entropies[3]) {
		t.Errorf("accuracies %v, entropies %v", accuracies, entropies)
	}
}

// taughtRows writes documents of type distill, whose teacher expects the next letter of the alphabet.
func taughtRows(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "taught.jsonl")
	var b strings.Builder
	for i := range 30 {
		row := struct {
			InputIDs []int       `json:"input_ids"`
			IDs      [][]int     `json:"target_token_ids"`
			LogProbs [][]float64 `json:"target_logprobs"`
		}{}
		for j := range 5 + i%7 {
			id := 'a' + (i+j)%20
			row.InputIDs = append(row.InputIDs, id)
			if j < 2 { // the prompt
				row.IDs, row.LogProbs = append(row.IDs, []int{}), append(row.LogProbs, []float64{})
				continue
			}
			row.IDs = append(row.IDs, []int{id, id + 1, 2}[:1+j%3])
			row.LogProbs = append(row.LogProbs, []float64{-0.1, -3, -4.5}[:1+j%3])
		}
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", line)
	}
	write(t, path, b.String())
	return path
}

// A run learns from a teacher in its data, with and without a cache of their tokens.
func TestTeacherInTheData(t *testing.T) {
	for _, topK := range []int{3, 5} {
		c := distillConfig(t)
		c.Datasets = []data.Source{{Path: taughtRows(t), Type: data.Distill}}
		c.Objective = runfile.Objective{Type: "distill", Teacher: runfile.TeacherNone, TopK: topK}
		env := newEnv(t)
		if topK == 5 {
			env.CacheDir = t.TempDir()
		}
		if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
			t.Fatal(err)
		}
		all := metricsOf(t, c.OutputDir)
		if before, after := *all[0].EvalLoss, *all[len(all)-1].EvalLoss; !(before > 2) || !(after < before) {
			t.Errorf("top_k %d: the held-out loss was %v, and is %v", topK, before, after)
		}
	}
}

// A request that distillation cannot meet is refused in a line that says how to change it.
func TestDistillIsRefused(t *testing.T) {
	taught := func(t *testing.T, c *runfile.Config) {
		c.Datasets = []data.Source{{Path: taughtRows(t), Type: data.Distill}}
	}
	for want, change := range map[string]func(c *runfile.Config){
		"objective.teacher is missing":     func(c *runfile.Config) { c.Objective.Teacher = "" },
		"learns from no teacher":           func(c *runfile.Config) { c.Objective.Type, c.Objective.TopK = "dft", 0 },
		"which do not have what a teacher": func(c *runfile.Config) { c.Objective.Teacher = runfile.TeacherNone },
		"which have what a teacher says":   func(c *runfile.Config) { taught(t, c) },
		"type distill has the likeliest": func(c *runfile.Config) {
			taught(t,
				c)
			c.Objective = runfile.Objective{Type: "dft"}
		},
		"objective.temperature is 2, and share is 0.5": func(c *runfile.Config) {
			c.Objective.Temperature, c.Objective.Share = optim.Given(2), optim.Given(0.5)
		},
		"objective.temperature is 2, and the data have log-probabilities": func(c *runfile.Config) {
			taught(t, c)
			c.Objective.Teacher, c.Objective.Temperature = runfile.TeacherNone, optim.Given(2)
		},
		"reads rows from the start": func(c *runfile.Config) { c.Overlong = "split" },
		"name a model of the same tokenizer": func(c *runfile.Config) {
			c.Objective.Teacher = writeModel(t,
				map[string]any{"vocab_size": 330})
		},
		"objective.top_k is 2, and the data have 3": func(c *runfile.Config) {
			taught(t, c)
			c.Objective.Teacher, c.Objective.TopK = runfile.TeacherNone, 2
		},
	} {
		c := distillConfig(t)
		change(c)
		_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("want %q, and there is %v", want, err)
		}
	}
}

// An objective of the program that has a temperature does not learn from data that have what a teacher says at 1.
func TestDataAreAtOne(t *testing.T) {
	c := distillConfig(t)
	c.Objective = runfile.Objective{Type: runfile.NextToken}
	c.Datasets = []data.Source{{Path: taughtRows(t), Type: data.Distill}}
	for temperature, want := range map[float64]string{1: "", 2: "data of type distill have what a teacher says at 1"} {
		o, err := objective.New(objective.Settings{Type: "distill", TopK: 3, Temperature: &temperature})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Open(t.Context(), c, OpenOptions{Env: newEnv(t), Objective: o})
		if err == nil {
			err = r.Close()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("temperature %v: %v, want %q", temperature, err, want)
		}
	}
}
