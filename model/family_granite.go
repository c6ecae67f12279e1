package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// readGranite reads the dense models of Granite 3: Llama's block with multipliers of the embedding, of scores, of the
// results of halves and of logits. Source: transformers, configuration_granite.py and modeling_granite.py.
func readGranite(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Biases(r)
	s.GLU.Bias = r.Bool("mlp_bias")
	s.EmbedScale.By = r.Positive("embedding_multiplier", 0)
	s.Attention.Scale = float32(r.Positive("attention_multiplier", 0))
	s.LogitScale = float32(1 / max(r.Positive("logits_scaling", 0), 1e-30))
	residual := float32(r.Positive("residual_multiplier", 0))
	s.each(r, nn.Scaled, nil)
	for l := range s.Blocks {
		s.Blocks[l].Residual = residual
	}
}
