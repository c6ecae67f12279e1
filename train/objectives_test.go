package train

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
)

// pairs writes preferences with much to learn: the chosen answer has the letters of the prompt in another order than
// the rejected one.
func pairs(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "pairs.jsonl")
	var b strings.Builder
	for i := range 40 {
		word := strings.Repeat("abcdefghij"[i%4:], 2+i%2)
		fmt.Fprintf(&b, "{\"prompt\": %q, \"chosen\": %q, \"rejected\": %q}\n", word, "yes "+word[:3+i%5],
			"no "+word[2:4+i%3])
	}
	write(t, path, b.String())
	return path
}

// preferenceConfig is a run of DPO, with some of its pairs held out.
func preferenceConfig(t *testing.T) *runfile.Config {
	c := smallConfig(t)
	c.Datasets, c.ValSize = []data.Source{{Path: pairs(t), Type: data.Preference}}, 6
	c.Objective.Type = "dpo"
	c.LearningRate, c.WeightDecay, c.MaxSteps, c.Eval.Every = 1e-3, 0, 6, 3
	return c
}

// objectivesOf are the losses, the norms and all numbers of an objective, by record, to the last bit.
func objectivesOf(t *testing.T, c *runfile.Config) (all []string) {
	t.Helper()
	for _, m := range metricsOf(t, c.OutputDir) {
		line := fmt.Sprint(m.Step, m.Loss, m.GradNorm)
		if m.Pairs != nil {
			line += fmt.Sprint(" pairs ", *m.Pairs)
		}
		for _, name := range slices.Sorted(maps.Keys(m.Objective)) {
			line += fmt.Sprint(" ", name, m.Objective[name])
		}
		all = append(all, line)
	}
	return all
}

// A model that is its own reference has a first loss of ln 2 to the last bit, wherever its documents are in a step and
// in the evaluation of the reference; and then it learns.
func TestFirstLossIsLn2(t *testing.T) {
	for name, change := range map[string]func(c *runfile.Config){
		"fp32": func(*runfile.Config) {},
		"bf16": func(c *runfile.Config) { c.Precision = runfile.Defaults().Precision },
		"bf16, streamed": func(c *runfile.Config) {
			c.Precision, c.Numerics.MicroBatch = runfile.Defaults().Precision, 1
			c.Memory = budget(t, "1500KiB")
		},
		"a hybrid with experts": func(c *runfile.Config) {
			c.Model, c.Precision = writeModel(t, hybridConfig), runfile.Defaults().Precision
		},
		"random": func(c *runfile.Config) { c.Init = "random" },
		"ipo":    func(c *runfile.Config) { c.Objective.Loss = runfile.Losses{"sigmoid", "nca_pair"} },
	} {
		t.Run(name, func(t *testing.T) {
			c := preferenceConfig(t)
			change(c)
			env := newEnv(t)
			env.CacheDir = t.TempDir()
			if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
				t.Fatal(err)
			}
			all := metricsOf(t, c.OutputDir)
			want := math.Ln2
			if name == "ipo" {
				want += 2 * math.Ln2
			}
			if before, first := *all[0].EvalLoss, all[1].Loss; before != want || first != want {
				t.Errorf("before training %v, in the first step %v, and it is to be %v", before, first, want)
			}
			if first := all[1].Objective; first["rewards/margins"] != 0 || first["rewards/accuracies"] != 0 ||
				*all[1].Pairs == 0 {
				t.Errorf("the first step has %v, of %d pairs", first, *all[1].Pairs)
			}
			last := all[len(all)-1]
			if *last.EvalLoss >= want || last.Objective["eval_rewards/margins"] <= 0 {
				t.Errorf("it has learned nothing: %v, %v", *last.EvalLoss, last.Objective)
			}
		})
	}
}

