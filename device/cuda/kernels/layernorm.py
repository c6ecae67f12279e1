"""Layer norms of rows. A program goes over a row several times; after the first time it comes from the cache.

Source: Ba et al., "Layer Normalization" (2016).
"""

import triton
import triton.language as tl

from norm import _rstd, _slice
from registry import BF16_OR_F32, Kernel


@triton.jit
def _row(x, col, n):
    return tl.load(x + col, mask=col < n, other=0.0).to(tl.float32)


@triton.jit
def layernorm(y, stat, x, w, b, rows, n, sy, sx, eps, biased, BLOCK_COLS: tl.constexpr):
    """y = w*(x - mean)*rstd + b, and mean and rstd; b is not read if biased is 0. Moves 2 elements for each of y.
    Programs: rows.
    """
    row = tl.program_id(0).to(tl.int64)
    x += row * sx
    y += row * sy
    sums = tl.zeros([BLOCK_COLS], tl.float32)
    for first in range(0, n, BLOCK_COLS):
        sums += _row(x, first + tl.arange(0, BLOCK_COLS), n)
    mean = tl.div_rn(tl.sum(sums), n.to(tl.float32))
    squares = tl.zeros([BLOCK_COLS], tl.float32)
    for first in range(0, n, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        v = tl.where(col < n, _row(x, col, n) - mean, 0.0)
        squares += v * v
    r = _rstd(tl.sum(squares), n, eps)
    tl.store(stat + row * 2, mean)
    tl.store(stat + row * 2 + 1, r)
    for first in range(0, n, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        v = _row(w, col, n) * ((_row(x, col, n) - mean) * r)
        v += tl.load(b + col, mask=(col < n) & (biased != 0), other=0.0).to(tl.float32)
        tl.store(y + col, v.to(y.dtype.element_ty), mask=col < n)


@triton.jit
def layernorm_grad(part, dx, dy, x, w, stat, resid, rows, n, slices, sdx, sdy, sx, sresid, around,
                   BLOCK_COLS: tl.constexpr):
    """Both gradients: dx = rstd*(w*dy - mean(w*dy) - xhat*mean(w*dy*xhat)), plus resid unless around is 0; part[s] =
    sum of dy*xhat over slice s of the rows, which fold adds up. Programs: slices.

    Its sums are in part all the time, and a row is read twice, the second time from the cache. dx may be dy or resid:
    the means have seen all of dy before the first store.
    """
    part, begin, count = _slice(part, n, rows, slices, 1)
    for first in range(0, n, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        tl.store(part + col, tl.zeros([BLOCK_COLS], tl.float32), mask=col < n)
    for t in range(0, count):
        row = (begin + t).to(tl.int64)
        to = dx + row * sdx
        of = dy + row * sdy
        at = x + row * sx
        mean = tl.load(stat + row * 2)
        r = tl.load(stat + row * 2 + 1)
        sums = tl.zeros([BLOCK_COLS], tl.float32)
        dots = tl.zeros([BLOCK_COLS], tl.float32)
        for first in range(0, n, BLOCK_COLS):
            col = first + tl.arange(0, BLOCK_COLS)
            g = _row(w, col, n) * _row(of, col, n)
            sums += g
            dots += g * ((_row(at, col, n) - mean) * r)
        whole = tl.div_rn(tl.sum(sums), n.to(tl.float32))
        along = tl.div_rn(tl.sum(dots), n.to(tl.float32))
        tl.debug_barrier()  # a thread may load from part what another one stored
        for first in range(0, n, BLOCK_COLS):
            col = first + tl.arange(0, BLOCK_COLS)
            g = _row(of, col, n)
            xhat = (_row(at, col, n) - mean) * r
            tl.store(part + col, tl.load(part + col, mask=col < n) + g * xhat, mask=col < n)
            v = r * (_row(w, col, n) * g - whole - xhat * along)
            v += tl.load(resid + row * sresid + col, mask=(col < n) & (around != 0), other=0.0).to(tl.float32)
            tl.store(to + col, v.to(dx.dtype.element_ty), mask=col < n)


# What a program takes of a row at once: a thread moves single elements, or 16 bytes and more.
ODD, WIDE = dict(BLOCK_COLS=512), dict(BLOCK_COLS=2048)

KERNELS = []
for a, t in BF16_OR_F32:
    forward = f"y:*{t} stat:*fp32 x:*{t} w:*{t} b:*{t} rows:i32 n:i32 sy:i32 sx:i32 eps:fp32 biased:i32"
    backward = (f"part:*fp32 dx:*{t} dy:*{t} x:*{t} w:*{t} stat:*fp32 resid:*{t} rows:i32 n:i32 slices:i32 "
                "sdx:i32 sdy:i32 sx:i32 sresid:i32 around:i32")
    for variant, block in (("any", ODD), ("a16", WIDE)):
        a16 = variant == "a16"
        KERNELS += [
            Kernel(f"layernorm.{a}.{variant}", layernorm, forward, ("rows",), block,
                   aligned="y x w b n sy sx" if a16 else ""),
            Kernel(f"layernorm_grad.{a}.{variant}", layernorm_grad, backward, ("slices",), block,
                   aligned="part dx dy x w resid n sdx sdy sx sresid" if a16 else "", warps=8 if a16 else 4,
                   spill=8 if a16 else 0),  # of bf16, for sm_90a and later, ptxas stops at 48 registers
        ]
