"""Compares gpt-oss in MXFP4, as `millrace export --dtype mxfp4` writes it, with what transformers reads.

    python mxfp4.py --millrace ./millrace --work work

A random gpt-oss in bf16 is exported in MXFP4 and from there in bf16. transformers loads both, the first one dequantized.
Each parameter and the logits must be equal to the bit. Then transformers' own conversion takes the other direction: the
numbers that it reads must be those of a model that is saved in bf16 and exported in MXFP4 a second time. Ends with status 1
if anything differs. Pinned: torch 2.9.0, transformers 5.24.0, safetensors.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, Mxfp4Config


def load(path, **how):
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, output_loading_info=True, **how)
    wrong = {k: v for k, v in info.items() if v}
    assert not wrong, f"{path}: {wrong}"
    return model.eval()


def same(what, a, b):
    a, b = dict(a.named_parameters()), dict(b.named_parameters())
    assert a.keys() == b.keys(), what
    differ = [n for n in a if not torch.equal(a[n].contiguous().view(torch.int16), b[n].contiguous().view(torch.int16))]
    print(f"{what}: {len(a) - len(differ)} of {len(a)} parameters equal to the bit")
    return not differ


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--millrace", required=True)
    args.add_argument("--work", required=True, type=pathlib.Path)
    args = args.parse_args()
    assert transformers.__version__ == "5.24.0" and torch.__version__.startswith("2.9.0"), "other versions than pinned"
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    torch.manual_seed(1)
    config = GptOssConfig(vocab_size=257, hidden_size=128, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=32, num_local_experts=8, num_experts_per_tok=4, sliding_window=16,
                          max_position_embeddings=4096, dtype="bfloat16", initializer_range=0.1)
    original = GptOssForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for n, p in original.named_parameters():
            if n.endswith("_proj"):
                p.copy_(p * 2.0 ** torch.randint(-20, 2, p.shape[:1] + (1,) + p.shape[2:]))
    paths = {n: str(args.work / n) for n in ("original", "mxfp4", "bf16", "again")}
    original.save_pretrained(paths["original"])

    def export(of, to, *how):
        subprocess.run([args.millrace, "export", paths[of], paths[to], *how], check=True, stdout=subprocess.DEVNULL)

    export("original", "mxfp4", "--dtype", "mxfp4")
    export("mxfp4", "bf16")
    packed, plain = load(paths["mxfp4"], quantization_config=Mxfp4Config(dequantize=True)), load(paths["bf16"])
    with safe_open(args.work / "mxfp4" / "model.safetensors", "pt") as f:
        blocks = [n for n in f.keys() if n.endswith("_blocks")]
    said = json.loads((args.work / "mxfp4" / "config.json").read_text())["quantization_config"]
    assert len(blocks) == 8 and said["quant_method"] == "mxfp4" and len(said["modules_to_not_convert"]) == 4
    good = same("transformers' MXFP4 and millrace's bf16 of it", packed, plain)

    ids = torch.randint(0, 257, (2, 64))
    with torch.no_grad():
        a, b, c = (m.eval()(ids).logits.float() for m in (packed, plain, original))
    good = good and torch.equal(a, b)
    print(f"logits: largest difference {(a - b).abs().max():g}; to the model before MXFP4 {(a - c).abs().max():g} of {c.abs().max():g}")

    packed.hf_quantizer = None
    paths["read"] = str(args.work / "read")
    packed.save_pretrained(paths["read"])
    export("read", "again", "--dtype", "mxfp4")
    good = same("MXFP4, read by transformers, and exported again", load(paths["again"], quantization_config=Mxfp4Config(dequantize=True)), plain) and good

    # Each number is the nearest of the sixteen with its block's scale.
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    worst = 0
    for n, p in original.named_parameters():
        if n.endswith("_proj"):
            x = p.detach().double().transpose(1, 2).reshape(*p.shape[:1], p.shape[2], -1, 32)
            y = dict(plain.named_parameters())[n].detach().double().transpose(1, 2).reshape(x.shape)
            scale = 2.0 ** (x.abs().amax(-1, keepdim=True).log2().floor() - 2)
            nearest = (x.abs()[..., None] / scale[..., None] - grid).abs().amin(-1) * scale
            worst = max(worst, ((x - y).abs() - nearest).abs().max().item())
    print(f"no number is nearer to another code: {worst == 0}")
    return 0 if good and worst == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
