package model

import "github.com/millrace/millrace/hf"

// readQwen3 reads the dense models of Qwen 3: Llama's block with norms on each head's query and key, and heads whose
// width is stated. Source: transformers, configuration_qwen3.py and modeling_qwen3.py.
func readQwen3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.Attention.HeadDim = r.SizeOr("head_dim", 128)
	s.Rotary(r)
	s.Attention.QKNorm = true
	bias := r.BoolOr("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.qwenWindows(r)
}
