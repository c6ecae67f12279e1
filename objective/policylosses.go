package objective

import (
	"math"
	"slices"
)

// level says of what a ratio is.
type level uint8

const (
	ofToken level = iota
	ofMean        // one of an answer: exp of the mean of lp - o over its tokens
	ofSum         // one of an answer: exp of the sum
)

// policyLoss is a row of the table of losses.
type policyLoss struct {
	name       string // TRL's
	level      level
	normalizer string    // the default
	clip       []float64 // the default; nil: it is not read
	advantage  string    // the default
	correction string    // the default
	paired     bool      // it clips on both sides by PPO's rule, and may have a delta
	whole      bool      // it is of whole answers: no normalizer, and the divergence is in the rewards
	readsTau   bool      // it reads kl_tau
	// readsSampler says that it compares with the sampler itself, and imitates that its advantages are those of a
	// teacher.
	readsSampler, imitates bool
	criticized             bool                         // a critic's values make the advantages, and learn: critic.go
	weigh                  func(o *ofPolicy, a *answer) // sets loss and slope of the tokens
}

// Words of settings.
const (
	byAnswers   = "answers"
	byTokens    = "tokens"
	byMaxTokens = "max_tokens"
)

// Words of Policy.Old.
const (
	OldOfModel   = "now"
	OldOfData    = "data"
	OldOfSampler = "sampler"
	OldOfStart   = "start"
)

var (
	normalizers = []string{byAnswers, byTokens, byMaxTokens}
	olds        = []string{OldOfModel, OldOfStart, OldOfData, OldOfSampler}
)

// policyLosses is the table, the default first.
func policyLosses() []policyLoss {
	within := []float64{0.2, 0.2}
	return []policyLoss{
		{name: "dapo", normalizer: byTokens, clip: []float64{0.2, 0.28}, advantage: byGroup, correction: tokenTruncate,
			paired: true, weigh: clippedTokens},
		{name: "grpo", normalizer: byAnswers, clip: within, advantage: byGroup, correction: tokenTruncate, paired: true,
			weigh: clippedTokens},
		{name: "bnpo", normalizer: byTokens, clip: within, advantage: byGroup, correction: tokenTruncate, paired: true,
			weigh: clippedTokens},
		{name: "dr_grpo", normalizer: byMaxTokens, clip: within, advantage: byNone, correction: tokenTruncate, paired: true,
			weigh: clippedTokens},
		{name: "gspo", normalizer: byAnswers, clip: []float64{3e-4, 4e-4}, advantage: byGroup, correction: tokenTruncate,
			level: ofMean, paired: true, weigh: clippedAnswer},
		{name: "cispo", normalizer: byTokens, clip: []float64{0, 5}, advantage: byGroup, correction: tokenTruncate,
			weigh: weighCISPO},
		{name: "sapo", normalizer: byAnswers, advantage: byGroup, correction: tokenTruncate, weigh: weighSAPO},
		{name: "vespo", normalizer: byTokens, advantage: byGroup, correction: tokenTruncate, weigh: weighVESPO},
		{name: "rloo", normalizer: byAnswers, clip: within, advantage: byLeaveOneOut, correction: noCorrection, level: ofSum,
			paired: true, whole: true, weigh: clippedAnswer},
		{name: "ppo", normalizer: byTokens, clip: within, advantage: byCritic, correction: tokenTruncate, paired: true,
			criticized: true, weigh: weighPPO},
		{name: "dppo", normalizer: byTokens, clip: within, advantage: byGroup, correction: noCorrection, readsTau: true,
			readsSampler: true, weigh: weighDPPO},
		{name: "ref_kl", normalizer: byTokens, clip: within, correction: noCorrection, readsTau: true, readsSampler: true,
			imitates: true, weigh: weighDPPO},
	}
}

