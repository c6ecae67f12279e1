"""Write policy.json: what TRL computes of sampled answers, by its own functions, and dppo by its formula.

    python3 -m pip install torch==2.15.0 transformers==5.24.0 trl==1.16.0 accelerate==1.15.0 datasets==5.2.0
    python3 objective/testdata/policy.py

No model is needed: `_compute_loss` of GRPOTrainer and of RLOOTrainer is a function of log-probabilities and entropies,
which a stub gives it, in float64. Each case has the settings of Millrace that ask for the same, the loss, its
derivative by each log-probability, the metrics that TRL logs, and where there is a bonus for entropy the loss's
derivative by each of them. TRL computes advantages and the sampler's correction inside of a method that samples, so
these two follow its lines here, with its own `nanstd`. null is a number that is not known.
"""

import json
import math
import os
import pathlib
from collections import defaultdict
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import trl
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import nanstd

LENGTHS, GROUPS, WIDTH = [7, 5, 3, 6, 1, 4, 7, 2], 2, 7
ANSWERS = len(LENGTHS)
EACH = ANSWERS // GROUPS
CUT = [2, 6]  # answers that were cut off
MASKED = [(0, 2), (3, 0), (3, 1)]  # tokens that a tool wrote
UNKNOWN = [(0, 1), (5, 0), (5, 1)]  # tokens without a log-probability of the sampler
NAN = math.nan
REWARDS = [[1.0, 0.5], [0.0, 0.25], [1.0, NAN], [0.0, 0.0], [0.25, 1.0], [NAN, NAN], [2.0, NAN], [-1.0, 0.75]]


def random(name, low, high):
    """Multiples of 2^-12, which fp32 has exactly, by the bytes of a name."""
    g = torch.Generator().manual_seed(sum(i * b for i, b in enumerate(name.encode(), 1)))
    x = torch.rand(ANSWERS, WIDTH, generator=g, dtype=torch.float64) * (high - low) + low
    return torch.round(x * 4096) / 4096


LP = random("model", -3.5, -0.25)
OLD = torch.clamp(LP + random("old", -0.5, 0.5), max=-0.03125)
SAMPLER = torch.clamp(OLD + random("sampler", -0.75, 0.5), max=-0.03125)
REF = torch.clamp(LP + random("reference", -0.75, 0.75), max=-0.03125)
ENT = random("entropy", 0.0, 3.0)
for i, t in UNKNOWN:
    SAMPLER[i, t] = NAN
ATTENDED = torch.tensor([[float(t < n) for t in range(WIDTH)] for n in LENGTHS], dtype=torch.float64)
TOOLS = torch.ones_like(ATTENDED)
for i, t in MASKED:
    TOOLS[i, t] = 0
MASK = ATTENDED * TOOLS


def advantages(how, weights=(1.0, 1.0), penalty=None):
    """The lines of TRL's _generate_and_score_completions."""
    per_func = torch.tensor(REWARDS, dtype=torch.float64)
    unscorable = torch.isnan(per_func).all(dim=1)
    w = torch.tensor(weights, dtype=torch.float64)
    rewards = (per_func * w).nansum(dim=1)
    rewards[unscorable] = NAN
    if penalty is not None:
        rewards = rewards - penalty
    grouped = rewards.view(-1, EACH)
    means = torch.nanmean(grouped, dim=1).repeat_interleave(EACH)
    if how == "group":
        a = (rewards - means) / (nanstd(grouped, dim=1).repeat_interleave(EACH) + 1e-4)
    elif how == "batch":
        a = (rewards - means) / (nanstd(rewards).expand_as(rewards) + 1e-4)
    elif how == "none":
        a = rewards - means
    elif how == "gdpo":
        g = per_func.view(-1, EACH, len(weights))
        k = (g - torch.nanmean(g, dim=1, keepdim=True)) / (nanstd(g, dim=1, keepdim=True) + 1e-4)
        sums = (k.view(-1, len(weights)) * w).nansum(dim=1)
        sums[unscorable] = NAN
        a = (sums - torch.nanmean(sums)) / (nanstd(sums) + 1e-4)
    elif how == "rloo":
        counts = (~torch.isnan(grouped)).sum(dim=1, keepdim=True)
        a = rewards - ((torch.nansum(grouped, dim=1, keepdim=True) - grouped) / (counts - 1)).view(-1)
    elif how == "reinforce++":  # of each group's mean, and whitened: torch's own functions
        c = rewards - means
        a = (c - torch.nanmean(c)) / (nanstd(c) + 1e-8)
    elif how == "maxrl":
        a = (rewards - means) / means
    return torch.nan_to_num(a, nan=0.0)


