"""LLMQ (github.com/IST-DASLab/llmq), by its Python package pyllmq, used as its scripts/train.py uses it.

It draws its own random weights and takes a row's tokens and targets as arrays, so no file is written for it.
"""

import typing

import torch

import account
from common import Skipped, State


class Settings(typing.NamedTuple):
    """What LLMQ keeps for the backward pass. Those that keep more are faster and need more of the device."""

    recompute: tuple  # names of LLamaOptions
    again: str  # the products among it, as account.flops names them
    offload_residual: bool
    most_tokens: int  # of a micro-batch


# The first and the last are those that its benchmarks/H100x1.md has for 7B on 80 GB, bf16 and FP8: micro-batches of 4 and of 16 rows of
# 1,024. Larger micro-batches with everything kept are the same settings on a device with more memory.
SETTINGS = (
    Settings((), "", False, 16384),
    Settings(("recompute_swiglu", "recompute_rms_norm"), "", False, 16384),
    Settings(("recompute_swiglu", "recompute_rms_norm", "recompute_ffn"), "ffn", True, 16384),
)
# Tokens of a micro-batch below which the next settings are taken: smaller products are slower than what recomputing costs. For 7B on 80 GB
# these give its own settings: in bf16 4 rows of 1,024, in FP8 the same recomputation, with 8 rows instead of 16.
LEAST_TOKENS = {"llmq-bf16": 4096, "llmq-fp8": 8192}
CHUNKS = 4  # that the head and attention's gradient are cut into; its own commands for 7B have 2 and 4


def token_bytes(config, settings, fp8):
    """Device bytes of a token of a micro-batch, as src/models/llama_run_state.cpp allocates them."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    head_dim = hidden // config["num_attention_heads"]
    qkv = hidden + 2 * head_dim * config["num_key_value_heads"]
    kept = 2 * qkv + 4 * hidden  # the input and the result of attention, and the residual after it
    stored = 1 if fp8 else 2  # bytes of an operand of a product that is kept
    if not settings.offload_residual:
        kept += 2 * hidden
    if "recompute_rms_norm" not in settings.recompute:
        kept += 2 * stored * hidden
    if "recompute_swiglu" not in settings.recompute:
        kept += stored * inner
    if "recompute_ffn" not in settings.recompute:
        kept += 4 * inner
    once = 16 * hidden + 10 * inner + 4 * qkv + 2 * config["vocab_size"] // CHUNKS  # buffers that layers share
    return layers * kept + once


def state_bytes(config, fp8):
    """Weights, gradients and two moments in bf16; with FP8 the blocks' weights a second time, quantized."""
    every = account.parameters(config)
    tables = (1 if config.get("tie_word_embeddings") else 2) * config["vocab_size"] * config["hidden_size"]
    return 8 * every + (every - tables if fp8 else 0)


