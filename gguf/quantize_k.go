package gguf

import "math"

// K-quants have blocks of 256 elements in sub-blocks, whose scales are themselves quantized. The quantizers search the
// scale (and the minimum) of each sub-block with the smallest weighted squared error; the weight of an element grows
// with its magnitude. Source: ggml-quants.c (make_qkx2_quants, make_qx_quants), without an importance matrix.

const blockK = 256 // elements

// affine describes a search for x = scale*q + minimum with q from 0 to largest.
type affine struct {
	largest int32
	// After the inverse scale largest / (max - min), (largest + first + i/10) / (max - min) is tried, i from 0 to steps,
	// where min is the best one so far.
	first float32
	steps int
}

var (
	affine4 = affine{largest: 15, first: -1, steps: 20}
	affine5 = affine{largest: 31, first: -0.5, steps: 15}
)

// search finds the scale and the negated minimum, both at least 0, for the 32 numbers of a sub-block, and their q.
func (a affine) search(x, weights *[32]float32, q *[32]uint8) (scale, minimum float32) {
	low, high := x[0], x[0]
	var sumW, sumX float32
	for i, v := range x {
		low, high = min(low, v), max(high, v)
		sumW += weights[i]
		sumX += float32(weights[i] * v)
	}
	low = min(low, 0)
	if high == low {
		*q = [32]uint8{}
		return 0, -low
	}
	inverse := float32(a.largest) / (high - low)
	scale = 1 / inverse
	a.round(q, x, inverse, low)
	best := squaredError(x, weights, q, scale, low)
	var trial [32]uint8
	for step := range a.steps + 1 {
		inverse := (a.first + float32(float32(0.1)*float32(step)) + float32(a.largest)) / (high - low)
		a.round(&trial, x, inverse, low)
		var sumL, sumL2, sumXL float32
		for i, l := range trial {
			l, w := float32(l), weights[i]
			wl := float32(w * l)
			sumL += wl
			sumL2 += float32(wl * l)
			sumXL += float32(wl * x[i])
		}
		det := float32(sumW*sumL2) - float32(sumL*sumL)
		if det <= 0 {
			continue
		}
		s := (float32(sumW*sumXL) - float32(sumX*sumL)) / det
		m := (float32(sumL2*sumX) - float32(sumL*sumXL)) / det
		if m > 0 {
			m, s = 0, sumXL/sumL2
		}
		if e := squaredError(x, weights, &trial, s, m); e < best {
			best, *q, scale, low = e, trial, s, m
		}
	}
	return scale, -low
}

func (a affine) round(q *[32]uint8, x *[32]float32, inverse, low float32) {
	for i, v := range x {
		q[i] = uint8(max(0, min(a.largest, nearest(float32(inverse*(v-low))))))
	}
}

func squaredError(x, weights *[32]float32, q *[32]uint8, scale, low float32) (sum float32) {
	for i, v := range x {
		diff := float32(scale*float32(q[i])) + low - v
		sum += float32(weights[i] * float32(diff*diff))
	}
	return sum
}

// quantize makes the front part that Q4_K and Q5_K share (f16 d, f16 dmin, 12 bytes of scales and minima) and the q of
// a block.
func (a affine) quantize(dst []byte, x *[blockK]float32, q *[blockK]uint8) {
	var scales, minima [8]float32
	var mostScale, mostMin float32
	for j := range 8 {
		sub := (*[32]float32)(x[32*j:])
		var squares float32
		for _, v := range sub {
			squares += float32(v * v)
		}
		average := float32(math.Sqrt(float64(squares / 32)))
		var weights [32]float32
		for i, v := range sub {
			weights[i] = average + abs32(v)
		}
		scales[j], minima[j] = a.search(sub, &weights, (*[32]uint8)(q[32*j:]))
		mostScale, mostMin = max(mostScale, scales[j]), max(mostMin, minima[j])
	}
	putF16(dst, mostScale/63)
	putF16(dst[2:], mostMin/63)
	packed := dst[4:16]
	clear(packed)
	var inverseScale, inverseMin float32
	if mostScale > 0 {
		inverseScale = 63 / mostScale
	}
	if mostMin > 0 {
		inverseMin = 63 / mostMin
	}
	for j := range 8 {
		s := byte(min(63, nearest(float32(inverseScale*scales[j]))))
		m := byte(min(63, nearest(float32(inverseMin*minima[j]))))
		if j < 4 {
			packed[j], packed[j+4] = s, m
			continue
		}
		packed[j+4] = s&15 | m&15<<4
		packed[j-4] |= s >> 4 << 6
		packed[j] |= m >> 4 << 6
	}
	// The scales are other ones now, so the nearest q are, too.
	d, dmin := f16At(dst), f16At(dst[2:])
	for j := range 8 {
		s, m := scaleMinK(packed, j)
		scale, low := float32(d*float32(s)), float32(dmin*float32(m))
		if scale == 0 {
			continue
		}
		for i, v := range x[32*j : 32*j+32] {
			q[32*j+i] = uint8(max(0, min(a.largest, nearest((v+low)/scale))))
		}
	}
}

