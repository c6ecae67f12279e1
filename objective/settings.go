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

// Settings choose an objective. Those that are nil, 0 or empty have the default of the type; [Settings.Resolved] fills
// them in. A type refuses a setting that it does not read.
type Settings struct {
	// Type is dpo, kto, orpo, simpo, cpo, reward, dft, distill or policy.
	Type string
	// Losses are names of TRL's. dpo adds several, each multiplied by its entry of Shares, 1 if that is empty.
	Losses []string
	Shares []float64
	// Beta multiplies log-probabilities: the larger it is, the nearer the model stays to the reference. 0: the default.
	Beta float64
	// LabelSmoothing is the share of pairs whose sides are taken for swapped, below 0.5.
	LabelSmoothing float64
	// NLL is the share of the mean negative log-likelihood of chosen tokens in the loss.
	NLL *float64
	// Gamma is by how many nats a chosen completion should exceed a rejected one, of beta times their means by token; of
	// the loss ppo a reward counts that many times as much as one a token later.
	Gamma *float64
	// Desirable and Undesirable multiply the losses of documents.
	Desirable, Undesirable *float64
	// LDAlpha is the share of tokens after the length of the shorter side: LD-DPO (arXiv:2409.06411). 1 is plain DPO.
	LDAlpha *float64
	// Center is the coefficient of the squared sum of a pair's scores in the loss of reward.
	Center *float64
	// NLLPrompt says that the likelihood is also of prompts.
	NLLPrompt bool
	// TopK is the number of the teacher's likeliest tokens of a position that are compared. 0: the default.
	TopK int
	// Share is the share of the divergence from the teacher in the loss; the rest is that of the next token.
	Share *float64
	// Temperature divides the logits of the model and of the teacher before both are compared: above 1, less likely tokens
	// count for more. The divergence counts its square, so that gradients stay about as large.
	Temperature *float64
	// Policy has those of type policy; others do not read them.
	Policy
}

// The types.
const (
	dpo    = "dpo"
	kto    = "kto"
	orpo   = "orpo"
	simpo  = "simpo"
	cpo    = "cpo"
	reward = "reward"
	dft    = "dft"

	distill = "distill"
	policy  = "policy"
)

// kind is a type.
type kind struct {
	name     string
	defaults Settings // a setting that has no value here is not read
	sum      bool     // it adds several losses
	prompts  bool     // it reads NLLPrompt
	needs    Needs    // without those of a loss or a setting
	open     func(*kind, Settings) Objective
}

// kinds returns the table of types.
func kinds() []kind {
	pairs := func(k *kind, s Settings) Objective { return newPairs(k, s) }
	singles := func(k *kind, s Settings) Objective { return newSingles(k, s) }
	scores := func(_ *kind, s Settings) Objective { return &ofScores{s} }
	tokens := func(_ *kind, s Settings) Objective { return &ofTokens{s} }
	return []kind{
		{name: dpo, defaults: Settings{Beta: 0.1, Losses: []string{"sigmoid"}, NLL: new(0.0), LDAlpha: new(1.0)}, sum: true,
			needs: Needs{Reference: true, Pairs: true}, open: pairs},
		{name: kto, defaults: Settings{Beta: 0.1, Losses: []string{"kto"}, Desirable: new(1.0), Undesirable: new(1.0)},
			needs: Needs{Reference: true, Labels: true}, open: singles},
		{name: orpo, defaults: Settings{Beta: 0.1, Losses: []string{"orpo"}, NLL: new(1.0)}, prompts: true,
			needs: Needs{Pairs: true}, open: pairs},
		// The paper's grid is about beta 2 to 2.5 and gamma/beta 0.3 to 0.5. TRL's CPOConfig has 0.1 and 0.5, at
		// which the margin is 5 nats a token.
		{name: simpo, defaults: Settings{Beta: 2, Losses: []string{"simpo"}, NLL: new(0.0), Gamma: new(1.0)},
			needs: Needs{Pairs: true}, open: pairs},
		{name: cpo, defaults: Settings{Beta: 0.1, Losses: []string{"sigmoid"}, NLL: new(1.0)},
			needs: Needs{Pairs: true}, open: pairs},
		{name: reward, defaults: Settings{Center: new(0.0)}, needs: Needs{Pairs: true, Scores: true}, open: scores},
		{name: dft, open: tokens},
		{name: distill, defaults: Settings{TopK: 64, Share: new(1.0), Temperature: new(1.0)},
			open: func(_ *kind, s Settings) Objective { return &ofTeacher{s} }},
		{name: policy, defaults: Settings{Losses: []string{"dapo"}, Gamma: new(1.0), Policy: Policy{KL: new(0.0),
			KLTau: new(1e-3), Delta: new(0.0), CorrectionMin: new(0.0), CorrectionMax: new(0.0),
			OffPolicyThreshold: new(0.0), RejectionMax: new(0.0), Lambda: new(0.95), VFCoef: new(0.1),
			ClipValue: new(0.2), EntropyCoef: new(0.0)}}, needs: Needs{Rollouts: true},
			open: func(k *kind, s Settings) Objective { return newPolicy(k, s) }},
	}
}

