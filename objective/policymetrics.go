package objective

import "math"

// policyMetrics hold sums over the tokens that count, for metrics by TRL's names.
type policyMetrics struct {
	clipLow, clipHigh, clipRegion, clipped, kl, scale Part
	leastLow, mostHigh                                Part
	difference, mostDifference                        Part
	rho, leastRho, mostRho, rhoSquares                Part
	offPolicy, rejected                               Part
	critic                                            criticMetrics
}

func newPolicyMetrics() *policyMetrics {
	return &policyMetrics{
		clipLow: Part{Name: "clip_ratio/low_mean"}, clipHigh: Part{Name: "clip_ratio/high_mean"},
		clipRegion: Part{Name: "clip_ratio/region_mean"},
		leastLow:   Part{Name: "clip_ratio/low_min", Extreme: Least},
		mostHigh:   Part{Name: "clip_ratio/high_max", Extreme: Greatest},
		clipped:    Part{Name: "cispo_clip_ratio"}, scale: Part{Name: "vespo/phi_seq_mean"}, kl: Part{Name: klName},
		difference:     Part{Name: "sampling/sampling_logp_difference/mean"},
		mostDifference: Part{Name: "sampling/sampling_logp_difference/max", Extreme: Greatest},
		rho:            Part{Name: rhoName},
		rhoSquares:     Part{Name: rhoSquares},
		leastRho:       Part{Name: "sampling/importance_sampling_ratio/min", Extreme: Least},
		mostRho:        Part{Name: "sampling/importance_sampling_ratio/max", Extreme: Greatest},
		offPolicy:      Part{Name: "sampling/off_policy_masked"},
		rejected:       Part{Name: "sampling/rejected_tokens"},
		critic:         newCriticMetrics(),
	}
}

// reach has an extreme be that of one number more.
func (p *Part) reach(x float64) { p.merge(Part{p.Name, x, 1, p.Extreme}) }

// count counts an answer that is, or is not, what a share is of.
func (p *Part) count(is bool) {
	if p.Of++; is {
		p.Sum++
	}
}

// add adds an answer that has a token.
func (m *policyMetrics) add(o *ofPolicy, q *Sequence, a *answer) {
	if a.critic != nil {
		m.critic.add(a.critic)
	}
	n := float64(len(a.at))
	counted := n // what clips are counted over
	if o.of.level != ofToken {
		counted = 1
	}
	for _, of := range []struct {
		part *Part
		sum  float64
		n    float64
	}{{&m.clipLow, a.low, counted}, {&m.clipHigh, a.high, counted}, {&m.clipRegion, a.low + a.high, counted},
		{&m.clipped, a.clipped, n}, {&m.scale, a.scale, 1}, {&m.kl, sumOf(a.kl), float64(len(a.kl))}} {
		of.part.Sum += of.sum
		of.part.Of += of.n
	}
	if *o.settings.OffPolicyThreshold > 0 {
		m.offPolicy.count(a.isOffPolicy)
	}
	if o.rejects.mode != "" {
		m.rejected.Sum += float64(a.rejected)
		m.rejected.Of += n
	}
	m.leastLow.reach(a.low / counted)
	m.mostHigh.reach(a.high / counted)
	if q.Rollout.Sampler == nil {
		return
	}
	for i, of := range a.sampler {
		if !math.IsNaN(of) {
			d := math.Abs(nats(a.old[i] - of))
			m.difference.Sum += d
			m.difference.Of++
			m.mostDifference.reach(d)
		}
	}
	rhos := a.corrections
	switch {
	case o.corrects.mode == noCorrection:
		return
	case o.corrects.isOfSequence():
		rhos = rhos[:1]
	}
	for _, rho := range rhos {
		m.rho.Sum += rho
		m.rho.Of++
		m.rhoSquares.Sum += float64(rho * rho)
		m.rhoSquares.Of++
		m.leastRho.reach(rho)
		m.mostRho.reach(rho)
	}
}

// parts are the metrics of a loss.
func (m *policyMetrics) parts(o *ofPolicy) (all []Part) {
	if o.of.criticized {
		all = m.critic.parts()
	}
	switch {
	case o.of.paired || o.of.readsSampler:
		all = append(all, m.clipLow, m.clipHigh, m.clipRegion, m.leastLow, m.mostHigh)
	case o.of.name == "cispo":
		all = append(all, m.clipped)
	case o.of.name == "vespo":
		all = append(all, m.scale)
	}
	return append(all, m.kl, m.difference, m.mostDifference, m.rho, m.leastRho, m.mostRho, m.rhoSquares, m.offPolicy,
		m.rejected)
}
