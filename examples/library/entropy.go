package main

import (
	"math"
	"slices"
)

// entropy returns the entropy in nats of the distribution that logits stand for.
func entropy(logits []float32) float64 {
	top := float64(slices.Max(logits))
	sum, mean := 0.0, 0.0
	for _, x := range logits {
		weight := math.Exp(float64(x) - top)
		sum += weight
		mean += weight * (float64(x) - top)
	}
	return math.Log(sum) - mean/sum
}
