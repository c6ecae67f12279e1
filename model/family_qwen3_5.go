package model

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// qwenHybrid has Qwen's names, and those of gated delta nets. A head of q_proj has its query, and then its gate.
var qwenHybrid = slices.Concat(Names{
	{Role: "delta.a_log", HF: "model.layers.{layer}.linear_attn.A_log", GGUF: "blk.{layer}.ssm_a", NumbersGGUF: NegExp},
	{Role: "delta.dt_bias", HF: "model.layers.{layer}.linear_attn.dt_bias", GGUF: "blk.{layer}.ssm_dt.bias"},
	{Role: "delta.conv.*", HF: "model.layers.{layer}.linear_attn.conv1d.*", CutHF: Filters,
		GGUF: "blk.{layer}.ssm_conv1d.*"},
	{Role: "delta.norm.*", HF: "model.layers.{layer}.linear_attn.norm.*", GGUF: "blk.{layer}.ssm_norm.*"},
	{Role: "delta.out.*", HF: "model.layers.{layer}.linear_attn.out_proj.*", GGUF: "blk.{layer}.ssm_out.*"},
}, qwen.Renamed(normAfterAttention).RecutHF(PartlyRotated, "k.*", "q_norm.*", "k_norm.*").
	Recut(PartlyRotated, "k.*", "q_norm.*", "k_norm.*").RecutHF(ByHead|PartlyRotated, "q.*").
	Recut(ByHead|PartlyRotated, "q.*"), Names{
	{Role: "q_gate.*", HF: "model.layers.{layer}.self_attn.q_proj.*", CutHF: ByHead, GGUF: "blk.{layer}.attn_q.*",
		CutGGUF: ByHead},
}).HeldAs(PlusOne, "q_norm.*", "k_norm.*", "mixer_norm.*", "feed_norm.*", "norm.*")

// qwen35 has the projections of delta nets as four tensors. In GGUF files value heads are in an order of their own.
var qwen35 = slices.Concat(qwenHybrid, Names{
	{Role: "delta.q.*", HF: "model.layers.{layer}.linear_attn.in_proj_qkv.*", GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "delta.k.*", HF: "model.layers.{layer}.linear_attn.in_proj_qkv.*", GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "delta.v.*", HF: "model.layers.{layer}.linear_attn.in_proj_qkv.*", GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "delta.z.*", HF: "model.layers.{layer}.linear_attn.in_proj_z.*", GGUF: "blk.{layer}.attn_gate.*"},
	{Role: "delta.b.*", HF: "model.layers.{layer}.linear_attn.in_proj_b.*", GGUF: "blk.{layer}.ssm_beta.*"},
	{Role: "delta.a.*", HF: "model.layers.{layer}.linear_attn.in_proj_a.*", GGUF: "blk.{layer}.ssm_alpha.*"},
}).Recut(Tiled, "delta.a_log", "delta.dt_bias", "delta.conv.*", "delta.v.*", "delta.z.*", "delta.b.*", "delta.a.*").
	Recut(TiledColumns, "delta.out.*")

// qwenShared are the names of a router and of an expert that all rows use, if its gate says so.
var qwenShared = Names{
	{Role: "router.*", HF: "model.layers.{layer}.mlp.gate.*", GGUF: "blk.{layer}.ffn_gate_inp.*"},
	{Role: "shared.gate.*", HF: "model.layers.{layer}.mlp.shared_expert.gate_proj.*",
		GGUF: "blk.{layer}.ffn_gate_shexp.*"},
	{Role: "shared.up.*", HF: "model.layers.{layer}.mlp.shared_expert.up_proj.*", GGUF: "blk.{layer}.ffn_up_shexp.*"},
	{Role: "shared.down.*", HF: "model.layers.{layer}.mlp.shared_expert.down_proj.*",
		GGUF: "blk.{layer}.ffn_down_shexp.*"},
	{Role: "shared_gate.*", HF: "model.layers.{layer}.mlp.shared_expert_gate.*",
		GGUF: "blk.{layer}.ffn_gate_inp_shexp.*"},
}

// qwen35MoE has experts stacked, as published; transformers 5 saves a tensor for each.
var qwen35MoE = slices.Concat(qwen35, qwenShared, Names{
	{Role: "expert.gate.weight", HF: "model.layers.{layer}.mlp.experts.gate_up_proj", CutHF: Stacked,
		EachHF: "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
		GGUF:   "blk.{layer}.ffn_gate_exps.weight", CutGGUF: Stacked},
	{Role: "expert.up.weight", HF: "model.layers.{layer}.mlp.experts.gate_up_proj", CutHF: Stacked,
		EachHF: "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
		GGUF:   "blk.{layer}.ffn_up_exps.weight", CutGGUF: Stacked},
	{Role: "expert.down.weight", HF: "model.layers.{layer}.mlp.experts.down_proj", CutHF: Stacked,
		EachHF: "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
		GGUF:   "blk.{layer}.ffn_down_exps.weight", CutGGUF: Stacked},
})

