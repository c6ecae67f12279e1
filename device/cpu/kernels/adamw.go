package kernels

import (
	"math"
	"unsafe"
)

// AdamWScalars are the numbers that are the same for every parameter of one update. See [NewAdamWScalars].
type AdamWScalars struct {
	ClipScale     float32 // c, multiplies the gradient
	Decay         float32 // 1 - lr*wd
	OneMinusBeta1 float32
	Beta2         float32
	OneMinusBeta2 float32
	StepSize      float32 // lr / (1 - beta1^step)
	SqrtBC2       float32 // sqrt(1 - beta2^step), at most 1
	Eps           float32
}

// NewAdamWScalars computes in float64 and rounds each scalar once. step counts updates from 1.
func NewAdamWScalars(step int64, lr, beta1, beta2, eps, weightDecay, clipScale float64) AdamWScalars {
	return AdamWScalars{
		ClipScale:     float32(clipScale),
		Decay:         float32(1 - lr*weightDecay),
		OneMinusBeta1: float32(1 - beta1),
		Beta2:         float32(beta2),
		OneMinusBeta2: float32(1 - beta2),
		StepSize:      float32(lr / (1 - math.Pow(beta1, float64(step)))),
		SqrtBC2:       float32(math.Sqrt(1 - math.Pow(beta2, float64(step)))),
		Eps:           float32(eps),
	}
}

// AdamWSplit updates parameters whose fp32 master is split into hi and lo (tensor.SplitF32), with first and second
// moments m and v, from grad; all have the same length. It returns how many of the new weights are infinite or NaN.
//
// Each line is rounded to fp32 operation by operation, as Go's precedence reads, with no contraction:
//
//	g  = ClipScale * g
//	p *= Decay
//	m += (g - m) * OneMinusBeta1                    denormal m becomes +0
//	v  = Beta2*v + OneMinusBeta2*g*g                denormal v becomes +0
//	p -= StepSize*m / (sqrt(v)/SqrtBC2 + Eps)
//
// which is PyTorch's AdamW (torch.optim.adamw._single_tensor_adamw) with its bias corrections.
func (t *Table) AdamWSplit(hi []uint16, lo []int16, m, v []float32, grad Vec, s *AdamWScalars) (bad int) {
	n := len(hi)
	check(len(lo) == n && len(m) == n && len(v) == n && grad.Len == n, "AdamWSplit: lengths differ")
	f := t.adamwSplit[kind(grad.DType)]
	for i := 0; i < n; i += piece {
		k := min(piece, n-i)
		bad += f(unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), unsafe.Pointer(&m[i]), unsafe.Pointer(&v[i]),
			unsafe.Add(grad.Data, i*size(grad.DType)), k, s)
	}
	return bad
}

// AdamWF32 is AdamWSplit for weights that are kept in fp32.
func (t *Table) AdamWF32(p, m, v, grad []float32, s *AdamWScalars) (bad int) {
	n := len(p)
	check(len(m) == n && len(v) == n && len(grad) == n, "AdamWF32: lengths differ")
	for i := 0; i < n; i += piece {
		k := min(piece, n-i)
		bad += t.adamwF32(unsafe.Pointer(&p[i]), unsafe.Pointer(&m[i]), unsafe.Pointer(&v[i]), unsafe.Pointer(&grad[i]), k, s)
	}
	return bad
}
