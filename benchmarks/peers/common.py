"""Code of all peers: models of a configuration with random weights, and the exception for a peer that cannot run."""

import importlib
import importlib.util
import pathlib
import sys
import time
import typing

import torch
import transformers


class Skipped(Exception):
    """The peer cannot run this here; the text says why."""


class State(typing.NamedTuple):
    """What a peer stores between two steps, and how it clips."""

    masters: str  # the type of the weights that AdamW updates
    moments: str
    clipping: str  # "exact": one norm of all gradients; otherwise what is different


ROUNDS_AWAY = "weights are updated in bf16: small updates round away"


class Start:
    """The seconds of a peer's start, by parts in their order. Each is printed when it is over, so that a program that is ended tells
    where it was."""

    def __init__(self, begin):
        self.last, self.seconds = begin, {}

    def over(self, part):
        now = time.perf_counter()
        self.seconds[part] = now - self.last
        print(f"start: {part} {self.seconds[part]:.1f} s", file=sys.stderr, flush=True)
        self.last = now


def configuration(config):
    cfg = transformers.AutoConfig.for_model(config["model_type"], **{k: v for k, v in config.items() if k != "model_type"})
    cfg.use_cache = False
    return cfg


def from_config(config, dtype, attention="sdpa"):
    """The model on the default device, with the weights that transformers gives it."""
    new = tuple(int(x) for x in transformers.__version__.split(".")[:2]) >= (4, 56)
    return transformers.AutoModelForCausalLM.from_config(configuration(config), attn_implementation=attention,
                                                         **{"dtype" if new else "torch_dtype": dtype})


def build(config, device, dtype, attention="sdpa"):
    """The model with parameters on the meta device; its rotary table is real, since it is no parameter and is not stored."""
    with torch.device("meta"):
        model = from_config(config, dtype, attention)
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
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


def on_host(config, dtype, attention="sdpa"):
    """The whole model in host memory, filled, for programs that take it from there."""
    model = build(config, "cpu", dtype, attention)
    materialize(model, "cpu")
    fill(model)
    return model


def local(tensor):
    """The share of a tensor that this process holds, which is all of it on one device: FSDP2's, ZeRO-3's, or the tensor."""
    if hasattr(tensor, "ds_tensor"):
        return tensor.ds_tensor
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def fill(model):
    """Random weights at the speed of memory: one block of a normal distribution, again and again; norms are ones, biases zeros."""
    block = torch.empty(1 << 20).normal_(std=0.02, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            flat = local(p).detach().view(-1)
            if len(getattr(p, "ds_shape", p.shape)) < 2:
                flat.fill_(0 if name.endswith(".bias") else 1)
                continue
            source = block.to(flat.device, flat.dtype)
            whole = flat.numel() // source.numel() * source.numel()
            flat[:whole].view(-1, source.numel()).copy_(source.expand(whole // source.numel(), -1))
            flat[whole:].copy_(source[: flat.numel() - whole])


def load(folder, module, name):
    """Imports a module of a program that is not installed, from the folder that the user names."""
    if not folder:
        raise Skipped(f"--peer-dir is missing: the folder of a clone of {name}")
    path = pathlib.Path(folder).resolve()
    if not (path / module.replace(".", "/")).is_dir() and not (path / (module.replace(".", "/") + ".py")).is_file():
        raise Skipped(f"{path} is no clone of {name}: it has no {module}")
    sys.path.insert(0, str(path))
    try:
        return importlib.import_module(module)
    except Exception as e:  # it fails in many ways where its requirements are not met
        raise Skipped(f"{name} cannot be imported: {type(e).__name__}: {e}") from e


def installed(module):
    """Whether a module can be found, without importing it."""
    return importlib.util.find_spec(module) is not None
