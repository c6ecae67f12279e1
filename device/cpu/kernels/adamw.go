package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/device"
)

// AdamWScalars are those of the device's contract: what training uses, computed by package optim.
type AdamWScalars = device.AdamWScalars

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
