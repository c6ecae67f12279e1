"""Write warpers.json: what transformers makes of logits before it draws a token.

    python3 -m pip install torch==2.9.0 transformers==5.24.0 numpy==2.4.6 safetensors==0.8.0
    python3 train/generate/testdata/warpers.py

"given" has logits, and the distributions that remain of them: TemperatureLogitsWarper, TopKLogitsWarper and
TopPLogitsWarper, one after the other as GenerationMixin makes them for generate, and the softmax in float64 of the
scores that come out. Where equal logits are at the edge of what is kept, "tied" is true.

"families" has texts that generate has drawn, with fp32 and a cache of keys and values, from models of
model/modeltest, and the distributions of some of its steps, each of its scores. Where rounding in fp32 could decide
which tokens are kept, another text is drawn: these steps keep them by a margin of MARGIN, in logits and in sums of
probabilities.

A distribution has the ids of the tokens that are kept, in their order, and their log-probabilities.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
import transformers
from transformers import GenerationConfig

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parents[2] / "model" / "modeltest"
sys.path.insert(0, str(MODELS))
from golden_tokens import load  # noqa: E402

VARIANTS = ("testdata/llama", "testdata/qwen3", "testdata/mistral-window", "testdata-families/gemma2",
            "testdata-families/cohere2", "testdata-experts/gpt_oss", "testdata-latent/deepseek_v3",
            "testdata-delta/qwen3_5")
SETTINGS = ((0.7, 0, 1.0), (1.3, 9, 1.0), (0.8, 0, 0.7), (1.1, 24, 0.85))  # temperature, top k, top p
PROMPT, TOKENS, STEPS, MARGIN = 19, 12, (0, 1, 5, 11), 1e-4


def distribution(scores):
    """The ids and log-probabilities that scores leave."""
    log = torch.log_softmax(scores.double(), -1)
    kept = [i for i, x in enumerate(scores.tolist()) if x != -math.inf]
    return {"ids": kept, "log_probs": [round(log[i].item(), 7) for i in kept]}


def warpers(temperature, top_k, top_p):
    """The processors of generate, of which no other one changes scores."""
    config = GenerationConfig(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p)
    made = transformers.GenerationMixin._get_logits_processor(Bare(), generation_config=config)
    names = [type(x).__name__ for x in made]
    want = [name for name, on in (("TemperatureLogitsWarper", temperature != 1), ("TopKLogitsWarper", top_k > 0),
                                  ("TopPLogitsWarper", top_p < 1)) if on]
    assert names == want, names
    return made


class Bare(transformers.GenerationMixin):
    """What GenerationMixin asks of a model where it makes processors."""

    class config:
        is_encoder_decoder = False


def given():
    rng = np.random.default_rng(4)
    normal = [round(x, 3) for x in rng.normal(0, 2, 24).tolist()]
    cases = [(normal, s) for s in ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.9), (0.6, 7, 0.8),
                                   (2.5, 20, 0.95), (1.0, 1, 1.0), (1.0, 100, 1.0), (1.0, 0, 1e-6), (0.01, 0, 1.0),
                                   (100.0, 12, 0.5))]
    huge = [30000.0, 29999.0, 29990.5, 0.0, -30000.0, 29998.5]
    cases += [(huge, s) for s in ((1.0, 0, 1.0), (0.1, 0, 0.9), (2.0, 3, 1.0))]
    none = [1.0, -math.inf, 0.5, -math.inf, -math.inf, 2.0]
    cases += [(none, s) for s in ((1.0, 0, 1.0), (0.5, 2, 1.0), (1.0, 0, 0.8))]
    one = [-math.inf, -math.inf, 3.0, -math.inf]
    cases += [(one, s) for s in ((0.3, 0, 0.9), (1.0, 3, 1.0))]
    far = [0.0, -200.0, -80.0, -400.0, 0.25]
    cases += [(far, s) for s in ((1.0, 0, 1.0), (0.2, 0, 0.999), (3.0, 4, 1.0))]
    equal = [1.5] * 8
    cases += [(equal, (1.0, 0, 1.0)), (equal, (0.5, 3, 1.0)), (equal, (1.0, 0, 0.55)), (equal, (1.0, 5, 0.55))]
    edge = [2.0, 1.0, 3.0, 1.0, 1.0, 0.0]  # the third largest is one of three
    cases += [(edge, (1.0, 3, 1.0)), (edge, (0.7, 2, 1.0)), (edge, (1.0, 5, 1.0)), (edge, (1.0, 0, 0.82))]
    for logits, (temperature, top_k, top_p) in cases:
        scores = warpers(temperature, top_k, top_p)(torch.zeros((1, 1), dtype=torch.long), torch.tensor([logits]))[0]
        tied = any(a == b for a in (logits[i] for i in range(len(logits)) if scores[i] == -math.inf and logits[i] > -math.inf)
                   for b in (logits[i] for i in range(len(logits)) if scores[i] != -math.inf))
        tied |= 0 < top_k < len(logits) and sorted(logits)[-top_k] == sorted(logits)[-top_k - 1] != -math.inf
        yield {"logits": [None if x == -math.inf else x for x in logits], "temperature": temperature, "top_k": top_k,
               "top_p": top_p, "tied": tied, **distribution(scores)}


def clear(logits, temperature, top_k, top_p):
    """Whether the tokens that are kept have a margin."""
    sorted_ = (logits.double() / temperature).sort(descending=True).values
    if top_k:
        if sorted_[top_k - 1] - sorted_[top_k] < MARGIN:
            return False
        sorted_ = sorted_[:top_k]
    if top_p < 1:
        sums = sorted_.softmax(-1).cumsum(-1)
        at = int((sums < top_p).sum())
        near = (sums - top_p).abs().min()
        return bool(near > MARGIN) and (at + 1 >= len(sorted_) or bool(sorted_[at] - sorted_[at + 1] > MARGIN))
    return True


def families():
    for variant in VARIANTS:
        model = load(MODELS / variant)
        model.generation_config = GenerationConfig(pad_token_id=0)  # no token ends a text
        vocab = model.config.get_text_config().vocab_size
        rng = np.random.default_rng([6, *variant.encode()])
        for temperature, top_k, top_p in SETTINGS:
            for seed in range(100):
                prompt = torch.from_numpy(rng.integers(0, vocab, (1, PROMPT)))
                torch.manual_seed(seed)
                config = GenerationConfig(
                    do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p, max_new_tokens=TOKENS,
                    use_cache=True, pad_token_id=0, return_dict_in_generate=True,
                    output_scores=True, output_logits=True)
                made = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
                if all(clear(made.logits[i][0], temperature, top_k, top_p) for i in STEPS):
                    break
            else:
                raise AssertionError(f"{variant}: no text is clear")
            tokens = made.sequences[0, PROMPT:].tolist()
            assert len(tokens) == TOKENS
            steps = [{"at": i, **distribution(made.scores[i][0])} for i in STEPS]
            print(f"{variant:28} {temperature} {top_k} {top_p}: kept", [len(x["ids"]) for x in steps], flush=True)
            yield {"variant": pathlib.Path(variant).name, "temperature": temperature, "top_k": top_k, "top_p": top_p,
                   "prompt": prompt[0].tolist(), "tokens": tokens, "steps": steps}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    parts = [f'"{name}": [\n' + ",\n".join(json.dumps(x) for x in rows) + "\n]"
             for name, rows in (("given", given()), ("families", families()))]
    (HERE / "warpers.json").write_text(f'{{"transformers": "{transformers.__version__}",\n' + ",\n".join(parts) + "\n}\n")
