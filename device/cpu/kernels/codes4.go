package kernels

import (
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// code4 is a code of 4 bits for magnitudes in [0, 1], in units of the greatest of a block of tensor.MomentBlock4. A
// magnitude is rounded to one of the two codes around it, at random, so that its mean is right: a moment changes by
// less than half of a code in a step, and the nearest code would never let it fall.
//
// The bits that a magnitude and a random number give are part of device.OptimizerOps.
type code4 struct {
	value [16]float32 // what codes stand for, which rises to 1; +Inf after that
	gap   [16]float32 // from each code to the next one; +Inf from 1 on
}

// first4 codes first moments: value j is (j/7)^2.5, and the code's bit 3 is the sign. It has a zero, since a moment of
// zero that became another one would move a parameter without gradients.
//
// second4 codes roots of second moments: value k is 1.3^(k-15). It has no zero, since AdamW divides by the root.
//
// These are no codes of Li, Chen and Zhu, "Memory Efficient Optimizers with 4-bit States" (2023), which rounds to
// nearest and codes second moments themselves by a line; docs/numerics.md says what that does.
var (
	first4 = newCode4(0, 0.00771356048, 0.0436344892, 0.120242514, 0.246833935, 0.43120116, 0.680194378, 1)

	second4 = newCode4(0.019536633, 0.025397623, 0.0330169089, 0.0429219827, 0.0557985753, 0.0725381523, 0.0942995921,
		0.122589476,
		0.15936631, 0.207176208, 0.269329071, 0.350127786, 0.455166131, 0.591715991, 0.769230783, 1)
)

func newCode4(values ...float32) *code4 {
	c := &code4{}
	for i := range c.value {
		c.value[i], c.gap[i] = float32(math.Inf(1)), float32(math.Inf(1))
	}
	copy(c.value[:], values)
	for i := range values[1:] {
		c.gap[i] = values[i+1] - values[i]
	}
	return c
}

// round is the code of a magnitude: that of the greatest value it reaches, or the one above it, if the rest of the way
// is more than a share t of the gap, 0 < t < 1. Magnitudes below all values, and NaNs, have code 0.
func (c *code4) round(y, t float32) int {
	k := 0
	for k < 15 && y >= c.value[k+1] {
		k++
	}
	if y-c.value[k] > float32(t*c.gap[k]) {
		k++
	}
	return k
}

// Random shares of a gap: of bits 8 to 15 of a word for first moments, and of bits 16 to 31 for second ones. A second
// moment changes by a thousandth in a step, its root by a 500th of a code, which 8 bits cannot say.
func firstShare(word uint32) float32  { return (float32(word>>8&0xff) + 0.5) / (1 << 8) }
func secondShare(word uint32) float32 { return (float32(word>>16) + 0.5) / (1 << 16) }

// encodeFirst4 writes the codes of at most one block of first moments, an even number, two to a byte: the first of them
// in the low bits. It returns their scale, the greatest magnitude, NaNs left aside, which become 0. Where that is 0,
// the codes are 0 as well, so that a block which was never touched and one of zeros are the same bytes.
func encodeFirst4(codes []uint8, x []float32, words []uint32) (scale float32) {
	clear(codes)
	scale = greatest(x)
	if scale == 0 {
		return 0
	}
	inverse := 1 / scale
	for i, x := range x {
		k := first4.round(math.Float32frombits(math.Float32bits(x)&^(1<<31))*inverse, firstShare(words[i]))
		if x < 0 && k > 0 {
			k |= 8
		}
		codes[i/2] |= uint8(k << (i % 2 * 4))
	}
	return scale
}

// encodeSecond4 writes the codes of second moments, as encodeFirst4 does, by their roots.
func encodeSecond4(codes []uint8, x []float32, words []uint32) (scale float32) {
	clear(codes)
	var roots [tensor.MomentBlock4]float32
	for i, x := range x {
		roots[i] = float32(math.Sqrt(float64(x))) // float64's root of an fp32 rounds to fp32's
	}
	scale = greatest(roots[:len(x)])
	if scale == 0 {
		return 0
	}
	inverse := 1 / scale
	for i, root := range roots[:len(x)] {
		codes[i/2] |= uint8(second4.round(root*inverse, secondShare(words[i])) << (i % 2 * 4))
	}
	return scale
}

// decodeFirst4 is the inverse of encodeFirst4, up to its rounding.
func decodeFirst4(x []float32, codes []uint8, scale float32) {
	for i := range x {
		k := codes[i/2] >> (i % 2 * 4)
		if x[i] = first4.value[k&7] * scale; k&8 != 0 {
			x[i] = -x[i]
		}
	}
}

// decodeSecond4 is the inverse of encodeSecond4, up to its rounding. A square that is denormal becomes +0.
func decodeSecond4(x []float32, codes []uint8, scale float32) {
	for i := range x {
		root := second4.value[codes[i/2]>>(i%2*4)&15] * scale
		x[i] = flush(root * root)
	}
}

// QuantizeFirst4 writes x as 4-bit codes of first moments, rounded by the random words of d, with a scale for each
// block of tensor.MomentBlock4. The length of x is a multiple of tensor.MomentBlock.
func QuantizeFirst4(codes []uint8, scales, x []float32, d device.Draw) {
	quantize4(codes, scales, x, d, encodeFirst4)
}

// QuantizeSecond4 writes x as 4-bit codes of second moments, as QuantizeFirst4 does.
func QuantizeSecond4(codes []uint8, scales, x []float32, d device.Draw) {
	quantize4(codes, scales, x, d, encodeSecond4)
}

func quantize4(codes []uint8, scales, x []float32, d device.Draw,
	encode func(codes []uint8, x []float32, words []uint32) float32) {
	n := len(x)
	check(n%tensor.MomentBlock == 0 && len(codes) == n/2 && len(scales) == n/tensor.MomentBlock4,
		"4-bit moments: lengths differ")
	for lo := 0; lo < n; lo += tensor.MomentBlock {
		words := wordsOf(d.At(lo))
		hi := lo + tensor.MomentBlock
		encodeBlocks(codes[lo/2:hi/2], scales[lo/tensor.MomentBlock4:hi/tensor.MomentBlock4], x[lo:hi], words[:], encode)
	}
}

// encodeBlocks writes the codes and scales of blocks.
func encodeBlocks(codes []uint8, scales, x []float32, words []uint32,
	encode func(codes []uint8, x []float32, words []uint32) float32) {
	for b := range scales {
		lo, hi := b*tensor.MomentBlock4, (b+1)*tensor.MomentBlock4
		scales[b] = encode(codes[lo/2:hi/2], x[lo:hi], words[lo:hi])
	}
}

// Dequantize4 reads the codes of first moments, which are signed, or of second ones.
func Dequantize4(x []float32, codes []uint8, scales []float32, signed bool) {
	check(len(codes) == len(x)/2 && len(scales) == len(x)/tensor.MomentBlock4, "4-bit moments: lengths differ")
	decode := decodeSecond4
	if signed {
		decode = decodeFirst4
	}
	for b, scale := range scales {
		lo, hi := b*tensor.MomentBlock4, (b+1)*tensor.MomentBlock4
		decode(x[lo:hi], codes[lo/2:hi/2], scale)
	}
}
