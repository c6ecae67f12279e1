package objective

import (
	"errors"
	"fmt"
)

// ofSingles is kto: Kahneman-Tversky optimization (arXiv:2402.01306, equation 7) of documents that are desirable or
// not.
//
// A document has u = log p(completion) - log p_ref(completion). Its loss is desirable*(1 - s(b*(u-kl))) or
// undesirable*(1 - s(b*(kl-u))), and the loss of a step is the mean over its documents. kl is a constant, the mean of
// u over completions after prompts of other documents, at least 0: an estimate of the divergence from the reference.
// It is of the mismatched sequences of the step that Weigh is given; TRL takes those of a micro-batch.
//
// apo_zero_unpaired is the same with kl = 0 (arXiv:2408.06266, equation 7, each side alone).
type ofSingles struct {
	settings Settings // resolved
	needs    Needs
}

func newSingles(k *kind, s Settings) *ofSingles {
	o := &ofSingles{settings: s, needs: k.needs}
	o.needs.Mismatched = lossNamed(k.name, s.Losses[0]).mismatched
	return o
}

func (o *ofSingles) Name() string { return o.settings.Type }
func (o *ofSingles) Needs() Needs { return o.needs }

// Weigh gives documents their weights, and mismatched ones weights of 0.
func (o *ofSingles) Weigh(step *Step) (Result, error) {
	if err := step.checkWhole(); err != nil {
		return Result{}, err
	}
	scores := make([]score, len(step.Sequences))
	kl := Part{Name: klName}
	for i := range step.Sequences {
		q := &step.Sequences[i]
		switch q.Side {
		case Desirable, Undesirable, Mismatched:
		default:
			return Result{}, fmt.Errorf("%s is of no use: kto needs documents that are desirable or undesirable", q.name())
		}
		if q.Side == Mismatched && !o.needs.Mismatched {
			continue
		}
		if err := q.check(true); err != nil {
			return Result{}, err
		}
		scores[i] = q.scoreOf(true, whole, 1)
		if err := q.checkScore(scores[i]); err != nil {
			return Result{}, err
		}
		if q.Side == Mismatched {
			kl.Sum += scores[i].ratio()
			kl.Of++
		}
	}
	divergence := 0.0
	if o.needs.Mismatched {
		if len(step.Sequences) > 0 && kl.Of == 0 {
			return Result{}, errors.New("the step has no mismatched completion: kto's loss needs them; " +
				"give some, or take the loss apo_zero_unpaired")
		}
		divergence = max(kl.Sum, 0) / max(kl.Of, 1)
		kl.Sum = max(kl.Sum, 0)
	}
	return o.weighAll(step, scores, divergence, kl)
}

// weighAll is Weigh after the divergence is known.
func (o *ofSingles) weighAll(step *Step, scores []score, divergence float64, kl Part) (Result, error) {
	var sum total
	reward := [2]Part{{Name: rewardsChosen}, {Name: rewardsRejected}}
	logp := [2]Part{{Name: logpsChosen}, {Name: logpsRejected}}
	documents := step.Whole.Desirable + step.Whole.Undesirable
	for i := range step.Sequences {
		q, s := &step.Sequences[i], scores[i]
		if q.Side == Mismatched {
			q.weigh(slopes{}, step.Whole.Targets)
			continue
		}
		side, sign, share := 0, 1.0, *o.settings.Desirable
		if q.Side == Undesirable {
			side, sign, share = 1, -1, *o.settings.Undesirable
		}
		y := sign * o.settings.Beta * (s.ratio() - divergence)
		loss := share * sigmoid(-y)
		slope := -sign * share * o.settings.Beta * sigmoid(y) * sigmoid(-y)
		k := slopes{score: slope / float64(documents), shared: whole}
		if finite := q.weigh(k, step.Whole.Targets); q.Weights != nil && (!finite || !isFinite(loss)) {
			return Result{}, errNotFinite(q, s, loss)
		}
		sum.add(loss)
		reward[side].Sum += o.settings.Beta * s.ratio()
		logp[side].Sum += s.logp
		reward[side].Of++
		logp[side].Of++
	}
	if documents > 0 {
		sum = sum.times(1, float64(documents))
	}
	parts := []Part{reward[0], reward[1], logp[0], logp[1]}
	if o.needs.Mismatched {
		parts = append(parts, kl)
	}
	return result(sum, parts...), nil
}
