package model

import (
	"slices"

	"github.com/millrace/millrace/hf"
)

// qwen3VLMoE has the names of Qwen's mixtures below those of the language model. Experts are stacked, and their
// matrices transposed, as in the published files.
var qwen3VLMoE = slices.Concat(qwen, Names{
	{Role: "router.*", HF: "model.layers.{layer}.mlp.gate.*", GGUF: "blk.{layer}.ffn_gate_inp.*"},
	{Role: "expert.gate.weight", HF: "model.layers.{layer}.mlp.experts.gate_up_proj", CutHF: Transposed | Stacked,
		GGUF: "blk.{layer}.ffn_gate_exps.weight", CutGGUF: Stacked},
	{Role: "expert.up.weight", HF: "model.layers.{layer}.mlp.experts.gate_up_proj", CutHF: Transposed | Stacked,
		GGUF: "blk.{layer}.ffn_up_exps.weight", CutGGUF: Stacked},
	{Role: "expert.down.weight", HF: "model.layers.{layer}.mlp.experts.down_proj", CutHF: Transposed | Stacked,
		GGUF: "blk.{layer}.ffn_down_exps.weight", CutGGUF: Stacked},
}).Under("model.language_model.")

// readQwen25VL reads the text of Qwen 2.5 VL, which is Qwen 2.5.
// Source: transformers, configuration_qwen2_5_vl.py and modeling_qwen2_5_vl.py.
func readQwen25VL(c *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.mRope(r)
	readQwen2(c, r, s)
}

// readQwen3VL reads the text of Qwen 3 VL, which is Qwen 3.
// Source: transformers, configuration_qwen3_vl.py and modeling_qwen3_vl.py.
func readQwen3VL(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.mRope(r)
	s.Heads(r)
	s.qwen3Attention(r)
}

// readQwen3VLMoE reads the text of Qwen 3 VL's mixtures, in which the weights of a token's experts add up to 1.
// Source: transformers, configuration_qwen3_vl_moe.py and modeling_qwen3_vl_moe.py.
func readQwen3VLMoE(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.mRope(r)
	s.Heads(r)
	s.qwen3Attention(r)
	s.qwenExperts(r, true)
	r.Require("norm_topk_prob", true)
}

// mRope marks what is about images as read. A rotation whose angles depend on the place in an image is the plain one on
// text, where an image's coordinates all are the position.
func (s *Spec) mRope(r *hf.ConfigReader) {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if scaling, ok := r.Object(key); ok {
			scaling.Ignore("mrope_section", "mrope_interleaved")
		}
	}
	s.Outer.Ignore("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
		"vision_token_id")
}
