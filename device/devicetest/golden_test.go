package devicetest

import (
	"encoding/json"
	"math"
	"os"
	"testing"
)

// The reference agrees with transformers on sinks and soft caps; golden.py says with what of it. Gemma 2's softmax is in fp32 there.
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
	for name, g := range golden.Attention {
		s := &refSpec{heads: g.Heads, kvHeads: g.KVHeads, headDim: g.HeadDim, scale: g.Scale, window: g.Window, softCap: g.SoftCap, start: g.Start}
		if len(g.Sinks) > 0 {
			s.sinks = g.Sinks
		}
		out, lse := refAttention(g.Q, g.K, g.V, s)
		dq, dk, dv := refAttentionGrad(g.DOut, g.Q, g.K, g.V, out, lse, s)
		near(name+" out", out, g.Out)
		near(name+" dq", dq, g.DQ)
		near(name+" dk", dk, g.DK)
		near(name+" dv", dv, g.DV)
		if s.sinks != nil {
			near(name+" dsinks", refSinkGrad(s.sinks, lse, refDelta(g.DOut, out, s)), g.DSinks)
		}
	}
	for name, g := range golden.Loss {
		losses, grad := refCrossEntropy(g.Logits, g.Targets, g.Vocab, g.SoftCap)
		count, total := 0.0, 0.0
		for i, target := range g.Targets {
			if target >= 0 {
				count++
				total += losses[i]
			}
		}
		for i := range grad {
			grad[i] /= count
		}
		near(name+" loss", []float64{total / count}, []float64{g.Loss})
		near(name+" dlogits", grad, g.DLogits)
	}
	if len(golden.Attention) != 4 || len(golden.Loss) != 1 {
		t.Errorf("%d attentions and %d losses", len(golden.Attention), len(golden.Loss))
	}
}
