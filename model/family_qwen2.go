package model

import "github.com/millrace/millrace/hf"

// qwen has Llama's names. Its rotation has pairs a half of the head apart everywhere, so GGUF files keep the rows.
var qwen = Llama.Recut(Rows, "q.*", "k.*")

// readQwen2 reads Qwen 2 and 2.5: Llama's block with biases on q, k and v.
// Source: transformers, configuration_qwen2.py and modeling_qwen2.py.
func readQwen2(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Attention.QKVBias = true
	s.qwenWindows(r)
	r.Require("use_mrope", false)
}

// qwenWindows reads which blocks of a Qwen see a window only.
func (s *Spec) qwenWindows(r *hf.ConfigReader) {
	window := window(r)
	first := r.Int("max_window_layers")
	if first < 0 {
		r.Fail("max_window_layers", "it is negative")
	}
	if !r.Bool("use_sliding_window") {
		window = 0
	}
	s.LayerTypes(r, window, func(l int) bool { return l >= first })
}
