package ptx

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// float32s draws the bits of float32: any, and those at which rounding is hard.
func float32s() *rapid.Generator[uint32] {
	return rapid.OneOf(
		rapid.Uint32(),
		rapid.SampledFrom([]uint32{0, neg, tiny, neg | tiny, least, least - 1, tooGreat, neg | tooGreat, 0x3f800000,
			0x3f800001, 0x3f7fffff,
			0x4b800000, 0x4b800001, 0x33800000, inf32, neg | inf32, nan32}),
		rapid.Custom(func(t *rapid.T) uint32 { // few bits set, near 1: ties are frequent
			e := rapid.Uint32Range(100, 154).Draw(t, "exponent")
			a, b := rapid.IntRange(0, 22).Draw(t, "a"), rapid.IntRange(0, 22).Draw(t, "b")
			return rapid.Uint32Range(0, 1).Draw(t, "sign")<<31 | e<<23 | 1<<a | 1<<b
		}),
		rapid.Custom(func(t *rapid.T) uint32 { // subnormal, or nearly
			return rapid.Uint32Range(0, 1).Draw(t, "sign")<<31 | rapid.Uint32Range(0, 1<<25).Draw(t, "small")
		}),
	)
}

func exactly(b uint32) *big.Float { return new(big.Float).SetPrec(1200).SetFloat64(float64(f32(b))) }

// rounded gives an exact value that is not zero in float32, by way of package big.
func rounded(x *big.Float, r rounding) uint32 {
	near, _ := x.Float32() // to nearest even
	if r == 'n' {
		return math.Float32bits(near)
	}
	order := 1
	if !math.IsInf(float64(near), 0) {
		order = exactly(math.Float32bits(near)).Cmp(x)
	} else if near < 0 {
		order = -1
	}
	down := r == 'm' || r == 'z' && x.Sign() > 0
	switch {
	case order > 0 && down:
		near = math.Nextafter32(near, float32(math.Inf(-1)))
	case order < 0 && !down:
		near = math.Nextafter32(near, float32(math.Inf(1)))
	}
	if near == 0 && x.Sign() < 0 {
		return neg
	}
	return math.Float32bits(near)
}

func isFinite(bits ...uint32) bool {
	for _, b := range bits {
		if b&inf32 == inf32 {
			return false
		}
	}
	return true
}

// TestRounding compares sums, products and fused operations in all directions with exact arithmetic.
func TestRounding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := float32s()
		a, b, c := g.Draw(t, "a"), g.Draw(t, "b"), g.Draw(t, "c")
		r := rounding(rapid.SampledFrom([]byte("nzmp")).Draw(t, "direction"))
		if !isFinite(a, b, c) {
			return
		}
		product := float64(f32(a)) * float64(f32(b))
		exact := new(big.Float).SetPrec(1200).Mul(exactly(a), exactly(b))
		if exact.Sign() != 0 {
			if got, want := formatF32.round(product, r), rounded(exact, r); got != want {
				t.Fatalf("%#x * %#x is %#x, want %#x", a, b, got, want)
			}
		}
		exact.Add(exact, exactly(c))
		if exact.Sign() != 0 {
			if got, want := formatF32.round(directed(product, float64(f32(c)), r), r), rounded(exact, r); got != want {
				t.Fatalf("%#x * %#x + %#x is %#x, want %#x", a, b, c, got, want)
			}
			if got, want := math.Float32bits(fma32(f32(a), f32(b), f32(c))), rounded(exact, 'n'); got != want {
				t.Fatalf("fused %#x * %#x + %#x is %#x, want %#x", a, b, c, got, want)
			}
		}
		exact.Add(exactly(a), exactly(c))
		if exact.Sign() != 0 {
			if got, want := formatF32.round(directed(float64(f32(a)), float64(f32(c)), r), r), rounded(exact, r); got != want {
				t.Fatalf("%#x + %#x is %#x, want %#x", a, c, got, want)
			}
		}
	})
}

// The quick rounding to bf16 is that of the format.
func TestBrainBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.OneOf(float32s(), rapid.Map(rapid.Uint32Range(0, 1<<17), func(low uint32) uint32 {
			return 0x3f800000 + low // ties are among these
		}), rapid.Map(rapid.Uint32Range(0, 1<<16), func(low uint32) uint32 { return 0x7f7f0000 + low })).Draw(t, "bits")
		if got, want := brainBits(x), formatBF16.round(float64(f32(x)), 'n'); got != want {
			t.Errorf("%#x is %#x, want %#x", x, got, want)
		}
	})
}

// TestNearTies goes where float64 rounds a fused operation to a tie of float32, or where the result is subnormal.
func TestNearTies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 23).Draw(t, "k")
		a := 1 + math.Ldexp(1, -k)
		b := 1 - math.Ldexp(1, -rapid.IntRange(1, 23).Draw(t, "j"))
		scale := math.Ldexp(1, rapid.IntRange(-160, 20).Draw(t, "scale"))
		c := (float64(1<<24) + 2*float64(rapid.IntRange(0, 9).Draw(t, "c"))) * scale
		x, y, z := float32(a*scale), float32(b), float32(c)
		if scale < 0x1p-100 {
			x, y = float32(a*0x1p-70), float32(b*scale*0x1p70)
		}
		exact := new(big.Float).SetPrec(1200).Mul(exactly(math.Float32bits(x)), exactly(math.Float32bits(y)))
		exact.Add(exact, exactly(math.Float32bits(z)))
		if exact.Sign() == 0 {
			return
		}
		if got, want := math.Float32bits(fma32(x, y, z)), rounded(exact, 'n'); got != want {
			t.Fatalf("%g * %g + %g is %#x, want %#x", x, y, z, got, want)
		}
	})
}

// TestFormats: all values of 16 bits survive, and so does the middle between each two, to the even one.
func TestFormats(t *testing.T) {
	for name, f := range map[string]format{"f16": formatF16, "bf16": formatBF16} {
		infinity := uint32(1<<f.exponent-1) << f.mantissa
		for b := range infinity {
			x := f.value(b)
			if got := f.round(x, 'n'); got != b {
				t.Fatalf("%s: %#x is %g, and that %#x", name, b, x, got)
			}
			if got := f.round(-x, 'n'); got != b|0x8000 {
				t.Fatalf("%s: -%#x is %g, and that %#x", name, b, -x, got)
			}
			if b+1 == infinity {
				break
			}
			next := f.value(b + 1)
			middle := (x + next) / 2
			for _, test := range []struct {
				x    float64
				r    rounding
				want uint32
			}{
				{middle, 'n', b + b&1}, {middle, 'a', b + 1}, {middle, 'z', b}, {middle, 'm', b}, {middle, 'p', b + 1},
				{math.Nextafter(middle, 0), 'n', b}, {math.Nextafter(middle, next), 'n', b + 1}, {-middle, 'm', 0x8000 | (b + 1)},
			} {
				if got := f.round(test.x, test.r); got != test.want {
					t.Fatalf("%s: %g in direction %c is %#x, want %#x", name, test.x, test.r, got, test.want)
				}
			}
		}
		if !math.IsNaN(f.value(infinity+1)) || !math.IsInf(f.value(infinity), 1) || f.round(math.Inf(1), 'n') != infinity {
			t.Errorf("%s: infinity", name)
		}
	}
}
