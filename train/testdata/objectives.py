"""Write objectives.json and reward.json: what TRL's trainers compute for a tiny decoder in 10 steps.

    python3 -m pip install torch==2.15.0 transformers==5.24.0 trl==1.16.0 accelerate==1.15.0 datasets==5.2.0
    python3 train/testdata/objectives.py

Nothing is downloaded. The decoder is a llama whose weights follow from a formula of integers (see `weight`), so that
a test can make them, too. There are four pairs of texts, all of them in every step, in fp32 on a CPU, with AdamW of
transformers' defaults, without weight decay, at a constant learning rate of 1e-3, and the gradient's norm is clipped
to 1. A token is a character.

A run of objectives.json has the settings of Millrace that ask for the same, and by step the loss, the gradient's norm
before clipping and the metrics that TRL logs, with the nine digits of fp32. ORPO's likelihood is of prompt and answer
in TRL. reward.json has the same of a reward model: the decoder's weights without lm_head, and "score" after them.
"""

import json
import os
import pathlib
import sys
import tempfile
import uuid

os.environ["HF_HUB_OFFLINE"] = "1"

import accelerate
import datasets
import datasets.fingerprint
import numpy as np
import tokenizers
import torch
import transformers
import trl
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

PAIRS = [("ab ", "xyz", "q"), ("hello ", "there", "no!!"), ("1 + 1 = ", "2", "34567"), ("k", "v", "vv")]
STEPS, LEARNING_RATE = 10, 1e-3
EOS, PAD, UNKNOWN = 95, 96, 97
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
           "logps/rejected", "nll_loss", "kl", "entropy", "mean_token_accuracy"]

# datasets cannot hash TRL's functions on Python 3.11: nothing is cached.
datasets.fingerprint.Hasher.hash = classmethod(lambda cls, value: uuid.uuid4().hex[:16])
datasets.fingerprint.Hasher.update = lambda self, value: self.m.update(uuid.uuid4().bytes)


def weight(tensor, size):
    """A tensor's values: multiples of 2^-27 from -1/16 on and below 1/16, by Murmur's mixing of 32-bit integers."""
    with np.errstate(over="ignore"):
        h = np.arange(size, dtype=np.uint32) + np.uint32(tensor) * np.uint32(0x9E3779B9)
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return torch.from_numpy(((h >> np.uint32(8)).astype(np.float32) - 2**23) / np.float32(2**27))


def set_weights(model):
    """Weights by the number of their tensor in the order of names, lm_head's first; those of norms are 1."""
    named = sorted(model.named_parameters())
    with torch.no_grad():
        for i, (name, p) in enumerate(named, start=0 if named[0][0] == "lm_head.weight" else 1):
            p.copy_(torch.ones_like(p) if p.dim() == 1 else weight(i, p.numel()).view(p.shape))
    return model


def tokenizer():
    vocab = {chr(i): i - 32 for i in range(32, 127)} | {"<eos>": EOS, "<pad>": PAD, "<unk>": UNKNOWN}
    t = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")


def config(**more):
    return LlamaConfig(vocab_size=98, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, rms_norm_eps=1e-6,
                       rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, eos_token_id=EOS,
                       pad_token_id=PAD, bos_token_id=None, **more)


def rows(kind, undesirable):
    """Pairs, or one side of each: the rejected one of those that are undesirable."""
    if kind == "kto":
        return [dict(prompt=p, completion=r if i in undesirable else c, label=i not in undesirable)
                for i, (p, c, r) in enumerate(PAIRS)]
    if kind == "dft":
        return [dict(prompt=p, completion=c) for p, c, _ in PAIRS]
    return [dict(prompt=p, chosen=c, rejected=r) for p, c, r in PAIRS]


KINDS = {"dpo": (trl.DPOTrainer, trl.DPOConfig), "kto": (trl.KTOTrainer, trl.KTOConfig),
         "orpo": (ORPOTrainer, ORPOConfig), "cpo": (CPOTrainer, CPOConfig), "dft": (trl.SFTTrainer, trl.SFTConfig),
         "reward": (trl.RewardTrainer, trl.RewardConfig)}


def train(kind, options, undesirable=()):
    """The log of each step."""
    trainer, settings = KINDS[kind]
    with tempfile.TemporaryDirectory() as out:
        model = LlamaForCausalLM(config())
        if kind == "reward":
            model = LlamaForSequenceClassification(config(num_labels=1))
        model = set_weights(model.to(torch.float32))
        common = dict(output_dir=out, per_device_train_batch_size=4, max_steps=STEPS, learning_rate=LEARNING_RATE,
                      report_to="none", logging_steps=1, bf16=False, use_cpu=True, gradient_checkpointing=False, seed=1,
                      max_grad_norm=1.0, lr_scheduler_type="constant", optim="adamw_torch", weight_decay=0.0,
                      save_strategy="no", disable_tqdm=True)
        more = {"ref_model": set_weights(LlamaForCausalLM(config()))} if kind in ("dpo", "kto") else {}
        t = trainer(model=model, args=settings(**common, **options), processing_class=tokenizer(),
                    train_dataset=datasets.Dataset.from_list(rows(kind, undesirable)), **more)
        t.train()
        return [line for line in t.state.log_history if "loss" in line]


