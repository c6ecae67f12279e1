package devicetest

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// The reference agrees with transformers on sinks, soft caps and gated delta nets; golden.py says with what of it.
// Gemma 2's softmax and the recurrence are in fp32 there.
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
		Delta map[string]struct {
			KeyHeads                              int `json:"key_heads"`
			Heads                                 int
			KeyDim                                int `json:"key_dim"`
			ValueDim                              int `json:"value_dim"`
			Start                                 []int32
			X, W, A, B, DOut, Out, DX, DW, DA, DB []float64
			ALog                                  []float64 `json:"a_log"`
			DtBias                                []float64 `json:"dt_bias"`
			DALog                                 []float64 `json:"da_log"`
			DDtBias                               []float64 `json:"ddt_bias"`
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
	near := func(what string, got, want []float64) { // sums of fp32, in softmaxes and recurrences
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
		}
		for i := range want {
			if !(math.Abs(got[i]-want[i]) <= 1e-6*(1+math.Abs(want[i]))) {
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
		figures := n.figures(dlogits, logits, targets, n.f32(1, weights).Mem, device.Mem{}, float32(g.SoftCap))
		for i, loss := range figures[:len(weights)] {
			total += weights[i] * loss
		}
		near(name+" loss", []float64{total}, []float64{g.Loss})
		near(name+" dlogits", n.read(dlogits), g.DLogits)
	}
	for name, g := range golden.Delta {
		rows, starts := len(g.Start), n.ints(g.Start)
		spec := device.DeltaSpec{KeyHeads: g.KeyHeads, Heads: g.Heads, KeyDim: g.KeyDim, ValueDim: g.ValueDim,
			Docs: device.Docs{Start: starts, End: starts}} // a recurrence has no use for ends
		x, w, a, b := n.f32(rows, g.X), n.f32(spec.QKVCols(), g.W), n.f32(rows, g.A), n.f32(rows, g.B)
		aLog, dtBias, dout := n.f32(1, g.ALog), n.f32(1, g.DtBias), n.f32(rows, g.DOut)
		qkv, decay, beta, out := n.like(x), n.like(a), n.like(b), n.like(dout)
		states, dstates := n.arena.Mat(tensor.F32, 1, spec.KeyDim*spec.ValueDim*spec.Heads), n.arena.Mat(tensor.F32, 1,
			spec.KeyDim*spec.ValueDim*spec.Heads)
		n.CausalConv(qkv, x, w, spec.Docs)
		n.DeltaGates(decay, beta, a, b, aLog, dtBias)
		n.GatedDelta(out, states, qkv, decay, beta, spec)
		near(name+" out", n.read(out), g.Out)
		dqkv, ddecay, dbeta, dx, dw := n.like(qkv), n.like(decay), n.like(beta), n.like(x), n.like(w)
		da, db, daLog, ddtBias := n.like(a), n.like(b), n.like(aLog), n.like(dtBias)
		n.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
		n.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
		n.CausalConvGrad(dx, dw, dqkv, x, w, spec.Docs)
		near(name+" dx", n.read(dx), g.DX)
		near(name+" dw", n.read(dw), g.DW)
		near(name+" da", n.read(da), g.DA)
		near(name+" db", n.read(db), g.DB)
		near(name+" da_log", n.read(daLog), g.DALog)
		near(name+" ddt_bias", n.read(ddtBias), g.DDtBias)
	}
	if len(golden.Attention) != 4 || len(golden.Loss) != 1 || len(golden.Delta) != 1 {
		t.Errorf("%d attentions, %d losses, %d delta nets", len(golden.Attention), len(golden.Loss), len(golden.Delta))
	}
}
