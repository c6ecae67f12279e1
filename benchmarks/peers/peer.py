"""Measure a training step of a shape in another program, and print it as JSON with the names of `millrace bench --json`.

    python3 peer.py --peer resident --shape qwen2.5-1.5b --sequence-len 2048 --tokens 32768

    --peer  resident             PyTorch, all on the device: fp32 parameters, gradients and moments, autocast to bf16
            resident-bf16        the same in bf16 alone: small updates round away
            fsdp-offload         FSDP2 (fully_shard on every block) with CPUOffloadPolicy: fp32 masters and AdamW on the host
            fsdp-offload-bf16    the same with bf16 alone on the host
            zero3-offload        DeepSpeed ZeRO-3, parameters and optimizer on the host: bf16, fp32 masters, its own host Adam
            zero3-offload-bf16   the same with masters, gradients and moments in bf16
            superoffload         the same as zero3-offload with SuperOffload, whose host Adam is a process of its own
            superoffload-noclip  SuperOffload without clipping, which lets it update in the backward pass
            llmq-bf16            LLMQ: weights, gradients and moments in bf16 on the device, by the settings that its authors measure with
            llmq-fp8             the same with products in FP8
            megatrain            MegaTrain, from the clone at --peer-dir
            slideformer          SlideFormer, from the clone at --peer-dir

A step is: clear gradients, forward and backward over all micro-batches, clip to an exact global norm of 1, AdamW; timed together
between two synchronizations of the device. Where a peer does other than that, `notes` of its result say so. Weights are random, from
the configuration alone; nothing is fetched. Every position is a real token. Attention is causal without a mask, which is FlashAttention
on a GPU. Blocks are recomputed (gradient checkpointing) unless --no-checkpointing is given, which LLMQ, MegaTrain and SlideFormer do not
know: LLMQ recomputes where the device is too small for all activations.

The result is printed after each measured step, on a line of its own, so that a run that is ended keeps the steps that it made: the last
line counts. The parts of the start are printed to standard error when each is over.

Exit status 3: what is asked for does not fit, or the peer is not installed; the JSON then has one key, `skipped`, that says which.
"""

import argparse
import gc
import importlib
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
import traceback
import typing

BEGIN = time.perf_counter()
# PyTorch's allocators read this once, when it is imported. Segments that grow leave fewer gaps where a micro-batch
# nearly fills the device. Eight threads pin host memory, which shortens the start.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True,pinned_use_cuda_host_register:True,"
                                            "pinned_num_register_threads:8")

import torch
import transformers

import account
from common import Skipped, Start

GIB = 1 << 30


class Needs(typing.NamedTuple):
    """The module of a peer, and the bytes that it keeps between steps, without the rounding of pinned memory."""

    module: str
    name: str
    device: int  # bytes a parameter on the device, gradients included
    host: int  # bytes a parameter on the host, gradients included
    logit: int | None = 12  # bytes an element of the logits of a forward pass: 2 + 4, and as much for their gradients; None: see its module


PEERS = {
    "resident": Needs("peer_torch", "Torch", 16, 0),
    "resident-bf16": Needs("peer_torch", "Torch", 8, 0),
    "fsdp-offload": Needs("peer_torch", "Torch", 0, 16),
    "fsdp-offload-bf16": Needs("peer_torch", "Torch", 0, 8),
    # bf16 weights and gradients, and fp32 masters with gradients and two moments; all of them bf16 with -bf16.
    "zero3-offload": Needs("peer_deepspeed", "DeepSpeed", 0, 20),
    "zero3-offload-bf16": Needs("peer_deepspeed", "DeepSpeed", 0, 12),
    "superoffload": Needs("peer_deepspeed", "DeepSpeed", 0, 20),
    "superoffload-noclip": Needs("peer_deepspeed", "DeepSpeed", 0, 20),
    # peer_llmq.py counts what FP8 and a token need.
    "llmq-bf16": Needs("peer_llmq", "LLMQ", 8, 0, logit=None),
    "llmq-fp8": Needs("peer_llmq", "LLMQ", 9, 0, logit=None),
    # bf16 weights twice (pinned again by layer), gradients and moments: fp32 by DeepSpeed's Adam (14), bf16 by PyTorch's (10). Its module
    # adds the slabs and the rounding. All logits are kept as log-probabilities in bf16.
    "megatrain": Needs("peer_megatrain", "MegaTrain", 0, 10, logit=2),
    # fp32 masters and moments; gradients have a buffer for one layer. Logits exist in chunks.
    "slideformer": Needs("peer_slideformer", "SlideFormer", 0, 12, logit=0),
}
GPU_ONLY = ("superoffload", "llmq", "megatrain", "slideformer")


