package modeltest

import "math"

// How far Go's numbers may be from those of golden files. docs/models.md says so, too.
const (
	WithinLogits    = 1e-5 // each logit and the loss in fp32
	WithinGradients = 1e-4 // the gradient of a tensor in fp32, of its norm
	WithinSteps     = 1e-4 // the losses of the steps in fp32
	WithinBF16      = 0.02 // a loss of bf16 compute, of itself
)

// MaxDiff is the largest absolute difference of two vectors of one length, +Inf where a difference is not a
// number or the lengths differ.
func MaxDiff(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range got {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst = max(worst, d)
	}
	return worst
}

// RelDiff is |got - want| / |want| in Euclidean norms, +Inf where a difference is not a number or the lengths differ.
func RelDiff(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var diff, size float64
	for i := range got {
		d := float64(got[i]) - float64(want[i])
		diff += d * d
		size += float64(want[i]) * float64(want[i])
	}
	switch {
	case math.IsNaN(diff):
		return math.Inf(1)
	case diff == 0:
		return 0
	}
	return math.Sqrt(diff / size)
}
