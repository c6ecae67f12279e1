"""Loads what millrace exports, with transformers or with the part of vLLM that runs without a GPU.

    python loaders.py transformers DIR      a warning is an error
    python loaders.py vllm DIR              warnings are printed: vLLM warns of the missing GPU, too

Prints a line for the loader.
"""
import glob
import json
import logging
import pathlib
import sys
import warnings


class Refuse(logging.Handler):
    """Turns a log record of a warning into an error, or prints it."""

    def __init__(self, shows):
        super().__init__()
        self.shows = shows

    def emit(self, record):
        if record.levelno < logging.WARNING:
            return
        if not self.shows:
            raise RuntimeError(f"{record.name} warns: {record.getMessage()}")
        print(f"warning of {record.name}: {record.getMessage()}")


def with_transformers(path):
    import transformers
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_propagation()
    transformers.logging.disable_default_handler()
    transformers.AutoConfig.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(key), (key, info[key])
    ids = tokenizer("The capital of France is", return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=8, do_sample=False)
    stored = next(iter(model.parameters())).dtype
    chat = ""
    if tokenizer.chat_template:
        chat = ", chat " + repr(tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)[:40])
    print(f"transformers {transformers.__version__}: {type(model).__name__} in {stored}, "
          f"generates {tokenizer.decode(out[0])!r}{chat}")
    said = json.loads(pathlib.Path(path, "config.json").read_text())
    wanted = said.get("dtype") or said.get("torch_dtype")
    assert str(stored) == f"torch.{wanted}", (stored, wanted)


def with_vllm(path):
    import vllm
    from vllm.config import ModelConfig
    from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator
    config = ModelConfig(model=path, tokenizer=path)
    names = [n for n, _ in safetensors_weights_iterator(sorted(glob.glob(path + "/*.safetensors")), False)]
    from vllm.model_executor.models import ModelRegistry
    known = [a for a in config.architectures if a in ModelRegistry.get_supported_archs()]
    assert known, config.architectures
    print(f"vllm {vllm.__version__}: config of {known[0]}, {config.max_model_len} positions, {config.dtype}; "
          f"its reader finds {len(names)} tensors")


which, where = sys.argv[1:]
if which == "vllm":
    logging.getLogger("vllm").addHandler(Refuse(shows=True))
    with_vllm(where)
else:
    warnings.simplefilter("error")
    logging.getLogger().addHandler(Refuse(shows=False))
    with_transformers(where)
