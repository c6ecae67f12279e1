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
		{Settings{Type: "policy"}, Settings{Type: "policy", Losses: []string{"dapo"}, Policy: Policy{
			Clip: []float64{0.2, 0.28}, Delta: new(0.0), KL: new(0.0), KLTau: new(1e-3), Advantage: "group", Old: "now",
			Correction: "token_truncate", CorrectionMin: new(0.0), CorrectionMax: new(2.0), Normalizer: "tokens",
			OffPolicyThreshold: new(0.0), RejectionMax: new(0.0), EntropyCoef: new(0.0)}},
			Needs{Rollouts: true, Rewards: true}},
		{Settings{Type: "policy", Losses: []string{"grpo"}, Policy: Policy{KL: new(0.1), Old: "sampler"}},
			Settings{Type: "policy", Losses: []string{"grpo"}, Policy: Policy{Clip: []float64{0.2, 0.2},
				Delta: new(0.0), KL: new(0.1), KLTau: new(1e-3), Advantage: "group", Old: "sampler", Correction: "none",
				CorrectionMin: new(0.0), CorrectionMax: new(0.0), Normalizer: "answers",
				OffPolicyThreshold: new(0.0), RejectionMax: new(0.0), EntropyCoef: new(0.0)}},
			Needs{Rollouts: true, Rewards: true, Reference: true, Sampler: true}},
		{ofPPO(Policy{Old: "data"}), Settings{Type: "policy", Losses: []string{"ppo"}, Gamma: new(1.0), Policy: Policy{
			Clip: []float64{0.2, 0.2}, Delta: new(0.0), KL: new(0.0), KLTau: new(1e-3), Advantage: "gae", Old: "data",
			Correction: "token_truncate", CorrectionMin: new(0.0), CorrectionMax: new(2.0), Normalizer: "tokens",
			OffPolicyThreshold: new(0.0), RejectionMax: new(0.0), EntropyCoef: new(0.0), Critic: "shared",
			Lambda: new(0.95), VFCoef: new(0.1), ClipValue: new(0.2)}},
			Needs{Rollouts: true, Rewards: true, Old: true, Values: true, OldValues: true}},
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

// ofPPO are settings of the loss ppo.
func ofPPO(p Policy) Settings { return Settings{Type: "policy", Losses: []string{"ppo"}, Policy: p} }

