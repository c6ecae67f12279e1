package model

import (
	"math"
	"slices"
	"testing"
)

// TestNumbers: a file holds the numbers that llama.cpp computes with, and they come back, rounded.
func TestNumbers(t *testing.T) {
	for numbers, c := range map[Numbers]struct{ x, file, back []float32 }{
		Plain: {[]float32{0, -2, 1e-30}, []float32{0, -2, 1e-30}, []float32{0, -2, 1e-30}},
		PlusOne: {[]float32{0, -2, 0.5, 1 + 1.0/128, 1e-30}, []float32{1, -1, 1.5, 2 + 1.0/128, 1},
			[]float32{0, -2, 0.5, 1 + 1.0/128, 0}},
		NegExp: {[]float32{0, 1, -4}, []float32{-1, -math.E, -0.018315639}, []float32{0, 0.99999994, -4}},
	} {
		got := slices.Clone(c.x)
		numbers.toFile(got)
		if !slices.Equal(got, c.file) {
			t.Errorf("%d: a file holds %v, want %v", numbers, got, c.file)
		}
		numbers.fromFile(got)
		if !slices.Equal(got, c.back) {
			t.Errorf("%d: %v come back as %v, want %v", numbers, c.x, got, c.back)
		}
	}
}
