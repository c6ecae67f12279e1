package tensor

import (
	"math"
	"math/rand/v2"
	"testing"
)

// between are two neighbouring numbers of a 16-bit format as bits, the lower magnitude first, and their values.
type between struct {
	low, high    uint16
	below, above float64
}

// toward checks that a conversion rounds a number from the lower neighbour to the higher one to the nearer of the two,
// and the middle to the even one, in both signs.
func (n between) toward(t *testing.T, name string, from func(float32) uint16) {
	t.Helper()
	middle := (n.below + n.above) / 2
	even := n.low
	if even&1 == 1 {
		even = n.high
	}
	for _, c := range []struct {
		x    float32
		want uint16
	}{
		{float32(n.below), n.low}, {float32(n.above), n.high}, {float32(middle), even},
		{math.Nextafter32(float32(middle), 0), n.low}, {math.Nextafter32(float32(middle), math.MaxFloat32), n.high},
	} {
		if float64(float32(middle)) != middle {
			return // not a number of fp32: the format's numbers are as dense
		}
		if got := from(c.x); got != c.want {
			t.Errorf("%s of %v is %#04x, want %#04x", name, c.x, got, c.want)
		}
		if got := from(-c.x); got != c.want|0x8000 {
			t.Errorf("%s of %v is %#04x, want %#04x", name, -c.x, got, c.want|0x8000)
		}
	}
}

// Every number of bf16 is its upper half in fp32, and any other number is rounded to the nearest, ties to even.
func TestBF16(t *testing.T) {
	for h := range uint16(0x7f80) {
		x := F32FromBF16(h)
		if math.Float32bits(x) != uint32(h)<<16 {
			t.Fatalf("%#04x is %v", h, x)
		}
		above := float64(F32FromBF16(h + 1))
		if h+1 == 0x7f80 {
			above = 0x1p128
		}
		between{h, h + 1, float64(x), above}.toward(t, "bf16", BF16FromF32)
	}
	for _, c := range []struct {
		bits uint32
		want uint16
	}{{0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0xff812345, 0xffc1}, {0x7fffffff, 0x7fff}} {
		if got := BF16FromF32(math.Float32frombits(c.bits)); got != c.want {
			t.Errorf("%#08x is %#04x, want %#04x", c.bits, got, c.want)
		}
	}
}

// valueOfF16 is a finite number of IEEE binary16, by the definition.
func valueOfF16(h uint16) float64 {
	exp, frac := int(h>>10&0x1f), float64(h&0x3ff)
	if exp == 0 {
		return math.Ldexp(frac, -24)
	}
	return math.Ldexp(1024+frac, exp-25)
}

// Every number of binary16 has its value, denormals included, and any other number is rounded to the nearest, ties
// to even; from 65520 on that is infinity.
func TestF16(t *testing.T) {
	for h := range uint16(0x7c00) {
		if x := float64(F32FromF16(h)); x != valueOfF16(h) {
			t.Fatalf("%#04x is %v, want %v", h, x, valueOfF16(h))
		}
		if x := F32FromF16(h | 0x8000); float64(x) != -valueOfF16(h) || !math.Signbit(float64(x)) {
			t.Fatalf("%#04x is %v, want %v", h|0x8000, x, -valueOfF16(h))
		}
		above := valueOfF16(h + 1)
		if h+1 == 0x7c00 {
			above = 65536
		}
		between{h, h + 1, valueOfF16(h), above}.toward(t, "f16", F16FromF32)
	}
	for _, c := range []struct {
		bits uint32
		want uint16
	}{{0x7f800000, 0x7c00}, {0xff800000, 0xfc00}, {0x7f800001, 0x7e00}, {0xffffffff, 0xfe00}, {0x47800001, 0x7c00},
		{1, 0}, {0x80000001, 0x8000}, {0x33000000, 0}, {0x33000001, 1}} {
		if got := F16FromF32(math.Float32frombits(c.bits)); got != c.want {
			t.Errorf("%#08x is %#04x, want %#04x", c.bits, got, c.want)
		}
	}
	for h := range uint16(0x400) {
		if got := math.Float32bits(F32FromF16(0x7c00 | h)); got != 0x7f800000|uint32(h)<<13 {
			t.Errorf("%#04x is %#08x", 0x7c00|h, got)
		}
	}
}

