"""Writes testdata/golden.json: what transformers computes for soft caps, attention sinks and gated delta nets.

    python3 -m pip install torch==2.9.0 transformers==4.57.3 numpy==2.4.6
    python3 device/devicetest/golden.py

Nothing is downloaded: inputs are random, drawn from fixed seeds by NumPy, small, and in float64. Attention is that of gpt-oss (sinks, with
and without its window) and of Gemma 2 (soft cap) in transformers' eager form; the loss is that of a Gemma 2 model with one layer, by its
logits before they are capped. The delta net is that of Qwen3-Next. golden_test.go holds the suite's reference against
all of it.
"""

import json
import pathlib
import types

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

ROWS, HEADS, KV_HEADS, HEAD_DIM = 9, 4, 2, 4
STARTS = [0, 0, 0, 0, 0, 5, 5, 5, 5]  # two documents


def flat(x):
    """All elements to nine digits; gemma2's softmax has no more."""
    return [] if x is None else [float(f"{e:.9g}") for e in x.detach().reshape(-1).tolist()]


def attention(seed, forward, window, soft_cap, sinks):
    """One attention of transformers, over the documents of STARTS, and all its gradients."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: torch.tensor(rng.standard_normal(shape).round(3))
    leaf = lambda *shape: normal(*shape).requires_grad_()
    q, k, v = leaf(ROWS, HEADS, HEAD_DIM), leaf(ROWS, KV_HEADS, HEAD_DIM), leaf(ROWS, KV_HEADS, HEAD_DIM)
    dout = normal(ROWS, HEADS, HEAD_DIM)
    sink = leaf(HEADS) if sinks else None
    i, j = torch.arange(ROWS)[:, None], torch.arange(ROWS)[None, :]
    seen = (j <= i) & (j >= torch.tensor(STARTS)[:, None])
    if window:
        seen &= j > i - window
    mask = torch.where(seen, 0.0, -torch.inf).to(q.dtype)[None, None]
    module = types.SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, head_dim=HEAD_DIM, training=False, sinks=sink)
    heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]
    scale = 0.75
    out = forward(module, *heads_first, mask, scaling=scale, **({"softcap": soft_cap} if soft_cap else {}))[0][0]
    out.backward(dout)
    return {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "start": STARTS, "window": window, "scale": scale,
            "soft_cap": soft_cap, "sinks": flat(sink), "q": flat(q), "k": flat(k), "v": flat(v), "dout": flat(dout), "out": flat(out),
            "dq": flat(q.grad), "dk": flat(k.grad), "dv": flat(v.grad), "dsinks": flat(sink.grad) if sinks else []}


def loss(seed, soft_cap):
    """The mean loss of a Gemma 2 model, and its gradient by the logits before they are capped."""
    torch.manual_seed(seed)
    config = transformers.Gemma2Config(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
        final_logit_softcapping=soft_cap, initializer_range=1.0, attn_implementation="eager")
    model = transformers.Gemma2ForCausalLM(config).double()
    raw = []

    def keep(_module, _inputs, logits):
        logits.retain_grad()
        raw.append(logits)

    model.lm_head.register_forward_hook(keep)
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, config.vocab_size, (1, 6)))
    labels = ids.clone()
    labels[0, 3] = -100
    result = model(input_ids=ids, labels=labels)
    result.loss.backward()
    return {"vocab": config.vocab_size, "soft_cap": soft_cap, "targets": labels[0, 1:].tolist(), "loss": result.loss.item(),
            "logits": flat(raw[0][0, :-1]), "dlogits": flat(raw[0].grad[0, :-1])}


def delta(seed):
    """A gated delta net of Qwen3-Next from its convolution to its outputs, and all its gradients.

    transformers computes the recurrence in float32, and heads first have keys of their own.
    """
    rng = np.random.default_rng(seed)
    leaf = lambda *shape: torch.tensor(rng.standard_normal(shape).round(3)).requires_grad_()
    key_heads, key_dim, value_dim, taps = 2, 3, 2, 4
    keys = key_heads * key_dim
    x, w = leaf(ROWS, 2 * keys + HEADS * value_dim), leaf(2 * keys + HEADS * value_dim, taps)
    a, b, a_log, dt_bias = leaf(ROWS, HEADS), leaf(ROWS, HEADS), leaf(HEADS), leaf(HEADS)
    dout = leaf(ROWS, HEADS * value_dim).detach()
    outs = []
    for start in sorted(set(STARTS)):
        rows = slice(start, start + STARTS.count(start))
        n = STARTS.count(start)
        qkv = F.silu(F.conv1d(x[rows].T[None], w[:, None], padding=taps - 1, groups=len(w))[0, :, :n].T)
        q, k, v = qkv.split([keys, keys, HEADS * value_dim], dim=1)
        q, k = (t.view(1, n, key_heads, key_dim).repeat_interleave(HEADS // key_heads, dim=2) for t in (q, k))
        decay = -a_log.exp() * F.softplus(a[rows] + dt_bias)
        out, _ = qwen3_next.torch_recurrent_gated_delta_rule(
            q, k, v.view(1, n, HEADS, value_dim), decay[None], b[rows].sigmoid()[None], None, False,
            use_qk_l2norm_in_kernel=True)
        outs.append(out.reshape(n, HEADS * value_dim))
    out = torch.cat(outs)
    out.backward(dout)
    return {"key_heads": key_heads, "heads": HEADS, "key_dim": key_dim, "value_dim": value_dim, "start": STARTS,
            "x": flat(x), "w": flat(w), "a": flat(a), "b": flat(b), "a_log": flat(a_log), "dt_bias": flat(dt_bias),
            "dout": flat(dout), "out": flat(out), "dx": flat(x.grad), "dw": flat(w.grad), "da": flat(a.grad),
            "db": flat(b.grad), "da_log": flat(a_log.grad), "ddt_bias": flat(dt_bias.grad)}


golden = {
    "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
    "attention": {
        "gpt-oss": attention(1, gpt_oss.eager_attention_forward, 0, 0.0, True),
        "gpt-oss, window": attention(2, gpt_oss.eager_attention_forward, 3, 0.0, True),
        "gemma2": attention(3, gemma2.eager_attention_forward, 0, 1.5, False),
        "gemma2, window": attention(4, gemma2.eager_attention_forward, 2, 1.5, False),
    },
    "loss": {"gemma2": loss(5, 2.0)},
    "delta": {"qwen3-next": delta(6)},
}
path = pathlib.Path(__file__).parent / "testdata" / "golden.json"
path.parent.mkdir(exist_ok=True)
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(path, path.stat().st_size, "bytes")
