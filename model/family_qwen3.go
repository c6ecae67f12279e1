package model

import "github.com/millrace/millrace/hf"

// readQwen3 reads the dense models of Qwen 3: Llama's block with norms on each head's query and key, and heads whose
// width is stated. Source: transformers, configuration_qwen3.py and modeling_qwen3.py.
func readQwen3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.qwen3Attention(r)
	s.qwenWindows(r)
}

// qwen3Attention reads what the attention of all Qwen 3s has, of heads whose width is known.
func (s *Spec) qwen3Attention(r *hf.ConfigReader) {
	s.Rotary(r)
	s.Attention.QKNorm = true
	s.Biases(r)
}
