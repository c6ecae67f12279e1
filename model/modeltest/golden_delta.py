"""Write the golden files of testdata-delta/: tiny random decoders of which most layers have a gated delta net in place
of attention, as golden.py has dense decoders.

    python3 -m pip install torch==2.9.0 transformers==5.24.0 numpy==2.4.6 safetensors==0.8.0
    python3 model/modeltest/golden_delta.py [VARIANT ...]

The files of a variant are those of golden.py, from the version of transformers of golden_experts.py, and choices of
experts are checked as there. In transformers a document that follows another one in a row begins with the state that
the other one has left, unless kernels of a GPU are there. So each document is computed alone, and the logits and
gradients of a row are those of its documents.

Tensors have the names and shapes of published checkpoints:

    qwen3_5, qwen3_5_moe   model.language_model.*; model.visual.* and mtp.* are there, and are not trained
    qwen3_5_moe*           model*.layers.N.mlp.experts.gate_up_proj [E, 2*inner, hidden], gate first, and down_proj
                           [E, hidden, inner]. save_pretrained writes a tensor for each expert, which no published
                           checkpoint has
    qwen3_next             model.layers.N.mlp.experts.E.{gate,up,down}_proj.weight

The rows of the first variant are longer than two chunks of 64 positions, in which the delta rule is computed.
"""

import json
import math
import shutil
import sys
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers import Qwen3_5Config, Qwen3_5MoeConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig
from transformers.core_model_loading import revert_weight_conversion

import golden as base
from golden import ROWS, STEPS, batch, document, golden, pack, run, write_golden
from golden_experts import Choices, choose, swiglu

GAP = 5e-5  # of golden_experts.py, whose models have fewer layers with experts
LINEAR, FULL = "linear_attention", "full_attention"
ROPE = {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.25}

VISION = dict(depth=1, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2, spatial_merge_size=1,
              num_position_embeddings=4)


def moe(inner, shared, experts, chosen):
    return dict(moe_intermediate_size=inner, shared_expert_intermediate_size=shared, num_experts=experts,
                num_experts_per_tok=chosen)


def delta(key_heads, value_heads, key_dim, value_dim):
    return dict(linear_num_key_heads=key_heads, linear_num_value_heads=value_heads, linear_key_head_dim=key_dim,
                linear_value_head_dim=value_dim, linear_conv_kernel_dim=4)


# By name: a seed, positions of a row, a configuration. Seeds are such that each expert has a gradient in the first
# batch, no choice is close, and bf16, which may choose differently, stays near.
VARIANTS = {
    "qwen3_5_text": (0, 149, lambda: Qwen3_5TextConfig(
        hidden_size=20, intermediate_size=44, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        head_dim=16, vocab_size=43, tie_word_embeddings=True, rms_norm_eps=0.1, max_position_embeddings=256,
        attention_bias=True, rope_parameters=ROPE, layer_types=[LINEAR, FULL, LINEAR], **delta(2, 4, 6, 10))),
    "qwen3_5": (0, 37, lambda: Qwen3_5Config(
        text_config=dict(
            hidden_size=24, intermediate_size=40, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, vocab_size=61, tie_word_embeddings=False, rms_norm_eps=0.1, max_position_embeddings=64,
            rope_parameters=ROPE | {"mrope_interleaved": True, "mrope_section": [1, 0, 0]}, full_attention_interval=4,
            **delta(1, 3, 8, 6)),
        vision_config=dict(VISION, out_hidden_size=24), tie_word_embeddings=False)),
    "qwen3_5_moe": (8, 37, lambda: Qwen3_5MoeConfig(
        text_config=dict(
            hidden_size=22, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
            vocab_size=59, tie_word_embeddings=False, rms_norm_eps=0.1, max_position_embeddings=64,
            rope_parameters=ROPE, layer_types=[LINEAR, LINEAR, FULL], **delta(2, 2, 10, 8), **moe(10, 14, 6, 2)),
        vision_config=dict(VISION, out_hidden_size=22), tie_word_embeddings=False)),
    "qwen3_5_moe_text": (5, 37, lambda: Qwen3_5MoeTextConfig(
        hidden_size=18, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=24, vocab_size=47,
        tie_word_embeddings=True, rms_norm_eps=0.1, max_position_embeddings=64, rope_parameters=ROPE,
        layer_types=[FULL, LINEAR], **delta(1, 2, 6, 12), **moe(8, 6, 5, 3))),
    # Layer 1 has experts; layers 0 and 2 have an even number, and layer 3 is named.
    "qwen3_next": (0, 37, lambda: Qwen3NextConfig(
        hidden_size=20, intermediate_size=26, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=53, tie_word_embeddings=False, rms_norm_eps=0.1, max_position_embeddings=64,
        rope_parameters=ROPE, layer_types=[LINEAR, LINEAR, FULL, LINEAR], decoder_sparse_step=2, mlp_only_layers=[3],
        norm_topk_prob=True, **delta(2, 6, 8, 4), **moe(12, 8, 5, 2))),
}


