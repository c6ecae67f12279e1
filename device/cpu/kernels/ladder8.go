package kernels

import (
	"math"

	"github.com/millrace/millrace/tensor"
)

// ladder rounds second moments to codes of unsigned8: to one of the two codes around a number, at random, so that the mean
// is the number. A second moment falls by 0.1% in a step without gradients (Beta2 = 0.999), and codes are 1.4 to 140%
// apart: rounded to the nearest code it would never fall against its block, and its parameter would move too little.
//
// A number's place is its code, between codes as far as it is on the way from one to the next, in units of 1/65536 of a
// code. The place plus 16 random bits, without its low 16 bits, is the code. Codes of a decade are equally far apart, so
// places are on straight lines, and no code is looked up: the numbers from the first code of a decade to that of the
// next one are a rung, with a line for the decade and one for the gap above it. The smaller one counts, since the gap's
// is flatter. There are seven decades, and a last rung from the greatest code below 1 to 1.
//
// The least code is 1: AdamW divides by the root of the second moment, so a zero below a first moment that is not zero
// makes a step of hundreds of learning rates. This is on purpose otherwise than in bitsandbytes.
//
// Products and sums are rounded to fp32, each by itself, and the arithmetic is the same on every device: the code that a
// number and a word give is part of device.OptimizerOps. Places are off by less than two units.
type ladder struct {
	least float32    // that has a place: the number of code 1
	edge  [8]float32 // what numbers of the next rung exceed; the last one is +Inf
	// The lines of each rung: that of its codes, and that of the gap.
	slope, offset       [8]float32
	gapSlope, gapOffset [8]float32
}

var theLadder = newLadder()

// unit is one code.
const unit = 1 << 16

func newLadder() *ladder {
	l := &ladder{least: unsigned8.value[1]}
	value := func(k int) float64 { return float64(unsigned8.value[k]) }
	// line is through the numbers of two codes. Half a unit makes truncation round to nearest where units are that fine.
	line := func(from, to int) (slope, offset float32) {
		perUnit := float64(to-from) * unit / (value(to) - value(from))
		return float32(perUnit), float32(float64(from)*unit + 0.5 - float64(perUnit*value(from)))
	}
	first := 1
	for r := range 7 {
		next := first + 2<<r
		l.slope[r], l.offset[r] = line(first, next-1)
		l.gapSlope[r], l.gapOffset[r] = line(next-1, next)
		l.edge[r] = unsigned8.value[next]
		first = next
	}
	// Above its codes the last decade has no gap but the last rung, whose end is flat: the place of 1, and of what is so
	// close to 1 that it is 1 times a rounded scale.
	l.edge[6], l.gapSlope[6], l.gapOffset[6] = unsigned8.value[254], 0, 254*unit
	l.edge[7] = float32(math.Inf(1))
	l.slope[7], l.offset[7] = line(254, 255)
	l.offset[7] += 4
	l.gapSlope[7], l.gapOffset[7] = 0, 255*unit
	return l
}

// place is the place of a number that is at most 1, from 1 unit to 255. Numbers below least, and NaNs, have that of least.
func (l *ladder) place(y float32) uint32 {
	if !(y > l.least) {
		y = l.least
	}
	r := 0
	for y > l.edge[r] {
		r++
	}
	return uint32(min(float32(y*l.slope[r])+l.offset[r], float32(y*l.gapSlope[r])+l.gapOffset[r]))
}

// encode writes the codes of at most one block and returns their scale, as codebook.encode does. words are random.
func (l *ladder) encode(codes []uint8, x []float32, words *[tensor.MomentBlock]uint32) (scale float32) {
	scale = greatest(x)
	if scale == 0 {
		clear(codes)
		return 0
	}
	inverse := 1 / scale
	for i, x := range x {
		codes[i] = uint8((l.place(x*inverse) + words[i]>>16) >> 16)
	}
	return scale
}
