package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// cohere has Llama's names. Both halves of a block share a norm, and neighbouring columns of a head are rotated.
var cohere = Llama.Without("feed_norm.*").RecutHF(Interleaved, "q.*", "k.*")

// readCohere reads Command R: blocks whose halves are parallel, layer norms without a bias, and logits that are
// multiplied. Source: transformers, configuration_cohere.py and modeling_cohere.py.
func readCohere(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	readCommand(r, s)
	s.each(r, nn.Parallel, nil)
}

// readCohere2 reads Command R7B and Command A: the same with a window in three layers of four, which alone rotate their
// heads. Source: transformers, configuration_cohere2.py and modeling_cohere2.py.
func readCohere2(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	readCommand(r, s)
	every := r.SizeOr("sliding_window_pattern", r.SizeOr("_sliding_window_pattern", r.SizeOr("layer_switch", 4)))
	s.LayerTypes(r, window(r),
		func(l int) bool { return (l+1)%every != 0 })
	s.each(r, nn.Parallel, func(_ int, a *nn.Attention) {
		if a.Window == 0 {
			a.Rope = nn.RopeFrequencies{}
		}
	})
	r.Ignore("cache_implementation") // for serving
	// Written by the conversion of Command R7B.
	r.Require("order_of_interleaved_layers", "local_attn_first")
	r.Require("position_embedding_type", "rope_gptj")
	r.Require("rotary_pct", 1.0)
	r.Require("use_embedding_sharing", true)
	r.Require("use_gated_activation", true)
	r.Require("use_parallel_block", true)
	r.Ignore("use_parallel_embedding") // of several devices
}

// readCommand reads what both have.
func readCommand(r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Biases(r)
	s.LogitScale = float32(r.Positive("logit_scale", 0))
	r.Require("use_qk_norm", false) // layer norms of each head with weights of its own
	r.Ignore("model_max_length")    // Command R v01 has it for other programs
	if s.LogitScale == 0 {
		r.Fail("logit_scale", "it is 0 in fp32")
	}
}
