package gguf

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestDequantizeMXFP4 compares every code with every scale with the definition.
func TestDequantizeMXFP4(t *testing.T) {
	magnitudes := [8]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	for scale := range 256 {
		for low := range 16 {
			src, dst := make([]byte, mxfp4Bytes), make([]float32, 32)
			src[0] = byte(scale)
			high := (low + 5) % 16
			src[1+low] = byte(low | high<<4)
			dequantizeMXFP4(dst, src)
			for i, got := range dst {
				code := 0
				switch i {
				case low:
					code = low
				case low + 16:
					code = high
				}
				want := float32(math.Ldexp(magnitudes[code&7], scale-127))
				if code >= 8 {
					want = -want
				}
				switch {
				case scale == 255:
					if got == got {
						t.Fatalf("scale 255, code %d: %v", code, got)
					}
				case got != want || code == 8 && !math.Signbit(float64(got)):
					t.Fatalf("scale %d, code %d: %v, want %v", scale, code, got, want)
				}
			}
		}
	}
}

// codeMXFP4 tries each code, as ggml-quants.c does (best_index_mxfp4). half is half of the scale.
func codeMXFP4(x, half float32) (best byte) {
	doubles := [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
	least := abs32(doubles[0]*half - x)
	for code, v := range doubles {
		if wrong := abs32(float32(v*half) - x); wrong < least {
			best, least = byte(code), wrong
		}
	}
	return best
}

// TestQuantizeMXFP4 compares with a search of all codes, also of numbers halfway between two, and of those that come
// from MXFP4, which come back.
func TestQuantizeMXFP4(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := make([]float32, 32)
		exponent := rapid.IntRange(-120, 120).Draw(t, "exponent")
		isExact := rapid.Bool().Draw(t, "exact")
		for i := range src {
			eighths := rapid.IntRange(-64, 64).Draw(t, "eighths") // of the scale: midpoints are among them
			if isExact {
				eighths = eighths / 16 * 8
			}
			src[i] = float32(math.Ldexp(float64(eighths), exponent-3))
			if !isExact && rapid.Bool().Draw(t, "next to it") {
				src[i] = math.Nextafter32(src[i], float32(math.Inf(1)))
			}
		}
		block := make([]byte, mxfp4Bytes)
		quantizeMXFP4(block, src)
		back := make([]float32, 32)
		dequantizeMXFP4(back, block)
		half := float32(math.Ldexp(1, int(block[0])-128))
		for i, x := range src {
			code := block[1+i%16] >> (i / 16 * 4) & 15
			if want := codeMXFP4(x, half); code != want {
				t.Fatalf("%g with the scale %d has the code %d, want %d", x, block[0], code, want)
			}
			if isExact && back[i] != x {
				t.Fatalf("%g came back as %g", x, back[i])
			}
		}
	})
}
