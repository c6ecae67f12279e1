package model

import "github.com/millrace/millrace/hf"

// phi3 has Llama's names; q, k and v are one tensor, and so are gate and up. Heads may be rotated in part.
var phi3 = Llama.Renamed(Names{
	{Role: "q.*", HF: "model.layers.{layer}.self_attn.qkv_proj.*", CutHF: PartlyRotated,
		GGUF: "blk.{layer}.attn_qkv.*", CutGGUF: PartlyRotated},
	{Role: "k.*", HF: "model.layers.{layer}.self_attn.qkv_proj.*", CutHF: PartlyRotated,
		GGUF: "blk.{layer}.attn_qkv.*", CutGGUF: PartlyRotated},
	{Role: "v.*", HF: "model.layers.{layer}.self_attn.qkv_proj.*", GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "gate.*", HF: "model.layers.{layer}.mlp.gate_up_proj.*", GGUF: "blk.{layer}.ffn_up.*"},
	{Role: "up.*", HF: "model.layers.{layer}.mlp.gate_up_proj.*", GGUF: "blk.{layer}.ffn_up.*"},
})

// readPhi3 reads Phi-3, Phi-3.5 and the dense models of Phi-4: Llama's block, with longrope, windows and heads that are
// rotated in part. Source: transformers, configuration_phi3.py and modeling_phi3.py.
func readPhi3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	r.Ignore("original_max_position_embeddings") // for other kinds than longrope it means nothing
	s.Attention.Rope = readPartialRope(r, s.Attention.HeadDim)
	s.windowEverywhere(window(r))
	r.Require("attention_bias", false)
	r.Require("resid_pdrop", 0.0)
	r.Require("embd_pdrop", 0.0)
	r.Require("interpolate_factor", 1) // of Phi-4-mini
	r.Require("full_attn_mod", 1)
	r.Require("mlp_bias", false)
	r.Require("lm_head_bias", false)
}
