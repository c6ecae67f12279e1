package runfile

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/objective"
)

// OwnSampler says that the run samples answers itself.
const OwnSampler = "own"

// ReferenceMemoryKey has the budget of the reference of a loop.
const ReferenceMemoryKey = "rl.reference_memory"

// Engines of servers that a run can have sample.
const (
	EngineSGLang = "sglang"
	EngineVLLM   = "vllm"
)

// Sampler says what samples answers. The zero value is the run itself.
type Sampler struct {
	URL    string `yaml:"url"`           // the server's address, such as http://127.0.0.1:30000
	Engine string `yaml:"engine"`        // EngineSGLang or EngineVLLM
	Dir    string `yaml:"dir,omitempty"` // that the run writes weights to, and the server reads them from
	// TokenEnv is the environment variable that has the server's key; "": the server has none.
	TokenEnv string `yaml:"token_env,omitempty"`
	// Sleeps has the server give the memory of its device back while the run trains: they share the device.
	Sleeps bool `yaml:"sleeps,omitempty"`
}

// samplerMapping is a Sampler as a mapping has it.
type samplerMapping Sampler

// IsOwn reports whether the run samples itself.
func (s Sampler) IsOwn() bool { return s == Sampler{} }

// UnmarshalYAML reads own, or a mapping.
func (s *Sampler) UnmarshalYAML(unmarshal func(any) error) error {
	*s = Sampler{}
	var word string
	if err := unmarshal(&word); err == nil {
		if word != OwnSampler && word != "" {
			return fmt.Errorf("%q is no sampler: use %s, or a mapping such as {url: http://127.0.0.1:30000, engine: %s, dir: "+
				"/dev/shm/policy}", word, OwnSampler, EngineSGLang)
		}
		return nil
	}
	return unmarshal((*samplerMapping)(s))
}

// MarshalYAML writes what UnmarshalYAML reads.
func (s Sampler) MarshalYAML() (any, error) {
	if s.IsOwn() {
		return OwnSampler, nil
	}
	return samplerMapping(s), nil
}

// Asked reports whether the run is a loop of reinforcement learning.
func (l *RL) Asked() bool { return !reflect.ValueOf(*l).IsZero() }

// decide fills in what a loop without some keys has. rows are those of a step.
func (l *RL) decide(o *Objective, rows int) {
	if !l.Asked() {
		return
	}
	for _, key := range []struct {
		is *int
		or int
	}{{&l.PromptsPerStep, 64}, {&l.Samples, 8}, {&l.MaxTokens, 1024}, {&l.Iterations, 1}} {
		if *key.is == 0 {
			*key.is = key.or
		}
	}
	for _, key := range []*float64{&l.Temperature, &l.TopP} {
		if *key == 0 {
			*key = 1
		}
	}
	l.decideMaxTokens(o)
	l.decideOld(o, rows)
	weights := map[string]float64{}
	for _, r := range l.Reward {
		if r.Weight.Given {
			weights[r.Name] = r.Weight.Value
		}
	}
	if len(weights) > 0 && len(o.RewardWeights) == 0 {
		o.RewardWeights = weights
	}
}

// decideMaxTokens gives an objective that divides by the most tokens of an answer those of the loop. One that does not
// read them refuses them.
func (l *RL) decideMaxTokens(o *Objective) {
	with := *o
	with.MaxTokens = l.MaxTokens
	if _, err := o.Open(); err == nil || o.MaxTokens != 0 {
		return
	}
	if _, err := with.Open(); err == nil {
		o.MaxTokens = l.MaxTokens
	}
}

// SaysOld reports whether the sampler's log-probabilities are those that the model has of its answers: it is the run
// itself, and draws from the whole distribution as it is.
func (l *RL) SaysOld() bool {
	return l.Sampler.IsOwn() && l.Temperature == 1 && l.TopP == 1 && l.TopK == 0
}

// decideOld chooses where an objective has the log-probabilities before the first update with a round from, if the
// round may take several steps: its sampler, where that says them, else an evaluation. Losses that read neither, since
// they need a critic's values as well, have the sampler's with several updates.
func (l *RL) decideOld(o *Objective, rows int) {
	if o.Old != "" || l.Iterations == 1 && l.PromptsPerStep*l.Samples <= rows {
		return
	}
	choices := []string{objective.OldOfStart}
	if l.SaysOld() {
		choices[0] = objective.OldOfData
	}
	if l.Iterations > 1 {
		choices = append(choices, objective.OldOfSampler)
	}
	for _, old := range choices {
		with := *o
		with.Old = old
		if of, err := with.Open(); err == nil && of != nil && of.Needs().Rollouts && !of.Needs().OldValues {
			o.Old = old
			return
		}
	}
}

// Bounds of what a loop can be asked for: what is beyond them is a slip of the keyboard.
const (
	mostPrompts = 1 << 20
	mostSamples = 1 << 12
)

