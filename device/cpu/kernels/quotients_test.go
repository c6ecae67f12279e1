package kernels

import (
	"math"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// TestAdamWQuotients compares every level with plain Go for all mantissas of roots, by bits. The denominators are small
// differences, so that a quotient by SqrtBC2 which is off by one in its last place shows.
func TestAdamWQuotients(t *testing.T) {
	const block = 1 << 14
	steps := []int{1, 2, 3, 10, 117, 1000, 30000}
	if testing.Short() {
		steps = steps[:2]
	}
	p, m, v, grad := make([]float32, block), make([]float32, block), make([]float32, block), make([]float32, block)
	want := make([]float32, block)
	for i := range m {
		m[i] = 1
	}
	for _, step := range steps {
		bc := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1, WeightDecay: 0}.Scalars(step, 1, 1, true).SqrtBC2
		s := AdamWScalars{ClipScale: 1, Decay: 1, Beta2: 1, StepSize: 1, SqrtBC2: bc, Eps: -1.25 / bc}
		for first := 0; first < 1<<23; first += block {
			for i := range v {
				root := 1 + float64(first+i)/(1<<23)
				v[i] = float32(root * root) // whose root rounds to root
			}
			clear(want)
			For(isa.Plain).AdamWF32(want, m, v, grad, &s)
			for _, level := range isa.Available()[1:] {
				clear(p)
				For(level).AdamWF32(p, m, v, grad, &s)
				for i := range p {
					if p[i] != want[i] {
						t.Fatalf("%v, step %d: the weight of a second moment of %v is %v, want %v", level, step, v[i], p[i], want[i])
					}
				}
			}
		}
	}
}

// TestAdamWFourProducts compares every level with plain Go, by bits, for quotients that two products get wrong, so that
// the last two are needed. A search through all mantissas found one in 6 of 282 random divisors.
func TestAdamWFourProducts(t *testing.T) {
	for _, of := range []struct{ divisor, root uint32 }{{0x3f67504b, 0x3fb03526}, {0x3f7f4703, 0x3fb50ef6},
		{0x3f2443ab, 0x3f9883e5}, {0x3f4d9807, 0x3f994202}, {0x3f77dbc3, 0x3ff72b1b}, {0x3f629d03, 0x3fa53849}} {
		c, root := math.Float32frombits(of.divisor), math.Float32frombits(of.root)
		s := AdamWScalars{ClipScale: 1, Decay: 1, Beta2: 1, StepSize: 1, SqrtBC2: c, Eps: -1.25}
		updated := func(level isa.Level) []float32 {
			var p, m, v, grad [19]float32 // with a tail at each level
			for i := range v {
				m[i], v[i] = 1, float32(float64(root)*float64(root)) // whose root rounds to root
			}
			For(level).AdamWF32(p[:], m[:], v[:], grad[:], &s)
			return p[:]
		}
		want := updated(isa.Plain)
		if q := root / c; want[0] != -1/(q-1.25) {
			t.Fatalf("the weight by plain Go is %v", want[0])
		}
		for _, level := range isa.Available()[1:] {
			equalBits(t, level.String(), updated(level), want)
		}
	}
}

// TestAdamWOddQuotients compares every level with plain Go, by bits, where products give no quotient: roots that are
// infinite or NaNs, and divisors whose inverse, or whose quotient of a finite root, is infinite.
func TestAdamWOddQuotients(t *testing.T) {
	const n = tensor.MomentBlock
	infinite := float32(math.Inf(1))
	seconds := []float32{1, 0, infinite, float32(math.NaN()), math.MaxFloat32, 0x1p-126, -1, 2, 3}
	divisors := []float32{1, 0x1p-24, 0x1p-63, 0x1p-64, 0x1p-65, 0x1p-100, 0x1p-126, 0x1p-127, 0x1p-129, 0x1p-149, 0,
		infinite}
	for _, c := range divisors {
		s := AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: 1, Beta2: 1, OneMinusBeta2: 1, StepSize: 1, SqrtBC2: c,
			Eps: 1e-8}
		for odd := range n / 4 { // the place of a root that is odd; the others are not
			var v, grad [n]float32
			for i := range v {
				v[i], grad[i] = float32(1+i), 1e-3*float32(1+i%7)
			}
			v[odd] = seconds[odd%len(seconds)]
			updated := func(level isa.Level, length int) (p, p8 [n]float32, tally, tally8 Tally) {
				k, m, kept := For(level), [n]float32{}, v
				tally = k.AdamWF32(p[:length], m[:length], kept[:length], grad[:length], &s)
				m8 := newMoments8(n)
				for i := range m8.V {
					m8.V[i] = uint8(i)
				}
				m8.VScale[0] = v[odd]
				tally8 = k.AdamW8F32(p8[:], m8, grad[:], device.Draw{}, &s)
				for i := range p { // all NaNs are equal
					if p[i] != p[i] {
						p[i] = float32(math.NaN())
					}
					if p8[i] != p8[i] {
						p8[i] = float32(math.NaN())
					}
				}
				return p, p8, tally, tally8
			}
			for _, length := range []int{n, n - odd%16} { // the loop's tail as well
				want, want8, tally, tally8 := updated(isa.Plain, length)
				for _, level := range isa.Available()[1:] {
					p, p8, told, told8 := updated(level, length)
					equalBits(t, level.String(), p[:], want[:])
					equalBits(t, level.String()+", 8-bit moments", p8[:], want8[:])
					if told != tally || told8 != tally8 {
						t.Fatalf("%v, divisor %v, second moment %v: told %v and %v, want %v and %v", level, c, v[odd], told,
							told8, tally, tally8)
					}
				}
			}
		}
	}
}
