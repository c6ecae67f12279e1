"""Load what `millrace export` makes of the model of each golden file with transformers.

    python3 -m pip install torch==2.9.0 transformers==5.24.0 safetensors==0.8.0
    go build -o millrace ./cmd/millrace
    python3 model/modeltest/load_exports.py ./millrace [VARIANT ...]

Exports are in fp32. The class that config.json names must load each of them without a missing, an unexpected or a
mismatched tensor, and each tensor of the export must have the name, the type, the shape and the bytes that it has in
the model: what is trained, and what is carried. Models that transformers refuses as they are, before an export, are
named and left out. Exit status 1 if an export differs.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open


def tensors(directory):
    """All tensors of a directory by their names."""
    with safe_open(directory / "model.safetensors", "pt") as f:
        return {name: f.get_tensor(name) for name in f.keys()}


def load(directory):
    """The names of what is missing, unexpected or mismatched where transformers loads a directory."""
    name = json.loads((directory / "config.json").read_text())["architectures"][0]
    _, info = getattr(transformers, name).from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    return name, [key for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]]


def same(a, b):
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(*(x.flatten().view(torch.uint8) for x in (a, b)))


def main(millrace, *names):
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folders = sorted(pathlib.Path(__file__).parent.glob("testdata*/*/golden.safetensors"))
    bad = 0
    for model in (f.parent for f in folders if not names or f.parent.name in names):
        try:
            load(model)
        except Exception as e:  # its sizes are not those of a configuration of this version, for example
            print(f"{model.name}: transformers refuses the model itself: {str(e).splitlines()[-1].strip()}")
            continue
        with tempfile.TemporaryDirectory() as made:
            out = pathlib.Path(made, "export")
            subprocess.run([millrace, "export", model, out, "--dtype", "f32"], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            name, wrong = load(out)
            want, got = tensors(model), tensors(out)
            wrong += sorted(want.keys() ^ got.keys())
            wrong += [key for key in sorted(want.keys() & got.keys()) if not same(want[key], got[key])]
        bad += bool(wrong)
        print(f"{model.name}: {name}, {len(got)} tensors" + "".join(f"\n    differs: {key}" for key in wrong))
    print(f"{bad} exports differ")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
