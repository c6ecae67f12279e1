package objective

import (
	"fmt"
	"math"
)

// PPO (arXiv:1707.06347) learns from a critic: a model's values, each of which says what reward an answer will have
// after the tokens so far. A token that counts has the value v of the position that predicts it, o that of before the
// first update, and a reward r: of the last token that of the answer, and of each one -kl*(old-ref) besides, where
// there is a reference. With the next token's o, or 0 after the last one,
//
//	d = r + gamma*o_next - o
//	A = d + gamma*lambda*A_next     (GAE, arXiv:1506.02438)
//	G = A + o
//
// The advantages A are whitened over the step, or over each group of micro-batches where there are several: less their
// mean, by sqrt(variance + 1e-8). The loss of a token is that of its ratio with its advantage, plus vf_coef times
//
//	0.5*max((v-G)^2, (min(max(v, o-clip_value), o+clip_value)-G)^2)
//
// These are the formulas of verl (core_algos.py), and of the PPOTrainer that TRL had.

// estimate has what a critic's values make of an answer. Slices have an entry for each token that counts; without a
// reward they are nil.
type estimate struct {
	values, old, advantages, returns []float64
	slopes                           []float64 // of the loss by values, before the normalizer
	policy, value, clipped           float64   // sums over the tokens, which metrics have
}

// estimates makes an estimate of each answer. They have been checked.
func (o *ofPolicy) estimates(sequences []Sequence) []estimate {
	all := make([]estimate, len(sequences))
	var a answer
	for i := range sequences {
		if q := &sequences[i]; !q.Rollout.Unscored {
			a.read(o, q, 0)
			all[i] = o.estimate(q, &a)
		}
	}
	whiten(all)
	return all
}

// estimate makes the advantages of an answer, before they are whitened, and its returns.
func (o *ofPolicy) estimate(q *Sequence, a *answer) estimate {
	n := len(a.at)
	e := estimate{values: make([]float64, n), old: make([]float64, n), advantages: make([]float64, n),
		returns: make([]float64, n), slopes: make([]float64, n)}
	for i, t := range a.at {
		e.values[i] = float64(q.Values[t])
		if e.old[i] = e.values[i]; o.needs.OldValues {
			e.old[i] = float64(q.Rollout.Values[t])
		}
	}
	gamma, lambda, beta := *o.settings.Gamma, *o.settings.Lambda, *o.settings.KL
	r, next, ahead := q.Rollout.Reward, 0.0, 0.0
	for i := n - 1; i >= 0; i-- {
		if beta > 0 {
			r -= float64(beta * nats(a.old[i]-a.ref[i]))
		}
		d := r + float64(gamma*next) - e.old[i]
		ahead = d + float64(gamma*lambda*ahead)
		e.advantages[i], e.returns[i] = ahead, ahead+e.old[i]
		next, r = e.old[i], 0
	}
	return e
}

// varianceFloor is added to the variance where advantages of a critic are whitened, as in TRL and verl.
const varianceFloor = 1e-8

// whiten subtracts their mean from all advantages, and divides them by their standard deviation, with n-1.
func whiten(all []estimate) {
	sum, n := 0.0, 0.0
	for _, e := range all {
		for _, x := range e.advantages {
			sum += x
			n++
		}
	}
	center, squares := sum/n, 0.0
	for _, e := range all {
		for _, x := range e.advantages {
			squares += float64((x - center) * (x - center))
		}
	}
	scale := 1 / math.Sqrt(squares/max(n-1, 1)+varianceFloor)
	for _, e := range all {
		for i, x := range e.advantages {
			e.advantages[i] = (x - center) * scale
		}
	}
}

