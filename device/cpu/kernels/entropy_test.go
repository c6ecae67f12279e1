package kernels

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// TestEntropy compares entropies and hits with their definitions in float64, for vocabularies as large as there are,
// logits of all sizes, maxima that grow from tile to tile, and ties.
func TestEntropy(t *testing.T) {
	const rows = 3
	inf := math.Inf(1)
	for name, c := range map[string]struct {
		vocab, tile int
		logit       func(rng *rand.Rand, i int) float64 // of column i
		softCap     float64
	}{
		"one token":      {1, 1, func(*rand.Rand, int) float64 { return 7 }, 0},
		"uniform":        {262144, 32768, func(*rand.Rand, int) float64 { return -3 }, 0},
		"nearly uniform": {262144, 32768, func(rng *rand.Rand, _ int) float64 { return 0.01 * rng.NormFloat64() }, 0},
		"usual":          {151936, 50000, func(rng *rand.Rand, _ int) float64 { return 2*rng.NormFloat64() - 5 }, 0},
		"large":          {262144, 32768, func(rng *rand.Rand, _ int) float64 { return 50 + 10*rng.NormFloat64() }, 0},
		"far from zero":  {5000, 700, func(rng *rand.Rand, _ int) float64 { return 1e4 + rng.NormFloat64() }, 0},
		"huge":           {500, 70, func(rng *rand.Rand, _ int) float64 { return 1e30 * rng.NormFloat64() }, 0},
		"rising":         {262144, 32768, func(_ *rand.Rand, i int) float64 { return float64(i) / 40000 }, 0},
		"rising by much": {3000, 100, func(_ *rand.Rand, i int) float64 { return float64(i/100*80) - 1000 }, 0},
		"ties":           {3000, 700, func(rng *rand.Rand, _ int) float64 { return math.Round(rng.NormFloat64()) }, 0},
		"some are impossible": {3000, 700, func(rng *rand.Rand, i int) float64 {
			return []float64{rng.NormFloat64(), -inf}[i%2]
		}, 0},
		"capped":         {40000, 7000, func(rng *rand.Rand, _ int) float64 { return 20 * rng.NormFloat64() }, 30},
		"all at the cap": {4000, 700, func(rng *rand.Rand, i int) float64 { return 1000 }, 30},
	} {
		rng := rand.New(rand.NewPCG(1, uint64(len(name))))
		logits := newArray(tensor.F32, rows, c.vocab, 0, func() float32 { return 0 })
		targets := []int32{0, int32(rng.IntN(c.vocab)), -1}
		for r := range rows {
			row := floats(logits.Mat.at(r, 0), c.vocab)
			for i := range row {
				row[i] = float32(c.logit(rng, i))
			}
			if r == 0 {
				most := slices.Max(row)
				targets[r] = int32(c.vocab - 1)
				for row[targets[r]] != most { // the last of those that are tied
					targets[r]--
				}
			}
		}
		for _, level := range isa.Available() {
			k := For(level)
			op := CrossEntropy{Stats: make([]float32, rows*StatLen), Targets: targets, SoftCap: float32(c.softCap),
				Loss: make([]float32, rows), Entropy: make([]float32, rows), Hit: make([]float32, rows)}
			k.LSEReset(&op, 0, rows)
			for first := 0; first < c.vocab; first += c.tile {
				n := min(c.tile, c.vocab-first)
				op.ColFirst, op.Logits = first, Mat{logits.Mat.at(0, first), tensor.F32, rows, n, c.vocab}
				k.LSEUpdate(&op, 0, rows)
			}
			k.LSEFinish(&op, 0, rows)
			worst := 0.0
			for r, target := range targets {
				row := make([]float64, c.vocab)
				for i, x := range floats(logits.Mat.at(r, 0), c.vocab) {
					if row[i] = float64(x); c.softCap > 0 {
						row[i] = c.softCap * math.Tanh(float64(x)/c.softCap)
					}
				}
				most, sum, products, hit := slices.Max(row), 0.0, 0.0, float32(0)
				for _, x := range row {
					if p := math.Exp(x - most); p > 0 {
						sum += p
						products += p * (x - most)
					}
				}
				want := math.Log(sum) - products/sum
				if target < 0 {
					want = 0
				} else if row[target] == most {
					hit = 1
				}
				share := math.Abs(float64(op.Entropy[r])-want) / (1 + want)
				if worst = max(worst, share); !(share <= 2e-6) || op.Hit[r] != hit {
					t.Errorf("%s, %v: row %d has the entropy %v and the hit %v, want %v and %v", name, level, r, op.Entropy[r],
						op.Hit[r], want, hit)
				}
			}
			t.Logf("%s, %v: the worst error is %.2g", name, level, worst)
		}
	}
}
