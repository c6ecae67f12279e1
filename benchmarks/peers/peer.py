"""Measure a training step of a shape in PyTorch and transformers, and print it as JSON with the names of `millrace bench --json`.

    python3 peer.py --peer resident --shape qwen2.5-1.5b --sequence-len 2048 --tokens 32768

    --peer  resident       all on the device: fp32 parameters, gradients and moments, autocast to bf16 (16 bytes a parameter)
            resident-bf16  the same in bf16 alone (8 bytes a parameter): small updates round away
            fsdp-offload   FSDP2 (fully_shard on every block) with CPUOffloadPolicy: fp32 masters and AdamW on the host, bf16 on the device
            fsdp-offload-bf16   the same with bf16 alone on the host
            zero3-offload  DeepSpeed ZeRO-3 with parameters and optimizer on the host: bf16, fp32 masters, its own host Adam

A step is: clear gradients, forward and backward over all micro-batches, clip to an exact global norm of 1, AdamW; timed together
between two synchronizations of the device. Weights are random, from the configuration alone; nothing is fetched. Every position is a
real token. Attention is scaled_dot_product_attention with is_causal, which is FlashAttention on a GPU. Blocks are recomputed
(gradient checkpointing) unless --no-checkpointing is given.

Exit status 3: what is asked for does not fit, or the peer is not installed; the JSON then has one key, `skipped`, that says which.
"""

import argparse
import gc
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
import transformers

import account

GIB = 1 << 30

# Bytes a parameter that a peer keeps on the device and on the host between steps, gradients included. ZeRO-3 keeps the bf16 weights
# beside 12 bytes of masters and moments, and gradients in bf16; pinned memory is rounded up, which is not in it.
NEEDS = {"resident": (16, 0), "resident-bf16": (8, 0), "fsdp-offload": (0, 16), "fsdp-offload-bf16": (0, 8), "zero3-offload": (0, 16)}


class Skipped(Exception):
    """The peer cannot run this here; the text says why."""


def arguments(argv=None):
    p = argparse.ArgumentParser(description="Training step of a shape in PyTorch and transformers.")
    p.add_argument("--peer", choices=sorted(NEEDS), required=True)
    p.add_argument("--shape", default="", help="a shape that `millrace bench` knows")
    p.add_argument("--model", default="", help="or a directory with config.json")
    p.add_argument("--sequence-len", type=int, default=1024)
    p.add_argument("--tokens", type=int, default=4096, help="positions of a step")
    p.add_argument("--micro-batch", type=int, default=0, help="rows of a forward; 0: as many as keep logits below 16 GiB")
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--warmup", type=int, default=1)
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


