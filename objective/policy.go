package objective

import (
	"fmt"
	"math"
	"slices"
)

// ofPolicy is policy: reinforcement learning from answers that a policy has sampled, each with an advantage, which says
// by how much it is better than what was to be expected.
//
// A token has lp, the model's log-probability now; o, the same before the first update with these answers; q, that of
// the sampler; and ref, that of the reference. r = exp(lp-o) is its ratio. policylosses.go has the losses of an answer
// and their derivatives by lp; correction.go has the factors for a sampler that is another program or an older model,
// and advantages.go the advantages, or of PPO critic.go.
//
// The loss of a step is the sum of all tokens' losses, each divided by what the normalizer says:
//
//	answers     the answers of the step, times the tokens of the answer itself
//	tokens      the tokens of all answers of the step
//	max_tokens  the answers of the step, times the most tokens that an answer can have
//
// The entropy bonus is entropy_coef times the mean entropy of the model's distributions at the tokens of all answers of
// the step that are not masked, whatever the normalizer says. The loss is less by it.
//
// The names and formulas are those of TRL 1.16.0, which takes the tokens and the answers of a micro-batch in some.
type ofPolicy struct {
	settings Settings // resolved
	needs    Needs
	of       policyLoss
	corrects correction
	rejects  rejection
}

// Rollout holds the facts of an answer that was sampled. Slices have an entry for each position, of its target.
type Rollout struct {
	// Advantage is by how much the answer is better than what was expected.
	Advantage float64
	// Unscored says that no reward is known: the advantage is 0, and no other answer is compared with this one.
	Unscored bool
	// Masked says that no token of the answer counts in the loss, nor in what it is divided by.
	Masked bool
	// Sampler are the log-probabilities of the model that has sampled the answer; above 0: not known. Nil: none is.
	Sampler []float32
	// Old are those before the first update with the answers of the step. First says that no update came before: they
	// are the model's own then, and not given.
	Old   []float32
	First bool
	// Reward is that of the answer, which a critic's values are compared with, and Values are those before the first
	// update, of the positions that predict the tokens; nil: the model's own.
	Reward float64
	Values []float32
}

// UnknownLogProb stands for a log-probability that is not known: none is above 0.
const UnknownLogProb float32 = 1

func newPolicy(k *kind, s Settings) *ofPolicy {
	o := &ofPolicy{settings: s, needs: k.needs, of: *policyLossNamed(s.Losses[0])}
	o.needs.Reference, o.needs.Rewards = *s.KL > 0 || o.of.imitates, !o.of.imitates
	isOwn := s.Old == OldOfModel && (*s.OffPolicyThreshold > 0 || s.Rejection != "") // which nothing is far from
	o.needs.Sampler = o.of.readsSampler || s.Old == OldOfSampler || isOwn
	o.needs.Old, o.needs.OldOfStart = s.Old == OldOfData || s.Old == OldOfStart, s.Old == OldOfStart
	o.needs.Endings, o.needs.Entropies = s.MaskTruncated, *s.EntropyCoef != 0
	o.needs.Values, o.needs.OldValues = o.of.criticized, o.of.criticized && s.Old == OldOfData
	o.corrects = correction{s.Correction, *s.CorrectionMin, *s.CorrectionMax}
	o.rejects = rejection{s.Rejection, *s.RejectionMax}
	return o
}

func (o *ofPolicy) Name() string { return o.settings.Type }
func (o *ofPolicy) Needs() Needs { return o.needs }

// answer is an answer as the losses read it. Slices have an entry for each token that counts.
type answer struct {
	advantage                 float64
	at                        []int // positions
	lp, old, sampler, ref     []float64
	ratios                    []float64 // lp - old, in nats
	corrections               []float64 // factors of the policy's loss
	loss, slope               []float64 // of each token, before the normalizer: the slope is by lp
	kl                        []float64 // of each token, as metrics have it
	low, high, clipped, scale float64   // sums over the tokens, or of the answer: what metrics count
	rejected                  int       // tokens
	isOffPolicy               bool
	critic                    *estimate // of losses that need one
}

