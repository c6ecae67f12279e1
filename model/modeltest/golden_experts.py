"""Write the golden files of testdata-experts/: tiny random mixtures of experts, as golden.py has dense decoders.

    python3 -m pip install torch==2.9.0 transformers==5.24.0 numpy==2.4.6 safetensors==0.8.0
    python3 model/modeltest/golden_experts.py [VARIANT ...]

The files of a variant are those of golden.py, from another version of transformers: config.json is as transformers 5
saves it, with rope_parameters and dtype, and with num_local_experts also for qwen3_moe. Experts are computed by the
eager implementation. Tensors have the names and shapes of model.safetensors, as save_pretrained writes it, also where a
model in memory has others:

    qwen3_moe  model.layers.N.mlp.experts.E.{gate,up,down}_proj.weight, each [outputs, inputs]
    glm4_moe   the same
    mixtral    model.layers.N.block_sparse_moe.experts.E.{w1,w3,w2}.weight: gate, up, down
    gpt_oss    model.layers.N.mlp.experts.gate_up_proj [E, hidden, 2*inner], its columns gate 0, up 0, gate 1, up 1, and
               so on; down_proj [E, inner, hidden]; gate_up_proj_bias [E, 2*inner]; down_proj_bias [E, hidden]

In memory the first three have mlp.experts.gate_up_proj [E, 2*inner, hidden], gate first, and mlp.experts.down_proj
[E, hidden, inner]; gpt_oss is saved as it is in memory.

The stacked biases of gpt_oss are sets of vectors: they have no weight decay (see golden.decays). The correction bias of
glm4_moe (e_score_correction_bias) is not trained: it is in model.safetensors and has no gradient.

More tensors, of variants with a router_aux_loss_coef that differs from the default:

    first.aux_loss         f32 [1], of the initial weights: see balance
    aux.grad.*             as grad.*, of first.loss + router_aux_loss_coef * first.aux_loss; the steps are without

A choice of experts must not depend on rounding. The script fails where in any batch the last chosen and the first other
expert, or group, are closer than GAP, and where fp32 and float64 choose differently.

mxfp4/mxfp4.safetensors is of another kind: see write_mxfp4.
"""

import json
import math
import shutil
import sys
from functools import partial

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, GptOssConfig, MixtralConfig, Qwen3MoeConfig
from transformers.core_model_loading import revert_weight_conversion
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from golden import (
    LIMITS, POSITIONS, ROWS, STEPS, batch, check_mask, document, first_batch, golden, pack, random_batch, run,
    token_loss, visible, write_golden)

GAP = 1e-4  # relative to the score of the last chosen one
AUX_COEF = 0.05

# With seeds for which each expert has a gradient in the first batch, no choice is close, and bf16, which may choose
# differently, stays near.
VARIANTS = {
    "qwen3_moe": (0, partial(
        Qwen3MoeConfig, hidden_size=28, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=89, tie_word_embeddings=False, rms_norm_eps=1e-6,
        max_position_embeddings=64, rope_theta=1e6, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=12,
        norm_topk_prob=True, router_aux_loss_coef=AUX_COEF)),
    # Of layers 1 and 3, the second with an even number, only layer 1 has experts.
    "qwen3_moe-mixed": (0, partial(
        Qwen3MoeConfig, hidden_size=24, intermediate_size=34, num_hidden_layers=4, num_attention_heads=3,
        num_key_value_heads=3, head_dim=6, vocab_size=61, tie_word_embeddings=True, rms_norm_eps=1e-5,
        max_position_embeddings=64, attention_bias=True, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=10, norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[3],
        router_aux_loss_coef=AUX_COEF)),
    # head_dim is null in config.json.
    "mixtral": (8, partial(
        MixtralConfig, hidden_size=30, intermediate_size=18, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, vocab_size=83, tie_word_embeddings=False, rms_norm_eps=1e-5,
        max_position_embeddings=64, num_local_experts=5, num_experts_per_tok=2, router_aux_loss_coef=AUX_COEF)),
    # Of the six frequencies two are kept, three are blended and one is divided by the factor; truncated bounds would
    # blend differently. The limit is low enough to clamp some of the activations from each side.
    "gpt_oss": (4, partial(
        GptOssConfig, hidden_size=34, intermediate_size=12, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, vocab_size=71, tie_word_embeddings=False, rms_norm_eps=1e-5,
        max_position_embeddings=8192, sliding_window=6, num_local_experts=5, num_experts_per_tok=3, swiglu_limit=1.5,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "truncate": False, "original_max_position_embeddings": 1024})),
    # partial_rotary_factor is 0.5, the default of the family.
    "glm4_moe": (4, partial(
        Glm4MoeConfig, hidden_size=26, intermediate_size=38, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, vocab_size=67, tie_word_embeddings=False, rms_norm_eps=1e-5,
        max_position_embeddings=64, rope_theta=1e6, attention_bias=True, use_qk_norm=True, n_routed_experts=9,
        num_experts_per_tok=3, n_group=3, topk_group=2, moe_intermediate_size=10, n_shared_experts=2,
        first_k_dense_replace=1, routed_scaling_factor=1.7, norm_topk_prob=True)),
}