// number is a setting that may be nil.
type number struct {
	name string
	of   func(*Settings) **float64
	good func(float64) bool
	must string
}

var numbers = []number{
	{"nll", func(s *Settings) **float64 { return &s.NLL }, notNegative, "be finite and not negative"},
	{"gamma", func(s *Settings) **float64 { return &s.Gamma }, notNegative, "be finite and not negative"},
	{"desirable", func(s *Settings) **float64 { return &s.Desirable }, positive, "be finite and above 0"},
	{"undesirable", func(s *Settings) **float64 { return &s.Undesirable }, positive, "be finite and above 0"},
	{"ld_alpha", func(s *Settings) **float64 { return &s.LDAlpha },
		func(x float64) bool { return x >= 0 && x <= 1 }, "be between 0 and 1"},
	{"center", func(s *Settings) **float64 { return &s.Center }, notNegative, "be finite and not negative"},
	{"share", func(s *Settings) **float64 { return &s.Share },
		func(x float64) bool { return x > 0 && x <= 1 }, "be above 0, and 1 at most"},
	{"temperature", func(s *Settings) **float64 { return &s.Temperature },
		func(x float64) bool { return x >= 0.1 && x <= 100 }, "be between 0.1 and 100"},
	{"kl", func(s *Settings) **float64 { return &s.KL }, notNegative, "be finite and not negative"},
	{"kl_tau", func(s *Settings) **float64 { return &s.KLTau }, notNegative, "be finite and not negative"},
	{"delta", func(s *Settings) **float64 { return &s.Delta }, notNegative, "be finite and not negative; 0 is no bound"},
	{"correction_min", func(s *Settings) **float64 { return &s.CorrectionMin }, notNegative, "be finite and not negative"},
	{"correction_max", func(s *Settings) **float64 { return &s.CorrectionMax }, notNegative, "be finite and above 0"},
	{"off_policy_threshold", func(s *Settings) **float64 { return &s.OffPolicyThreshold }, notNegative,
		"be finite and not negative; 0 is no bound"},
	{"rejection_max", func(s *Settings) **float64 { return &s.RejectionMax }, notNegative, "be finite and above 0"},
	{"lambda", func(s *Settings) **float64 { return &s.Lambda },
		func(x float64) bool { return x >= 0 && x <= 1 }, "be between 0 and 1"},
	{"vf_coef", func(s *Settings) **float64 { return &s.VFCoef }, notNegative, "be finite and not negative"},
	{"clip_value", func(s *Settings) **float64 { return &s.ClipValue }, notNegative,
		"be finite and not negative; 0 is no bound"},
	{"entropy_coef", func(s *Settings) **float64 { return &s.EntropyCoef },
		func(x float64) bool { return math.Abs(x) <= 1000 }, "be between -1000 and 1000"},
}

func notNegative(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }
func positive(x float64) bool    { return x > 0 && !math.IsInf(x, 1) }

