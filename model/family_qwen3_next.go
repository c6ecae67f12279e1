package model

import (
	"slices"

	"github.com/millrace/millrace/hf"
)

// qwenNext has the projections of delta nets as two tensors, in which key heads take turns, and a matrix for each
// expert.
var qwenNext = slices.Concat(qwenHybrid, Names{
	{Role: "delta.q.*", HF: "model.layers.{layer}.linear_attn.in_proj_qkvz.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "delta.k.*", HF: "model.layers.{layer}.linear_attn.in_proj_qkvz.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "delta.v.*", HF: "model.layers.{layer}.linear_attn.in_proj_qkvz.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "delta.z.*", HF: "model.layers.{layer}.linear_attn.in_proj_qkvz.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_gate.*"},
	{Role: "delta.b.*", HF: "model.layers.{layer}.linear_attn.in_proj_ba.*", CutHF: ByHead,
		GGUF: "blk.{layer}.ssm_ba.*", CutGGUF: ByHead},
	{Role: "delta.a.*", HF: "model.layers.{layer}.linear_attn.in_proj_ba.*", CutHF: ByHead,
		GGUF: "blk.{layer}.ssm_ba.*", CutGGUF: ByHead},
}, qwenShared, Names{
	{Role: "expert.gate.*", HF: "model.layers.{layer}.mlp.experts.{expert}.gate_proj.*",
		GGUF: "blk.{layer}.ffn_gate_exps.*", CutGGUF: Stacked},
	{Role: "expert.up.*", HF: "model.layers.{layer}.mlp.experts.{expert}.up_proj.*",
		GGUF: "blk.{layer}.ffn_up_exps.*", CutGGUF: Stacked},
	{Role: "expert.down.*", HF: "model.layers.{layer}.mlp.experts.{expert}.down_proj.*",
		GGUF: "blk.{layer}.ffn_down_exps.*", CutGGUF: Stacked},
})

// readQwenNext reads Qwen3-Next, the model that Qwen 3.5 grew from: experts in some layers.
// Source: transformers, configuration_qwen3_next.py and modeling_qwen3_next.py.
func readQwenNext(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.qwenHybrid(r)
	s.sparseLayers(r, s.gatedExperts(r, r.Bool("norm_topk_prob")))
}
