"""Write the golden files of testdata/: what PyTorch and transformers compute for tiny random decoders.

    python3 -m pip install torch==2.9.0 transformers==4.57.3 numpy==2.4.6 safetensors==0.8.0
    python3 model/modeltest/golden.py [VARIANT ...]

Nothing is downloaded: the models are random, drawn from fixed seeds by NumPy. Each variant is a directory

    config.json         as transformers saves it
    model.safetensors   the initial weights, fp32
    golden.safetensors  logits, loss, gradients and 20 steps of training (the tensors are listed at `write`)
    greedy.json         tokens that follow prompts: see golden_tokens.py

Everything golden is computed in fp32 by transformers' own model classes with eager attention, and without the exception
that PyTorch makes for padding tokens (see take_padding_away). A float64 model written
out below, which shares no code with them, computes the same; the script fails where the two are further apart than
LIMITS, which are far inside the tolerances that the Go tests use. The distances are in each file's metadata.
"""

import json
import math
import pathlib
import shutil
import sys
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import golden_tokens

ROWS, POSITIONS, STEPS = 2, 37, 20
PEAK_LR, WARMUP_STEPS = 3e-3, 4
BETAS, EPS, WEIGHT_DECAY = (0.9, 0.95), 1e-8, 0.1
IGNORE = -100

# fp32 against float64. logits: largest difference over the largest logit. grad: per parameter, the norm of the
# difference over the norm. loss: relative. bf16_loss: autocast against fp32.
LIMITS = {"logits": 2e-6, "grad": 5e-6, "loss": 1e-6, "steps_loss": 1e-5, "steps_grad_norm": 1e-4, "bf16_loss": 2e-2}

# Sizes are small, mostly not powers of two, and differ between variants.
VARIANTS = {
    "llama": partial(LlamaConfig,
        hidden_size=36, intermediate_size=76, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=131, tie_word_embeddings=False, rms_norm_eps=1e-5, max_position_embeddings=64),
    "llama-linear-tied": partial(LlamaConfig,
        hidden_size=28, intermediate_size=60, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=67, tie_word_embeddings=True, rms_norm_eps=1e-6, max_position_embeddings=64,
        rope_scaling={"rope_type": "linear", "factor": 4.0}),
    # The wavelengths of these six frequencies fall on all three branches of the llama3 rule.
    "llama-llama3-headdim": partial(LlamaConfig,
        hidden_size=30, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
        head_dim=12, vocab_size=97, tie_word_embeddings=True, rms_norm_eps=1e-5, max_position_embeddings=256,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32}),
    "llama-bias": partial(LlamaConfig,
        hidden_size=24, intermediate_size=68, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=83, tie_word_embeddings=False, rms_norm_eps=1e-5, max_position_embeddings=64,
        attention_bias=True, mlp_bias=True),
    "mistral": partial(MistralConfig,
        hidden_size=36, intermediate_size=58, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
        head_dim=8, vocab_size=113, tie_word_embeddings=False, rms_norm_eps=1e-5, max_position_embeddings=64,
        sliding_window=None),
    "mistral-window": partial(MistralConfig,
        hidden_size=24, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=67, tie_word_embeddings=False, rms_norm_eps=1e-5, max_position_embeddings=64,
        sliding_window=7),
    "qwen2": partial(Qwen2Config,
        hidden_size=30, intermediate_size=62, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        vocab_size=101, tie_word_embeddings=True, rms_norm_eps=1e-6, max_position_embeddings=64, rope_theta=1e6),
    "qwen3": partial(Qwen3Config,
        hidden_size=28, intermediate_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        head_dim=8, vocab_size=131, tie_word_embeddings=True, rms_norm_eps=1e-6, max_position_embeddings=64,
        rope_theta=1e6),
    "qwen3-bias-untied": partial(Qwen3Config,
        hidden_size=26, intermediate_size=54, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        head_dim=10, vocab_size=79, tie_word_embeddings=False, rms_norm_eps=1e-6, max_position_embeddings=64,
        attention_bias=True),
    # Documents have the padding token as a word: see take_padding_away.
    "llama-padding": partial(LlamaConfig,
        hidden_size=20, intermediate_size=44, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=41, tie_word_embeddings=True, rms_norm_eps=1e-5, max_position_embeddings=64, pad_token_id=8),
}


# ---- inputs

