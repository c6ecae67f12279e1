"""Compares what `millrace import --add-tokens` wrote with what transformers makes of the same model and tokens.

    python3 -m pip install torch==2.9.0 transformers==4.57.3
    millrace import BEFORE AFTER --add-tokens '<|im_start|>,<|im_end|>,<tool>'
    python3 model/modeltest/compare_tokens.py BEFORE AFTER '<|im_start|>,<|im_end|>,<tool>'

Ids and decoded texts must be equal, AFTER must load without a missing or an unexpected tensor, and the logits of old
tokens must be equal to the bit in fp32. The rows of new tokens are compared with the mean of the rows of old ones, which
transformers' resize_token_embeddings adds noise to.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

before, after, tokens = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
theirs, ours = AutoTokenizer.from_pretrained(before), AutoTokenizer.from_pretrained(after)
n = len(theirs)
added = theirs.add_tokens(tokens, special_tokens=True)
texts = ["".join(tokens), " ".join(tokens), f"a{tokens[0]}b c\n{tokens[-1]} d", "no token of these, but <|im_star|> é 你好", *tokens]
for text in texts:
    a, b = theirs(text)["input_ids"], ours(text)["input_ids"]
    assert a == b, (text, a, b)
    for skip in (False, True):
        assert theirs.decode(a, skip_special_tokens=skip) == ours.decode(b, skip_special_tokens=skip), text
assert [theirs.convert_tokens_to_ids(t) for t in tokens] == [ours.convert_tokens_to_ids(t) for t in tokens]

old = AutoModelForCausalLM.from_pretrained(before, dtype=torch.float32)
new, info = AutoModelForCausalLM.from_pretrained(after, dtype=torch.float32, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
rows = old.config.get_text_config().vocab_size
assert new.config.get_text_config().vocab_size == max(rows, n + added), new.config
ids = torch.randint(n, (2, 50), generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    a, b = old(ids).logits[..., :n], new(ids).logits[..., :n]
    print("largest difference of a logit of old tokens:", (a - b).abs().max().item())
    for kind in ("get_input_embeddings", "get_output_embeddings"):
        w, v = getattr(old, kind)().weight, getattr(new, kind)().weight
        mean = w[:n].double().mean(0)
        print(kind, "rows", w.shape[0], "->", v.shape[0], "largest difference from the mean:",
              (v[n : n + added].double() - mean).abs().max().item())
        assert torch.equal(w[:n], v[:n]) and torch.equal(w[n + added :], v[n + added : max(rows, n + added)])
    assert torch.equal(a, b)
    new(torch.tensor([ours(texts[0])["input_ids"]]))
