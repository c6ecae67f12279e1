"""MegaTrain (github.com/DLYuanGod/MegaTrain) from the folder of a clone, used as its examples/sft/train.py uses it."""

import torch

from common import installed, load, on_host


class NoMask:
    """Replaces the padding mask that MegaTrain passes to attention. Without it rows are causal and full: faster."""

    def to(self, device):
        return None


class MegaTrain:
    def __init__(self, args, config, device, micro_batch):
        infinity = load(args.peer_dir, "infinity", "MegaTrain")
        attention = "flash_attention_2" if installed("flash_attn") else "sdpa"
        how = infinity.CPUMasterConfig(model_name=args.shape or args.model, device=device.index or 0, dtype=torch.bfloat16,
                                       attn_implementation=attention, dataset_path="random tokens", max_seq_len=args.sequence_len,
                                       batch_size=micro_batch, learning_rate=1e-5, weight_decay=0.01, enable_timing=False)
        self.model = infinity.CPUMasterModel(on_host(config, torch.bfloat16, attention), how)
        self.params = self.model.get_parameters()
        same = {"lr": 1e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        try:
            from deepspeed.ops.adam import DeepSpeedCPUAdam
            self.optimizer, by = DeepSpeedCPUAdam(self.params, adamw_mode=True, **same), "DeepSpeed's host Adam, fp32 moments"
        except Exception:  # not installed, or its build fails
            self.optimizer, by = torch.optim.AdamW(self.params, fused=True, **same), "PyTorch's fused AdamW on the host, bf16 moments"
        self.micro_batch, passes = micro_batch, args.tokens // args.sequence_len // micro_batch
        self.precision = "bf16"
        self.notes = ["weights are updated in bf16: small updates round away", f"optimizer: {by}", f"attention: {attention}",
                      f"a forward pass is stored every {how.checkpoint_interval} blocks, and run twice more in the backward pass"]
        if passes > 1:
            self.notes.append("gradients of micro-batches are added in bf16, and not divided by their number")

    def step(self, batch):
        total, passes = 0.0, len(batch) // self.micro_batch
        for ids in batch.split(self.micro_batch):
            loss, *_ = self.model.forward_and_backward(ids, NoMask(), ids)
            total += loss / passes
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optimizer.step()
        self.model._sync_params_to_gpu()
        self.model.zero_grad()
        self.optimizer.zero_grad()
        return total
