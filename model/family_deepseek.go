package model

import (
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// latentMoE has the names of GLM's mixtures, and those of latent attention. The pairs of what is rotated of a head are
// neighbours, in checkpoints and in GGUF files.
var latentMoE = slices.Concat(qwenMoE.Without("q.*", "k.*", "v.*", "q_norm.*", "k_norm.*").Before("o.*", Names{
	{Role: "q.*", HF: "model.layers.{layer}.self_attn.q_proj.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_q.*", CutGGUF: ByHead},
	{Role: "q_rope.*", HF: "model.layers.{layer}.self_attn.q_proj.*", CutHF: ByHead | Interleaved,
		GGUF: "blk.{layer}.attn_q.*", CutGGUF: ByHead | Interleaved},
	{Role: "q_a.*", HF: "model.layers.{layer}.self_attn.q_a_proj.*", GGUF: "blk.{layer}.attn_q_a.*"},
	{Role: "q_a_norm.*", HF: "model.layers.{layer}.self_attn.q_a_layernorm.*", GGUF: "blk.{layer}.attn_q_a_norm.*"},
	{Role: "q_b.*", HF: "model.layers.{layer}.self_attn.q_b_proj.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_q_b.*", CutGGUF: ByHead},
	{Role: "q_b_rope.*", HF: "model.layers.{layer}.self_attn.q_b_proj.*", CutHF: ByHead | Interleaved,
		GGUF: "blk.{layer}.attn_q_b.*", CutGGUF: ByHead | Interleaved},
	{Role: "kv_a.*", HF: "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_kv_a_mqa.*", CutGGUF: ByHead},
	{Role: "k_rope.*", HF: "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.*", CutHF: ByHead | Interleaved,
		GGUF: "blk.{layer}.attn_kv_a_mqa.*", CutGGUF: ByHead | Interleaved},
	{Role: "kv_a_norm.*", HF: "model.layers.{layer}.self_attn.kv_a_layernorm.*", GGUF: "blk.{layer}.attn_kv_a_norm.*"},
	{Role: "k_b.*", HF: "model.layers.{layer}.self_attn.kv_b_proj.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_k_b.*", CutGGUF: PerHead | Transposed},
	{Role: "v_b.*", HF: "model.layers.{layer}.self_attn.kv_b_proj.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_v_b.*", CutGGUF: PerHead},
}), glmShared)

// readDeepSeekV3 reads DeepSeek-V3 and what took over its form, such as Moonlight and Kimi K2: latent attention, dense
// layers first, and GLM's experts. Source: transformers, configuration_deepseek_v3.py and modeling_deepseek_v3.py.
func readDeepSeekV3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.latentAttention(r)
	r.OneOf("scoring_func", "sigmoid", "sigmoid")
	r.OneOf("topk_method", "noaux_tc", "noaux_tc")
	s.deepseekLayers(r, s.correctedExperts(r))
}

// readDeepSeekV2 reads DeepSeek-V2, V2-Lite and Coder-V2: a softmax without a correction, of all experts or of the
// groups with the best ones. Source: transformers, configuration_deepseek_v2.py and modeling_deepseek_v2.py.
func readDeepSeekV2(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.latentAttention(r)
	r.OneOf("scoring_func", "softmax", "softmax")
	r.Require("norm_topk_prob", false)
	experts := s.sharedExperts(r)
	experts.Route = device.RouteSpec{TopK: r.Size("num_experts_per_tok"),
		Scale: float32(r.Positive("routed_scaling_factor", 0))}
	if r.OneOf("topk_method", "greedy", "greedy", "group_limited_greedy") == "group_limited_greedy" {
		route := &experts.Route
		route.Groups, route.TopGroups, route.ByBest = r.Size("n_group"), r.Size("topk_group"), true
	}
	r.Ignore("n_group", "topk_group") // which the other method does not read
	s.deepseekLayers(r, experts)
}

