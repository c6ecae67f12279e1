package objective

import (
	"fmt"
	"math"
)

// ofTokens is dft: dynamic fine-tuning (arXiv:2508.05629), supervised learning in which a token counts by its own
// probability p. Its loss is -p log p with p held constant, so its weight is p. The loss of a step is the mean over its
// targets. It rises while a model learns what it has not known, so an evaluation has the mean of -log p.
type ofTokens struct {
	settings Settings // resolved
}

func (o *ofTokens) Name() string { return o.settings.Type }
func (o *ofTokens) Needs() Needs { return Needs{} }

// Weigh gives each token of a completion its probability as its weight.
func (o *ofTokens) Weigh(step *Step) (Result, error) {
	if err := step.checkWhole(); err != nil {
		return Result{}, err
	}
	var sum total
	nll := Part{Name: nllLoss}
	for i := range step.Sequences {
		q := &step.Sequences[i]
		if q.Side != Alone {
			return Result{}, fmt.Errorf("%s is of no use: dft needs documents that are compared with none", q.name())
		}
		if err := q.check(false); err != nil {
			return Result{}, err
		}
		for t := range q.Targets {
			p := 0.0
			if q.isCompletion(t) {
				logp := float64(q.LogProbs[t])
				p = math.Exp(logp)
				loss := -p * logp
				if q.Weights == nil {
					loss = -logp
				}
				if !isFinite(loss) && q.Weights != nil {
					return Result{}, errNotFinite(q, score{logp: logp}, loss)
				}
				sum.add(loss)
				nll.Sum -= logp
				nll.Of++
			}
			if q.Weights != nil {
				q.Weights[t] = float32(p)
			}
		}
	}
	if step.Whole.Targets > 0 {
		sum = sum.times(1, float64(step.Whole.Targets))
	}
	return result(sum, nll), nil
}
