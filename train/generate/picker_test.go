package generate

import (
	"math"
	"testing"
)

// The choices follow the probabilities that temperature, top k and top p leave.
func TestPickerFollowsProbabilities(t *testing.T) {
	logits := []float32{float32(math.Log(0.5)), float32(math.Log(0.2)), float32(math.Log(0.3)), 50}
	for name, c := range map[string]struct {
		temperature float64
		topK        int
		topP        float64
		want        []float64
	}{
		"all":         {1, 0, 0, []float64{0.5, 0.2, 0.3}},
		"--top-k":     {1, 2, 1, []float64{0.625, 0, 0.375}},
		"--top-p":     {1, 0, 0.75, []float64{0.625, 0, 0.375}},
		"top p exact": {1, 0, 0.4, []float64{1, 0, 0}},
		"cold":        {0.5, 0, 0, []float64{0.25 / 0.38, 0.04 / 0.38, 0.09 / 0.38}},
		"greedy":      {0, 0, 0, []float64{1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPicker(Options{Temperature: c.temperature, TopK: c.topK, TopP: c.topP, Seed: 5}, 3)
			const n = 20000
			counts := make([]float64, 3)
			for at := range n {
				id, err := p.token(logits, 0, at)
				if err != nil {
					t.Fatal(err)
				}
				counts[id]++
			}
			for id, want := range c.want {
				// Five standard deviations.
				if d := math.Abs(counts[id]/n - want); d > 5*math.Sqrt(want*(1-want)/n) {
					t.Errorf("token %d: %.4f of the choices, want %.4f", id, counts[id]/n, want)
				}
			}
		})
	}
	least := float32(math.Inf(-1))
	for _, logits := range [][]float32{{0, float32(math.NaN())}, {least, least}} {
		if id, err := newPicker(Options{Temperature: 1, TopP: 0.9}, 2).token(logits, 0, 0); err == nil {
			t.Errorf("of %v token %d is chosen", logits, id)
		}
	}
}
