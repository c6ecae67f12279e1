package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// readSmolLM3 reads SmolLM3: Llama's block, of which every fourth does not rotate its heads.
// Source: transformers, configuration_smollm3.py and modeling_smollm3.py.
func readSmolLM3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Biases(r)
	s.GLU.Bias = r.Bool("mlp_bias")
	every := r.Size("no_rope_layer_interval")
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
	window := window(r)
	if !r.Bool("use_sliding_window") {
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