func TestNewRefuses(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, x := range []struct {
		s    Settings
		want string
	}{
		{Settings{}, `type is ""; it can be dpo, kto, orpo, simpo, cpo, reward, dft, distill or policy`},
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
		{Settings{Type: "dpo", Policy: Policy{KL: new(0.1)}}, "kl is given, and type dpo does not read it: leave it " +
			"out, or take type policy"},
		{Settings{Type: "dft", Policy: Policy{Clip: []float64{1, 1}}}, "clip is given, and type dft does not read it"},
		{Settings{Type: "policy", Losses: []string{"ppoo"}}, `loss "ppoo" is no loss of type policy: did you mean ppo?`},
		{ofPPO(Policy{Critic: "runs/critic"}), `critic is "runs/critic", and a critic with weights of its own is not`},
		{ofPPO(Policy{Advantage: "group"}), "advantage is group, and ppo makes advantages of its critic's values"},
		{ofPPO(Policy{Old: "start"}), "old is start, and values from before the first update, which ppo needs as well"},
		{ofPPO(Policy{Rejection: "token_k1", RejectionMax: new(2.0)}), "rejection is given, and nothing reads it"},
		{ofPPO(Policy{OffPolicyThreshold: new(0.5)}), "off_policy_threshold is given, and nothing reads it"},
		{ofPPO(Policy{Lambda: new(1.5)}), "lambda is 1.5: it must be between 0 and 1"},
		{ofPPO(Policy{VFCoef: new(-1.0)}), "vf_coef is -1: it must be finite and not negative"},
		{ofPPO(Policy{ClipValue: &nan}), "clip_value is NaN"},
		{ofPPO(Policy{KLPlain: true}), "kl_plain is given, and nothing reads it with the loss ppo"},
		{Settings{Type: "policy", Losses: []string{"ppo"}, Gamma: new(1.5)}, "gamma is 1.5: the discount of ppo"},
		{Settings{Type: "policy", Gamma: new(1.0)}, "gamma is given, and nothing reads it with the loss dapo"},
		{Settings{Type: "policy", Policy: Policy{Critic: "shared"}}, "critic is given, and nothing reads it"},
		{Settings{Type: "policy", Policy: Policy{Lambda: new(0.95)}}, "lambda is given, and nothing reads it"},
		{Settings{Type: "policy", Policy: Policy{VFCoef: new(0.1)}}, "vf_coef is given, and nothing reads it"},
		{Settings{Type: "policy", Policy: Policy{ClipValue: new(0.2)}}, "clip_value is given, and nothing reads it"},
		{Settings{Type: "policy", Policy: Policy{EntropyCoef: &nan}}, "entropy_coef is NaN"},
		{Settings{Type: "policy", Policy: Policy{EntropyCoef: new(-2000.0)}}, "it must be between -1000 and 1000"},
		{Settings{Type: "dpo", Policy: Policy{EntropyCoef: new(0.1)}}, "entropy_coef is given, and type dpo does not"},
		{Settings{Type: "policy", Policy: Policy{Advantage: "gae"}}, "advantage is gae, which needs a critic, and dapo"},
		{Settings{Type: "dpo", Policy: Policy{Critic: "shared"}}, "critic is given, and type dpo does not read it"},
		{Settings{Type: "policy", Losses: []string{"dapo", "grpo"}}, "loss names 2 losses, and type policy takes one"},
		{Settings{Type: "policy", Policy: Policy{KL: &nan}}, "kl is NaN: it must be finite and not negative"},
		{Settings{Type: "policy", Policy: Policy{Clip: []float64{0.2}}}, "clip is [0.2]: it must be two numbers"},
		{Settings{Type: "policy", Policy: Policy{Clip: []float64{2, 0.2}}}, "clip is [2 0.2]: a ratio is not below 0"},
		{Settings{Type: "policy", Policy: Policy{Clip: []float64{0.2, inf}}}, "clip is [0.2 +Inf]"},
		{Settings{Type: "policy", Policy: Policy{Delta: new(1.1)}}, "delta is 1.1, and clip bounds ratios at 1.28 already"},
		{Settings{Type: "policy", Policy: Policy{Advantage: "grup"}}, `advantage is "grup": did you mean group?; it can be`},
		{Settings{Type: "policy", Policy: Policy{Old: "file"}}, `old is "file"; it can be now, start, data or sampler`},
		{Settings{Type: "policy", Policy: Policy{Correction: "tis"}}, `correction is "tis"; it can be`},
		{Settings{Type: "policy", Policy: Policy{Normalizer: "token"}}, `normalizer is "token": did you mean tokens or`},
		{Settings{Type: "policy", Losses: []string{"dr_grpo"}}, "max_tokens is 0, and the normalizer is max_tokens: set it"},
		{Settings{Type: "policy", Policy: Policy{MaxTokens: 5}}, "max_tokens is given, and nothing reads it"},
		{Settings{Type: "policy", Policy: Policy{Correction: "none", CorrectionMax: new(2.0)}}, "correction_max is given"},
		{Settings{Type: "policy", Policy: Policy{CorrectionMin: new(5.0)}},
			"correction_max is 2, and correction_min is 5: it must be above that"},
		{Settings{Type: "policy", Policy: Policy{Correction: "token_mask", Old: "sampler"}},
			"correction is token_mask, and old is sampler, so that ratios are to the sampler already"},
		{Settings{Type: "policy", Losses: []string{"sapo"}, Policy: Policy{Clip: []float64{0.2, 0.2}}}, "clip is given"},
		{Settings{Type: "policy", Losses: []string{"sapo"}, Policy: Policy{Taus: []float64{1, 0}}}, "taus is [1 0]"},
		{Settings{Type: "policy", Losses: []string{"cispo"}, Policy: Policy{Clip: []float64{0.2, 5}}}, "set the first to 0"},
		{Settings{Type: "policy", Losses: []string{"vespo"}, Policy: Policy{Correction: "sequence_mask"}},
			"correction is sequence_mask, and vespo has ratios of whole answers itself"},
		{Settings{Type: "policy", Losses: []string{"rloo"}, Policy: Policy{Advantage: "group", KL: new(0.1)}},
			"kl is 0.1, and rloo takes it from rewards, which needs advantage: rloo"},
		{Settings{Type: "policy", Losses: []string{"dppo"}, Policy: Policy{KL: new(0.1)}}, "kl is given, and nothing"},
		{Settings{Type: "policy", Losses: []string{"dppo"}, Policy: Policy{Old: "data"}}, "old is given, and nothing"},
		{Settings{Type: "policy", Losses: []string{"ref_kl"}, Policy: Policy{Advantage: "group"}}, "advantage is given"},
		{Settings{Type: "policy", Policy: Policy{KLTau: new(0.5)}}, "kl_tau is given"},
		{Settings{Type: "policy", Policy: Policy{Rejection: "seq_mean"}}, `rejection is "seq_mean": did you mean`},
		{Settings{Type: "policy", Policy: Policy{Rejection: "seq_mean_k3"}}, "rejection_max is missing"},
		{Settings{Type: "policy", Policy: Policy{Rejection: "token_k1", RejectionMax: new(0.5)}}, "set it above 1"},
		{Settings{Type: "policy", Policy: Policy{RejectionMax: new(0.5)}}, "rejection_max is given, and nothing reads it"},
		{Settings{Type: "policy", Policy: Policy{OffPolicyThreshold: new(-1.0)}}, "off_policy_threshold is -1"},
		{Settings{Type: "policy", Losses: []string{"dppo"}, Policy: Policy{OffPolicyThreshold: new(1.0)}},
			"off_policy_threshold is given, and nothing"},
		{Settings{Type: "dpo", Policy: Policy{MaskTruncated: true}}, "mask_truncated is given, and type dpo does not"},
		{Settings{Type: "policy", Policy: Policy{RewardWeights: map[string]float64{"math": nan}}},
			`reward_weights: "math" has NaN`},
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
	if want := len(losses) + len(policyLosses()) + 3; n != want { // sigmoid, hinge and ipo are of two
		t.Errorf("types have %d losses, the table %d", n, want)
	}
}
