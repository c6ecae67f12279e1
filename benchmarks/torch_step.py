"""Time a full training step of a Hugging Face model in PyTorch + transformers on the CPU, as a yardstick.

    python3 -m pip install torch==2.9.0 transformers==4.57.3
    python3 benchmarks/torch_step.py --model DIR --seq 1024 --batch-tokens 2048 --dtype fp32 --steps 5 --threads 2

A step is zero_grad, forward and backward over all micro-batches, clipping to a norm of 1, and AdamW, timed together. Every
position is a real token and all but the first of a sequence count in the loss; tokens per second are batch tokens over the
median step. The peak is the process's VmHWM, with the share that importing the libraries took (`import_rss_bytes`).
Prints one JSON object.

    --dtype fp32            everything in fp32
            autocast-bf16   fp32 weights, gradients and moments; torch.autocast(bfloat16) around the forward
            bf16            weights, gradients and moments in bf16: least memory, but updates round away
    --random                config.json only, random weights
    --micro-batch N         sequences per forward (default: the whole batch at once)
    --checkpointing         recompute each block in backward (gradient checkpointing)
    --compile               torch.compile (needs a C++ compiler)

Settings that are on because they are faster: scaled_dot_product_attention in its causal form (no mask), fused AdamW, denormals
flushed, gradients set to None, and a malloc that keeps freed memory and uses huge pages (--malloc default turns that off):
glibc otherwise returns each large tensor to the kernel and faults its pages in again. `step_cpu_sec` is the processor time
of a step over all threads (median): much less than threads times `step_sec` means that the machine was shared.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

# glibc caps MALLOC_MMAP_THRESHOLD_ at 32 MiB, so mmap is turned off altogether; hugetlb=1 asks for transparent huge pages.
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(64 << 20),
              "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def arguments():
    p = argparse.ArgumentParser(description="Training step benchmark: PyTorch + transformers on the CPU.")
    p.add_argument("--model", required=True, help="Hugging Face directory; with --random, only its config.json is read")
    p.add_argument("--random", action="store_true")
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--batch-tokens", type=int, default=2048)
    p.add_argument("--micro-batch", type=int, default=0)
    p.add_argument("--dtype", choices=["fp32", "autocast-bf16", "bf16"], default="fp32")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--malloc", choices=["keep", "default"], default="keep")
    p.add_argument("--checkpointing", action="store_true")
    p.add_argument("--compile", action="store_true")
    args = p.parse_args()
    if args.batch_tokens % args.seq:
        p.error(f"--batch-tokens {args.batch_tokens} is not a multiple of --seq {args.seq}")
    rows = args.batch_tokens // args.seq
    args.micro_batch = args.micro_batch or rows
    if rows % args.micro_batch:
        p.error(f"--micro-batch {args.micro_batch} does not divide the {rows} sequences of the batch")
    return args


def status_bytes(key):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def main():
    args = arguments()
    if args.malloc == "keep" and not KEEP_FREED.items() <= os.environ.items():
        # malloc reads its settings when the process starts.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_FREED)

    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    if args.random:
        config = AutoConfig.from_pretrained(args.model, local_files_only=True)
        torch.set_default_dtype(dtype)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        torch.set_default_dtype(torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=dtype, attn_implementation="sdpa", local_files_only=True)
    model.config.use_cache = False
    model.train()
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    parameters = sum(p.numel() for p in model.parameters())
    vocab = model.config.vocab_size
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    import_rss = status_bytes("VmRSS") - sum(p.numel() * p.element_size() for p in model.parameters())
    forward = torch.compile(model) if args.compile else model

    rows = args.batch_tokens // args.seq
    passes = rows // args.micro_batch
    losses, seconds, cpu_seconds = [], [], []
    for step in range(args.warmup + args.steps):
        ids = torch.randint(vocab, (rows, args.seq), generator=torch.Generator().manual_seed(step))
        start, cpu_start = time.perf_counter(), time.process_time()
        opt.zero_grad(set_to_none=True)
        total = 0.0
        for chunk in ids.split(args.micro_batch):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "autocast-bf16"):
                loss = forward(input_ids=chunk, labels=chunk, use_cache=False).loss / passes
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step >= args.warmup:
            seconds.append(time.perf_counter() - start)
            cpu_seconds.append(time.process_time() - cpu_start)
            losses.append(total)

    median = statistics.median(seconds)
    print(json.dumps({
        "torch": torch.__version__, "transformers": transformers.__version__, "dtype": args.dtype,
        "threads": args.threads, "parameters": parameters, "seq": args.seq, "batch_tokens": args.batch_tokens,
        "micro_batch_tokens": args.micro_batch * args.seq, "checkpointing": args.checkpointing, "compile": args.compile,
        "malloc": args.malloc, "steps": args.steps, "loss": losses[-1],
        "step_sec": round(median, 4), "step_sec_min": round(min(seconds), 4),
        "step_cpu_sec": round(statistics.median(cpu_seconds), 4),
        "tokens_per_sec": round(args.batch_tokens / median, 1),
        "peak_rss_bytes": status_bytes("VmHWM"), "import_rss_bytes": import_rss,
    }))


if __name__ == "__main__":
    main()
