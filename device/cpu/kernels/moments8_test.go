package kernels

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// Rare and small gradients next to large ones in a block of 8-bit moments make no step of many learning rates. Half of a
// block has gradients of 1e-3, the other half has cold ones at each 20th step. A second moment with the code of zero made
// steps of 35 learning rates, where fp32 moments make 1.4.
func TestMoments8MakeNoGiantSteps(t *testing.T) {
	for _, level := range isa.Available() {
		for _, cold := range []float32{1e-3, 1e-5, 1e-6, 3e-7, 1e-7} {
			const n = tensor.MomentBlock
			m8, m, v := newMoments8(n), make([]float32, n), make([]float32, n)
			r := rand.New(rand.NewPCG(1, 2))
			var greatest8, greatest float64
			for step := 1; step <= 500; step++ {
				grad, p8, p := make([]float32, n), make([]float32, n), make([]float32, n)
				for i := range grad {
					switch {
					case i < n/2:
						grad[i] = float32(1e-3 * r.NormFloat64())
					case step%20 == 0:
						grad[i] = float32(float64(cold) * r.NormFloat64())
					}
				}
				bc1, bc2 := 1-math.Pow(.9, float64(step)), 1-math.Pow(.999, float64(step))
				s := AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: float32(1 - .9), Beta2: .999, OneMinusBeta2: float32(1 - .999),
					StepSize: float32(1 / bc1), SqrtBC2: float32(math.Sqrt(bc2)), Eps: 1e-8}
				told8 := For(level).AdamW8F32(p8, m8, grad, device.Draw{Key: [2]uint32{1, uint32(step)}}, &s)
				told := For(level).AdamWF32(p, m, v, grad, &s)
				var longest8, longest float64 // weights were zero
				for i := range p {
					longest8, longest = max(longest8, math.Abs(float64(p8[i]))), max(longest, math.Abs(float64(p[i])))
				}
				want := [2]float32{float32(longest8) / s.StepSize, float32(longest) / s.StepSize}
				if got := [2]float32{told8.Longest, told.Longest}; got != want {
					t.Fatalf("%v, step %d: the longest moves are %v, want %v", level, step, got, want)
				}
				greatest8, greatest = max(greatest8, longest8), max(greatest, longest)
			}
			t.Logf("%v, cold gradients of %g: greatest update over the learning rate %.2f, with fp32 moments %.2f", level, cold, greatest8, greatest)
			if greatest8 >= 5 {
				t.Errorf("%v, cold gradients of %g: an update is %.1f times the learning rate", level, cold, greatest8)
			}
		}
	}
}

// Parameters with a gradient at each 50th step, next to those with one at each step, move as far as with fp32 moments,
// within 15%. With second moments rounded to nearest, which never fall in between, they move a third less.
func TestRareGradientsMoveAsFar(t *testing.T) {
	const blocks, steps = 4, 2000
	const n = blocks * tensor.MomentBlock
	m8, m, v := newMoments8(n), make([]float32, n), make([]float32, n)
	p8, p, grad := make([]float32, n), make([]float32, n), make([]float32, n)
	r := rand.New(rand.NewPCG(1, 2))
	k := For(isa.Best())
	for step := 1; step <= steps; step++ {
		for i := range grad {
			if grad[i] = 0; i%2 == 0 || step%50 == 0 {
				grad[i] = float32(1e-3 * math.Abs(r.NormFloat64()))
			}
		}
		s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.Scalars(step, 1, 1, false)
		k.AdamW8F32(p8, m8, grad, device.Draw{Key: [2]uint32{1, uint32(step)}}, &s)
		k.AdamWF32(p, m, v, grad, &s)
	}
	var way8, way float64
	for i := 1; i < n; i += 2 {
		way8, way = way8-float64(p8[i])/(n/2), way-float64(p[i])/(n/2)
	}
	t.Logf("they moved %.1f learning rates, with fp32 moments %.1f", way8, way)
	if math.Abs(way8/way-1) > 0.15 {
		t.Errorf("they moved %.1f learning rates, with fp32 moments %.1f", way8, way)
	}
}