def arguments(argv=None):
    p = argparse.ArgumentParser(description="Training step of a shape in another program.")
    p.add_argument("--peer", choices=list(PEERS), required=True)
    p.add_argument("--peer-dir", default="", help="folder of a clone of MegaTrain or SlideFormer")
    p.add_argument("--shape", default="", help="a shape that `millrace bench` knows")
    p.add_argument("--model", default="", help="or a directory with config.json")
    p.add_argument("--sequence-len", type=int, default=1024)
    p.add_argument("--tokens", type=int, default=4096, help="positions of a step")
    p.add_argument("--micro-batch", type=int, default=0, help="rows of a forward; 0: as many as the device allows")
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--memory-host", type=int, default=0, metavar="GIB", help="host memory that there is, where the system reports less")
    p.add_argument("--no-checkpointing", action="store_true")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu tries the program out on a tiny shape")
    p.add_argument("--force", action="store_true", help="try even if an estimate says that memory does not suffice")
    args = p.parse_args(argv)
    if bool(args.shape) == bool(args.model):
        p.error("give one of --shape and --model")
    if args.tokens < args.sequence_len or args.tokens % args.sequence_len:
        p.error(f"--tokens {args.tokens} is not a multiple of --sequence-len {args.sequence_len}")
    if args.micro_batch and (args.tokens // args.sequence_len) % args.micro_batch:
        p.error(f"--micro-batch {args.micro_batch} does not divide the {args.tokens // args.sequence_len} rows of a step")
    return args


def micro_batch(args, config, free):
    """Rows of a forward: as many as keep logits and checkpoints within 4/5 of the free bytes that state leaves.

    free has the device's bytes. The rest is for the activations of one block, weights on their way and gaps. Without
    checkpointing the activations of all blocks are kept, and the share is 2/5. Few micro-batches matter where state is
    on the host: each of them moves all weights, and FSDP2 adds gradients of a second one on the host, which stops
    everything else.
    """
    rows, needs = args.tokens // args.sequence_len, PEERS[args.peer]
    if args.micro_batch or needs.logit is None:
        return args.micro_batch
    token = needs.logit * config["vocab_size"] + 2 * config["hidden_size"] * config["num_hidden_layers"]
    room = (free - needs.device * account.parameters(config)) * (2 if args.no_checkpointing else 4) // 5
    most = max(room // (token * args.sequence_len), 1)
    return max(n for n in range(1, rows + 1) if rows % n == 0 and n <= most)


def resident_bytes(process="self"):
    """The peak resident bytes of a process and its children that still run. Shared memory counts for each of them."""
    total = 0
    for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            total = int(line.split()[1]) * 1024
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        children = task / "children"
        for child in children.read_text().split() if children.exists() else []:
            total += resident_bytes(child)
    return total


def host_bytes(args):
    """The bytes of host memory that are still available, within a control group's limit, or as the user says."""
    if args.memory_host:
        return args.memory_host * GIB
    free = 0
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = pathlib.Path("/sys/fs/cgroup/memory.max"), pathlib.Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def check_fit(args, config, device):
    """Refuses a peer that would run out of memory and be killed."""
    n, needs = account.parameters(config), PEERS[args.peer]
    on_device, on_host = n * needs.device, n * needs.host
    if args.peer == "megatrain":
        megatrain = importlib.import_module(needs.module)
        on_host = megatrain.host_bytes(config, megatrain.by_deepspeed(config, args.host_free))
    if device.type == "cpu":
        on_device, on_host = 0, on_device + on_host
    else:
        have = torch.cuda.mem_get_info()[0]
        if on_device > have:
            raise Skipped(f"{on_device / GIB:.0f} GiB of state on the device, {have / GIB:.0f} GiB are free")
    if on_host > args.host_free:
        raise Skipped(f"{on_host / GIB:.0f} GiB of state on the host, {args.host_free / GIB:.0f} GiB are free")


def pytorch_bytes(device):
    """The most of the device that PyTorch's allocator has reserved."""
    return torch.cuda.max_memory_reserved() if device.type == "cuda" else 0


def measure(args, report):
    """Runs the peer, and reports the result of each measured step and those before it."""
    args.start = Start(BEGIN)
    args.start.over("import")
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Skipped("PyTorch finds no GPU; --device cpu tries the program out on a tiny shape")
    if device.type == "cpu":
        if args.peer.startswith(GPU_ONLY):
            raise Skipped(f"{args.peer} needs a GPU")
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
             "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # one process, which needs no network
    for key, value in alone.items():
        os.environ.setdefault(key, value)
    transformers.logging.set_verbosity_error()
    config = account.config_of(args.shape, args.model)
    args.host_free = host_bytes(args)
    if not args.force:
        check_fit(args, config, device)
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else args.host_free
    rows, needs = micro_batch(args, config, free), PEERS[args.peer]
    peer = getattr(importlib.import_module(needs.module), needs.name)(args, config, device, rows)
    parameters = getattr(peer, "parameters", None) or sum(getattr(p, "ds_numel", p.numel()) for p in peer.params)
    rows = peer.micro_batch
    gc.collect()
    recomputed = getattr(peer, "recomputed", "" if args.no_checkpointing else "block")
    model_flops, executed_flops = account.flops(config, args.tokens, args.sequence_len, recomputed)

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()

    def result():
        sec = statistics.median(seconds)
        return {
            "program": args.peer, "model": args.shape or args.model,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU", "precision": peer.precision,
            **peer.state._asdict(), "state_bytes": getattr(peer, "state_bytes", needs.device + needs.host), "notes": peer.notes,
            "recomputed": recomputed, "parameters": parameters, "tokens": args.tokens, "sequence_len": args.sequence_len,
            "micro_batch": rows, "micro_batches": args.tokens // args.sequence_len // rows,
            "start_sec": args.start.seconds, "steps": len(seconds), "step_sec": sec, "step_secs": seconds,
            "tokens_per_sec": args.tokens / sec, "model_tflops": model_flops / sec / 1e12, "executed_tflops": executed_flops / sec / 1e12,
            "model_flops": model_flops, "executed_flops": executed_flops, "losses": losses,
            "device_bytes": peer.device_bytes() if hasattr(peer, "device_bytes") else pytorch_bytes(device),
            "peak_rss_bytes": resident_bytes(),
            "torch": torch.__version__, "transformers": transformers.__version__, **getattr(peer, "versions", {}),
        }

    seconds, losses = [], []
    for step in range(args.warmup + args.steps):
        shape = (args.tokens // args.sequence_len, args.sequence_len)
        batch = torch.randint(config["vocab_size"], shape, generator=torch.Generator().manual_seed(step)).to(device)
        wait()
        begin = time.perf_counter()
        loss = peer.step(batch)
        wait()
        if step >= args.warmup:
            seconds.append(time.perf_counter() - begin)
        losses.append(float(loss))
        print(f"step {step + 1}: {time.perf_counter() - begin:.3f} s, loss {losses[-1]:.4f}", file=sys.stderr, flush=True)
        if step == 0:
            args.start.over("step 1")
        if step >= args.warmup:
            report(result())


def main():
    args = arguments()
    out = os.fdopen(os.dup(1), "w")  # the result alone goes to standard output; peers write much of their own there
    os.dup2(2, 1)

    def report(result):
        print(json.dumps(result), file=out, flush=True)

    status = 3
    try:
        measure(args, report)
        status = 0
    except Skipped as e:
        report({"skipped": str(e)})
    except torch.OutOfMemoryError as e:
        report({"skipped": "the device ran out of memory: " + str(e).split(". ")[0]})
    except Exception:
        traceback.print_exc()
        status = 1
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(status)  # a peer's threads must not keep the process from ending


if __name__ == "__main__":
    main()