// Runs of all objectives of pairs learn; those without a reference evaluate none.
func TestObjectivesOfPairs(t *testing.T) {
	for name, o := range map[string]runfile.Objective{
		"orpo": {Type: "orpo"}, "orpo with prompts": {Type: "orpo", NLLPrompt: true}, "simpo": {Type: "simpo"},
		"cpo": {Type: "cpo"}, "reward": {Type: "reward"}, "reward, centered": {Type: "reward", Center: optim.Given(0.01)},
		"dpo without a reference": {Type: "dpo", Reference: runfile.ReferenceNone},
		"a list":                  {Type: "dpo", Loss: runfile.Losses{"sigmoid", "sft"}, Weights: []float64{1, 0.5}},
		"two":                     {Type: "simpo", PairsPerStep: 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := preferenceConfig(t)
			c.Objective = o
			env := newEnv(t)
			env.CacheDir = t.TempDir()
			if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
				t.Fatal(err)
			}
			all := metricsOf(t, c.OutputDir)
			if before, after := *all[0].EvalLoss, *all[len(all)-1].EvalLoss; !(after < before) {
				t.Errorf("the held-out loss was %v, and is %v", before, after)
			}
			if n := *all[1].Pairs; o.PairsPerStep > 0 && n != int64(o.PairsPerStep) || n == 0 {
				t.Errorf("%d pairs in a step", n)
			}
			_, err := os.Stat(filepath.Join(env.CacheDir, "reference"))
			if hasOne := err == nil; hasOne != (name == "a list") {
				t.Errorf("a reference was evaluated: %v", hasOne)
			}
		})
	}
}

// labelsConfig is a run of KTO on answers with a label.
func labelsConfig(t *testing.T) *runfile.Config {
	c := preferenceConfig(t)
	rows := filepath.Join(t.TempDir(), "labels.jsonl")
	var b strings.Builder
	for i := range 41 {
		fmt.Fprintf(&b, "{\"prompt\": \"number %d\", \"completion\": %q, \"label\": %v}\n", i,
			[]string{"yes, it is", "yes, it is", "yes, it is", "no way"}[i%4][:4+i%3], i%4 < 3)
	}
	write(t, rows, b.String())
	c.Datasets = []data.Source{{Path: rows, Type: data.Binary}}
	c.Objective = runfile.Objective{Type: "kto"}
	return c
}

// Answers with labels are learned from by themselves: those that are wanted gain, and the others lose. KTO also takes
// the likelihood of answers after other prompts, of which a step has as many as it trains on.
func TestObjectiveOfLabels(t *testing.T) {
	for loss, hasKL := range map[string]bool{"kto": true, "apo_zero_unpaired": false} {
		t.Run(loss, func(t *testing.T) {
			c := labelsConfig(t)
			c.Objective.Loss, c.Precision = runfile.Losses{loss}, runfile.Defaults().Precision
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			all := metricsOf(t, c.OutputDir)
			last := all[len(all)-1]
			kl, has := all[1].Objective["kl"]
			if first := all[1]; first.Loss != 0.5 || first.Objective["rewards/chosen"] != 0 || kl != 0 || has != hasKL {
				t.Errorf("the first loss is %v, with %v", first.Loss, first.Objective)
			}
			if *last.EvalLoss >= 0.5 || !(last.Objective["eval_rewards/margins"] > 0) {
				t.Errorf("it has learned nothing: %v, %v", *last.EvalLoss, last.Objective)
			}
			if kl := last.Objective["eval_kl"]; hasKL && !(kl > 0) {
				t.Errorf("kl is %v in the end", kl)
			}
		})
	}
}

// A run that is stopped and resumed, one whose reference is there already, and one on several hosts have the bits of
// one that is alone.
func TestObjectivesHaveTheSameBits(t *testing.T) {
	pairs := func(o *runfile.Objective) { o.PairsPerStep = 3 }
	t.Run("dpo", func(t *testing.T) { objectivesHaveTheSameBits(t, preferenceConfig(t), pairs) })
	t.Run("kto", func(t *testing.T) { objectivesHaveTheSameBits(t, labelsConfig(t), pairs) })
	t.Run("reward", func(t *testing.T) { objectivesHaveTheSameBits(t, rewardConfig(t), pairs) })
	t.Run("policy", func(t *testing.T) {
		objectivesHaveTheSameBits(t, rolloutConfig(t), func(o *runfile.Objective) { o.Advantage = "none" })
	})
	t.Run("ppo", func(t *testing.T) {
		objectivesHaveTheSameBits(t, criticConfig(t), func(o *runfile.Objective) { o.VFCoef = optim.Given(0.5) })
	})
	t.Run("distill", func(t *testing.T) {
		c := distillConfig(t)
		c.Objective.Temperature = optim.Given(1.5)
		objectivesHaveTheSameBits(t, c, func(o *runfile.Objective) { o.Temperature = optim.Given(2) })
	})
}

