"""Write critic.json: PPO's losses, advantages, returns and slopes of sampled answers, by autograd in float64.

    python3 -m pip install torch==2.15.0
    python3 objective/testdata/critic.py

`masked_mean`, `masked_var` and `masked_whiten` are those of verl and of the PPOTrainer that TRL had, and so are the
lines of `ppo`: rewards by token, generalized advantages from the last token to the first, whitening, clipped losses. Each
case has the settings of Millrace that ask for the same. Tokens that are masked are left out of an answer as if it did
not have them. An answer whose reward is null is left out of the means, but its
tokens are in the divisor of the loss.
"""

import json
import pathlib

import torch

LENGTHS, WIDTH = [7, 5, 3, 6, 1, 4], 7
REWARDS = [1.0, -0.5, 2.0, None, 0.25, 0.0]
MASKED = [(0, 2), (3, 0), (5, 3)]


def random(name, low, high):
    """Multiples of 2^-12, which fp32 has exactly, by the bytes of a name."""
    g = torch.Generator().manual_seed(sum(i * b for i, b in enumerate(name.encode(), 1)))
    x = torch.rand(len(LENGTHS), WIDTH, generator=g, dtype=torch.float64) * (high - low) + low
    return torch.round(x * 4096) / 4096


LP = random("model", -3.5, -0.25)
OLD = torch.clamp(LP + random("old", -0.5, 0.5), max=-0.03125)
SAMPLER = torch.clamp(OLD + random("sampler", -0.75, 0.5), max=-0.03125)
REF = torch.clamp(LP + random("reference", -0.75, 0.75), max=-0.03125)
VALUES = random("values", -1.5, 1.5)
OLD_VALUES = VALUES + random("old values", -0.5, 0.5)
ALL = [[int(t < n and (i, t) not in MASKED) for t in range(WIDTH)] for i, n in enumerate(LENGTHS)]


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()


def masked_var(values, mask):
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    return variance * mask.sum() / (mask.sum() - 1)


def masked_whiten(values, mask):
    return (values - masked_mean(values, mask)) * torch.rsqrt(masked_var(values, mask) + 1e-8)


def advantages(old, old_values, gamma, lam, beta):
    """Of the tokens that count, moved to the left; the rest is 0."""
    a, returns = torch.zeros_like(old), torch.zeros_like(old)
    for i, reward in enumerate(REWARDS):
        at = [t for t in range(WIDTH) if ALL[i][t]]
        if reward is None:
            continue
        rewards = [-beta * (old[i, t] - REF[i, t]) for t in at]
        rewards[-1] = rewards[-1] + reward
        last = 0.0
        for k in reversed(range(len(at))):
            next_value = old_values[i, at[k + 1]] if k < len(at) - 1 else 0.0
            delta = rewards[k] + gamma * next_value - old_values[i, at[k]]
            last = delta + gamma * lam * last
            a[i, at[k]] = last
            returns[i, at[k]] = last + old_values[i, at[k]]
    return a, returns


def ppo(settings):
    lp, v = LP.clone().requires_grad_(), VALUES.clone().requires_grad_()
    mask = torch.tensor(ALL, dtype=torch.float64)
    scored = mask * torch.tensor([[float(r is not None)] for r in REWARDS], dtype=torch.float64)
    updated = settings.get("Old") == "data"
    old, old_values = (OLD, OLD_VALUES) if updated else (LP, VALUES)
    low, high = settings.get("Clip", [0.2, 0.2])
    c, coef = settings.get("ClipValue", 0.2), settings.get("VFCoef", 0.1)
    beta = settings.get("KL", 0.0)
    raw, returns = advantages(old, old_values, settings.get("Gamma", 1.0), settings.get("Lambda", 0.95), beta)
    a = masked_whiten(raw, scored) * scored
    ratio = torch.exp(lp - old)
    pg = torch.max(-a * ratio, -a * torch.clamp(ratio, 1 - low, 1 + high))
    if settings.get("Correction") != "none":
        pg = pg * torch.clamp(torch.exp(old - SAMPLER), max=2.0)
    vf1 = (v - returns) ** 2
    vf2 = (torch.clamp(v, old_values - c, old_values + c) - returns) ** 2 if c else vf1
    vf = 0.5 * torch.max(vf1, vf2)
    if settings.get("Normalizer") == "answers":
        per = mask.sum(1, keepdim=True) * len(LENGTHS)
    else:
        per = mask.sum()
    loss = ((pg + coef * vf) * scored / per).sum()
    loss.backward()
    error = returns - old_values
    metrics = {"loss/policy_avg": masked_mean(pg, scored), "loss/value_avg": masked_mean(vf, scored),
               "val/clipfrac_avg": masked_mean((vf2 > vf1).double(), scored),
               "critic/values/mean": masked_mean(v, scored), "critic/returns/mean": masked_mean(returns, scored),
               "critic/vf_explained_var": 1 - masked_var(error, scored) / masked_var(returns, scored)}
    if beta:
        metrics["kl"] = masked_mean(old - REF, mask)
    return {"Loss": loss.item(), "Advantages": a.tolist(), "Returns": returns.tolist(),
            "Gradient": (lp.grad * scored).tolist(), "Slopes": (v.grad * scored).tolist(),
            "Metrics": {k: m.item() for k, m in metrics.items()}}


CASES = {
    "defaults": {},
    "a later update": {"Old": "data"},
    "kl in rewards": {"Old": "data", "KL": 0.05, "Correction": "none"},
    "kl, first update": {"KL": 0.2},
    "gamma and lambda": {"Old": "data", "Gamma": 0.9, "Lambda": 0.5, "VFCoef": 0.5, "ClipValue": 0.4},
    "no bound of values": {"Old": "data", "Lambda": 1.0, "ClipValue": 0.0, "Correction": "none"},
    "monte carlo, narrow": {"Old": "data", "Lambda": 1.0, "ClipValue": 0.05, "Clip": [0.05, 0.1]},
    "by answers": {"Old": "data", "Lambda": 0.0, "Normalizer": "answers"},
}


def main():
    torch.set_num_threads(1)
    cases = []
    for name, settings in CASES.items():
        cases.append({"Name": name, "Settings": {"Type": "policy", "Losses": ["ppo"]} | settings} | ppo(settings))
        print(name, cases[-1]["Loss"], cases[-1]["Metrics"])
    made = {"Versions": {"torch": torch.__version__}, "Lengths": LENGTHS, "Rewards": REWARDS, "Mask": ALL,
            "LogProbs": LP.tolist(), "Old": OLD.tolist(), "Sampler": SAMPLER.tolist(), "Reference": REF.tolist(),
            "Values": VALUES.tolist(), "OldValues": OLD_VALUES.tolist()}
    lines = [f'"{k}": {json.dumps(v)}' for k, v in made.items()]
    lines.append('"Cases": [\n  ' + ",\n  ".join(json.dumps(x) for x in cases) + "\n ]")
    (pathlib.Path(__file__).parent / "critic.json").write_text("{" + ",\n ".join(lines) + "}\n")


if __name__ == "__main__":
    main()
