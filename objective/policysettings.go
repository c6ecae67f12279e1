package objective

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
)

// Policy has the settings of type policy. A setting without a value has the default of the loss.
type Policy struct {
	// Clip are by how much a ratio may be below and above 1; of cispo the second is the largest ratio itself, and of dppo
	// and ref_kl they are of a probability.
	Clip []float64
	// Delta bounds ratios of answers that are worse than expected; 0: nothing does.
	Delta *float64
	// KL is the coefficient of the divergence from the reference. KLPlain leaves the ratio out of its estimate.
	KL      *float64
	KLPlain bool
	// KLTau is the coefficient of the squared log-ratio to the sampler, of dppo and ref_kl.
	KLTau *float64
	// Taus are the temperatures of sapo, for answers that are better and worse than expected.
	Taus []float64
	// Advantage says how advantages follow from rewards: group, batch, none, rloo, reinforce++, maxrl or gdpo.
	Advantage string
	// RewardWeights are factors of rewards by their names, 1 of those that are not named.
	RewardWeights map[string]float64
	// Old says where the log-probabilities before the first update come from: now (the model's own, so that each ratio
	// is 1), start (the model's own before the first step with the answers), data, or sampler.
	Old string
	// Correction is the mode of the sampler's correction, with the bounds of its ratio.
	Correction                   string
	CorrectionMin, CorrectionMax *float64
	// Normalizer is answers, tokens or max_tokens, and MaxTokens is for the last.
	Normalizer string
	MaxTokens  int
	// MaskTruncated leaves answers that were cut off out of the loss, and of what it is divided by.
	MaskTruncated bool
	// OffPolicyThreshold leaves an answer that is worse than expected out of the loss where the mean of its sampler's
	// log-probabilities less the model's is above it; 0: none is.
	OffPolicyThreshold *float64
	// Rejection is the mode by which tokens or answers that the model and the sampler disagree about are left out, and
	// RejectionMax its bound; empty: none are.
	Rejection    string
	RejectionMax *float64
	// Critic is shared: a row of the model's own end, of the loss ppo. Lambda is that of its advantages, VFCoef the
	// coefficient of its loss, and ClipValue how far a value may move before it no longer learns; 0: any distance.
	Critic                    string
	Lambda, VFCoef, ClipValue *float64
	// EntropyCoef is the coefficient of the mean entropy at the tokens of answers, which is taken from the loss; 0: none
	// is.
	EntropyCoef *float64
}

// sharedCritic is a value head on the policy's last rows.
const sharedCritic = "shared"

// MostTokens bounds MaxTokens.
const MostTokens = 1 << 30

// given says which settings have a value, of those that are no numbers.
func (p *Policy) given() map[string]bool {
	return map[string]bool{"clip": len(p.Clip) > 0, "kl_plain": p.KLPlain, "taus": len(p.Taus) > 0,
		"advantage": p.Advantage != "", "reward_weights": len(p.RewardWeights) > 0, "old": p.Old != "",
		"correction": p.Correction != "", "normalizer": p.Normalizer != "", "max_tokens": p.MaxTokens != 0,
		"mask_truncated": p.MaskTruncated, "rejection": p.Rejection != "", "critic": p.Critic != ""}
}

// resolvePolicy fills in the defaults of the loss. Those of an unknown loss stay as they are.
func (s *Settings) resolvePolicy() {
	s.Clip, s.Taus, s.RewardWeights = slices.Clone(s.Clip), slices.Clone(s.Taus), maps.Clone(s.RewardWeights)
	if len(s.Losses) == 0 {
		return
	}
	of := policyLossNamed(s.Losses[0])
	if of == nil {
		return
	}
	if len(s.Clip) == 0 {
		s.Clip = of.clip
	}
	if len(s.Taus) == 0 && of.name == "sapo" {
		s.Taus = []float64{1, 1.05}
	}
	if s.Old == "" {
		s.Old = OldOfModel
	}
	if !of.criticized {
		s.Gamma, s.Lambda, s.VFCoef, s.ClipValue = nil, nil, nil, nil
	} else if s.Critic == "" {
		s.Critic = sharedCritic
	}
	for _, of := range []struct {
		own *string
		or  string
	}{{&s.Advantage, of.advantage}, {&s.Normalizer, of.normalizer}, {&s.Correction, of.correction}} {
		if *of.own == "" {
			*of.own = of.or
		}
	}
	if s.Old == OldOfSampler {
		s.Correction = noCorrection // the ratio is to the sampler already
	}
	if *s.CorrectionMax == 0 && s.Correction != noCorrection {
		s.CorrectionMax = new(3.0) // TRL's
		if s.Correction == tokenTruncate {
			s.CorrectionMax = new(2.0) // verl's
		}
	}
}

