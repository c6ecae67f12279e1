package objective

import "math"

// correction is the factor of a token's loss for what sampled it: another program, whose log-probabilities q are not
// those of the model, or an older model. rho = exp(o - q) of a token, or of an answer the exponential of the sum;
// tokens whose q is not known count with rho = 1. Modes are TRL's vllm_importance_sampling_mode.
type correction struct {
	mode     string
	min, max float64 // of rho
}

// The modes. Those that truncate take the nearest rho within the bounds, and those that mask 0 outside of them.
const (
	noCorrection     = "none"
	tokenTruncate    = "token_truncate"
	tokenMask        = "token_mask"
	sequenceTruncate = "sequence_truncate"
	sequenceMask     = "sequence_mask"
)

var corrections = []string{tokenTruncate, tokenMask, sequenceTruncate, sequenceMask, noCorrection}

func (c *correction) isOfSequence() bool { return c.mode == sequenceTruncate || c.mode == sequenceMask }

// of appends the factors of an answer's tokens.
func (c *correction) of(a *answer, factors []float64) []float64 {
	sum := 0.0
	for i, q := range a.sampler {
		x := 0.0
		if !math.IsNaN(q) {
			x = a.old[i] - q
		}
		sum += x
		factors = append(factors, c.bounded(x))
	}
	if c.isOfSequence() {
		for i := range factors {
			factors[i] = c.bounded(sum)
		}
	}
	return factors
}

// bounded is the factor of a rho with a logarithm.
func (c *correction) bounded(x float64) float64 {
	rho, _ := ratio(x)
	switch c.mode {
	case noCorrection:
		return 1
	case tokenMask, sequenceMask:
		if rho < c.min || rho > c.max {
			return 0
		}
	}
	return max(min(rho, c.max), c.min)
}