def correction(mode, least, most, old):
    """The lines of TRL's _generate_and_score_completions."""
    diff = torch.nan_to_num((old - SAMPLER) * MASK, nan=0.0)
    if mode.startswith("sequence"):
        diff = diff.sum(dim=-1, keepdim=True)
    rho = torch.exp(diff)
    if mode.endswith("truncate"):
        return torch.clamp(rho, min=least, max=most)
    return rho.masked_fill((rho < (least or -math.inf)) | (rho > most), 0.0)


class Accelerator:
    num_processes, sync_gradients = 1, True

    def gather(self, x):
        return x.reshape(-1)

    def reduce(self, x, reduction="sum"):
        return x


def compute(trainer, lp, old, a, loss_type="dapo", level="token", low=0.2, high=0.2, beta=0.0, delta=None, corrected=True,
            mode=None, least=None, most=None, longest=None, attended=ATTENDED, tokens=None, off_policy=None,
            entropies=None, entropy_coef=0.0):
    entropies = torch.zeros_like(lp) if entropies is None else entropies
    stub = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kw: (lp, entropies, None), aux_loss_enabled=False,
        top_entropy_quantile=1.0, off_policy_mask_threshold=off_policy, importance_sampling_level=level, beta=beta,
        epsilon_low=low, epsilon_high=high, loss_type=loss_type, use_vllm=mode is not None,
        vllm_importance_sampling_correction=mode is not None, model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1, max_completion_length=longest, accelerator=Accelerator(),
        entropy_coef=entropy_coef, use_adaptive_entropy=False, _entropy_bonus_enabled=entropy_coef != 0.0,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=corrected, sapo_temperature_pos=1.0,
                             sapo_temperature_neg=1.05, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0,
                             vespo_lambda_neg=2.0, steps_per_generation=1))
    ids = torch.zeros(ANSWERS, WIDTH, dtype=torch.long)
    inputs = {"prompt_ids": ids[:, :2], "prompt_mask": ids[:, :2], "completion_ids": ids, "completion_mask": attended,
              "tool_mask": TOOLS, "advantages": a, "ref_per_token_logps": REF}
    inputs["num_items_in_batch"] = (attended * TOOLS).sum() if tokens is None else tokens
    if off_policy is not None:
        inputs["sampling_per_token_logps"] = SAMPLER
    if old is not None:
        inputs["old_per_token_logps"] = old
    if mode is not None:
        inputs["importance_sampling_ratio"] = correction(mode, least, most, lp.detach() if old is None else old)
    if trainer is RLOOTrainer:  # which has no mask of tools
        inputs["completion_mask"] = MASK
        inputs["old_logps"] = (old * MASK).sum(1)
    return trainer._compute_loss(stub, None, inputs), stub._metrics["train"]


def kept():
    """Answers that were not cut off, as mask_truncated_completions has TRL's _generate_and_score_completions keep them."""
    keep = torch.ones(ANSWERS, 1, dtype=torch.float64)
    keep[CUT] = 0
    return ATTENDED * keep


def accepted(mode, most):
    """The lines of compute_rollout_rejection_mask of verl (trainer/ppo/rollout_corr_helper.py of b178a3cd)."""
    x = torch.clamp(torch.nan_to_num(OLD - SAMPLER, nan=0.0), min=-20, max=20)
    values = {"k1": -x, "k2": 0.5 * x ** 2, "k3": torch.exp(x) - 1.0 - x}[mode[-2:]]
    if "sum" in mode or "mean" in mode:
        values = (values * MASK).sum(-1, keepdim=True) / (MASK.sum(-1, keepdim=True) if "mean" in mode else 1)
    elif "max" in mode:
        values = values.masked_fill(MASK == 0, -math.inf).max(dim=-1, keepdim=True).values
    if mode.endswith("k1"):
        return ATTENDED * ((values >= math.log(1 / most)) & (values <= math.log(most)))
    return ATTENDED * (values <= most)


def dppo(lp, a, tau=1e-3, threshold=0.2, teacher=None):
    """-A exp(lp-q) where the probability has not moved too far, plus tau (lp-q)^2; the mean over tokens."""
    q = torch.where(torch.isnan(SAMPLER), lp.detach(), SAMPLER)
    a = a.unsqueeze(1).expand_as(lp) if teacher is None else (teacher - lp).detach()
    moved = (torch.exp(lp) - torch.exp(q)).detach()
    keep = ~torch.where(a > 0, moved > threshold, moved < -threshold)
    loss = -a * keep * torch.exp(lp - q) + tau * (lp - q) ** 2
    return (loss * MASK).sum() / MASK.sum()


