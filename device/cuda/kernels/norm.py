"""Root-mean-square norms of rows, or of the equal groups of columns that rows are cut into (one for each head, in QK-norm).

A group that fits is taken whole: of the narrow kernels several at once, for groups of at most NARROW columns. Else a program goes over
it twice; the second time it comes from the cache.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def _rstd(squares, d, eps):
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, d.to(tl.float32)) + eps))


@triton.jit
def _weight(w, col, inside, offset, weighted):
    """W of device.NormOps at some columns: w plus an offset, -0 for none, or 1 if weighted is 0."""
    return tl.load(w + col, mask=inside & (weighted != 0), other=1.0).to(tl.float32) + offset


@triton.jit
def rmsnorm(y, rstd, x, w, rows, groups, d, sy, sx, eps, offset, weighted, BLOCK_COLS: tl.constexpr):
    """y = W*x*rstd, and rstd. Moves 2 elements for each of y. Programs: rows, groups."""
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
        v = _weight(w, col, col < d, offset, weighted) * (v * r)
        tl.store(y + col, v.to(y.dtype.element_ty), mask=col < d)


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
def rmsnorm_narrow(y, rstd, x, w, rows, groups, d, sy, sx, eps, offset, weighted, BLOCK_ROWS: tl.constexpr,
                   BLOCK_GROUPS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """rmsnorm for d <= BLOCK_COLS. Programs: ceil(rows/BLOCK_ROWS), ceil(groups/BLOCK_GROUPS)."""
    row, group, col, known, inside = _several(rows, groups, d, BLOCK_ROWS, BLOCK_GROUPS, BLOCK_COLS)
    v = tl.load(x + row * sx + group * d + col, mask=inside, other=0.0).to(tl.float32)
    r = _rstd(tl.sum(v * v, 1, keep_dims=True), d, eps)
    tl.store(rstd + row * groups + group, r, mask=known)
    v = _weight(w, col, col < d, offset, weighted) * (v * r)
    tl.store(y + row * sy + group * d + col, v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _slice(part, d, rows, slices, BLOCK_ROWS: tl.constexpr):
    """A program's row of part, and the rows that it takes: whole blocks of them, the same for each program but the last ones."""
    s = tl.program_id(0)
    size = tl.cdiv(tl.cdiv(rows, slices), BLOCK_ROWS) * BLOCK_ROWS
    first = tl.minimum(s.to(tl.int64) * size, rows).to(tl.int32)
    return part + s.to(tl.int64) * d, first, tl.minimum(size, rows - first)


