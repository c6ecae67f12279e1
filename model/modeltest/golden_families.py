"""Write the golden files of testdata-families/: a tiny random model of each of further families, as golden.py has them.

    python3 -m pip install torch==2.9.0 transformers==5.24.0 numpy==2.4.6 safetensors==0.8.0
    python3 model/modeltest/golden_families.py [VARIANT ...]

The files of a variant are those of golden.py; config.json is as transformers 5 saves it, and tensors have the names and
shapes of model.safetensors, as save_pretrained writes it. Parameters that text does not use, such as those of a vision
tower, are in model.safetensors and have no gradient.

The oracle computes each document of a row alone, with the masks and positions that the model's own classes make for
it. So nothing here says what is visible to whom, and a table of frequencies that a model chooses by the length of a
sequence is chosen for each document. The model is in evaluation mode: none has dropout.

The same classes in float64 (see in_float64) measure how exact the oracle's fp32 is. That finds rounding, and no errors
of mathematics; those are for the Go code to find, which shares a config.json and no more.
"""

import contextlib
import copy
import math
import shutil
import sys
from functools import partial

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    Cohere2Config, CohereConfig, Exaone4Config, Gemma2Config, Gemma3Config, Gemma3TextConfig, Gemma4Config,
    Gemma4TextConfig, Gemma4UnifiedConfig, Gemma4VisionConfig, Glm4Config, GPT2Config, GPTNeoXConfig, GraniteConfig,
    Ministral3Config, Mistral3Config, Olmo2Config, Olmo3Config, Phi3Config, PixtralVisionConfig, Qwen2_5_VLConfig,
    Qwen3VLConfig, Qwen3VLMoeConfig, SeedOssConfig, SiglipVisionConfig, SmolLM3Config)
from transformers.core_model_loading import revert_weight_conversion

from golden import STEPS, first_batch, golden, random_batch, run, write_golden

YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}

