package model

import "github.com/millrace/millrace/hf"

// readMistral reads Mistral 7B and its successors: Llama's block with a sliding window in every layer.
// Source: transformers, configuration_mistral.py and modeling_mistral.py.
func readMistral(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.HeadDim(r)
	s.Rotary(r)
	s.windowEverywhere(r.SizeOr("sliding_window", unlessNull(r, "sliding_window", 4096)))
}

// unlessNull returns the meaning of an absent key: def if it is not in the file, and 0 if it is null. An absent sliding
// window means 4096 to transformers, and null means no window.
func unlessNull(r *hf.ConfigReader, key string, def int) int {
	if r.IsNull(key) {
		return 0
	}
	return def
}