// policyLossNamed finds a row; nil: no loss has that name.
func policyLossNamed(name string) *policyLoss {
	all := policyLosses()
	i := slices.IndexFunc(all, func(l policyLoss) bool { return l.name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// clipped is PPO's loss -min(r A, clip(r, 1-low, 1+high) A) at r = exp(x), its slope by x, and which side clips it.
// With delta, r is at most that in the first term (arXiv:2505.07291, section 3.4).
func (o *ofPolicy) clipped(x, advantage float64) (loss, slope float64, low, high bool) {
	r, dr := ratio(x)
	least, most := 1-o.settings.Clip[0], 1+o.settings.Clip[1]
	one, slopeOfOne := r, dr
	if delta := *o.settings.Delta; delta > 0 && r > delta {
		one, slopeOfOne = delta, 0
	}
	two, slopeOfTwo := min(max(r, least), most), 0.0
	if r >= least && r <= most {
		slopeOfTwo = dr
	}
	low, high = advantage < 0 && one < least, advantage > 0 && one > most
	if one*advantage <= two*advantage {
		return -one * advantage, -slopeOfOne * advantage, low, high
	}
	return -two * advantage, -slopeOfTwo * advantage, low, high
}

// clippedTokens is PPO's loss of each token: GRPO (arXiv:2402.03300), DAPO (arXiv:2503.14476) and Dr. GRPO
// (arXiv:2503.20783) differ in their normalizers, clips and advantages.
func clippedTokens(o *ofPolicy, a *answer) {
	for i, x := range a.ratios {
		loss, slope, low, high := o.clipped(x, a.advantage)
		a.loss[i], a.slope[i] = a.corrections[i]*loss, a.corrections[i]*slope
		a.count(low, high)
	}
}

// clippedAnswer is PPO's loss of an answer with one ratio: of its mean for each token, GSPO (arXiv:2507.18071), or of
// its sum once, RLOO (arXiv:2402.14740).
func clippedAnswer(o *ofPolicy, a *answer) {
	loss, slope, low, high := o.clipped(a.ratioOf(o, 0), a.advantage)
	a.count(low, high)
	if o.of.level == ofSum {
		loss /= float64(len(a.at)) // the loss of an answer is the sum of what its tokens have
	}
	// A token moves the mean by its share, and each token's loss is that of the mean.
	factor := mean(a.corrections)
	for i := range a.at {
		a.loss[i], a.slope[i] = a.corrections[i]*loss, factor*slope
	}
}

// weighCISPO is -min(r, high) A lp with the factor held (arXiv:2506.13585). In TRL as in its paper the clip is the
// bound itself, and not its distance from 1.
func weighCISPO(o *ofPolicy, a *answer) {
	for i, x := range a.ratios {
		r, _ := ratio(x)
		factor := a.corrections[i] * min(r, o.settings.Clip[1]) * a.advantage
		a.loss[i], a.slope[i] = -factor*a.lp[i], -factor
		if r > o.settings.Clip[1] && a.advantage > 0 {
			a.clipped++
		}
	}
}

// weighSAPO is -4/tau s(tau (r-1)) A with another tau for each sign of A (arXiv:2511.20347).
func weighSAPO(o *ofPolicy, a *answer) {
	tau := o.settings.Taus[1]
	if a.advantage > 0 {
		tau = o.settings.Taus[0]
	}
	for i, x := range a.ratios {
		r, dr := ratio(x)
		y := tau * (r - 1)
		factor := -4 * a.corrections[i] * a.advantage
		a.loss[i], a.slope[i] = factor*sigmoid(y)/tau, factor*sigmoid(y)*sigmoid(-y)*dr
	}
}

// vespoFloor is the least logarithm of VESPO's ratio, and vespoGamma are k and lambda of its weight, where the
// advantage is at least 0, and where it is below: TRL's defaults.
var (
	vespoFloor = math.Log(1e-8)
	vespoGamma = [2][2]float64{{2, 3}, {3, 2}}
)

// weighVESPO is -phi A lp with phi held: phi = exp(lambda + k log w - lambda w), where w is the ratio of the whole
// answer to its sampler (arXiv:2602.10693). The corrections of tokens are in w, and are no factors.
func weighVESPO(_ *ofPolicy, a *answer) {
	w := 0.0
	for i, x := range a.ratios {
		w += max(min(x, steepNats), -steepNats) + max(min(math.Log(a.corrections[i]), steepNats), vespoFloor)
	}
	w = max(min(w, steepNats), vespoFloor)
	gamma := vespoGamma[0]
	if a.advantage < 0 {
		gamma = vespoGamma[1]
	}
	k, lambda := gamma[0], gamma[1]
	a.scale = math.Exp(lambda + float64(k*w) - float64(lambda*math.Exp(w)))
	for i, lp := range a.lp {
		a.loss[i], a.slope[i] = -a.scale*a.advantage*lp, -a.scale*a.advantage
	}
}

// weighDPPO is -A exp(lp-q) + kl_tau (lp-q)^2. The first term is left out where the probability has moved by more than
// the clip in the direction of the advantage: DPPO (arXiv:2602.04879) with the penalty of Kimi K2.5
// (arXiv:2602.02276), as in default_loss_fn of prime-rl. A token whose q is not known has the ratio 1.
//
// Where it imitates, A = ref - lp, held, of each token: the teacher's log-probability of what the model has sampled is
// all that it learns from (ref_kl_loss_fn of prime-rl, whose mask has the sign of the reward's advantage).
func weighDPPO(o *ofPolicy, a *answer) {
	for i, lp := range a.lp {
		q := a.sampler[i]
		if math.IsNaN(q) {
			q = lp
		}
		advantage := a.advantage
		if o.of.imitates {
			advantage = nats(a.ref[i] - lp)
			a.kl = append(a.kl, -advantage)
		}
		x := nats(lp - q)
		r, dr := ratio(x)
		moved := math.Exp(min(lp, 0)) - math.Exp(q)
		low, high := advantage <= 0 && moved < -o.settings.Clip[0], advantage > 0 && moved > o.settings.Clip[1]
		if low || high {
			r, dr = 0, 0
		}
		tau := *o.settings.KLTau
		a.loss[i] = float64(tau*x*x) - float64(advantage*r)
		a.slope[i] = float64(2*tau*x) - float64(advantage*dr)
		a.count(low && advantage < 0, high)
	}
}

// count counts tokens, or the answer, whose loss is clipped.
func (a *answer) count(low, high bool) {
	if low {
		a.low++
	}
	if high {
		a.high++
	}
}