# ---- the oracle: transformers, fp32

def build(config, rng):
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager").train()
    assert model.dtype == torch.float32
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            if "rotary_emb" in name:
                continue
            x = rng.standard_normal(tuple(p.shape))
            if name.endswith("norm.weight"):
                x = 1 + 0.2 * x
            elif name.endswith("sinks"):
                pass
            elif p.ndim == 1 or name.endswith("_bias"):
                x = (0.1 if "correction" in name else 0.2) * x
            elif "embed" in name or "lm_head" in name:
                x = x / math.sqrt(p.shape[1])
            else:
                inputs = p.shape[1] if config.model_type == "gpt_oss" else p.shape[-1]
                x = 1.2 * x / math.sqrt(inputs)
            p.copy_(torch.from_numpy(x))
    return model


def mask_arguments(model, b):
    """Masks of the packed documents. A 4-D mask is taken as it is; gpt_oss takes one for each type of layer."""
    def mask(window):
        zeros = torch.zeros(ROWS, 1, POSITIONS, POSITIONS)
        return zeros.masked_fill(~visible(b, window), torch.finfo(torch.float32).min)

    masks = mask(None)
    if model.config.model_type == "gpt_oss":
        masks = {"full_attention": masks, "sliding_attention": mask(model.config.sliding_window)}
    return {"input_ids": b["tokens"], "attention_mask": masks, "position_ids": b["positions"], "use_cache": False}


def oracle(model, b):
    return model(**mask_arguments(model, b), output_router_logits=False).logits.float()


def oracle_balance(model, b):
    """Logits and the auxiliary loss, which has no attention mask: those of documents leave no token out."""
    out = model.model(**mask_arguments(model, b), output_router_logits=True)
    logits = model.lm_head(out.last_hidden_state)
    return logits, load_balancing_loss_func(out.router_logits, model.num_experts, model.num_experts_per_tok)


def check_balance(model):
    """Where a row is one document, the model's own auxiliary loss must be ours."""
    row = pack([document(np.random.default_rng(1), model.config.vocab_size, POSITIONS, 0)], 0)
    b = batch([row] * ROWS)
    with torch.no_grad():
        own = model(input_ids=b["tokens"], use_cache=False, output_router_logits=True)
        logits, aux = oracle_balance(model, b)
    assert torch.equal(own.logits, logits) and torch.equal(own.aux_loss, aux), "the auxiliary loss differs"


class Choices:
    """The experts that a model's routers choose, by call of the model."""

    def __init__(self, model):
        self.calls = []
        for module in model.modules():
            if type(module).__name__.endswith("Router"):
                module.register_forward_hook(lambda _, args, out: self.calls[-1].append(out[2]))

    def of(self, logits):
        def call(b):
            self.calls.append([])
            return logits(b)
        return call


# ---- the oracle's oracle: the same decoders, written out, float64

