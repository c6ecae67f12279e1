package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// gptNeoX is the table of GPT-NeoX. The queries, keys and values of a head stand together, and a part of a head is
// rotated.
var gptNeoX = Names{
	{Role: "embed_tokens.*", HF: "gpt_neox.embed_in.*", GGUF: "token_embd.*"},
	{Role: "mixer_norm.*", HF: "gpt_neox.layers.{layer}.input_layernorm.*", GGUF: "blk.{layer}.attn_norm.*"},
	{Role: "feed_norm.*", HF: "gpt_neox.layers.{layer}.post_attention_layernorm.*", GGUF: "blk.{layer}.ffn_norm.*"},
	{Role: "q.*", HF: "gpt_neox.layers.{layer}.attention.query_key_value.*", CutHF: ByHead | PartlyRotated,
		GGUF: "blk.{layer}.attn_qkv.*", CutGGUF: PartlyRotated},
	{Role: "k.*", HF: "gpt_neox.layers.{layer}.attention.query_key_value.*", CutHF: ByHead | PartlyRotated,
		GGUF: "blk.{layer}.attn_qkv.*", CutGGUF: PartlyRotated},
	{Role: "v.*", HF: "gpt_neox.layers.{layer}.attention.query_key_value.*", CutHF: ByHead,
		GGUF: "blk.{layer}.attn_qkv.*"},
	{Role: "o.*", HF: "gpt_neox.layers.{layer}.attention.dense.*", GGUF: "blk.{layer}.attn_output.*"},
	{Role: "up.*", HF: "gpt_neox.layers.{layer}.mlp.dense_h_to_4h.*", GGUF: "blk.{layer}.ffn_up.*"},
	{Role: "down.*", HF: "gpt_neox.layers.{layer}.mlp.dense_4h_to_h.*", GGUF: "blk.{layer}.ffn_down.*"},
	{Role: "norm.*", HF: "gpt_neox.final_layer_norm.*", GGUF: "output_norm.*"},
	{Role: "lm_head.*", HF: "embed_out.*", GGUF: "output.*"},
}

// gptNeoXBuffers are masks that early files have with the weights. transformers makes its own.
var gptNeoXBuffers = []string{"gpt_neox.layers.*.attention.bias", "gpt_neox.layers.*.attention.masked_bias"}

// readGPTNeoX reads GPT-NeoX, Pythia and what took over their form: layer norms with biases, a plain MLP, and halves
// that are parallel, each with a norm of its own, unless the configuration says otherwise.
// Source: transformers, configuration_gpt_neox.py and modeling_gpt_neox.py.
func readGPTNeoX(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Norm.Bias, s.GLU.Bias = true, true
	a := &s.Attention
	a.KVHeads = a.Heads
	s.HeadDim(r)
	// Before transformers 5 both have names of their own, and rope_theta means nothing.
	theta, part := r.Positive("rotary_emb_base", defaultTheta), r.Positive("rotary_pct", r.Positive(partialKey, 0))
	if base := r.FloatOr("rope_theta", 0); base != theta && !r.Has("rotary_emb_base") && !r.Has("rope_parameters") {
		r.Fail("rope_theta", "transformers takes no notice of it in GPT-NeoX: call it rotary_emb_base, or remove it")
	}
	a.Rope = ropeWith(r, a.HeadDim, theta, part)
	s.Biases(r)
	rule := nn.Pre
	if r.Bool("use_parallel_residual") {
		rule = nn.ParallelNorms
	}
	s.each(r, rule, nil)
	r.Require("hidden_dropout", 0.0)
	r.Require("hidden_dropout_prob", 0.0)          // of gpt-neox-20b, as the next one
	r.Require("attention_probs_dropout_prob", 0.0) // transformers reads neither
	r.Ignore("classifier_dropout")                 // of another head
}
