package objective

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestDefaults(t *testing.T) {
	for _, x := range []struct {
		given, want Settings
		needs       Needs
	}{
		{Settings{Type: "dpo"}, Settings{Type: "dpo", Losses: []string{"sigmoid"}, Shares: []float64{1}, Beta: 0.1,
			NLL: new(0.0), LDAlpha: new(1.0)}, Needs{Reference: true, Pairs: true}},
		{Settings{Type: "dpo", Losses: []string{"exo_pair"}, NLL: new(0.5)}, Settings{Type: "dpo",
			Losses: []string{"exo_pair"}, Shares: []float64{1}, Beta: 0.1, LabelSmoothing: 1e-3,
			NLL: new(0.5), LDAlpha: new(1.0)},
			Needs{Reference: true, Pairs: true}},
		{Settings{Type: "dpo", Losses: []string{"sigmoid", "bco_pair", "sft"}}, Settings{Type: "dpo", Beta: 0.1,
			Losses: []string{"sigmoid", "bco_pair", "sft"}, Shares: []float64{1, 1, 1}, NLL: new(0.0), LDAlpha: new(1.0)},
			Needs{Reference: true, Pairs: true}},
		{Settings{Type: "kto"}, Settings{Type: "kto", Losses: []string{"kto"}, Beta: 0.1, Desirable: new(1.0),
			Undesirable: new(1.0)}, Needs{Reference: true, Labels: true, Mismatched: true}},
		{Settings{Type: "kto", Losses: []string{"apo_zero_unpaired"}, Beta: 1}, Settings{Type: "kto",
			Losses: []string{"apo_zero_unpaired"}, Beta: 1, Desirable: new(1.0), Undesirable: new(1.0)},
			Needs{Reference: true, Labels: true}},
		{Settings{Type: "orpo"}, Settings{Type: "orpo", Losses: []string{"orpo"}, Beta: 0.1, NLL: new(1.0)},
			Needs{Pairs: true}},
		{Settings{Type: "orpo", NLLPrompt: true}, Settings{Type: "orpo", Losses: []string{"orpo"}, Beta: 0.1, NLL: new(1.0),
			NLLPrompt: true}, Needs{Pairs: true, Prompts: true}},
		{Settings{Type: "simpo"}, Settings{Type: "simpo", Losses: []string{"simpo"}, Beta: 2, NLL: new(0.0), Gamma: new(1.0)},
			Needs{Pairs: true}},
		{Settings{Type: "cpo"}, Settings{Type: "cpo", Losses: []string{"sigmoid"}, Beta: 0.1, NLL: new(1.0)},
			Needs{Pairs: true}},
		{Settings{Type: "reward"}, Settings{Type: "reward", Center: new(0.0)}, Needs{Pairs: true, Scores: true}},
		{Settings{Type: "dft"}, Settings{Type: "dft"}, Needs{}},
		{Settings{Type: "distill"}, Settings{Type: "distill", TopK: 64, Share: new(1.0), Temperature: new(1.0)},
			Needs{TopK: 64, Temperature: 1}},
		{Settings{Type: "ppo", Beta: 1}, Settings{Type: "ppo", Beta: 1}, Needs{}},
	} {
		if got := x.given.Resolved(); !reflect.DeepEqual(got, x.want) {
			t.Errorf("%+v becomes %+v, want %+v", x.given, got, x.want)
		}
		if x.given.Type == "ppo" {
			continue
		}
		o := open(t, x.given)
		if o.Needs() != x.needs || o.Name() != x.given.Type {
			t.Errorf("%+v: %s needs %+v, want %+v", x.given, o.Name(), o.Needs(), x.needs)
		}
	}
}

// TestResolvedIsWhole: resolved settings are accepted, make the same objective, stay as they are when they are resolved
// again, and share no memory with the given ones.
func TestResolvedIsWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := drawVariant(rt)
		r := v.settings.Resolved()
		again := r.Resolved()
		if !reflect.DeepEqual(r, again) {
			rt.Fatalf("%+v becomes %+v", r, again)
		}
		a, b := open(rt, v.settings), open(rt, r)
		step := drawStep(rt, a.Needs())
		other := copyOf(step)
		if x, y := weigh(rt, a, step), weigh(rt, b, other); !reflect.DeepEqual(x, y) || !reflect.DeepEqual(step, other) {
			rt.Fatalf("result %+v, of resolved settings %+v", x, y)
		}
		for _, n := range numbers {
			if p := *n.of(&again); p != nil {
				*p++
			}
		}
		for i := range again.Losses {
			again.Losses[i] = ""
		}
		for i := range again.Shares {
			again.Shares[i] = 0
		}
		if !reflect.DeepEqual(r, v.settings.Resolved()) {
			rt.Fatal("a change of resolved settings changes those that they come from")
		}
	})
}