// checkPolicy refuses settings of a policy that its loss does not read, or that contradict each other. The settings are
// resolved; given are as they were.
func (s *Settings) checkPolicy(given Settings) error {
	of := policyLossNamed(s.Losses[0])
	for _, x := range []struct {
		name  string
		given bool
		reads bool
	}{
		{"clip", len(given.Clip) > 0, of.clip != nil},
		{"delta", *s.Delta != 0, of.paired},
		{"taus", len(given.Taus) > 0, of.name == "sapo"},
		{"kl", *s.KL != 0, !of.readsSampler},
		{"kl_plain", s.KLPlain, !of.readsSampler && !of.whole && !of.criticized},
		{"kl_tau", given.KLTau != nil && *given.KLTau != 1e-3, of.readsTau},
		{"advantage", s.Advantage != "", !of.imitates},
		{"reward_weights", len(s.RewardWeights) > 0, !of.imitates},
		{"old", s.Old != OldOfModel, !of.readsSampler},
		{"correction", s.Correction != noCorrection, !of.readsSampler && s.Old != OldOfSampler},
		{"correction_max", *s.CorrectionMax != 0, s.Correction != noCorrection},
		{"correction_min", *s.CorrectionMin != 0, s.Correction != noCorrection},
		{"normalizer", s.Normalizer != of.normalizer, !of.whole},
		{"max_tokens", s.MaxTokens != 0, s.Normalizer == byMaxTokens},
		{"off_policy_threshold", *s.OffPolicyThreshold != 0,
			!of.readsSampler && s.Old != OldOfSampler && !of.criticized},
		{"rejection", s.Rejection != "", !of.readsSampler && s.Old != OldOfSampler && !of.criticized},
		{"rejection_max", *s.RejectionMax != 0, s.Rejection != ""},
		{"critic", s.Critic != "", of.criticized},
		{"gamma", given.Gamma != nil, of.criticized},
		{"lambda", given.Lambda != nil, of.criticized},
		{"vf_coef", given.VFCoef != nil, of.criticized},
		{"clip_value", given.ClipValue != nil, of.criticized},
	} {
		if x.given && !x.reads {
			return fmt.Errorf("%s is given, and nothing reads it with the loss %s, old: %s, correction: %s and normalizer: %s: "+
				"leave it out", x.name, of.name, s.Old, s.Correction, s.Normalizer)
		}
	}
	if given.Old == OldOfSampler && given.Correction != "" && given.Correction != noCorrection {
		return fmt.Errorf("correction is %s, and old is %s, so that ratios are to the sampler already: leave one of them out",
			given.Correction, OldOfSampler)
	}
	for _, x := range []struct {
		name, value string
		known       []string
	}{{"advantage", s.Advantage, advantages}, {"old", s.Old, olds}, {"correction", s.Correction, corrections},
		{"normalizer", s.Normalizer, normalizers}, {"rejection", s.Rejection, rejections}} {
		if x.value != "" && !slices.Contains(x.known, x.value) {
			return fmt.Errorf("%s is %q%s; it can be %s", x.name, x.value, spelling.Question(x.value, x.known),
				spelling.Or(x.known))
		}
	}
	return s.checkPolicyNumbers(of)
}

