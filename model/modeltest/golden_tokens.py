"""Write greedy.json of variants of golden files: the tokens that transformers' generate takes after some prompts.

    python3 model/modeltest/golden_tokens.py [VARIANT ...]

The scripts of golden files write it with the rest of a variant. This one alone writes it for variants that are there
and whose golden files are of the installed version of transformers (see the scripts for the two), or for the named ones
of these.

A greedy.json has prompts of two lengths and the TOKENS tokens that follow each, with fp32 and a cache of keys and
values. Where two tokens are about as likely, rounding decides. So of DRAWS random prompts of a length it has the one
that is followed by the most different tokens, among those where each token is likelier than the next one by a margin of
MARGIN in logits, a hundred times what two implementations in fp32 differ by.
"""

import json
import pathlib
import struct
import sys

import numpy as np
import torch
import transformers

LENGTHS, TOKENS, DRAWS, MARGIN = (5, 17), 20, 24, 1e-3


def load(directory):
    """The model of a directory, computed as golden files are."""
    config = json.loads((directory / "config.json").read_text())
    auto = transformers.AutoModelForCausalLM
    if "text_config" in config:
        auto = transformers.AutoModelForImageTextToText
    settings = {} if transformers.__version__.startswith("4.") else {"experts_implementation": "eager"}
    return auto.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32, **settings).eval()


def write(directory):
    """Write the greedy.json of a variant's directory."""
    model = load(directory)
    vocab = model.config.get_text_config().vocab_size
    rng = np.random.default_rng([20, *directory.name.encode()])
    lines = []
    for length in LENGTHS:
        prompts = torch.from_numpy(rng.integers(0, vocab, (DRAWS, length)))
        made = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=TOKENS, min_new_tokens=TOKENS,
            do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0, return_dict_in_generate=True,
            output_logits=True)
        tokens, logits = made.sequences[:, length:], torch.stack(made.logits, 1)
        assert tokens.shape == (DRAWS, TOKENS) and torch.equal(tokens, logits.argmax(-1))
        best = logits.topk(2).values
        margins = (best[..., 0] - best[..., 1]).amin(1).tolist()
        clear = [i for i in range(DRAWS) if margins[i] > MARGIN]
        assert clear, f"{directory.name}: two tokens are about as likely, after each prompt of {length}"
        one = max(clear, key=lambda i: len(set(tokens[i].tolist())))
        lines.append({"prompt": prompts[one].tolist(), "tokens": tokens[one].tolist(),
                      "margin": round(margins[one], 4)})
    print(f"{directory.name:22} different tokens and margins:",
          ", ".join(f"{len(set(x['tokens']))} {x['margin']}" for x in lines), flush=True)
    (directory / "greedy.json").write_text("[\n" + ",\n".join(json.dumps(x) for x in lines) + "\n]\n")


def version(directory):
    """The version of transformers that wrote a variant's golden file."""
    with open(directory / "golden.safetensors", "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))["__metadata__"]["transformers"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for golden in sorted(pathlib.Path(__file__).parent.glob("testdata*/*/golden.safetensors")):
        variant = golden.parent
        if version(variant) == transformers.__version__ and (not sys.argv[1:] or variant.name in sys.argv[1:]):
            write(variant)
