package train

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
)

// rollouts writes answers of bytes to prompts, four to each, not in order: those of the prompt's letter are the better
// ones. A writer of more may add keys to each row, of an answer with n tokens.
func rollouts(t *testing.T, more func(group, sample, n int) string) string {
	var b strings.Builder
	for i := range 40 {
		group, sample := i%10, i/10
		letter := "abcde"[group%5]
		prompt, answer := fmt.Sprintf("say %c", letter), strings.Repeat(string("abcde"[(group+sample)%5]), 2+sample)
		ids := strings.ReplaceAll(strings.Trim(fmt.Sprint([]byte(prompt+answer)), "[]"), " ", ", ")
		finish := "stop"
		if sample == 3 {
			finish = "length"
		}
		right := 0
		if sample == 0 {
			right = 1
		}
		fmt.Fprintf(&b, "{\"group\": %d, \"sample\": %d, \"ids\": [%s], \"start\": %d, \"finish\": %q, "+
			"\"rewards\": {\"right\": %d, \"short\": %v}%s}\n", group, sample, ids, len(prompt), finish, right,
			float64(4-sample)/8, more(group, sample, len(answer)))
	}
	path := filepath.Join(t.TempDir(), "rollouts.jsonl")
	write(t, path, b.String())
	return path
}

// list writes n equal numbers of a row.
func list(n int, x float64) string {
	return strings.TrimSuffix(strings.Repeat(fmt.Sprint(x)+", ", n), ", ")
}

// rolloutConfig is a run of a policy, held to where it began, with a sampler of other numbers.
func rolloutConfig(t *testing.T) *runfile.Config {
	c := smallConfig(t)
	c.Datasets, c.ValSize, c.Eval = []data.Source{{Type: data.Rollouts, Path: rollouts(t, func(_, sample, n int) string {
		if sample == 2 {
			return fmt.Sprintf(`, "logprobs": [%s, null]`, list(n-1, -5))
		}
		return fmt.Sprintf(`, "logprobs": [%s]`, list(n, -6))
	})}}, 0, runfile.Eval{}
	c.Objective = runfile.Objective{Type: "policy", KL: optim.Given(0.05), RewardWeights: map[string]float64{"short": 0.5}}
	c.LearningRate, c.WeightDecay, c.MaxSteps = 1e-2, 0, 6
	return c
}

// trainedOn are the records of a run.
func trainedOn(t *testing.T, c *runfile.Config) []trace.Metrics {
	t.Helper()
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	return metricsOf(t, c.OutputDir)
}

