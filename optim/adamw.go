package optim

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
)

// AdamW are the constants of the optimizer, named as in PyTorch.
type AdamW struct {
	Beta1, Beta2, Eps, WeightDecay float64
}

// Check refuses settings that make weights infinite or NaN.
func (a AdamW) Check() error {
	switch {
	case !(a.Beta1 >= 0 && a.Beta1 < 1) || !(a.Beta2 >= 0 && a.Beta2 < 1):
		return fmt.Errorf("AdamW's betas are %v and %v: they must be from 0 to below 1", a.Beta1, a.Beta2)
	case !(a.Eps >= 0x1p-126 && a.Eps <= math.MaxFloat32): // updates compute in 32 bits
		return fmt.Errorf("AdamW's Eps is %v: it must be between %.3g and %.3g; 1e-8 is usual", a.Eps,
			0x1p-126, math.MaxFloat32)
	case !(a.WeightDecay >= 0) || math.IsInf(a.WeightDecay, 0):
		return fmt.Errorf("AdamW's WeightDecay is %v: it must be finite and not negative", a.WeightDecay)
	}
	return nil
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

// ClipScale returns the factor for the gradients by which their global norm is at most maxNorm: min(1, maxNorm /
// (norm + 1e-6)). Without a limit (maxNorm 0) it is 1. Source: torch.nn.utils.clip_grad_norm_.
func ClipScale(norm, maxNorm float64) float64 {
	if maxNorm == 0 {
		return 1
	}
	return min(1, maxNorm/(norm+1e-6))
}
