"""Some columns of a tile of logits, others in each row: those of the tokens that ids [rows, n] names, of which the tile has some."""

import triton
import triton.language as tl

from loss import _capped
from registry import BF16_OR_F32, Kernel


@triton.jit
def pick_logits(picked, logits, ids, rows, n, cols, first, sl, cap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    """picked = the logits of ids in the columns [first, first+cols) of the vocabulary, capped. Programs: rows."""
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        col = tl.load(ids + row * n + at, mask=at < n, other=-1).to(tl.int64) - first
        here = (at < n) & (col >= 0) & (col < cols)
        x = tl.load(logits + row * sl + col, mask=here, other=0.0)
        if CAPPED:
            x = _capped(x, cap)
        tl.store(picked + row * n + at, x, mask=here)


@triton.jit
def put_logit_grads(dlogits, logits, values, ids, rows, n, cols, first, sd, sl, cap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    """dlogits of ids = values, times the cap's derivative. Programs: rows. No id is twice in a row, so no two stores meet."""
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        col = tl.load(ids + row * n + at, mask=at < n, other=-1).to(tl.int64) - first
        here = (at < n) & (col >= 0) & (col < cols)
        v = tl.load(values + row * n + at, mask=here, other=0.0)
        if CAPPED:
            x = _capped(tl.load(logits + row * sl + col, mask=here, other=0.0), cap)
            v *= 1.0 - (x / cap) * (x / cap)
        tl.store(dlogits + row * sd + col, v.to(dlogits.dtype.element_ty), mask=here)


KERNELS = []
for word, capped in (("", 0), (".cap", 1)):
    fixed = dict(CAPPED=capped, BLOCK=128)
    KERNELS.append(Kernel(f"pick_logits{word}", pick_logits,
                          "picked:*fp32 logits:*fp32 ids:*i32 rows:i32 n:i32 cols:i32 first:i32 sl:i32 cap:fp32", ("rows",), fixed))
    KERNELS += [Kernel(f"put_logit_grads.{a}{word}", put_logit_grads,
                       f"dlogits:*{t} logits:*fp32 values:*fp32 ids:*i32 rows:i32 n:i32 cols:i32 first:i32 sd:i32 sl:i32 cap:fp32",
                       ("rows",), fixed) for a, t in BF16_OR_F32]
