"""Compare logits that `millrace grad --logits` wrote with those of transformers for the same model directory.

    python3 -m pip install torch==2.9.0 transformers==4.57.3 safetensors==0.8.0
    millrace grad --model DIR --tokens TOKENS.json --logits --out OUT.safetensors
    python3 model/modeltest/compare_logits.py DIR TOKENS.json OUT.safetensors [--tolerance 1e-5]

TOKENS.json is {"input_ids": [[...], ...], "labels": [[...], ...]}; OUT.safetensors has logits.<i> for sequence i, and
loss. transformers computes in fp32 with eager attention, one sequence at a time. Prints the largest absolute difference
of logits, the same over the largest logit, and the difference of the losses. Exit status 1 if a relative one of them is
beyond the tolerance, 2 if the files do not belong together.
"""

import argparse
import json
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

IGNORE = -100


def fail(message):
    print(message, file=sys.stderr)
    sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description="Compare exported logits with transformers.")
    parser.add_argument("dir")
    parser.add_argument("tokens")
    parser.add_argument("out")
    parser.add_argument("--tolerance", type=float, default=1e-5,
                        help="of the largest difference, over the largest logit, and of the relative loss")
    args = parser.parse_args()

    with open(args.tokens) as f:
        request = json.load(f)
    got = load_file(args.out)
    model = AutoModelForCausalLM.from_pretrained(
        args.dir, dtype=torch.float32, attn_implementation="eager", local_files_only=True).eval()

    worst, largest, loss_sum, counted = 0.0, 0.0, 0.0, 0
    labels = request.get("labels") or [[IGNORE] * len(ids) for ids in request["input_ids"]]
    with torch.no_grad():
        for i, (ids, label) in enumerate(zip(request["input_ids"], labels, strict=True)):
            want = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
            mine = got.get(f"logits.{i}")
            if mine is None or mine.numel() != want.numel():
                fail(f"{args.out}: logits.{i} is missing or not of {tuple(want.shape)}: was it written for {args.tokens}?")
            difference = (mine.float().reshape(want.shape) - want).abs().max().item()
            # max() would drop a NaN.
            worst = difference if not difference <= worst else worst
            largest = max(largest, want.abs().max().item())
            target = torch.tensor(label)[1:]
            loss_sum += torch.nn.functional.cross_entropy(
                want[:-1], target, ignore_index=IGNORE, reduction="sum").item()
            counted += int((target != IGNORE).sum())

    relative = worst / largest
    print(f"logits: max abs difference {worst:.3e}, {relative:.3e} of the largest ({largest:.3f})")
    bad = not relative <= args.tolerance
    if counted and "loss" in got:
        want, mine = loss_sum / counted, got["loss"].item()
        print(f"loss: {mine:.7f}, transformers {want:.7f}, difference {mine - want:+.3e}")
        bad |= not abs(mine / want - 1) <= args.tolerance
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