func objectivesHaveTheSameBits(t *testing.T, base *runfile.Config, change func(*runfile.Objective)) {
	t.Helper()
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 1, Groups: 2}
	base.Save = runfile.Save{Every: 2, Keep: 9}
	cache := t.TempDir()
	train := func(t *testing.T, c *runfile.Config, o Options) error {
		o.Env = newEnv(t)
		o.Env.CacheDir = cache
		_, err := Train(t.Context(), c, o)
		return err
	}
	if err := train(t, base, Options{}); err != nil {
		t.Fatal(err)
	}
	want, weights := objectivesOf(t, base), readFile(t, filepath.Join(base.OutputDir, rundir.LastModel,
		"model.safetensors"))
	same := func(t *testing.T, c *runfile.Config) {
		t.Helper()
		if got := objectivesOf(t, c); !slices.Equal(got, want) {
			t.Errorf("records\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got := readFile(t, filepath.Join(c.OutputDir, rundir.LastModel, "model.safetensors")); !maps.EqualFunc(got,
			weights,
			func(a, b []float32) bool { return slices.Equal(a, b) }) {
			t.Error("the weights are others")
		}
	}
	another := func(t *testing.T) *runfile.Config {
		c := *base
		c.OutputDir = filepath.Join(t.TempDir(), "run")
		return &c
	}
	t.Run("stopped and resumed", func(t *testing.T) {
		c := another(t)
		stop := func(m trace.Metrics) error {
			if m.Step == 2 {
				return ErrStop
			}
			return nil
		}
		if err := train(t, c, Options{OnStep: stop}); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(cache, "reference")); err != nil { // it is evaluated again
			t.Fatal(err)
		}
		if err := train(t, c, Options{}); err != nil {
			t.Fatal(err)
		}
		same(t, c)
	})
	t.Run("streamed", func(t *testing.T) {
		c := another(t)
		c.Memory = budget(t, "1500KiB")
		if err := train(t, c, Options{}); err != nil {
			t.Fatal(err)
		}
		same(t, c)
	})
	shared := t.TempDir()
	for name, of := range map[string]func(host int) string{
		"two hosts with the reference": func(int) string { return cache },
		"two hosts with one cache":     func(int) string { return shared },
		"two hosts with their caches":  func(int) string { return t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			c := another(t)
			succeed(t, trainHosts(t, 2, c, func(h *aHost) { h.env.CacheDir = of(h.host) }))
			same(t, c)
		})
	}
	t.Run("another objective", func(t *testing.T) {
		c := *base
		change(&c.Objective)
		c.MaxSteps, c.ResumeWith = 8, []string{"max_steps"}
		if err := train(t, &c, Options{}); err == nil || !strings.Contains(err.Error(), "objective was") {
			t.Errorf("a run that continues with another objective: %v", err)
		}
	})
}

// A reference may be another model of the same tokenizer.
func TestReferenceIsAnotherModel(t *testing.T) {
	c := preferenceConfig(t)
	other := writeConfig(t, nil)
	writeWeights(t, other, 7)
	c.Objective.Reference = other
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	if first := metricsOf(t, c.OutputDir)[1]; first.Loss == math.Ln2 || math.Abs(first.Loss-math.Ln2) > 0.5 {
		t.Errorf("the first loss is %v", first.Loss)
	}
	c = preferenceConfig(t)
	c.Objective.Reference = writeModel(t, map[string]any{"vocab_size": 330})
	_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "name a model of the same tokenizer") {
		t.Errorf("a reference of another vocabulary: %v", err)
	}
}

// The other model that a run compares with, or learns from, is the same when the run is resumed: not by its name alone.
func TestReferenceIsTheSameModel(t *testing.T) {
	for name, c := range map[string]*runfile.Config{"a reference": preferenceConfig(t), "a teacher": distillConfig(t)} {
		t.Run(name, func(t *testing.T) {
			other := c.Objective.Teacher
			if other == "" {
				other = writeConfig(t, nil)
				writeWeights(t, other, 7)
				c.Objective.Reference = other
			}
			stop := func(m trace.Metrics) error {
				if m.Step == 2 {
					return ErrStop
				}
				return nil
			}
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t), OnStep: stop}); err != nil {
				t.Fatal(err)
			}
			writeWeights(t, other, 8)
			_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(),
				" names has other weights or another config.json than when ") {
				t.Errorf("a run whose other model has changed: %v", err)
			}
			writeWeights(t, other, 7)
			if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
				t.Error(err)
			}
		})
	}
}