// readGLM4MoELite reads GLM-4.7-Flash: DeepSeek-V3's layers under other names of settings.
// Source: transformers, configuration_glm4_moe_lite.py and modeling_glm4_moe_lite.py.
func readGLM4MoELite(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.latentAttention(r)
	r.OneOf("topk_method", "noaux_tc", "noaux_tc")
	experts := s.correctedExperts(r)
	types := r.StringsOr("mlp_layer_types", nil)
	if types == nil {
		r.Require("first_k_dense_replace", 1)
		s.denseFirst(1, experts)
		return
	}
	r.Ignore("first_k_dense_replace") // the list says it
	if len(types) != s.Layers {
		r.Fail("mlp_layer_types", "it has %d entries, \"num_hidden_layers\" is %d", len(types), s.Layers)
	}
	for l, t := range types {
		switch t {
		case "dense":
			s.FeedForwards = append(s.FeedForwards, s.GLU)
		case "sparse":
			s.FeedForwards = append(s.FeedForwards, experts)
		default:
			r.Fail("mlp_layer_types", "supported are dense, sparse; layer %d has %.40q", l, t)
		}
	}
}

// deepseekLayers reads which layers have experts.
func (s *Spec) deepseekLayers(r *hf.ConfigReader, experts nn.Experts) {
	r.Require("moe_layer_freq", 1)
	r.Ignore("aux_loss_alpha", "seq_aux") // of a loss that a run asks for
	r.Ignore("ep_size")                   // how experts are spread over GPUs
	s.denseFirst(r.Int("first_k_dense_replace"), experts)
}

// latentAttention reads latent attention, for every layer.
func (s *Spec) latentAttention(r *hf.ConfigReader) {
	const most = maxWidth / 2 // of all heads' queries, of keys, of values, and of latents
	width := func(key string) int {
		n := r.Size(key)
		if n > most/max(s.Attention.Heads, 1) {
			r.Fail(key, "heads that are together wider than %d are not supported", most)
		}
		return n
	}
	r.FP8()
	bias := r.Bool("attention_bias")
	l := nn.LatentAttention{Heads: s.Attention.Heads, QueryRank: r.IntOr("q_lora_rank", 0),
		KeyRank: r.Size("kv_lora_rank"), Plain: width("qk_nope_head_dim"),
		Rotated: width("qk_rope_head_dim"), ValueDim: width("v_head_dim"), Eps: 1e-6,
		OutBias: bias, InBias: bias}
	heads := l.Plain + l.Rotated
	r.Require("num_key_value_heads", l.Heads)
	r.Require("head_dim", l.Rotated) // as transformers 5 writes them
	r.Require("qk_head_dim", heads)
	r.Require("rope_interleave", true)
	r.Require("pretraining_tp", 1)
	r.Require("mlp_bias", false)
	switch {
	case r.Err() != nil:
		return
	case r.HasValue("q_lora_rank") && l.QueryRank < 1 || l.QueryRank > most:
		r.Fail("q_lora_rank", "it is from 1 to %d; without one it is null", most)
	case l.KeyRank > most:
		r.Fail("kv_lora_rank", "more than %d is not supported", most)
	case l.Rotated%2 != 0:
		r.Fail("qk_rope_head_dim", "rotary positions need an even one")
	case l.ValueDim > heads:
		r.Fail("v_head_dim", "values that are wider than keys (%d) are not supported", heads)
	}
	l.Rope = readRope(r, l.Rotated)
	l.Scale = float32(math.Pow(float64(heads), -0.5) * latentScale(r, l.Rope.Factor))
	s.Mixers = slices.Repeat([]nn.Mixer{l}, s.Layers)
}

// latentScale is the factor of scores of a model whose rotary frequencies are stretched by a factor.
func latentScale(r *hf.ConfigReader, factor float64) float64 {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		o, ok := r.Object(key)
		if !ok || o.StringOr("rope_type", o.StringOr("type", "default")) == "default" {
			continue
		}
		if all := o.FloatOr("mscale_all_dim", 0); all != 0 && factor > 1 {
			by := 0.1*all*math.Log(factor) + 1
			if !(by > 0 && by <= 1e6) {
				o.Fail("mscale_all_dim", "scores would be multiplied by the square of %g", by)
			}
			return by * by
		}
	}
	return 1
}
