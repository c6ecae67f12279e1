package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// glm4 has Llama's names; gate and up are one tensor, and each half of a block has two norms. The pairs of what is
// rotated of a head are neighbours.
var glm4 = Llama.Renamed(Names{
	{Role: "q.*", HF: "model.layers.{layer}.self_attn.q_proj.*", CutHF: PartlyRotated | Interleaved,
		GGUF: "blk.{layer}.attn_q.*", CutGGUF: PartlyRotated | Interleaved},
	{Role: "k.*", HF: "model.layers.{layer}.self_attn.k_proj.*", CutHF: PartlyRotated | Interleaved,
		GGUF: "blk.{layer}.attn_k.*", CutGGUF: PartlyRotated | Interleaved},
	{Role: "gate.*", HF: "model.layers.{layer}.mlp.gate_up_proj.*", GGUF: "blk.{layer}.ffn_up.*"},
	{Role: "up.*", HF: "model.layers.{layer}.mlp.gate_up_proj.*", GGUF: "blk.{layer}.ffn_up.*"},
}).Before("norm.*", Names{
	{Role: "mixer_post_norm.*", HF: "model.layers.{layer}.post_self_attn_layernorm.*",
		GGUF: "blk.{layer}.post_attention_norm.*"},
	{Role: "feed_post_norm.*", HF: "model.layers.{layer}.post_mlp_layernorm.*", GGUF: "blk.{layer}.post_ffw_norm.*"},
})

// readGLM4 reads the dense models of GLM 4: norms of the inputs and of the results of both halves, and heads that are
// rotated in part. Source: transformers, configuration_glm4.py and modeling_glm4.py.
func readGLM4(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Attention.Rope = readPartialRope(r, s.Attention.HeadDim)
	s.Attention.QKVBias = r.Bool("attention_bias")
	s.each(r, nn.Sandwich, nil)
}
