"""A training step of a shape: its configuration, and its FLOPs as `millrace bench` counts them.

Tokens are positions; rows are full, so none is padding. Model FLOPs are 6 for each parameter in a matrix product and each token, and
for attention 12 for each pair of positions that causal attention scores (n (n + 1) / 2 in a row of n), each element of a head and each
head, in each block. Recomputation does not count. Executed FLOPs count it, and the scores that a fused gradient of attention forms again.
"""

import json
import pathlib

SHAPES = pathlib.Path(__file__).resolve().parents[2] / "plan" / "shapes"


def config_of(shape="", model=""):
    """The configuration as a dict: of a shape that `millrace bench --shape` knows, or of a directory's config.json."""
    if shape:
        path = SHAPES / f"{shape}.json"
        if not path.exists():
            known = ", ".join(sorted(p.stem for p in SHAPES.glob("*.json")))
            raise SystemExit(f"shape {shape!r}: unknown; known are {known}")
    else:
        path = pathlib.Path(model) / "config.json"
        if not path.exists():
            raise SystemExit(f"{path}: there is no such file")
    return json.loads(path.read_text())


def flops(config, tokens, sequence_len, recomputed=""):
    """FLOPs of a step: (model, executed).

    recomputed is the part of each block's forward pass that the backward pass computes again: "block" is all of it, "ffn" the two
    products into the MLP, and "" is nothing that has a product.
    """
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    pairs = tokens // sequence_len * (sequence_len * (sequence_len + 1) // 2)
    products = 2 * tokens * hidden * ((heads + 2 * kv_heads) * head_dim + heads * head_dim + 3 * inner)
    pair = 2 * pairs * heads * head_dim  # one product over all pairs: scores, or scores times values
    forward = products + 2 * pair
    blocks = config["num_hidden_layers"]
    head = 2 * tokens * hidden * vocab
    model = 3 * head + 3 * blocks * forward
    again = {"": 0, "ffn": 4 * tokens * hidden * inner, "block": forward}[recomputed]
    executed = 3 * head + blocks * (forward + 2 * products + 5 * pair + again)
    return model, executed


def parameters(config):
    """The number of parameters for estimates of memory. A tied matrix counts once; biases and norms are left out."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    block = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * config["intermediate_size"]
    tables = 1 if config.get("tie_word_embeddings") else 2
    return config["num_hidden_layers"] * block + tables * hidden * config["vocab_size"]