func quantizeQ4_K(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[144:], src[blockK:] {
		var q [blockK]uint8
		affine4.quantize(dst, (*[blockK]float32)(src), &q)
		for r := range 4 {
			for i := range 32 {
				dst[16+32*r+i] = q[64*r+i] | q[64*r+32+i]<<4
			}
		}
	}
}

func quantizeQ5_K(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[176:], src[blockK:] {
		var q [blockK]uint8
		affine5.quantize(dst, (*[blockK]float32)(src), &q)
		high, low := dst[16:48], dst[48:176]
		clear(high)
		for r := range 4 {
			for i := range 32 {
				a, b := q[64*r+i], q[64*r+32+i]
				low[32*r+i] = a&15 | b&15<<4
				high[i] |= a>>4<<(2*r) | b>>4<<(2*r+1)
			}
		}
	}
}

// symmetric finds the scale for x = scale*(q-32) with q from 0 to 63, for 16 numbers: the weight of an element is its
// square.
func symmetric(x *[16]float32, q *[16]uint8) (scale float32) {
	var largest, extreme float32
	for _, v := range x {
		if a := abs32(v); a > largest {
			largest, extreme = a, v
		}
	}
	if largest < allZero {
		*q = [16]uint8{}
		return 0
	}
	try := func(inverse float32, q *[16]uint8) (sumXL, sumL2 float32) {
		for i, v := range x {
			l := max(-32, min(31, nearest(float32(inverse*v))))
			q[i] = uint8(l + 32)
			w, f := float32(v*v), float32(l)
			sumXL += float32(float32(w*v) * f)
			sumL2 += float32(float32(w*f) * f)
		}
		return sumXL, sumL2
	}
	sumXL, sumL2 := try(-32/extreme, q)
	if sumL2 != 0 {
		scale = sumXL / sumL2
	}
	best := float32(scale * sumXL)
	for step := -9; step <= 9; step++ {
		if step == 0 {
			continue
		}
		var trial [16]uint8
		sumXL, sumL2 := try(-(32+float32(float32(0.1)*float32(step)))/extreme, &trial)
		if sumL2 > 0 && float32(sumXL*sumXL) > float32(best*sumL2) {
			*q, scale = trial, sumXL/sumL2
			best = float32(scale * sumXL)
		}
	}
	return scale
}

// allZero is the magnitude below which numbers are taken for zeros.
const allZero = 1e-15

func quantizeQ6_K(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[210:], src[blockK:] {
		var q [blockK]uint8
		var scales [16]float32
		var largest, extreme float32
		for j := range 16 {
			scales[j] = symmetric((*[16]float32)(src[16*j:]), (*[16]uint8)(q[16*j:]))
			if a := abs32(scales[j]); a > largest {
				largest, extreme = a, scales[j]
			}
		}
		if largest < allZero {
			clear(dst[:210])
			continue
		}
		inverse := -128 / extreme
		putF16(dst[208:], 1/inverse)
		d := f16At(dst[208:])
		for j := range 16 {
			s := int8(min(127, nearest(float32(inverse*scales[j]))))
			dst[192+j] = byte(s)
			scale := float32(d * float32(s))
			if scale == 0 {
				continue
			}
			for i, v := range src[16*j : 16*j+16] {
				q[16*j+i] = uint8(max(-32, min(31, nearest(v/scale))) + 32)
			}
		}
		for half := range 2 {
			low, high, q := dst[64*half:][:64], dst[128+32*half:][:32], q[128*half:][:128]
			for l := range high {
				a, b, c, e := q[l], q[l+32], q[l+64], q[l+96]
				low[l], low[l+32] = a&15|c&15<<4, b&15|e&15<<4
				high[l] = a>>4 | b>>4<<2 | c>>4<<4 | e>>4<<6
			}
		}
	}
}