def choose(config, rows, sequence_len, free, peer):
    """The rows of a micro-batch and the settings; free has the device's free bytes."""
    fp8 = peer == "llmq-fp8"
    room = (free - state_bytes(config, fp8) - (2 << 30)) * 19 // 20
    for settings in SETTINGS:
        most = min(room // token_bytes(config, settings, fp8), settings.most_tokens) // sequence_len
        fitting = [n for n in range(1, rows + 1) if rows % n == 0 and n <= most]
        if fitting and (fitting[-1] * sequence_len >= LEAST_TOKENS[peer] or fitting[-1] == rows or settings is SETTINGS[-1]):
            return fitting[-1], settings
    raise Skipped(f"LLMQ's state and a row of {sequence_len} tokens need more than the {free / 2**30:.0f} GiB of the device that are free")


def configuration(pyllmq, config, sequence_len):
    """LLMQ's configuration. It knows two families, and its rotary table has no scaling, which costs the same."""
    family = config["model_type"]
    if config.get("head_dim") not in (None, config["hidden_size"] // config["num_attention_heads"]):
        raise Skipped(f"LLMQ derives the size of a head from the hidden size, and this model has heads of {config['head_dim']}")
    # from_name is the only way to a Llama, and all of its numbers are replaced.
    names = {"qwen2": "Qwen2.5-7B", "llama": "llama-3-8b"}
    if family not in names:
        raise Skipped(f"LLMQ knows the families qwen2 and llama, and this is {family}")
    made = pyllmq.Config.from_name(names[family], "bf16")
    for name in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
                 "rms_norm_eps", "tie_word_embeddings"):
        setattr(made, name, config[name])
    made.rope_theta = float(config.get("rope_theta", 10000.0))
    made.max_position_embeddings = sequence_len
    return made


def options(pyllmq, settings, attention_chunks, fp8):
    made = pyllmq.LLamaOptions()
    for name in settings.recompute:
        setattr(made, name, True)
    made.offload_residual = settings.offload_residual
    made.lmhead_chunks, made.attn_bwd_chunks = CHUNKS, attention_chunks
    made.momentum_type = made.variance_type = "bf16"
    made.matmul_type = "e4m3" if fp8 else "bf16"
    made.use_cuda_graphs = True
    return made


class LLMQ:
    def __init__(self, args, config, device, micro_batch):
        try:
            import pyllmq  # PyTorch has loaded CUDA's libraries, which it takes from there if they are of its major version
        except Exception as e:  # also an OSError where a library is missing
            raise Skipped(f"pyllmq cannot be imported: {type(e).__name__}: {e}") from e
        args.start.over("pyllmq")
        fp8, rows = args.peer == "llmq-fp8", args.tokens // args.sequence_len
        self.before = torch.cuda.mem_get_info()[0]
        self.micro_batch, chosen = choose(config, rows, args.sequence_len, self.before, args.peer)
        self.micro_batch = micro_batch or self.micro_batch
        chunks = max(n for n in (1, 2, CHUNKS) if self.micro_batch % n == 0)
        self.trainer = pyllmq.LLMQTrainer(ngpu=1, config=configuration(pyllmq, config, args.sequence_len),
                                          options=options(pyllmq, chosen, chunks, fp8), batch_size=self.micro_batch,
                                          seq_len=args.sequence_len, grad_accum=rows // self.micro_batch)
        args.start.over("constructor")
        self.trainer.init_weights()
        args.start.over("weights")
        self.recomputed, self.parameters, self.steps = chosen.again, account.parameters(config), 0
        self.precision = "bf16, products in FP8 (e4m3)" if fp8 else "bf16"
        self.state = State("bf16, rounded at random", "bf16, rounded at random", "by the square of the exact norm")
        self.notes = [", ".join(chosen.recompute) or "nothing is recomputed",
                      f"the head in {CHUNKS} pieces, attention's gradient in {chunks}",
                      "clipping divides by the squared norm (src/kernels/global_norm.cu), at the cost of exact clipping",
                      "random weights of its own"]
        if rows > self.micro_batch:
            self.notes.append("gradients of micro-batches are added in bf16")
        if chosen.offload_residual:
            self.notes.append("residuals are kept in host memory")
        if config.get("rope_scaling"):
            self.notes.append("rotary angles without the model's scaling")

    def device_bytes(self):
        """What the device has less since before the trainer was made: LLMQ does not allocate by PyTorch."""
        return self.before - torch.cuda.mem_get_info()[0]

    def step(self, batch):
        self.steps += 1
        ids = batch.to("cpu", torch.int32)
        targets = ids.roll(-1, 1).contiguous()  # LLMQ does not shift; a row's last target is its first token
        for inputs, labels in zip(ids.split(self.micro_batch), targets.split(self.micro_batch)):
            self.trainer.step(inputs.numpy(), labels.numpy())
        done = self.trainer.update(1e-5, 0.9, 0.999, self.steps, 0.01, 1.0)  # rate, betas, number, decay, norm; it waits for the device
        return done["loss"]