def runs():
    """Name, settings of Millrace, kind of trainer, its options, and which documents are undesirable."""
    for loss in ("sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop",
                 "sigmoid_norm", "sft"):
        yield f"dpo {loss}", dict(Type="dpo", Losses=[loss]), "dpo", dict(loss_type=[loss])
    for loss, e in (("robust", 0.1), ("exo_pair", 1e-3)):
        yield (f"dpo {loss}", dict(Type="dpo", Losses=[loss], LabelSmoothing=e), "dpo",
               dict(loss_type=[loss], label_smoothing=e))
    yield ("dpo of three losses", dict(Type="dpo", Losses=["sigmoid", "bco_pair", "sft"], Shares=[0.8, 0.2, 1]), "dpo",
           dict(loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=[0.8, 0.2, 1.0]))
    yield ("dpo with ld_alpha", dict(Type="dpo", Beta=0.3, LDAlpha=0.25), "dpo",
           dict(loss_type=["sigmoid"], beta=0.3, ld_alpha=0.25))
    yield "kto", dict(Type="kto"), "kto", dict(loss_type="kto"), [1, 3]
    yield ("kto, weighted", dict(Type="kto", Beta=0.3, Desirable=1.5, Undesirable=0.5), "kto",
           dict(loss_type="kto", beta=0.3, desirable_weight=1.5, undesirable_weight=0.5), [3])
    yield ("kto apo_zero_unpaired", dict(Type="kto", Losses=["apo_zero_unpaired"]), "kto",
           dict(loss_type="apo_zero_unpaired"), [1, 3])
    yield "orpo", dict(Type="orpo", NLLPrompt=True), "orpo", dict(beta=0.1)
    simpo = dict(loss_type="simpo", beta=2.0, simpo_gamma=1.0)
    yield "simpo", dict(Type="simpo"), "cpo", simpo | dict(cpo_alpha=0.0)
    yield "simpo with nll", dict(Type="simpo", NLL=1), "cpo", simpo | dict(cpo_alpha=1.0)
    yield ("simpo, smoothed", dict(Type="simpo", LabelSmoothing=0.1), "cpo",
           simpo | dict(cpo_alpha=0.0, label_smoothing=0.1))
    yield "cpo", dict(Type="cpo"), "cpo", dict(loss_type="sigmoid", beta=0.1, cpo_alpha=1.0)
    yield ("cpo, smoothed", dict(Type="cpo", LabelSmoothing=0.1), "cpo",
           dict(loss_type="sigmoid", beta=0.1, cpo_alpha=1.0, label_smoothing=0.1))
    for loss in ("hinge", "ipo"):
        yield f"cpo {loss}", dict(Type="cpo", Losses=[loss]), "cpo", dict(loss_type=loss, beta=0.1, cpo_alpha=1.0)
    yield "dft", dict(Type="dft"), "dft", dict(loss_type="dft", packing=False)


def columns(lines, names):
    """By name, the value in each step; only those that TRL logs."""
    return {k: [float(f"{line[k]:.9g}") for line in lines] for k in names if all(k in line for line in lines)}


def curves(log, metrics):
    own = columns(log, ["loss", "grad_norm"])
    return {"losses": own["loss"], "norms": own["grad_norm"], "metrics": columns(log, metrics)}


def versions():
    return {m.__name__: m.__version__ for m in (torch, transformers, trl, accelerate, datasets, tokenizers)}


def write(name, pairs, made):
    def lines(values):
        return "[\n  " + ",\n  ".join(json.dumps(x) for x in values) + "\n ]"

    text = f'{{"versions": {json.dumps(versions())},\n "pairs": {lines(pairs)},\n "runs": {lines(made)}\n}}\n'
    (pathlib.Path(__file__).parent / name).write_text(text)


def main():
    torch.set_num_threads(1)
    only, made = sys.argv[1:], []
    for name, settings, kind, options, *undesirable in runs():
        if only and name not in only:
            continue
        log = train(kind, options, *undesirable)
        print(name, [line["loss"] for line in log], flush=True)
        made.append({"name": name, "settings": settings, "undesirable": undesirable[0] if undesirable else []}
                    | curves(log, METRICS))
    tok = tokenizer()
    ids = [[tok(text)["input_ids"] for text in pair] for pair in PAIRS]
    pairs = [{"prompt": p, "chosen": c + [EOS], "rejected": r + [EOS]} for p, c, r in ids]
    if not only:
        write("objectives.json", pairs, made)
    made = []
    for name, options in (("plain", {}), ("centered", {"center_rewards_coefficient": 0.01})):
        log = train("reward", options)
        print("reward", name, [line["loss"] for line in log], flush=True)
        made.append({"name": name, "center": options.get("center_rewards_coefficient", 0)}
                    | curves(log, ["min_reward", "mean_reward", "max_reward", "accuracy", "margin"]))
    write("reward.json", pairs, made)


if __name__ == "__main__":
    main()
