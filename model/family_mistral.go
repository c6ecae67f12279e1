package model

import "github.com/millrace/millrace/hf"

// readMistral reads Mistral 7B and its successors: Llama's block with a sliding window in every layer.
// Source: transformers, configuration_mistral.py and modeling_mistral.py.
func readMistral(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.windowEverywhere(window(r))
}
