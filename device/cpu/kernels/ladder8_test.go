package kernels

import (
	"math"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// A number's place is on the way from its code to the next one as far as the number is, to two units, and places rise
// with numbers. The ends are exact: a place never leads below code 1, nor above code 255.
func TestPlaces(t *testing.T) {
	before := uint32(0)
	for k := 1; k < 255; k++ {
		low, high := float64(unsigned8.value[k]), float64(unsigned8.value[k+1])
		for i := range 64 {
			y := float32(low + (high-low)*float64(i)/64)
			got := theLadder.place(y)
			want := unit * (float64(k) + (float64(y)-low)/(high-low))
			limit := 2.0
			if k == 254 {
				limit = 6 // the last rung begins 4 units late
			}
			if math.Abs(float64(got)-want) > limit || got < before {
				t.Fatalf("the place of %v, %d/64 of the way from code %d, is %d, want %.1f; that before is %d", y, i, k, got, want, before)
			}
			before = got
		}
	}
	for y, want := range map[float32]uint32{
		0: unit, -1: unit, float32(math.NaN()): unit, 1e-30: unit, unsigned8.value[1]: unit,
		1: 255 * unit, math.Nextafter32(1, 0): 255 * unit, math.Nextafter32(1, 2): 255 * unit,
	} {
		if got := theLadder.place(y); got != want {
			t.Errorf("the place of %v is %d, want %d", y, got, want)
		}
	}
}

// A parameter's word is that of the generator for its part and its place there, at all levels, wherever a call begins.
func TestWordsAreThoseOfTheGenerator(t *testing.T) {
	const n, part, seed, step = 3 * tensor.MomentBlock, 1<<40 + 7, 42, 9
	for _, first := range []uint64{0, 5 * tensor.MomentBlock} {
		source := rng.New(seed, "round states", step, part)
		for range first {
			source.Uint32()
		}
		x, grad := make([]float32, n), make([]float32, n)
		for i := range x {
			x[i] = float32(math.Exp(-float64(i*7%256) / 20))
			grad[i] = float32(math.Sqrt(float64(x[i])))
		}
		want := make([]uint8, n)
		for i := range want {
			y := x[i] // in a block with a 1
			want[i] = uint8((theLadder.place(y) + source.Uint32()>>16) >> 16)
		}
		codes, scales := make([]uint8, n), make([]float32, n/tensor.MomentBlock)
		d := device.Draw{Key: rng.KeyOf(seed, "round states", step), Part: part, First: first}
		QuantizeSecond8(codes, scales, x, d)
		equalBits(t, "codes", codes, want)

		// The square of a rounded root is not x, so levels are compared with plain Go, whose words these are.
		s := AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: 1, OneMinusBeta2: 1, StepSize: 1, SqrtBC2: 1, Eps: 1e-8}
		plain := newMoments8(n)
		For(isa.Plain).AdamW8F32(make([]float32, n), plain, grad, d, &s)
		for _, level := range isa.Available() {
			whole, pieces := newMoments8(n), newMoments8(n)
			For(level).AdamW8F32(make([]float32, n), whole, grad, d, &s)
			equalBits(t, level.String(), whole.V, plain.V)
			for at := n - tensor.MomentBlock; at >= 0; at -= tensor.MomentBlock { // the last one first
				from := d
				from.First += uint64(at)
				For(level).AdamW8F32(make([]float32, tensor.MomentBlock), pieces.Slice(at, at+tensor.MomentBlock), grad[at:at+tensor.MomentBlock], from, &s)
			}
			equalBits(t, level.String()+" in pieces", pieces.V, plain.V)
		}
	}
}

// A second moment without gradients falls with Beta2, in the mean, next to one that is held at 1. Rounded to the nearest
// code its root would stay at 0.6, with 8 random bits it would be 0.10.
func TestSecondMomentsFall(t *testing.T) {
	const blocks, steps = 32, 2000
	const n = blocks * tensor.MomentBlock
	m, p, grad := newMoments8(n), make([]float32, n), make([]float32, n)
	for i := range n {
		m.V[i] = 255
		if i%tensor.MomentBlock > 0 {
			m.V[i] = uint8(theLadder.place(0.6*0.6) >> 16)
		}
	}
	for b := range blocks {
		m.VScale[b], grad[b*tensor.MomentBlock] = 1, 1
	}
	begin := math.Sqrt(float64(unsigned8.value[m.V[1]]))
	k := For(isa.Best())
	for step := 1; step <= steps; step++ {
		s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.Scalars(step, 0, 1, false)
		k.AdamW8F32(p, m, grad, device.Draw{Key: rng.KeyOf(1, "round states", uint64(step))}, &s)
	}
	v := make([]float32, n)
	Dequantize8(v, m.V, m.VScale, false)
	mean := 0.0
	for i := range n {
		if i%tensor.MomentBlock > 0 {
			mean += math.Sqrt(float64(v[i])) / float64(n-blocks)
		}
	}
	want := begin * math.Pow(0.999, steps/2.0)
	t.Logf("roots fell from %.4f to %.4f, want %.4f", begin, mean, want)
	if math.Abs(mean/want-1) > 0.02 {
		t.Errorf("roots of second moments fell from %.4f to %.4f in the mean, want %.4f", begin, mean, want)
	}
}
