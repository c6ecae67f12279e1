"""MegaTrain (github.com/DLYuanGod/MegaTrain) from the folder of a clone, used as its examples/sft/train.py uses it."""

import torch

import account
from common import ROUNDS_AWAY, State, installed, load, on_host


MARGIN_BYTES = 10 << 30  # for Python, libraries and the blocks' unpinned copies, which are there for a moment


def by_deepspeed(config, free):
    """Whether DeepSpeed's host Adam is taken: where it is installed, as in MegaTrain's own program, and its fp32 moments fit.

    PyTorch's Adam has moments of the weights' type, bf16. free has the host's free bytes.
    """
    return installed("deepspeed") and host_bytes(config, True) + MARGIN_BYTES <= free


def pinned_bytes(parameters):
    """What PyTorch takes for a pinned piece of bf16 numbers: the next power of two."""
    return 1 << (2 * parameters - 1).bit_length()


def host_bytes(config, fp32_moments):
    """What it keeps on the host, in bytes.

    Weights, gradients and moments of all parameters; each block's weights a second time, pinned; two pinned buffers and twelve slabs of
    a block's size; a slab for the head and one for the embedding.
    """
    every, table = account.parameters(config), config["vocab_size"] * config["hidden_size"]
    tables = 1 if config.get("tie_word_embeddings") else 2
    layers = config["num_hidden_layers"]
    block = (every - tables * table) // layers
    return every * (12 if fp32_moments else 8) + (layers + 14) * pinned_bytes(block) + 2 * pinned_bytes(table)


class NoMask:
    """Replaces the padding mask that MegaTrain passes to attention. Without it rows are causal and full: faster."""

    def to(self, device):
        return None


class MegaTrain:
    def __init__(self, args, config, device, micro_batch):
        infinity = load(args.peer_dir, "infinity", "MegaTrain")
        args.start.over("megatrain")
        attention = "flash_attention_2" if installed("flash_attn") else "sdpa"
        how = infinity.CPUMasterConfig(model_name=args.shape or args.model, device=device.index or 0, dtype=torch.bfloat16,
                                       attn_implementation=attention, dataset_path="random tokens", max_seq_len=args.sequence_len,
                                       batch_size=micro_batch, learning_rate=1e-5, weight_decay=0.01, enable_timing=False)
        model = on_host(config, torch.bfloat16, attention)
        args.start.over("model")
        self.model = infinity.CPUMasterModel(model, how)
        args.start.over("constructor")
        self.params = self.model.get_parameters()
        same = {"lr": 1e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        try:
            if not by_deepspeed(config, args.host_free):
                raise ImportError("not installed, or without room for its moments")
            from deepspeed.ops.adam import DeepSpeedCPUAdam
            self.optimizer = DeepSpeedCPUAdam(self.params, adamw_mode=True, **same)
            by, moments, self.state_bytes = "DeepSpeed's host Adam, fp32 moments", "fp32", 14
        except Exception:  # or its build fails
            self.optimizer = torch.optim.AdamW(self.params, fused=True, **same)
            by, moments, self.state_bytes = "PyTorch's fused AdamW on the host, bf16 moments, updates in bf16", "bf16", 10
        args.start.over("optimizer")
        self.micro_batch, passes = micro_batch, args.tokens // args.sequence_len // micro_batch
        self.precision, self.state = f"bf16, {moments} moments", State("bf16", moments, "exact")
        self.notes = [ROUNDS_AWAY, f"optimizer: {by}", f"attention: {attention}",
                      f"a forward pass is stored every {how.checkpoint_interval} blocks, and run twice more in the backward pass",
                      "PyTorch pins by cudaHostRegister in eight threads; its own program leaves that as it is, which only starts slower"]
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
