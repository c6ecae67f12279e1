package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// readSmolLM3 reads SmolLM3: Llama's block, of which every fourth does not rotate its heads.
// Source: transformers, configuration_smollm3.py and modeling_smollm3.py.
func readSmolLM3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Tied = r.BoolOr("tie_word_embeddings", true)
	s.Attention.KVHeads = r.SizeOr("num_key_value_heads", 4)
	s.HeadDim(r)
	s.Attention.Rope = readRope(r, s.Attention.HeadDim, 2e6)
	bias := r.BoolOr("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.GLU.Bias = r.BoolOr("mlp_bias", false)
	every := r.SizeOr("no_rope_layer_interval", 4)
	rotated := r.IntsOr("no_rope_layers", nil) // 1 for layers that are rotated, 0 for others
	if r.Has("no_rope_layers") && r.Err() == nil && len(rotated) < s.Layers {
		r.Fail("no_rope_layers", "it has %d entries, \"num_hidden_layers\" is %d", len(rotated), s.Layers)
	}
	rotates := func(l int) bool {
		if rotated != nil {
			return rotated[l] != 0
		}
		return (l+1)%every != 0
	}
	window := r.SizeOr("sliding_window", 0)
	if !r.BoolOr("use_sliding_window", false) {
		window = 0
	}
	s.LayerTypes(r, window, func(l int) bool { return r.Err() == nil && !rotates(l) })
	s.each(r, nn.Pre, func(l int, a *nn.Attention) {
		if !rotates(l) {
			a.Rope = nn.RopeFrequencies{}
		}
	})
	r.Require("pretraining_tp", 1)
}
