package train

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/verbs"
)

// goldenPPO is testdata/critic.json: ten steps of PPO, and of GRPO, by PyTorch; critic.py next to it says how.
type goldenPPO struct {
	Versions map[string]string
	Answers  []struct {
		Prompt, Answer []int32
		Reward         float64
	}
	Cut  []int // answers that were cut off
	Runs []goldenRun
}

// TestPPOLikePyTorch compares steps of the whole model with PyTorch, whose autograd takes losses of logits, of their
// entropies and of values down through shared blocks: the loss within 1e-6, the gradient's norm within 1e-5.
func TestPPOLikePyTorch(t *testing.T) {
	var g goldenPPO
	readTestdata(t, "critic.json", &g)
	for i := range g.Runs {
		run := &g.Runs[i]
		t.Run(run.Name, func(t *testing.T) {
			o, err := objective.New(run.Settings)
			if err != nil {
				t.Fatal(err)
			}
			r := openRun(t, goldenConfig(t), "", OpenOptions{LogProbs: true, Objective: o})
			var examples []data.Example
			var scored []objective.Scored
			for i, a := range g.Answers {
				e := data.Example{InputIDs: slices.Concat(a.Prompt, a.Answer)}
				e.Labels = slices.Concat(slices.Repeat([]int32{data.Ignore}, len(a.Prompt)), a.Answer)
				examples = append(examples, e)
				ends := objective.Stopped
				if slices.Contains(g.Cut, i) {
					ends = objective.CutOff
				}
				scored = append(scored, objective.Scored{Group: i / 2, Advantage: math.NaN(), Reward: a.Reward,
					Tokens: len(a.Answer), Ends: ends})
			}
			b, err := r.Batch(examples...)
			if err != nil {
				t.Fatal(err)
			}
			answers, _, err := o.(objective.Rewarded).Advantages(scored, nil)
			if err != nil {
				t.Fatal(err)
			}
			first, err := r.LogProbs(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Documents {
				d := &b.Documents[i]
				d.Rollout, d.Group = &answers[i], i/2
				if o.Needs().Reference {
					d.Reference = slices.Clone(first[d.Micro][d.First:][:d.Length])
				}
			}
			for step := range run.Losses {
				taken, err := r.Step(t.Context(), b, r.Update(1e-3))
				if err != nil {
					t.Fatal(err)
				}
				run.compare(t, step, taken.Objective, taken)
			}
		})
	}
}

// criticConfig is a run of PPO on answers, with all of them in each step.
func criticConfig(t *testing.T) *runfile.Config {
	c := rolloutConfig(t)
	c.Objective = runfile.Objective{Type: "policy", Loss: runfile.Losses{"ppo"}, KL: optim.Given(0.05)}
	c.BatchTokens = 20 * c.SequenceLen
	return c
}

// A run of PPO begins with values of 0 and learns them: their loss falls, and their mean comes near that of returns.
func TestPPO(t *testing.T) {
	c := criticConfig(t)
	c.MaxSteps = 10
	all := trainedOn(t, c)
	first, last := all[0].Objective, all[len(all)-1].Objective
	if first["critic/values/mean"] != 0 || first["kl"] != 0 || first["critic/vf_explained_var"] != 0 {
		t.Errorf("the first step has %v", first)
	}
	apart := math.Abs(last["critic/values/mean"] - last["critic/returns/mean"])
	if !(last["loss/value_avg"] < 0.7*first["loss/value_avg"]) || !(apart < 0.5*first["critic/returns/mean"]) {
		t.Errorf("values are not learned: %v and then %v", first, last)
	}
	for _, name := range []string{"loss/policy_avg", "val/clipfrac_avg", "critic/returns/mean", "reward", "entropy",
		"clip_ratio/region_mean"} {
		if _, ok := first[name]; !ok {
			t.Errorf("there is no %s", name)
		}
	}
}

// Rows have the values of before the first update, from which the advantages follow.
func TestPPOReadsItsRows(t *testing.T) {
	c := criticConfig(t)
	c.Objective = runfile.Objective{Type: "policy", Loss: runfile.Losses{"ppo"}, Old: "data", Lambda: optim.Given(0)}
	c.Datasets[0].Path, c.MaxSteps = rollouts(t, func(_, _, n int) string {
		return fmt.Sprintf(`, "reward": 2, "old": [%s], "values": [%s]`, list(n, -5), list(n, 1.5))
	}), 1
	first := trainedOn(t, c)[0].Objective
	// With lambda 0 the return of a token is the next one's value, and of the last one the reward.
	if want := (2.5*1.5 + 2) / 3.5; math.Abs(first["critic/returns/mean"]-want) > 1e-12 {
		t.Errorf("returns %v, want %v", first["critic/returns/mean"], want)
	}
	if first["critic/values/mean"] != 0 || first["val/clipfrac_avg"] != 0 {
		t.Errorf("metrics %v", first)
	}
}

// The critic belongs to the run: models that are written have the tensors of the one that it began with, also from a
// checkpoint, and that is evaluated as they are.
func TestCriticStaysWithTheRun(t *testing.T) {
	c := criticConfig(t)
	c.MaxSteps = 2
	trainedOn(t, c)
	dir := filepath.Join(c.OutputDir, rundir.LastModel)
	m, err := model.Read(c.Model)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range m.Tensors() {
		names = append(names, x.Name)
	}
	written := slices.Collect(maps.Keys(readFile(t, filepath.Join(dir, "model.safetensors"))))
	slices.Sort(names)
	slices.Sort(written)
	if !slices.Equal(names, written) {
		t.Errorf("tensors %q, and the model has %q", written, names)
	}
	held := filepath.Join(t.TempDir(), "held.jsonl")
	write(t, held, `{"text": "say a: aaa"}`+"\n")
	var losses []float64
	for _, of := range []string{dir, c.OutputDir} {
		l, err := verbs.Evaluate(t.Context(), newEnv(t), verbs.EvalOptions{Model: of, Compute: "f32", Memory: c.Budgets(),
			SequenceLen: c.SequenceLen, Tokenizer: c.Tokenizer, Data: []data.Source{{Path: held, Type: data.Text}}})
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, l.Loss)
	}
	if losses[0] != losses[1] || !(losses[0] > 0) {
		t.Errorf("the model and the run have the losses %v", losses)
	}
	again := *c
	again.Objective, again.MaxSteps = runfile.Objective{Type: "policy", KL: optim.Given(0.05)}, 3
	again.ResumeWith = []string{"max_steps", "objective"}
	if _, err := Train(t.Context(), &again, Options{Env: newEnv(t)}); err == nil || !errors.Is(err, ErrRequest) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("a run that continues without its critic: %v", err)
	} else {
		t.Log(err)
	}
}
