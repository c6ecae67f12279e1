package model

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// mixtral has Llama's names, a router, and a matrix for each expert. Its w1, w3 and w2 are gate, up and down.
var mixtral = slices.Concat(Llama, Names{
	{Role: "router.*", HF: "model.layers.{layer}.block_sparse_moe.gate.*", GGUF: "blk.{layer}.ffn_gate_inp.*"},
	{Role: "expert.gate.*", HF: "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.*",
		GGUF: "blk.{layer}.ffn_gate_exps.*", CutGGUF: Stacked},
	{Role: "expert.down.*", HF: "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.*",
		GGUF: "blk.{layer}.ffn_down_exps.*", CutGGUF: Stacked},
	{Role: "expert.up.*", HF: "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.*",
		GGUF: "blk.{layer}.ffn_up_exps.*", CutGGUF: Stacked},
})

// readMixtral reads Mixtral: Llama's block with experts in every layer, of which the weights of those that are chosen
// add up to 1. Source: transformers, configuration_mixtral.py and modeling_mixtral.py.
func readMixtral(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.windowEverywhere(window(r))
	r.Require("router_jitter_noise", 0.0)
	r.Ignore("output_router_logits", "router_aux_loss_coef") // of a loss that a run asks for
	experts := nn.Experts{Inner: s.GLU.Inner, Number: limited(r, "num_local_experts", maxExperts),
		Route: device.RouteSpec{TopK: r.Size("num_experts_per_tok"), Renormalize: true, Scale: 1}}
	s.FeedForwards = slices.Repeat([]nn.FeedForward{experts}, s.Layers)
}