// Weigh gives the tokens of answers the weights of the policy's loss.
func (o *ofPolicy) Weigh(step *Step) (Result, error) {
	if err := step.checkWhole(); err != nil {
		return Result{}, err
	}
	for i := range step.Sequences {
		if err := o.check(&step.Sequences[i]); err != nil {
			return Result{}, err
		}
	}
	advantages := o.penalized(step.Sequences)
	var critic []estimate
	if o.of.criticized {
		critic = o.estimates(step.Sequences)
	}
	var sum, entropies total
	var a answer
	m := newPolicyMetrics()
	for i := range step.Sequences {
		q := &step.Sequences[i]
		if a.read(o, q, advantages[i]); critic != nil {
			a.critic = &critic[i]
		}
		if len(a.at) > 0 {
			o.weighAnswer(q, &a)
			m.add(o, q, &a)
		}
		if o.needs.Entropies {
			for _, t := range a.at {
				entropies.add(float64(q.Entropies[t]))
			}
		}
		finite := o.set(q, &a, &step.Whole)
		for t := range a.loss {
			loss := a.loss[t]
			if o.settings.Normalizer == byAnswers && !o.of.whole {
				loss /= float64(len(a.at))
			}
			sum.add(loss)
			finite = finite && isFinite(loss)
		}
		if !finite && q.Weights != nil {
			return Result{}, fmt.Errorf("%s has a weight that is infinite or NaN, at an advantage of %v: check its rewards, or "+
				"lower the learning rate", q.name(), a.advantage)
		}
	}
	if divisor := o.divisor(&step.Whole, 1); divisor > 0 {
		sum = sum.times(1, divisor)
	}
	if tokens := step.Whole.Targets - step.Whole.Masked; o.needs.Entropies && tokens > 0 {
		sum = sum.plus(entropies.times(-*o.settings.EntropyCoef, float64(tokens)))
	}
	return result(sum, m.parts(o)...), nil
}

// weighAnswer sets loss and slope of the tokens of an answer.
func (o *ofPolicy) weighAnswer(q *Sequence, a *answer) {
	o.of.weigh(o, a)
	a.isOffPolicy = a.isOffPolicyBy(*o.settings.OffPolicyThreshold, q.Rollout.Sampler != nil)
	if a.isOffPolicy {
		clear(a.loss)
		clear(a.slope)
	}
	a.addKL(o)
	a.rejected = o.rejects.apply(a)
}

// divisor divides the loss of a token, of an answer with some tokens.
func (o *ofPolicy) divisor(n *Counts, tokens int) float64 {
	switch {
	case o.of.whole:
		return float64(n.Groups)
	case o.settings.Normalizer == byTokens:
		return float64(n.Targets - n.Masked)
	case o.settings.Normalizer == byMaxTokens:
		return float64(n.Groups) * float64(o.settings.MaxTokens)
	}
	return float64(n.Groups) * float64(tokens)
}

// set sets the weights of a sequence, and reports whether all are finite in fp32.
func (o *ofPolicy) set(q *Sequence, a *answer, n *Counts) (finite bool) {
	clear(q.Weights)
	clear(q.ValueSlopes)
	clear(q.EntropySlopes)
	finite = true
	if q.Weights == nil {
		return finite
	}
	factor := -float64(n.Targets) / o.divisor(n, len(a.at))
	for i, t := range a.at {
		w := float32(a.slope[i] * factor)
		finite = finite && isFinite(float64(w)) && isFinite(a.lp[i])
		q.Weights[t] = w
		if q.ValueSlopes != nil && a.critic != nil && a.critic.values != nil {
			q.ValueSlopes[t] = float32(a.critic.slopes[i] * -factor)
			finite = finite && isFinite(float64(q.ValueSlopes[t]))
		}
		finite = finite && (!o.needs.Entropies || isFinite(float64(q.Entropies[t])))
		if q.EntropySlopes != nil {
			q.EntropySlopes[t] = float32(-*o.settings.EntropyCoef * float64(n.Targets) / float64(n.Targets-n.Masked))
		}
	}
	return finite
}

