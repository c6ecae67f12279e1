package optim

import (
	"math"

	"github.com/millrace/millrace/device"
)

// AdamW are the constants of the optimizer, named as in PyTorch.
type AdamW struct {
	Beta1, Beta2, Eps, WeightDecay float64
}

// Scalars are the numbers of one update, computed in fp64 and rounded once: step counts from 1, lr is this step's
// learning rate, clip the scale of the gradients, and decay says whether weight decay applies to the parameters.
// Source: torch.optim.AdamW, with bias corrections bc = 1 - beta^step.
func (a AdamW) Scalars(step int, lr, clip float64, decay bool) device.AdamWScalars {
	bc1 := 1 - math.Pow(a.Beta1, float64(step))
	bc2 := 1 - math.Pow(a.Beta2, float64(step))
	keep := 1.0
	if decay {
		keep -= float64(lr * a.WeightDecay)
	}
	return device.AdamWScalars{
		ClipScale:     float32(clip),
		Decay:         float32(keep),
		OneMinusBeta1: float32(1 - a.Beta1),
		Beta2:         float32(a.Beta2),
		OneMinusBeta2: float32(1 - a.Beta2),
		StepSize:      float32(lr / bc1),
		SqrtBC2:       float32(math.Sqrt(bc2)),
		Eps:           float32(a.Eps),
	}
}

// ClipScale is what the gradients are multiplied by so that their global norm is at most maxNorm: min(1, maxNorm /
// (norm + 1e-6)). Without a limit (maxNorm 0) it is 1. Source: torch.nn.utils.clip_grad_norm_.
func ClipScale(norm, maxNorm float64) float64 {
	if maxNorm == 0 {
		return 1
	}
	return min(1, maxNorm/(norm+1e-6))
}
