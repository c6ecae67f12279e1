"""DPO with TRL's own trainer, on the pairs and with the settings of run.yaml next to this file.

    python trl_dpo.py MODEL_DIR TRAIN.jsonl HELD_OUT.jsonl OUT.json

Writes the record of each step and of the two evaluations, seconds and peak memory. Versions that were used: trl 1.16.0,
torch 2.15.0, transformers 5.24.0, on the CPU.
"""

import json
import os
import resource
import sys
import time
import uuid

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets.fingerprint as fingerprint
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

# On some Pythons datasets cannot hash TRL's functions. Nothing here is cached.
fingerprint.Hasher.hash = classmethod(lambda cls, value: uuid.uuid4().hex[:16])
fingerprint.Hasher.update = lambda self, value: self.m.update(uuid.uuid4().bytes)

from trl import DPOConfig, DPOTrainer


def rows(path):
    return Dataset.from_list([json.loads(line) for line in open(path)])


model, train, held, out = sys.argv[1:5]
torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(model)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token
args = DPOConfig(
    output_dir=out + ".trl", per_device_train_batch_size=2, gradient_accumulation_steps=4, per_device_eval_batch_size=2,
    num_train_epochs=2, learning_rate=5e-6, lr_scheduler_type="cosine", warmup_steps=3, weight_decay=0.0, max_grad_norm=1.0,
    optim="adamw_torch", adam_beta2=0.999, beta=0.1, max_length=512, bf16=False, use_cpu=True, gradient_checkpointing=False,
    logging_steps=1, report_to="none", save_strategy="no", seed=int(os.environ.get("SEED", "1")))
policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
trainer = DPOTrainer(model=policy, args=args, train_dataset=rows(train), eval_dataset=rows(held), processing_class=tokenizer)
ends = []


class Clock(TrainerCallback):
    def on_step_end(self, *_, **__):
        ends.append(time.time())
        print("step", len(ends), "ends", ends[-1] - begin, flush=True)


trainer.add_callback(Clock())
before = trainer.evaluate()
begin = time.time()
trainer.train()
seconds = time.time() - begin
after = trainer.evaluate()
json.dump({"before": before, "after": after, "train_sec": seconds, "step_sec": [b - a for a, b in zip([begin] + ends, ends)],
           "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
           "steps": [r for r in trainer.state.log_history if "loss" in r]}, open(out, "w"), indent=1)
