// Package axis chooses the ticks of charts.
package axis

import "math"

// Step returns the distance between ticks on a range: 1, 2 or 5 times a power of ten, the smallest that divides the
// length into at most n parts. The length must be positive and finite.
func Step(length, n float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(length/n)))
	for _, times := range []float64{1, 2, 5} {
		if length/(power*times) <= n {
			return power * times
		}
	}
	return 10 * power
}