// With its decoder a checkpoint has a vision tower, and a layer that predicts tokens after the next one for faster
// generation. transformers does not load the latter either.
var (
	qwenNested  = "model.language_model."
	qwenCarried = []string{"model.visual.*", "mtp.*"}
)

// readQwen35 reads Qwen 3.5 and its successors of the same architecture: most layers have a gated delta net, and the
// others attention whose output has a gate. Source: transformers, configuration_qwen3_5.py and modeling_qwen3_5.py.
func readQwen35(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.mRope(r)
	s.qwenHybrid(r)
	r.Ignore("mlp_only_layers") // which are all
}

// readQwen35MoE reads those with experts in every layer.
// Source: transformers, configuration_qwen3_5_moe.py and modeling_qwen3_5_moe.py.
func readQwen35MoE(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.mRope(r)
	s.qwenHybrid(r)
	if len(r.IntsOr("mlp_only_layers", nil)) > 0 {
		r.Fail("mlp_only_layers", "every layer has experts")
	}
	r.Require("norm_topk_prob", true)
	experts := s.gatedExperts(r, true)
	s.FeedForwards = slices.Repeat([]nn.FeedForward{experts}, s.Layers)
}

// qwenHybrid reads the mixers of the layers.
func (s *Spec) qwenHybrid(r *hf.ConfigReader) {
	r.Ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings") // of layers that are carried
	s.Outer.Ignore("language_model_only")
	s.Norm.Offset = 1
	a := &s.Attention
	s.Heads(r)
	a.Rope = readPartialRope(r, a.HeadDim)
	a.QKNorm, a.Gated = true, true
	s.Biases(r)
	r.Require("attn_output_gate", true)
	delta := readDelta(r)
	every := r.SizeOr("full_attention_interval", 4)
	types := r.StringsOr("layer_types", nil)
	if types != nil && len(types) != s.Layers {
		r.Fail("layer_types", "it has %d entries, \"num_hidden_layers\" is %d", len(types), s.Layers)
	}
	if r.Err() != nil {
		return
	}
	for l := range s.Layers {
		isFull := (l+1)%every == 0
		if types != nil {
			isFull = types[l] == "full_attention"
			if !isFull && types[l] != "linear_attention" {
				r.Fail("layer_types", "supported are linear_attention, full_attention; layer %d has %.40q", l, types[l])
			}
		}
		if isFull {
			s.Mixers = append(s.Mixers, *a)
		} else {
			s.Mixers = append(s.Mixers, delta)
		}
	}
}

// readDelta reads a gated delta net.
func readDelta(r *hf.ConfigReader) nn.GatedDelta {
	r.Require("linear_conv_kernel_dim", nn.DeltaTaps)
	r.OneOf("output_gate_type", "swish", "swish", "silu")
	r.Require("mamba_ssm_dtype", "float32") // in which states are computed
	d := nn.GatedDelta{KeyHeads: r.Size("linear_num_key_heads"), Heads: r.Size("linear_num_value_heads"),
		KeyDim: r.Size("linear_key_head_dim"), ValueDim: r.Size("linear_value_head_dim")}
	const most = maxWidth / 4 // of queries, of keys, and of values
	switch {
	case r.Err() != nil:
	case d.Heads%d.KeyHeads != 0:
		r.Fail("linear_num_key_heads", "it does not divide \"linear_num_value_heads\" (%d)", d.Heads)
	case d.KeyDim > most/d.KeyHeads:
		r.Fail("linear_num_key_heads", "keys that are together wider than %d are not supported", most)
	case d.ValueDim > most/d.Heads:
		r.Fail("linear_num_value_heads", "values that are together wider than %d are not supported", most)
	case d.KeyDim > most/d.ValueDim:
		r.Fail("linear_key_head_dim", "states of more than %d numbers are not supported", most)
	}
	return d
}

// gatedExperts reads a mixture whose shared expert has a gate.
func (s *Spec) gatedExperts(r *hf.ConfigReader, renormalize bool) nn.Experts {
	r.Ignore("output_router_logits", "router_aux_loss_coef") // of a loss that a run asks for
	return nn.Experts{Inner: limited(r, "moe_intermediate_size", maxWidth), Number: limited(r, either(r, "num_experts",
		"num_local_experts"), maxExperts), Shared: limited(r, "shared_expert_intermediate_size", maxWidth),
		SharedGate: true,
		Route:      device.RouteSpec{TopK: r.Size("num_experts_per_tok"), Renormalize: renormalize, Scale: 1}}
}