// exoSmoothing is the label smoothing of exo_pair, where it is not given: its paper's, and that TRL advises.
const exoSmoothing = 1e-3

// MaxTopK bounds the tokens of a teacher's list.
const MaxTopK = 1024

// Types lists the types.
func Types() (names []string) {
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// Losses lists the losses of a type, the default first; nil: it has none.
func Losses(kind string) []string { return lossesOf(kind) }

func kindNamed(name string) *kind {
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// Resolved returns the settings with all defaults that the type reads. They share no memory with the original. Those
// of an unknown type stay as they are.
func (s Settings) Resolved() Settings {
	k := kindNamed(s.Type)
	if k == nil {
		return s
	}
	if s.Losses = slices.Clone(s.Losses); len(s.Losses) == 0 {
		s.Losses = k.defaults.Losses
	}
	if s.Shares = slices.Clone(s.Shares); len(s.Shares) == 0 && k.sum {
		s.Shares = slices.Repeat([]float64{1}, len(s.Losses))
	}
	if s.Beta == 0 {
		s.Beta = k.defaults.Beta
	}
	if s.TopK == 0 {
		s.TopK = k.defaults.TopK
	}
	if s.LabelSmoothing == 0 && slices.Equal(s.smoothed(), []string{"exo_pair"}) {
		s.LabelSmoothing = exoSmoothing
	}
	for _, n := range numbers {
		switch own := n.of(&s); {
		case *own != nil:
			*own = new(**own)
		default:
			*own = *n.of(&k.defaults)
		}
	}
	if k.name == policy {
		s.resolvePolicy()
	}
	return s
}

// smoothed lists the losses in which label smoothing counts.
func (s *Settings) smoothed() (names []string) {
	for _, name := range s.Losses {
		if l := lossNamed(s.Type, name); l != nil && l.smooths {
			names = append(names, name)
		}
	}
	return names
}

// New makes the objective that the settings choose. Its errors begin with the key of the object that run files have for
// settings.
func New(s Settings) (Objective, error) {
	k := kindNamed(s.Type)
	if k == nil {
		return nil, fmt.Errorf("type is %q%s; it can be %s", s.Type, spelling.Question(s.Type, Types()),
			spelling.Or(Types()))
	}
	if err := s.checkRead(k); err != nil {
		return nil, err
	}
	given := s
	s = s.Resolved()
	if err := s.checkLosses(k); err != nil {
		return nil, err
	}
	if err := s.checkValues(k); err != nil {
		return nil, err
	}
	if k.name == policy {
		if err := s.checkPolicy(given); err != nil {
			return nil, err
		}
	}
	return k.open(k, s), nil
}

// checkRead refuses settings that a type does not read.
func (s *Settings) checkRead(k *kind) error {
	given := map[string]bool{"loss": len(s.Losses) > 0, "weights": len(s.Shares) > 0, "beta": s.Beta != 0,
		"label_smoothing": s.LabelSmoothing != 0, "nll_prompt": s.NLLPrompt, "top_k": s.TopK != 0}
	maps.Copy(given, s.Policy.given())
	for _, n := range numbers {
		given[n.name] = *n.of(s) != nil
	}
	for _, name := range settingNames {
		if !given[name] || k.reads(name) {
			continue
		}
		var others []string
		for _, other := range kinds() {
			if other.reads(name) {
				others = append(others, other.name)
			}
		}
		return fmt.Errorf("%s is given, and type %s does not read it: leave it out, or take type %s", name, k.name,
			spelling.Or(others))
	}
	return nil
}

// settingNames are the keys of run files, in their order.
var settingNames = []string{"loss", "weights", "beta", "label_smoothing", "nll", "gamma", "desirable", "undesirable",
	"ld_alpha", "center", "nll_prompt", "top_k", "share", "temperature", "clip", "delta", "kl", "kl_plain", "kl_tau",
	"taus", "advantage", "reward_weights", "old", "correction", "correction_max", "correction_min", "normalizer",
	"max_tokens", "mask_truncated", "off_policy_threshold", "rejection", "rejection_max", "critic", "lambda", "vf_coef",
	"clip_value", "entropy_coef"}

// reads says whether a type reads a setting.
func (k *kind) reads(name string) bool {
	switch name {
	case "loss":
		return len(k.defaults.Losses) > 0
	case "weights":
		return k.sum
	case "beta":
		return k.defaults.Beta != 0
	case "label_smoothing":
		return slices.ContainsFunc(lossesOf(k.name), func(l string) bool {
			of := lossNamed(k.name, l)
			return of != nil && of.smooths
		})
	case "nll_prompt":
		return k.prompts
	case "top_k":
		return k.defaults.TopK != 0
	case "clip", "kl_plain", "taus", "advantage", "reward_weights", "old", "correction", "normalizer", "max_tokens",
		"mask_truncated", "rejection", "critic":
		return k.name == policy
	}
	i := slices.IndexFunc(numbers, func(n number) bool { return n.name == name })
	return *numbers[i].of(&k.defaults) != nil
}

// checkLosses refuses unknown losses and shares that do not belong to them.
func (s *Settings) checkLosses(k *kind) error {
	for i, name := range s.Losses {
		switch known := lossesOf(k.name); {
		case !slices.Contains(known, name):
			return fmt.Errorf("loss %q is no loss of type %s%s; it can be %s", name, k.name,
				spelling.Question(name, known), spelling.Or(known))
		case slices.Contains(s.Losses[:i], name):
			return fmt.Errorf("loss names %s twice: name it once, with the sum of both weights", name)
		}
	}
	switch {
	case len(s.Losses) > 1 && !k.sum:
		return fmt.Errorf("loss names %d losses, and type %s takes one: leave one of %s", len(s.Losses), k.name,
			strings.Join(s.Losses, ", "))
	case k.sum && len(s.Shares) != len(s.Losses):
		return fmt.Errorf("weights has %d numbers for %d losses: give one for each", len(s.Shares), len(s.Losses))
	}
	for i, share := range s.Shares {
		if !positive(share) {
			return fmt.Errorf("weights: %s has %v: it must be finite and above 0", s.Losses[i], share)
		}
	}
	return nil
}

// checkValues refuses numbers that have no meaning.
func (s *Settings) checkValues(k *kind) error {
	smoothed := s.smoothed()
	switch {
	case k.reads("top_k") && (s.TopK < 1 || s.TopK > MaxTopK):
		return fmt.Errorf("top_k is %d: it must be between 1 and %d", s.TopK, MaxTopK)
	case k.reads("beta") && !positive(s.Beta):
		return fmt.Errorf("beta is %v: it must be finite and above 0", s.Beta)
	case !(s.LabelSmoothing >= 0 && s.LabelSmoothing < 0.5):
		return fmt.Errorf("label_smoothing is %v: it must be at least 0 and below 0.5", s.LabelSmoothing)
	case s.LabelSmoothing > 0 && len(smoothed) == 0:
		return fmt.Errorf("label_smoothing is %v, and the loss %s does not read it: leave it out", s.LabelSmoothing,
			strings.Join(s.Losses, ", "))
	case s.LabelSmoothing == 0 && slices.Contains(smoothed, "exo_pair"):
		return fmt.Errorf("label_smoothing is 0, and exo_pair takes its logarithm: set it, to %v say, "+
			"for all of %s", exoSmoothing, strings.Join(smoothed, ", "))
	}
	for _, n := range numbers {
		if x := *n.of(s); x != nil && !n.good(*x) {
			return fmt.Errorf("%s is %v: it must %s", n.name, *x, n.must)
		}
	}
	switch {
	case s.NLLPrompt && *s.NLL == 0:
		return errors.New("nll_prompt is given, and nll is 0, so that no likelihood counts: leave one of them out")
	case k.reads("temperature") && *s.Temperature != 1 && *s.Share != 1:
		return fmt.Errorf("temperature is %v, and share is %v, which leaves a part of the loss to the next token, whose "+
			"likelihood a temperature would change: set share to 1, or temperature to 1", *s.Temperature, *s.Share)
	}
	return nil
}