// A master weight is cut into its nearest bf16, ties away from zero, and a remainder, and joined again to the bit.
func TestSplit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	check := func(b uint32) {
		x := math.Float32frombits(b)
		high, low := SplitF32(x)
		if x != x {
			if high != 0x7fc0 || low != 0 {
				t.Errorf("NaN %#08x is %#04x and %d", b, high, low)
			}
			return
		}
		if got := math.Float32bits(JoinF32(high, low)); got != b {
			t.Errorf("%#08x is %#04x and %d, and joined %#08x", b, high, low, got)
		}
		if off := int64(high)<<16 - int64(b); off > 0x8000 || off <= -0x8000 {
			t.Errorf("%#08x is %#04x, off by %d", b, high, off)
		}
	}
	for range 200_000 {
		check(rnd.Uint32())
	}
	for high := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			check(high<<16 | low)
		}
	}
}

// All 24 bits of a number are kept, by a high half that is the nearest bf16, ties away from zero, and a remainder; NaNs
// are one. No number gets a NaN's high half.
func TestSplitOf24Bits(t *testing.T) {
	numbers := 0
	for top := range uint32(1 << 24) {
		b := top << 8
		x := math.Float32frombits(b)
		high, low := SplitF24(x, uint8(top*2654435761>>24)) // whatever r is
		if x != x {
			if high != 0x7fc0 || low != 0 {
				t.Fatalf("NaN %#08x is %#04x and %d", b, high, low)
			}
			continue
		}
		numbers++
		if got := math.Float32bits(JoinF24(high, low)); got != b {
			t.Fatalf("%#08x is %#04x and %d, and joined %#08x", b, high, low, got)
		}
		if want, _ := SplitF32(x); high != want || high&0x7fff > 0x7f80 {
			t.Fatalf("%#08x has the high half %#04x, want %#04x", b, high, want)
		}
	}
	if numbers != 16_711_682 {
		t.Errorf("%d numbers", numbers)
	}
}

// Of all random bytes, as many round up as the dropped bits say; infinities stay, and NaNs are one.
func TestSplitF24RoundsAtRandom(t *testing.T) {
	for _, b := range []uint32{0x3f800001, 0x3f8000ff, 0x3f7fff80, 0xbf7fffff, 0x007fffff, 0x00000001, 0x7f7fffff,
		0x7f800000,
		0xff800000, 0x7fc00001} {
		up := uint32(0)
		for r := range 256 {
			high, low := SplitF24(math.Float32frombits(b), uint8(r))
			got := math.Float32bits(JoinF24(high, low))
			switch {
			case b&0x7fffffff > 0x7f800000:
				if high != 0x7fc0 || low != 0 {
					t.Fatalf("%#08x is %#04x and %d", b, high, low)
				}
				up = b & 0xff
			case got == b&^0xff+0x100:
				up++
			case got != b&^0xff:
				t.Fatalf("%#08x with %d is %#08x", b, r, got)
			}
		}
		if up != b&0xff {
			t.Errorf("%#08x rounds up for %d of 256", b, up)
		}
	}
}

// To nearest, the high half is that of a master in fp32, or one above it where the number is half a 24-bit step below
// the middle of two bf16 numbers or less.
func TestNearestF24(t *testing.T) {
	for low := range uint32(1 << 16) {
		x := math.Float32frombits(0x3f800000 | low)
		high, _ := SplitF24(x, NearestF24)
		want, _ := SplitF32(x)
		if low >= 0x7f80 && low <= 0x7fff {
			want++
		}
		if high != want {
			t.Errorf("%#08x has the high half %#04x, want %#04x", math.Float32bits(x), high, want)
		}
	}
}
