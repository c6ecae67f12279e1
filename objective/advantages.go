package objective

import (
	"fmt"
	"math"
	"slices"
)

// Advantages of answers follow from their rewards, and those of the other answers to the same prompt: their group. All
// sums are in the order of the answers.

// How advantages follow from rewards. R is an answer's reward, mean and std are of its group, and std has n-1.
const (
	byGroup       = "group"       // (R - mean) / (std + 1e-4)
	byBatch       = "batch"       // the same with the std of all answers of the step
	byNone        = "none"        // R - mean
	byLeaveOneOut = "rloo"        // R - mean of the others
	byWhitening   = "reinforce++" // R - mean, and then whitened over the step
	byMaxRL       = "maxrl"       // (R - mean) / mean
	byEach        = "gdpo"        // each reward as with group, then their sum as with batch
	byCritic      = "gae"         // of each token, by the critic's values: see critic.go
)

var advantages = []string{byGroup, byBatch, byNone, byLeaveOneOut, byWhitening, byMaxRL, byEach, byCritic}

// Scored has the facts of an answer of a step besides its tokens; NaN stands for an unknown number.
type Scored struct {
	Group     int       // the number of its group
	Advantage float64   // as given: it wins
	Reward    float64   // as given: it wins over Rewards, unless the settings weigh these
	Rewards   []float64 // by the names that Advantages is given
	Tokens    int       // of the answer
	Ends      Ending
}

// Ending says how an answer ends.
type Ending uint8

// The endings.
const (
	UnknownEnding Ending = iota
	Stopped              // the model has ended it
	CutOff               // it was as long as it could be
)

// Rewarded is an objective of answers that were sampled.
type Rewarded interface {
	Objective
	// Advantages makes rollouts of all answers of a step, which are in the order of the step, those of a group next to
	// each other. names are those of Rewards. It also returns what TRL logs of such answers.
	Advantages(answers []Scored, names []string) ([]Rollout, map[string]float64, error)
}

// stdFloor is added to standard deviations, as in TRL.
const stdFloor = 1e-4

// LeastSpread is the least spread of rewards that tells answers apart: the quotient of smaller ones is of rounding.
const LeastSpread = 1e-8

// whiteningFloor is added to the standard deviation where advantages are whitened.
const whiteningFloor = 1e-8

// Advantages computes those that are not given. An answer without any reward has the advantage 0, and no other one is
// compared with it.
func (o *ofPolicy) Advantages(answers []Scored, names []string) ([]Rollout, map[string]float64, error) {
	if err := o.checkRewards(answers, names); err != nil {
		return nil, nil, err
	}
	rewards := make([]float64, len(answers))
	for i := range answers {
		rewards[i] = o.reward(&answers[i], names)
	}
	own := rewards
	if o.settings.Advantage == byEach {
		own = o.eachNormalized(answers, rewards, names)
	}
	all := make([]Rollout, len(answers))
	equal := 0
	for first := 0; first < len(answers); {
		end := endOfGroup(answers, first)
		of := rewards[first:end]
		if spread(of) < LeastSpread {
			equal += end - first
		}
		if o.settings.Advantage == byMaxRL && slices.ContainsFunc(of, func(r float64) bool { return r < 0 }) {
			return nil, nil, fmt.Errorf("group %d has a reward of %v, and advantage %s divides by their mean: rewards must be "+
				"at least 0; take another", answers[first].Group, slices.MinFunc(of, compareKnown), byMaxRL)
		}
		for i := range of {
			all[first+i].Advantage = o.ofGroup(own[first:end], i)
		}
		first = end
	}
	o.acrossStep(all, own)
	for i := range all {
		all[i].Unscored = math.IsNaN(rewards[i])
		if all[i].Unscored || math.IsNaN(all[i].Advantage) {
			all[i].Advantage = 0
		}
		switch given := answers[i].Advantage; {
		case o.of.criticized && !math.IsNaN(given):
			return nil, nil, fmt.Errorf("an answer of group %d has an advantage, and the loss %s makes its own of values: give "+
				"rewards alone, or take another loss", answers[i].Group, o.of.name)
		case !math.IsNaN(given):
			all[i] = Rollout{Advantage: given}
		}
		all[i].Masked = o.settings.MaskTruncated && answers[i].Ends == CutOff
		if o.of.criticized && !all[i].Unscored {
			all[i].Reward = rewards[i]
		}
		if !isFinite(all[i].Advantage) {
			return nil, nil, fmt.Errorf("an answer of group %d has the advantage %v: rewards are too large for 64 bits",
				answers[i].Group, all[i].Advantage)
		}
	}
	return all, figuresOf(answers, rewards, names, float64(equal)), nil
}