def rotations(c, head_dim):
    """Angle by position of each pair, and the factor that cos and sin have."""
    r = c["rope_parameters"]
    width = int(head_dim * r.get("partial_rotary_factor", 1.0))
    pair = torch.arange(width // 2, dtype=torch.float64)
    f = r["rope_theta"] ** -(2 * pair / width)
    if r["rope_type"] == "default":
        return f, 1.0
    assert r["rope_type"] == "yarn"

    def bound(turns):  # the pair, a fraction, that turns this often within the original positions
        positions = r["original_max_position_embeddings"]
        return width * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(r["rope_theta"]))

    low, high = bound(r["beta_fast"]), bound(r["beta_slow"])
    if r.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    slowed = ((pair - low) / (high - low)).clamp(0, 1)
    factor = magnitude(r, "mscale") / magnitude(r, "mscale_all_dim") if "mscale" in r else magnitude(r)
    return (1 - slowed) * f + slowed * f / r["factor"], factor


def magnitude(r, key=None):
    """The factor of yarn for cos and sin, times what a key says of its logarithm."""
    return 0.1 * r.get(key, 1.0) * math.log(r["factor"]) + 1


def choose(scores, count):
    """The indices of the highest, ties to the lower index, and how far the next one is below, relative to the last."""
    ordered, indices = scores.sort(dim=-1, descending=True, stable=True)
    if count == scores.shape[-1]:  # there is no choice
        return indices, math.inf
    last, other = ordered[..., count - 1], ordered[..., count]
    return indices[..., :count], ((last - other) / last.abs()).min().item()


# The families that choose by a corrected sigmoid, from groups.
CORRECTED = ("glm4_moe", "glm4_moe_lite", "deepseek_v3")


def route(c, p, name, h):
    """Each token's weights of all experts, 0 for those not chosen; and the route: logits, chosen, gap."""
    family, k = c["model_type"], c["num_experts_per_tok"]
    logits = h @ p[name + ".weight"].T
    if family == "gpt_oss":
        # The softmax is over the chosen ones; that is the renormalised softmax over all.
        logits = logits + p[name + ".bias"]
        chosen, gap = choose(logits.softmax(-1), k)
        weights = logits.gather(-1, chosen).softmax(-1)
    elif family in CORRECTED:
        scores = logits.sigmoid()
        biased = scores + p[name + ".e_score_correction_bias"]
        grouped = biased.unflatten(-1, (c["n_group"], -1))
        best = grouped.sort(-1, descending=True).values[..., :2].sum(-1)
        groups, group_gap = choose(best, c["topk_group"])
        allowed = torch.zeros_like(best, dtype=torch.bool).scatter(-1, groups, True)
        chosen, gap = choose(grouped.masked_fill(~allowed[..., None], -torch.inf).flatten(-2), k)
        gap = min(gap, group_gap)
        weights = scores.gather(-1, chosen)
        if c["norm_topk_prob"]:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * c["routed_scaling_factor"]
    else:
        scores = logits.softmax(-1)
        if c.get("topk_method") == "group_limited_greedy":
            grouped = scores.unflatten(-1, (c["n_group"], -1))
            groups, group_gap = choose(grouped.amax(-1), c["topk_group"])
            allowed = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(-1, groups, True)
            chosen, gap = choose(grouped.masked_fill(~allowed[..., None], -torch.inf).flatten(-2), k)
            gap = min(gap, group_gap)
        else:
            chosen, gap = choose(scores, k)
        weights = scores.gather(-1, chosen)
        if c.get("norm_topk_prob", True) and family != "deepseek_v2":
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * c.get("routed_scaling_factor", 1.0)
    return torch.zeros_like(logits).scatter(-1, chosen, weights), {"logits": logits, "chosen": chosen, "gap": gap}


def swiglu(p, name, h, gate="gate_proj", up="up_proj", down="down_proj"):
    g = h @ p[f"{name}.{gate}.weight"].T
    return (g * torch.sigmoid(g) * (h @ p[f"{name}.{up}.weight"].T)) @ p[f"{name}.{down}.weight"].T