# A delta net divides by sizes that may be small: of its first output in a document, which is the value times the
# product of query and key. With usual weights fp32 is so far from float64 that the files would be worthless, above all
# after some steps. So rms_norm_eps is large, filters are mostly positive, keys are like queries (see build), and steps
# are small.
base.PEAK_LR = 1e-3
base.LIMITS = base.LIMITS | {"grad": 2e-5}


# ---- inputs

def first_batch(rng, vocab):
    """Two rows: several documents, and one alone where rows are long."""
    if base.POSITIONS == 37:
        return base.first_batch(rng, vocab)
    return batch([
        pack([document(rng, vocab, 131, 40), document(rng, vocab, 3, 0), document(rng, vocab, 15, 4)], 0),
        pack([document(rng, vocab, 149, 60)], 0),
    ])


def documents(b):
    """(row, first, end) of each document."""
    for row in range(ROWS):
        starts = (b["positions"][row] == 0).nonzero().flatten().tolist()
        for first, end in zip(starts, starts[1:] + [base.POSITIONS]):
            yield row, first, end


def by_document(b, logits):
    """The logits of a batch from those of its documents; `logits(tokens)` takes [1, n] tokens."""
    rows = [[] for _ in range(ROWS)]
    for row, first, end in documents(b):
        rows[row].append(logits(b["tokens"][row:row + 1, first:end])[0])
    return torch.stack([torch.cat(r) for r in rows])


# ---- the oracle: transformers, fp32

def build(config, rng):
    nested = hasattr(config, "vision_config")
    auto = transformers.AutoModelForImageTextToText if nested else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager", experts_implementation="eager").train()
    assert model.dtype == torch.float32
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = rng.standard_normal(tuple(p.shape))
            if name.endswith("linear_attn.norm.weight"):
                x = 1 + 0.2 * x
            elif "conv1d" in name:
                x = 0.5 + 0.25 * x
            elif name.endswith("A_log") or name.endswith("dt_bias"):
                x = 0.7 * x - 0.5
            elif p.ndim == 1:  # biases, and norms of which 1 is added to the weight
                x = 0.2 * x
            elif "embed" in name or "lm_head" in name:
                x = (0.7 if "lm_head" in name else 1) * x / math.sqrt(p.shape[1])
            else:
                x = 0.9 * x / math.sqrt(p.shape[-1])
            p.copy_(torch.from_numpy(x))
        c = getattr(config, "text_config", config)
        width, groups = c.linear_key_head_dim, c.linear_num_key_heads
        for name, p in model.named_parameters():  # keys like queries
            rows = p if name.endswith("in_proj_qkv.weight") else None
            if name.endswith("in_proj_qkvz.weight"):
                for head in p.unflatten(0, (groups, -1)):
                    head[width:2 * width] = 0.8 * head[:width] + 0.6 * head[width:2 * width]
            elif rows is not None:
                both = rows[:2 * groups * width]
                both[groups * width:] = 0.8 * both[:groups * width] + 0.6 * both[groups * width:]
    return model


def oracle(model, b):
    def logits(tokens):
        return model(input_ids=tokens, use_cache=False).logits.float()
    return by_document(b, logits)


def keep_fp32(model):
    """Under autocast, transformers' delta rule would solve triangular systems in bf16, which PyTorch cannot. Kernels
    for GPUs do that part in fp32."""
    module = sys.modules[type(model).__module__]
    rule = module.torch_chunk_gated_delta_rule

    def in_fp32(query, key, value, **others):
        with torch.autocast("cpu", enabled=False):
            return rule(query, key, value, **others)
    module.torch_chunk_gated_delta_rule = in_fp32


