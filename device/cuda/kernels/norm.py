"""Root-mean-square norms of rows, or of the equal groups of columns that rows are cut into (one for each head, in QK-norm).

The wide kernels take one group per program and go over it twice; the second time it comes from the cache, as a group is a few
KiB. The narrow ones take several groups at once, whole, for groups of at most NARROW columns.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def _rstd(squares, d, eps):
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, d.to(tl.float32)) + eps))


@triton.jit
def rmsnorm(y, rstd, x, w, rows, groups, d, sy, sx, eps, BLOCK_COLS: tl.constexpr):
    """y = w*x*rstd, and rstd. Moves 2 elements for each of y. Programs: rows, groups."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    x += row * sx + group * d
    y += row * sy + group * d
    squares = tl.zeros([BLOCK_COLS], tl.float32)
    for first in range(0, d, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        v = tl.load(x + col, mask=col < d, other=0.0).to(tl.float32)
        squares += v * v
    r = _rstd(tl.sum(squares), d, eps)
    tl.store(rstd + row * groups + group, r)
    for first in range(0, d, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        v = tl.load(x + col, mask=col < d).to(tl.float32)
        v = tl.load(w + col, mask=col < d).to(tl.float32) * (v * r)
        tl.store(y + col, v.to(y.dtype.element_ty), mask=col < d)


@triton.jit
def rmsnorm_grad(dx, dy, x, w, rstd, resid, rows, groups, d, sdx, sdy, sx, sresid, RESID: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """dx = rstd*(w*dy - xhat*mean(w*dy*xhat)) with xhat = x*rstd, plus resid where RESID. Programs: rows, groups.

    Moves 3 or 4 elements for each of dx. dx may be dy or resid: the sum has seen all of dy before the first store, and
    a block is read before it is written.
    """
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    dx += row * sdx + group * d
    dy += row * sdy + group * d
    x += row * sx + group * d
    resid += row * sresid + group * d
    r = tl.load(rstd + row * groups + group)
    dots = tl.zeros([BLOCK_COLS], tl.float32)
    for first in range(0, d, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        g = tl.load(w + col, mask=col < d, other=0.0).to(tl.float32) * tl.load(dy + col, mask=col < d, other=0.0).to(tl.float32)
        dots += g * (tl.load(x + col, mask=col < d, other=0.0).to(tl.float32) * r)
    mean = tl.div_rn(tl.sum(dots), d.to(tl.float32))
    for first in range(0, d, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        g = tl.load(w + col, mask=col < d).to(tl.float32) * tl.load(dy + col, mask=col < d).to(tl.float32)
        v = r * (g - tl.load(x + col, mask=col < d).to(tl.float32) * r * mean)
        if RESID:
            v += tl.load(resid + col, mask=col < d).to(tl.float32)
        tl.store(dx + col, v.to(dx.dtype.element_ty), mask=col < d)


@triton.jit
def _several(rows, groups, d, BLOCK_ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """A program's groups, as a list of their rows and numbers; their columns; and which of these there are."""
    i = tl.arange(0, BLOCK_ROWS * BLOCK_GROUPS)[:, None]
    row = tl.program_id(0) * BLOCK_ROWS + i // BLOCK_GROUPS
    group = tl.program_id(1) * BLOCK_GROUPS + i % BLOCK_GROUPS
    col = tl.arange(0, BLOCK_COLS)[None, :]
    known = (row < rows) & (group < groups)
    return row.to(tl.int64), group, col, known, known & (col < d)


@triton.jit
def rmsnorm_narrow(y, rstd, x, w, rows, groups, d, sy, sx, eps, BLOCK_ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
                   BLOCK_COLS: tl.constexpr):
    """rmsnorm for d <= BLOCK_COLS. Programs: ceil(rows/BLOCK_ROWS), ceil(groups/BLOCK_GROUPS)."""
    row, group, col, known, inside = _several(rows, groups, d, BLOCK_ROWS, BLOCK_GROUPS, BLOCK_COLS)
    v = tl.load(x + row * sx + group * d + col, mask=inside, other=0.0).to(tl.float32)
    r = _rstd(tl.sum(v * v, 1, keep_dims=True), d, eps)
    tl.store(rstd + row * groups + group, r, mask=known)
    v = tl.load(w + col, mask=col < d, other=0.0).to(tl.float32) * (v * r)
    tl.store(y + row * sy + group * d + col, v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def rmsnorm_grad_narrow(dx, dy, x, w, rstd, resid, rows, groups, d, sdx, sdy, sx, sresid, RESID: tl.constexpr,
                        BLOCK_ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """rmsnorm_grad for d <= BLOCK_COLS. Programs: ceil(rows/BLOCK_ROWS), ceil(groups/BLOCK_GROUPS)."""
    row, group, col, known, inside = _several(rows, groups, d, BLOCK_ROWS, BLOCK_GROUPS, BLOCK_COLS)
    r = tl.load(rstd + row * groups + group, mask=known, other=0.0)
    g = tl.load(w + col, mask=col < d, other=0.0).to(tl.float32)
    g *= tl.load(dy + row * sdy + group * d + col, mask=inside, other=0.0).to(tl.float32)
    xhat = tl.load(x + row * sx + group * d + col, mask=inside, other=0.0).to(tl.float32) * r
    mean = tl.div_rn(tl.sum(g * xhat, 1, keep_dims=True), d.to(tl.float32))
    v = r * (g - xhat * mean)
    if RESID:
        v += tl.load(resid + row * sresid + group * d + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx + row * sdx + group * d + col, v.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def rmsnorm_wgrad(part, dy, x, rstd, rows, groups, d, sdy, sx, SLICES: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                  BLOCK_COLS: tl.constexpr):
    """part[s] = sum of dy*xhat over the groups of slice s of the rows, which fold adds up. Programs: ceil(d/BLOCK_COLS), SLICES.

    Moves 2 elements for each of x. SLICES is fixed, and with it the order of the sum.
    """
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    s = tl.program_id(1)
    total = rows * groups
    size = tl.cdiv(tl.cdiv(total, SLICES), BLOCK_ROWS) * BLOCK_ROWS
    stop = tl.minimum((s + 1) * size, total)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for first in range(s * size, stop, BLOCK_ROWS):
        i = first + tl.arange(0, BLOCK_ROWS)[:, None]
        row = (i // groups).to(tl.int64)
        group = i % groups
        inside = (i < stop) & (col < d)
        g = tl.load(dy + row * sdy + group * d + col, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(x + row * sx + group * d + col, mask=inside, other=0.0).to(tl.float32)
        acc += g * (v * tl.load(rstd + i, mask=i < stop, other=0.0))
    tl.store(part + s * d + col, tl.sum(acc, 0, keep_dims=True), mask=col < d)


WIDE = dict(BLOCK_COLS=2048)
ODD = dict(BLOCK_COLS=512)  # a thread moves single elements: four at once are enough
NARROW = 256
FEW = dict(BLOCK_ROWS=4, BLOCK_GROUPS=4, BLOCK_COLS=NARROW)
GROUPS = ("ceil(rows/BLOCK_ROWS)", "ceil(groups/BLOCK_GROUPS)")
SUMS = dict(SLICES=32, BLOCK_ROWS=32, BLOCK_COLS=64)

KERNELS = []
for a, t in BF16_OR_F32:
    forward = f"y:*{t} rstd:*fp32 x:*{t} w:*{t} rows:i32 groups:i32 d:i32 sy:i32 sx:i32 eps:fp32"
    backward = (f"dx:*{t} dy:*{t} x:*{t} w:*{t} rstd:*fp32 resid:*{t} rows:i32 groups:i32 d:i32 sdx:i32 sdy:i32 sx:i32 sresid:i32")
    weights = f"part:*fp32 dy:*{t} x:*{t} rstd:*fp32 rows:i32 groups:i32 d:i32 sdy:i32 sx:i32"
    for variant, block, aligned in (("any", ODD, ""), ("a16", WIDE, "y x w d sy sx")):
        KERNELS.append(Kernel(f"rmsnorm.{a}.{variant}", rmsnorm, forward, ("rows", "groups"), block, aligned=aligned))
    KERNELS.append(Kernel(f"rmsnorm.{a}.narrow", rmsnorm_narrow, forward, GROUPS, FEW, aligned="y x w d sy sx", most={"d": NARROW}))
    for resid, word in ((False, ""), (True, ".resid")):
        aligned = "dx dy x w d sdx sdy sx" + (" resid sresid" if resid else "")
        op, resid = f"rmsnorm_grad.{a}{word}", dict(RESID=resid)
        KERNELS += [
            Kernel(f"{op}.any", rmsnorm_grad, backward, ("rows", "groups"), resid | ODD),
            Kernel(f"{op}.a16", rmsnorm_grad, backward, ("rows", "groups"), resid | WIDE, aligned=aligned),
            Kernel(f"{op}.narrow", rmsnorm_grad_narrow, backward, GROUPS, resid | FEW, aligned=aligned, most={"d": NARROW}),
        ]
    for variant, aligned in (("any", ""), ("a16", "dy x d sdy sx")):
        KERNELS.append(Kernel(f"rmsnorm_wgrad.{a}.{variant}", rmsnorm_wgrad, weights, ("ceil(d/BLOCK_COLS)", "SLICES"), SUMS,
                              aligned=aligned))