// checkRewards refuses weights of rewards that no answer has.
func (o *ofPolicy) checkRewards(answers []Scored, names []string) error {
	for name := range o.settings.RewardWeights {
		if !slices.Contains(names, name) {
			return fmt.Errorf("reward_weights names %q, and the answers have the rewards %q: name one of these", name, names)
		}
	}
	for i := range answers {
		if len(answers[i].Rewards) != len(names) {
			return fmt.Errorf("an answer of group %d has %d rewards of %d", answers[i].Group, len(answers[i].Rewards),
				len(names))
		}
	}
	return nil
}

// reward is the reward of an answer: as given, or the sum of what there is by name; NaN: none.
func (o *ofPolicy) reward(a *Scored, names []string) float64 {
	if !math.IsNaN(a.Reward) && len(o.settings.RewardWeights) == 0 {
		return a.Reward
	}
	sum, known := 0.0, false
	for i, r := range a.Rewards {
		if !math.IsNaN(r) {
			sum += float64(o.weightOf(names[i]) * r)
			known = true
		}
	}
	switch {
	case known:
		return sum
	case len(o.settings.RewardWeights) == 0:
		return a.Reward
	}
	return math.NaN()
}

func (o *ofPolicy) weightOf(name string) float64 {
	if w, ok := o.settings.RewardWeights[name]; ok {
		return w
	}
	return 1
}

// ofGroup is the advantage of answer i of a group, as far as the group decides it.
func (o *ofPolicy) ofGroup(rewards []float64, i int) float64 {
	center, n := meanKnown(rewards)
	r := rewards[i]
	isEach := o.settings.Advantage == byEach // whose rewards are compared over the step
	switch {
	case math.IsNaN(r) || isEach:
		return r
	case o.of.criticized:
		return 0
	case spread(rewards) < LeastSpread:
		return 0
	}
	switch o.settings.Advantage {
	case byGroup:
		return (r - center) / (deviation(rewards) + stdFloor)
	case byLeaveOneOut:
		return (r - center) * n / (n - 1)
	case byMaxRL:
		return (r - center) / center
	}
	return r - center
}

// acrossStep completes advantages that depend on all answers of the step.
func (o *ofPolicy) acrossStep(all []Rollout, rewards []float64) {
	known := make([]float64, len(all))
	for i := range all {
		if known[i] = all[i].Advantage; math.IsNaN(rewards[i]) {
			known[i] = math.NaN()
		}
	}
	center, floor := 0.0, stdFloor
	std := deviation(known)
	switch o.settings.Advantage {
	case byBatch:
		std = deviation(rewards)
	case byEach:
		center, _ = meanKnown(known)
	case byWhitening:
		center, _ = meanKnown(known)
		floor = whiteningFloor
	default:
		return
	}
	if o.settings.Advantage != byBatch && spread(known) < LeastSpread {
		center, std = math.NaN(), 1 // all are equal: none is better
	}
	for i := range all {
		all[i].Advantage = (known[i] - center) / (std + floor)
	}
}

