"""Write the golden files of testdata-latent/: tiny random decoders with latent attention, as golden_experts.py has
mixtures of experts with attention of another kind. They have experts, too.

    python3 -m pip install torch==2.9.0 transformers==5.24.0 numpy==2.4.6 safetensors==0.8.0
    python3 model/modeltest/golden_latent.py [VARIANT ...]
"""

import sys
from functools import partial

import torch
from transformers import DeepseekV2Config, DeepseekV3Config, Glm4MoeLiteConfig

import golden_experts
from golden import POSITIONS, ROWS, run, visible
from golden_experts import linear, magnitude, rms_norm, rotations

LATENT_EPS = 1e-6  # of norms of latents, whatever rms_norm_eps is

VARIANTS = {
    # Sines and cosines are multiplied by one number and scores by another. Of the frequencies one is kept, one is
    # blended, and one divided.
    "deepseek_v3": (1, partial(
        DeepseekV3Config, hidden_size=26, intermediate_size=38, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=11, kv_lora_rank=14, qk_nope_head_dim=7, qk_rope_head_dim=6, v_head_dim=5,
        vocab_size=67, rms_norm_eps=1e-5, max_position_embeddings=4096, attention_bias=True, n_routed_experts=9,
        num_experts_per_tok=3, n_group=3, topk_group=2, moe_intermediate_size=10, n_shared_experts=2,
        first_k_dense_replace=1, routed_scaling_factor=1.7, norm_topk_prob=True, pad_token_id=None,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0,
                         "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 1.3,
                         "original_max_position_embeddings": 512})),
    # Queries of one product, as Moonlight has them, and biases. Frequencies are kept or divided and none is blended, as
    # Kimi K2 has them: with another "beta_fast" one would be.
    "deepseek_v3-direct": (6, partial(
        DeepseekV3Config, hidden_size=22, intermediate_size=30, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=9, qk_nope_head_dim=5, qk_rope_head_dim=6, v_head_dim=6,
        vocab_size=59, rms_norm_eps=1e-5, max_position_embeddings=32768, attention_bias=True, n_routed_experts=6,
        num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=8, n_shared_experts=1,
        first_k_dense_replace=1, routed_scaling_factor=2.446, norm_topk_prob=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 50000.0, "factor": 8.0, "beta_fast": 1.0,
                         "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "original_max_position_embeddings": 4096})),
    # Values as wide as keys.
    "glm4_moe_lite": (4, partial(
        Glm4MoeLiteConfig, hidden_size=24, intermediate_size=34, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=10, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=10,
        vocab_size=61, rms_norm_eps=1e-5, max_position_embeddings=64, n_routed_experts=5, num_experts_per_tok=2,
        n_group=1, topk_group=1, moe_intermediate_size=10, n_shared_experts=1, routed_scaling_factor=1.8,
        norm_topk_prob=True)),
    # A softmax of all experts, of which the chosen ones are not made to sum to 1.
    "deepseek_v2": (3, partial(
        DeepseekV2Config, hidden_size=20, intermediate_size=36, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=6, v_head_dim=4,
        vocab_size=53, rms_norm_eps=1e-6, max_position_embeddings=4096, n_routed_experts=7, num_experts_per_tok=3,
        moe_intermediate_size=9, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.0,
        norm_topk_prob=False, topk_method="greedy", n_group=1, topk_group=1,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0,
                         "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707,
                         "original_max_position_embeddings": 512})),
    # The same of the groups whose best experts are best, as DeepSeek-V2 itself has it.
    "deepseek_v2-groups": (3, partial(
        DeepseekV2Config, hidden_size=18, intermediate_size=22, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=10, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4,
        vocab_size=47, rms_norm_eps=1e-6, max_position_embeddings=64, n_routed_experts=12, num_experts_per_tok=3,
        moe_intermediate_size=5, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=3.0,
        norm_topk_prob=False, topk_method="group_limited_greedy", n_group=4, topk_group=2)),
}


def attention(c, p, b, n, _, h):
    """Written out: the pairs of what is rotated are neighbours in the weights."""
    heads, plain, rotated = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
    frequencies, factor = rotations(c, rotated)
    angle = b["positions"][:, :, None, None].double() * frequencies
    cos, sin = factor * angle.cos(), factor * angle.sin()

    def rope(x):
        a, z = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - z * sin, z * cos + a * sin], -1).flatten(-2)

    if c["q_lora_rank"] is None:
        q = linear(p, h, n + "q_proj")
    else:
        latent = rms_norm(p, linear(p, h, n + "q_a_proj"), n + "q_a_layernorm.weight", LATENT_EPS)
        q = linear(p, latent, n + "q_b_proj")
    q = q.reshape(ROWS, POSITIONS, heads, plain + rotated)
    latent, shared = linear(p, h, n + "kv_a_proj_with_mqa").split([c["kv_lora_rank"], rotated], -1)
    kv = linear(p, rms_norm(p, latent, n + "kv_a_layernorm.weight", LATENT_EPS), n + "kv_b_proj")
    k, v = kv.reshape(ROWS, POSITIONS, heads, plain + c["v_head_dim"]).split([plain, c["v_head_dim"]], -1)
    q_rotated, k_rotated = rope(q[..., plain:]), rope(shared[:, :, None])
    s = torch.einsum("rqhd,rkhd->rhqk", q[..., :plain], k)
    s = s + torch.einsum("rqhd,rkd->rhqk", q_rotated, k_rotated[:, :, 0])
    scale = (plain + rotated) ** -0.5
    if "mscale_all_dim" in c["rope_parameters"]:
        scale *= magnitude(c["rope_parameters"], "mscale_all_dim") ** 2
    a = (s * scale).masked_fill(~visible(b, None)[:, 0][:, None], -torch.inf).softmax(-1)
    return linear(p, torch.einsum("rhqk,rkhd->rqhd", a, v).flatten(-2), n + "o_proj")


if __name__ == "__main__":
    run(sys.argv[1:], VARIANTS, partial(golden_experts.write, variants=VARIANTS, attention=attention),
        "testdata-latent", "5.24.0")