// weighPPO is PPO's loss of each token with an advantage of its own, and that of its value.
func weighPPO(o *ofPolicy, a *answer) {
	e := a.critic
	if e.values == nil { // no reward is known
		clear(a.loss)
		clear(a.slope)
		return
	}
	for i, x := range a.ratios {
		loss, slope, low, high := o.clipped(x, e.advantages[i])
		loss, a.slope[i] = a.corrections[i]*loss, a.corrections[i]*slope
		a.count(low, high)
		value, dv, clipped := o.valueLoss(e.values[i], e.old[i], e.returns[i])
		coef := *o.settings.VFCoef
		a.loss[i], e.slopes[i] = loss+float64(coef*value), float64(coef*dv)
		e.policy += loss
		if e.value += value; clipped {
			e.clipped++
		}
	}
}

// valueLoss is the loss of a value, its slope, and whether the bound on how far the value may move decides it: then it
// has no slope.
func (o *ofPolicy) valueLoss(v, old, returned float64) (loss, slope float64, clipped bool) {
	d := v - returned
	loss = float64(0.5 * d * d)
	if c := *o.settings.ClipValue; c > 0 {
		b := min(max(v, old-c), old+c) - returned
		if bounded := float64(0.5 * b * b); bounded > loss {
			return bounded, 0, true
		}
	}
	return loss, d, false
}

// checkCritic refuses a sequence that lacks values that the loss reads.
func (o *ofPolicy) checkCritic(q *Sequence) error {
	n := len(q.Targets)
	switch of := q.Rollout; {
	case !o.of.criticized:
	case len(q.Values) != n:
		return fmt.Errorf("%s has %d values and %d positions: %s needs a critic's value of each", q.name(), len(q.Values), n,
			o.of.name)
	case q.ValueSlopes != nil && len(q.ValueSlopes) != n:
		return fmt.Errorf("%s has %d slopes of values and %d positions: it needs one for each, or none at all", q.name(),
			len(q.ValueSlopes), n)
	case o.needs.OldValues && len(of.Values) != n:
		return fmt.Errorf("%s has %d values from before the first update and %d positions, and old is %s: give each one, or "+
			"leave old out", q.name(), len(of.Values), n, OldOfData)
	case !isFinite(of.Reward):
		return fmt.Errorf("%s has the reward %v: it must be finite", q.name(), of.Reward)
	}
	return nil
}

// criticMetrics hold sums over the tokens of answers with a reward. The first three are by TRL's names, the others by
// verl's.
type criticMetrics struct {
	policy, value, clipped, values, returns Part
	// Sums for the share of the returns' variance that the values before the update explain.
	returned, errors, returnedSquares, errorSquares float64
}

func newCriticMetrics() criticMetrics {
	return criticMetrics{policy: Part{Name: "loss/policy_avg"}, value: Part{Name: "loss/value_avg"},
		clipped: Part{Name: "val/clipfrac_avg"}, values: Part{Name: "critic/values/mean"},
		returns: Part{Name: "critic/returns/mean"}}
}

func (m *criticMetrics) add(e *estimate) {
	n := float64(len(e.values))
	for _, of := range []struct {
		part *Part
		sum  float64
	}{{&m.policy, e.policy}, {&m.value, e.value}, {&m.clipped, e.clipped}, {&m.values, sumOf(e.values)},
		{&m.returns, sumOf(e.returns)}} {
		of.part.Sum += of.sum
		of.part.Of += n
	}
	for i, g := range e.returns {
		miss := g - e.old[i]
		m.returned += g
		m.errors += miss
		m.returnedSquares += float64(g * g)
		m.errorSquares += float64(miss * miss)
	}
}

// parts are the metrics. The explained variance of a part of a step is its own, and that of the step their mean by
// tokens.
func (m *criticMetrics) parts() []Part {
	explained := Part{Name: "critic/vf_explained_var"}
	if n := m.returns.Of; n > 0 {
		of := m.returnedSquares - float64(m.returned*m.returned)/n
		left := m.errorSquares - float64(m.errors*m.errors)/n
		if of > LeastSpread*LeastSpread {
			explained.Sum, explained.Of = n*(1-left/of), n
		}
	}
	return []Part{m.policy, m.value, m.clipped, m.values, m.returns, explained}
}
