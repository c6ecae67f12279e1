package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// readGranite reads the dense models of Granite 3: Llama's block with multipliers of the embedding, of scores, of the
// results of halves and of logits. Source: transformers, configuration_granite.py and modeling_granite.py.
func readGranite(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Attention.KVHeads = r.SizeOr("num_key_value_heads", s.Attention.Heads)
	s.HeadDim(r)
	s.Rotary(r)
	bias := r.BoolOr("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.GLU.Bias = r.BoolOr("mlp_bias", false)
	s.EmbedScale.By = r.Positive("embedding_multiplier", 1)
	s.Attention.Scale = float32(r.Positive("attention_multiplier", 1))
	s.LogitScale = float32(1 / max(r.Positive("logits_scaling", 1), 1e-30))
	residual := float32(r.Positive("residual_multiplier", 1))
	s.each(r, nn.Scaled, nil)
	for l := range s.Blocks {
		s.Blocks[l].Residual = residual
	}
}