// checkLoop refuses a loop that no run can do, and data or an objective that do not go with one.
func (c *Config) checkLoop(of objective.Objective) error {
	l, bad := &c.RL, fmt.Errorf
	asks := func(s data.Source) bool { return s.Type == data.Prompts }
	if !l.Asked() {
		if slices.ContainsFunc(c.Datasets, asks) {
			return bad("datasets: type %s has prompts without answers, which only a loop of reinforcement learning trains on: "+
				"set rl, such as rl: {reward: [{name: math, command: [python3, score.py]}]}", data.Prompts)
		}
		return nil
	}
	switch {
	case of == nil || !of.Needs().Rollouts:
		return bad("rl: objective.type is %s, and a loop learns from rewards of its answers: set objective: {type: policy}",
			c.Objective.Type)
	case slices.ContainsFunc(c.Datasets, func(s data.Source) bool { return !asks(s) }):
		i := slices.IndexFunc(c.Datasets, func(s data.Source) bool { return !asks(s) })
		return bad("rl: dataset %s is of type %s, and a loop samples its own answers: set type: %s", c.Datasets[i].Path,
			c.Datasets[i].Type, data.Prompts)
	case of.Needs().OldValues:
		return bad("objective.old is %s, and a loop has no critic's values of its answers: set it to %s, or leave it out",
			c.Objective.Old, objective.OldOfSampler)
	case of.Needs().Old && !of.Needs().OldOfStart && !l.SaysOld():
		return bad("objective.old is %s, and the log-probabilities of the sampler are not the model's own: it is a server, "+
			"or rl.temperature, top_p or top_k change them; set objective.old to %s, or leave it out", c.Objective.Old,
			objective.OldOfStart)
	case of.Needs().Reference && c.Objective.Reference == ReferenceData:
		return bad("objective.reference is %s, and a loop samples its own answers, of which no file has what a reference "+
			"says: set it to %s, or to a model's directory", ReferenceData, ReferenceStart)
	case of.Needs().Reference && l.ReferenceMemory.Host.N == 0:
		return bad("rl.reference_memory.host is missing: say how much the reference (objective.reference: %s) may take "+
			"besides the run, such as rl.reference_memory: {host: 8GiB}, and give memory.host so much less",
			c.Objective.Reference)
	case !of.Needs().Reference && l.ReferenceMemory != ModelMemory{}:
		return bad("rl.reference_memory is given, and the objective compares with no reference: set objective.kl, or leave " +
			"it out")
	case c.MaxSteps == 0:
		return bad("rl: max_steps is missing: how many steps an epoch has is known only when its answers are sampled; say " +
			"how many steps the loop takes")
	case len(l.Reward) == 0 && of.Needs().Rewards:
		return bad("rl.reward is missing: list what judges answers, such as [{name: math, command: [python3, score.py]}]")
	case l.PromptsPerStep < 1 || l.PromptsPerStep > mostPrompts:
		return bad("rl.prompts_per_step is %d: it must be between 1 and %d", l.PromptsPerStep, mostPrompts)
	case l.Samples < 1 || l.Samples > mostSamples:
		return bad("rl.samples is %d: it must be between 1 and %d", l.Samples, mostSamples)
	case l.MaxTokens < 1 || l.MaxTokens >= c.SequenceLen:
		return bad("rl.max_tokens is %d, and sequence_len %d has to have room for a prompt, too: lower it, or raise "+
			"sequence_len",
			l.MaxTokens, c.SequenceLen)
	case !(l.Temperature >= 0.01 && l.Temperature <= 100):
		return bad("rl.temperature is %v: it must be between 0.01 and 100; 1 samples from the model as it is", l.Temperature)
	case !(l.TopP > 0 && l.TopP <= 1):
		return bad("rl.top_p is %v: it must be above 0 and at most 1", l.TopP)
	case l.TopK < 0:
		return bad("rl.top_k is %d: it must not be negative; 0 is all", l.TopK)
	case l.Iterations < 1 || l.Iterations > mostEpochs:
		return bad("rl.iterations is %d: it must be between 1 and %d", l.Iterations, mostEpochs)
	case l.MaxStaleness < 0:
		return bad("rl.max_staleness is %d: it must not be negative", l.MaxStaleness)
	case l.MaxGroups != 0 && l.MaxGroups < l.PromptsPerStep || l.MaxGroups > mostPrompts:
		return bad("rl.max_groups is %d, and a round has %d prompts at least (rl.prompts_per_step): make it more, or 0",
			l.MaxGroups, l.PromptsPerStep)
	case l.MaxGroups > 0 && l.Samples == 1:
		return bad("rl.max_groups replaces groups whose rewards are equal, and rl.samples is 1: raise rl.samples, or leave " +
			"rl.max_groups out")
	case l.MaxGroups > 0 && len(l.Reward) == 0:
		return bad("rl.max_groups replaces groups whose rewards are equal, and rl.reward has none: leave it out")
	}
	for _, s := range c.Datasets {
		if s.Weight != 0 && s.Weight != 1 {
			return bad("dataset %s: weight is %v, and a loop takes each prompt once in an epoch: leave it out", s.Path, s.Weight)
		}
	}
	if err := l.Sampler.check(); err != nil {
		return bad("rl.sampler: %w", err)
	}
	if err := CheckRewards(l.Reward); err != nil {
		return bad("rl.reward%w", err)
	}
	return nil
}

func (s Sampler) check() error {
	switch engines := []string{EngineSGLang, EngineVLLM}; {
	case s.IsOwn():
		return nil
	case s.URL == "":
		return errors.New("url is missing: write the server's address, such as http://127.0.0.1:30000")
	case !slices.Contains(engines, s.Engine):
		return fmt.Errorf("engine is %q%s; use %s", s.Engine, spelling.Question(s.Engine, engines), spelling.Or(engines))
	case s.Dir == "":
		return errors.New("dir is missing: name a directory that the server can read, such as /dev/shm/policy, for the " +
			"weights of each round")
	}
	return checkAddress(s.URL)
}

// String is the loop as checkpoints record it, in a line.
func (l *RL) String() string {
	doc, err := yaml.MarshalWithOptions(l, yaml.Flow(true))
	if err != nil {
		return fmt.Sprint(*l) // a value that was read is written
	}
	return strings.TrimSpace(string(doc))
}
