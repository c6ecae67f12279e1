package model

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// gptOSS has Qwen's names; experts are stacked. In checkpoints their matrices are transposed, and rows of gate and up
// alternate; in GGUF files each matrix has a tensor.
var gptOSS = slices.Concat(qwen.Renamed(normAfterAttention), Names{
	{Role: "router.*", HF: "model.layers.{layer}.mlp.router.*", GGUF: "blk.{layer}.ffn_gate_inp.*"},
	{Role: "expert.gate.weight", HF: "model.layers.{layer}.mlp.experts.gate_up_proj",
		CutHF: Interleaved | Transposed | Stacked, GGUF: "blk.{layer}.ffn_gate_exps.weight", CutGGUF: Stacked},
	{Role: "expert.up.weight", HF: "model.layers.{layer}.mlp.experts.gate_up_proj",
		CutHF: Interleaved | Transposed | Stacked, GGUF: "blk.{layer}.ffn_up_exps.weight", CutGGUF: Stacked},
	{Role: "expert.gate.bias", HF: "model.layers.{layer}.mlp.experts.gate_up_proj_bias", CutHF: Interleaved | Stacked,
		GGUF: "blk.{layer}.ffn_gate_exps.bias", CutGGUF: Stacked},
	{Role: "expert.up.bias", HF: "model.layers.{layer}.mlp.experts.gate_up_proj_bias", CutHF: Interleaved | Stacked,
		GGUF: "blk.{layer}.ffn_up_exps.bias", CutGGUF: Stacked},
	{Role: "expert.down.weight", HF: "model.layers.{layer}.mlp.experts.down_proj", CutHF: Transposed | Stacked,
		GGUF: "blk.{layer}.ffn_down_exps.weight", CutGGUF: Stacked},
	{Role: "expert.down.bias", HF: "model.layers.{layer}.mlp.experts.down_proj_bias", CutHF: Stacked,
		GGUF: "blk.{layer}.ffn_down_exps.bias", CutGGUF: Stacked},
})

// gptOSSInMXFP4 are the tensors that are published in MXFP4.
var gptOSSInMXFP4 = []string{"model.layers.*.mlp.experts.gate_up_proj", "model.layers.*.mlp.experts.down_proj"}

// readGPTOSS reads gpt-oss: attention with sinks, a window in every second layer and YaRN, biases everywhere, and
// experts with an activation of their own. Sources: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025);
// transformers, configuration_gpt_oss.py and modeling_gpt_oss.py.
func readGPTOSS(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Biases(r)
	s.Attention.Sinks = true
	s.LayerTypes(r, window(r), func(l int) bool { return l%2 == 0 })
	r.Quantized("mxfp4") // the weights say which tensors are
	// Copies of keys for other programs, and the weight of a loss that a run asks for.
	r.Ignore("initial_context_length", "experts_per_token", "output_router_logits", "router_aux_loss_coef")
	experts := nn.Experts{Inner: s.GLU.Inner, Number: limited(r, "num_local_experts", maxExperts), Bias: true,
		RouterBias: true,
		Route:      device.RouteSpec{TopK: r.Size("num_experts_per_tok"), Renormalize: true, Scale: 1},
		Activation: device.GLUSpec{Alpha: float32(r.Positive("swiglu_alpha", 0)),
			Limit: float32(r.Positive("swiglu_limit", 0))}}
	s.FeedForwards = slices.Repeat([]nn.FeedForward{experts}, s.Layers)
}