GEMMA3_ROPE = {"full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 8.0},
               "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}

GEMMA4_ROPE = {"full_attention": {"rope_type": "proportional", "rope_theta": 2000.0, "partial_rotary_factor": 0.25},
               "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}

GAP = 1e-5  # of probabilities, relative to that of the last chosen expert

# Sizes are small, mostly not powers of two, and differ between variants; the second number is a seed.
VARIANTS = {
    # Documents of 13 and more positions are long. Four of the six columns of a head are rotated.
    "phi3": (0, partial(
        Phi3Config, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=47, max_position_embeddings=64, original_max_position_embeddings=12,
        sliding_window=9, partial_rotary_factor=0.75,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.25],
                         "long_factor": [1.5, 3.0]})),
    # The second layer of three does not rotate its heads.
    "smollm3": (1, partial(
        SmolLM3Config, hidden_size=24, intermediate_size=26, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=43, max_position_embeddings=64, no_rope_layer_interval=2)),
    "seed_oss": (2, partial(
        SeedOssConfig, hidden_size=20, intermediate_size=22, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, vocab_size=41, max_position_embeddings=64, attention_out_bias=True,
        mlp_bias=True)),
    # Queries are scaled from position 16 on, and again from 32 on.
    "mistral3": (3, partial(
        Mistral3Config, tie_word_embeddings=False, text_config=partial(
            Ministral3Config, hidden_size=18, intermediate_size=26, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, vocab_size=41, max_position_embeddings=64,
            rope_parameters=YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                    "llama_4_scaling_beta": 0.1, "max_position_embeddings": 64}),
        vision_config=partial(
            PixtralVisionConfig, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
            head_dim=4, patch_size=2, image_size=4))),
    # The second layer sees all, and does not rotate its heads.
    "exaone4": (4, partial(
        Exaone4Config, hidden_size=20, intermediate_size=26, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=10, vocab_size=43, max_position_embeddings=64, sliding_window=7,
        sliding_window_pattern=2)),
    # Half of a head is rotated, and its pairs are neighbours.
    "glm4": (5, partial(
        Glm4Config, hidden_size=22, intermediate_size=26, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=41, max_position_embeddings=64)),
    "olmo2": (6, partial(
        Olmo2Config, hidden_size=24, intermediate_size=26, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=43, max_position_embeddings=64)),
    # Layer 3 sees all, with YaRN; the others have windows, and frequencies as they are.
    "olmo3": (7, partial(
        Olmo3Config, hidden_size=16, intermediate_size=18, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=37, max_position_embeddings=64, sliding_window=6,
        rope_parameters={"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}})),
    "granite": (11, partial(
        GraniteConfig, hidden_size=20, intermediate_size=26, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=43, max_position_embeddings=64, tie_word_embeddings=True,
        embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.22, logits_scaling=1.6)),
    "cohere": (12, partial(
        CohereConfig, hidden_size=20, intermediate_size=26, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=43, max_position_embeddings=64, logit_scale=0.7, attention_bias=True)),
    # Layer 2 sees all, and does not rotate its heads; the others have windows.
    "cohere2": (13, partial(
        Cohere2Config, hidden_size=18, intermediate_size=22, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, vocab_size=41, max_position_embeddings=64, logit_scale=0.6, sliding_window=7,
        sliding_window_pattern=3)),
    # Four of the ten columns of a head are rotated.
    "gpt_neox": (14, partial(
        GPTNeoXConfig, hidden_size=20, intermediate_size=34, num_hidden_layers=2, num_attention_heads=2, vocab_size=43,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.4})),
    "gpt_neox-sequential": (15, partial(
        GPTNeoXConfig, hidden_size=18, intermediate_size=26, num_hidden_layers=2, num_attention_heads=3, vocab_size=37,
        max_position_embeddings=64, use_parallel_residual=False, hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0})),
    # As many positions as the longest document has, and two more. The feed-forward has four times the hidden columns,
    # and the scores of the second layer are halved.
    "gpt2": (16, partial(
        GPT2Config, n_embd=12, n_layer=2, n_head=3, vocab_size=37, n_positions=39, scale_attn_by_inverse_layer_idx=True,
        bos_token_id=None, eos_token_id=None)),
    # Angles are those of three coordinates, which are equal in text.
    "qwen2_5_vl": (8, partial(
        Qwen2_5_VLConfig, tie_word_embeddings=False, text_config=dict(
            hidden_size=20, intermediate_size=26, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            vocab_size=41, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [1, 2, 2]}),
        vision_config=dict(depth=1, hidden_size=4, intermediate_size=4, num_heads=1, out_hidden_size=20,
                           patch_size=2))),
    "qwen3_vl": (9, partial(
        Qwen3VLConfig, tie_word_embeddings=True, text_config=dict(
            hidden_size=20, intermediate_size=22, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=6, vocab_size=43, max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [1, 1, 1],
                             "mrope_interleaved": True}),
        vision_config=dict(depth=1, hidden_size=4, intermediate_size=4, num_heads=1, out_hidden_size=20, patch_size=2,
                           num_position_embeddings=4, deepstack_visual_indexes=[0]))),
    "qwen3_vl_moe": (10, partial(
        Qwen3VLMoeConfig, tie_word_embeddings=False, text_config=dict(
            hidden_size=18, intermediate_size=22, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=8, vocab_size=37, max_position_embeddings=64, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=6, mlp_only_layers=[0],
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [1, 2, 1]}),
        vision_config=dict(depth=1, hidden_size=4, intermediate_size=4, num_heads=1, out_hidden_size=18, patch_size=2,
                           num_position_embeddings=4, deepstack_visual_indexes=[0]))),
    # Layers 0 and 2 have windows. Scores and logits come near their caps.
    "gemma2": (8, partial(
        Gemma2Config, hidden_size=20, intermediate_size=26, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, vocab_size=43, max_position_embeddings=64, query_pre_attn_scalar=9,
        sliding_window=7, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # Layer 2 sees all, with slower frequencies; the others have windows, and a base of their own.
    "gemma3_text": (9, partial(
        Gemma3TextConfig, hidden_size=22, intermediate_size=26, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, vocab_size=43, max_position_embeddings=64, query_pre_attn_scalar=11,
        sliding_window=6, sliding_window_pattern=3, rope_parameters=GEMMA3_ROPE)),
    "gemma3": (10, partial(
        Gemma3Config, mm_tokens_per_image=4, text_config=partial(
            Gemma3TextConfig, hidden_size=18, intermediate_size=26, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, head_dim=6, vocab_size=41, max_position_embeddings=64, query_pre_attn_scalar=6,
            sliding_window=5, layer_types=["full_attention", "sliding_attention"], rope_parameters=GEMMA3_ROPE),
        vision_config=partial(
            SiglipVisionConfig, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
            patch_size=2, image_size=4))),
    # Layer 2 sees all, with wider heads, of which 4 columns are rotated.
    "gemma4_text": (12, partial(
        Gemma4TextConfig, hidden_size=22, intermediate_size=26, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, global_head_dim=18, vocab_size=43, vocab_size_per_layer_input=43,
        hidden_size_per_layer_input=0, max_position_embeddings=64, sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], rope_parameters=GEMMA4_ROPE)),
    # Layers 1 and 2 see all; they have fewer keys, which are their values, too.
    "gemma4": (13, partial(
        Gemma4Config, text_config=partial(
            Gemma4TextConfig, hidden_size=20, intermediate_size=26, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=6, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
            vocab_size=41, vocab_size_per_layer_input=41, hidden_size_per_layer_input=0, max_position_embeddings=64,
            sliding_window=7, layer_types=["sliding_attention", "full_attention", "full_attention"],
            final_logit_softcapping=3.0, use_bidirectional_attention="vision"),
        vision_config=partial(
            Gemma4VisionConfig, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
            num_key_value_heads=1, head_dim=4, patch_size=2, position_embedding_size=4))),
    # Layers 2, 3 and 4 use keys and values of layers 0 and 1, and have twice as wide feed-forwards; each layer has rows
    # of a second embedding. The norms' constant is large: with a smaller one, norms of narrow heads enlarge what fp32
    # rounds.
    "gemma4-shared": (24, partial(
        Gemma4Config, text_config=partial(
            Gemma4TextConfig, hidden_size=12, intermediate_size=6, num_hidden_layers=5, num_attention_heads=2,
            num_key_value_heads=1, head_dim=4, global_head_dim=8, vocab_size=23, vocab_size_per_layer_input=23,
            hidden_size_per_layer_input=4, num_kv_shared_layers=3, use_double_wide_mlp=True, max_position_embeddings=64,
            sliding_window=6, rms_norm_eps=5e-2, final_logit_softcapping=3.0, rope_parameters=GEMMA4_ROPE,
            layer_types=[f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")]),
        vision_config=None, audio_config=None)),
    # Experts next to a dense feed-forward, with choices that rounding does not change: see check_choices.
    "gemma4-mixture": (6, partial(
        Gemma4TextConfig, hidden_size=10, intermediate_size=9, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, global_head_dim=8, attention_k_eq_v=True, vocab_size=31,
        vocab_size_per_layer_input=31, hidden_size_per_layer_input=0, max_position_embeddings=64, sliding_window=6,
        enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=4,
        layer_types=["sliding_attention", "full_attention"], rope_parameters=GEMMA4_ROPE)),
    "gemma4_unified": (14, partial(
        Gemma4UnifiedConfig, text_config=dict(
            hidden_size=18, intermediate_size=22, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            head_dim=6, global_head_dim=8, num_global_key_value_heads=1, attention_k_eq_v=True, vocab_size=37,
            max_position_embeddings=64, sliding_window=5, layer_types=["sliding_attention", "full_attention"],
            attention_bias=True, bos_token_id=None, eos_token_id=None, pad_token_id=None),
        vision_config=dict(patch_size=1, pooling_kernel_size=2, mm_embed_dim=18, mm_posemb_size=4, output_proj_dims=18),
        audio_config=dict(audio_embed_dim=4))),
}


# ---- the oracle: transformers, fp32

def made(config):
    """A config of a partial, whose own partials are made first, without the family's numbers of special tokens."""
    settings = {key: made(value) if isinstance(value, partial) else copy.deepcopy(value)
                for key, value in config.keywords.items()}
    config = config.func(**settings)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if hasattr(config, key):
            setattr(config, key, None)
    return config


def model_of(config):
    auto = transformers.AutoModelForCausalLM
    if hasattr(config, "text_config"):
        auto = transformers.AutoModelForImageTextToText
    model = auto.from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    if config.model_type in ("gemma4", "gemma4_unified"):
        model.config.text_config.pad_token_id = 0  # forward wants one; the embedding has no row of padding
    return model


def build(config, rng):
    model = model_of(config)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = rng.standard_normal(tuple(p.shape))
            if name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
                x = (0 if model.config.model_type.startswith(("gemma2", "gemma3")) else 1) + 0.2 * x  # these add 1
                if "gemma4" in model.config.model_type and name.endswith(("q_norm.weight", "k_norm.weight")):
                    x *= 0.4  # scores have no scale but this
            elif name.endswith(("router.scale", "router.per_expert_scale")) or "feedforward_layernorm_" in name:
                x = 1 + 0.2 * x
            elif p.ndim == 1:
                x = 0.2 * x
            elif "embed" in name or "lm_head" in name:
                x = x / math.sqrt(p.shape[1])
            elif model.config.model_type == "gpt2" and ".h." in name:  # matrices are transposed
                x = 1.2 * x / math.sqrt(p.shape[0])
            else:
                x = 1.2 * x / math.sqrt(p.shape[-1])
            p.copy_(torch.from_numpy(x))
        for _, b in layer_scalars(model):
            b.copy_(torch.from_numpy(rng.uniform(0.7, 1.3, 1)))
    return model


def check_choices(model, batches):
    """A choice of experts must not depend on rounding: the last chosen and the first other expert are apart by GAP."""
    routers, probabilities = [m for m in model.modules() if type(m).__name__ == "Gemma4TextRouter"], []
    hooks = [m.register_forward_hook(lambda _, args, out: probabilities.append(out[0])) for m in routers]
    with torch.no_grad():
        for b in batches:
            oracle(lambda t: model(input_ids=t, use_cache=False).logits, b)
    for hook in hooks:
        hook.remove()
    for p in probabilities:
        ordered, k = p.sort(-1, descending=True).values, model.config.get_text_config().top_k_experts
        gap = (1 - ordered[:, k] / ordered[:, k - 1]).min().item()
        assert gap > GAP, f"a choice is closer than {GAP}: {gap}; take another seed"


def layer_scalars(model):
    return [(name, b) for name, b in model.named_buffers() if name.endswith(".layer_scalar")]


def oracle(compute, b):
    """Logits of a batch, a document at a time; compute(tokens) are those of one row of tokens."""
    rows = []
    for tokens, positions in zip(b["tokens"], b["positions"]):
        starts = (positions == 0).nonzero().flatten().tolist()
        ends = starts[1:] + [len(positions)]
        rows.append(torch.cat([compute(tokens[None, start:end])[0] for start, end in zip(starts, ends)]))
    return torch.stack(rows)


@contextlib.contextmanager
def in_float64():
    """Classes that name fp32 compute in float64."""
    names = {"float32": torch.float32, "float": torch.float}
    method, default = torch.Tensor.float, torch.get_default_dtype()
    try:
        for name in names:
            setattr(torch, name, torch.float64)
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        for name, dtype in names.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = method
        torch.set_default_dtype(default)


# ---- the files

def published(name, tensors):
    """Tensors in the form of the published files. Those of qwen3_vl_moe have experts with transposed matrices, which
    transformers turns as it loads them, and saves in the other form where it has not loaded them."""
    if name != "qwen3_vl_moe":
        return tensors
    return {n: x.transpose(1, 2).contiguous() if ".experts." in n else x for n, x in tensors.items()}


def write(out, name):
    seed, config = VARIANTS[name]
    config = made(config)
    text = config.get_text_config()
    rng = np.random.default_rng([seed, 20254, *name.encode()])
    model = build(config, rng)
    first = first_batch(rng, text.vocab_size)
    batches = [random_batch(rng, text.vocab_size, s) for s in range(STEPS)]

    check_choices(model, [first, *batches])
    shutil.rmtree(out / name, ignore_errors=True)
    model.save_pretrained(out / name)
    file = out / name / "model.safetensors"
    save_file(published(name, load_file(file)), file, metadata={"format": "pt"})
    (out / name / "generation_config.json").unlink()

    with in_float64():
        exact = model_of(made(VARIANTS[name][1]))
        for (_, to), (_, b) in zip(layer_scalars(exact), layer_scalars(model), strict=True):
            to.copy_(b)
    carried = ("vision_tower", "multi_modal_projector", "visual", "embed_vision", "embed_audio")
    params = {n: p for n, p in model.named_parameters() if not any(part in n for part in carried)}

    def exact_logits(p, b):
        def compute(tokens):
            with in_float64():
                return torch.func.functional_call(exact, p, (), {"input_ids": tokens, "use_cache": False}).logits
        return oracle(compute, b)

    tensors, metadata = golden(
        name, seed, params, lambda b: oracle(lambda t: model(input_ids=t, use_cache=False).logits.float(), b),
        exact_logits, first, batches)
    grads = {n: torch.from_numpy(x) for n, x in tensors.items() if n.startswith("grad.")}
    saved = revert_weight_conversion(model, {n.removeprefix("grad."): x for n, x in grads.items()})
    tensors = {n: x for n, x in tensors.items() if n not in grads}
    tensors |= {"grad." + n: np.ascontiguousarray(x.numpy()) for n, x in published(name, saved).items()}
    write_golden(out / name, tensors, metadata)


if __name__ == "__main__":
    run(sys.argv[1:], VARIANTS, write, "testdata-families", "5.24.0")
