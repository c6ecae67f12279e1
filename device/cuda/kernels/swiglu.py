"""The gated activation y = silu(gate)*up, where gateup has the gates in its first half of columns.

Source: Shazeer, "GLU Variants Improve Transformer" (2020).
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def swiglu(y, gateup, rows, inner, sy, sgu, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """Moves 3 elements for each of y."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (col < inner)
    gate = gateup + row * sgu + col
    g = tl.load(gate, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(gate + inner, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * sy + col, (g * _sigmoid(g) * u).to(y.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_grad(dgateup, act, dy, gateup, rows, inner, sdgu, sact, sdy, sgu, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """Both halves of dgateup, and y of swiglu, to the bit, in act. Moves 6 elements for each of dy.

    dgateup may be gateup and act may be dy: a program writes only what it read first.
    """
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (col < inner)
    gate = gateup + row * sgu + col
    g = tl.load(gate, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(gate + inner, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(dy + row * sdy + col, mask=inside, other=0.0).to(tl.float32)
    s = _sigmoid(g)
    out = dgateup + row * sdgu + col
    tl.store(out, (d * u * (s * (1.0 + g * (1.0 - s)))).to(dgateup.dtype.element_ty), mask=inside)
    tl.store(out + inner, (d * (g * s)).to(dgateup.dtype.element_ty), mask=inside)
    tl.store(act + row * sact + col, (g * s * u).to(act.dtype.element_ty), mask=inside)


BLOCK = dict(BLOCK_ROWS=2, BLOCK_COLS=512)
GRID = ("ceil(rows/BLOCK_ROWS)", "ceil(inner/BLOCK_COLS)")

KERNELS = []
for a, t in BF16_OR_F32:
    for variant in ("any", "a16"):
        a16 = variant == "a16"
        KERNELS += [
            Kernel(f"swiglu.{a}.{variant}", swiglu, f"y:*{t} gateup:*{t} rows:i32 inner:i32 sy:i32 sgu:i32", GRID, BLOCK,
                   aligned="y gateup inner sy sgu" if a16 else ""),
            Kernel(f"swiglu_grad.{a}.{variant}", swiglu_grad,
                   f"dgateup:*{t} act:*{t} dy:*{t} gateup:*{t} rows:i32 inner:i32 sdgu:i32 sact:i32 sdy:i32 sgu:i32", GRID, BLOCK,
                   aligned="dgateup act dy gateup inner sdgu sact sdy sgu" if a16 else ""),
        ]
