package model

import (
	"math"
	"strconv"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// gemma4Nested is where files with towers have the decoder.
const gemma4Nested = "model.language_model."

// What published files of Gemma 4 may leave out. Sources: transformers, configuration_gemma4.py and
// configuration_gemma4_unified.py.
var (
	gemma4Defaults = map[string]any{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
		"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262144,
		"max_position_embeddings": 131072, "tie_word_embeddings": true, "sliding_window": 512,
		"hidden_size_per_layer_input": 256}
	gemma4UnifiedDefaults = map[string]any{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
		"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262144,
		"max_position_embeddings": 262144, "tie_word_embeddings": true, "sliding_window": 1024}
)

// gemma4Media are the tensors that turn images and sounds into rows of the decoder.
var gemma4Media = []string{"model.vision_tower.*", "model.embed_vision.*", "model.vision_embedder.*",
	"model.audio_tower.*", "model.embed_audio.*"}

// readGemma4 reads the decoder of Gemma 4 without what crosses its blocks. Four norms in a block stand as in Gemma 3,
// and have plain weights; values are normed too, scores are not scaled, and a block's output is multiplied by a
// number of its own. The layers that see all have heads of another width, of which a part is rotated, and maybe keys
// for values.
// Sources: Google, Gemma 4 (2026); transformers, configuration_gemma4.py and modeling_gemma4.py.
func readGemma4(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.EmbedScale = Multiplier{By: math.Sqrt(float64(s.Hidden)), Rounded: true}
	s.SoftCap = softCap(r, "final_logit_softcapping", 0)
	a := &s.Attention
	a.QKNorm, a.VNorm, a.Scale = true, true, 1
	a.KVHeads, a.HeadDim = r.Size("num_key_value_heads"), r.Size("head_dim")
	bias := r.BoolOr("attention_bias", false)
	a.QKVBias, a.OutBias = bias, bias
	keyIsValue := r.BoolOr("attention_k_eq_v", false)
	r.OneOf("use_bidirectional_attention", "vision", "vision") // images alone
	gemma4Refused(r)

	s.LayerTypes(r, r.Size("sliding_window"), func(l int) bool { return (l+1)%6 != 0 })
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
}

// gemma4Refused refuses what a block would need from others: keys and values, and rows of a second embedding; and what
// is not there yet.
func gemma4Refused(r *hf.ConfigReader) {
	if n := r.IntOr("num_kv_shared_layers", 0); n != 0 {
		r.Fail("num_kv_shared_layers", "layers that use keys and values of other layers (Gemma 4 E2B and E4B) are not "+
			"supported: choose a larger Gemma 4")
	}
	if n := r.IntOr("hidden_size_per_layer_input", 0); n != 0 {
		r.Fail("hidden_size_per_layer_input", "embeddings of each layer (Gemma 4 E2B and E4B) are not supported: "+
			"choose a larger Gemma 4")
	}
	if r.BoolOr("enable_moe_block", false) {
		r.Fail("enable_moe_block", "experts next to a dense feed-forward (Gemma 4 26B-A4B) are not supported: "+
			"choose a dense Gemma 4")
	}
	r.Ignore("vocab_size_per_layer_input", "use_double_wide_mlp", "num_experts", "top_k_experts",
		"moe_intermediate_size")
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

// readGemma4Media reads Gemma 4 with what it has for images and sounds, of which rows of text have no need.
func readGemma4Media(c *hf.Config, r *hf.ConfigReader, s *Spec) {
	readGemma4(c, r, s)
	s.Outer.Ignore("vision_config", "audio_config", "vision_soft_tokens_per_image", "boi_token_id", "eoi_token_id",
		"image_token_id", "video_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index", "audio_token_id",
		"boi_token_index", "eoi_token_index", "boa_token_index")
}
