"""Rotary positions.

Source: Su et al., "RoFormer" (2021), in the half-split form of transformers.
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def rope(y, x, bias, cos, sin, positions, rows, heads, headdim, inverse, sy, sx, BIAS: tl.constexpr, ALIGNED: tl.constexpr,
         BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """(y1, y2) = (x1 cos - x2 sin, x2 cos + x1 sin) for the halves of each head; with inverse, sin is negative. With BIAS it is added
    to x first, and the sum rounded to x's type, as add_bias does.

    Moves 2 elements for each of y; the bias and the tables' rows stay in the cache. y may be x: a pair is read and written by one program, first
    read. Programs: rows, ceil(heads/BLOCK_HEADS).
    """
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    half = headdim // 2
    if ALIGNED:
        half = tl.multiple_of(half, 8)
    at = tl.load(positions + row).to(tl.int64) * half
    sign = tl.where(inverse != 0, -1.0, 1.0)
    for first in range(0, half, BLOCK_HALF):
        col = first + tl.arange(0, BLOCK_HALF)[None, :]
        c = tl.load(cos + at + col, mask=col < half)
        s = tl.load(sin + at + col, mask=col < half) * sign
        inside = (head < heads) & (col < half)
        one = x + row * sx + head * headdim + col
        x1 = tl.load(one, mask=inside).to(tl.float32)
        x2 = tl.load(one + half, mask=inside).to(tl.float32)
        if BIAS:
            b = bias + head * headdim + col
            x1 = (x1 + tl.load(b, mask=inside).to(tl.float32)).to(x.dtype.element_ty).to(tl.float32)
            x2 = (x2 + tl.load(b + half, mask=inside).to(tl.float32)).to(x.dtype.element_ty).to(tl.float32)
        out = y + row * sy + head * headdim + col
        tl.store(out, (x1 * c - x2 * s).to(y.dtype.element_ty), mask=inside)
        tl.store(out + half, (x2 * c + x1 * s).to(y.dtype.element_ty), mask=inside)


KERNELS = [
    Kernel(f"rope.{a}{'.bias' if bias else ''}.{variant}", rope,
           f"y:*{t} x:*{t} bias:*{t} cos:*fp32 sin:*fp32 positions:*i32 rows:i32 heads:i32 headdim:i32 inverse:i32 sy:i32 sx:i32",
           ("rows", "ceil(heads/BLOCK_HEADS)"), dict(BIAS=bias, ALIGNED=variant == "a16", BLOCK_HEADS=16 if variant == "a16" else 8, BLOCK_HALF=64),
           aligned="y x cos sin headdim sy sx" + " bias" * bias if variant == "a16" else "")
    for a, t in BF16_OR_F32 for bias in (False, True) for variant in ("any", "a16")
]