def case(name, settings, function, a, names=()):
    lp = LP.clone().requires_grad_()
    bonus = {"entropies": ENT.clone().requires_grad_()} if "EntropyCoef" in settings else {}
    made = function(lp, a, **bonus)
    loss, metrics = made if isinstance(made, tuple) else (made, {})
    loss.backward()
    gradient = lp.grad * MASK
    c = {"Name": name, "Settings": {"Type": "policy"} | settings, "Advantages": a.tolist(), "Loss": loss.item(),
         "Gradient": gradient.tolist(),
         "Metrics": {k: v[0] for k, v in metrics.items() if k.startswith(tuple(names)) and not math.isnan(v[0])}}
    if bonus:
        c["EntropySlopes"] = (bonus["entropies"].grad * MASK).tolist()
    return c


WATCHED = ("clip_ratio", "kl", "cispo", "vespo")


def grpo(**more):
    given = {k: v for k, v in more.items() if k != "old"}
    return lambda lp, a, **bonus: compute(GRPOTrainer, lp, more.get("old", OLD), a, **given, **bonus)


def losses():
    group, each = advantages("group"), {"Old": "data"}
    truncate = dict(Correction="token_truncate", CorrectionMax=1.25)
    trl_truncate = dict(mode="token_truncate", most=1.25)
    none = dict(Correction="none")
    yield "dapo", each | truncate, grpo(low=0.2, high=0.28, **trl_truncate), group
    yield ("grpo, sequence_mask", each | dict(Losses=["grpo"], Correction="sequence_mask"),
           grpo(loss_type="grpo", mode="sequence_mask", most=3.0), group)
    yield ("bnpo, plain kl, delta", each | none | dict(Losses=["bnpo"], KL=0.05, KLPlain=True, Delta=1.35),
           grpo(loss_type="bnpo", beta=0.05, corrected=False, delta=1.35), group)
    yield ("dr_grpo", each | none | dict(Losses=["dr_grpo"], Normalizer="max_tokens", MaxTokens=9),
           grpo(loss_type="dr_grpo", longest=9), advantages("none"))
    yield ("dapo, kl, token_mask", each | dict(KL=0.04, Clip=[0.2, 0.2], Correction="token_mask", CorrectionMin=0.75,
                                               CorrectionMax=1.5),
           grpo(beta=0.04, mode="token_mask", least=0.75, most=1.5), group)
    yield ("gspo, kl", each | none | dict(Losses=["gspo"], Clip=[0.05, 0.1], KL=0.1),
           grpo(loss_type="grpo", level="sequence", low=0.05, high=0.1, beta=0.1), group)
    yield ("gspo by tokens", each | truncate | dict(Losses=["gspo"], Clip=[0.05, 0.1], Normalizer="tokens"),
           grpo(level="sequence", low=0.05, high=0.1, **trl_truncate), group)
    yield "cispo", each | none | dict(Losses=["cispo"], Clip=[0, 1.2]), grpo(loss_type="cispo", high=1.2), group
    taus = dict(Taus=[1, torch.tensor(1.05).item()])  # which TRL has in fp32
    yield "sapo", each | none | taus | dict(Losses=["sapo"]), grpo(loss_type="sapo"), group
    yield ("sapo, kl", each | truncate | taus | dict(Losses=["sapo"], KL=0.02), grpo(loss_type="sapo", beta=0.02, **trl_truncate),
           group)
    yield "vespo", each | truncate | dict(Losses=["vespo"]), grpo(loss_type="vespo", **trl_truncate), group
    yield ("vespo, token_mask, kl", each | dict(Losses=["vespo"], KL=0.03, Correction="token_mask", CorrectionMax=1.5),
           grpo(loss_type="vespo", beta=0.03, mode="token_mask", most=1.5), group)
    yield ("grpo, one update", none | dict(Losses=["grpo"], KL=0.1), grpo(old=None, loss_type="grpo", beta=0.1), group)
    yield ("dapo, sequence_truncate", each | dict(Clip=[0.2, 0.2], Correction="sequence_truncate", CorrectionMin=0.5,
                                                 CorrectionMax=1.75),
           grpo(mode="sequence_truncate", least=0.5, most=1.75), group)
    cut = dict(MaskTruncated=True)
    yield "dapo, mask_truncated", each | truncate | cut, grpo(high=0.28, attended=kept(), **trl_truncate), group
    yield ("grpo, mask_truncated, kl", each | none | cut | dict(Losses=["grpo"], KL=0.05),
           grpo(loss_type="grpo", beta=0.05, attended=kept()), group)
    yield ("dapo, entropy", each | truncate | dict(EntropyCoef=0.01),
           grpo(low=0.2, high=0.28, entropy_coef=0.01, **trl_truncate), group)
    yield ("grpo, mask_truncated, kl, entropy", each | none | cut | dict(Losses=["grpo"], KL=0.05, EntropyCoef=0.003),
           grpo(loss_type="grpo", beta=0.05, attended=kept(), entropy_coef=0.003), group)
    yield ("dr_grpo, less entropy", each | none | dict(Losses=["dr_grpo"], Normalizer="max_tokens", MaxTokens=9,
                                                       EntropyCoef=-0.02),
           grpo(loss_type="dr_grpo", longest=9, entropy_coef=-0.02), advantages("none"))
    yield ("dapo, off_policy, kl", each | none | dict(KL=0.05, OffPolicyThreshold=0.0625),
           grpo(high=0.28, beta=0.05, off_policy=0.0625), group)
    for mode, most in (("token_k1", 1.4), ("token_k2", 0.04), ("seq_mean_k1", 1.15), ("seq_mean_k3", 0.0625),
                       ("seq_sum_k2", 0.25), ("seq_max_k3", 0.15)):
        yield (mode, each | none | dict(KL=0.05, Rejection=mode, RejectionMax=most),
               grpo(high=0.28, beta=0.05, attended=accepted(mode, most), tokens=MASK.sum()), group)
    rloo = advantages("rloo")
    wide = dict(Losses=["rloo"], Clip=[0.4, 0.6])
    yield ("rloo", each | wide, lambda lp, a: compute(RLOOTrainer, lp, OLD, a, low=0.4, high=0.6), rloo)
    penalty = 0.05 * ((OLD - REF) * MASK).sum(-1)
    penalized = advantages("rloo", penalty=penalty)
    yield ("rloo, kl in rewards", each | wide | dict(KL=0.05),
           lambda lp, _: compute(RLOOTrainer, lp, OLD, penalized, low=0.4, high=0.6), rloo)
    yield "dppo", dict(Losses=["dppo"]), lambda lp, a: dppo(lp, a), group
    yield ("dppo, narrow", dict(Losses=["dppo"], Clip=[0.05, 0.05], KLTau=0.02),
           lambda lp, a: dppo(lp, a, 0.02, 0.05), group)
    yield ("ref_kl", dict(Losses=["ref_kl"], Clip=[0.05, 0.05]), lambda lp, a: dppo(lp, a, 1e-3, 0.05, REF), group)