def expert(c, p, n, e, h):
    if c["model_type"] == "mixtral":
        return swiglu(p, f"{n}block_sparse_moe.experts.{e}", h, "w1", "w3", "w2")
    if c["model_type"] != "gpt_oss":
        return swiglu(p, f"{n}mlp.experts.{e}", h)
    n += "mlp.experts."
    both = h @ p[n + "gate_up_proj"][e] + p[n + "gate_up_proj_bias"][e]
    gate = both[:, 0::2].clamp(max=c["swiglu_limit"])
    up = both[:, 1::2].clamp(-c["swiglu_limit"], c["swiglu_limit"])
    act = (up + 1) * gate * torch.sigmoid(c["swiglu_alpha"] * gate)
    return act @ p[n + "down_proj"][e] + p[n + "down_proj_bias"][e]


def feed_forward(c, p, n, i, h, routes):
    family = c["model_type"]
    sparse = {
        "qwen3_moe": lambda: i not in c["mlp_only_layers"] and (i + 1) % c["decoder_sparse_step"] == 0,
        "glm4_moe_lite": lambda: c["mlp_layer_types"][i] == "sparse",
        **dict.fromkeys(("glm4_moe", "deepseek_v3", "deepseek_v2"), lambda: i >= c["first_k_dense_replace"]),
    }.get(family, lambda: True)()
    if not sparse:
        return swiglu(p, n + "mlp", h)
    h = h.flatten(0, 1)
    router = {"mixtral": "block_sparse_moe.gate", "gpt_oss": "mlp.router"}.get(family, "mlp.gate")
    weights, taken = route(c, p, n + router, h)
    routes.append(taken)
    y = sum(weights[:, e, None] * expert(c, p, n, e, h) for e in range(weights.shape[1]))
    if n + "mlp.shared_experts.up_proj.weight" in p:
        y = y + swiglu(p, n + "mlp.shared_experts", h)
    return y.unflatten(0, (ROWS, POSITIONS))


