"""Small random models of each family, with the tokenizers of the tests, for check.py and converter.py."""
import json
import struct

import numpy as np
from tokenizers import Tokenizer

BASE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "torch_dtype": "float32"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 256,
        "head_dim": 64, "sliding_window": 16, "attention_bias": True, "swiglu_limit": 7.0}
GLM = {"model_type": "glm4_moe", "n_routed_experts": 12, "n_shared_experts": 1, "num_experts_per_tok": 4,
        "moe_intermediate_size": 256, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5, "attention_bias": True, "use_qk_norm": True}
GEMMA = {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32, "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False, "tie_word_embeddings": True}
GEMMA3 = {**GEMMA, "model_type": "gemma3_text", "num_hidden_layers": 7, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
GEMMA4 = {"model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 32, "global_head_dim": 64,
        "sliding_window": 16, "rope_theta": None, "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False, "tie_word_embeddings": True, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": False,
        "layer_types": ["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
            "partial_rotary_factor": 0.25}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
# As E2B: layers 5 to 7 use keys and values of layers 3 and 4, and each layer adds rows of a second embedding.
GEMMA4_SHARED = {**GEMMA4, "num_hidden_layers": 8, "num_kv_shared_layers": 3, "attention_k_eq_v": False,
        "num_global_key_value_heads": None, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32,
        "layer_types": ["sliding_attention" if layer in (0, 1, 3, 5) else "full_attention" for layer in range(8)]}
DELTA = {"rms_norm_eps": 1e-6, "num_hidden_layers": 4, "head_dim": 64, "partial_rotary_factor": 0.25,
        "attention_bias": False, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4}
NEOX = {"model_type": "gpt_neox", "layer_norm_eps": 1e-5, "rms_norm_eps": None, "rope_theta": None,
        "num_key_value_heads": None, "rotary_emb_base": 10000, "hidden_act": "gelu", "tie_word_embeddings": False}
LATENT = {"model_type": "deepseek_v3", "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 128,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 48, "n_routed_experts": 12, "n_shared_experts": 1,
        "num_experts_per_tok": 4, "moe_intermediate_size": 256, "first_k_dense_replace": 1, "n_group": 4,
        "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "rms_norm_eps": 1e-6, "attention_bias": False}
GPT2 = {"model_type": "gpt2", "layer_norm_epsilon": 1e-5, "rms_norm_eps": None, "rope_theta": None, "hidden_act": None,
        "num_key_value_heads": None, "activation_function": "gelu_new", "n_ctx": 2048, "intermediate_size": 1024}
MINISTRAL = {**YARN, "rope_theta": 1e6, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1}
FAMILIES = {
    "llama, biases": ("llama3", {"model_type": "llama", "attention_bias": True, "mlp_bias": True}),
    "llama, rope llama3": ("llama3", {"model_type": "llama", "rope_scaling": LLAMA3}),
    "llama, rope linear": ("smollm2", {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "tie_word_embeddings": True}),
    "llama, SentencePiece": ("llama2", {"model_type": "llama"}),
    "llama, SentencePiece, no prefix": ("gemma", {"model_type": "llama"}),
    "mistral": ("gpt2", {"model_type": "mistral", "head_dim": 32, "sliding_window": None}),
    "qwen2": ("qwen2", {"model_type": "qwen2", "use_sliding_window": False}),
    "qwen3": ("qwen2", {"model_type": "qwen3", "head_dim": 32, "use_sliding_window": False, "attention_bias": False}),
    "mixtral": ("gpt2", {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
            "intermediate_size": 256}),
    "mixtral, narrow heads": ("llama2", {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 3,
            "intermediate_size": 96, "head_dim": 24}),
    "mixtral, 4 experts": ("llama3", {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
            "intermediate_size": 256, "rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "qwen3_moe": ("qwen2", {"model_type": "qwen3_moe", "head_dim": 32, "use_sliding_window": False,
            "attention_bias": False,
            "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "norm_topk_prob": True,
            "num_hidden_layers": 9}),
    "qwen3_moe, narrow experts": ("qwen2", {"model_type": "qwen3_moe", "head_dim": 64, "use_sliding_window": False,
            "attention_bias": False, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
            "norm_topk_prob": True, "tie_word_embeddings": True}),
    "qwen3_moe, 8 experts": ("qwen2", {"model_type": "qwen3_moe", "head_dim": 32, "use_sliding_window": False,
            "attention_bias": False, "num_experts": 8, "num_experts_per_tok": 8, "moe_intermediate_size": 128,
            "norm_topk_prob": True}),
    "llama, yarn": ("smollm2", {"model_type": "llama", "rope_scaling": YARN}),
    "llama, yarn, attention factor": ("smollm2", {"model_type": "llama", "rope_scaling": {**YARN,
            "attention_factor": 0.7}}),
    "mixtral, yarn": ("gpt2", {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
            "intermediate_size": 256, "rope_scaling": YARN}),
    "qwen2, yarn": ("qwen2", {"model_type": "qwen2", "use_sliding_window": False, "rope_scaling": YARN}),
    "qwen3, yarn": ("qwen2", {"model_type": "qwen3", "head_dim": 32, "use_sliding_window": False,
            "attention_bias": False, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}}),
    "qwen3_moe, yarn": ("qwen2", {"model_type": "qwen3_moe", "head_dim": 32, "use_sliding_window": False,
            "attention_bias": False, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
            "norm_topk_prob": True, "rope_scaling": YARN}),
    "gpt_oss": ("qwen2", GPT_OSS),
    "gpt_oss, yarn": ("qwen2", {**GPT_OSS, "num_local_experts": 5, "rope_scaling": {**YARN, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": True}}),
    "gpt_oss, narrow experts": ("llama3", {**GPT_OSS, "num_experts_per_tok": 1, "intermediate_size": 96, "head_dim": 32,
            "num_hidden_layers": 5, "rope_scaling": YARN}),
    "glm4_moe": ("llama3", GLM),
    "glm4_moe, groups, yarn": ("qwen2", {**GLM, "n_group": 4, "topk_group": 2, "rope_scaling": YARN}),
    "glm4_moe, no norms": ("llama3", {**GLM, "n_shared_experts": 2, "first_k_dense_replace": 2, "num_hidden_layers": 5,
            "moe_intermediate_size": 96, "norm_topk_prob": False, "routed_scaling_factor": 1.0, "attention_bias": False,
            "use_qk_norm": False, "partial_rotary_factor": 0.25, "tie_word_embeddings": True}),
    "smollm3": ("smollm2", {"model_type": "smollm3", "num_hidden_layers": 9, "tie_word_embeddings": True}),
    "seed_oss": ("qwen2", {"model_type": "seed_oss", "head_dim": 48, "attention_bias": True,
            "attention_out_bias": False, "mlp_bias": False, "tie_word_embeddings": False}),
    "glm4": ("llama3", {"model_type": "glm4", "head_dim": 64, "attention_bias": True, "partial_rotary_factor": 0.5}),
    "glm4, a quarter": ("qwen2", {"model_type": "glm4", "head_dim": 32, "attention_bias": False,
            "partial_rotary_factor": 0.25, "tie_word_embeddings": True}),
    # llama.cpp looks for tokens of Phi-3 in models whose names have "phi3" in them.
    "phi": ("smollm2", {"model_type": "phi3", "sliding_window": None}),
    "phi, longrope": ("llama3", {"model_type": "phi3", "sliding_window": None, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 1024, "rope_scaling": {"type": "longrope",
            "short_factor": [1 + i / 16 for i in range(24)], "long_factor": [1.0 + i for i in range(24)]}}),
    "olmo2": ("gpt2", {"model_type": "olmo2", "attention_bias": False}),
    "gemma3": ("gemma", GEMMA3),
    "gemma3, caps, linear": ("qwen2", {**GEMMA3, "num_hidden_layers": 6, "final_logit_softcapping": 1.5,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gemma3, images": ("gemma", {**GEMMA3, "model_type": "gemma3"}),
    "gemma2": ("gemma", {**GEMMA, "model_type": "gemma2", "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5}),
    "granite": ("gpt2", {"model_type": "granite", "attention_bias": False, "mlp_bias": False,
            "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22,
            "logits_scaling": 8.0, "tie_word_embeddings": True}),
    "granite, biases": ("smollm2", {"model_type": "granite", "attention_bias": True, "mlp_bias": True,
            "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 1.0,
            "logits_scaling": 0.5, "rope_scaling": LLAMA3}),
    "mistral3": ("llama2", {"model_type": "mistral3", "head_dim": 32, "sliding_window": None}),
    "ministral3": ("llama3", {"model_type": "ministral3", "head_dim": 32, "rope_theta": None,
            "rope_parameters": MINISTRAL}),
    "ministral3, images": ("llama3", {"model_type": "mistral3", "text_type": "ministral3", "head_dim": 32,
            "rope_theta": None, "rope_parameters": {**MINISTRAL, "mscale_all_dim": 0.5}}),
    "qwen2_5_vl": ("qwen2", {"model_type": "qwen2_5_vl", "use_sliding_window": False, "rope_scaling": {"type": "mrope",
            "mrope_section": [8, 12, 12]}}),
    "qwen3_vl": ("qwen2", {"model_type": "qwen3_vl", "head_dim": 32, "attention_bias": False, "rope_scaling": {
            "rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}}),
    "qwen3_vl_moe": ("qwen2", {"model_type": "qwen3_vl_moe", "head_dim": 32, "attention_bias": False, "num_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 128, "rope_scaling": {
            "rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}}),
    "olmo3": ("gpt2", {"model_type": "olmo3", "attention_bias": False, "sliding_window": 16, "num_hidden_layers": 5}),
    "olmo3, yarn": ("gpt2", {"model_type": "olmo3", "attention_bias": False, "sliding_window": 16,
            "num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2, "rope_scaling": YARN}),
    "exaone4": ("qwen2", {"model_type": "exaone4", "sliding_window": None, "tie_word_embeddings": True,
            "rope_scaling": LLAMA3}),
    "exaone4, windows": ("qwen2", {"model_type": "exaone4", "sliding_window": 16, "sliding_window_pattern": 4,
            "num_hidden_layers": 64, "hidden_size": 64, "intermediate_size": 64}),
    "qwen3_5": ("qwen2", {**DELTA, "model_type": "qwen3_5"}),
    "qwen3_5, wide": ("qwen2", {**DELTA, "model_type": "qwen3_5_text", "linear_num_key_heads": 4,
            "linear_num_value_heads": 4, "head_dim": 32, "partial_rotary_factor": 0.5, "tie_word_embeddings": True,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"], "num_hidden_layers": 3}),
    "qwen3_5_moe": ("qwen2", {**DELTA, "model_type": "qwen3_5_moe", "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 128, "shared_expert_intermediate_size": 256, "linear_num_value_heads": 6}),
    "qwen3_next": ("qwen2", {**DELTA, "model_type": "qwen3_next", "num_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 128, "shared_expert_intermediate_size": 256, "norm_topk_prob": True}),
    "cohere": ("smollm2", {"model_type": "cohere", "logit_scale": 0.25, "layer_norm_eps": 1e-5, "rms_norm_eps": None,
            "tie_word_embeddings": True}),
    "cohere2": ("gpt2", {"model_type": "cohere2", "logit_scale": 2.0, "layer_norm_eps": 1e-5, "rms_norm_eps": None,
            "sliding_window": 16, "num_hidden_layers": 5, "rotary_pct": 1.0, "tie_word_embeddings": True}),
    "gpt_neox": ("gpt2", {**NEOX, "rotary_pct": 0.25}),
    "gpt_neox, sequential": ("gpt2", {**NEOX, "rotary_pct": 1.0, "use_parallel_residual": False}),
    "gpt2": ("gpt2", {**GPT2, "tie_word_embeddings": True}),
    "gpt2, head": ("smollm2", {**GPT2, "tie_word_embeddings": False, "intermediate_size": 512}),
    "deepseek_v3": ("qwen2", LATENT),
    "deepseek_v3, yarn": ("gpt2", {**LATENT, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0,
            "beta_fast": 32.0, "beta_slow": 1.0}}),
    "deepseek_v3, no rank of queries": ("llama3", {**LATENT, "q_lora_rank": None, "num_hidden_layers": 27,
            "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "n_shared_experts": 2,
            "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-5}),
    "deepseek_v2, yarn": ("gpt2", {**LATENT, "model_type": "deepseek_v2", "scoring_func": "softmax",
            "topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "n_shared_experts": 2,
            "n_routed_experts": 8, "routed_scaling_factor": 1.0, "rope_scaling": {**YARN, "mscale": 0.707,
            "mscale_all_dim": 0.707, "beta_fast": 32.0, "beta_slow": 1.0}}),
    "glm4_moe_lite": ("llama3", {**LATENT, "model_type": "glm4_moe_lite", "scoring_func": None, "n_group": 1,
            "topk_group": 1, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5}),
    "gemma4": ("gemma", {**GEMMA4, "tie_word_embeddings": False}),
    "gemma4, values, cap": ("qwen2", {**GEMMA4, "attention_k_eq_v": False, "num_global_key_value_heads": None,
            "final_logit_softcapping": 1.5}),
    "gemma4, experts": ("gpt2", {**GEMMA4, "tie_word_embeddings": False, "enable_moe_block": True,
            "num_experts": 12, "top_k_experts": 3, "moe_intermediate_size": 96}),
    "gemma4, 8 experts": ("qwen2", {**GEMMA4, "tie_word_embeddings": False, "enable_moe_block": True,
            "num_experts": 8, "top_k_experts": 8, "moe_intermediate_size": 256}),
    "gemma4, shared keys": ("qwen2", GEMMA4_SHARED),
    "gemma4, shared keys that are values": ("gpt2", {**GEMMA4_SHARED, "tie_word_embeddings": False,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1, "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 20}),
    "olmo2, yarn": ("gpt2", {"model_type": "olmo2", "attention_bias": False, "rope_scaling": YARN}),
}
MIXTURES = ("mixtral", "qwen3_moe", "gpt_oss", "glm4_moe", "qwen3_vl_moe", "qwen3_5_moe", "qwen3_next",
        "deepseek_v3", "deepseek_v2", "glm4_moe_lite")
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM", "mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
        "gpt_oss": "GptOssForCausalLM", "glm4_moe": "Glm4MoeForCausalLM", "smollm3": "SmolLM3ForCausalLM",
        "seed_oss": "SeedOssForCausalLM", "glm4": "Glm4ForCausalLM", "olmo2": "Olmo2ForCausalLM",
        "phi3": "Phi3ForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
        "gemma3": "Gemma3ForConditionalGeneration", "granite": "GraniteForCausalLM",
        "mistral3": "Mistral3ForConditionalGeneration", "ministral3": "Ministral3ForCausalLM",
        "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen3_vl": "Qwen3VLForConditionalGeneration",
        "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration", "olmo3": "Olmo3ForCausalLM",
        "exaone4": "Exaone4ForCausalLM", "qwen3_5": "Qwen3_5ForConditionalGeneration",
        "qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
        "qwen3_next": "Qwen3NextForCausalLM", "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM",
        "gpt_neox": "GPTNeoXForCausalLM", "gpt2": "GPT2LMHeadModel", "deepseek_v3": "DeepseekV3ForCausalLM",
        "deepseek_v2": "DeepseekV2ForCausalLM", "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
        "gemma4_text": "Gemma4ForCausalLM"}
# Names of GPT-2's own for keys of config.json.
GPT2_KEYS = {"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}
# Models that see images: what the names of the decoder's tensors begin with, what that of the head begins with, and
# the model_type of the decoder's configuration.
NESTED = {"gemma3": ("language_model.model.", "language_model.", "gemma3_text"),
        "mistral3": ("language_model.model.", "language_model.", "mistral"),
        "qwen2_5_vl": ("model.", "", "qwen2_5_vl_text"), "qwen3_vl": ("model.language_model.", "", "qwen3_vl_text"),
        "qwen3_vl_moe": ("model.language_model.", "", "qwen3_vl_moe_text"),
        "qwen3_5": ("model.language_model.", "", "qwen3_5_text"),
        "qwen3_5_moe": ("model.language_model.", "", "qwen3_5_moe_text")}
DELTAS = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_next")
QK_NORMED = ("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "exaone4", "gemma3", "gemma3_text", *DELTAS)
GEMMAS = ("gemma2", "gemma3", "gemma3_text")
NORMS = {"cohere": ("input_layernorm",), "cohere2": ("input_layernorm",),
        "glm4": ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
        **{kind: ("post_attention_layernorm", "post_feedforward_layernorm") for kind in ("olmo2", "olmo3", "exaone4")},
        **{kind: ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
        "post_feedforward_layernorm") for kind in ("gemma2", "gemma3", "gemma3_text")}}
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def gated(prefix, names, d, f, bias=False):
    """Names and shapes of a gated linear unit."""
    shapes = {}
    for name, shape in zip(names, ((f, d), (f, d), (d, f))):
        shapes[f"{prefix}{name}.weight"] = shape
        if bias:
            shapes[f"{prefix}{name}.bias"] = shape[:1]
    return shapes


def feed_forward(c, layer, d, f):
    """Names and shapes of a layer's feed-forward."""
    kind, n = c["model_type"], c.get("num_experts", c.get("num_local_experts", c.get("n_routed_experts")))
    inner = c.get("moe_intermediate_size", f)
    if kind == "gpt_oss":
        return {"mlp.router.weight": (n, d), "mlp.router.bias": (n,), "mlp.experts.gate_up_proj": (n, d, 2 * f),
                "mlp.experts.gate_up_proj_bias": (n, 2 * f), "mlp.experts.down_proj": (n, f, d),
                "mlp.experts.down_proj_bias": (n, d)}
    if kind == "qwen3_vl_moe":
        return {"mlp.gate.weight": (n, d), "mlp.experts.gate_up_proj": (n, d, 2 * inner),
                "mlp.experts.down_proj": (n, inner, d)}
    if kind in ("qwen3_5_moe", "qwen3_next"):
        shared = {"mlp.gate.weight": (n, d), "mlp.shared_expert_gate.weight": (1, d),
                **gated("mlp.shared_expert.", PROJECTIONS, d, c["shared_expert_intermediate_size"])}
        if kind == "qwen3_5_moe":
            return shared | {"mlp.experts.gate_up_proj": (n, 2 * inner, d), "mlp.experts.down_proj": (n, d, inner)}
        for e in range(n):
            shared |= gated(f"mlp.experts.{e}.", PROJECTIONS, d, inner)
        return shared
    if c.get("enable_moe_block"):
        return gated("mlp.", PROJECTIONS, d, f) | {"router.proj.weight": (n, d), "router.scale": (d,),
                "router.per_expert_scale": (n,), "experts.gate_up_proj": (n, 2 * inner, d),
                "experts.down_proj": (n, d, inner), "pre_feedforward_layernorm_2.weight": (d,),
                "post_feedforward_layernorm_1.weight": (d,), "post_feedforward_layernorm_2.weight": (d,)}
    if kind in ("glm4", "phi3"):
        return {"mlp.gate_up_proj.weight": (2 * f, d), "mlp.down_proj.weight": (d, f)}
    if kind not in MIXTURES or layer < c.get("first_k_dense_replace", 0):
        return gated("mlp.", PROJECTIONS, d, f, c.get("mlp_bias"))
    prefix, names = ("block_sparse_moe.", ("w1", "w3", "w2")) if kind == "mixtral" else ("mlp.", PROJECTIONS)
    shapes = {prefix + "gate.weight": (n, d)}
    for e in range(n):
        shapes |= gated(f"{prefix}experts.{e}.", names, d, inner)
    if "n_shared_experts" in c:
        shapes |= gated("mlp.shared_experts.", names, d, inner * c["n_shared_experts"])
        if kind != "deepseek_v2":
            shapes["mlp.gate.e_score_correction_bias"] = (n,)
    return shapes


def latent_attention(c, d):
    """Names and shapes of latent attention."""
    h, rank, rotated, v = (c[key] for key in ("num_attention_heads", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim"))
    plain, queries = c["qk_nope_head_dim"], c["q_lora_rank"]
    shapes = {"kv_a_proj_with_mqa.weight": (rank + rotated, d), "kv_a_layernorm.weight": (rank,),
            "kv_b_proj.weight": (h * (plain + v), rank), "o_proj.weight": (d, h * v)}
    if queries is None:
        return shapes | {"q_proj.weight": (h * (plain + rotated), d)}
    return shapes | {"q_a_proj.weight": (queries, d), "q_a_layernorm.weight": (queries,),
            "q_b_proj.weight": (h * (plain + rotated), queries)}


def delta_net(c, d):
    """Names and shapes of a gated delta net."""
    keys, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    k, v = keys * c["linear_key_head_dim"], heads * c["linear_value_head_dim"]
    shapes = {"A_log": (heads,), "dt_bias": (heads,), "conv1d.weight": (2 * k + v, 1, c["linear_conv_kernel_dim"]),
            "norm.weight": (c["linear_value_head_dim"],), "out_proj.weight": (d, v)}
    if c["model_type"] == "qwen3_next":
        return shapes | {"in_proj_qkvz.weight": (2 * k + 2 * v, d), "in_proj_ba.weight": (2 * heads, d)}
    return shapes | {"in_proj_qkv.weight": (2 * k + v, d), "in_proj_z.weight": (v, d), "in_proj_b.weight": (heads, d),
            "in_proj_a.weight": (heads, d)}


def gemma4_attention(c, layer, d):
    """Names and shapes of Gemma 4's attention, of what a layer does with rows, and of what multiplies its output."""
    h, kv, width, values = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], True
    if c["layer_types"][layer] == "full_attention":
        width, values = c["global_head_dim"], not c["attention_k_eq_v"]
        kv = kv if values else c["num_global_key_value_heads"]
    shapes = {"layer_scalar": (1,), "self_attn.q_proj.weight": (h * width, d),
            "self_attn.o_proj.weight": (d, h * width), "self_attn.q_norm.weight": (width,)}
    if n := c["hidden_size_per_layer_input"]:
        shapes |= {"per_layer_input_gate.weight": (n, d), "per_layer_projection.weight": (d, n),
                "post_per_layer_input_norm.weight": (d,)}
    if shares_keys(c, layer):
        return shapes
    shapes |= {"self_attn.k_proj.weight": (kv * width, d), "self_attn.k_norm.weight": (width,)}
    return shapes | ({"self_attn.v_proj.weight": (kv * width, d)} if values else {})


def shares_keys(c, layer):
    """Whether a layer uses keys and values of another one."""
    return layer >= c["num_hidden_layers"] - c.get("num_kv_shared_layers", 0)


def has_delta_net(c, layer):
    """Whether a layer has a gated delta net instead of attention."""
    if c["model_type"] not in DELTAS:
        return False
    return c["layer_types"][layer] == "linear_attention" if "layer_types" in c else (layer + 1) % 4 != 0


def gpt_neox(c):
    """Names and shapes of the tensors of GPT-NeoX."""
    d, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    shapes = {"gpt_neox.embed_in.weight": (v, d), "embed_out.weight": (v, d),
            **layer_norm("gpt_neox.final_layer_norm", d)}
    for layer in range(c["num_hidden_layers"]):
        p = f"gpt_neox.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= layer_norm(p + norm, d)
        for key, shape in (("attention.query_key_value", (3 * d, d)), ("attention.dense", (d, d)),
                ("mlp.dense_h_to_4h", (f, d)), ("mlp.dense_4h_to_h", (d, f))):
            shapes |= {f"{p}{key}.weight": shape, f"{p}{key}.bias": shape[:1]}
    return shapes


def gpt2(c):
    """Names and shapes of the tensors of GPT-2, whose matrices are transposed."""
    d, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    shapes = {"transformer.wte.weight": (v, d), "transformer.wpe.weight": (c["max_position_embeddings"], d),
            **layer_norm("transformer.ln_f", d)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (v, d)
    for layer in range(c["num_hidden_layers"]):
        p = f"transformer.h.{layer}."
        shapes |= layer_norm(p + "ln_1", d) | layer_norm(p + "ln_2", d)
        for key, shape in (("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)), ("mlp.c_fc", (d, f)),
                ("mlp.c_proj", (f, d))):
            shapes |= {f"{p}{key}.weight": shape, f"{p}{key}.bias": shape[1:]}
    return shapes


def layer_norm(name, d):
    """Names and shapes of a layer norm."""
    return {name + ".weight": (d,), name + ".bias": (d,)}


def decoder(c):
    """Names and shapes of the tensors of other families."""
    kind = c["model_type"]
    d, f, h = c["hidden_size"], c["intermediate_size"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    q, kv, v = h * c["num_attention_heads"], h * c["num_key_value_heads"], c["vocab_size"]
    qkv_bias = c.get("attention_bias") or kind in ("qwen2", "qwen2_5_vl")
    out_bias = c.get("attention_bias") and kind not in ("glm4_moe", "glm4", "seed_oss")
    gate = 2 if kind in DELTAS else 1  # each query has a gate
    shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (v, d)
    if n := c.get("hidden_size_per_layer_input"):
        shapes |= {"model.embed_tokens_per_layer.weight": (v, n * c["num_hidden_layers"]),
                "model.per_layer_model_projection.weight": (n * c["num_hidden_layers"], d),
                "model.per_layer_projection_norm.weight": (n,)}
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        if has_delta_net(c, layer):
            shapes |= {f"{p}linear_attn.{key}": shape for key, shape in delta_net(c, d).items()}
            shapes |= {p + key: shape for key, shape in feed_forward(c, layer, d, f).items()}
            shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)}
            continue
        if "kv_lora_rank" in c:
            shapes |= {f"{p}self_attn.{key}": shape for key, shape in latent_attention(c, d).items()}
            shapes |= {p + key: shape for key, shape in feed_forward(c, layer, d, f).items()}
            shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)}
            continue
        if kind == "gemma4_text":
            width = 2 * f if c.get("use_double_wide_mlp") and shares_keys(c, layer) else f
            shapes |= {p + key: shape for key, shape in gemma4_attention(c, layer, d).items()}
            shapes |= {p + key: shape for key, shape in feed_forward(c, layer, d, width).items()}
            shapes |= {f"{p}{norm}.weight": (d,) for norm in NORMS["gemma3"]}
            continue
        fused = kind == "phi3"
        for key, shape, bias in (("self_attn.qkv_proj", (q + 2 * kv, d), False), ("self_attn.o_proj", (d, q), False)
                ) if fused else (
                ("self_attn.q_proj", (q * gate, d), qkv_bias), ("self_attn.k_proj", (kv, d), qkv_bias),
                ("self_attn.v_proj", (kv, d), qkv_bias), ("self_attn.o_proj", (d, q), out_bias)):
            shapes[p + key + ".weight"] = shape
            if bias:
                shapes[p + key + ".bias"] = shape[:1]
        shapes |= {p + key: shape for key, shape in feed_forward(c, layer, d, f).items()}
        for norm in NORMS.get(kind, ("input_layernorm", "post_attention_layernorm")):
            shapes[f"{p}{norm}.weight"] = (d,)
        if kind in ("olmo2", "olmo3"):
            shapes |= {p + "self_attn.q_norm.weight": (q,), p + "self_attn.k_norm.weight": (kv,)}
        if kind == "gpt_oss":
            shapes[p + "self_attn.sinks"] = (c["num_attention_heads"],)
        if kind in QK_NORMED or c.get("use_qk_norm"):
            shapes[p + "self_attn.q_norm.weight"] = shapes[p + "self_attn.k_norm.weight"] = (h,)
    return shapes


def random_model(where, tokenizers, name, keys):
    """Writes a model directory with random weights, its tokenizer.json, and a tokenizer_config.json."""
    where.mkdir(parents=True)
    # A row for each token: millrace never picks a row without one.
    rows = Tokenizer.from_file(str(tokenizers / f"{name}.json")).get_vocab_size()
    c = {**BASE, **keys, "vocab_size": rows, "architectures": [ARCHITECTURES[keys["model_type"]]]}
    if c.get("hidden_size_per_layer_input"):
        c["vocab_size_per_layer_input"] = rows
    shapes = {"gpt_neox": gpt_neox, "gpt2": gpt2}.get(keys["model_type"], decoder)(c)
    rng = np.random.default_rng(7)
    # In these 1 is added to the weights of norms.
    header, body, added = {}, b"", keys["model_type"] in GEMMAS + DELTAS
    own = GPT2_KEYS if keys["model_type"] == "gpt2" else {}
    c = {own.get(k, k): v for k, v in c.items() if v is not None or k in ("sliding_window", "q_lora_rank")}
    if keys["model_type"] in NESTED:
        prefix, head, kind = NESTED[keys["model_type"]]
        shapes = {prefix + key.removeprefix("model.") if key.startswith("model.") else head + key: shape
                for key, shape in shapes.items()}
        kind = c.pop("text_type", kind)
        inner = {**c, "model_type": kind}
        c = {"model_type": keys["model_type"], "architectures": inner.pop("architectures"), "text_config": inner,
                "tie_word_embeddings": inner.get("tie_word_embeddings", False), "vision_config": {}}
    for key, shape in shapes.items():
        is_norm = key.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "ln_1.weight", "ln_2.weight",
                "ln_f.weight"))
        is_factor = key.endswith(("layer_scalar", "router.scale", "per_expert_scale"))
        mean = float(is_factor or is_norm and (not added or "linear_attn" in key))
        x = rng.normal(mean, 0.1, shape)
        data = x.astype("<f4").tobytes()
        header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    front = json.dumps(header).encode()
    (where / "model.safetensors").write_bytes(struct.pack("<Q", len(front)) + front + body)
    (where / "config.json").write_text(json.dumps(c))
    (where / "tokenizer.json").write_bytes((tokenizers / f"{name}.json").read_bytes())
    (where / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>",
            "tokenizer_class": "PreTrainedTokenizerFast"}))
