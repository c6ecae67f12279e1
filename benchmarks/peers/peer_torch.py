"""PyTorch alone: resident on the device, or FSDP2 with offload to the host."""

import torch
import torch.distributed as dist

from common import ROUNDS_AWAY, State, build, fill, local, materialize


def clip(params, max_norm=1.0):
    """Exact global clipping, as torch.nn.utils.clip_grad_norm_ has it, on what a process holds."""
    grads = [local(p.grad) for p in params if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)).float())
    torch._foreach_mul_(grads, torch.clamp(max_norm / (norm + 1e-6), max=1.0).to(grads[0].dtype))
    return norm


class Torch:
    def __init__(self, args, config, device, micro_batch):
        self.device = device
        only_bf16 = args.peer.endswith("-bf16")
        self.autocast = args.peer == "resident"
        self.micro_batch = micro_batch
        model = build(config, device, torch.bfloat16 if only_bf16 else torch.float32)
        if not args.no_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if args.peer.startswith("fsdp"):
            self.shard(model, only_bf16)
            materialize_sharded(model)
        else:
            materialize(model, device)
        fill(model)
        self.model, self.params = model, list(model.parameters())
        args.start.over("model")
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
        self.precision = "bf16" if only_bf16 else "fp32 masters, bf16 compute"
        kind = "bf16" if only_bf16 else "fp32"
        self.state, self.notes = State(kind, kind, "exact"), [ROUNDS_AWAY] if only_bf16 else []
        args.start.over("constructor")

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

    def step(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        passes, total = len(batch) // self.micro_batch, 0
        for ids in batch.split(self.micro_batch):
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
                loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss / passes
            loss.backward()
            total += loss.detach()
        clip(self.params)
        self.optimizer.step()
        return total


def materialize_sharded(model):
    """Memory on the host for the shares of a sharded model."""
    rotary = model.model.rotary_emb
    buffers = {name: b.clone() for name, b in rotary.named_buffers()}
    where = {name: b.device for name, b in buffers.items()}
    model.to_empty(device="cpu")
    for name, value in buffers.items():
        setattr(rotary, name, value.to(where[name]))
