package kernels

import (
	"math"
	"testing"

	"github.com/millrace/millrace/device/cpu/isa"
)

// Capped numbers are as near to those of float64 as the text says, the same at all levels, bounded, and NaN only where
// a number was one.
func TestSoftCap(t *testing.T) {
	x := []float32{0, float32(math.Copysign(0, -1)), 1e-30, 1e-9, -3e-5, float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -1e30}
	for i := range 4000 {
		x = append(x, float32(math.Exp(float64(i)/4000*24-12))*float32(1-i%2*2))
	}
	for _, softCap := range []float32{0.5, 30, 50} {
		var first []float32
		for _, level := range isa.Available() {
			y := make([]float32, len(x))
			For(level).SoftCap(y, x, 0.25, softCap)
			for i, got := range y {
				want := float64(softCap) * math.Tanh(float64(x[i])*0.25/float64(softCap))
				if !(math.Abs(float64(got)-want) < 0x1p-23*float64(softCap)) || math.Abs(float64(got)) > float64(softCap) {
					t.Errorf("%v: %g capped at %g is %g, want %g", level, x[i], softCap, got, want)
				}
				if first != nil && got != first[i] {
					t.Errorf("%v: %g capped at %g is %g, elsewhere %g", level, x[i], softCap, got, first[i])
				}
			}
			first = y
			nan := []float32{float32(math.NaN())}
			if For(level).SoftCap(nan, nan, 1, softCap); nan[0] == nan[0] {
				t.Errorf("%v: a NaN becomes %g", level, nan[0])
			}
		}
	}
}

// The gradient of a cap is its derivative, by central differences in float64.
func TestSoftCapGrad(t *testing.T) {
	const scale, softCap, shift, h = 0.5, 3, 0.25, 1e-4
	y := func(x float64) float64 { return softCap * math.Tanh(x*scale/softCap) }
	for _, x := range []float64{0, 0.1, -1, 5, -20} {
		d := []float32{1.5}
		SoftCapGrad(d, []float32{float32(y(x))}, shift, scale, softCap)
		if want := (1.5 - shift) * (y(x+h) - y(x-h)) / (2 * h); math.Abs(float64(d[0])-want) > 1e-6 {
			t.Errorf("at %g: %g, differences give %g", x, d[0], want)
		}
	}
}
