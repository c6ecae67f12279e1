package objective

import (
	"fmt"
	"math"
)

// ofScores is reward: the Bradley-Terry model of preferences, for a model that gives a text a score (arXiv:2203.02155,
// equation 1). A pair with the scores c and r has d = c - r - margin, and its loss is
//
//	-log s(d) + center*(c+r)^2
//
// with the margin of its row (arXiv:2307.09288, equation 2), and with center the scores' mean is held at 0
// (arXiv:2312.09244). The loss of a step is the mean over its pairs. A side has one target, at the position whose score
// is its own, where LogProbs has the score.
type ofScores struct {
	settings Settings // resolved
}

func (o *ofScores) Name() string { return o.settings.Type }
func (o *ofScores) Needs() Needs { return Needs{Pairs: true, Scores: true} }

// Weigh gives the positions of scores their weights.
func (o *ofScores) Weigh(step *Step) (Result, error) {
	if err := step.checkWhole(); err != nil {
		return Result{}, err
	}
	groups := float64(step.Whole.Groups)
	var sum total
	mean, accuracy, margin := Part{Name: meanReward}, Part{Name: rewardAccuracy}, Part{Name: rewardMargin}
	least := Part{Name: minReward, Sum: math.Inf(1), Of: 1, Extreme: Least}
	most := Part{Name: maxReward, Sum: math.Inf(-1), Of: 1, Extreme: Greatest}
	for i := 0; i < len(step.Sequences); i += 2 {
		if i+1 == len(step.Sequences) || !isPair(&step.Sequences[i], &step.Sequences[i+1]) {
			return Result{}, fmt.Errorf("sequence %d is %s, and not followed by its rejected side: %s needs pairs, "+
				"the chosen one first", i, step.Sequences[i].name(), o.Name())
		}
		sides, scores := step.Sequences[i:i+2], [2]float64{}
		for j := range sides {
			if err := sides[j].check(false); err != nil {
				return Result{}, err
			}
			s := sides[j].scoreOf(false, whole, 1)
			if s.tokens != 1 {
				return Result{}, fmt.Errorf("%s has %d targets: the score of a text is at one position", sides[j].name(),
					s.tokens)
			}
			scores[j] = s.logp
		}
		d, both := scores[0]-scores[1]-sides[0].Margin, scores[0]+scores[1]
		loss := float64(*o.settings.Center*both*both) - logSigmoid(d)
		centered := 2 * *o.settings.Center * both
		slopesOf := [2]float64{centered - sigmoid(-d), centered + sigmoid(-d)}
		for j := range sides {
			k := slopes{score: slopesOf[j] / groups, shared: whole}
			finite := sides[j].weigh(k, step.Whole.Targets)
			if sides[j].Weights != nil && (!finite || !isFinite(loss)) {
				return Result{}, fmt.Errorf("%s has a weight that is infinite or NaN, at a score of %v and a loss of %v: "+
					"lower the learning rate", sides[j].name(), scores[j], loss)
			}
			least.Sum, most.Sum = min(least.Sum, scores[j]), max(most.Sum, scores[j])
		}
		sum.add(loss)
		mean.Sum += both
		mean.Of += 2
		if scores[0] > scores[1] {
			accuracy.Sum++
		}
		accuracy.Of++
		margin.Sum += scores[0] - scores[1]
		margin.Of++
	}
	if len(step.Sequences) > 0 {
		sum = sum.times(1, groups)
	} else {
		least.Of, most.Of = 0, 0
	}
	return result(sum, least, mean, most, accuracy, margin), nil
}

// Names of metrics: TRL's.
const (
	minReward      = "min_reward"
	meanReward     = "mean_reward"
	maxReward      = "max_reward"
	rewardAccuracy = "accuracy"
	rewardMargin   = "margin"
)
