package model

import (
	"math"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// sandwich has Qwen's names; both the inputs and the results of a block's halves are normed.
var sandwich = qwen.Without("feed_norm.*").Before("norm.*", resultNorms).Before("feed_post_norm.*", Names{
	{Role: "feed_norm.*", HF: "model.layers.{layer}.pre_feedforward_layernorm.*", GGUF: "blk.{layer}.ffn_norm.*"},
})

// gemma is the same with norms to whose weights the model adds 1.
var gemma = sandwich.HeldAs(PlusOne, "q_norm.*", "k_norm.*", "mixer_norm.*", "mixer_post_norm.*", "feed_norm.*",
	"feed_post_norm.*", "norm.*")

// gemma3 is the table of files that have a vision tower, too.
var gemma3 = gemma.Under("language_model.model.").Renamed(Names{{Role: "lm_head.*", HF: "language_model.lm_head.*",
	GGUF: "output.*"}})

// gemma3Images are the tensors of the vision tower and of its projector, in the files of transformers 4 and of 5.
var gemma3Images = []string{"vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*",
	"model.multi_modal_projector.*"}

// readGemma reads what Gemma 2 and 3 share: norms whose weights are less by 1, four of them in a block, gates of GELU,
// an embedding that is multiplied, scores of queries with a scale of their own, and a bias on all projections or none.
func readGemma(r *hf.ConfigReader, s *Spec) {
	s.Norm.Offset = 1
	s.EmbedScale = Multiplier{By: math.Sqrt(float64(s.Hidden)), Rounded: true}
	a := &s.Attention
	s.Heads(r)
	a.Scale = float32(1 / math.Sqrt(r.Positive("query_pre_attn_scalar", 0)))
	s.Biases(r)
	r.Require("use_bidirectional_attention", false)
	r.Ignore("cache_implementation") // for serving
}

// softCap reads a limit of scores or of logits; none if the key has no value.
func softCap(r *hf.ConfigReader, key string) float32 {
	if !r.HasValue(key) {
		r.Ignore(key)
		return 0
	}
	return float32(r.Positive(key, 0))
}

// readGemma2 reads Gemma 2: soft caps, and a window in every second layer, the first one included.
// Sources: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size" (2024); transformers,
// configuration_gemma2.py and modeling_gemma2.py.
func readGemma2(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	readGemma(r, s)
	s.Rotary(r)
	s.Attention.SoftCap = softCap(r, "attn_logit_softcapping")
	s.SoftCap = softCap(r, "final_logit_softcapping")
	s.LayerTypes(r, window(r),
		func(l int) bool { return l%2 == 0 })
	s.each(r, nn.Sandwich, nil)
}

// readGemma3 reads the decoder of Gemma 3: norms of each head's query and key, and a window in five layers of six, with
// a rotary base of its own. Sources: Gemma Team, "Gemma 3 Technical Report" (2025); transformers,
// configuration_gemma3.py and modeling_gemma3.py.
func readGemma3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	readGemma(r, s)
	s.Attention.QKNorm = true
	s.SoftCap = softCap(r, "final_logit_softcapping")
	if r.Has("attn_logit_softcapping") {
		r.Fail("attn_logit_softcapping", "transformers takes no notice of it in Gemma 3: remove it")
	}
	full, sliding := readRopeByType(r, s.Attention.HeadDim, "rope_local_base_freq")
	every := r.SizeOr("sliding_window_pattern", r.SizeOr("_sliding_window_pattern", 6))
	s.LayerTypes(r, window(r),
		func(l int) bool { return (l+1)%every != 0 })
	s.each(r, nn.Sandwich, func(_ int, a *nn.Attention) {
		a.Rope = full
		if a.Window > 0 {
			a.Rope = sliding
		}
	})
}

// readGemma3Images reads Gemma 3 with its vision tower, of which rows of text have no need.
func readGemma3Images(c *hf.Config, r *hf.ConfigReader, s *Spec) {
	readGemma3(c, r, s)
	s.Outer.Ignore("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index",
		"boi_token_id", "eoi_token_id", "image_token_id")
}
