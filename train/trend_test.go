package train

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestTrend(t *testing.T) {
	for name, c := range map[string]struct {
		steps int
		loss  func(i int, r *rand.Rand) float64
		rose  bool
		isNil bool
	}{
		"few steps":           {29, func(i int, _ *rand.Rand) float64 { return 1 + float64(i) }, false, true},
		"falls":               {100, func(i int, _ *rand.Rand) float64 { return 3 - float64(i)/50 }, false, false},
		"rises":               {100, func(i int, _ *rand.Rand) float64 { return 1 + float64(i)/50 }, true, false},
		"level":               {30, func(int, *rand.Rand) float64 { return 2 }, false, false},
		"not finite":          {100, func(int, *rand.Rand) float64 { return math.NaN() }, false, true},
		"diverges":            {30, func(i int, _ *rand.Rand) float64 { return math.Exp(float64(i) / 3) }, true, false},
		"large and falls":     {10_000, func(i int, r *rand.Rand) float64 { return 2 - float64(i)/10_000 + r.NormFloat64() }, false, false},
		"large and rises":     {100_000, func(i int, r *rand.Rand) float64 { return 2 + float64(i)/200_000 + r.NormFloat64() }, true, false},
		"a power of the bins": {4 * trendBins, func(i int, _ *rand.Rand) float64 { return float64(i) }, true, false},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		var all trend
		for i := range c.steps {
			all.add(c.loss(i, r))
		}
		got := all.tenths()
		if (got == nil) != c.isNil || got != nil && (got.Rose != c.rose || got.Steps < c.steps/10 || got.Steps > c.steps/9+1) {
			t.Errorf("%s: %+v of %d bins", name, got, len(all.bins))
		}
		if len(all.bins) > trendBins {
			t.Errorf("%s: %d bins", name, len(all.bins))
		}
	}
	// Steps that differ by chance alone seldom rise.
	rose := 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 3))
		var all trend
		for range 100 {
			all.add(2 + 0.3*r.NormFloat64())
		}
		if all.tenths().Rose {
			rose++
		}
	}
	if rose > 50 {
		t.Errorf("%d of 1000 runs without a trend are said to rise", rose)
	}
}