// read takes what is known of an answer's tokens.
func (a *answer) read(o *ofPolicy, q *Sequence, advantage float64) {
	*a = answer{advantage: advantage, at: a.at[:0], lp: a.lp[:0], old: a.old[:0], sampler: a.sampler[:0], ref: a.ref[:0],
		ratios: a.ratios[:0], corrections: a.corrections[:0], kl: a.kl[:0], loss: a.loss, slope: a.slope}
	for t := range q.Targets {
		if q.Rollout.Masked || !q.isCompletion(t) {
			continue
		}
		lp := float64(q.LogProbs[t])
		sampler := math.NaN()
		if q.Rollout.Sampler != nil && q.Rollout.Sampler[t] <= 0 {
			sampler = float64(q.Rollout.Sampler[t])
		}
		old := lp
		switch {
		case q.Rollout.First:
		case o.needs.Old:
			old = float64(q.Rollout.Old[t])
		case o.settings.Old == OldOfSampler && !math.IsNaN(sampler):
			old = sampler
		}
		a.at, a.lp, a.old, a.sampler = append(a.at, t), append(a.lp, lp), append(a.old, old), append(a.sampler, sampler)
		if a.ratios = append(a.ratios, lp-old); o.needs.Reference {
			a.ref = append(a.ref, float64(q.Reference[t]))
		}
	}
	a.loss, a.slope = slices.Grow(a.loss[:0], len(a.at))[:len(a.at)], slices.Grow(a.slope[:0], len(a.at))[:len(a.at)]
	a.corrections = o.corrects.of(a, a.corrections)
}

// addKL adds the estimate of the divergence from the reference to what each token has. The estimate is k3 =
// exp(d) - d - 1 with d = ref - lp (Schulman, "Approximating KL divergence"), times the ratio unless kl_plain is set:
// its gradient is then that of the divergence of the model from the reference, and not of the opposite one
// (arXiv:2512.02556, equation 7).
func (a *answer) addKL(o *ofPolicy) {
	beta := *o.settings.KL
	switch {
	case beta == 0 && !o.of.imitates:
		return
	case o.of.whole || o.of.criticized || o.of.imitates: // it is in the rewards, or is what the answer learns from
		for i, ref := range a.ref {
			a.kl = append(a.kl, a.old[i]-ref)
		}
		return
	}
	mean := 0.0 // of k3
	for i, ref := range a.ref {
		e, _ := ratio(ref - a.lp[i])
		a.kl = append(a.kl, e-nats(ref-a.lp[i])-1)
		mean += a.kl[i]
	}
	mean /= float64(len(a.kl))
	for i, ref := range a.ref {
		_, e := ratio(ref - a.lp[i])
		k3 := a.kl[i]
		slope := 1 - e
		if !o.settings.KLPlain {
			r, dr := ratio(a.ratioOf(o, i))
			rises := k3 * dr
			if o.of.level == ofMean {
				rises = mean * dr // each token moves the ratio of all, and each by its share
			}
			slope = float64(slope*r) + rises
			a.kl[i] = k3 * r
		}
		a.loss[i] += float64(beta * a.kl[i])
		a.slope[i] += float64(beta * slope)
	}
}

// ratioOf is the logarithm of the ratio of token i, or of the answer where the loss has one of that.
func (a *answer) ratioOf(o *ofPolicy, i int) float64 {
	switch o.of.level {
	case ofMean:
		return mean(a.ratios)
	case ofSum:
		return sumOf(a.ratios)
	}
	return a.ratios[i]
}

