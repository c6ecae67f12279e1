"""Compare logits and gradients that `millrace grad --logits` wrote with those of transformers for the same model
directory.

    python3 -m pip install torch==2.9.0 transformers==5.24.0 safetensors==0.8.0
    millrace grad --model DIR --tokens TOKENS.json --logits --out OUT.safetensors
    python3 model/modeltest/compare_logits.py DIR TOKENS.json OUT.safetensors [--tolerance 1e-5]

TOKENS.json is {"input_ids": [[...], ...], "labels": [[...], ...]}; OUT.safetensors has logits.<i> for sequence i, loss,
and the gradient of each parameter. transformers computes in fp32 with eager attention and eager experts, whose products by groups need widths that
are multiples of 16 bytes, one sequence at a time. Prints the
largest absolute difference of logits, the same over the largest logit, the difference of the losses, and the tensor whose
gradient differs most. Exit status 1 if a relative one of them is beyond its tolerance, 2 if the files do not belong
together.

Of a model whose config.json has a pad_token_id, transformers leaves the gradient of that token's row of the input
embedding out; Millrace computes the derivative (docs/numerics.md). The gradients are compared with that exception taken
out of transformers, and a line says by how much its own row differs.
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


def gradients(model, sequences, labels, counted):
    """The gradients of the sum of the token losses over the count of tokens that count; towers that text does not pass
    have none."""
    model.zero_grad()
    for ids, label in zip(sequences, labels, strict=True):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        loss = torch.nn.functional.cross_entropy(
            logits[:-1], torch.tensor(label)[1:], ignore_index=IGNORE, reduction="sum")
        (loss / counted).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def compare_gradients(model, sequences, labels, counted, got, tolerance):
    """Print the tensor whose gradient differs most; report whether that is beyond the tolerance."""
    embedding = model.get_input_embeddings()
    pad = embedding.padding_idx
    for table in model.modules():
        if isinstance(table, torch.nn.Embedding):
            table.padding_idx = None
    want = gradients(model, sequences, labels, counted)
    differs = {n: ((got[n].float().reshape(g.shape) - g).norm() / g.norm()).item() for n, g in want.items() if n in got}
    # A NaN is more than any number.
    worst = max(differs, key=lambda n: differs[n] if differs[n] == differs[n] else float("inf"))
    print(f"gradients: {len(differs)} of {len(want)} tensors; the worst is {worst}, {differs[worst]:.3e} of its norm")
    if pad is not None and any(pad in ids for ids in sequences):
        embedding.padding_idx = pad
        name = next(n for n, p in model.named_parameters() if p is embedding.weight)
        theirs = gradients(model, sequences, labels, counted)[name]
        rows = (theirs != want[name]).any(1).nonzero().flatten().tolist()
        print(f"the padding token {pad} is in the sequences: transformers leaves its row of {name} out of the gradient, "
              f"and Millrace does not (docs/numerics.md); compared without that exception, which changes rows {rows} of "
              f"{len(theirs)}")
    return not differs[worst] <= tolerance


def main():
    parser = argparse.ArgumentParser(description="Compare exported logits with transformers.")
    parser.add_argument("dir")
    parser.add_argument("tokens")
    parser.add_argument("out")
    parser.add_argument("--tolerance", type=float, default=1e-5,
                        help="of the largest difference, over the largest logit, and of the relative loss")
    parser.add_argument("--gradient-tolerance", type=float, default=1e-4,
                        help="of the norm of the difference, over the norm of a tensor's gradient")
    args = parser.parse_args()

    with open(args.tokens) as f:
        request = json.load(f)
    got = load_file(args.out)
    model = AutoModelForCausalLM.from_pretrained(
        args.dir, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        local_files_only=True).eval()

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

    bad = False
    if counted and any(name in got for name, _ in model.named_parameters()):
        bad = compare_gradients(model, request["input_ids"], labels, counted, got, args.gradient_tolerance)
    relative = worst / largest
    print(f"logits: max abs difference {worst:.3e}, {relative:.3e} of the largest ({largest:.3f})")
    bad |= not relative <= args.tolerance
    if counted and "loss" in got:
        want, mine = loss_sum / counted, got["loss"].item()
        print(f"loss: {mine:.7f}, transformers {want:.7f}, difference {mine - want:+.3e}")
        bad |= not abs(mine / want - 1) <= args.tolerance
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
