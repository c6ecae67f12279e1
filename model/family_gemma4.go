package model

import (
	"math"
	"strconv"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// gemma4Nested is where files with towers have the decoder.
const gemma4Nested = "model.language_model."

// gemma4ScalarInGGUF names the factor of a block's output.
const gemma4ScalarInGGUF = "blk.{layer}.layer_output_scale.weight"

// gemma4Media are the tensors that turn images and sounds into rows of the decoder.
var gemma4Media = []string{"model.vision_tower.*", "model.embed_vision.*", "model.vision_embedder.*",
	"model.audio_tower.*", "model.embed_audio.*"}

// gemma4Mixture are the names of experts next to a dense feed-forward, which keeps the names that it has without them.
var gemma4Mixture = Names{
	{Role: "shared.gate.*", HF: "model.layers.{layer}.mlp.gate_proj.*", GGUF: "blk.{layer}.ffn_gate.*"},
	{Role: "shared.up.*", HF: "model.layers.{layer}.mlp.up_proj.*", GGUF: "blk.{layer}.ffn_up.*"},
	{Role: "shared.down.*", HF: "model.layers.{layer}.mlp.down_proj.*", GGUF: "blk.{layer}.ffn_down.*"},
	{Role: "router.scale", HF: "model.layers.{layer}.router.scale", GGUF: "blk.{layer}.ffn_gate_inp.scale"},
	{Role: "router.factors", HF: "model.layers.{layer}.router.per_expert_scale",
		GGUF: "blk.{layer}.ffn_down_exps.scale"},
	{Role: "router.*", HF: "model.layers.{layer}.router.proj.*", GGUF: "blk.{layer}.ffn_gate_inp.*"},
	{Role: "expert.gate.weight", HF: "model.layers.{layer}.experts.gate_up_proj",
		GGUF: "blk.{layer}.ffn_gate_up_exps.weight", CutHF: Stacked, CutGGUF: Stacked},
	{Role: "expert.up.weight", HF: "model.layers.{layer}.experts.gate_up_proj",
		GGUF: "blk.{layer}.ffn_gate_up_exps.weight", CutHF: Stacked, CutGGUF: Stacked},
	{Role: "expert.down.weight", HF: "model.layers.{layer}.experts.down_proj",
		GGUF: "blk.{layer}.ffn_down_exps.weight", CutHF: Stacked, CutGGUF: Stacked},
	{Role: "shared_post_norm.*", HF: "model.layers.{layer}.post_feedforward_layernorm_1.*",
		GGUF: "blk.{layer}.post_ffw_norm_1.*"},
	{Role: "routed_post_norm.*", HF: "model.layers.{layer}.post_feedforward_layernorm_2.*",
		GGUF: "blk.{layer}.post_ffw_norm_2.*"},
	{Role: "routed_norm.*", HF: "model.layers.{layer}.pre_feedforward_layernorm_2.*",
		GGUF: "blk.{layer}.pre_ffw_norm_2.*"},
}

// gemma4Names has Gemma's names, and those of a mixture and of rows of layers.
var gemma4Names = sandwich.Before("norm.*", gemma4Mixture).Before("norm.*", Names{
	{Role: "layer_rows.gate.*", HF: "model.layers.{layer}.per_layer_input_gate.*", GGUF: "blk.{layer}.inp_gate.*"},
	{Role: "layer_rows.down.*", HF: "model.layers.{layer}.per_layer_projection.*", GGUF: "blk.{layer}.proj.*"},
	{Role: "layer_rows.norm.*", HF: "model.layers.{layer}.post_per_layer_input_norm.*",
		GGUF: "blk.{layer}.post_norm.*"},
}).Before("lm_head.*", Names{
	{Role: "embed_tokens_per_layer.*", HF: "model.embed_tokens_per_layer.*", GGUF: "per_layer_token_embd.*"},
	{Role: "layer_rows.project.*", HF: "model.per_layer_model_projection.*", GGUF: "per_layer_model_proj.*"},
	{Role: "layer_rows.project_norm.*", HF: "model.per_layer_projection_norm.*", GGUF: "per_layer_proj_norm.*"},
})

// readGemma4 reads what all decoders of Gemma 4 have. Four norms in a block stand as in Gemma 3, and have plain
// weights; values are normed too, scores are not scaled, and a block's output is multiplied by a number of its own. The
// layers that see all have heads of another width, of which a part is rotated, and maybe keys for values. The last
// layers may use keys and values of a layer before them.
// Sources: Google, Gemma 4 (2026); transformers, configuration_gemma4.py and modeling_gemma4.py.
func readGemma4(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.EmbedScale = Multiplier{By: math.Sqrt(float64(s.Hidden)), Rounded: true}
	s.SoftCap = softCap(r, "final_logit_softcapping")
	a := &s.Attention
	a.QKNorm, a.VNorm, a.Scale = true, true, 1
	s.Heads(r)
	s.Biases(r)
	keyIsValue := r.Bool("attention_k_eq_v")
	r.OneOf("use_bidirectional_attention", "vision", "vision") // images alone
	shared := r.IntOr("num_kv_shared_layers", 0)
	wide := r.Bool("use_double_wide_mlp")

	s.LayerTypes(r, window(r), func(l int) bool { return (l+1)%6 != 0 })
	if r.Err() != nil {
		return
	}
	s.windows[s.Layers-1] = 0 // whatever the file says, as in transformers
	headDim, kvHeads := gemma4Wide(r, s, keyIsValue)
	full, sliding := gemma4Rope(r, headDim, a.HeadDim)
	s.each(r, nn.Sandwich, func(_ int, a *nn.Attention) {
		a.Rope = sliding
		if a.Window == 0 {
			a.Rope, a.KeyIsValue, a.HeadDim, a.KVHeads = full, keyIsValue, headDim, kvHeads
		}
	})
	for l := range s.Blocks {
		s.Blocks[l].Scalar = true
	}
	gemma4Shared(r, s, shared, wide)
}

// gemma4Shared has the last layers use keys and values of the last layer before them that sees as much, and have
// feed-forwards of twice the width if they are wide.
func gemma4Shared(r *hf.ConfigReader, s *Spec, shared int, wide bool) {
	first := s.Layers - shared
	switch {
	case shared == 0 || r.Err() != nil:
		return
	case shared < 0 || first <= 0:
		r.Fail("num_kv_shared_layers", "of %d layers, 0 to %d may use keys and values of others", s.Layers, s.Layers-1)
		return
	case wide && s.GLU.Inner > maxWidth/2:
		r.Fail("intermediate_size", "more than %d is not supported where some layers have twice as much", maxWidth/2)
		return
	}
	makers := map[int]int{} // by window, the last layer whose keys and values are its own
	for l := range first {
		makers[s.windows[l]] = l
	}
	sides := map[int]int{} // by window
	share := func(l int, role nn.KVRole) {
		a := s.Blocks[l].Mixer.(nn.Attention)
		a.KV = nn.SharedKV{Role: role, Number: sides[s.windows[l]]}
		s.Blocks[l].Mixer = a
	}
	for l := first; l < s.Layers; l++ {
		window := s.windows[l]
		maker, ok := makers[window]
		if !ok {
			r.Fail("num_kv_shared_layers", "layer %d needs keys and values of a layer before %d that sees as much, "+
				"and there is no such layer", l, first)
			return
		}
		if _, ok := sides[window]; !ok {
			sides[window] = s.newSide()
			share(maker, nn.KVGiven)
		}
		share(l, nn.KVTaken)
		if wide {
			g := s.GLU
			g.Inner *= 2
			s.Blocks[l].FeedForward = g
		}
	}
	s.carry("k.weight", "v.weight", "k_norm.weight") // of layers that take them; published files have those, too
	if s.Attention.QKVBias {
		s.carry("k.bias", "v.bias")
	}
}

// readGemma4Text reads a decoder of which each layer may have experts, or may add rows of a second embedding.
func readGemma4Text(c *hf.Config, r *hf.ConfigReader, s *Spec) {
	readGemma4(c, r, s)
	gemma4Experts(r, s)
	cols := r.IntOr("hidden_size_per_layer_input", 0)
	rows := r.IntOr("vocab_size_per_layer_input", s.Vocab)
	switch {
	case cols == 0 || r.Err() != nil:
		return
	case cols < 0 || cols > maxWidth/s.Layers:
		r.Fail("hidden_size_per_layer_input", "0 to %d columns are supported with %d layers", maxWidth/s.Layers,
			s.Layers)
		return
	case rows != s.Vocab:
		r.Fail("vocab_size_per_layer_input", "the second embedding needs as many rows as \"vocab_size\" says, %d",
			s.Vocab)
		return
	}
	side := s.newSide()
	for l := range s.Blocks {
		s.Blocks[l].PerLayer = nn.PerLayer{Inner: cols, Activation: s.GLU.Activation, Number: side}
	}
	s.Blocks[0].PerLayer.Layers = s.Layers
	s.LayerRows = LayerRows{Cols: cols, Side: side, Scale: Multiplier{By: math.Sqrt(float64(cols)), Rounded: true}}
}

// readGemma4Unified reads a decoder of Gemma 4 12B, which has neither experts nor a second embedding.
func readGemma4Unified(c *hf.Config, r *hf.ConfigReader, s *Spec) {
	readGemma4(c, r, s)
	r.Require("hidden_size_per_layer_input", 0)
	r.Require("enable_moe_block", false)
	r.Ignore("vocab_size_per_layer_input", "num_experts", "top_k_experts", "moe_intermediate_size")
}

// gemma4Experts has experts next to the dense feed-forward of each layer, if there are any.
func gemma4Experts(r *hf.ConfigReader, s *Spec) {
	if !r.Bool("enable_moe_block") {
		r.Ignore("num_experts", "top_k_experts", "moe_intermediate_size")
		return
	}
	for _, key := range []string{"num_kv_shared_layers", "hidden_size_per_layer_input"} {
		if r.IntOr(key, 0) != 0 {
			r.Fail(key, "it must be 0 in a model with experts")
		}
	}
	x := nn.Experts{Inner: limited(r, "moe_intermediate_size", maxWidth), Number: limited(r, "num_experts", maxExperts),
		Shared: s.GLU.Inner, Activation: s.GLU.Activation,
		Route: device.RouteSpec{TopK: r.Size("top_k_experts"), Renormalize: true, Scale: 1}}
	if x.Route.TopK > x.Number {
		r.Fail("top_k_experts", "each token has %d experts, and there are %d", x.Route.TopK, x.Number)
	}
	for l := range s.Blocks {
		s.Blocks[l].Rule, s.Blocks[l].FeedForward = nn.Branches, nn.WithDense{Experts: x}
	}
}

// gemma4Wide reads the heads of the layers that see all. Published files have two keys for them; transformers 5.24
// saves them by layer.
func gemma4Wide(r *hf.ConfigReader, s *Spec, keyIsValue bool) (headDim, kvHeads int) {
	headDim, kvHeads = r.SizeOr("global_head_dim", 512), s.Attention.KVHeads
	if n := r.SizeOr("num_global_key_value_heads", kvHeads); keyIsValue {
		kvHeads = n
	}
	each, ok := r.Object("per_layer_config")
	if !ok {
		return headDim, kvHeads
	}
	first := true
	for l, window := range s.windows {
		if window > 0 {
			continue
		}
		dim, heads := s.Attention.HeadDim, s.Attention.KVHeads
		if of, ok := each.Object(strconv.Itoa(l)); ok {
			dim, heads = of.SizeOr("head_dim", dim), of.SizeOr("num_key_value_heads", heads)
		}
		if !first && (dim != headDim || heads != kvHeads) {
			r.Fail("per_layer_config", "layers with full attention differ in their heads, which is not supported")
		}
		headDim, kvHeads, first = dim, heads, false
	}
	return headDim, kvHeads
}

// gemma4Rope reads the rotary embeddings of layers with full attention, whose heads have a width of their own, and of
// those with a window.
func gemma4Rope(r *hf.ConfigReader, wide, headDim int) (full, sliding nn.RopeFrequencies) {
	full = nn.RopeFrequencies{HeadDim: wide, Theta: 1e6, Kind: nn.RopeProportional, Factor: 1}
	sliding = nn.RopeFrequencies{HeadDim: headDim, Theta: 1e4}
	part, at := 0.25, r
	if params, ok := r.Object("rope_parameters"); ok {
		if of, ok := params.Object("sliding_attention"); ok {
			readTheta(r, of, "rope_theta", &sliding)
			readScaling(r, of, &sliding)
		}
		of, ok := params.Object("full_attention")
		switch {
		case !ok:
		case of.StringOr("rope_type", "default") != nn.RopeProportional.String():
			full = nn.RopeFrequencies{HeadDim: wide}
			readTheta(r, of, "rope_theta", &full)
			readScaling(r, of, &full)
			return full, sliding
		default:
			full.Theta, full.Factor = of.Positive("rope_theta", full.Theta), of.Positive("factor", 1)
			part, at = of.Positive("partial_rotary_factor", 1), of
		}
	}
	full.Rotated = 2 * int(min(part*float64(wide)/2, maxWidth))
	if r.Err() == nil && (full.Rotated > wide || full.Rotated == 0) {
		at.Fail("partial_rotary_factor", "of heads of width %d that is %d columns, and 2 to all of them are rotated",
			wide, full.Rotated)
	}
	return full, sliding
}

// beyondText reads as read does, and leaves what config.json says of images and sounds, which rows of text do not need.
func beyondText(read func(*hf.Config, *hf.ConfigReader, *Spec)) func(*hf.Config, *hf.ConfigReader, *Spec) {
	return func(c *hf.Config, r *hf.ConfigReader, s *Spec) {
		read(c, r, s)
		s.Outer.Ignore("vision_config", "audio_config", "vision_soft_tokens_per_image", "boi_token_id", "eoi_token_id",
			"image_token_id", "video_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index", "audio_token_id",
			"boi_token_index", "eoi_token_index", "boa_token_index")
	}
}
