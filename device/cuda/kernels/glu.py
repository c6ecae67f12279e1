"""The gated unit y = f(g)*u (gates.py), where gateup has the gates in its first half of columns. Without ups, u is
1."""

import triton
import triton.language as tl

from gates import ACTIVATIONS, GLU, gated
from registry import BF16_OR_F32, Kernel


@triton.jit
def glu(y, gateup, rows, inner, sy, sgu, ups, alpha, limit, plus, ACTIVATION: tl.constexpr, BLOCK_ROWS: tl.constexpr,
        BLOCK_COLS: tl.constexpr):
    """Moves 3 elements for each of y; ups is 0 if gateup has gates alone."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (col < inner)
    at = gateup + row * sgu + col
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=inside & (ups != 0), other=1.0).to(tl.float32)
    f, _, u = gated(gate, up, alpha, limit, plus, ACTIVATION)
    tl.store(y + row * sy + col, (f * u).to(y.dtype.element_ty), mask=inside)


@triton.jit
def glu_grad(dgateup, act, dy, gateup, rows, inner, sdgu, sact, sdy, sgu, ups, alpha, limit, plus,
             ACTIVATION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """Both halves of dgateup, and y of glu, to the bit, in act. Moves 6 elements for each of dy.

    dgateup may be gateup and act may be dy: a program writes only what it read first.
    """
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (col < inner)
    at = gateup + row * sgu + col
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=inside & (ups != 0), other=1.0).to(tl.float32)
    d = tl.load(dy + row * sdy + col, mask=inside, other=0.0).to(tl.float32)
    f, slope, u = gated(gate, up, alpha, limit, plus, ACTIVATION)
    dgate = tl.where(gate > limit, 0.0, d * u * slope)
    dup = tl.where(tl.abs(up) > limit, 0.0, d * f)
    out = dgateup + row * sdgu + col
    tl.store(out, dgate.to(dgateup.dtype.element_ty), mask=inside)
    tl.store(out + inner, dup.to(dgateup.dtype.element_ty), mask=inside & (ups != 0))
    tl.store(act + row * sact + col, (f * u).to(act.dtype.element_ty), mask=inside)


BLOCK = dict(BLOCK_ROWS=2, BLOCK_COLS=512)
GRID = ("ceil(rows/BLOCK_ROWS)", "ceil(inner/BLOCK_COLS)")

KERNELS = []
for activation in ACTIVATIONS:
    for a, t in BF16_OR_F32:
        for variant in ("any", "a16"):
            def stream(op, function, arguments, aligned):
                KERNELS.append(Kernel(f"{op}.{activation}.{a}.{variant}", function, f"{arguments} {GLU}", GRID,
                                      dict(ACTIVATION=ACTIVATIONS[activation], **BLOCK),
                                      aligned=aligned if variant == "a16" else "",
                                      spill=4 if (op, variant) == ("glu_grad", "any") else 0))  # of fp32, for sm_120

            stream("glu", glu, f"y:*{t} gateup:*{t} rows:i32 inner:i32 sy:i32 sgu:i32 ups:i32", "y gateup inner sy sgu")
            stream("glu_grad", glu_grad,
                   f"dgateup:*{t} act:*{t} dy:*{t} gateup:*{t} rows:i32 inner:i32 sdgu:i32 sact:i32 sdy:i32 sgu:i32 "
                   "ups:i32",
                   "dgateup act dy gateup inner sdgu sact sdy sgu")
