package model

import (
	"math"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// gpt2 has the names of GPT-2. Its matrices are [columns, rows], and the queries, keys and values are one of them.
var gpt2 = Names{
	{Role: "embed_tokens.*", HF: "transformer.wte.*", GGUF: "token_embd.*"},
	{Role: "positions.*", HF: "transformer.wpe.*", GGUF: "position_embd.*"},
	{Role: "mixer_norm.*", HF: "transformer.h.{layer}.ln_1.*", GGUF: "blk.{layer}.attn_norm.*"},
	{Role: "q.*", HF: "transformer.h.{layer}.attn.c_attn.*", CutHF: Transposed, GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "k.*", HF: "transformer.h.{layer}.attn.c_attn.*", CutHF: Transposed, GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "v.*", HF: "transformer.h.{layer}.attn.c_attn.*", CutHF: Transposed, GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "o.*", HF: "transformer.h.{layer}.attn.c_proj.*", CutHF: Transposed, GGUF: "blk.{layer}.attn_output.*"},
	{Role: "feed_norm.*", HF: "transformer.h.{layer}.ln_2.*", GGUF: "blk.{layer}.ffn_norm.*"},
	{Role: "up.*", HF: "transformer.h.{layer}.mlp.c_fc.*", CutHF: Transposed, GGUF: "blk.{layer}.ffn_up.*"},
	{Role: "down.*", HF: "transformer.h.{layer}.mlp.c_proj.*", CutHF: Transposed, GGUF: "blk.{layer}.ffn_down.*"},
	{Role: "norm.*", HF: "transformer.ln_f.*", GGUF: "output_norm.*"},
	{Role: "lm_head.*", HF: "lm_head.*", GGUF: "output.*"},
}

// gpt2Base begins the names of tensors, and is not in the files of GPT-2 as published.
const gpt2Base = "transformer."

// gpt2Buffers are masks that early files have with the weights. transformers makes its own.
var gpt2Buffers = []string{gpt2Base + "h.*.attn.bias", gpt2Base + "h.*.attn.masked_bias"}

// gpt2Keys are those of transformers (attribute_map of configuration_gpt2.py), and the width of the feed-forward.
var gpt2Keys = map[string]string{"hidden_size": "n_embd", "max_position_embeddings": "n_positions",
	"num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "intermediate_size": "n_inner"}

// readGPT2 reads GPT-2 and what took over its form, such as DialoGPT and Cerebras-GPT: learned positions, layer norms
// and products with biases, and a plain MLP. Source: transformers, configuration_gpt2.py and modeling_gpt2.py.
func readGPT2(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Norm.Bias, s.GLU.Bias = true, true
	if s.GLU.Inner == 0 && s.Hidden > 0 {
		if s.GLU.Inner = 4 * s.Hidden; s.GLU.Inner > maxWidth {
			r.Fail("hidden_size", "a feed-forward of 4 times as many columns is wider than %d", maxWidth)
		}
	}
	limited(r, "max_position_embeddings", maxWidth)
	a := &s.Attention
	if r.Err() == nil && s.Hidden%a.Heads != 0 {
		r.Fail("num_attention_heads", "it does not divide \"n_embd\" (%d)", s.Hidden)
	}
	a.KVHeads, a.HeadDim, a.QKVBias, a.OutBias = a.Heads, s.Hidden/max(a.Heads, 1), true, true
	r.Require("scale_attn_weights", true)
	byLayer := r.Bool("scale_attn_by_inverse_layer_idx")
	s.each(r, nn.Pre, func(layer int, a *nn.Attention) {
		if byLayer {
			a.Scale = float32(1 / math.Sqrt(float64(a.HeadDim)) / float64(layer+1))
		}
	})
	if len(s.Blocks) > 0 {
		s.Blocks[0].Positions = s.Positions
	}
	r.Ignore("attn_pdrop", "embd_pdrop", "resid_pdrop") // no family has dropout here
	r.Ignore("reorder_and_upcast_attn")                 // scores are in fp32
	r.Ignore("n_ctx")                                   // an older name of n_positions
	r.Ignore("n_special", "predict_special_tokens")     // of the files before transformers
	r.Ignore("_num_labels", "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
		"summary_proj_to_labels") // of other heads
}