// dft trains on texts as sft does, each token with the weight of its own probability, also where texts are split.
func TestObjectiveOfTokens(t *testing.T) {
	c := withEval(smallConfig(t))
	c.Objective.Type, c.Precision = "dft", runfile.Defaults().Precision
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	all := metricsOf(t, c.OutputDir)
	if first, last := all[1], all[len(all)-1]; !(first.Loss > 0) || first.Loss > 0.05 || !(last.Loss > first.Loss) {
		// -p log p of a random model is nearly 0, and grows as the model learns, up to 1/e.
		t.Errorf("the loss is %v in the first step, and %v in the last", first.Loss, last.Loss)
	}
	if before, after := *all[0].EvalLoss, *all[len(all)-1].EvalLoss; before < 5 || after >= before { // of -log p
		t.Errorf("the held-out loss was %v, and is %v", before, after)
	}
}

// longest is a program's own objective: the likelihood of chosen completions that are longer than the rejected ones.
type longest struct{}

func (longest) Name() string           { return "longest" }
func (longest) Needs() objective.Needs { return objective.Needs{Pairs: true} }

func (longest) Weigh(s *objective.Step) (res objective.Result, err error) {
	part := objective.Part{Name: "longer"}
	for i := 0; i < len(s.Sequences); i += 2 {
		chosen, rejected := s.Sequences[i], s.Sequences[i+1]
		if part.Of++; len(chosen.Targets) > len(rejected.Targets) {
			part.Sum++
		}
		for t, target := range chosen.Targets {
			if target >= 0 {
				res.Loss -= float64(chosen.LogProbs[t]) / float64(s.Whole.Targets)
			}
		}
		clear(rejected.Weights)
	}
	res.Parts = []objective.Part{part}
	return res, nil
}

// Train and a loop of the caller's take an objective of the program.
func TestAnObjectiveOfTheProgram(t *testing.T) {
	c := preferenceConfig(t)
	c.Objective = runfile.Objective{Type: runfile.NextToken}
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t), Objective: longest{}}); err != nil {
		t.Fatal(err)
	}
	all := metricsOf(t, c.OutputDir)
	if first, last := all[1], all[len(all)-1]; !(last.Loss < first.Loss) || first.Objective["longer"] == 0 ||
		last.Objective["eval_longer"] == 0 {
		t.Errorf("from %v, %v to %v, %v", first.Loss, first.Objective, last.Loss, last.Objective)
	}
	c.Objective.Type = "dpo"
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t), Objective: longest{}}); err == nil ||
		!errors.Is(err, ErrRequest) {
		t.Errorf("with the key and the option: %v", err)
	}
}

// A request that no objective can meet is refused in a line that says how to change it.
func TestObjectivesAreRefused(t *testing.T) {
	for want, change := range map[string]func(c *runfile.Config){
		"type preference needs an objective": func(c *runfile.Config) { c.Objective = runfile.Objective{Type: runfile.NextToken} },
		"compares two answers": func(c *runfile.Config) {
			c.Datasets, c.ValSize = []data.Source{{Path: corpus(t), Type: data.Text}}, 0
			c.Eval = runfile.Eval{}
		},
		"compares with no reference": func(c *runfile.Config) {
			c.Objective = runfile.Objective{Type: "orpo", Reference: runfile.ReferenceStart}
		},
		"reads no other key": func(c *runfile.Config) {
			c.Objective = runfile.Objective{Type: runfile.NextToken, Gamma: optim.Given(1)}
		},
		"pairs_per_step":         func(c *runfile.Config) { c.Objective.PairsPerStep = -1 },
		"compares whole answers": func(c *runfile.Config) { c.Overlong = "split" },
		"does not read":          func(c *runfile.Config) { c.Objective = runfile.Objective{Type: "kto"} },
	} {
		c := preferenceConfig(t)
		change(c)
		_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("want %q, and there is %v", want, err)
		}
	}
}
