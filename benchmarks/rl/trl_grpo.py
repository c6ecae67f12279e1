"""GRPO with TRL's own trainer, on the prompts and with the settings of sums.yaml next to this file.

    python trl_grpo.py MODEL_DIR PROMPTS.jsonl OUT.jsonl STEPS MINUTES

with these in the environment, which are faster, and threads that wait without using a core where other work runs:

    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1099511627776 MALLOC_TOP_PAD_=67108864
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 OMP_WAIT_POLICY=PASSIVE

Writes a record of each step, with seconds and CPU seconds since the first began, and stops after STEPS or MINUTES.
Versions that were used: trl 1.16.0, torch 2.15.0, transformers 5.24.0, on the CPU.
"""

import json
import os
import re
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

from trl import GRPOConfig, GRPOTrainer

model, prompts, out, steps, minutes = *sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5])


def sum_reward(completions, answer, **_):
    found = [re.findall(r"^\s*(\d+)(?:\D|$)", c) for c in completions]
    return [float(bool(f) and f[-1] == a) for f, a in zip(found, answer)]


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


torch.manual_seed(0)
torch.set_flush_denormal(True)
tokenizer = AutoTokenizer.from_pretrained(model)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token
args = GRPOConfig(
    output_dir=out + ".trl", per_device_train_batch_size=32, num_generations=8, max_completion_length=5, max_steps=steps,
    loss_type="dr_grpo", scale_rewards="none", beta=0.0, epsilon=0.2, temperature=1.0, top_p=1.0, top_k=0,
    learning_rate=1e-5, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0,
    optim="adamw_torch_fused", adam_beta1=0.9, adam_beta2=0.999, bf16=os.environ.get("BF16") == "1", use_cpu=True,
    gradient_checkpointing=False, logging_steps=1, report_to="none", save_strategy="no", seed=int(os.environ.get("SEED", "1")))
policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
rows = Dataset.from_list([json.loads(line) for line in open(prompts)])
trainer = GRPOTrainer(model=policy, reward_funcs=sum_reward, args=args, train_dataset=rows, processing_class=tokenizer)
records = open(out, "w")


class Record(TrainerCallback):
    def on_log(self, _, state, control, logs=None, **__):
        if "loss" in logs:
            row = {"step": state.global_step, "sec": time.time() - begin, "cpu_sec": cpu_seconds() - begin_cpu,
                   "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, **logs}
            print(json.dumps(row), file=records, flush=True)

    def on_step_end(self, _, state, control, **__):
        if time.time() - begin > 60 * minutes:
            control.should_training_stop = True


trainer.add_callback(Record())
begin, begin_cpu = time.time(), cpu_seconds()
trainer.train()
