"""Write distill.json, here and in objective/testdata: distillation from a teacher's likeliest tokens, by PyTorch.

    python3 -m pip install torch==2.15.0 transformers==5.24.0 trl==1.16.0 accelerate==1.15.0 datasets==5.2.0
    python3 train/testdata/distill.py

The decoder, its weights, texts and optimizer are those of objectives.py. The teacher's logits are numbers of the same
formula (`taught`); its K likeliest tokens are known, and the rest of its probability is one bucket. All is computed in
float64 by autograd, the model too. A temperature divides the logits of model and teacher before the divergence, which then
counts its square. The file here has by step the loss, the divergence and the gradient's norm before
clipping; that of objective/testdata has, of single positions, loss and gradient by logit.
"""

import json
import pathlib

import torch
from transformers import LlamaForCausalLM

from objectives import LEARNING_RATE, PAIRS, STEPS, EOS, config, set_weights, tokenizer, weight


def taught(number, positions, vocab, temperature):
    """log-probabilities of the teacher, from logits between -4 and 4."""
    return torch.log_softmax(64 * weight(1000 + number, positions * vocab).view(positions, vocab).double() / temperature, -1)


def top(logp, k):
    values, ids = torch.sort(logp, dim=-1, descending=True, stable=True)
    return ids[:, :k], values[:, :k].float().double()


def losses(logits, ids, logp, targets, share, temperature):
    """By position: share of the divergence with a tail bucket, and the rest of the negative log-likelihood."""
    q = torch.log_softmax(logits / temperature, -1)
    of = q.gather(-1, ids)
    p = logp.exp()
    tail, own = 1 - p.sum(-1), 1 - of.exp().sum(-1)
    kl = (p * (logp - of)).sum(-1) + tail * (tail.log() - own.log())
    nll = -q.gather(-1, targets[:, None])[:, 0]
    return share * temperature**2 * kl + (1 - share) * nll, kl, nll


def steps(k, share, temperature):
    tok = tokenizer()
    model = set_weights(LlamaForCausalLM(config())).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    made = {"K": k, "Share": share, "Temperature": temperature, "Losses": [], "KLs": [], "NLLs": [], "Norms": []}
    for _ in range(STEPS):
        sums, count = [0, 0, 0], 0
        for i, (prompt, answer, _) in enumerate(PAIRS):
            first = tok(prompt)["input_ids"]
            ids = torch.tensor(first + tok(answer)["input_ids"] + [EOS])
            counted = slice(len(first) - 1, len(ids) - 1)
            logits = model(ids[None]).logits[0]
            likeliest = [x[counted] for x in top(taught(i, len(ids), 98, temperature), k)]
            of = losses(logits[counted], *likeliest, ids[1:][counted], share, temperature)
            sums = [s + x.sum() for s, x in zip(sums, of)]
            count += len(of[0])
        optimizer.zero_grad()
        (sums[0] / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for name, x in zip(("Losses", "KLs", "NLLs", "Norms"), [s / count for s in sums] + [norm]):
            made[name].append(float(f"{x.item():.12g}"))
    return made


def position(number, k, share, temperature, is_in):
    """A position of a vocabulary of 12, whose target is one of the K or not."""
    logits = 32 * weight(2000 + number, 12).double()[None]
    logits.requires_grad_()
    ids, logp = top(taught(number, 1, 12, temperature), k)
    target = ids[:, 1] if is_in else taught(number, 1, 12, temperature).argmin(-1)
    loss, kl, nll = losses(logits, ids, logp, target, share, temperature)
    loss.sum().backward()
    return {"Share": share, "Temperature": temperature, "Logits": logits[0].tolist(), "IDs": ids[0].tolist(), "Teacher": logp[0].tolist(),
            "Target": target.item(), "Loss": loss.item(), "KL": kl.item(), "Gradient": logits.grad[0].tolist()}


def main():
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).parent
    kinds = ((1.0, 1.0), (0.5, 1.0), (1.0, 2.0))  # share, temperature
    runs = [steps(k, *kind) for k in (4, 97) for kind in kinds]
    for run in runs:
        print(run["K"], run["Share"], run["Temperature"], run["Losses"], run["Norms"])
    (here / "distill.json").write_text("[\n" + ",\n".join(json.dumps(x) for x in runs) + "\n]\n")
    cases = [position(i, k, *kind, is_in) for i, (k, kind, is_in) in enumerate(
        (k, kind, is_in) for k in (4, 11) for kind in kinds for is_in in (True, False))]
    to = here.parent.parent / "objective" / "testdata"
    to.mkdir(exist_ok=True)
    (to / "distill.json").write_text("[\n" + ",\n".join(json.dumps(x) for x in cases) + "\n]\n")


if __name__ == "__main__":
    main()
