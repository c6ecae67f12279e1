package optim

import (
	"slices"
	"strings"
	"testing"
)

// The first group whose pattern a tensor matches is the tensor's, and train_only freezes the rest of the model.
func TestGroupOf(t *testing.T) {
	g := Groups{All: []Group{{Match: "*.embed_tokens.*", LearningRate: Given(1e-6)}, {Match: "model.layers.[0-9].*", Freeze: true},
		{Match: "*.weight", WeightDecay: Given(0)}}}
	only := Groups{All: g.All, TrainOnly: []string{"model.layers.*", "lm_head.weight"}}
	for _, c := range []struct {
		name            string
		group           int
		trained, inOnly bool
	}{
		{"model.embed_tokens.weight", 1, true, false},
		{"model.layers.3.mlp.up_proj.weight", 2, false, false},
		{"model.layers.13.mlp.up_proj.weight", 3, true, true},
		{"model.layers.13.self_attn.q_proj.bias", 0, true, true},
		{"lm_head.weight", 3, true, true},
		{"model.norm.weight", 3, true, false},
	} {
		if group, trained := g.Of(c.name); group != c.group || trained != c.trained {
			t.Errorf("%s: group %d, trained %v", c.name, group, trained)
		}
		if group, trained := only.Of(c.name); group != c.group || trained != c.inOnly {
			t.Errorf("%s with train_only: group %d, trained %v", c.name, group, trained)
		}
	}
	if err := only.Check(); err != nil {
		t.Error(err)
	}
}

func TestGroupsCheck(t *testing.T) {
	for _, c := range []struct {
		groups Groups
		want   string
	}{
		{Groups{All: []Group{{Freeze: true}}}, "groups[0].match is empty"},
		{Groups{All: []Group{{Match: "a", Freeze: true}, {Match: "[", Freeze: true}}}, `groups[1].match is "["`},
		{Groups{All: []Group{{Match: "a"}}}, "groups[0] sets nothing"},
		{Groups{All: []Group{{Match: "a", Freeze: true, WeightDecay: Given(0)}}}, "choose one"},
		{Groups{All: []Group{{Match: "a", LearningRate: Given(-1)}}}, "groups[0].learning_rate is -1"},
		{Groups{All: []Group{{Match: "a", WeightDecay: Given(-1)}}}, "groups[0].weight_decay is -1"},
		{Groups{TrainOnly: []string{"a", "x[b"}}, "train_only[1] is"},
	} {
		if err := c.groups.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.groups, err)
		}
	}
	names := []string{"model.norm.weight", "lm_head.weight"}
	for pattern, ok := range map[string]bool{"*": true, "*.norm.*": true, "norm": false} {
		for _, g := range []Groups{{TrainOnly: []string{pattern}}, {All: []Group{{Match: pattern, Freeze: true}}}} {
			if err := g.CheckNames(names); (err == nil) != ok {
				t.Errorf("%q: %v", pattern, err)
			}
		}
	}
}

// A group's schedule has the shape of the run's, and a setting that a group lacks is the run's.
func TestGroupRates(t *testing.T) {
	g := Groups{All: []Group{{LearningRate: Given(1e-6)}, {WeightDecay: Given(0)}, {LearningRate: Given(0), WeightDecay: Given(0.5)}}}
	got := g.Rates(5e-5, 1e-4, 0.1)
	if want := []Rates{{5e-7, 0.1}, {5e-5, 0}, {0, 0.5}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := g.Rates(0, 0, 0.1); !slices.Equal(got, []Rates{{0, 0.1}, {}, {0, 0.5}}) {
		t.Errorf("of a run without a rate: %v", got)
	}
}
