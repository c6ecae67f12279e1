package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
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

// A model that is its own teacher has nothing to learn from it.
func TestOwnTeacher(t *testing.T) {
	c := distillConfig(t)
	writeWeights(t, c.Model, 7)
	c.Objective.Teacher, c.Objective.TopK = c.Model, 64
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	all := metricsOf(t, c.OutputDir)
	if before, first := *all[0].EvalLoss, all[1].Loss; math.Abs(before) > 1e-6 || math.Abs(first) > 1e-6 {
		t.Errorf("before training %v, in the first step %v", before, first)
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
