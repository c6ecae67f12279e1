package runfile

import (
	"strings"
	"testing"
)

// A loop that no run can do is refused in a line that says what to change.
func TestLoopsAreRefused(t *testing.T) {
	const good = `model: m
datasets: [{path: p.jsonl, type: prompts}]
objective: {type: policy}
rl: {max_tokens: 8, reward: [{name: math, type: number}]}
max_steps: 3
`
	c, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if c.RL.PromptsPerStep != 64 || c.RL.Samples != 8 || c.RL.Iterations != 1 || !c.RL.Sampler.IsOwn() ||
		c.RL.Temperature != 1 {
		t.Errorf("%+v", c.RL)
	}
	const server = ", sampler: {url: 'http://h:1', engine: sglang, dir: d}"
	for _, of := range []struct{ keys, objective, want string }{
		{"", "{type: policy}", "data"}, // 512 answers, and 16 rows
		{", prompts_per_step: 2", "{type: policy}", "now"},
		{", prompts_per_step: 2, iterations: 2", "{type: policy}", "data"},
		{", temperature: 0.7", "{type: policy}", "start"},
		{server, "{type: policy}", "start"},
		{"", "{type: policy, loss: ppo}", "now"},
		{", iterations: 2", "{type: policy, loss: ppo}", "sampler"},
		{server, "{type: policy, old: now}", "now"},
	} {
		c, err := Parse([]byte(strings.Replace(strings.Replace(good, "max_tokens: 8", "max_tokens: 8"+of.keys, 1),
			"{type: policy}", of.objective, 1) + "sequence_len: 2048\nbatch_tokens: 32768\n"))
		if err != nil || c.Objective.Old != of.want {
			t.Errorf("rl with %q and objective %s: old is %s, want %s; %v", of.keys, of.objective, c.Objective.Old, of.want, err)
		}
	}
	for objective, want := range map[string]int{"{type: policy, loss: dr_grpo}": 8, "{type: policy}": 0,
		"{type: policy, normalizer: max_tokens}": 8, "{type: policy, loss: dr_grpo, max_tokens: 16}": 16} {
		c, err := Parse([]byte(strings.Replace(good, "{type: policy}", objective, 1)))
		if err != nil || c.Objective.MaxTokens != want {
			t.Errorf("objective %s has max_tokens %d, want %d; %v", objective, c.Objective.MaxTokens, want, err)
		}
	}
	const taught = "{type: policy, loss: ref_kl, reference: teacher}\nrl: {max_tokens: 8, reference_memory: {host: 1GiB}}"
	without := strings.Replace(good, "{type: policy}\nrl: {max_tokens: 8, reward: [{name: math, type: number}]}", taught,
		1)
	if _, err := Parse([]byte(without)); err != nil {
		t.Errorf("a loop that learns from a teacher needs no reward: %v", err)
	}
	more := strings.Replace(without, "max_tokens: 8", "max_tokens: 8, max_groups: 99", 1)
	if _, err := Parse([]byte(more)); err == nil ||
		!strings.Contains(err.Error(), "rl.max_groups replaces groups whose rewards are equal, and rl.reward has none") {
		t.Errorf("without rewards no group is replaced: %v", err)
	}
	for want, change := range map[string][2]string{
		"rl: objective.type is sft":                       {"{type: policy}", "{type: sft}"},
		"is of type rollouts, and a loop samples its own": {"type: prompts", "type: rollouts"},
		"only a loop of reinforcement learning trains on": {
			"rl: {max_tokens: 8, reward: [{name: math, type: number}]}", ""},
		"rl: max_steps is missing":                          {"max_steps: 3", "epochs: 3"},
		"rl.reward is missing":                              {", reward: [{name: math, type: number}]", ""},
		"rl.reward[0]: it has no judge":                     {", type: number", ""},
		"rl.max_tokens is 5000, and sequence_len 2048":      {"max_tokens: 8", "max_tokens: 5000"},
		"rl.max_groups is 3, and a round has 64 prompts":    {"max_tokens: 8", "max_tokens: 8, max_groups: 3"},
		"rl.temperature is 1000":                            {"max_tokens: 8", "max_tokens: 8, temperature: 1000"},
		"objective.old is data, and a loop has no critic's": {"{type: policy}", "{type: policy, loss: ppo, old: data}"},
		"the log-probabilities of the sampler are not the": {"{type: policy}\nrl: {",
			"{type: policy, old: data}\nrl: {top_k: 9, "},
		"rl.reference_memory.host is missing: say how much the reference (objective.reference: start)": {"{type: policy}",
			"{type: policy, kl: 0.1}"},
		"rl.reference_memory is given, and the objective compares with no reference": {"max_tokens: 8",
			"max_tokens: 8, reference_memory: {host: 1GiB}"},
		"objective.reference is data, and a loop samples": {"{type: policy}", "{type: policy, kl: 0.1, reference: data}"},
		"weight is 2, and a loop takes each prompt once":  {"type: prompts", "type: prompts, weight: 2"},
		`"other" is no sampler: use own`:                  {"max_tokens: 8", "max_tokens: 8, sampler: other"},
		"rl.sampler: engine is \"tgi\"": {"max_tokens: 8",
			"max_tokens: 8, sampler: {url: 'http://h:1', engine: tgi, dir: d}"},
	} {
		_, err := Parse([]byte(strings.Replace(good, change[0], change[1], 1)))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("want %q, and there is %v", want, err)
		}
	}
}
