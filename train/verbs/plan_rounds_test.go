package verbs

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/traintest"
)

const loopFile = `model: m
datasets: [{path: not-there.jsonl, type: prompts}]
objective: {type: policy}
rl: {prompts_per_step: 8, samples: 8, max_tokens: 64, iterations: 2, reward: [{name: math, type: number}]}
sequence_len: 128
batch_tokens: 4096
max_steps: 10
`

// A loop is planned for a shape and a named machine without any file: its prompts are as long as they may be, and a
// step has the answers for which batch_tokens has rows, twice over with iterations: 2.
func TestPlanOfLoop(t *testing.T) {
	planned := func(change [2]string, o PlanOptions) (*Planned, error) {
		t.Helper()
		c, err := runfile.Parse([]byte(strings.Replace(loopFile, change[0], change[1], 1)))
		if err != nil {
			t.Fatal(err)
		}
		o.Env, o.Shape, o.Machine = traintest.NewEnv(t), "smollm2-135m", "h100-pcie5"
		return PlanFor(t.Context(), c, o)
	}
	r, err := planned([2]string{}, PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := r.Plan.Round
	// 4,096 / 128 rows have an answer each: 4 groups of 8 in a step, 8 in two, and each step twice.
	if o == nil || o.Sampling == nil || o.Answers != 64 || o.PromptPositions != 64 || o.AnswerTokens != 64 ||
		o.Steps != 4 || o.Rounds != 3 || o.Sampling.Texts != 64 {
		t.Fatalf("%+v", o)
	}
	text := r.String()
	for _, want := range []string{"a round: 64 answers", "\n  score     not known", "what limits it is", "3 rounds take"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	served := [2]string{"iterations: 2", "sampler: {url: 'http://h:1', engine: vllm, dir: d}"}
	if r, err = planned(served, PlanOptions{}); err != nil || r.Plan.Round.SampleSeconds != nil {
		t.Errorf("of a server: %v, %+v", err, r)
	}
	if r, err = planned(served, PlanOptions{ServerPerSec: 1024}); err != nil || *r.Plan.Round.SampleSeconds != 4 {
		t.Errorf("4,096 tokens at 1,024 a second: %v", err)
	}
	for want, bad := range map[string]struct {
		change [2]string
		PlanOptions
	}{
		"--server-rate: the run has no server": {PlanOptions: PlanOptions{ServerPerSec: 5}},
		"--server-rate -5: write the tokens":   {change: served, PlanOptions: PlanOptions{ServerPerSec: -5}},
		"rl: a loop is for one host yet":       {PlanOptions: PlanOptions{Hosts: 2, Network: "100Gb"}},
	} {
		if _, err := planned(bad.change, bad.PlanOptions); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("want %q, and there is %v", want, err)
		}
	}
}
