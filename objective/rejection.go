package objective

import (
	"math"
	"strings"
)

// rejection leaves out what the model and the sampler disagree about too much: tokens, or whole answers. The measure of
// a token is an estimate of the divergence (Schulman, "Approximating KL divergence"), with x = o - q within 20 nats:
//
//	k1  -x, bounded on both sides: exp(-x) is at most the bound, and at least 1 by the bound
//	k2  x*x/2
//	k3  exp(x) - 1 - x
//
// Modes are rollout_rs of verl, whose divisors leave out rejected tokens as well; here divisors count all tokens, since
// a part of a step does not know what is rejected in the others.
type rejection struct {
	mode string // empty: nothing is rejected
	most float64
}

// rejections are the modes.
var rejections = []string{"token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1",
	"seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"}

// apply clears the loss of what is rejected, and returns the number of tokens.
func (r *rejection) apply(a *answer) (tokens int) {
	if r.mode == "" {
		return 0
	}
	level, kind, _ := strings.Cut(strings.TrimPrefix(r.mode, "seq_"), "_")
	all := make([]float64, len(a.at))
	for i := range all {
		all[i] = a.divergence(i, kind)
	}
	switch level {
	case "sum":
		all = all[:copy(all, []float64{sumOf(all)})]
	case "mean":
		all = all[:copy(all, []float64{mean(all)})]
	case "max":
		most := math.Inf(-1)
		for _, x := range all {
			most = max(most, x)
		}
		all = all[:copy(all, []float64{most})]
	}
	for i := range a.at {
		if r.allows(all[min(i, len(all)-1)], kind) {
			continue
		}
		tokens++
		a.loss[i], a.slope[i] = 0, 0
	}
	return tokens
}

// divergence is the measure of token i; 0 where its sampler's log-probability is not known.
func (a *answer) divergence(i int, kind string) float64 {
	if math.IsNaN(a.sampler[i]) {
		return 0
	}
	x := max(min(a.old[i]-a.sampler[i], steepNats), -steepNats)
	switch kind {
	case "k2":
		return x * x / 2
	case "k3":
		return math.Exp(x) - 1 - x
	}
	return -x
}

// allows reports whether a measure is within the bound.
func (r *rejection) allows(x float64, kind string) bool {
	if kind == "k1" {
		return math.Abs(x) <= math.Log(r.most)
	}
	return x <= r.most
}

// isOffPolicyBy reports whether an answer that is worse than expected is so far from the model that it does not count:
// the mean of q - lp over its tokens is above a bound, with o in place of q where that is not known at all
// (DeepSeek-V3.2, arXiv:2512.02556, equation 9; off_policy_mask_threshold of TRL).
func (a *answer) isOffPolicyBy(most float64, hasSampler bool) bool {
	if most == 0 || a.advantage >= 0 {
		return false
	}
	sum := 0.0
	for i, q := range a.sampler {
		if !hasSampler {
			q = a.old[i]
		}
		if !math.IsNaN(q) {
			sum += q - a.lp[i]
		}
	}
	return sum/float64(len(a.at)) > most
}
