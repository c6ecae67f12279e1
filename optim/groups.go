package optim

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Group has the settings of the tensors whose names in a checkpoint match a pattern of path.Match. A setting that a group
// does not have is the run's.
type Group struct {
	// A pattern of tensor names, in which `*` stands for any letters: `"*.embed_tokens.*"`, or
	// `"model.layers.[0-9].*"` for the first ten blocks.
	Match string `yaml:"match" json:"match"`
	// Their highest learning rate; the schedule keeps its shape.
	LearningRate Setting `yaml:"learning_rate,omitempty" json:"learning_rate,omitzero"`
	// Their weight decay.
	WeightDecay Setting `yaml:"weight_decay,omitempty" json:"weight_decay,omitzero"`
	// Not trained: they have no gradient and no optimizer state.
	Freeze bool `yaml:"freeze,omitempty" json:"freeze,omitempty"`
}

// Setting is a number that may be missing.
type Setting struct {
	Value float64
	Given bool
}

// Given returns a setting with a value.
func Given(x float64) Setting { return Setting{x, true} }

// IsZero reports whether there is no value.
func (s Setting) IsZero() bool { return !s.Given }

// Or returns the value, or another one where a setting has none.
func (s Setting) Or(other float64) float64 {
	if s.Given {
		return s.Value
	}
	return other
}

// MarshalText writes the number, or nothing.
func (s Setting) MarshalText() ([]byte, error) {
	if !s.Given {
		return nil, nil
	}
	return strconv.AppendFloat(nil, s.Value, 'g', -1, 64), nil
}

// UnmarshalYAML reads a number.
func (s *Setting) UnmarshalYAML(read func(any) error) error {
	var text string
	if err := read(&text); err != nil {
		return err
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("%q is not a number", text)
	}
	*s = Given(x)
	return nil
}

// MarshalYAML writes the number.
func (s Setting) MarshalYAML() (any, error) { return s.Value, nil }

// String is the group as checkpoints record it.
func (g Group) String() string {
	text := g.Match
	if g.LearningRate.Given {
		text += fmt.Sprintf(" learning_rate=%v", g.LearningRate.Value)
	}
	if g.WeightDecay.Given {
		text += fmt.Sprintf(" weight_decay=%v", g.WeightDecay.Value)
	}
	if g.Freeze {
		text += " freeze"
	}
	return text
}

// Groups says which tensors are trained, and how. The first group that a tensor matches is the tensor's, number 1 the
// first of them; one that matches none is in group 0.
type Groups struct {
	All []Group
	// TrainOnly are patterns as those of groups. With any, what matches none of them is frozen.
	TrainOnly []string
}

// Check refuses patterns and settings that mean nothing.
func (g Groups) Check() error {
	for i, group := range g.All {
		name := fmt.Sprintf("groups[%d]", i)
		if err := checkPattern(group.Match); err != nil {
			return fmt.Errorf("%s.match %w", name, err)
		}
		for _, s := range []struct {
			key string
			Setting
		}{{"learning_rate", group.LearningRate}, {"weight_decay", group.WeightDecay}} {
			if s.Given && (!(s.Value >= 0) || math.IsInf(s.Value, 0)) {
				return fmt.Errorf("%s.%s is %v: it must be finite and not negative", name, s.key, s.Value)
			}
		}
		switch given := group.LearningRate.Given || group.WeightDecay.Given; {
		case group.Freeze && given:
			return fmt.Errorf("%s freezes its tensors, and has a setting to train them with: choose one", name)
		case !group.Freeze && !given:
			return fmt.Errorf("%s sets nothing: give it learning_rate, weight_decay or freeze", name)
		}
	}
	for i, pattern := range g.TrainOnly {
		if err := checkPattern(pattern); err != nil {
			return fmt.Errorf("train_only[%d] %w", i, err)
		}
	}
	return nil
}

func checkPattern(pattern string) error {
	if pattern == "" {
		return errors.New("is empty: name tensors, such as \"*.embed_tokens.*\"")
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("is %q: a [ needs its ], as in model.layers.[0-9].*", pattern)
	}
	return nil
}

// Of returns the group of a tensor, by its name, and whether the tensor is trained.
func (g Groups) Of(name string) (group int, trained bool) {
	matches := func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok } // Check has seen the pattern
	trained = len(g.TrainOnly) == 0 || slices.ContainsFunc(g.TrainOnly, matches)
	for i := range g.All {
		if matches(g.All[i].Match) {
			return 1 + i, trained && !g.All[i].Freeze
		}
	}
	return 0, trained
}

// CheckNames refuses a pattern that matches none of a model's tensors.
func (g Groups) CheckNames(names []string) error {
	patterns := slices.Clone(g.TrainOnly)
	for _, group := range g.All {
		patterns = append(patterns, group.Match)
	}
	for _, pattern := range patterns {
		if !slices.ContainsFunc(names, func(name string) bool { ok, _ := path.Match(pattern, name); return ok }) {
			return fmt.Errorf("groups and train_only: %q matches no tensor of the model; its tensors have names such as %s",
				pattern, strings.Join(names[:min(2, len(names))], " and "))
		}
	}
	return nil
}

// Rates are the learning rate and the weight decay of a group in a step.
type Rates struct{ LR, WeightDecay float64 }

// Check refuses rates that make weights infinite or NaN.
func (r Rates) Check() error {
	switch {
	case !(r.LR >= 0) || math.IsInf(r.LR, 0):
		return fmt.Errorf("the learning rate is %v: it must be finite and not negative", r.LR)
	case !(r.WeightDecay >= 0) || math.IsInf(r.WeightDecay, 0):
		return fmt.Errorf("the weight decay is %v: it must be finite and not negative", r.WeightDecay)
	}
	return nil
}

// Rates returns the rates of each group, in a step in which the run's learning rate is lr. peak is the run's highest
// one, of which a group's schedule has the shape.
func (g Groups) Rates(lr, peak, decay float64) []Rates {
	all := make([]Rates, len(g.All))
	for i, group := range g.All {
		all[i] = Rates{lr, group.WeightDecay.Or(decay)}
		if group.LearningRate.Given && peak > 0 {
			all[i].LR = lr * (group.LearningRate.Value / peak)
		}
	}
	return all
}
