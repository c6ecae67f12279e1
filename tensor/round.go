package tensor

import "math"

// The conversions below are the definitions; device kernels must agree with them bit for bit.

// BF16FromF32 rounds to nearest, ties to even. A NaN stays a NaN (quiet, sign kept).
func BF16FromF32(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// F32FromBF16 is exact.
func F32FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32FromF16 is exact (IEEE binary16, denormals and NaN payloads included).
func F32FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	frac := uint32(h & 0x3ff)
	switch {
	case exp == 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp == 0:
		// Value is frac * 2^-24: exact in float32.
		f := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// F16FromF32 rounds to nearest, ties to even; what is too large becomes an infinity.
func F16FromF32(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x47800000: // 65536 and more, infinity included
		return sign | 0x7c00
	case abs >= 0x38800000: // normal in binary16; rounding may carry into infinity, as it should
		return sign | uint16((abs-0x38000000+0xfff+abs>>13&1)>>13)
	case abs < 0x33000000: // below half of the smallest denormal
		return sign
	}
	// Denormal in binary16: shift the significand so that one unit is 2^-24, then round to nearest even.
	shift := 126 - abs>>23
	sig := abs&0x7fffff | 0x800000
	return sign | uint16((sig+(1<<(shift-1)-1)+sig>>shift&1)>>shift)
}

// SplitF32 cuts the bits of an fp32 master weight into the bf16 weight that the link streams (hi) and a signed 16-bit
// remainder (lo), so that JoinF32 gives back the same bits for every value that is not a NaN. Ties of hi go away from
// zero. A NaN becomes hi 0x7FC0, lo 0.
func SplitF32(x float32) (hi uint16, lo int16) {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fc0, 0
	}
	return uint16((b + 0x8000) >> 16), int16(b)
}

// JoinF32 is the inverse of SplitF32.
func JoinF32(hi uint16, lo int16) float32 {
	return math.Float32frombits(uint32(hi)<<16 + uint32(int32(lo)))
}

// SplitF24 rounds an fp32 master weight to 24 bits, by 8 random bits r, and cuts these into the bf16 weight that the
// link streams (hi) and a signed remainder (lo), so that JoinF24 gives back the same 24 bits with zeros below. Of the
// 256 values of r the low 8 bits of x round up: so the mean is x, and a number whose low 8 bits are zero stays as it
// is. To nearest, a step that is smaller than half of a 24-bit step would never move a weight. For what is no step of
// training, such as a model that is read, r is [NearestF24].
//
// hi is the bf16 number nearest to the 24 bits, ties away from zero, as SplitF32 has it. lo counts units of the binade
// that the number is in, which below a power of two are half of those of hi. A NaN becomes hi 0x7FC0, lo 0; infinities
// stay.
func SplitF24(x float32, r uint8) (hi uint16, lo int8) {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fc0, 0
	}
	b = (b + uint32(r)) >> 8 // no number is within 255 of the end of the words
	return uint16((b + 0x80) >> 8), int8(b)
}

// NearestF24 makes SplitF24 round to nearest, ties away from zero.
const NearestF24 = 0x80

// JoinF24 is the inverse of SplitF24, of what that has kept.
func JoinF24(hi uint16, lo int8) float32 {
	return math.Float32frombits((uint32(hi)<<8 + uint32(int32(lo))) << 8)
}
