package kernels

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// BenchmarkAdamW is the arithmetic alone: everything is in L1.
func BenchmarkAdamW(b *testing.B) {
	const n = 1024
	rng := rand.New(rand.NewPCG(1, 1))
	hi, lo, lo8, half := make([]uint16, n), make([]int16, n), make([]int8, n), make([]uint16, n)
	p, m, v, g := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range n {
		x := float32(rng.NormFloat64())
		p[i], m[i], v[i], g[i], half[i] = x, x*1e-3, x*x*1e-4, x*0.01, tensor.BF16FromF32(x*0.01)
		hi[i], lo[i] = tensor.SplitF32(x)
		lo8[i] = int8(lo[i] >> 8)
	}
	s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}.Scalars(10, 1e-5, 0.5, true)
	m8 := newMoments8(n)
	QuantizeFirst8(m8.M, m8.MScale, m)
	QuantizeSecond8(m8.V, m8.VScale, v, device.Draw{})
	m4, m84 := newMoments4(n, 4), newMoments4(n, 8)
	QuantizeFirst4(m4.M, m4.MScale, m, device.Draw{})
	QuantizeFirst8(m84.M, m84.MScale, m)
	QuantizeSecond4(m4.V, m4.VScale, v, device.Draw{})
	QuantizeSecond4(m84.V, m84.VScale, v, device.Draw{})
	for _, level := range isa.Available() {
		k := For(level)
		b.Run(level.String()+"/split/bf16", func(b *testing.B) {
			b.SetBytes(26 * n)
			for b.Loop() {
				k.AdamWSplit(hi, lo, m, v, BF16(half), &s)
			}
		})
		b.Run(level.String()+"/split/f32", func(b *testing.B) {
			b.SetBytes(28 * n)
			for b.Loop() {
				k.AdamWSplit(hi, lo, m, v, F32(g), &s)
			}
		})
		b.Run(level.String()+"/split24/bf16", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(24 * n)
			for b.Loop() {
				k.AdamWSplit24(hi, lo8, m, v, BF16(half), device.Draw{}, &s)
			}
		})
		b.Run(level.String()+"/f32", func(b *testing.B) {
			b.SetBytes(28 * n)
			for b.Loop() {
				k.AdamWF32(p, m, v, g, &s)
			}
		})
		b.Run(level.String()+"/split/f32/8-bit moments", func(b *testing.B) {
			b.SetBytes(16*n + 16*n/256)
			for b.Loop() {
				k.AdamW8Split(hi, lo, m8, F32(g), device.Draw{}, &s)
			}
		})
		b.Run(level.String()+"/split/bf16/8-bit moments", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(14*n + 16*n/256)
			for b.Loop() {
				k.AdamW8Split(hi, lo, m8, BF16(half), device.Draw{}, &s)
			}
		})
		b.Run(level.String()+"/split24/bf16/8-bit moments", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(12*n + 16*n/256)
			for b.Loop() {
				k.AdamW8Split24(hi, lo8, m8, BF16(half), device.Draw{}, &s)
			}
		})
		for name, m := range map[string]Moments8{"8+4": m84, "4-bit": m4} {
			b.Run(level.String()+"/split/bf16/"+name+" moments", func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(10*n + int64(2*(len(m.M)+len(m.V)+4*len(m.MScale)+4*len(m.VScale))))
				for b.Loop() {
					k.AdamW8Split(hi, lo, m, BF16(half), device.Draw{}, &s)
				}
			})
			b.Run(level.String()+"/split24/bf16/"+name+" moments", func(b *testing.B) {
				b.SetBytes(8*n + int64(2*(len(m.M)+len(m.V)+4*len(m.MScale)+4*len(m.VScale))))
				for b.Loop() {
					k.AdamW8Split24(hi, lo8, m, BF16(half), device.Draw{}, &s)
				}
			})
		}
	}
}
