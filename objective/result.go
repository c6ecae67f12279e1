package objective

import "fmt"

// Count counts the sequences of a step by their targets, weights and sides alone. Weights must be those before Weigh.
func Count(sequences []Sequence) (n Counts) {
	for i := range sequences {
		q := &sequences[i]
		all := 0
		for _, target := range q.Targets {
			if target >= 0 {
				all++
			}
		}
		n.Targets += all
		switch q.Side {
		case Chosen:
			n.Groups++
		case Desirable:
			n.Groups++
			n.Desirable++
		case Undesirable:
			n.Groups++
			n.Undesirable++
		case Alone:
			n.Groups++
		}
		if q.Rollout != nil && q.Rollout.Masked {
			n.Masked += q.completion()
		}
		if q.Side == Chosen || q.Side == Desirable {
			n.Chosen += q.completion()
			n.ChosenAll += all
		}
	}
	return n
}

// Add adds the counts of another part of a step.
func (c *Counts) Add(o Counts) {
	c.Groups += o.Groups
	c.Targets += o.Targets
	c.Masked += o.Masked
	c.Chosen += o.Chosen
	c.ChosenAll += o.ChosenAll
	c.Desirable += o.Desirable
	c.Undesirable += o.Undesirable
}

// Merge adds the result of a part of a step to that of the parts before it. Both are of one objective, whose parts are
// always in the same order; into may be zero.
func Merge(into *Result, r Result) {
	into.Loss, into.Rest = total{into.Loss, into.Rest}.plus(total{r.Loss, r.Rest}).rounded()
	if into.Parts == nil {
		into.Parts = append(into.Parts, r.Parts...)
		return
	}
	if len(into.Parts) != len(r.Parts) {
		panic(fmt.Sprintf("objective: results with %d and %d parts", len(into.Parts), len(r.Parts)))
	}
	for i, p := range r.Parts {
		if into.Parts[i].Name != p.Name {
			panic(fmt.Sprintf("objective: results with %s and %s at place %d", into.Parts[i].Name, p.Name, i))
		}
		into.Parts[i].merge(p)
	}
}

// merge adds the part of another result.
func (p *Part) merge(o Part) {
	switch {
	case p.Extreme == NoExtreme:
		p.Sum += o.Sum
		p.Of += o.Of
	case o.Of == 0:
	case p.Of == 0:
		*p = o
	case p.Extreme == Least:
		p.Sum = min(p.Sum, o.Sum)
	default:
		p.Sum = max(p.Sum, o.Sum)
	}
}

// Metrics returns the means of the parts by their names. A part of nothing has none. rewards/margins is there, too,
// where chosen and rejected documents are no pairs: the difference of the means of both, as in TRL. The mean of squared
// factors of the sampler's correction makes the effective sample size, (sum rho)^2 / (n sum rho^2): 1 where all factors
// are equal.
func (r Result) Metrics() map[string]float64 {
	all := map[string]float64{}
	for _, p := range r.Parts {
		if p.Of != 0 {
			all[p.Name] = p.Sum / p.Of
		}
	}
	chosen, some := all[rewardsChosen]
	rejected, others := all[rewardsRejected]
	if _, has := all[rewardsMargins]; !has && some && others {
		all[rewardsMargins] = chosen - rejected
	}
	if squares, has := all[rhoSquares]; has {
		delete(all, rhoSquares)
		if squares > 0 {
			all[effectiveSize] = all[rhoName] * all[rhoName] / squares
		}
	}
	return all
}

// Names of metrics: TRL's.
const (
	rewardsChosen     = "rewards/chosen"
	rewardsRejected   = "rewards/rejected"
	rewardsAccuracies = "rewards/accuracies"
	rewardsMargins    = "rewards/margins"
	logpsChosen       = "logps/chosen"
	logpsRejected     = "logps/rejected"
	nllLoss           = "nll_loss"
	klName            = "kl"
	rhoName           = "sampling/importance_sampling_ratio/mean"
	rhoSquares        = "sampling/importance_sampling_ratio/mean_square"
	effectiveSize     = "sampling/effective_sample_size"
)

// result makes the result of a part.
func result(loss total, parts ...Part) Result {
	sum, rest := loss.rounded()
	return Result{Loss: sum, Rest: rest, Parts: parts}
}