def known(x):
    return [known(y) for y in x] if isinstance(x, list) else None if math.isnan(x) else x


def main():
    torch.set_num_threads(1)
    cases = []
    for name, settings, function, a in losses():
        cases.append(case(name, settings, function, a, WATCHED if "_k" not in name else ()))
        print(name, cases[-1]["Loss"], cases[-1]["Metrics"])
    ways = [{"Advantage": how, "Weights": list(w), "Want": advantages(how, w).tolist()}
            for how in ("group", "batch", "none", "rloo", "reinforce++", "gdpo") for w in ((1.0, 1.0), (0.5, 2.0))]
    made = {"Versions": {"torch": torch.__version__, "trl": trl.__version__}, "Group": [i // EACH for i in range(ANSWERS)],
            "Rewards": known(REWARDS), "Mask": MASK.tolist(), "Cut": CUT, "Lengths": LENGTHS, "LogProbs": LP.tolist(), "Old": OLD.tolist(),
            "Sampler": known(SAMPLER.tolist()), "Reference": REF.tolist(), "Entropies": ENT.tolist()}
    lines = [f'"{k}": {json.dumps(v)}' for k, v in made.items()]
    for k, v in (("Advantages", ways), ("Cases", cases)):
        lines.append(f'"{k}": [\n  ' + ",\n  ".join(json.dumps(x) for x in v) + "\n ]")
    text = "{" + ",\n ".join(lines) + "}\n"
    (pathlib.Path(__file__).parent / "policy.json").write_text(text)


if __name__ == "__main__":
    main()