// A run over answers records TRL's numbers. Its first step has no divergence from the reference, to the bit, and then
// it leaves it, for what has rewards: the log-probabilities of answers that are better than expected rise.
func TestPolicy(t *testing.T) {
	c := rolloutConfig(t)
	all := trainedOn(t, c)
	first, last := all[0].Objective, all[len(all)-1].Objective
	if first["kl"] != 0 || !(last["kl"] > 0) {
		t.Errorf("the divergence is %v, and %v in the end", first["kl"], last["kl"])
	}
	for name, want := range map[string]float64{"clip_ratio/region_mean": 0, "completions/clipped_ratio": 0.25,
		"completions/mean_length": 3.5, "completions/max_length": 5, "completions/mean_terminated_length": 3,
		"rewards/right/mean": 0.25, "reward": 0.25 + 0.5*10.0/32, "frac_reward_zero_std": 0} {
		if got, ok := first[name]; !ok || math.Abs(got-want) > 1e-12 {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	for _, name := range []string{"reward_std", "rewards/short/std", "sampling/sampling_logp_difference/mean",
		"sampling/importance_sampling_ratio/max", "entropy"} {
		if !(first[name] > 0) {
			t.Errorf("%s is %v", name, first[name])
		}
	}
	if n := all[0].Pairs; n == nil || *n%4 != 0 || *n == 0 {
		t.Errorf("%v answers in the first step, and a group has 4", n)
	}
}

// An entropy bonus alone, with advantages of 0, has entropies rise, and fall where it is below 0. The loss of a step is
// then the bonus.
func TestEntropyBonus(t *testing.T) {
	for _, coef := range []float64{2, -2} {
		c := rolloutConfig(t)
		c.Objective = runfile.Objective{Type: "policy", Correction: "none", EntropyCoef: optim.Given(coef)}
		c.Datasets[0].Path = rollouts(t, func(int, int, int) string { return `, "advantage": 0` })
		c.LearningRate = 1e-3
		all := trainedOn(t, c)
		entropy := func(i int) float64 { return all[i].Objective["entropy"] }
		if last := len(all) - 1; (entropy(last)-entropy(0))*coef < 1e-3 {
			t.Errorf("coefficient %v: entropies go from %v to %v", coef, entropy(0), entropy(last))
		}
		for i, m := range all {
			if want := -coef * entropy(i); math.Abs(m.Loss-want) > 1e-6*math.Abs(want) {
				t.Errorf("coefficient %v, step %d: loss %v, want %v", coef, i+1, m.Loss, want)
			}
		}
	}
}

// The gradient of a step at which the model has sampled is that of its advantages: with weights of the same numbers a
// run of type weighted has the same first norm.
func TestPolicyIsWeights(t *testing.T) {
	row := func(group, sample, n int) string {
		return fmt.Sprintf(`, "advantage": %v`, []float64{1.5, -0.25, 0.5, -2}[sample])
	}
	c := rolloutConfig(t)
	c.Objective = runfile.Objective{Type: "policy", Correction: "none"}
	c.Datasets[0].Path, c.MaxSteps, c.BatchTokens = rollouts(t, row), 0, 20*c.SequenceLen
	c.Epochs = 1
	norm := trainedOn(t, c)[0].GradNorm

	var b strings.Builder
	for i := range 40 {
		group, sample := i%10, i/10
		prompt, answer := fmt.Sprintf("say %c", "abcde"[group%5]), strings.Repeat(string("abcde"[(group+sample)%5]), 2+sample)
		ids := strings.ReplaceAll(strings.Trim(fmt.Sprint([]byte(prompt+answer)), "[]"), " ", ", ")
		fmt.Fprintf(&b, "{\"input_ids\": [%s], \"weights\": [%s, %s]}\n", ids, list(len(prompt), 0),
			list(len(answer), []float64{1.5, -0.25, 0.5, -2}[sample]))
	}
	w := *c
	w.OutputDir, w.Objective = filepath.Join(t.TempDir(), "run"), runfile.Objective{Type: runfile.NextToken}
	path := filepath.Join(t.TempDir(), "weighted.jsonl")
	write(t, path, b.String())
	w.Datasets = []data.Source{{Type: data.Weighted, Path: path}}
	if want := trainedOn(t, &w)[0].GradNorm; math.Abs(norm/want-1) > 1e-5 {
		t.Errorf("the gradient's norm is %v, and of weights %v", norm, want)
	}
}

// Answers have what is known of them from their rows: what the reference says, and log-probabilities of before the
// first update, which are at the ratio that they say.
func TestPolicyReadsItsRows(t *testing.T) {
	c := rolloutConfig(t)
	c.Objective = runfile.Objective{Type: "policy", Old: "data", Reference: runfile.ReferenceData, KL: optim.Given(0.1),
		Clip: []float64{0.2, 0.2}}
	c.Datasets[0].Path, c.MaxSteps = rollouts(t, func(_, _, n int) string {
		return fmt.Sprintf(`, "old": [%s], "ref": [%s], "values": [%[1]s]`, list(n, -0.01), list(n, -0.02))
	}), 1
	first := trainedOn(t, c)[0].Objective
	// The model of random weights gives tokens some -5.5, which is far below both.
	if !(first["kl"] > 0.5) || !(first["clip_ratio/low_mean"] > 0.3) || first["clip_ratio/high_mean"] != 0 {
		t.Errorf("metrics %v", first)
	}
}

// Requests that no run over answers can meet are refused in a line that says how to change them.
func TestPoliciesAreRefused(t *testing.T) {
	plain := func(int, int, int) string { return "" }
	old := func(_, _, n int) string { return fmt.Sprintf(`, "old": [%s]`, list(n, -1)) }
	ref := func(_, _, n int) string { return fmt.Sprintf(`, "ref": [%s]`, list(n, -1)) }
	policy := func(o runfile.Objective) runfile.Objective {
		o.Type = "policy"
		return o
	}
	for want, x := range map[string]struct {
		rows func(int, int, int) string
		of   runfile.Objective
	}{
		"type rollouts needs an objective that learns from answers": {plain,
			runfile.Objective{Type: runfile.NextToken}},
		"objective dpo compares two answers, and the data are of type rollouts": {plain, runfile.Objective{Type: "dpo"}},
		"objective.old: data is set, and rows have no old": {plain,
			policy(runfile.Objective{Old: "data"})},
		"rows have old, and the run does not read it: set objective.old: data": {old, policy(runfile.Objective{})},
		"objective.reference: data is set, and rows have no ref": {plain,
			policy(runfile.Objective{KL: optim.Given(1), Reference: "data"})},
		"rows have ref, and the run does not read it": {ref, policy(runfile.Objective{KL: optim.Given(1)})},
		"and rows have no logprobs: write them":       {plain, policy(runfile.Objective{Loss: runfile.Losses{"dppo"}})},
		"objective.old: data with loss: ppo is set, and rows have no values": {old,
			policy(runfile.Objective{Loss: runfile.Losses{"ppo"}, Old: "data"})},
		"objective.critic is \"runs/critic\", and a critic with weights of its own is not supported": {plain,
			policy(runfile.Objective{Loss: runfile.Losses{"ppo"}, Critic: "runs/critic"})},
		"reward_weights names \"rigt\", and the answers have": {plain,
			policy(runfile.Objective{RewardWeights: map[string]float64{"rigt": 1}})},
		`objective.reference is "none", which policy does not know`: {plain,
			policy(runfile.Objective{KL: optim.Given(1), Reference: runfile.ReferenceNone})},
		"policy has groups: set groups_per_step":  {plain, policy(runfile.Objective{PairsPerStep: 2})},
		"groups_per_step is -1":                   {plain, policy(runfile.Objective{GroupsPerStep: -1})},
		"dft has no groups of answers: remove it": {plain, runfile.Objective{Type: "dft", GroupsPerStep: 2}},
		"policy compares with no reference":       {plain, policy(runfile.Objective{Reference: "start"})},
	} {
		c := rolloutConfig(t)
		c.Objective, c.Datasets[0].Path = x.of, rollouts(t, x.rows)
		_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("want %q, and there is %v", want, err)
		}
	}
	for want, change := range map[string]func(c *runfile.Config){
		"has no held-out loss: remove eval.datasets and val_size": func(c *runfile.Config) { c.ValSize = 2 },
		"policy learns from rewards, and has no held-out loss: ": func(c *runfile.Config) { // by name, too
			held := c.Datasets[0]
			held.EvalSet = "task"
			c.Eval = runfile.Eval{Every: 2, Datasets: []data.Source{held}}
		},
		"overlong is split, and half of an answer has no reward": func(c *runfile.Config) { c.Overlong = "split" },
	} {
		c := rolloutConfig(t)
		change(c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, and there is %v", want, err)
		}
	}
}

// Answers that are cut off are left out only where all answers say how they end.
func TestMaskTruncated(t *testing.T) {
	c := rolloutConfig(t)
	c.Objective, c.MaxSteps = runfile.Objective{Type: "policy", MaskTruncated: true}, 1
	all := trainedOn(t, c)[0].Objective
	text, err := os.ReadFile(c.Datasets[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	// A mask of 0 does the same.
	c.Objective.MaskTruncated, c.OutputDir = false, filepath.Join(t.TempDir(), "masked")
	write(t, c.Datasets[0].Path, strings.ReplaceAll(string(text), `"finish": "length"`,
		`"mask": [0, 0, 0, 0, 0], "finish": "length"`))
	if of, ok := all["sampling/importance_sampling_ratio/mean"], trainedOn(t, c)[0].Objective; of !=
		ok["sampling/importance_sampling_ratio/mean"] || all["completions/clipped_ratio"] != 0.25 {
		t.Errorf("metrics %v, and with a mask %v", all, ok)
	}
	c.Objective.MaskTruncated, c.OutputDir = true, filepath.Join(t.TempDir(), "unknown")
	write(t, c.Datasets[0].Path, strings.ReplaceAll(string(text), `, "finish": "stop"`, ""))
	_, err = Train(t.Context(), c, Options{Env: newEnv(t)})
	if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "group 0 has no finish: write it") {
		t.Errorf("answers without an ending: %v", err)
	}
}

// A loop of the caller's gives documents what is known of its answers, and computes advantages of rewards.
func TestPolicyOfACaller(t *testing.T) {
	c := rolloutConfig(t)
	c.Datasets, c.Objective = nil, runfile.Objective{Type: "policy"}
	r := openRun(t, c, "", OpenOptions{})
	of, err := c.Objective.Open()
	if err != nil {
		t.Fatal(err)
	}
	example := func(text string) data.Example {
		e := data.Example{}
		for i := range text {
			e.InputIDs = append(e.InputIDs, int32(text[i]))
			label := data.Ignore
			if i > 3 {
				label = int32(text[i])
			}
			e.Labels = append(e.Labels, label)
		}
		return e
	}
	b, err := r.Batch(example("say aa"), example("say bb"))
	if err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	answers, figures, err := of.(objective.Rewarded).Advantages([]objective.Scored{{Reward: 1, Advantage: nan, Tokens: 2},
		{Reward: 0, Advantage: nan, Tokens: 2}}, nil)
	if err != nil || figures["reward"] != 0.5 {
		t.Fatal(figures, err)
	}
	for i := range answers {
		b.Documents[i].Rollout = &answers[i]
	}
	if res, err := r.Step(t.Context(), b, r.Update(1e-3)); err != nil || !(res.GradNorm > 0) {
		t.Errorf("%+v, %v", res, err)
	}
	b.Documents[0].Rollout.Sampler = []float32{1}
	if _, err := r.Step(t.Context(), b, r.Update(1e-3)); err == nil || !strings.Contains(err.Error(),
		"has log-probabilities of a rollout for 1 and 0 of its") {
		t.Errorf("too few log-probabilities: %v", err)
	}
}
