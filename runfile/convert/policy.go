package convert

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/objective"
)

// rewarded is the objective of files that learn from rewards of answers: GRPO and its kin.
const rewarded = "policy"

// loop holds the keys of rl on their way: how answers are sampled, and what judges them.
type loop struct {
	parts   []string
	from    []string // keys of the file
	how     []string
	rewards []string // entries of rl.reward
	judges  bool     // a reward model is among them
	prompts int64    // of a round
	samples int64
	tokens  int64 // of an answer at most
	length  int64 // of prompt and answer
}

// part adds a key of rl.
func (l *loop) part(key, value string, from ...string) {
	l.parts = append(l.parts, key+": "+value)
	l.from = append(l.from, given(from...)...)
}

// rewardNames are names that a reward can have.
var rewardNames = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// reward adds an entry of rl.reward: what judges, as YAML, with its weight.
func (l *loop) reward(name, judge string, weight float64) {
	name = strings.Trim(rewardNames.ReplaceAllString(name, "_"), "_")
	has := func(entry string) bool { return strings.Contains(entry, "name: "+name+",") }
	if name == "" || slices.ContainsFunc(l.rewards, has) {
		name = fmt.Sprintf("%s%d", name, len(l.rewards)+1)
	}
	entry := "{name: " + scalar(name[:min(len(name), 64)]) + ", " + judge
	if weight != 1 {
		entry += ", weight: " + numeral(weight)
	}
	l.rewards = append(l.rewards, entry+"}")
}

// judge adds a reward model, which has a budget of its own here.
func (l *loop) judge(c *conversion, name, model string, weight float64) {
	l.reward(name, "model: "+scalar(model)+", memory: {host: 8GiB}", weight)
	if !l.judges {
		l.judges = true
		c.decide(nil, "rl.reward[].memory: what a reward model may take besides the run; 8GiB is a guess")
	}
}

// numberAt reads a number of the file, or has the usual one of its trainer. from is empty where the file has none.
func (c *conversion) numberAt(usual float64, keys ...string) (x float64, from string) {
	key, v := c.take(keys...)
	if x, ok := number(v); ok {
		return x, key
	}
	if key != "" {
		c.decide(given(key), "%s is %s, and no number; it is taken as %s", key, shown(v), numeral(usual))
	}
	return usual, ""
}

// countAt is numberAt of a number that counts something.
func (c *conversion) countAt(usual int64, keys ...string) (n int64, from string) {
	key, v := c.take(keys...)
	if n, ok := count(v); ok {
		return n, key
	}
	if x, ok := number(v); key != "" && !(ok && x <= 0) { // -1 and 0 are no value
		c.decide(given(key), "%s is %s, and no whole number; it is taken as %d", key, shown(v), usual)
	} else if key != "" {
		c.dismiss("it has no value", key)
	}
	return usual, ""
}

// clipped adds loss and clip, where they are not the defaults here.
func (c *conversion) clipped(loss string, clip []float64, from ...string) {
	if loss != "dapo" {
		c.goal.part("loss", loss)
	}
	usual := objective.Settings{Type: rewarded, Losses: []string{loss}}.Resolved()
	if usual.Clip == nil {
		c.dismiss("the loss has no clip", given(from...)...)
		return
	}
	c.goal.from = append(c.goal.from, given(from...)...)
	if loss == "cispo" {
		clip = []float64{0, clip[1]}
	}
	if !slices.Equal(clip, usual.Clip) {
		c.goal.part("clip", fmt.Sprintf("[%s, %s]", numeral(clip[0]), numeral(clip[1])))
	}
}

// advantage adds the way of advantages, where it is not that of the loss here.
func (c *conversion) advantage(loss, how string, from ...string) {
	usual := objective.Settings{Type: rewarded, Losses: []string{loss}}.Resolved()
	if c.goal.from = append(c.goal.from, given(from...)...); how != usual.Advantage {
		c.goal.part("advantage", how)
	}
}

// divergence adds the coefficient of the divergence from the reference.
func (c *conversion) divergence(kl float64, plain bool, from ...string) {
	if kl <= 0 {
		c.dismiss("the file has no divergence from a reference", given(from...)...)
		return
	}
	if c.goal.number("kl", kl, from...); plain {
		c.goal.part("kl_plain", "true")
	}
	c.loop.part("reference_memory", "{host: 8GiB}")
	c.decide(nil, "rl.reference_memory: what the reference, the model as it begins, may take besides the run; 8GiB is a "+
		"guess")
}

// setLoop makes the settings of the loop, and those of a step that follow from it.
func (c *conversion) setLoop(updates float64, updatesFrom ...string) {
	l := &c.loop
	if updates > 1 && updates == math.Trunc(updates) && l.prompts%int64(updates) == 0 {
		c.goal.part("groups_per_step", numeral(float64(l.prompts)/updates), updatesFrom...)
		c.goal.how = append(c.goal.how, fmt.Sprintf("%s updates with the answers of a round", numeral(updates)))
	} else if updates != 1 {
		c.decide(given(updatesFrom...), "objective.groups_per_step: by %s the file makes %s updates with the answers of a "+
			"round of %s", plainList(given(updatesFrom...)), numeral(short(updates)), spelling.Count(int(l.prompts), "prompt"))
	} else {
		c.dismiss("a round is one update", given(updatesFrom...)...)
	}
	value := "\n  " + strings.Join(l.parts, "\n  ") + "\n  reward:"
	for _, r := range l.rewards {
		value += "\n    - " + r
	}
	c.set("rl", value, slices.Compact(l.from), "%s", strings.Join(l.how, "; "))
	c.set("sequence_len", numeral(float64(l.length)), nil, "of prompt and answer")
	most := l.prompts * l.samples
	if most > mostBatch/l.length {
		c.decide(nil, "batch_tokens: a step of %d answers of %d tokens is more than %d; lower rl.prompts_per_step, or set "+
			"objective.groups_per_step", most, l.length, mostBatch)
		most = mostBatch / l.length
	}
	c.set("batch_tokens", numeral(float64(most*l.length)), nil, "%s of %s, each as long as it can be",
		spelling.Count(int(l.prompts), "prompt"), spelling.Count(int(l.samples), "answer"))
}

// rounds sets how long the loop is.
func (c *conversion) rounds(steps int64, stepsKey string, passes float64, passesKey string) {
	if stepsKey != "" {
		c.set("max_steps", numeral(float64(steps)), given(stepsKey), "")
		c.dismiss(stepsKey+" is set", given(passesKey)...)
		return
	}
	c.set("max_steps", "1000", given(passesKey), "a guess")
	c.decide(nil, "max_steps: the file passes over its prompts (%s), and a loop has a number of steps instead: with n "+
		"prompts it is n x %s / %d for each update of a round", spelling.Count(int(passes), "time"), numeral(passes),
		c.loop.prompts)
}

// policy makes the objective and the loop of a file that learns from rewards.
func (c *conversion) policy() {
	if c.result.Tool == Verl {
		c.verl()
	} else {
		c.policyOfTRL()
	}
	c.setObjective()
	c.set("overlong", "drop", nil, "groups whose prompt leaves no room for an answer")
}

// askForRewards says that functions of Python are programs here.
func (c *conversion) askForRewards(keys ...string) {
	c.decide(given(keys...), "rl.reward: a function of Python is called by a program, which gets a line of JSON for each "+
		"answer; docs/rl.md has trl_judge.py, which calls functions as TRL does. Save it, and check what command names")
}