def micro_batch(args, config):
    """Rows of a forward: logits take 2 + 4 bytes an element, and as much again for their gradients."""
    rows = args.tokens // args.sequence_len
    if args.micro_batch:
        return args.micro_batch
    most = max(16 * GIB // (12 * args.sequence_len * config["vocab_size"]), 1)
    return max(n for n in range(1, rows + 1) if rows % n == 0 and n <= most)


def status_bytes(key):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def host_bytes():
    """What can still be had of host memory, a control group's limit included."""
    free = 0
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = pathlib.Path("/sys/fs/cgroup/memory.max"), pathlib.Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def check_fit(args, config, device):
    """Refuse what would only find out by being killed."""
    n = account.parameters(config)
    on_device, on_host = (n * x for x in NEEDS[args.peer])
    if device.type == "cpu":
        on_device, on_host = 0, on_device + on_host
    else:
        have = torch.cuda.mem_get_info()[0]
        if on_device > have:
            raise Skipped(f"{on_device / GIB:.0f} GiB of state on the device, {have / GIB:.0f} GiB are free")
    have = host_bytes()
    if on_host > have:
        raise Skipped(f"{on_host / GIB:.0f} GiB of state on the host, {have / GIB:.0f} GiB are free")


def configuration(config):
    cfg = transformers.AutoConfig.for_model(config["model_type"], **{k: v for k, v in config.items() if k != "model_type"})
    cfg.use_cache = False
    return cfg


def build(config, device, dtype):
    """The model with parameters on the meta device; its rotary table is real, since it is no parameter and is not stored."""
    cfg = configuration(config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(cfg, dtype=dtype, attn_implementation="sdpa")
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(config=cfg)
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise SystemExit(f"buffer {name} of this family is not known to this script")
    model.train()
    return model


def materialize(model, device):
    """Give parameters memory; buffers stay where they are."""
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if p.is_meta:
                setattr(module, name, torch.nn.Parameter(torch.empty_like(p, device=device)))
    model.tie_weights()


def local(tensor):
    """A sharded tensor's own share, which is all of it on one device."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def fill(model):
    """Random weights at the speed of memory: one block of a normal distribution, again and again; norms are ones, biases zeros."""
    block = torch.empty(1 << 20).normal_(std=0.02, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            flat = local(p).detach().view(-1)
            if p.dim() < 2:
                flat.fill_(0 if name.endswith(".bias") else 1)
                continue
            source = block.to(flat.device, flat.dtype)
            whole = flat.numel() // source.numel() * source.numel()
            flat[:whole].view(-1, source.numel()).copy_(source.expand(whole // source.numel(), -1))
            flat[whole:].copy_(source[: flat.numel() - whole])


def clip(params, max_norm=1.0):
    """Exact global clipping, as torch.nn.utils.clip_grad_norm_ has it, on what a process holds."""
    grads = [local(p.grad) for p in params if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)).float())
    torch._foreach_mul_(grads, torch.clamp(max_norm / (norm + 1e-6), max=1.0).to(grads[0].dtype))
    return norm


class Torch:
    """Resident on the device, or FSDP2 with offload to the host."""

    def __init__(self, args, config, device):
        self.device = device
        only_bf16 = args.peer.endswith("-bf16")
        self.autocast = args.peer == "resident"
        offload = args.peer.startswith("fsdp")
        model = build(config, device, torch.bfloat16 if only_bf16 else torch.float32)
        if not args.no_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if offload:
            self.shard(model, only_bf16)
            materialize_sharded(model)
        else:
            materialize(model, device)
        fill(model)
        self.model, self.params = model, list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
        self.precision = "bf16" if only_bf16 else "fp32 masters, bf16 compute"

    def shard(self, model, only_bf16):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        dist.init_process_group("cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo")
        mesh = init_device_mesh(self.device.type, (1,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16 if only_bf16 else torch.float32)
        how = {"mesh": mesh, "mp_policy": policy,
               "offload_policy": CPUOffloadPolicy(pin_memory=True) if self.device.type == "cuda" else OffloadPolicy()}
        for block in model.model.layers:
            fully_shard(block, **how)
        fully_shard(model, **how)

    def step(self, batch, rows):
        self.optimizer.zero_grad(set_to_none=True)
        passes = len(batch) // rows
        for ids in batch.split(rows):
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
                loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss / passes
            loss.backward()
        clip(self.params)
        self.optimizer.step()


def materialize_sharded(model):
    """Memory on the host for the shares of a sharded model."""
    rotary = model.model.rotary_emb
    buffers = {name: b.clone() for name, b in rotary.named_buffers()}
    where = {name: b.device for name, b in buffers.items()}
    model.to_empty(device="cpu")
    for name, value in buffers.items():
        setattr(rotary, name, value.to(where[name]))


class DeepSpeed:
    """ZeRO-3 with parameters and optimizer on the host."""

    def __init__(self, args, config, device):
        try:
            import deepspeed
        except Exception as e:  # it fails in many ways where its build does not match the installed torch
            raise Skipped(f"deepspeed cannot be imported: {type(e).__name__}: {e}") from e
        rows = args.tokens // args.sequence_len
        micro = micro_batch(args, config)
        where = {"device": "cpu", "pin_memory": device.type == "cuda"}
        settings = {
            "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": rows // micro, "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_optimizer": where, "offload_param": where, "overlap_comm": True,
                                  "contiguous_gradients": True, "stage3_param_persistence_threshold": 0},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
        }
        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")
        with deepspeed.zero.Init(config_dict_or_path=settings, dtype=torch.bfloat16):  # layers are partitioned as they are made
            model = transformers.AutoModelForCausalLM.from_config(configuration(config), dtype=torch.bfloat16, attn_implementation="sdpa")
        if not args.no_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
        self.params, self.precision = list(model.parameters()), "fp32 masters, bf16 compute"

    def step(self, batch, rows):
        for ids in batch.split(rows):
            self.engine.backward(self.engine(input_ids=ids, labels=ids, use_cache=False).loss)
            self.engine.step()


def measure(args):
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Skipped("PyTorch finds no GPU; --device cpu tries the program out on a tiny shape")
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(key, value)
    transformers.logging.set_verbosity_error()
    config = account.config_of(args.shape, args.model)
    if not args.force:
        check_fit(args, config, device)
    rows = micro_batch(args, config)
    peer = (DeepSpeed if args.peer == "zero3-offload" else Torch)(args, config, device)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in peer.params)
    gc.collect()

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()

    seconds = []
    for step in range(args.warmup + args.steps):
        shape = (args.tokens // args.sequence_len, args.sequence_len)
        batch = torch.randint(config["vocab_size"], shape, generator=torch.Generator().manual_seed(step)).to(device)
        wait()
        begin = time.perf_counter()
        peer.step(batch, rows)
        wait()
        if step >= args.warmup:
            seconds.append(time.perf_counter() - begin)
        print(f"step {step + 1}: {time.perf_counter() - begin:.3f} s", file=sys.stderr)

    sec = statistics.median(seconds)
    model_flops, executed_flops = account.flops(config, args.tokens, args.sequence_len, not args.no_checkpointing)
    result = {
        "program": args.peer, "model": args.shape or args.model, "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "precision": peer.precision, "checkpointing": not args.no_checkpointing, "parameters": parameters, "tokens": args.tokens,
        "sequence_len": args.sequence_len, "micro_batch": rows, "micro_batches": args.tokens // args.sequence_len // rows,
        "steps": args.steps, "step_sec": sec, "step_min_sec": min(seconds), "step_max_sec": max(seconds),
        "tokens_per_sec": args.tokens / sec, "model_tflops": model_flops / sec / 1e12, "executed_tflops": executed_flops / sec / 1e12,
        "model_flops": model_flops, "executed_flops": executed_flops,
        "device_bytes": torch.cuda.max_memory_reserved() if device.type == "cuda" else 0, "peak_rss_bytes": status_bytes("VmHWM"),
        "torch": torch.__version__, "transformers": transformers.__version__,
    }
    if args.peer == "zero3-offload":
        import deepspeed
        result["deepspeed"] = deepspeed.__version__
    return result


def main():
    args = arguments()
    try:
        print(json.dumps(measure(args), indent=2))
    except Skipped as e:
        print(json.dumps({"skipped": str(e)}))
        sys.exit(3)
    except Exception as e:
        if type(e).__name__ != "OutOfMemoryError":
            raise
        print(json.dumps({"skipped": "the device ran out of memory: " + str(e).split(". ")[0]}))
        sys.exit(3)
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