# ---- the oracle's oracle: the same decoders, written out, float64

def delta_net(c, p, n, h):
    """A gated delta net of one document, h [n, hidden], a position after the other."""
    groups, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    kd, vd = c["linear_key_head_dim"], c["linear_value_head_dim"]
    each = heads // groups
    if n + "in_proj_qkvz.weight" in p:
        qkvz = (h @ p[n + "in_proj_qkvz.weight"].T).unflatten(-1, (groups, -1))
        q, k, v, z = (x.flatten(1) for x in qkvz.split([kd, kd, each * vd, each * vd], -1))
        b, a = (x.flatten(1) for x in (h @ p[n + "in_proj_ba.weight"].T).unflatten(-1, (groups, -1)).chunk(2, -1))
        mixed = torch.cat([q, k, v], -1)
    else:
        mixed, z, b, a = (h @ p[f"{n}in_proj_{x}.weight"].T for x in ("qkv", "z", "b", "a"))
    w = p[n + "conv1d.weight"][:, 0]
    padded = torch.cat([torch.zeros(3, mixed.shape[1], dtype=mixed.dtype), mixed])
    conv = sum(padded[i:i + len(h)] * w[:, i] for i in range(4))
    conv = conv * torch.sigmoid(conv)
    q, k, v = conv.split([groups * kd, groups * kd, heads * vd], -1)
    unit = lambda x: x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    q, k = (unit(x.unflatten(-1, (groups, kd))).repeat_interleave(each, 1) for x in (q, k))
    q, v = q / math.sqrt(kd), v.unflatten(-1, (heads, vd))
    beta = torch.sigmoid(b)
    decay = torch.exp(-torch.exp(p[n + "A_log"]) * F.softplus(a + p[n + "dt_bias"]))
    state, out = torch.zeros(heads, kd, vd, dtype=h.dtype), []
    for t in range(len(h)):
        state = decay[t, :, None, None] * state
        error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + beta[t, :, None, None] * k[t][:, :, None] * error[:, None, :]
        out.append(torch.einsum("hkv,hk->hv", state, q[t]))
    o = torch.stack(out)
    o = p[n + "norm.weight"] * o / torch.sqrt((o * o).mean(-1, keepdim=True) + c["rms_norm_eps"])
    z = z.unflatten(-1, (heads, vd))
    return (o * z * torch.sigmoid(z)).flatten(1) @ p[n + "out_proj.weight"].T


def attention(c, p, n, h):
    heads, groups, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    def linear(x, name):
        y = x @ p[n + name + ".weight"].T
        return y + p[n + name + ".bias"] if n + name + ".bias" in p else y

    q, gate = linear(h, "q_proj").unflatten(-1, (heads, 2 * d)).chunk(2, -1)
    k, v = (linear(h, x).unflatten(-1, (groups, d)) for x in ("k_proj", "v_proj"))
    q, k = norm(c, p, n + "q_norm", q), norm(c, p, n + "k_norm", k)
    rope = c["rope_parameters"]
    half = int(d * rope["partial_rotary_factor"]) // 2
    frequencies = rope["rope_theta"] ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(len(h), dtype=torch.float64)[:, None, None] * frequencies

    def turn(x):
        a, z, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        return torch.cat([a * angle.cos() - z * angle.sin(), z * angle.cos() + a * angle.sin(), rest], -1)

    q, k = turn(q).unflatten(1, (groups, heads // groups)), turn(k)
    s = torch.einsum("qghd,kgd->ghqk", q, k) / math.sqrt(d)
    seen = torch.ones(len(h), len(h), dtype=torch.bool).tril()
    o = torch.einsum("ghqk,kgd->qghd", s.masked_fill(~seen, -torch.inf).softmax(-1), v).reshape(len(h), heads, d)
    return linear((o * torch.sigmoid(gate)).flatten(1), "o_proj")


def norm(c, p, name, x):
    """A norm of which 1 is added to the weight."""
    return (1 + p[name + ".weight"]) * x / torch.sqrt((x * x).mean(-1, keepdim=True) + c["rms_norm_eps"])


def feed_forward(c, p, n, h, routes):
    if n + "gate.weight" not in p:
        return swiglu(p, n[:-1], h)
    logits = h @ p[n + "gate.weight"].T
    scores = logits.softmax(-1)
    chosen, gap = choose(scores, c["num_experts_per_tok"])
    routes.append({"chosen": chosen, "gap": gap})
    weights = scores.gather(-1, chosen)
    weights = torch.zeros_like(scores).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))

    def expert(e):
        if n + "experts.gate_up_proj" not in p:
            return swiglu(p, f"{n}experts.{e}", h)
        gate, up = (h @ p[n + "experts.gate_up_proj"][e].T).chunk(2, -1)
        return (gate * torch.sigmoid(gate) * up) @ p[n + "experts.down_proj"][e].T

    y = sum(weights[:, e, None] * expert(e) for e in range(weights.shape[1]))
    return y + torch.sigmoid(h @ p[n + "shared_expert_gate.weight"].T) * swiglu(p, n + "shared_expert", h)


