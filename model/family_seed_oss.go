package model

import "github.com/millrace/millrace/hf"

// seedOSS has Qwen's names; llama.cpp calls the norm before the feed-forward by another one.
var seedOSS = qwen.Renamed(normAfterAttention)

// readSeedOSS reads Seed-OSS: Llama's block with biases on q, k and v. Its configurations ask for dropout, which is not
// applied. Source: transformers, configuration_seed_oss.py and modeling_seed_oss.py.
func readSeedOSS(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Attention.QKVBias = r.Bool("attention_bias")
	s.Attention.OutBias = r.Bool("attention_out_bias")
	s.GLU.Bias = r.Bool("mlp_bias")
	r.Require("pretraining_tp", 1)
	r.Ignore("residual_dropout")
}
