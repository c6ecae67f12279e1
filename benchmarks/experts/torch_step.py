"""A training step of a mixture in PyTorch and transformers: micro-batches of 4 x 512 tokens, recomputation, fused AdamW.

    python3 -m pip install torch==2.9.0 transformers==5.24.0
    python3 benchmarks/experts/torch_step.py DIRECTORY grouped_mm|eager bf16|fp32

DIRECTORY has a config.json; weights and tokens are random. bf16 is autocast over fp32 weights.
"""

import resource
import sys
import time

import torch
import transformers

directory, experts, dtype = sys.argv[1:]
torch.set_num_threads(2)
torch.manual_seed(0)
config = transformers.AutoConfig.from_pretrained(directory)
model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", experts_implementation=experts).train()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, config.vocab_size, (4, 512))


def backward():
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()


def update():
    optimizer.step()
    optimizer.zero_grad()


def seconds(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


backward()
once = seconds(backward)
update()
backward()
adamw = seconds(update)
step = 4 * once + adamw
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"{experts} {dtype}: forward and backward of 2,048 tokens {once:.1f} s, AdamW {adamw:.1f} s; "
      f"a step of 8,192 tokens {step:.1f} s, {8192 / step:.0f} tokens/s, peak {peak:.1f} GiB")