func TestNewRefuses(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, x := range []struct {
		s    Settings
		want string
	}{
		{Settings{}, `type is ""; it can be dpo, kto, orpo, simpo, cpo, reward, dft or distill`},
		{Settings{Type: "dpoo"}, `type is "dpoo": did you mean dpo?; it can be`},
		{Settings{Type: "dpo", Losses: []string{"sigmiod"}}, `loss "sigmiod" is no loss of type dpo`},
		{Settings{Type: "dpo", Losses: []string{"sigmoids"}}, `did you mean sigmoid?`},
		{Settings{Type: "dpo", Losses: []string{"kto"}}, `loss "kto" is no loss of type dpo`},
		{Settings{Type: "dpo", Losses: []string{"sft", "sft"}}, "loss names sft twice"},
		{Settings{Type: "cpo", Losses: []string{"sigmoid", "hinge"}}, "loss names 2 losses, and type cpo takes one"},
		{Settings{Type: "dpo", Shares: []float64{1, 2}}, "weights has 2 numbers for 1 losses"},
		{Settings{Type: "dpo", Shares: []float64{0}}, "weights: sigmoid has 0: it must be finite and above 0"},
		{Settings{Type: "dpo", Shares: []float64{nan}}, "weights: sigmoid has NaN"},
		{Settings{Type: "kto", Shares: []float64{1}}, "weights is given, and type kto does not read it: " +
			"leave it out, or take type dpo"},
		{Settings{Type: "dpo", Beta: -1}, "beta is -1: it must be finite and above 0"},
		{Settings{Type: "dpo", Beta: nan}, "beta is NaN"},
		{Settings{Type: "dpo", Beta: inf}, "beta is +Inf"},
		{Settings{Type: "dpo", TopK: 8}, "top_k is given, and type dpo does not read it: leave it out, or take type distill"},
		{Settings{Type: "distill", TopK: -1}, "top_k is -1: it must be between 1 and 1024"},
		{Settings{Type: "distill", TopK: 1025}, "top_k is 1025"},
		{Settings{Type: "distill", Share: new(0.0)}, "share is 0: it must be above 0, and 1 at most"},
		{Settings{Type: "distill", Share: new(1.5)}, "share is 1.5"},
		{Settings{Type: "distill", Temperature: new(0.0)}, "temperature is 0: it must be between 0.1 and 100"},
		{Settings{Type: "distill", Temperature: new(101.0)}, "temperature is 101"},
		{Settings{Type: "distill", Temperature: &nan}, "temperature is NaN"},
		{Settings{Type: "distill", Temperature: new(2.0), Share: new(0.5)},
			"temperature is 2, and share is 0.5, which leaves a part of the loss to the next token, whose likelihood a " +
				"temperature would change: set share to 1, or temperature to 1"},
		{Settings{Type: "dft", Temperature: new(1.0)}, "temperature is given, and type dft does not read it: leave it out, " +
			"or take type distill"},
		{Settings{Type: "distill", NLL: new(1.0)}, "nll is given, and type distill does not read it"},
		{Settings{Type: "dft", Beta: 1}, "beta is given, and type dft does not read it"},
		{Settings{Type: "dft", Losses: []string{"dft"}}, "loss is given, and type dft does not read it"},
		{Settings{Type: "dpo", LabelSmoothing: 0.5}, "label_smoothing is 0.5: it must be at least 0 and below 0.5"},
		{Settings{Type: "dpo", LabelSmoothing: nan}, "label_smoothing is NaN"},
		{Settings{Type: "dpo", LabelSmoothing: -0.1}, "label_smoothing is -0.1"},
		{Settings{Type: "dpo", Losses: []string{"hinge"}, LabelSmoothing: 0.1},
			"label_smoothing is 0.1, and the loss hinge does not read it"},
		{Settings{Type: "orpo", LabelSmoothing: 0.1}, "label_smoothing is given, and type orpo does not read it"},
		{Settings{Type: "dpo", Losses: []string{"exo_pair", "sigmoid"}}, "exo_pair takes its logarithm"},
		{Settings{Type: "dpo", Gamma: new(1.0)}, "gamma is given, and type dpo does not read it: leave it out, " +
			"or take type simpo"},
		{Settings{Type: "dpo", NLL: new(-1.0)}, "nll is -1: it must be finite and not negative"},
		{Settings{Type: "kto", NLL: new(1.0)}, "nll is given, and type kto does not read it"},
		{Settings{Type: "kto", Desirable: new(0.0)}, "desirable is 0: it must be finite and above 0"},
		{Settings{Type: "kto", Undesirable: &inf}, "undesirable is +Inf"},
		{Settings{Type: "dpo", LDAlpha: new(1.5)}, "ld_alpha is 1.5: it must be between 0 and 1"},
		{Settings{Type: "dpo", LDAlpha: &nan}, "ld_alpha is NaN"},
		{Settings{Type: "simpo", LDAlpha: new(1.0)}, "ld_alpha is given, and type simpo does not read it"},
		{Settings{Type: "simpo", Gamma: new(-0.5)}, "gamma is -0.5"},
		{Settings{Type: "reward", Center: new(-0.5)}, "center is -0.5: it must be finite and not negative"},
		{Settings{Type: "reward", Beta: 1}, "beta is given, and type reward does not read it"},
		{Settings{Type: "dpo", Center: new(0.5)}, "center is given, and type dpo does not read it: leave it out, " +
			"or take type reward"},
		{Settings{Type: "orpo", NLLPrompt: true, NLL: new(0.0)}, "nll_prompt is given, and nll is 0"},
		{Settings{Type: "dpo", NLLPrompt: true}, "nll_prompt is given, and type dpo does not read it: leave it out, " +
			"or take type orpo"},
	} {
		o, err := New(x.s)
		if o != nil || err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: error %v, want %q", x.s, err, x.want)
		}
	}
}

// TestEveryLossIsOfAType: rows of the table belong to types, and the first loss of a type is its default.
func TestEveryLossIsOfAType(t *testing.T) {
	n := 0
	for _, kind := range Types() {
		names := Losses(kind)
		n += len(names)
		if len(names) > 0 && (Settings{Type: kind}).Resolved().Losses[0] != names[0] {
			t.Errorf("%s has the losses %v, and another default", kind, names)
		}
	}
	if want := len(losses) + 3; n != want { // sigmoid, hinge and ipo are of two
		t.Errorf("types have %d losses, the table %d", n, want)
	}
}
