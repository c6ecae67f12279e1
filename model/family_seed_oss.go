package model

import "github.com/millrace/millrace/hf"

// seedOSS has Qwen's names; llama.cpp calls the norm before the feed-forward by another one.
var seedOSS = qwen.Renamed(normAfterAttention)

// readSeedOSS reads Seed-OSS: Llama's block with biases on q, k and v. Its configurations ask for dropout, which is not
// applied. Source: transformers, configuration_seed_oss.py and modeling_seed_oss.py.
func readSeedOSS(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Attention.KVHeads = r.SizeOr("num_key_value_heads", 8)
	s.headDimOr(r, 128)
	s.Rotary(r)
	s.Attention.QKVBias = r.BoolOr("attention_bias", true)
	s.Attention.OutBias = r.BoolOr("attention_out_bias", false)
	s.GLU.Bias = r.BoolOr("mlp_bias", false)
	r.Require("pretraining_tp", 1)
	r.Ignore("residual_dropout")
}
