"""SlideFormer (github.com/RegiaYoung/SlideFormer) from the folder of a clone, used as its scripts/main_bench.py uses it."""

import torch

from common import Skipped, State, installed, load, on_host


class SlideFormer:
    def __init__(self, args, config, device, micro_batch):
        rows = args.tokens // args.sequence_len
        if micro_batch != rows:
            raise Skipped(f"SlideFormer updates weights in each backward pass: --micro-batch must be all {rows} rows of the step")
        program = load(args.peer_dir, "offload_transformer", "SlideFormer")
        attention = "flash_attention_2" if installed("flash_attn") else "sdpa"
        args.start.over("slideformer")
        model = on_host(config, torch.bfloat16, attention)
        args.start.over("model")
        self.micro_batch = micro_batch
        layers = config["num_hidden_layers"]
        self.notes = ["no clipping: weights are updated in the backward pass", f"attention: {attention}"]
        try:
            from liger_kernel.transformers import _apply_liger_kernel_to_instance
            _apply_liger_kernel_to_instance(model=model)
            self.notes.append("Liger kernels, as its authors' measurements have them")
        except Exception as e:  # Liger knows some releases of transformers only
            self.notes.append(f"without Liger kernels in its blocks: {type(e).__name__}: {e}")
        optimizer = {"lr": 1e-5, "bias_correction": True, "betas": (0.9, 0.999), "weight_decay": 0.01, "eps": 1e-8,
                     "fp32_optimizer_state": True, "num_layer": layers + 2, "nvme_offload_fraction": 0.0, "offload_dir": None,
                     "prefetch": True}
        self.model = program.SlideFormerOffloader(model=model, device=device, dtype=torch.bfloat16, enable_timing=False,
                                                  enable_memory_stats=False, optimizer_kwargs=optimizer)
        self.model.train()
        self.params = list(model.parameters())
        self.precision, self.state = "fp32 masters, bf16 compute", State("fp32", "fp32", "none")
        args.start.over("constructor")

    def step(self, batch):
        """Forward, backward and update. The model does all three when it gets labels, and waits for the update."""
        return self.model(input_ids=batch, labels=batch).loss.detach()