def document(rng, vocab, length, prompt):
    """Tokens and labels of a document that is partly predictable; the first `prompt` labels do not count."""
    tokens = [int(rng.integers(vocab))]
    for _ in range(length - 1):
        follow = rng.random() < 0.7
        tokens.append((5 * tokens[-1] + 3) % vocab if follow else int(rng.integers(vocab)))
    labels = [IGNORE if i < prompt else t for i, t in enumerate(tokens)]
    return tokens, labels


def pack(docs, pads):
    """One row: tokens, labels, positions and document numbers. Every pad is a document of its own."""
    tokens, labels, positions, numbers = [], [], [], []
    docs = docs + [([0], [IGNORE])] * pads
    for number, (t, l) in enumerate(docs):
        tokens += t
        labels += l
        positions += range(len(t))
        numbers += [number] * len(t)
    assert len(tokens) == POSITIONS
    return tokens, labels, positions, numbers


def batch(rows):
    tokens, labels, positions, numbers = (torch.tensor(x) for x in zip(*rows))
    targets = torch.full_like(labels, -1)
    same = numbers[:, 1:] == numbers[:, :-1]
    counts = same & (labels[:, 1:] != IGNORE)
    targets[:, :-1][counts] = labels[:, 1:][counts]
    return {"tokens": tokens, "targets": targets, "positions": positions, "numbers": numbers}


def first_batch(rng, vocab):
    return batch([
        pack([document(rng, vocab, 15, 4), document(rng, vocab, 22, 9)], 0),
        pack([document(rng, vocab, 9, 0), document(rng, vocab, 17, 5), document(rng, vocab, 8, 3)], 3),
    ])


def random_batch(rng, vocab, step):
    rows = []
    for row in range(ROWS):
        pads = int(rng.integers(0, 6))
        left, docs = POSITIONS - pads, []
        while left > 0:
            length = min(left, int(rng.choice([1, 2, 5, 8, 13, 20, 37])))
            # One row of one step counts nowhere, so that a mean of means differs from the mean.
            prompt = length if (step, row) == (6, 1) else int(rng.integers(0, length // 2 + 1))
            docs.append(document(rng, vocab, length, prompt))
            left -= length
        rows.append(pack(docs, pads))
    return batch(rows)


def visible(b, window):
    """[rows, 1, query, key]: causal, inside the document, and within the latest `window` keys, the query's included."""
    n = b["numbers"]
    q, k = torch.arange(POSITIONS)[:, None], torch.arange(POSITIONS)[None, :]
    seen = (k <= q) & (n[:, :, None] == n[:, None, :])
    if window is not None:
        seen &= k > q - window
    return seen[:, None]


def token_loss(logits, targets):
    """Sum of the token losses over the count of positions that have a target."""
    counted = targets >= 0
    return F.cross_entropy(logits[counted], targets[counted], reduction="sum") / counted.sum()


# ---- the oracle: transformers, fp32

def build(config, rng):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    with torch.no_grad():
        for pname, p in model.named_parameters():
            x = rng.standard_normal(tuple(p.shape))
            if pname.endswith("norm.weight"):
                x = 1 + 0.2 * x
            elif p.ndim == 1:
                x = 0.2 * x
            elif "embed" in pname or "lm_head" in pname:
                x = x / math.sqrt(p.shape[1])
            else:
                x = 1.2 * x / math.sqrt(p.shape[1])
            p.copy_(torch.from_numpy(x))
    return model


def oracle(model, b, window):
    # A 4-D mask is returned as it is by transformers.masking_utils (early exit of _preprocess_mask_arguments) and added
    # to the scores by eager_attention_forward, for every one of these families, windows included.
    mask = torch.zeros(ROWS, 1, POSITIONS, POSITIONS).masked_fill(~visible(b, window), torch.finfo(torch.float32).min)
    out = model(input_ids=b["tokens"], attention_mask=mask, position_ids=b["positions"], use_cache=False)
    return out.logits.float()


def take_padding_away(model, b, window):
    """transformers leaves the gradient of the padding token's row of the embedding out (torch.nn.Embedding's
    padding_idx), also where the token is a word of a document, such as the end of a turn. The true derivative has it, as
    Millrace does. Return the embedding's gradient as transformers has it, and have the model compute the derivative."""
    embedding, grads = model.get_input_embeddings(), []
    pad = embedding.padding_idx
    assert pad == model.config.pad_token_id
    assert ((b["tokens"] == pad) & (b["targets"] >= 0)).any(), "no document has the padding token as a word"
    for embedding.padding_idx in (pad, None):
        model.zero_grad()
        token_loss(oracle(model, b, window), b["targets"]).backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters()})
    model.zero_grad()
    theirs, true = grads
    for name, g in true.items():
        rows = (theirs[name] != g).reshape(g.shape[0], -1).any(1).nonzero().flatten().tolist()
        assert rows == ([pad] if name == "model.embed_tokens.weight" else []), f"{name}: rows {rows} differ"
    return theirs["model.embed_tokens.weight"]