// eachNormalized are sums of rewards, each of which is compared within its group first: TRL's normalize_then_sum, GDPO
// (arXiv:2601.05242).
func (o *ofPolicy) eachNormalized(answers []Scored, rewards []float64, names []string) []float64 {
	sums := make([]float64, len(answers))
	for first := 0; first < len(answers); {
		end := endOfGroup(answers, first)
		of := make([]float64, end-first)
		for k, name := range names {
			for i := range of {
				of[i] = answers[first+i].Rewards[k]
			}
			center, _ := meanKnown(of)
			if spread(of) < LeastSpread {
				continue
			}
			for i, r := range of {
				if !math.IsNaN(r) {
					sums[first+i] += o.weightOf(name) * (r - center) / (deviation(of) + stdFloor)
				}
			}
		}
		first = end
	}
	for i, r := range rewards {
		if math.IsNaN(r) {
			sums[i] = math.NaN()
		}
	}
	return sums
}

func endOfGroup(answers []Scored, first int) int {
	end := first + 1
	for end < len(answers) && answers[end].Group == answers[first].Group {
		end++
	}
	return end
}

// meanKnown is the mean of numbers that are not NaN, and their number.
func meanKnown(all []float64) (mean, n float64) {
	sum := 0.0
	for _, x := range all {
		if !math.IsNaN(x) {
			sum += x
			n++
		}
	}
	return sum / n, n
}

// deviation is the standard deviation of numbers that are not NaN, with n-1; 0 of one number.
func deviation(all []float64) float64 {
	center, n := meanKnown(all)
	if n < 2 {
		return 0
	}
	squares := 0.0
	for _, x := range all {
		if !math.IsNaN(x) {
			squares += float64((x - center) * (x - center))
		}
	}
	return math.Sqrt(squares / (n - 1))
}

// spread is the difference of the largest and the least number that is not NaN; 0 of none.
func spread(all []float64) float64 {
	least, most := math.Inf(1), math.Inf(-1)
	for _, x := range all {
		if !math.IsNaN(x) {
			least, most = min(least, x), max(most, x)
		}
	}
	return max(most-least, 0)
}

// compareKnown compares numbers, with NaN after all others.
func compareKnown(a, b float64) int {
	switch {
	case a < b || math.IsNaN(b) && !math.IsNaN(a):
		return -1
	case a > b || math.IsNaN(a) && !math.IsNaN(b):
		return 1
	}
	return 0
}

// figuresOf are TRL's metrics of rewards and lengths. Equal answers are in groups whose rewards are all the same.
func figuresOf(answers []Scored, rewards []float64, names []string, equal float64) map[string]float64 {
	all := map[string]float64{}
	set := func(name string, x float64) {
		if isFinite(x) {
			all[name] = x
		}
	}
	center, known := meanKnown(rewards)
	if known > 0 {
		set("reward", center)
		set("reward_std", deviation(rewards))
		set("frac_reward_zero_std", equal/float64(len(answers)))
	}
	column := make([]float64, len(answers))
	for k, name := range names {
		for i := range answers {
			column[i] = answers[i].Rewards[k]
		}
		center, n := meanKnown(column)
		set("rewards/"+name+"/mean", center)
		if n > 1 {
			set("rewards/"+name+"/std", deviation(column))
		}
	}
	var lengths, ended []float64
	cut, unknown := 0.0, 0
	for i := range answers {
		n := float64(answers[i].Tokens)
		lengths = append(lengths, n)
		switch answers[i].Ends {
		case CutOff:
			cut++
		case Stopped:
			ended = append(ended, n)
		default:
			unknown++
		}
	}
	if len(lengths) == 0 {
		return all
	}
	set("completions/mean_length", mean(lengths))
	set("completions/min_length", slices.Min(lengths))
	set("completions/max_length", slices.Max(lengths))
	if unknown < len(answers) {
		set("completions/clipped_ratio", cut/float64(len(answers)-unknown))
		if len(ended) == 0 {
			ended = []float64{0} // as in TRL
		}
		set("completions/mean_terminated_length", mean(ended))
		set("completions/min_terminated_length", slices.Min(ended))
		set("completions/max_terminated_length", slices.Max(ended))
	}
	return all
}
