package runfile

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/optim"
)

// Types of rewards that the program computes itself.
const (
	RewardExact  = "exact"  // the answer is the text of a column
	RewardNumber = "number" // its final number is that of a column
	RewardRegex  = "regex"  // it matches a pattern
	RewardLength = "length" // DAPO's soft punishment of answers that are nearly too long
)

// RewardTypes are the names of them.
var RewardTypes = []string{RewardExact, RewardNumber, RewardRegex, RewardLength}

// Reward is an entry of rl.reward: a judge of answers, and how much its word counts.
type Reward struct {
	// The name that rows and metrics have for it.
	Name string `yaml:"name"`
	// A type of reward that needs no program.
	Type string `yaml:"type,omitempty"`
	// The key of the row that the answer is compared with; dots go into mappings.
	Column string `yaml:"column,omitempty"`
	// Of regex: what the answer matches, in Go's syntax.
	Pattern string `yaml:"pattern,omitempty"`
	// Of length: the tokens of an answer from which on the punishment is whole; 0: what a sampler is asked for.
	Max int `yaml:"max,omitempty"`
	// Of length: the tokens before them over which it grows; 0: a fifth of them.
	Cache int `yaml:"cache,omitempty"`
	// A program and its arguments, which no shell reads.
	Command []string `yaml:"command,omitempty,flow"`
	// The address of a server. Names such as $JUDGE in it are variables of the environment.
	URL string `yaml:"url,omitempty"`
	// A model that scores texts: its directory or hub id, or the output directory of a run.
	Model string `yaml:"model,omitempty"`
	// The memory that it takes while it scores, besides the run's.
	Memory ModelMemory `yaml:"memory,omitempty,flow"`
	// Variables of the environment that a command has besides PATH and HOME.
	Env []string `yaml:"env,omitempty,flow"`
	// The factor of the reward in the sum of all.
	Weight optim.Setting `yaml:"weight,omitempty"`
	// The longest wait for an answer of a command or a server.
	Timeout Wait `yaml:"timeout,omitempty"`
	// Processes, or requests at a time.
	Workers int `yaml:"workers,omitempty"`
}

// Budgets are the budgets of a run of the model alone.
func (m ModelMemory) Budgets() Memory {
	return Memory{Device: m.Device, Host: m.Host, Disk: Bytes{none: true}}
}

// Defaults of a reward.
const (
	rewardColumn  = "answer"
	rewardTimeout = 30 * time.Second
)

// Bounds of rewards: those of the names and numbers of a row of type rollouts, and of a slip of the keyboard.
const (
	mostRewards         = 16
	mostRewardNameBytes = 64
	mostRewardWeight    = 1e6
	mostRewardWorkers   = 256
)

