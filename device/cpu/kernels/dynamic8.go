package kernels

import (
	"math"
	"slices"

	"github.com/millrace/millrace/tensor"
)

// codebook is an 8-bit code of numbers in [-1, 1] (signed) or [0, 1]. Smaller numbers have finer codes: there are seven
// decades, from 10^-7 up, and each is cut into twice as many equal steps as the one below it.
//
// A number is rounded to the nearest code, as bitsandbytes' optimizer does (csrc/kernels.cu, quantize_2D and
// kOptimizerStatic8bit2StateBlockwise). The border between two codes is their mean, rounded to fp32; a number on the
// border gets the even code. A code depends on the sign and the magnitude: magnitude k is code zero+k or zero-k.
//
// The codes differ from those of bitsandbytes near zero, on purpose:
//   - A second moment never gets the code of zero in a block that has others. AdamW divides by its root, so a zero below
//     a first moment that is not zero makes a step of hundreds of learning rates. It gets at least code 1.
//   - A negative first moment may get the code of zero, as a positive one may. Those of bitsandbytes keep their sign, so
//     such a moment never dies away and moves its parameter forever.
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
	for _, x := range x {
		if a := math.Float32frombits(math.Float32bits(x) &^ (1 << 31)); a > scale {
			scale = a
		}
	}
	if scale == 0 {
		clear(codes)
		return 0
	}
	inverse := 1 / scale
	for i, x := range x {
		k := c.magnitude(x * inverse)
		switch {
		case c.zero == 0:
			k = max(k, 1)
		case x < 0:
			k = -min(k, c.zero)
		}
		codes[i] = uint8(c.zero + k)
	}
	return scale
}

// decode is the inverse of encode, up to its rounding.
func (c *codebook) decode(x []float32, codes []uint8, scale float32) {
	for i, code := range codes {
		x[i] = c.value[code] * scale
	}
}

// Quantize8 writes x as 8-bit codes with a scale for each block of tensor.MomentBlock, the last of which may be
// shorter: codes that are signed, as for first moments, or not, as for second ones.
func Quantize8(codes []uint8, scales, x []float32, signed bool) {
	check(len(codes) == len(x) && len(scales) == (len(x)+tensor.MomentBlock-1)/tensor.MomentBlock, "Quantize8: lengths differ")
	for b := range scales {
		lo, hi := b*tensor.MomentBlock, min((b+1)*tensor.MomentBlock, len(x))
		scales[b] = codebookOf(signed).encode(codes[lo:hi], x[lo:hi])
	}
}

// Dequantize8 is the inverse of Quantize8, up to its rounding.
func Dequantize8(x []float32, codes []uint8, scales []float32, signed bool) {
	check(len(codes) == len(x) && len(scales) == (len(x)+tensor.MomentBlock-1)/tensor.MomentBlock, "Dequantize8: lengths differ")
	for b := range scales {
		lo, hi := b*tensor.MomentBlock, min((b+1)*tensor.MomentBlock, len(x))
		codebookOf(signed).decode(x[lo:hi], codes[lo:hi], scales[b])
	}
}

func codebookOf(signed bool) *codebook {
	if signed {
		return signed8
	}
	return unsigned8
}