def float64_logits(c, p, b, routes):
    """Logits with a config.json and the tensors p of a model.safetensors. The routes are appended, by document."""
    prefix = "model.language_model." if "text_config" in c else "model."
    c = c.get("text_config", c)
    head = p.get("lm_head.weight", p[prefix + "embed_tokens.weight"])

    def logits(tokens):
        x = p[prefix + "embed_tokens.weight"][tokens[0]]
        for i, kind in enumerate(c["layer_types"]):
            n = f"{prefix}layers.{i}."
            h = norm(c, p, n + "input_layernorm", x)
            x = x + (delta_net(c, p, n + "linear_attn.", h) if kind == LINEAR else attention(
                c, p, n + "self_attn.", h))
            x = x + feed_forward(c, p, n + "mlp.", norm(c, p, n + "post_attention_layernorm", x), routes)
        return (norm(c, p, prefix + "norm", x) @ head.T)[None]
    return by_document(b, logits)


# ---- the files

def write(out, name):
    seed, base.POSITIONS, config = VARIANTS[name]
    config = config()
    text = getattr(config, "text_config", config)
    rng = np.random.default_rng([seed, 20254, *name.encode()])
    model = build(config, rng)
    keep_fp32(model)
    first = first_batch(rng, text.vocab_size)
    batches = [base.random_batch(rng, text.vocab_size, s) for s in range(STEPS)]

    shutil.rmtree(out / name, ignore_errors=True)
    model.save_pretrained(out / name)
    (out / name / "generation_config.json").unlink(missing_ok=True)

    def saved(tensors):
        return revert_weight_conversion(model, tensors) if name == "qwen3_next" else tensors

    params = {n: p for n, p in model.named_parameters() if ".visual." not in n}
    file = saved({n: p.detach().clone() for n, p in model.named_parameters()})
    if name in ("qwen3_5", "qwen3_5_moe"):
        hidden = text.hidden_size
        for n, shape in {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,)}.items():
            file[n] = torch.from_numpy(rng.standard_normal(shape)).to(torch.bfloat16)
    save_file(file, out / name / "model.safetensors", metadata={"format": "pt"})

    c = json.loads((out / name / "config.json").read_text())
    choices, calls = Choices(model), []

    def exact_logits(p, b):
        calls.append([])
        return float64_logits(c, p, b, calls[-1])

    tensors, metadata = golden(
        name, seed, params, choices.of(lambda b: oracle(model, b)), exact_logits, first, batches, saved)

    assert len(calls) == 1 + STEPS and len(choices.calls) == 1 + 3 * STEPS
    for step, (theirs, exact) in enumerate(zip([choices.calls[0], *choices.calls[-STEPS:]], calls), -1):
        assert len(theirs) == len(exact)
        for chosen, r in zip(theirs, exact):
            same = torch.equal(chosen.sort(-1).values, r["chosen"].sort(-1).values)
            assert same, f"{name}: fp32 and float64 choose differently in step {step}"
    idle = [n for n, x in tensors.items() if n.startswith("grad.") and not x.any()]
    assert not idle, f"{name}: no position with a target uses {idle}"
    closest = min((r["gap"] for call in calls for r in call), default=1)
    print(f"    closest choice: {closest:.1e}")
    assert closest > GAP, f"{name}: a choice is close"
    write_golden(out / name, tensors, metadata)


if __name__ == "__main__":
    run(sys.argv[1:], VARIANTS, write, "testdata-delta", "5.24.0")
