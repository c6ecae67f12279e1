package probe

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// The rate is that of the best of five windows of equal numbers of runs, and of all; where a single run is long, of
// fewer.
func TestWindows(t *testing.T) {
	near := func(a, b float64) bool { return math.Abs(a/b-1) < 1e-9 }
	for name, c := range map[string]struct {
		seconds   float64
		perRun    []float64 // seconds, by call; the last one of all that follow
		calls     []int
		best, all float64
	}{
		"short":        {0.5, []float64{0.01}, []int{1, 13, 13, 13, 13, 13}, 100, 100},
		"disturbed":    {0.5, []float64{0.01, 0.02, 0.04, 0.01, 0.02, 0.02}, []int{1, 13, 13, 13, 13, 13}, 100, 65 / (13 * 0.11)},
		"quick at end": {0.5, []float64{0.01, 0.02, 0.005}, []int{1, 13, 13, 13, 13, 13}, 200, 65 / (13 * 0.04)},
		"very short":   {0.5, []float64{1e-4}, []int{1, 17, 273, 1200, 1200, 1200, 1200, 1200}, 1e4, 1e4},
		"half":         {0.5, []float64{0.25}, []int{1, 1, 1, 1, 1}, 4, 4},
		"second":       {0.5, []float64{0.8}, []int{1, 1}, 1.25, 1.25},
		"long":         {0.5, []float64{3}, []int{1}, 1. / 3, 1. / 3},
	} {
		var calls []int
		best, all, err := windows(c.seconds, func(n int) (float64, error) {
			sec := c.perRun[min(len(calls), len(c.perRun)-1)]
			calls = append(calls, n)
			return float64(n) * sec, nil
		})
		if err != nil || !slices.Equal(calls, c.calls) || !near(best, c.best) || !near(all, c.all) {
			t.Errorf("%s: runs %v, best %v, all %v, %v", name, calls, best, all, err)
		}
	}
	failure := errors.New("no")
	if _, _, err := windows(1, func(int) (float64, error) { return 0, failure }); !errors.Is(err, failure) {
		t.Error(err)
	}
}