def rms_norm(p, x, name, eps):
    return p[name] * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def linear(p, x, name):
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def attention(c, p, b, n, i, h):
    """The attention of layer i, whose tensors begin with n, of h."""
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim") or c["hidden_size"] // heads
    frequencies, factor = rotations(c, d)
    angle = b["positions"][:, :, None, None].double() * frequencies
    cos, sin, half = factor * angle.cos(), factor * angle.sin(), len(frequencies)

    def rope(x):
        a, z, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        return torch.cat([a * cos - z * sin, z * cos + a * sin, rest], -1)

    window = c["sliding_window"] if c.get("layer_types", [None] * (i + 1))[i] == "sliding_attention" else None
    q = linear(p, h, n + "q_proj").reshape(ROWS, POSITIONS, heads, d)
    k = linear(p, h, n + "k_proj").reshape(ROWS, POSITIONS, groups, d)
    v = linear(p, h, n + "v_proj").reshape(ROWS, POSITIONS, groups, d)
    if n + "q_norm.weight" in p:
        q, k = (rms_norm(p, x, n + norm, c["rms_norm_eps"]) for x, norm in ((q, "q_norm.weight"), (k, "k_norm.weight")))
    q, k = rope(q).reshape(ROWS, POSITIONS, groups, heads // groups, d), rope(k)
    s = torch.einsum("rqghd,rkgd->rghqk", q, k) / math.sqrt(d)
    s = s.masked_fill(~visible(b, window)[:, 0][:, None, None], -torch.inf)
    if n + "sinks" in p:  # one more key of a value of zeros
        sinks = p[n + "sinks"].reshape(1, groups, heads // groups, 1, 1)
        s = torch.cat([s, sinks.expand(ROWS, -1, -1, POSITIONS, 1)], -1)
    a = s.softmax(-1)[..., :POSITIONS]
    o = torch.einsum("rghqk,rkgd->rqghd", a, v).reshape(ROWS, POSITIONS, heads * d)
    return linear(p, o, n + "o_proj")


def float64_logits(c, p, b, routes, attention=attention):
    """Logits with a config.json and the tensors p of a model.safetensors. The sparse layers' routes are appended."""
    eps = c["rms_norm_eps"]
    x = p["model.embed_tokens.weight"][b["tokens"]]
    for i in range(c["num_hidden_layers"]):
        n = f"model.layers.{i}."
        x = x + attention(c, p, b, n + "self_attn.", i, rms_norm(p, x, n + "input_layernorm.weight", eps))
        x = x + feed_forward(c, p, n, i, rms_norm(p, x, n + "post_attention_layernorm.weight", eps), routes)
    head = p.get("lm_head.weight", p["model.embed_tokens.weight"])
    return rms_norm(p, x, "model.norm.weight", eps) @ head.T


def balance(c, routes):
    """The auxiliary loss as transformers has it: E * sum over experts e of f_e * P_e. Over all tokens of the batch, its
    rows together, and all sparse layers together, each token once per layer: f_e is how often e is chosen divided by
    that number, so that all f sum to num_experts_per_tok; P_e is the mean of e's softmax probability over all experts,
    also with norm_topk_prob. The product is of these means, not a mean of products by layer or by row. f has no
    gradient. An attention mask would take tokens out of both; it does not exist here, so pads count as all tokens do."""
    probabilities = torch.cat([r["logits"].softmax(-1) for r in routes])
    chosen = torch.cat([r["chosen"] for r in routes])
    tokens, experts = probabilities.shape
    f = torch.bincount(chosen.flatten(), minlength=experts).double() / tokens
    return experts * (f * probabilities.mean(0)).sum()


# ---- the files

def write_balance(model, c, first, saved, buffers, distance):
    """The tensors of the auxiliary loss, with the distance from float64."""
    check_balance(model)
    model.zero_grad()
    logits, aux = oracle_balance(model, first)
    (token_loss(logits, first["targets"]) + model.router_aux_loss_coef * aux).backward()
    grads = saved({n: p.grad.clone() for n, p in model.named_parameters()})
    model.zero_grad()

    params = {n: p.detach().double().requires_grad_() for n, p in saved(dict(model.named_parameters())).items()}
    routes = []
    exact_logits = float64_logits(c, params | buffers, first, routes)
    exact = balance(c, routes)
    loss = token_loss(exact_logits, first["targets"])
    plain = torch.autograd.grad(loss, list(params.values()), retain_graph=True)
    (loss + c["router_aux_loss_coef"] * exact).backward()
    distance["aux_loss"] = abs(aux.item() / exact.item() - 1)
    distance["aux_grad"] = max(((g - params[n].grad).norm() / params[n].grad.norm()).item() for n, g in grads.items())
    assert distance["aux_loss"] <= LIMITS["loss"] and distance["aux_grad"] <= LIMITS["grad"], distance
    # The loss must make a difference that a test sees.
    routers = [
        ((p.grad - g).norm() / p.grad.norm()).item() for (n, p), g in zip(params.items(), plain) if "gate.w" in n]
    print(f"    aux loss {aux.item():.4f}; of routers' gradients it makes {min(routers):.1e} to {max(routers):.1e};",
          f"aux_loss {distance['aux_loss']:.1e} aux_grad {distance['aux_grad']:.1e}")
    assert min(routers) > 1e-3

    tensors = {"first.aux_loss": np.array([aux.item()], dtype=np.float32)}
    return tensors | {"aux.grad." + n: g.numpy() for n, g in grads.items()}


def write(out, name, variants=VARIANTS, attention=attention):
    seed, config = variants[name]
    config = config()
    rng = np.random.default_rng([seed, 20252, *name.encode()])
    model = build(config, rng)
    check_mask(model, config.vocab_size, lambda b: oracle(model, b))
    first = first_batch(rng, config.vocab_size)
    batches = [random_batch(rng, config.vocab_size, s) for s in range(STEPS)]

    shutil.rmtree(out / name, ignore_errors=True)
    model.save_pretrained(out / name)
    (out / name / "generation_config.json").unlink()

    def saved(tensors):
        return revert_weight_conversion(model, tensors)

    c = json.loads((out / name / "config.json").read_text())
    buffers = {n: x.double() for n, x in model.named_buffers() if "rotary_emb" not in n}
    file = load_file(out / name / "model.safetensors")
    ours = saved({n: p.detach() for n, p in model.named_parameters()}) | buffers
    assert file.keys() == ours.keys() and all(torch.equal(x, ours[n].float()) for n, x in file.items())

    distance, aux = {}, {}
    if getattr(config, "router_aux_loss_coef", None) == AUX_COEF:
        aux = write_balance(model, c, first, saved, buffers, distance)

    choices, calls = Choices(model), []

    def exact_logits(p, b):
        calls.append([])
        return float64_logits(c, p | buffers, b, calls[-1], attention)

    tensors, metadata = golden(
        name, seed, dict(model.named_parameters()), choices.of(lambda b: oracle(model, b)), exact_logits, first,
        batches, saved)

    assert len(calls) == 1 + STEPS and len(choices.calls) == 1 + 3 * STEPS
    for step, (theirs, exact) in enumerate(zip([choices.calls[0], *choices.calls[-STEPS:]], calls), -1):
        assert len(theirs) == len(exact) > 0
        for chosen, r in zip(theirs, exact):
            same = torch.equal(chosen.sort(-1).values, r["chosen"].sort(-1).values)
            assert same, f"{name}: fp32 and float64 choose differently in step {step}"
    idle = [n for n, x in tensors.items() if n.startswith("grad.") and not x.any()]
    assert not idle, f"{name}: no position with a target uses {idle}"
    closest = [min(r["gap"] for call in some for r in call) for some in (calls[:1], calls)]
    print(f"    closest choice: {closest[0]:.1e} in the first batch, {closest[1]:.1e} in all")
    assert closest[1] > GAP, f"{name}: a choice is close"

    metadata |= {"fp32_error_" + k: f"{v:.2e}" for k, v in distance.items()}
    if aux:
        metadata["router_aux_loss_coef"] = str(AUX_COEF)
    write_golden(out / name, tensors | aux, metadata)


def write_mxfp4(out):
    """How transformers turns a packed tensor of gpt_oss into bf16. For both tensors of two experts:

    <name>_blocks   u8 [experts, rows, inputs/32, 16]   rows are the outputs of the product, 2*inner for gate_up_proj
    <name>_scales   u8 [experts, rows, inputs/32]
    <name>          bf16 [experts, inputs, rows]        transposed: the shape of the tensor in an unpacked file

    A block is 32 neighbouring inputs of a row. Its byte j has input 2j in the low four bits and 2j+1 in the high four.
    Four bits are a sign, the highest, two bits of exponent and one of fraction: 0, 0.5, 1, 1.5, 2, 3, 4, 6. The value
    is that times 2^(scale-127). Every product is exact in bf16, subnormal ones too, or it overflows to an infinity.
    gate_up_proj has each of the 16 codes with each of the scales from 0 to 254. The scale 255 is a NaN in the format;
    transformers makes 0 with it a NaN and all else infinite, and no file is known to have it.
    """
    rng = np.random.default_rng(20253)
    experts, inner, hidden = 2, 32, 96
    tensors = {}
    for name, rows, inputs in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        shape = experts, rows, inputs // 32
        count = math.prod(shape)
        scales = rng.integers(0, 255, count)
        codes = rng.integers(0, 16, (count, 32))
        if name == "gate_up_proj":
            all_scales = rng.permutation(count)[:255]
            scales[all_scales] = np.arange(255)
            codes[all_scales] = rng.permuted(np.tile(np.arange(16), (255, 2)), axis=1)
        packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)).reshape(*shape, 16)
        exponents = torch.from_numpy(scales.astype(np.uint8)).reshape(shape)
        theirs = convert_moe_packed_tensors(packed, exponents, dtype=torch.bfloat16)

        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        values = np.concatenate([values, -values])[codes] * 2.0 ** (scales[:, None] - 127)
        exact = torch.from_numpy(values.reshape(experts, rows, inputs)).transpose(1, 2).to(torch.bfloat16).contiguous()
        assert torch.equal(exact.view(torch.int16), theirs.view(torch.int16)), "mxfp4: bits differ"
        name = "model.layers.0.mlp.experts." + name
        tensors |= {name + "_blocks": packed, name + "_scales": exponents, name: theirs}
    (out / "mxfp4").mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "mxfp4" / "mxfp4.safetensors", metadata={"transformers": transformers.__version__})
    print("mxfp4", {n: tuple(x.shape) for n, x in tensors.items()})


if __name__ == "__main__":
    run(sys.argv[1:], [*VARIANTS, "mxfp4"], lambda out, name: write_mxfp4(out) if name == "mxfp4" else write(out, name),
        "testdata-experts", "5.24.0")
