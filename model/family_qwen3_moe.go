package model

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// qwenMoE has Qwen's names, a router, and a matrix for each expert.
var qwenMoE = slices.Concat(qwen, Names{
	{Role: "router.*", HF: "model.layers.{layer}.mlp.gate.*", GGUF: "blk.{layer}.ffn_gate_inp.*"},
	{Role: "expert.gate.*", HF: "model.layers.{layer}.mlp.experts.{expert}.gate_proj.*",
		GGUF: "blk.{layer}.ffn_gate_exps.*", CutGGUF: Stacked},
	{Role: "expert.up.*", HF: "model.layers.{layer}.mlp.experts.{expert}.up_proj.*",
		GGUF: "blk.{layer}.ffn_up_exps.*", CutGGUF: Stacked},
	{Role: "expert.down.*", HF: "model.layers.{layer}.mlp.experts.{expert}.down_proj.*",
		GGUF: "blk.{layer}.ffn_down_exps.*", CutGGUF: Stacked},
})

// readQwen3MoE reads Qwen 3's mixtures of experts: Qwen 3's block with experts in some layers.
// Source: transformers, configuration_qwen3_moe.py and modeling_qwen3_moe.py.
func readQwen3MoE(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.qwen3Attention(r)
	if window := window(r); r.Bool("use_sliding_window") {
		s.windowEverywhere(window)
	}
	r.Ignore("max_window_layers") // published files have it, and transformers does not read it here
	s.qwenExperts(r, r.Bool("norm_topk_prob"))
}

// qwenExperts reads experts, and which layers have them.
func (s *Spec) qwenExperts(r *hf.ConfigReader, renormalize bool) {
	experts := nn.Experts{Inner: limited(r, "moe_intermediate_size", maxWidth), Number: limited(r, either(r,
		"num_experts", "num_local_experts"), maxExperts),
		Route: device.RouteSpec{TopK: r.Size("num_experts_per_tok"), Renormalize: renormalize, Scale: 1}}
	r.Ignore("output_router_logits", "router_aux_loss_coef") // of a loss that a run asks for
	s.sparseLayers(r, experts)
}

// sparseLayers reads which layers have experts; the others have a GLU.
func (s *Spec) sparseLayers(r *hf.ConfigReader, experts nn.Experts) {
	every := r.Size("decoder_sparse_step")
	dense := r.IntsOr("mlp_only_layers", nil)
	if r.Err() != nil {
		return
	}
	for l := range s.Layers {
		if (l+1)%every == 0 && !slices.Contains(dense, l) {
			s.FeedForwards = append(s.FeedForwards, experts)
		} else {
			s.FeedForwards = append(s.FeedForwards, s.GLU)
		}
	}
}
