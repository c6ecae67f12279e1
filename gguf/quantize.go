package gguf

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/tensor"
)

// The functions here turn fp32 numbers into the blocks that ggml.go reads. They follow ggml's reference code
// (ggml-quants.c: quantize_row_*_ref), operation by operation in fp32: each product is rounded before a sum, so the
// same numbers give the same blocks on every machine. Each one converts len(src)/elems whole blocks. The numbers must
// be finite, see allFinite: a maximum does not see a NaN, and some of them write it as an ordinary number. A scale
// that binary16 cannot hold is written as infinity, and finite finds it.

// allFinite reports whether numbers are neither infinite nor NaN.
func allFinite(src []float32) bool {
	for _, x := range src {
		if math.Float32bits(x)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true
}

// isFinite16 reports whether binary16 bits are a number.
func isFinite16(h uint16) bool { return h&0x7c00 != 0x7c00 }

// finite is the index of the first block whose scales, at the given offsets, are not all finite, or -1. Without scales
// the elements themselves are looked at.
func (q *quant) finite(blocks []byte) (bad int) {
	for i := 0; i < len(blocks); i += int(q.bytes) {
		b := blocks[i:]
		switch q.typ {
		case ggmlF32:
			if binary.LittleEndian.Uint32(b)&0x7f800000 == 0x7f800000 {
				return i / int(q.bytes)
			}
		case ggmlBF16:
			if binary.LittleEndian.Uint16(b)&0x7f80 == 0x7f80 {
				return i / int(q.bytes)
			}
		default:
			for _, at := range q.scales {
				if !isFinite16(binary.LittleEndian.Uint16(b[at:])) {
					return i / int(q.bytes)
				}
			}
		}
	}
	return -1
}

func quantizeF32(dst []byte, src []float32) {
	for i, x := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
	}
}

func quantizeF16(dst []byte, src []float32) {
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], tensor.F16FromF32(x))
	}
}

func quantizeBF16(dst []byte, src []float32) {
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], tensor.BF16FromF32(x))
	}
}

func putF16(dst []byte, x float32) { binary.LittleEndian.PutUint16(dst, tensor.F16FromF32(x)) }

// reciprocal is 1/d, and 0 for 0.
func reciprocal(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// quantizeQ8_0 scales the largest magnitude of a block to 127 and rounds half away from zero.
func quantizeQ8_0(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[34:], src[32:] {
		var largest float32
		for _, x := range src[:32] {
			largest = max(largest, abs32(x))
		}
		d := largest / 127
		putF16(dst, d)
		scale := reciprocal(d)
		for j, x := range src[:32] {
			dst[2+j] = byte(int8(math.Round(float64(float32(x * scale)))))
		}
	}
}

// quantizeQ5_0 scales the number of the largest magnitude to -16, whatever its sign, as 5 bits hold -16 to 15.
func quantizeQ5_0(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[22:], src[32:] {
		var largest, extreme float32
		for _, x := range src[:32] {
			if a := abs32(x); a > largest {
				largest, extreme = a, x
			}
		}
		d := extreme / -16
		putF16(dst, d)
		scale := reciprocal(d)
		five := func(x float32) uint32 { return min(31, uint32(int8(float32(x*scale)+16.5))) }
		var high uint32
		for j := range 16 {
			lo, hi := five(src[j]), five(src[j+16])
			dst[6+j] = byte(lo&15 | hi&15<<4)
			high |= lo>>4<<j | hi>>4<<(j+16)
		}
		binary.LittleEndian.PutUint32(dst[2:], high)
	}
}

// quantizeQ5_1 puts the smallest number of a block at 0 and the largest at 31.
func quantizeQ5_1(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[24:], src[32:] {
		// Not min and max: of zeros of both signs the first one is taken.
		least, largest := src[0], src[0]
		for _, x := range src[1:32] {
			if x < least {
				least = x
			}
			if x > largest {
				largest = x
			}
		}
		d := (largest - least) / 31
		putF16(dst, d)
		putF16(dst[2:], least)
		scale := reciprocal(d)
		five := func(x float32) uint32 { return uint32(uint8(float32((x-least)*scale) + 0.5)) }
		var high uint32
		for j := range 16 {
			lo, hi := five(src[j]), five(src[j+16])
			dst[8+j] = byte(lo&15 | hi&15<<4)
			high |= lo>>4&1<<j | hi>>4&1<<(j+16)
		}
		binary.LittleEndian.PutUint32(dst[4:], high)
	}
}

func abs32(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// nearest rounds to a whole number, half to even, for magnitudes below 2^22: the sum has no bits left for a fraction.
func nearest(x float32) int32 {
	return int32(math.Float32bits(x+12582912)&0x7fffff) - 0x400000
}
