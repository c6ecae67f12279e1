package plain

import (
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

func (s *stream) AdamW(args device.AdamWArgs, bad device.Mem) {
	s.operands.AdamW(args, bad)
	s.do(func() {
		m, v := hostmem.F32(bytesOf(args.M.Mem))[:args.M.Cols], hostmem.F32(bytesOf(args.V.Mem))[:args.V.Cols]
		hostmem.I64(bytesOf(bad))[0] += update(args.Weights, args.Low, args.Grad, m, v, &args.AdamWScalars)
	})
}

func (s *stream) AdamW8(args device.AdamW8Args, bad device.Mem) {
	s.operands.AdamW8(args, bad)
	s.do(func() {
		m, v := make([]float32, args.M.Cols), make([]float32, args.V.Cols)
		mCodes, mScales := bytesOf(args.M.Mem)[:len(m)], hostmem.F32(bytesOf(args.MScale.Mem))
		vCodes, vScales := bytesOf(args.V.Mem)[:len(v)], hostmem.F32(bytesOf(args.VScale.Mem))
		kernels.Dequantize8(m, mCodes, mScales, true)
		kernels.Dequantize8(v, vCodes, vScales, false)
		hostmem.I64(bytesOf(bad))[0] += update(args.Weights, args.Low, args.Grad, m, v, &args.AdamWScalars)
		kernels.Quantize8(mCodes, mScales, m, true)
		kernels.Quantize8(vCodes, vScales, v, false)
	})
}

// update changes weights and moments in place, in the contract's order of fp32 operations. It returns the number of new
// weights that are infinite or NaN.
func update(weights, low, grad device.Mat, m, v []float32, a *device.AdamWScalars) (bad int64) {
	p := make([]float32, len(m))
	var halves []int16
	if low.IsZero() {
		copy(p, hostmem.F32(bytesOf(weights.Mem)))
	} else {
		halves = hostmem.I16(bytesOf(low.Mem))
		for i, high := range hostmem.U16(bytesOf(weights.Mem))[:len(p)] {
			p[i] = tensor.JoinF32(high, halves[i])
		}
	}
	for i, x := range numbers(grad) {
		g := a.ClipScale * float32(x)
		p[i] *= a.Decay
		m[i] = normal(m[i] + float32(float32(g-m[i])*a.OneMinusBeta1))
		v[i] = normal(float32(a.Beta2*v[i]) + float32(float32(a.OneMinusBeta2*g)*g))
		root := float32(math.Sqrt(float64(v[i])))
		p[i] -= float32(float32(a.StepSize*m[i]) / (float32(root/a.SqrtBC2) + a.Eps))
		if math.IsNaN(float64(p[i])) || math.IsInf(float64(p[i]), 0) {
			bad++
		}
	}
	if low.IsZero() {
		copy(hostmem.F32(bytesOf(weights.Mem)), p)
		return bad
	}
	high := hostmem.U16(bytesOf(weights.Mem))
	for i, x := range p {
		high[i], halves[i] = tensor.SplitF32(x)
	}
	return bad
}

// normal replaces a denormal number by zero.
func normal(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return 0
	}
	return x
}