func (s *Settings) checkPolicyNumbers(of *policyLoss) error {
	isPair := func(all []float64, good func(float64) bool) bool {
		return len(all) == 2 && !slices.ContainsFunc(all, func(x float64) bool { return !good(x) })
	}
	switch {
	case of.clip != nil && !isPair(s.Clip, notNegative):
		return fmt.Errorf("clip is %v: it must be two numbers that are finite and not negative, such as %v", s.Clip, of.clip)
	case of.criticized && s.Critic != sharedCritic:
		return fmt.Errorf("critic is %q, and a critic with weights of its own is not supported: set it to %s, which ends "+
			"the policy in values as well", s.Critic, sharedCritic)
	case of.criticized && s.Advantage != byCritic:
		return fmt.Errorf("advantage is %s, and %s makes advantages of its critic's values: leave it out", s.Advantage,
			of.name)
	case !of.criticized && s.Advantage == byCritic:
		return fmt.Errorf("advantage is %s, which needs a critic, and %s has none: set loss to ppo", byCritic, of.name)
	case of.criticized && s.Old == OldOfStart:
		return fmt.Errorf("old is %s, and values from before the first update, which %s needs as well, are not found so: "+
			"set it to %s, or to %s with values in the rows", OldOfStart, of.name, OldOfModel, OldOfData)
	case of.criticized && *s.Gamma > 1:
		return fmt.Errorf("gamma is %v: the discount of ppo must be between 0 and 1", *s.Gamma)
	case of.name == "cispo" && s.Clip[0] != 0:
		return fmt.Errorf("clip is %v, and cispo bounds ratios above alone, by the second number itself: set the first to 0",
			s.Clip)
	case of.name == "sapo" && !isPair(s.Taus, func(x float64) bool { return x >= 0.01 && x <= 100 }):
		return fmt.Errorf("taus is %v: it must be two numbers between 0.01 and 100", s.Taus)
	case of.paired && s.Losses[0] != "rloo" && s.Clip[0] > 1, of.whole && s.Clip[0] > 1:
		return fmt.Errorf("clip is %v: a ratio is not below 0, so that the first number is 1 at most", s.Clip)
	case *s.Delta != 0 && *s.Delta <= 1+s.Clip[1]:
		return fmt.Errorf("delta is %v, and clip bounds ratios at %v already: set it above that", *s.Delta, 1+s.Clip[1])
	case s.Correction != noCorrection && !(*s.CorrectionMax > *s.CorrectionMin):
		return fmt.Errorf("correction_max is %v, and correction_min is %v: it must be above that", *s.CorrectionMax,
			*s.CorrectionMin)
	case of.name == "vespo" && (s.Correction == sequenceMask || s.Correction == sequenceTruncate):
		return fmt.Errorf("correction is %s, and vespo has ratios of whole answers itself: set it to %s, %s or %s",
			s.Correction, tokenTruncate, tokenMask, noCorrection)
	case of.whole && *s.KL > 0 && s.Advantage != byLeaveOneOut:
		return fmt.Errorf("kl is %v, and %s takes it from rewards, which needs advantage: %s", *s.KL, of.name, byLeaveOneOut)
	case s.Rejection != "" && strings.HasSuffix(s.Rejection, "k1") && *s.RejectionMax <= 1:
		return fmt.Errorf("rejection_max is %v, and %s bounds a ratio by it and by 1 divided by it: set it above 1, to 2 say",
			*s.RejectionMax, s.Rejection)
	case s.Rejection != "" && *s.RejectionMax == 0:
		return fmt.Errorf("rejection is %s, and rejection_max is missing: set it to the largest divergence that counts, "+
			"0.01 say", s.Rejection)
	case s.Normalizer == byMaxTokens && (s.MaxTokens < 1 || s.MaxTokens > MostTokens):
		return fmt.Errorf("max_tokens is %d, and the normalizer is %s: set it to the most tokens that the sampler makes of "+
			"an answer", s.MaxTokens, byMaxTokens)
	}
	for _, name := range slices.Sorted(maps.Keys(s.RewardWeights)) {
		if w := s.RewardWeights[name]; !isFinite(w) || math.Abs(w) > 1e12 {
			return fmt.Errorf("reward_weights: %q has %v: it must be finite, and 1e12 at most", name, w)
		}
		if strings.TrimSpace(name) == "" {
			return errors.New("reward_weights has a name that is empty: name a reward")
		}
	}
	return nil
}
