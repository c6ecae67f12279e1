"""Write critic.json: ten steps of PPO with a critic that shares the policy's blocks, by PyTorch, of a tiny decoder.

    python3 -m pip install torch==2.15.0 transformers==5.24.0 trl==1.16.0 accelerate==1.15.0 datasets==5.2.0
    python3 train/testdata/critic.py

The decoder and its weights are those of objectives.py next to it. There are four prompts with two answers each, all of
them in every step, in fp32 on a CPU, with AdamW at a constant learning rate of 1e-3, and the gradient's norm is clipped
to 1. The critic is a row of zeros on the rows that lm_head reads; it is a parameter like the others. The reference is
the decoder as it begins. Advantages and returns are computed in float64, as objective/testdata/critic.py does, and the
losses are PyTorch's autograd. A run has the settings of Millrace that ask for the same, and by step the loss, the
gradient's norm before clipping, and metrics.

An entropy bonus is computed in float64 of all logits, and its gradient is autograd's, too. In the run of GRPO nothing
reads the critic, and it stays as it is. The answers in Cut were cut off: with MaskTruncated no token of them counts.
"""

import json
import math
import pathlib

import torch
import transformers
from objectives import EOS, LEARNING_RATE, PAIRS, STEPS, config, set_weights, tokenizer
from transformers import LlamaForCausalLM

REWARDS = [1.0, -0.5, 0.25, 2.0, 0.0, 1.5, -1.0, 0.75]
RUNS = {
    "defaults": {"KL": 0.1},
    "far-sighted": {"Gamma": 0.9, "Lambda": 1.0, "VFCoef": 1.0, "ClipValue": 0.0},
    "entropy bonus": {"EntropyCoef": 0.5},
    "entropy bonus of GRPO": {"Losses": ["grpo"], "MaskTruncated": True, "EntropyCoef": 0.5},
}
CUT = [5]


def log_probs(logits, ids, start):
    return torch.log_softmax(logits[0, start - 1:-1], -1).gather(-1, ids[0, start:, None])[:, 0]


def entropies(logits, start):
    lp = torch.log_softmax(logits[0, start - 1:-1].double(), -1)
    return -(lp.exp() * lp).sum(-1)


def whiten(all_of):
    x = torch.cat(all_of)
    return [(a - x.mean()) / torch.sqrt(x.var() + 1e-8) for a in all_of]


def estimates(old, ref, values, reward, s):
    gamma, lam, beta = s.get("Gamma", 1.0), s.get("Lambda", 0.95), s.get("KL", 0.0)
    old, ref, values = old.double(), ref.double(), values.double()
    rewards = -beta * (old - ref)
    rewards[-1] += reward
    a, last = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(a))):
        after = values[t + 1] if t + 1 < len(a) else 0.0
        last = rewards[t] + gamma * after - values[t] + gamma * lam * last
        a[t] = last
    return a, a + values


def ppo(s, lps, values, advantages, returns):
    """The loss, and metrics."""
    lp, v = torch.cat(lps).double(), torch.cat(values).double()
    a, g = torch.cat(whiten(advantages)), torch.cat(returns)
    ratio = torch.exp(lp - lp.detach())
    pg = torch.max(-a * ratio, -a * torch.clamp(ratio, 0.8, 1.2))
    vf = 0.5 * (v - g) ** 2  # one update: no value has moved
    loss = pg.mean() + s.get("VFCoef", 0.1) * vf.mean()
    return loss, {"loss/value_avg": vf.mean().item(), "critic/values/mean": v.mean().item(),
                  "critic/returns/mean": g.mean().item(),
                  "critic/vf_explained_var": (1 - (g - v).var() / g.var()).item()}


def grpo(lps, cut):
    """The mean of all answers' means of tokens, where those that were cut off have 0."""
    pairs = torch.tensor(REWARDS, dtype=torch.float64).view(-1, 2)
    a = ((pairs - pairs.mean(1, keepdim=True)) / (pairs.std(1, keepdim=True) + 1e-4)).view(-1)
    ratios = [torch.exp(lp.double() - lp.double().detach()) for lp in lps]  # one update: they are 1
    return sum((-a[i] * r).mean() for i, r in enumerate(ratios) if i not in cut) / len(lps)


def run(s, answers):
    model = set_weights(LlamaForCausalLM(config()).to(torch.float32))
    reference = set_weights(LlamaForCausalLM(config()).to(torch.float32))
    row = torch.nn.Parameter(torch.zeros(model.config.hidden_size))
    parameters = list(model.parameters()) + [row]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    log, cut = [], CUT if s.get("MaskTruncated") else []
    for _ in range(STEPS):
        optimizer.zero_grad()
        lps, values, advantages, returns, refs, spread = [], [], [], [], [], []
        for (ids, start), reward in zip(answers, REWARDS):
            hidden = model.model(input_ids=ids).last_hidden_state
            logits = model.lm_head(hidden)
            lps.append(log_probs(logits, ids, start))
            spread.append(entropies(logits, start))
            values.append(hidden[0, start - 1:-1] @ row)
            with torch.no_grad():
                refs.append(log_probs(reference(input_ids=ids).logits, ids, start))
            a, g = estimates(lps[-1].detach(), refs[-1], values[-1].detach(), reward, s)
            advantages.append(a)
            returns.append(g)
        if s.get("Losses") == ["grpo"]:
            loss, metrics = grpo(lps, cut), {}
        else:
            loss, metrics = ppo(s, lps, values, advantages, returns)
        if "EntropyCoef" in s:
            entropy = torch.cat([h for i, h in enumerate(spread) if i not in cut]).mean()
            loss = loss - s["EntropyCoef"] * entropy
            metrics["entropy"] = entropy.item()
        if "KL" in s:
            metrics["kl"] = (torch.cat(lps).detach().double() - torch.cat(refs).double()).mean().item()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        log.append({"loss": loss.item(), "norm": norm.item()} | metrics)
    return log


def main():
    torch.set_num_threads(1)
    tok, answers, rows = tokenizer(), [], []
    for prompt, *two in PAIRS:
        for answer in two:
            p, a = tok(prompt)["input_ids"], tok(answer)["input_ids"] + [EOS]
            answers.append((torch.tensor([p + a]), len(p)))
            rows.append({"Prompt": p, "Answer": a, "Reward": REWARDS[len(rows)]})
    made = []
    for name, s in RUNS.items():
        log = run(s, answers)
        print(name, [line["loss"] for line in log], flush=True)
        assert all(math.isfinite(line["loss"]) for line in log)
        names = [k for k in log[0] if k not in ("loss", "norm")]
        made.append({"Name": name, "Settings": {"Type": "policy", "Losses": ["ppo"]} | s,
                     "Losses": [line["loss"] for line in log], "Norms": [line["norm"] for line in log],
                     "Metrics": {k: [line[k] for line in log] for k in names}})
    versions = {m.__name__: m.__version__ for m in (torch, transformers)}

    def lines(values):
        return "[\n  " + ",\n  ".join(json.dumps(x) for x in values) + "\n ]"

    text = f'{{"Versions": {json.dumps(versions)},\n "Answers": {lines(rows)},\n "Cut": {CUT},\n'
    text += f' "Runs": {lines(made)}\n}}\n'
    (pathlib.Path(__file__).parent / "critic.json").write_text(text)


if __name__ == "__main__":
    main()
