package model

import "github.com/millrace/millrace/hf"

// readLlama reads Llama 1 to 3 and what took over their form, such as SmolLM2.
// Source: transformers, configuration_llama.py and modeling_llama.py.
func readLlama(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Attention.KVHeads = r.SizeOr("num_key_value_heads", s.Attention.Heads)
	s.HeadDim(r)
	s.Rotary(r)
	bias := r.BoolOr("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.GLU.Bias = r.BoolOr("mlp_bias", false)

	// Set to 2 or more, transformers sums slices of each product in an order of their own.
	r.Require("pretraining_tp", 1)
	// Written by the conversion of SmolLM2.
	r.Require("is_llama_config", true)
	r.Require("rope_interleaved", false)
}
