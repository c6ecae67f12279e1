package kernels

import (
	"iter"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// codebook is an 8-bit code of numbers in [-1, 1] (signed) or [0, 1]. Smaller numbers have finer codes: there are seven
// decades, from 10^-7 up, and each is cut into twice as many equal steps as the one below it.
//
// A first moment is rounded to the nearest code, as bitsandbytes' optimizer does (csrc/kernels.cu, quantize_2D and
// kOptimizerStatic8bit2StateBlockwise). The border between two codes is their mean, rounded to fp32; a number on the
// border gets the even code. A code depends on the sign and the magnitude: magnitude k is code zero+k or zero-k. So a
// negative moment may get the code of zero. In bitsandbytes it keeps its sign, never dies away and moves its parameter
// forever. Second moments are rounded otherwise: see ladder.
type codebook struct {
	// value has the number that each code stands for: the map that bitsandbytes' create_dynamic_map makes.
	value [256]float32
	// above[k] is the bound that magnitude k exceeds; above[0] is -1. Entries without a magnitude are +Inf.
	above [256]float32
	zero  int // the code of 0
}

var (
	signed8   = newCodebook(true)
	unsigned8 = newCodebook(false)
)

// newCodebook computes the map. Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (2015);
// bitsandbytes 0.50.2, functional.create_dynamic_map, whose roundings this follows (torch.linspace computes in fused
// steps, from both ends).
func newCodebook(signed bool) *codebook {
	boundary := func(i, steps int) float32 {
		step := (1 - float32(0.1)) / float32(steps)
		if i < (steps+1)/2 {
			return float32(math.FMA(float64(step), float64(i), float64(float32(0.1))))
		}
		return float32(math.FMA(-float64(step), float64(steps-i), 1))
	}
	var positive []float32
	for decade := range 7 {
		steps := 2 << decade
		if signed {
			steps = 1 << decade
		}
		for i := range steps {
			mean := (boundary(i, steps) + boundary(i+1, steps)) / 2
			positive = append(positive, float32(math.Pow10(decade-6))*mean)
		}
	}
	c := &codebook{}
	all := append([]float32{0, 1}, positive...)
	if signed {
		for _, x := range positive {
			all = append(all, -x)
		}
	}
	slices.Sort(all)
	copy(c.value[:], all)
	c.zero = slices.Index(all, 0)

	c.above[0] = -1
	for k := 1; k < 256; k++ {
		if c.zero+k > 255 {
			c.above[k] = float32(math.Inf(1))
			continue
		}
		c.above[k] = (c.value[c.zero+k-1] + c.value[c.zero+k]) * 0.5
		if (c.zero+k)%2 == 0 { // the mean itself is enough
			c.above[k] = math.Nextafter32(c.above[k], 0)
		}
	}
	return c
}

// magnitude is the largest k that |x| reaches; 0 for a NaN.
func (c *codebook) magnitude(x float32) int {
	x = math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	k := 0
	for step := 128; step > 0; step /= 2 {
		if k+step < 256 && x > c.above[k+step] {
			k += step
		}
	}
	return k
}

// encode writes the codes of at most one block and returns their scale, the greatest magnitude (NaNs left aside,
// which become 0). Where that is 0, the codes are 0 as well, so that a block which was never touched and one of zeros
// are the same bytes.
func (c *codebook) encode(codes []uint8, x []float32) (scale float32) {
	scale = greatest(x)
	if scale == 0 {
		clear(codes)
		return 0
	}
	inverse := 1 / scale
	for i, x := range x {
		k := c.magnitude(x * inverse)
		if x < 0 {
			k = -min(k, c.zero)
		}
		codes[i] = uint8(c.zero + k)
	}
	return scale
}

// greatest is the greatest magnitude, NaNs left aside.
func greatest(x []float32) (most float32) {
	for _, x := range x {
		if a := math.Float32frombits(math.Float32bits(x) &^ (1 << 31)); a > most {
			most = a
		}
	}
	return most
}

// decode is the inverse of encode, up to its rounding.
func (c *codebook) decode(x []float32, codes []uint8, scale float32) {
	for i, code := range codes {
		x[i] = c.value[code] * scale
	}
}

// QuantizeFirst8 writes x as 8-bit codes of first moments, with a scale for each block of tensor.MomentBlock, the last of
// which may be shorter.
func QuantizeFirst8(codes []uint8, scales, x []float32) {
	for b, r := range blocks8(codes, scales, x) {
		scales[b] = signed8.encode(codes[r.lo:r.hi], x[r.lo:r.hi])
	}
}

// QuantizeSecond8 writes x as 8-bit codes of second moments, as QuantizeFirst8 does, rounded by the random words of d.
func QuantizeSecond8(codes []uint8, scales, x []float32, d device.Draw) {
	for b, r := range blocks8(codes, scales, x) {
		words := wordsOf(d.At(r.lo))
		scales[b] = theLadder.encode(codes[r.lo:r.hi], x[r.lo:r.hi], &words)
	}
}

type span8 struct{ lo, hi int }

// blocks8 are the blocks of x by number.
func blocks8(codes []uint8, scales, x []float32) iter.Seq2[int, span8] {
	check(len(codes) == len(x) && len(scales) == (len(x)+tensor.MomentBlock-1)/tensor.MomentBlock, "8-bit moments: lengths differ")
	return func(yield func(int, span8) bool) {
		for b := range scales {
			if !yield(b, span8{b * tensor.MomentBlock, min((b+1)*tensor.MomentBlock, len(x))}) {
				return
			}
		}
	}
}

// Dequantize8 reads the codes of first moments, which are signed, or of second ones.
func Dequantize8(x []float32, codes []uint8, scales []float32, signed bool) {
	book := unsigned8
	if signed {
		book = signed8
	}
	for b, r := range blocks8(codes, scales, x) {
		book.decode(x[r.lo:r.hi], codes[r.lo:r.hi], scales[b])
	}
}
