package devicetest

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// moments8 is one moment in 8 bits, and what it stands for.
type moments8 struct {
	codes, scales *matrix
	signed        bool
	values        []float32
}

// moment8 places a moment: random codes and scales. Some scales are 0, like those that were never written.
func (r *rig) moment8(name string, n int, signed bool) *moments8 {
	m := &moments8{signed: signed, values: make([]float32, n)}
	blocks := n / tensor.MomentBlock
	m.scales = r.filled(r.place(name+" scales", tensor.F32, 1, blocks, blocks), func(b int) float64 {
		return []float64{1, 0, 0x1p-30, 3}[b%4]
	})
	m.codes = r.filled(r.place(name, tensor.U8, 1, n, n), func(i int) float64 {
		if m.scales.v[i/tensor.MomentBlock] == 0 {
			return 0
		}
		return float64(r.rng.IntN(256))
	})
	kernels.Dequantize8(m.values, as[uint8](m.codes.v), as[float32](m.scales.v), signed)
	return m
}

// expect compares with new values, which are quantized as package kernels does, and that as bitsandbytes does.
func (r *rig) expect(what string, m *moments8, values []float32) {
	codes, scales := make([]uint8, len(values)), make([]float32, len(m.scales.v))
	kernels.Quantize8(codes, scales, values, m.signed)
	r.exact(what, m.codes, as[float64](codes))
	r.exact(what, m.scales, as[float64](scales))
}

func as[T, F uint8 | float32 | float64](x []F) []T {
	out := make([]T, len(x))
	for i, x := range x {
		out[i] = T(x)
	}
	return out
}

func testAdamW8(r *rig) {
	scalars := device.AdamWScalars{ClipScale: 0.75, Decay: 1 - 1e-3, OneMinusBeta1: 0.1, Beta2: 0.999, OneMinusBeta2: 1 - 0.999,
		StepSize: 3e-3, SqrtBC2: 0.05, Eps: 1e-8}
	for _, blocks := range []int{1, 2, 7, 301} {
		n := blocks * tensor.MomentBlock
		for _, kind := range []struct{ weights, grad tensor.DType }{
			{tensor.BF16, tensor.BF16}, {tensor.BF16, tensor.F32}, {tensor.F32, tensor.F32}} {
			what := fmt.Sprint(kind, n)
			master := make([]float32, n)
			for i := range master {
				master[i] = float32(r.rng.NormFloat64())
				if i < len(corners) {
					master[i] = float32(corners[i])
				}
			}
			grad := r.filled(r.output("grad", kind.grad, 1, n), func(i int) float64 {
				switch {
				case i/tensor.MomentBlock%5 == 1 || i%31 == 6:
					return 0
				case i%31 == 5:
					return r.rng.NormFloat64() * 0x1p-20
				case i == 100:
					return math.NaN()
				case i == 1001:
					return math.Inf(1)
				}
				return r.rng.NormFloat64()
			})
			m, v := r.moment8("m", n, true), r.moment8("v", n, false)
			bad := r.filled(r.place("bad", tensor.I64, 1, 1, 1), func(int) float64 { return 5 })
			args := device.AdamW8Args{Grad: grad.Mat, M: m.codes.Mat, V: v.codes.Mat, MScale: m.scales.Mat, VScale: v.scales.Mat,
				AdamWScalars: scalars}
			var low *matrix
			weights := r.output("weights", kind.weights, 1, n)
			if kind.weights == tensor.F32 {
				r.filled(weights, func(i int) float64 { return float64(master[i]) })
			} else {
				low = r.output("low", tensor.I16, 1, n)
				r.filled(weights, func(i int) float64 { hi, _ := tensor.SplitF32(master[i]); return float64(tensor.F32FromBF16(hi)) })
				r.filled(low, func(i int) float64 { _, lo := tensor.SplitF32(master[i]); return float64(lo) })
				args.Low = low.Mat
			}
			args.Weights = weights.Mat

			wantP, wantLow, wantM, wantV := make([]float64, n), make([]float64, n), make([]float32, n), make([]float32, n)
			wantBad := 5.0
			for i := range n {
				var p float32
				p, wantM[i], wantV[i] = refAdamW(master[i], m.values[i], v.values[i], float32(grad.v[i]), &scalars)
				if p-p != 0 { // infinite, or a NaN
					wantBad++
				}
				wantP[i] = float64(p)
				if kind.weights == tensor.BF16 {
					hi, lo := tensor.SplitF32(p)
					wantP[i], wantLow[i] = float64(tensor.F32FromBF16(hi)), float64(lo)
				}
			}
			r.run(func(st device.Stream) { st.AdamW8(args, bad.Mem) })
			r.exact(what, weights, wantP)
			if low != nil {
				r.exact(what, low, wantLow)
			}
			r.expect(what, m, wantM)
			r.expect(what, v, wantV)
			r.exact(what, bad, []float64{wantBad})
			r.finish(what)
		}
	}
}