var (
	rewardName   = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Factor is the weight of the reward.
func (r *Reward) Factor() float64 { return r.Weight.Or(1) }

// ComparesWith is the key of the row that the answer is compared with; empty where it is compared with none.
func (r *Reward) ComparesWith() string {
	if r.Column == "" && (r.Type == RewardExact || r.Type == RewardNumber) {
		return rewardColumn
	}
	return r.Column
}

// Patience is the longest wait for an answer.
func (r *Reward) Patience() time.Duration {
	if r.Timeout == 0 {
		return rewardTimeout
	}
	return time.Duration(r.Timeout)
}

// Instances counts processes, or requests at a time.
func (r *Reward) Instances() int { return max(r.Workers, 1) }

// Address returns the address of the server, with the variables of the environment in it.
func (r *Reward) Address() (string, error) { return addressOf(r.URL) }

// Check refuses a reward that cannot judge. It looks at the run file alone.
func (r *Reward) Check() error {
	if r.Name == "" {
		return errors.New("name is missing: give the reward one, such as math, which metrics have too")
	}
	if len(r.Name) > mostRewardNameBytes || !rewardName.MatchString(r.Name) {
		return fmt.Errorf("name is %q: use up to %d letters, digits, and - _ .", r.Name, mostRewardNameBytes)
	}
	ways := 0
	for _, given := range []bool{r.Type != "", len(r.Command) > 0, r.URL != "", r.Model != ""} {
		if given {
			ways++
		}
	}
	switch w := r.Factor(); {
	case ways > 1:
		return errors.New("type, command, url and model exclude each other: write an entry for each")
	case ways == 0:
		return fmt.Errorf("it has no judge: give it a type (%s), a command, a url or a model",
			strings.Join(RewardTypes, ", "))
	case !(math.Abs(w) <= mostRewardWeight):
		return fmt.Errorf("weight is %v: use a number between -%g and %[2]g", w, float64(mostRewardWeight))
	case r.Workers < 0 || r.Workers > mostRewardWorkers:
		return fmt.Errorf("workers is %d: use a number from 1 to %d", r.Workers, mostRewardWorkers)
	case len(r.Command) > 0 && r.Command[0] == "":
		return errors.New("command begins with an empty name: name a program")
	case r.URL != "" && !strings.HasPrefix(r.URL, "$"):
		if err := checkAddress(r.URL); err != nil {
			return err
		}
	}
	for _, name := range r.Env {
		if !variableName.MatchString(name) {
			return fmt.Errorf("env has %q: list names of variables of the environment, whose values the command gets", name)
		}
	}
	if err := r.checkKeys(); err != nil {
		return err
	}
	if r.Model != "" && r.Memory.Host.N == 0 {
		return errors.New("memory.host is missing: say how much the model may take besides the run, such as memory: " +
			"{host: 8GiB}, and give the run's memory.host so much less")
	}
	return r.checkType()
}

// checkKeys refuses keys of other judges.
func (r *Reward) checkKeys() error {
	isProgram := len(r.Command) > 0
	for _, of := range []struct {
		key          string
		given, reads bool
		readers      string
	}{
		{"column", r.Column != "", r.Type == RewardExact || r.Type == RewardNumber || r.Type == RewardRegex,
			"types exact, number and regex"},
		{"pattern", r.Pattern != "", r.Type == RewardRegex, "type regex"},
		{"max", r.Max != 0, r.Type == RewardLength, "type length"},
		{"cache", r.Cache != 0, r.Type == RewardLength, "type length"},
		{"env", len(r.Env) > 0, isProgram, "commands"},
		{"memory", r.Memory != (ModelMemory{}), r.Model != "", "models"},
		{"timeout", r.Timeout != 0, isProgram || r.URL != "", "commands and servers"},
		{"workers", r.Workers != 0, isProgram || r.URL != "", "commands and servers"},
	} {
		if of.given && !of.reads {
			return fmt.Errorf("%s is for %s: remove it", of.key, of.readers)
		}
	}
	return nil
}

// checkType refuses settings that a type cannot use.
func (r *Reward) checkType() error {
	switch r.Type {
	case "", RewardExact, RewardNumber:
	case RewardRegex:
		if r.Pattern == "" {
			return errors.New("pattern is missing: write what an answer matches, such as '</think>'")
		}
		p, err := regexp.Compile(r.Pattern)
		if err != nil {
			return fmt.Errorf("pattern: %w; the syntax is Go's (RE2), without references back", err)
		}
		if r.Column != "" && p.NumSubexp() == 0 {
			return errors.New("column is given, and pattern has no group that is compared with it: put ( ) around a part of it")
		}
	case RewardLength:
		if r.Max < 0 || r.Cache < 0 || r.Max > 0 && r.Cache > r.Max {
			return fmt.Errorf("max is %d and cache %d: they count tokens, and cache is at most max", r.Max, r.Cache)
		}
	default:
		question := spelling.Question(r.Type, RewardTypes)
		if question == "" {
			question = ": use " + spelling.Or(RewardTypes)
		}
		return fmt.Errorf("type: %q is no type of reward%s", r.Type, question)
	}
	return nil
}

// CheckRewards refuses a list of rewards, naming the entry and its key.
func CheckRewards(all []Reward) error {
	if len(all) > mostRewards {
		return fmt.Errorf("there are %d entries: %d at most", len(all), mostRewards)
	}
	for i := range all {
		if err := all[i].Check(); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
		if first := slices.IndexFunc(all, func(r Reward) bool { return r.Name == all[i].Name }); first < i {
			return fmt.Errorf("[%d]: name %s is that of entry %d too: give each a name of its own", i, all[i].Name, first)
		}
	}
	return nil
}
