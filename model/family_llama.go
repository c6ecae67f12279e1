package model

import "github.com/millrace/millrace/hf"

// Llama has the names of Llama and of the families that took over its form. The GGUF names are those of llama.cpp,
// whose rotation takes neighbouring rows of a llama's queries and keys for a pair.
var Llama = Names{
	{Role: "embed_tokens.*", HF: "model.embed_tokens.*", GGUF: "token_embd.*"},
	{Role: "sinks", HF: "model.layers.{layer}.self_attn.sinks", GGUF: "blk.{layer}.attn_sinks.weight"},
	{Role: "q.*", HF: "model.layers.{layer}.self_attn.q_proj.*", GGUF: "blk.{layer}.attn_q.*", CutGGUF: Interleaved},
	{Role: "k.*", HF: "model.layers.{layer}.self_attn.k_proj.*", GGUF: "blk.{layer}.attn_k.*", CutGGUF: Interleaved},
	{Role: "v.*", HF: "model.layers.{layer}.self_attn.v_proj.*", GGUF: "blk.{layer}.attn_v.*"},
	{Role: "o.*", HF: "model.layers.{layer}.self_attn.o_proj.*", GGUF: "blk.{layer}.attn_output.*"},
	{Role: "q_norm.*", HF: "model.layers.{layer}.self_attn.q_norm.*", GGUF: "blk.{layer}.attn_q_norm.*"},
	{Role: "k_norm.*", HF: "model.layers.{layer}.self_attn.k_norm.*", GGUF: "blk.{layer}.attn_k_norm.*"},
	{Role: "gate.*", HF: "model.layers.{layer}.mlp.gate_proj.*", GGUF: "blk.{layer}.ffn_gate.*"},
	{Role: "up.*", HF: "model.layers.{layer}.mlp.up_proj.*", GGUF: "blk.{layer}.ffn_up.*"},
	{Role: "down.*", HF: "model.layers.{layer}.mlp.down_proj.*", GGUF: "blk.{layer}.ffn_down.*"},
	{Role: "mixer_norm.*", HF: "model.layers.{layer}.input_layernorm.*", GGUF: "blk.{layer}.attn_norm.*"},
	{Role: "feed_norm.*", HF: "model.layers.{layer}.post_attention_layernorm.*", GGUF: "blk.{layer}.ffn_norm.*"},
	{Role: "norm.*", HF: "model.norm.*", GGUF: "output_norm.*"},
	{Role: "lm_head.*", HF: "lm_head.*", GGUF: "output.*"},
}

// readLlama reads Llama 1 to 3 and what took over their form, such as SmolLM2.
// Source: transformers, configuration_llama.py and modeling_llama.py.
func readLlama(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Biases(r)
	s.GLU.Bias = r.Bool("mlp_bias")

	// Set to 2 or more, transformers sums slices of each product in an order of their own.
	r.Require("pretraining_tp", 1)
	// Written by the conversion of SmolLM2.
	r.Require("is_llama_config", true)
	r.Require("rope_interleaved", false)
}