@triton.jit
def rmsnorm_grad(part, dx, dy, x, w, rstd, resid, rows, groups, d, slices, sdx, sdy, sx, sresid, offset, weighted,
                 RESID: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_COLS: tl.constexpr,
                 STAGES: tl.constexpr):
    """Both gradients, for d <= BLOCK_COLS: dx = rstd*(W*dy - xhat*mean(W*dy*xhat)) with xhat = x*rstd, plus resid where
    RESID; part[s] = sum of dy*xhat over slice s of the rows, which fold adds up. Programs: slices.

    Moves 3 or 4 elements for each of dx: a program holds W and its sums in registers, and meets each group once, whole,
    while the next ones are under way. dx may be dy or resid: a group is read before it is written, and those under way
    are others.
    """
    part, begin, n = _slice(part, d, rows, slices, BLOCK_ROWS)
    i = tl.arange(0, BLOCK_ROWS * BLOCK_GROUPS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    weight = _weight(w, col + i * 0, (col < d) & (i >= 0), offset, weighted)  # in the layout of the groups
    acc = tl.zeros([BLOCK_ROWS * BLOCK_GROUPS, BLOCK_COLS], tl.float32)
    across = tl.cdiv(groups, BLOCK_GROUPS)
    for t in tl.range(0, tl.cdiv(n, BLOCK_ROWS) * across, num_stages=STAGES):
        at = t // across * BLOCK_ROWS + i // BLOCK_GROUPS
        group = t % across * BLOCK_GROUPS + i % BLOCK_GROUPS
        known = (at < n) & (group < groups)
        inside = known & (col < d)
        row = (begin + at).to(tl.int64)
        r = tl.load(rstd + row * groups + group, mask=known, other=0.0)
        g = tl.load(dy + row * sdy + group * d + col, mask=inside, other=0.0).to(tl.float32)
        xhat = tl.load(x + row * sx + group * d + col, mask=inside, other=0.0).to(tl.float32) * r
        acc += g * xhat
        g *= weight
        v = r * (g - xhat * tl.div_rn(tl.sum(g * xhat, 1, keep_dims=True), d.to(tl.float32)))
        if RESID:
            v += tl.load(resid + row * sresid + group * d + col, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + row * sdx + group * d + col, v.to(dx.dtype.element_ty), mask=inside)
    tl.store(part + col, tl.sum(acc, 0, keep_dims=True), mask=col < d)


@triton.jit
def rmsnorm_grad_long(part, dx, dy, x, w, rstd, resid, rows, groups, d, slices, sdx, sdy, sx, sresid, offset, weighted,
                      RESID: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """rmsnorm_grad for any d. Its sums are in part all the time, and a group is read twice, the second time from the cache: it is what a
    program read last. dx may be dy or resid: the dot product has seen all of dy before the first store. Programs: slices.
    """
    part, begin, n = _slice(part, d, rows, slices, 1)
    for first in range(0, d, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        tl.store(part + col, tl.zeros([BLOCK_COLS], tl.float32), mask=col < d)
    for t in range(0, n * groups):
        row = (begin + t // groups).to(tl.int64)
        group = t % groups
        to = dx + row * sdx + group * d
        of = dy + row * sdy + group * d
        at = x + row * sx + group * d
        r = tl.load(rstd + row * groups + group)
        dots = tl.zeros([BLOCK_COLS], tl.float32)
        for first in range(0, d, BLOCK_COLS):
            col = first + tl.arange(0, BLOCK_COLS)
            g = _weight(w, col, col < d, offset, weighted) * tl.load(of + col, mask=col < d, other=0.0).to(tl.float32)
            dots += g * (tl.load(at + col, mask=col < d, other=0.0).to(tl.float32) * r)
        mean = tl.div_rn(tl.sum(dots), d.to(tl.float32))
        tl.debug_barrier()  # a thread may load from part what another one stored
        for first in range(0, d, BLOCK_COLS):
            col = first + tl.arange(0, BLOCK_COLS)
            g = tl.load(of + col, mask=col < d).to(tl.float32)
            xhat = tl.load(at + col, mask=col < d).to(tl.float32) * r
            tl.store(part + col, tl.load(part + col, mask=col < d) + g * xhat, mask=col < d)
            v = r * (_weight(w, col, col < d, offset, weighted) * g - xhat * mean)
            if RESID:
                v += tl.load(resid + row * sresid + group * d + col, mask=col < d).to(tl.float32)
            tl.store(to + col, v.to(dx.dtype.element_ty), mask=col < d)


WIDE = dict(BLOCK_COLS=2048)
ODD = dict(BLOCK_COLS=512)  # a thread moves single elements: four at once are enough
LONG = dict(BLOCK_COLS=4096)
NARROW = 256
FEW = dict(BLOCK_ROWS=4, BLOCK_GROUPS=4, BLOCK_COLS=NARROW)
GROUPS = ("ceil(rows/BLOCK_ROWS)", "ceil(groups/BLOCK_GROUPS)")
# What a program of rmsnorm_grad takes at once: several narrow groups, or one. A thread holds 16 elements of it, so that two programs fit
# on a multiprocessor, but of the widest one.
TILES = {
    "narrow": dict(BLOCK_ROWS=4, BLOCK_GROUPS=4, BLOCK_COLS=NARROW),
    "c2048": dict(BLOCK_ROWS=1, BLOCK_GROUPS=1, BLOCK_COLS=2048),
    "c4096": dict(BLOCK_ROWS=1, BLOCK_GROUPS=1, BLOCK_COLS=4096),
    "c8192": dict(BLOCK_ROWS=1, BLOCK_GROUPS=1, BLOCK_COLS=8192),
}

WEIGHT = "offset:fp32 weighted:i32"

KERNELS = []
for a, t in BF16_OR_F32:
    forward = f"y:*{t} rstd:*fp32 x:*{t} w:*{t} rows:i32 groups:i32 d:i32 sy:i32 sx:i32 eps:fp32 {WEIGHT}"
    backward = (f"part:*fp32 dx:*{t} dy:*{t} x:*{t} w:*{t} rstd:*fp32 resid:*{t} rows:i32 groups:i32 d:i32 slices:i32 "
                f"sdx:i32 sdy:i32 sx:i32 sresid:i32 {WEIGHT}")
    for variant, block, aligned in (("any", ODD, ""), ("a16", WIDE, "y x w d sy sx")):
        KERNELS.append(Kernel(f"rmsnorm.{a}.{variant}", rmsnorm, forward, ("rows", "groups"), block, aligned=aligned))
    KERNELS.append(Kernel(f"rmsnorm.{a}.narrow", rmsnorm_narrow, forward, GROUPS, FEW, aligned="y x w d sy sx", most={"d": NARROW}))
    stages = dict(STAGES=3 if a == "bf16" else 2)  # not all GPUs have shared memory for more of fp32
    for resid, word in ((False, ""), (True, ".resid")):
        aligned = "part dx dy x w d sdx sdy sx" + (" resid sresid" if resid else "")
        op, resid = f"rmsnorm_grad.{a}{word}", dict(RESID=resid)
        for variant, tile in TILES.items():
            elements = tile["BLOCK_ROWS"] * tile["BLOCK_GROUPS"] * tile["BLOCK_COLS"]
            KERNELS.append(Kernel(f"{op}.{variant}", rmsnorm_grad, backward, ("slices",), resid | stages | tile, aligned=aligned,
                                  most={"d": tile["BLOCK_COLS"]}, warps=elements // 512))
        KERNELS += [Kernel(f"{op}.any", rmsnorm_grad_long, backward, ("slices",), resid | ODD),
                    Kernel(f"{op}.a16", rmsnorm_grad_long, backward, ("slices",), resid | LONG, aligned=aligned,
                           warps=8, spill=8)]  # for sm_80 and its kin, ptxas stops at 80 registers
