package gguf

import (
	"math"

	"github.com/millrace/millrace/hf"
)

// MXFP4: a byte of scale, 16 bytes of codes as in Q4_0. The codes and scales are those of gpt-oss' checkpoints
// (hf.MXFP4Values), whose blocks have neighbours in a byte.
const mxfp4Bytes = 17

func dequantizeMXFP4(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[mxfp4Bytes:] {
		values := hf.MXFP4Values(src[0])
		for j, q := range src[1:mxfp4Bytes] {
			dst[j], dst[j+16] = values[q&15], values[q>>4]
		}
	}
}

// quantizeMXFP4 takes the power of two below the largest magnitude, divided by 4, as the scale, and the nearest code.
// It differs from hf.PackMXFP4 where llama.cpp's code does: of two codes that are equally near the smaller one is
// taken, zero has no sign, a block of zeros has the scale 0, and the logarithm is rounded to fp32, so that magnitudes
// just below a power of two may count as that.
func quantizeMXFP4(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[mxfp4Bytes:], src[32:] {
		var largest float32
		for _, x := range src[:32] {
			largest = max(largest, abs32(x))
		}
		scale := 0
		if largest > 0 {
			log := float32(math.Log2(float64(largest)))
			scale = max(0, int(math.Floor(float64(log)))-2+127)
		}
		dst[0] = byte(scale)
		unit := math.Ldexp(1, 127-scale)
		for j := range 16 {
			dst[1+j] = nearestMXFP4(src[j], unit) | nearestMXFP4(src[j+16], unit)<<4
		}
	}
}

// nearestMXFP4 is the code nearest to x*unit.
func nearestMXFP4(x float32, unit float64) (code byte) {
	v := math.Abs(float64(x)) * unit // unit is a power of two, so this is exact
	switch {
	case v > 5:
		code = 7
	case v > 3.5:
		code = 6
	case v > 2.5:
		code = 5
	case v > 1.75:
		code = 4
	case v > 1.25:
		code = 3
	case v > 0.75:
		code = 2
	case v > 0.25:
		code = 1
	default:
		return 0
	}
	return code | byte(math.Float32bits(x)>>31<<3)
}
