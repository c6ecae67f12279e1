package model_test

import (
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
)

// TestPublicModels reads config.json as it is published with well-known models; their numbers of parameters are known.
// Those of GPT-2 and DeepSeek-V2 were written down from memory: their shapes and parameters are those of the models, and
// other keys were not compared with the files.
func TestPublicModels(t *testing.T) {
	for _, c := range []struct {
		name   string
		params int64
		config string
	}{
		{"SmolLM2-135M", 134515008, `{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
			"eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
			"is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9,
			"num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
			"rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
			"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}, "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152}`},
		{"Llama-3.2-1B", 1235814400, `{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
			"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
			"initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
			"num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
			"rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
			"rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256}`},
		{"Mistral-7B-v0.1", 7241732096, `{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
			"hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
			"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
			"sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000}`},
		{"Qwen2.5-0.5B", 494032768, `{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
			"hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
			"max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
			"rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
			"transformers_version": "4.40.1", "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936}`},
		{"Qwen3-0.6B", 596049920, `{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
			"eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
			"max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
			"num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
			"tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936}`},
		{"gpt2", 124439808, `{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
			"attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
			"initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
			"n_head": 12, "n_layer": 12, "n_positions": 1024,
			"resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
			"summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
			"task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257}`},
		{"gpt2-medium", 354823168, `{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
			"attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
			"initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1024,
			"n_head": 16, "n_layer": 24, "n_positions": 1024, "n_special": 0,
			"predict_special_tokens": true, "resid_pdrop": 0.1,
			"summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
			"summary_type": "cls_index", "summary_use_proj": true, "vocab_size": 50257,
			"task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}}`},
		{"DeepSeek-V2-Lite and Coder-V2-Lite", 15706484224, `{"architectures": ["DeepseekV2ForCausalLM"],
			"attention_bias": false, "attention_dropout": 0.0,
			"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
			"aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001, "ep_size": 1,
			"first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
			"intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
			"model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
			"n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
			"num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
			"q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
			"rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
			"original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
			"routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false,
			"topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
			"transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 102400}`},
		{"DeepSeek-V2 and Coder-V2", 235741434880, `{"architectures": ["DeepseekV2ForCausalLM"],
			"attention_bias": false, "attention_dropout": 0.0,
			"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
			"aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001, "ep_size": 1,
			"first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
			"intermediate_size": 12288, "kv_lora_rank": 512, "max_position_embeddings": 163840,
			"model_type": "deepseek_v2", "moe_intermediate_size": 1536, "moe_layer_freq": 1, "n_group": 8,
			"n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 128,
			"num_experts_per_tok": 6, "num_hidden_layers": 60, "num_key_value_heads": 128, "pretraining_tp": 1,
			"q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
			"rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
			"original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
			"routed_scaling_factor": 16.0, "scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false,
			"topk_group": 3, "topk_method": "group_limited_greedy", "torch_dtype": "bfloat16",
			"transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 102400}`},
	} {
		doc, err := hf.ParseConfig(c.name, []byte(c.config))
		check(t, err)
		m, err := model.New(doc)
		check(t, err)
		all, _ := m.Params()
		if all != c.params {
			t.Errorf("%s has %d parameters, want %d", c.name, all, c.params)
		}
		t.Logf("%s: %d tiles of %d rows, %d parts", c.name, m.Head.Tiles(), m.Head.TileRows, len(m.Parts))
	}
}
