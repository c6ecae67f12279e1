"""Cross-entropy over a vocabulary that is visited in tiles of columns, in a fixed order.

stat [rows, 4] holds per position the greatest logit m so far, the sum of exp(x-m), the target's logit, and the sum of exp(x-m)*(x-m).
Where CAPPED, these are of cap*tanh(logit/cap); else cap is not read.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

import itertools

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def _capped(x, cap):
    """cap*tanh(x/cap), off by cap*2^-22 at most. A NaN stays one."""
    e = tl.exp(tl.minimum(x * (2.0 / cap), 44.0, propagate_nan=tl.PropagateNan.ALL))
    return cap * ((e - 1.0) / (e + 1.0))


@triton.jit
def _below(x, most):
    """x - most, for products with exp(x - most), which is 0 from -104 on: there 0 times infinity would be a NaN."""
    return tl.maximum(x - most, -200.0)


@triton.jit
def lse_init(stat, rows, BLOCK: tl.constexpr):
    """stat = (-inf, 0, 0, 0). Programs: ceil(rows/BLOCK)."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = stat + row.to(tl.int64) * 4
    zero = tl.zeros([BLOCK], tl.float32)
    tl.store(at, zero - float("inf"), mask=row < rows)
    tl.store(at + 1, zero, mask=row < rows)
    tl.store(at + 2, zero, mask=row < rows)
    tl.store(at + 3, zero, mask=row < rows)


@triton.jit
def lse_update(stat, logits, targets, rows, cols, first, sl, cap, CAPPED: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """Takes the columns [first, first+cols) of the vocabulary in. Programs: rows. Reads logits once.

    Each place in a block keeps a maximum and sums of its own, so that there is one reduction at the end.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * sl
    stat += row * 4
    # Finite, so that places which saw nothing compute exp(-inf) = 0 and not exp(-inf - -inf).
    most = tl.full([BLOCK_COLS], -3.0e38, tl.float32)
    total = tl.zeros([BLOCK_COLS], tl.float32)
    below = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(logits + col, mask=col < cols, other=float("-inf"))
        if CAPPED:
            x = tl.where(col < cols, _capped(x, cap), float("-inf"))
        new = tl.maximum(most, x)
        below = (below + total * _below(most, new)) * tl.exp(most - new) + tl.exp(x - new) * _below(x, new)
        total = total * tl.exp(most - new) + tl.exp(x - new)
        most = new
    old = tl.load(stat)
    new = tl.maximum(old, tl.max(most, 0))
    below = tl.sum((below + total * _below(most, new)) * tl.exp(most - new), 0)
    below += (tl.load(stat + 3) + tl.load(stat + 1) * _below(old, new)) * tl.exp(old - new)
    total = tl.load(stat + 1) * tl.exp(old - new) + tl.sum(total * tl.exp(most - new), 0)
    target = tl.load(targets + row)
    at = target.to(tl.int64) - first
    here = (target >= 0) & (at >= 0) & (at < cols)
    logit = tl.load(logits + at, mask=here, other=0.0)
    if CAPPED:
        logit = _capped(logit, cap)
    tl.store(stat, new)
    tl.store(stat + 1, total)
    tl.store(stat + 2, logit, mask=here)
    tl.store(stat + 3, below)


@triton.jit
def token_loss(figures, stat, targets, rows, BLOCK: tl.constexpr):
    """figures [3, rows] = the loss, the entropy, and 1 where the target's logit is the greatest; 0 where the target is negative. Programs:
    ceil(rows/BLOCK)."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = stat + row.to(tl.int64) * 4
    most = tl.load(at, mask=row < rows, other=0.0)
    total = tl.load(at + 1, mask=row < rows, other=1.0)
    logit = tl.load(at + 2, mask=row < rows, other=0.0)
    below = tl.load(at + 3, mask=row < rows, other=0.0)
    target = tl.load(targets + row, mask=row < rows, other=-1)
    tl.store(figures + row, tl.where(target >= 0, (most - logit) + tl.log(total), 0.0), mask=row < rows)
    to = figures + rows.to(tl.int64) + row
    tl.store(to, tl.where(target >= 0, tl.log(total) - below / total, 0.0), mask=row < rows)
    tl.store(to + rows, tl.where((target >= 0) & (logit >= most), 1.0, 0.0), mask=row < rows)


@triton.jit
def ce_grad(dlogits, logits, stat, targets, weights, slopes, rows, cols, first, sd, sl, cap, CAPPED: tl.constexpr, SLOPED: tl.constexpr,
            BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """dlogits = (softmax - onehot)*weight of the tile, times the cap's derivative; zeros where the target is negative. Where SLOPED,
    slope times the gradient of the softmax's entropy, -softmax*(x - m - mean), is added before that derivative; mean is that of x - m
    under the softmax. Else slopes are not read. Reads logits and writes dlogits once."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    known = row < rows
    inside = known & (col < cols)
    most = tl.load(stat + row * 4, mask=known, other=0.0)
    total = tl.load(stat + row * 4 + 1, mask=known, other=1.0)
    target = tl.load(targets + row, mask=known, other=-1)
    weight = tl.load(weights + row, mask=known, other=0.0)
    x = tl.load(logits + row * sl + col, mask=inside, other=0.0)
    if CAPPED:
        x = _capped(x, cap)
    if SLOPED:
        mean = tl.load(stat + row * 4 + 3, mask=known, other=0.0) / total
        slope = tl.load(slopes + row, mask=known, other=0.0) / total
        p = tl.exp(x - most) * (weight / total - slope * (_below(x, most) - mean))
    else:
        p = tl.exp(x - most) * (weight / total)
    p = tl.where(target.to(tl.int64) - first == col, p - weight, p)
    if CAPPED:
        p *= 1.0 - (x / cap) * (x / cap)
    tl.store(dlogits + row * sd + col, tl.where(target >= 0, p, 0.0).to(dlogits.dtype.element_ty), mask=inside)


KERNELS = [
    Kernel("lse_init", lse_init, "stat:*fp32 rows:i32", ("ceil(rows/BLOCK)",), dict(BLOCK=256)),
    Kernel("token_loss", token_loss, "figures:*fp32 stat:*fp32 targets:*i32 rows:i32", ("ceil(rows/BLOCK)",), dict(BLOCK=256)),
]
update = "stat:*fp32 logits:*fp32 targets:*i32 rows:i32 cols:i32 first:i32 sl:i32 cap:fp32"
for (variant, aligned), (word, capped) in itertools.product((("any", ""), ("a16", "logits cols sl")), (("", 0), (".cap", 1))):
    KERNELS.append(Kernel(f"lse_update{word}.{variant}", lse_update, update, ("rows",), dict(CAPPED=capped, BLOCK_COLS=2048),
                          aligned=aligned))
    KERNELS += [
        Kernel(f"ce_grad.{a}{entropy}{word}.{variant}", ce_grad, f"dlogits:*{t} logits:*fp32 stat:*fp32 targets:*i32 weights:*fp32 "
               "slopes:*fp32 rows:i32 cols:i32 first:i32 sd:i32 sl:i32 cap:fp32",
               ("ceil(rows/BLOCK_ROWS)", "ceil(cols/BLOCK_COLS)"),
               dict(CAPPED=capped, SLOPED=sloped, BLOCK_ROWS=2, BLOCK_COLS=1024),
               aligned=f"dlogits sd {aligned}".strip() if aligned else "")
        for (entropy, sloped), (a, t) in itertools.product((("", 0), (".entropy", 1)), BF16_OR_F32)
    ]