def check_mask(model, vocab, logits):
    """Where a row is one document, transformers' own mask must give the logits that ours gives."""
    row = pack([document(np.random.default_rng(1), vocab, POSITIONS, 0)], 0)
    b = batch([row] * ROWS)
    with torch.no_grad():
        own = model(input_ids=b["tokens"], use_cache=False).logits
        assert torch.equal(own, logits(b)), "the 4-D mask is not what transformers builds itself"


# ---- the oracle's oracle: the same decoders, written out, float64

def inverse_frequencies(c, head_dim):
    f = c.rope_theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    s = getattr(c, "rope_scaling", None)
    if s is None:
        return f
    if s["rope_type"] == "linear":
        return f / s["factor"]
    assert s["rope_type"] == "llama3"
    old = s["original_max_position_embeddings"]
    turns = old * f / (2 * math.pi)
    blend = ((turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])).clamp(0, 1)
    return (1 - blend) * f / s["factor"] + blend * f


def float64_logits(c, p, b, window):
    heads, groups = c.num_attention_heads, c.num_key_value_heads
    d = getattr(c, "head_dim", None) or c.hidden_size // heads

    def norm(x, name):
        return p[name] * x / torch.sqrt((x * x).mean(-1, keepdim=True) + c.rms_norm_eps)

    def linear(x, name):
        y = x @ p[name + ".weight"].T
        return y + p[name + ".bias"] if name + ".bias" in p else y

    angle = b["positions"][:, :, None, None].double() * inverse_frequencies(c, d)
    cos, sin = angle.cos(), angle.sin()

    def rope(x):
        a, z = x[..., : d // 2], x[..., d // 2:]
        return torch.cat([a * cos - z * sin, z * cos + a * sin], -1)

    seen = visible(b, window)[:, 0]
    x = p["model.embed_tokens.weight"][b["tokens"]]
    for i in range(c.num_hidden_layers):
        n = f"model.layers.{i}."
        h = norm(x, n + "input_layernorm.weight")
        q = linear(h, n + "self_attn.q_proj").reshape(ROWS, POSITIONS, heads, d)
        k = linear(h, n + "self_attn.k_proj").reshape(ROWS, POSITIONS, groups, d)
        v = linear(h, n + "self_attn.v_proj").reshape(ROWS, POSITIONS, groups, d)
        if n + "self_attn.q_norm.weight" in p:
            q, k = norm(q, n + "self_attn.q_norm.weight"), norm(k, n + "self_attn.k_norm.weight")
        q, k = rope(q).reshape(ROWS, POSITIONS, groups, heads // groups, d), rope(k)
        s = torch.einsum("rqghd,rkgd->rghqk", q, k) / math.sqrt(d)
        a = s.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
        o = torch.einsum("rghqk,rkgd->rqghd", a, v).reshape(ROWS, POSITIONS, heads * d)
        x = x + linear(o, n + "self_attn.o_proj")
        h = norm(x, n + "post_attention_layernorm.weight")
        gate = linear(h, n + "mlp.gate_proj")
        x = x + linear(gate * torch.sigmoid(gate) * linear(h, n + "mlp.up_proj"), n + "mlp.down_proj")
    head = p.get("lm_head.weight", p["model.embed_tokens.weight"])
    return norm(x, "model.norm.weight") @ head.T


# ---- training

def learning_rate(step):
    return PEAK_LR * min(1.0, (step + 1) / WARMUP_STEPS)


def decays(name, p):
    """Whether a parameter has weight decay: matrices have it, vectors do not; stacked biases are vectors."""
    return p.ndim >= 2 and not name.endswith("_bias")


def train(params, logits, batches, max_grad_norm):
    """Losses and gradient norms (before clipping) of a step per batch; `logits(b)` computes with `params`, by name."""
    opt = torch.optim.AdamW(
        [{"params": [p for n, p in params.items() if decays(n, p)], "weight_decay": WEIGHT_DECAY},
         {"params": [p for n, p in params.items() if not decays(n, p)], "weight_decay": 0.0}],
        lr=PEAK_LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step, b in enumerate(batches):
        for group in opt.param_groups:
            group["lr"] = learning_rate(step)
        loss = token_loss(logits(b), b["targets"])
        opt.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), max_grad_norm).item())
        losses.append(loss.item())
        opt.step()
    return np.array(losses), np.array(norms)