// penalized are the advantages of answers. Where the loss is of whole answers, the divergence from the reference is a
// penalty of rewards: an answer has k = sum(o - ref), and its advantage loses kl times k, less the mean of k of the
// other answers of its group (TRL's RLOOTrainer).
func (o *ofPolicy) penalized(sequences []Sequence) []float64 {
	all := make([]float64, len(sequences))
	for i := range sequences {
		all[i] = sequences[i].Rollout.Advantage
	}
	if !o.of.whole || *o.settings.KL == 0 {
		return all
	}
	for first := 0; first < len(sequences); {
		end := first + 1
		for end < len(sequences) && sequences[end].Group == sequences[first].Group {
			end++
		}
		var penalties []float64
		var members []int
		for i := first; i < end; i++ {
			if sequences[i].Rollout.Unscored {
				continue
			}
			var a answer
			a.read(o, &sequences[i], 0)
			k := 0.0
			for t, ref := range a.ref {
				k += a.old[t] - ref
			}
			penalties, members = append(penalties, k), append(members, i)
		}
		if n := float64(len(members)); n > 1 {
			sum := sumOf(penalties)
			for j, i := range members {
				all[i] -= float64(*o.settings.KL * (penalties[j] - (sum-penalties[j])/(n-1)))
			}
		}
		first = end
	}
	return all
}

// check refuses a sequence that has not what the loss reads.
func (o *ofPolicy) check(q *Sequence) error {
	switch {
	case q.Side != Alone:
		return fmt.Errorf("%s is of no use: policy needs answers that were sampled", q.name())
	case q.Rollout == nil:
		return fmt.Errorf("%s has no advantage: policy needs answers that were sampled (data of type rollouts)", q.name())
	case !isFinite(q.Rollout.Advantage):
		return fmt.Errorf("%s has the advantage %v: it must be finite", q.name(), q.Rollout.Advantage)
	case o.needs.Old && q.Rollout.Old == nil && !q.Rollout.First:
		return fmt.Errorf("%s has no log-probabilities from before the first update, and old is %s: give them, or leave "+
			"old out", q.name(), o.settings.Old)
	case o.settings.Old == OldOfSampler && q.Rollout.Sampler == nil:
		return fmt.Errorf("%s has no log-probabilities of its sampler, and old is %s: give them, or leave old out",
			q.name(), OldOfSampler)
	case o.of.readsSampler && q.Rollout.Sampler == nil:
		return fmt.Errorf("%s has no log-probabilities of its sampler, which the loss %s compares with: give them, or take "+
			"another loss", q.name(), o.of.name)
	}
	for _, of := range []struct {
		what string
		all  []float32
	}{{"of its sampler", q.Rollout.Sampler}, {"from before the first update", q.Rollout.Old}} {
		if of.all != nil && len(of.all) != len(q.Targets) {
			return fmt.Errorf("%s has %d log-probabilities %s and %d positions: it needs one for each", q.name(), len(of.all),
				of.what, len(q.Targets))
		}
	}
	if err := o.checkCritic(q); err != nil {
		return err
	}
	if err := o.checkEntropies(q); err != nil {
		return err
	}
	return q.check(o.needs.Reference)
}

// checkEntropies refuses a sequence that lacks entropies that the loss reads.
func (o *ofPolicy) checkEntropies(q *Sequence) error {
	n := len(q.Targets)
	switch {
	case !o.needs.Entropies:
	case len(q.Entropies) != n:
		return fmt.Errorf("%s has %d entropies and %d positions: entropy_coef needs that of each", q.name(), len(q.Entropies),
			n)
	case q.EntropySlopes != nil && len(q.EntropySlopes) != n:
		return fmt.Errorf("%s has %d slopes of entropies and %d positions: it needs one for each, or none at all", q.name(),
			len(q.EntropySlopes), n)
	}
	return nil
}

// farNats bounds the differences of log-probabilities, which models do not have, and steepNats those of which ratios
// are exponentials: beyond, a ratio grows along its tangent. So nothing that is finite becomes infinite, and no slope
// vanishes.
const (
	farNats   = 1000
	steepNats = 20
)

// nats is a difference of log-probabilities within bounds.
func nats(x float64) float64 { return max(min(x, farNats), -farNats) }

// ratio is exp(x), and its slope.
func ratio(x float64) (r, slope float64) {
	x = nats(x)
	if x <= steepNats {
		r = math.Exp(x)
		return r, r
	}
	slope = math.Exp(steepNats)
	return float64(slope * (1 + x - steepNats)), slope
}

func sumOf(all []float64) (sum float64) {
	for _, x := range all {
		sum += x
	}
	return sum
}

func mean(all []float64) float64 { return sumOf(all) / float64(len(all)) }
