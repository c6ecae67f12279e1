package runfile

import (
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/optim"
)

func TestRewards(t *testing.T) {
	const doc = `
- {name: math, command: [python3, score.py, --strict], weight: 0.5, timeout: 90s, workers: 4, env: [HF_HOME]}
- {name: web, url: "http://127.0.0.1:8000/$JUDGE"}
- {name: gsm8k, type: number, column: reward_model.ground_truth}
- {name: say, type: exact}
- {name: tags, type: regex, pattern: '</think>(.*)', column: answer, weight: 0}
- {name: short, type: length, max: 100, cache: 20, weight: -1}
- {name: rm, model: runs/reward/model, memory: {host: 2GiB, device: 1GiB}}
`
	var all []Reward
	if err := yaml.UnmarshalWithOptions([]byte(doc), &all, yaml.DisallowUnknownField()); err != nil {
		t.Fatal(err)
	}
	if err := CheckRewards(all); err != nil {
		t.Fatal(err)
	}
	again, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var read []Reward
	if err := yaml.Unmarshal(again, &read); err != nil {
		t.Fatal(err)
	}
	for _, all := range [][]Reward{all, read} {
		r := all[0]
		if r.Factor() != 0.5 || r.Patience() != 90*time.Second || r.Instances() != 4 || r.Command[2] != "--strict" {
			t.Errorf("%+v", r)
		}
		if r := all[1]; r.Factor() != 1 || r.Patience() != 30*time.Second || r.Instances() != 1 || r.ComparesWith() != "" {
			t.Errorf("%+v", r)
		}
		if m := all[6].Memory.Budgets(); m.Host.N != 2<<30 || m.Device.N != 1<<30 || m.UsesDisk() {
			t.Errorf("%+v", all[6])
		}
		if all[2].ComparesWith() != "reward_model.ground_truth" || all[3].ComparesWith() != "answer" ||
			all[4].Factor() != 0 || all[5].Factor() != -1 {
			t.Errorf("%+v", all)
		}
	}
	t.Setenv("JUDGE", "score")
	if got, err := all[1].Address(); err != nil || got != "http://127.0.0.1:8000/score" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestRewardsRefuse(t *testing.T) {
	for _, c := range []struct {
		r    Reward
		want string
	}{
		{Reward{Type: RewardExact}, "name is missing"},
		{Reward{Name: "a b", Type: RewardExact}, `name is "a b"`},
		{Reward{Name: strings.Repeat("a", 65), Type: RewardExact}, "up to 64"},
		{Reward{Name: "a"}, "no judge: give it a type (exact, number, regex, length)"},
		{Reward{Name: "a", Type: RewardExact, Model: "m"}, "write an entry for each"},
		{Reward{Name: "a", Command: []string{"x"}, URL: "http://a"}, "write an entry for each"},
		{Reward{Name: "a", Type: "exat"}, `"exat" is no type of reward: did you mean exact?`},
		{Reward{Name: "a", Type: "python"}, "use exact, number, regex or length"},
		{Reward{Name: "a", Type: RewardExact, Weight: optim.Given(1e7)}, "weight is 1e+07"},
		{Reward{Name: "a", Command: []string{"x"}, Workers: 257}, "workers is 257"},
		{Reward{Name: "a", Command: []string{""}}, "name a program"},
		{Reward{Name: "a", Command: []string{"x"}, Env: []string{"A=b"}}, `env has "A=b"`},
		{Reward{Name: "a", Command: []string{"x"}, Column: "c"}, "column is for types exact, number and regex"},
		{Reward{Name: "a", URL: "http://a", Env: []string{"A"}}, "env is for commands: remove it"},
		{Reward{Name: "a", URL: "s3cret"}, "no address of the web"},
		{Reward{Name: "a", Type: RewardExact, Timeout: Wait(time.Second)}, "timeout is for commands and servers"},
		{Reward{Name: "a", Model: "m", Workers: 2}, "workers is for commands and servers"},
		{Reward{Name: "a", Model: "m"}, "memory.host is missing"},
		{Reward{Name: "a", URL: "http://a", Memory: ModelMemory{Host: Bytes{N: 1}}}, "memory is for models"},
		{Reward{Name: "a", Type: RewardNumber, Pattern: "x"}, "pattern is for type regex"},
		{Reward{Name: "a", Type: RewardRegex}, "pattern is missing"},
		{Reward{Name: "a", Type: RewardRegex, Pattern: `(a)\1`}, "Go's (RE2)"},
		{Reward{Name: "a", Type: RewardRegex, Pattern: "a", Column: "c"}, "has no group"},
		{Reward{Name: "a", Type: RewardExact, Max: 3}, "max is for type length"},
		{Reward{Name: "a", Type: RewardLength, Max: 3, Cache: 4}, "cache is at most max"},
	} {
		err := c.r.Check()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: %v, want %q", c.r, err, c.want)
		}
	}
	twice := []Reward{{Name: "a", Type: RewardExact}, {Name: "a", Type: RewardNumber}}
	if err := CheckRewards(twice); err == nil || !strings.HasPrefix(err.Error(), "[1]: name a is that of entry 0 too") {
		t.Error(err)
	}
	if err := CheckRewards(make([]Reward, 17)); err == nil || !strings.Contains(err.Error(), "17 entries: 16 at most") {
		t.Error(err)
	}
	var w Wait
	if err := yaml.Unmarshal([]byte("1ms"), &w); err == nil || !strings.Contains(err.Error(), "from 100ms to 24h") {
		t.Error(err)
	}
}