def stack(batches, key):
    return np.stack([b[key].numpy() for b in batches]).astype(np.int32)


def golden(name, seed, params, logits, float64_logits, first, batches, saved=lambda tensors: tensors):
    """The tensors of a golden.safetensors, and its metadata. `logits(b)` are the oracle's, computed with `params`.
    `float64_logits(p, b)` computes with p, in which parameters have the names and shapes of model.safetensors; `saved`
    gives these to a dict of params or of their gradients."""

    # The first batch, from the initial weights.
    first_logits = logits(first)
    loss = token_loss(first_logits, first["targets"])
    loss.backward()
    grads = saved({n: p.grad.clone() for n, p in params.items()})
    initial = {n: p.detach().clone() for n, p in params.items()}

    def exact_params():
        return {n: x.double().requires_grad_() for n, x in saved(initial).items()}

    exact = exact_params()
    exact_logits = float64_logits(exact, first)
    exact_loss = token_loss(exact_logits, first["targets"])
    exact_loss.backward()
    exact_grads = {n: p.grad for n, p in exact.items()}

    # The 20 steps, always from the initial weights. Without clipping first, so that the limit can be put where about
    # half of the steps are clipped.
    def autocast(b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return logits(b)

    def rerun(logits, max_grad_norm):
        with torch.no_grad():
            for n, p in params.items():
                p.copy_(initial[n])
        return train(params, logits, batches, max_grad_norm)

    _, norms = rerun(logits, math.inf)
    max_grad_norm = round(float(np.median(norms)), 1)
    bf16_losses, _ = rerun(autocast, max_grad_norm)
    losses, norms = rerun(logits, max_grad_norm)
    exact = exact_params()
    exact_losses, exact_norms = train(exact, lambda b: float64_logits(exact, b), batches, max_grad_norm)

    distance = {
        "logits": ((first_logits - exact_logits).abs().max() / exact_logits.abs().max()).item(),
        "grad": max(((g - exact_grads[n]).norm() / exact_grads[n].norm()).item() for n, g in grads.items()),
        "loss": abs(loss.item() / exact_loss.item() - 1),
        "steps_loss": np.abs(losses / exact_losses - 1).max(),
        "steps_grad_norm": np.abs(norms / exact_norms - 1).max(),
        "bf16_loss": np.abs(bf16_losses / losses - 1).max(),
    }
    clipped = int((norms > max_grad_norm).sum())
    print(f"{name:22} {sum(p.numel() for p in params.values()):6} parameters, "
          f"loss {losses[0]:.3f} to {losses[-1]:.3f}, "
          f"norm {norms.min():.2f} to {norms.max():.2f}, clipped at {max_grad_norm}: {clipped};",
          " ".join(f"{k} {v:.1e}" for k, v in distance.items()), flush=True)
    for key, limit in LIMITS.items():
        assert distance[key] <= limit, f"{name}: {key} differs by {distance[key]:.2e}, more than {limit:.0e}"
    assert 5 <= clipped <= STEPS - 5, f"{name}: {clipped} of {STEPS} steps are clipped"

    f32 = lambda x: np.asarray(x, dtype=np.float32).reshape(-1)
    tensors = {"first.logits": first_logits.detach().numpy(), "first.loss": f32(loss.item())}
    for key in ("tokens", "targets", "positions"):
        tensors["first." + key] = stack([first], key)[0]
        tensors["steps." + key] = stack(batches, key)
    tensors |= {"grad." + n: g.numpy() for n, g in grads.items()}
    tensors |= {
        "steps.lr": np.array([learning_rate(s) for s in range(STEPS)]),
        "steps.loss": f32(losses), "steps.grad_norm": f32(norms), "steps.loss_bf16": f32(bf16_losses),
    }
    metadata = {
        "torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__,
        "seed": str(seed), "beta1": str(BETAS[0]), "beta2": str(BETAS[1]), "eps": str(EPS),
        "weight_decay": str(WEIGHT_DECAY), "max_grad_norm": str(max_grad_norm),
    } | {"fp32_error_" + k: f"{v:.2e}" for k, v in distance.items() if k != "bf16_loss"}
    return tensors, metadata


def write(out, name, seed):
    """Compute one variant and write its directory. The tensors of golden.safetensors:

    first.tokens, first.targets, first.positions   i32 [ROWS, POSITIONS]; a target is the next token, -1: does not count;
                                                   a document starts where the position is 0
    first.logits                                   f32 [ROWS, POSITIONS, vocabulary]
    first.loss                                     f32 [1]
    grad.rows.<parameter>, grad.columns.<parameter>
                                                   f32, products of `factors` and the gradient of first.loss, before
                                                   clipping, with the initial weights: one for each row, and each column
    grad.whole.<parameter>                         f32, where the gradient itself is smaller
    steps.tokens, steps.targets, steps.positions   i32 [STEPS, ROWS, POSITIONS]
    steps.lr                                       f64 [STEPS]
    steps.loss, steps.grad_norm                    f32 [STEPS]; the norm is the one before clipping
    steps.loss_bf16                                f32 [STEPS]; under autocast(bfloat16) with fp32 weights
    padded.grad.<embedding>                        f32; only with a padding token: see take_padding_away
    """
    config = VARIANTS[name]()
    window = getattr(config, "sliding_window", None)
    rng = np.random.default_rng([seed, 20251])
    model = build(config, rng)
    logits = lambda b: oracle(model, b, window)
    check_mask(model, config.vocab_size, logits)
    first = first_batch(rng, config.vocab_size)
    batches = [random_batch(rng, config.vocab_size, s) for s in range(STEPS)]

    shutil.rmtree(out / name, ignore_errors=True)
    model.save_pretrained(out / name)
    (out / name / "generation_config.json").unlink()

    padded = None if config.pad_token_id is None else take_padding_away(model, first, window)
    tensors, metadata = golden(
        name, seed, dict(model.named_parameters()), logits, lambda p, b: float64_logits(config, p, b, window), first,
        batches)
    if padded is not None:
        tensors["padded.grad.model.embed_tokens.weight"] = padded.numpy()
    write_golden(out / name, tensors, metadata)


def factors(n):
    """The first n numbers of gradient.go's factor."""
    x = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
    x ^= x >> np.uint64(31)
    return (1 + (x >> np.uint64(11)) / 2**53) * (1 - 2 * (x & np.uint64(1)).astype(np.float64))


def kept(prefix, name, gradient):
    """What a golden file has of a tensor's gradient: gradient.go says why it is this."""
    matrix = gradient.reshape(-1, gradient.shape[-1]).astype(np.float64)
    rows, columns = matrix.shape
    if rows + columns >= matrix.size:
        return {f"{prefix}whole.{name}": gradient.reshape(-1)}
    return {f"{prefix}rows.{name}": (matrix * factors(columns)).sum(1).astype(np.float32),
            f"{prefix}columns.{name}": (factors(rows)[:, None] * matrix).sum(0).astype(np.float32)}


def write_golden(folder, tensors, metadata):
    """golden.safetensors, from tensors with whole gradients."""
    out = {}
    for name, x in tensors.items():
        prefix = next((p for p in ("grad.", "aux.grad.") if name.startswith(p)), None)
        out |= kept(prefix, name.removeprefix(prefix), x) if prefix else {name: x}
    write_safetensors(folder / "golden.safetensors", out, metadata)


def write_safetensors(path, tensors, metadata):
    """The file format, with sorted keys: safetensors' own writer orders metadata by a random hash."""
    header, offset, bodies = {"__metadata__": dict(sorted(metadata.items()))}, 0, []
    # Wide types first, so that every tensor is aligned.
    for name, x in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        body = np.ascontiguousarray(x).tobytes()
        dtype = {"float64": "F64", "float32": "F32", "int32": "I32"}[x.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [offset, offset + len(body)]}
        offset += len(body)
        bodies.append(body)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(bodies))


def run(names, variants, write, directory, version):
    """Write the named variants, or all of them, with the pinned versions and the same bytes each time."""
    assert torch.__version__.startswith("2.9.0") and transformers.__version__ == version, "other versions than pinned"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    out = pathlib.Path(__file__).parent / directory
    for name in variants:
        if not names or name in names:
            write(out, name)
            if (out / name / "golden.safetensors").exists():
                golden_tokens.write(out / name)


def main(names):
    seeds = {name: seed for seed, name in enumerate(VARIANTS)}
    run(names, VARIANTS, lambda out, name: write(out, name, seeds[name]), "testdata", "4.57.3")


if __name__ == "__main__":
    main(sys.argv[1:])
