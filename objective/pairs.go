package objective

import "fmt"

// ofPairs is an objective whose losses are of pairs: dpo, cpo, simpo and orpo.
type ofPairs struct {
	settings   Settings // resolved
	needs      Needs
	terms      []term
	averages   bool    // rewards and log-probabilities are by token
	likelihood float64 // share of the negative log-likelihood of chosen completions
}

// term is a loss of a sum, and its share.
type term struct {
	of    func(pair, *Settings) value
	share float64
}

func newPairs(k *kind, s Settings) *ofPairs {
	o := &ofPairs{settings: s, needs: k.needs, likelihood: *s.NLL}
	o.needs.Prompts = s.NLLPrompt
	for i, name := range s.Losses {
		share := 1.0
		if len(s.Shares) > 0 {
			share = s.Shares[i]
		}
		l := lossNamed(k.name, name)
		if l.likelihood {
			o.likelihood += share
			continue
		}
		o.terms = append(o.terms, term{l.of, share})
		o.averages = l.averages && !k.needs.Reference
	}
	return o
}

func (o *ofPairs) Name() string { return o.settings.Type }
func (o *ofPairs) Needs() Needs { return o.needs }

// metrics are sums over pairs.
type metrics struct {
	chosen, rejected, accurate, margins, logpsChosen, logpsRejected, pairs float64
	nll                                                                    total
	tokens                                                                 int
}

// Weigh gives a pair the weights of its losses and of its likelihood. Its part of the loss is its losses' sum over the
// number of pairs of the whole step, and its negative log-likelihood over the chosen tokens of the whole step.
func (o *ofPairs) Weigh(step *Step) (Result, error) {
	if err := step.checkWhole(); err != nil {
		return Result{}, err
	}
	var sum total
	var m metrics
	for i := 0; i < len(step.Sequences); i += 2 {
		if i+1 == len(step.Sequences) || !isPair(&step.Sequences[i], &step.Sequences[i+1]) {
			return Result{}, fmt.Errorf("sequence %d is %s, and not followed by its rejected side: %s needs pairs, "+
				"the chosen one first", i, step.Sequences[i].name(), o.Name())
		}
		loss, err := o.weighPair(&step.Sequences[i], &step.Sequences[i+1], &step.Whole, &m)
		if err != nil {
			return Result{}, err
		}
		sum.add(loss)
	}
	if len(step.Sequences) > 0 {
		sum = sum.times(1, float64(step.Whole.Groups))
		if o.likelihood > 0 {
			sum = sum.plus(m.nll.times(o.likelihood, float64(o.tokens(&step.Whole))))
		}
	}
	return result(sum, o.parts(&m)...), nil
}

func isPair(c, r *Sequence) bool { return c.Side == Chosen && r.Side == Rejected && c.Group == r.Group }

// tokens counts the targets of a step that a negative log-likelihood is the mean of.
func (o *ofPairs) tokens(n *Counts) int {
	if o.settings.NLLPrompt {
		return n.ChosenAll
	}
	return n.Chosen
}

// weighPair sets the weights of both sides of a pair, and returns the sum of its losses without likelihoods.
func (o *ofPairs) weighPair(c, r *Sequence, whole *Counts, m *metrics) (loss float64, err error) {
	shared, tail := min(c.completion(), r.completion()), 1.0
	if o.settings.LDAlpha != nil {
		tail = *o.settings.LDAlpha
	}
	var scores [2]score
	for i, q := range []*Sequence{c, r} {
		if err := q.check(o.needs.Reference); err != nil {
			return 0, err
		}
		scores[i] = q.scoreOf(o.needs.Reference, shared, tail)
		if err := q.checkScore(scores[i]); err != nil {
			return 0, err
		}
	}
	p := pair{scores[0].ratio(), scores[1].ratio(), float64(scores[0].tokens), float64(scores[1].tokens)}
	var du, dv float64
	for _, t := range o.terms {
		v := t.of(p, &o.settings)
		loss += float64(t.share * v.loss)
		du += float64(t.share * v.du)
		dv += float64(t.share * v.dv)
	}
	nll, tokens := c.likelihood(o.settings.NLLPrompt)
	m.nll.add(nll)
	m.tokens += tokens
	o.measure(m, p, scores)

	groups := float64(whole.Groups)
	ofChosen := slopes{score: du / groups, tail: tail, shared: shared,
		likelihood: -o.likelihood / float64(o.tokens(whole))}
	if o.settings.NLLPrompt {
		ofChosen.prompt = ofChosen.likelihood
	}
	ofRejected := slopes{score: dv / groups, tail: tail, shared: shared}
	trains := c.Weights != nil || r.Weights != nil
	for i, q := range []*Sequence{c, r} {
		if finite := q.weigh([]slopes{ofChosen, ofRejected}[i], whole.Targets); trains && (!finite || !isFinite(loss+nll)) {
			return 0, errNotFinite(q, scores[i], loss)
		}
	}
	return loss, nil
}

// measure adds a pair to the metrics.
func (o *ofPairs) measure(m *metrics, p pair, scores [2]score) {
	chosen, rejected := p.u, p.v
	logps := [2]float64{scores[0].logp, scores[1].logp}
	if o.averages {
		chosen, rejected = chosen/p.lu, rejected/p.lv
		logps = [2]float64{chosen, rejected}
	}
	chosen, rejected = o.settings.Beta*chosen, o.settings.Beta*rejected
	if chosen > rejected {
		m.accurate++
	}
	m.chosen += chosen
	m.rejected += rejected
	m.margins += chosen - rejected
	m.logpsChosen += logps[0]
	m.logpsRejected += logps[1]
	m.pairs++
}

// parts are the metrics by name.
func (o *ofPairs) parts(m *metrics) []Part {
	of := func(name string, sum float64) Part { return Part{Name: name, Sum: sum, Of: m.pairs} }
	parts := []Part{of(rewardsChosen, m.chosen), of(rewardsRejected, m.rejected), of(rewardsAccuracies, m.accurate),
		of(rewardsMargins, m.margins), of(logpsChosen, m.logpsChosen), of(logpsRejected, m.logpsRejected)}
	if o.likelihood > 0 {
		nll, _ := m.nll.rounded()
		parts = append(parts, Part{Name: nllLoss, Sum: nll, Of: float64(m.tokens)})
	}
	return parts
}
