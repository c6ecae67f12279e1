package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/tensor"
)

// The values of codes are (j/7)^2.5 and 1.3^(k-15), to the bit.
func TestValuesOfCodes4(t *testing.T) {
	for k, bits := range []uint32{0, 0x3bfcc209, 0x3d32ba14, 0x3df641b5, 0x3e7cc209, 0x3edcc666, 0x3f2e2138, 0x3f800000} {
		if got := math.Float32bits(first4.value[k]); got != bits || float32(math.Pow(float64(k)/7, 2.5)) != first4.value[k] {
			t.Errorf("code %d of first moments stands for %#x, want %#x", k, got, bits)
		}
	}
	for k, bits := range []uint32{0x3ca00b4a, 0x3cd00ead, 0x3d073cbd, 0x3d2fcef6, 0x3d648d0c, 0x3d948ee2, 0x3dc12025,
		0x3dfb1031,
		0x3e2330ec, 0x3e542600, 0x3e89e580, 0x3eb343f3, 0x3ee90b89, 0x3f177ab3, 0x3f44ec4f, 0x3f800000} {
		if got := math.Float32bits(second4.value[k]); got != bits || float32(math.Pow(1.3,
			float64(k-15))) != second4.value[k] {
			t.Errorf("code %d of roots stands for %#x, want %#x", k, got, bits)
		}
	}
}

// Of all shares, as many round a number up as it is on the way to the next code: the mean is the number. Codes' values,
// and what is below all or above all, are not rounded.
func TestRounding4(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		*code4
		last  int
		share func(word uint32) float32
		words []uint32
	}{
		"first":  {first4, 7, firstShare, all(256, 8)},
		"second": {second4, 15, secondShare, all(65536, 16)},
	} {
		for k := range c.last {
			for range 20 {
				y := c.value[k] + random.Float32()*c.gap[k]
				up := 0
				for _, word := range c.words {
					switch c.round(y, c.share(word)) {
					case k + 1:
						up++
					case k:
					default:
						t.Fatalf("%s: %v, between codes %d and %d, gets code %d", name, y, k, k+1, c.round(y, c.share(word)))
					}
				}
				want := float64(y-c.value[k]) / float64(c.gap[k]) * float64(len(c.words))
				if math.Abs(float64(up)-want) > 1 {
					t.Errorf("%s: %v rounds up for %d of %d shares, want %.1f", name, y, up, len(c.words), want)
				}
			}
		}
		for _, word := range []uint32{0, math.MaxUint32} {
			for k := range c.last + 1 {
				if got := c.round(c.value[k], c.share(word)); got != k {
					t.Errorf("%s: the value of code %d gets code %d", name, k, got)
				}
			}
			nan := float32(math.NaN())
			for y, want := range map[float32]int{nan: 0, 0: 0, 1e-30: 0, 2: c.last, math.Nextafter32(1, 0): c.last,
				math.Nextafter32(1, 2): c.last} {
				if got := c.round(y, c.share(word)); got != want {
					t.Errorf("%s: %v gets code %d, want %d", name, y, got, want)
				}
			}
		}
	}
}

// all are words with each of the numbers below n, from a bit on.
func all(n int, bit uint) (words []uint32) {
	for i := range n {
		words = append(words, uint32(i)<<bit)
	}
	return words
}

// Blocks that a careless encoder gets wrong: each is encoded and decoded.
func TestOddBlocks4(t *testing.T) {
	const n = tensor.MomentBlock // two blocks
	nan, inf, least := float32(math.NaN()), float32(math.Inf(1)), float32(0x1p-126)
	full := func(x ...float32) []float32 {
		return append(x, make([]float32, n-len(x))...)
	}
	one := slices.Repeat([]float32{3}, n)
	for name, c := range map[string]struct {
		x          []float32
		first      [2]float32 // scales of first moments
		second     [2]float32
		firstBack  []float32 // what begins come back as; nil: not looked at
		secondBack []float32
	}{
		"zeros": {make([]float32, n), [2]float32{}, [2]float32{}, make([]float32, n), make([]float32, n)},
		"only NaNs": {slices.Repeat([]float32{nan}, n), [2]float32{}, [2]float32{}, make([]float32, n),
			make([]float32, n)},
		"a NaN": {full(nan, 4), [2]float32{4}, [2]float32{2}, []float32{0, 4}, nil},
		"one value in all elements": {one, [2]float32{3, 3}, [2]float32{float32(math.Sqrt(3)), float32(math.Sqrt(3))}, one,
			nil},
		"one element": {full(16), [2]float32{16}, [2]float32{4}, full(16), []float32{16}},
		"the least number": {full(least), [2]float32{least}, [2]float32{0x1p-63}, []float32{least, 0},
			[]float32{least}},
		"infinite": {full(inf, 1), [2]float32{inf}, [2]float32{inf}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := device.Draw{Key: rng.KeyOf(1, "round states", 1), Part: 3}
			codes, scales, back := make([]uint8, n/2), make([]float32, 2), make([]float32, n)
			for _, signed := range []bool{true, false} {
				quantize, want, backs := QuantizeSecond4, c.second, c.secondBack
				if signed {
					quantize, want, backs = QuantizeFirst4, c.first, c.firstBack
				}
				for i := range codes {
					codes[i] = 0xa5
				}
				quantize(codes, scales, c.x, d)
				equalBits(t, "scales", scales, want[:])
				for b, scale := range scales {
					if scale == 0 && slices.ContainsFunc(codes[b*64:b*64+64], func(c uint8) bool { return c != 0 }) {
						t.Errorf("signed %v: a block of zeros has codes %v", signed, codes[b*64:b*64+64])
					}
				}
				Dequantize4(back, codes, scales, signed)
				if backs != nil {
					equalBits(t, fmt.Sprint("signed ", signed), back[:len(backs)], backs)
				}
			}
		})
	}
	// A negative number of magnitude 0 has no sign; other codes keep theirs.
	codes, scales, back := make([]uint8, n/2), make([]float32, 2), make([]float32, n)
	x := full(-1, float32(math.Copysign(0, -1)), -1e-30, 0.5, -0.5)
	QuantizeFirst4(codes, scales, x, device.Draw{})
	Dequantize4(back, codes, scales, true)
	for i, x := range back[:5] {
		if x == 0 && math.Signbit(float64(x)) || x != 0 && math.Signbit(float64(x)) != (i == 0 || i == 4) {
			t.Errorf("element %d of %v comes back as %v", i, x, back[:5])
		}
	}
}
