"""Writes dynamic8.json: what bitsandbytes makes of numbers, for the tests of 8-bit moments.

    python3 -m pip install torch==2.9.0 numpy==2.4.6 bitsandbytes==0.50.2
    python3 dynamic8.py

bitsandbytes has several blockwise quantizers. Its optimizer (CUDA, csrc/kernels.cu) and its PyTorch fallback take the nearest
code; they differ on exact means of two codes (even code; lower code), which the inputs here avoid, and in that the optimizer keeps
the sign of a negative number whose nearest code is zero, which `keep_sign` adds. The library for CPUs (csrc/cpu_ops.cpp) looks
numbers up by their first 16 bits in fixed point, which is not the nearest code below 1e-3, and is not used here.
"""

import base64
import json

import bitsandbytes.backends.cpu.ops as cpu
import bitsandbytes.functional as F
import numpy as np
import torch

BLOCK = 256
SIGNED, UNSIGNED = F.create_dynamic_map(signed=True), F.create_dynamic_map(signed=False)
f32 = np.float32


def fallback(name):
    """The PyTorch kernel of an operation, whatever the device."""
    op = getattr(torch.ops.bitsandbytes, name).default
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    return lambda *args: op.redispatch(keys, *args)


def keep_sign(codes, x, code):
    """The optimizer's correction: a code whose sign is not the number's is moved by one."""
    zero = int((code == 0).nonzero()[0, 0])
    return torch.where((x < 0) & (codes == zero), codes - 1, codes)


def quantize(x, code):
    x = torch.as_tensor(x)
    codes, scales = fallback("quantize_blockwise")(x, code, BLOCK)
    codes = keep_sign(codes, x, code)
    return torch.where(scales.repeat_interleave(BLOCK) == 0, 0, codes).to(torch.uint8), scales


def dequantize(codes, scales, code):
    return fallback("dequantize_blockwise")(codes, scales, code, BLOCK, torch.float32)


def text(a):
    a = a.numpy() if isinstance(a, torch.Tensor) else a
    return base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()


def numbers(rng):
    """Blocks of several kinds: normal, over many decades, rare, small, zero."""
    blocks = [rng.standard_normal(BLOCK), rng.standard_normal(BLOCK) * 10 ** rng.uniform(-9, 0, BLOCK),
              rng.standard_normal(BLOCK) * (rng.random(BLOCK) < 0.1), 1e-20 * rng.standard_normal(BLOCK), np.zeros(BLOCK)]
    return np.concatenate(blocks).astype(f32)


def scalars(step, lr, b1, b2, eps, wd):
    """In fp64, rounded once."""
    bc1, bc2 = 1 - b1**step, 1 - b2**step
    return dict(clip=f32(0.75), decay=f32(1 - lr * wd), omb1=f32(1 - b1), b2=f32(b2), omb2=f32(1 - b2), size=f32(lr / bc1),
                root=f32(np.sqrt(bc2)), eps=f32(eps))


def adamw(p, m, v, g, s):
    """torch.optim.AdamW's order, one rounding for each operation."""
    g = s["clip"] * g
    p = p * s["decay"]
    m = m + (g - m) * s["omb1"]
    v = s["b2"] * v + s["omb2"] * g * g
    tiny = np.finfo(f32).tiny
    m, v = (np.where(np.abs(x) < tiny, f32(0), x) for x in (m, v))
    return p - s["size"] * m / (np.sqrt(v) / s["root"] + s["eps"]), m, v


def main():
    rng = np.random.default_rng(8)
    out = {"signed": text(SIGNED), "unsigned": text(UNSIGNED)}

    x = numbers(rng)
    out["x"] = text(x)
    for name, code, y in (("signed", SIGNED, x), ("unsigned", UNSIGNED, np.abs(x))):
        codes, scales = quantize(y, code)
        out[name + "Codes"], out[name + "Scales"] = text(codes), text(scales)
        out[name + "Back"] = text(dequantize(codes, scales, code))

    steps, n = 6, 3 * BLOCK
    hyper = dict(lr=1e-2, b1=0.9, b2=0.999, eps=1e-8, wd=0.1)
    p = rng.standard_normal(n).astype(f32)
    grads = rng.standard_normal((steps, n)) * 10 ** rng.uniform(-4, 0, n)
    grads[:, :BLOCK] *= rng.random((steps, BLOCK)) < 0.2
    grads[:, BLOCK : 2 * BLOCK] = 0
    grads = grads.astype(f32)
    out["p"], out["grads"] = text(p), text(grads)

    theirs = torch.tensor(p)
    ours_codes = torch.zeros(2, n, dtype=torch.uint8)
    ours_scales = torch.zeros(2, n // BLOCK)
    their_codes, their_scales = ours_codes.clone(), ours_scales.clone()
    maps = (SIGNED, UNSIGNED)
    # Their optimizer for CPUs, but with the nearest codes.
    def nearest(x, code, scales, codes, blocksize):
        c, s = quantize(x, code)
        codes.copy_(c), scales.copy_(s)
    cpu._quant_blockwise_fp32_direct = nearest
    for step in range(1, steps + 1):
        s = scalars(step, **hyper)
        m, v = (dequantize(ours_codes[i], ours_scales[i], maps[i]).numpy() for i in range(2))
        p, m, v = adamw(p, m, v, grads[step - 1], s)
        for i, x in enumerate((m, v)):
            ours_codes[i], ours_scales[i] = quantize(x, maps[i])
        cpu._optimizer_update_8bit_blockwise_cpu(
            "adam", torch.tensor(grads[step - 1]), theirs, their_codes[0], their_codes[1], hyper["b1"], hyper["b2"], 0.0, 0.0,
            hyper["eps"], step, hyper["lr"], SIGNED, UNSIGNED, their_scales[0], their_scales[1], hyper["wd"], 0.75)
    out |= {"pAfter": text(p), "codes": text(ours_codes), "scales": text(ours_scales),
            "theirP": text(theirs), "theirCodes": text(their_codes), "theirScales": text(their_scales)}
    d = np.abs(ours_codes.numpy().astype(int) - their_codes.numpy().astype(int))
    print("codes that differ from their optimizer's:", (d > 0).sum(), "of", d.size, "at most by", d.max())
    print("weights:", np.abs(p - theirs.numpy()).max(), "scales:", (ours_scales != their_scales).sum().item())
    with open("dynamic8.json", "w") as f:
        json.dump(out, f, indent=0)


main()
