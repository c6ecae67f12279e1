package model

import (
	"encoding/json"
	"slices"

	"github.com/millrace/millrace/hf"
)

// readMistral reads Mistral 7B and its successors: Llama's block with a sliding window in every layer.
// Source: transformers, configuration_mistral.py and modeling_mistral.py.
func readMistral(c *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.HeadDim(r)
	s.Rotary(r)
	if window := r.SizeOr("sliding_window", absentOr(c, "sliding_window", 4096)); window > 0 {
		s.windows = slices.Repeat([]int{window}, s.Layers)
	}
}

// absentOr returns def for a key that is not in the file, and 0 for one that is, also as null. For transformers an
// absent sliding window means 4096, and null means no window.
func absentOr(c *hf.Config, key string, def int) int {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(c.Raw(), &keys); err == nil {
		if _, there := keys[key]; there {
			return 0
		}
	}
	return def
}
