package devicetest

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/millrace/millrace/device"
)

// The reference agrees with transformers on sinks and soft caps; golden.py says with what of it. Gemma 2's softmax is in
// fp32 there.
func TestReferenceAgainstTransformers(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Attention map[string]struct {
			Heads                                         int
			KVHeads                                       int `json:"kv_heads"`
			HeadDim                                       int `json:"head_dim"`
			Start                                         []int32
			Window                                        int
			Scale                                         float64
			SoftCap                                       float64 `json:"soft_cap"`
			Sinks, Q, K, V, DOut, Out, DQ, DK, DV, DSinks []float64
		}
		Loss map[string]struct {
			Vocab           int
			SoftCap         float64 `json:"soft_cap"`
			Targets         []int32
			Loss            float64
			Logits, DLogits []float64
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want []float64) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
		}
		for i := range want {
			if !(math.Abs(got[i]-want[i]) <= 1e-6) {
				t.Errorf("%s[%d] is %v, transformers has %v", what, i, got[i], want[i])
			}
		}
	}
	n := newNumbers()
	for name, g := range golden.Attention {
		rows, starts := len(g.Start), n.ints(g.Start)
		spec := device.AttentionSpec{Heads: g.Heads, KVHeads: g.KVHeads, HeadDim: g.HeadDim, Scale: float32(g.Scale),
			Window: g.Window, SoftCap: float32(g.SoftCap),
			Docs: device.Docs{Positions: starts, Start: starts, End: starts}} // a causal attention has no use for ends
		if len(g.Sinks) > 0 {
			spec.Sinks = n.f32(1, g.Sinks)
		}
		a := n.attention(n.f32(rows, g.Q), n.f32(rows, g.K), n.f32(rows, g.V), n.f32(rows, g.DOut), spec)
		near(name+" out", n.read(a.out), g.Out)
		near(name+" dq", n.read(a.dq), g.DQ)
		near(name+" dk", n.read(a.dk), g.DK)
		near(name+" dv", n.read(a.dv), g.DV)
		if len(g.Sinks) > 0 {
			near(name+" dsinks", n.read(a.dsinks), g.DSinks)
		}
	}
	for name, g := range golden.Loss {
		count, total, weights := 0.0, 0.0, make([]float64, len(g.Targets))
		for _, target := range g.Targets {
			if target >= 0 {
				count++
			}
		}
		for i := range weights {
			weights[i] = 1 / count
		}
		logits, targets := n.f32(len(g.Targets), g.Logits), n.ints(g.Targets)
		dlogits := n.like(logits)
		for i, loss := range n.crossEntropy(dlogits, logits, targets, n.f32(1, weights).Mem, float32(g.SoftCap)) {
			total += weights[i] * loss
		}
		near(name+" loss", []float64{total}, []float64{g.Loss})
		near(name+" dlogits", n.read(dlogits), g.DLogits)
	}
	if len(golden.Attention) != 4 || len(golden.Loss) != 1 {
		t.Errorf("%d attentions and %d losses", len(golden.Attention), len(golden.Loss))
	}
}
