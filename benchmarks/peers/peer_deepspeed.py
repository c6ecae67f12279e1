"""DeepSpeed's ZeRO-3 with parameters and optimizer on the host, by the fast settings of release 0.19.8 (2026-10-20).

README.md names the source of each setting. Defaults that are already the fast ones are written out, so that another release's defaults
change nothing.
"""

import torch

from common import ROUNDS_AWAY, Skipped, State, fill, from_config


def settings(peer, micro_batch, micro_batches, pin=True):
    """DeepSpeed's configuration as a dict."""
    host = {"device": "cpu", "pin_memory": pin}
    optimizer = dict(host)
    if peer.startswith("superoffload"):
        optimizer |= {"super_offload": True, "cpuadam_cores_perc": 0.8}
    bf16 = {"enabled": True}
    if peer.endswith("-bf16"):
        bf16 |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    return {
        "train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 0.0 if peer.endswith("-noclip") else 1.0, "bf16": bf16,
        "zero_optimization": {"stage": 3, "offload_optimizer": optimizer, "offload_param": host, "overlap_comm": True,
                              "contiguous_gradients": True, "stage3_prefetch_bucket_size": 500_000_000,
                              "stage3_param_persistence_threshold": 100_000},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
    }


class DeepSpeed:
    def __init__(self, args, config, device, micro_batch):
        try:
            import deepspeed
            from deepspeed.ops.op_builder import CPUAdamBuilder
        except Exception as e:  # it fails in many ways where its build does not match the installed torch
            raise Skipped(f"deepspeed cannot be imported: {type(e).__name__}: {e}") from e
        args.start.over("deepspeed")
        try:
            CPUAdamBuilder().load()  # compiles it, unless that was done before; where another process does it, this one waits
        except Exception as e:
            raise Skipped(f"deepspeed cannot build its host Adam (it needs a C++ compiler and ninja): {type(e).__name__}: {e}") from e
        args.start.over("host Adam")
        self.micro_batch, passes = micro_batch, args.tokens // args.sequence_len // micro_batch
        how = settings(args.peer, micro_batch, passes, pin=device.type == "cuda")
        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")
        with deepspeed.zero.Init(config_dict_or_path=how, dtype=torch.bfloat16):  # layers are partitioned as they are made
            model = from_config(config, torch.bfloat16)
        fill(model)
        if not args.no_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        args.start.over("model")
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=how)
        self.params = list(model.parameters())
        self.precision = "bf16" if args.peer.endswith("-bf16") else "fp32 masters, bf16 compute"
        kind = "bf16" if args.peer.endswith("-bf16") else "fp32"
        self.state = State(kind, kind, "none" if args.peer.endswith("-noclip") else "exact")
        self.notes = [ROUNDS_AWAY] if kind == "bf16" else []
        if args.peer.endswith("-noclip"):
            self.notes.append("no clipping: updates run in the backward pass, which they do not with it")
        if passes > 1:
            self.notes.append("gradients of micro-batches are added in bf16, DeepSpeed's default")
        self.versions = {"deepspeed": deepspeed.__version__}
        args.start.over("constructor")

    def step(self, batch):
        total, passes = 0, len(batch) // self.micro_batch
        for ids in batch.split(self.micro_batch):
            loss = self.engine(input_ids=ids, labels=ids, use_cache=False).loss
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach() / passes
        return total
