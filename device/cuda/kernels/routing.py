"""How rows choose their experts: scores from a router's logits, the choices and their weights, and the choices sorted by expert.

A program has some rows with all of their experts, BLOCK_EXPERTS at most, a warp for each. Scores are in fp32. Where nothing is added to
the scores, rows choose by the logits themselves, whose order is that of exact scores.

Sources: as device.RouteSpec names them.
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def _logits(logits, rows, experts, sl, BLOCK_ROWS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr):
    """A program's rows, the experts, which of both there are, and the logits, -inf elsewhere."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    e = tl.arange(0, BLOCK_EXPERTS)[None, :]
    known = (row < rows) & (e < experts)
    x = tl.load(logits + row.to(tl.int64) * sl + e, mask=known, other=float("-inf"))
    return row, e, known, x


@triton.jit
def _scores(x, known, sigmoid):
    """The scores of experts, 0 elsewhere."""
    most = tl.max(x, 1, keep_dims=True)
    p = tl.where(known, tl.exp(x - most), 0.0)
    soft = p / tl.sum(p, 1, keep_dims=True)
    return tl.where(known, tl.where(sigmoid != 0, 1.0 / (1.0 + tl.exp(-x)), soft), 0.0)


@triton.jit
def _greatest(x, among):
    """The greatest of those x that are among."""
    return tl.max(tl.where(among, x, float("-inf")), 1, keep_dims=True)


@triton.jit
def _best(x, among, e, BLOCK_EXPERTS: tl.constexpr):
    """The number of that one, of equal ones the first. BLOCK_EXPERTS if none is among."""
    return tl.min(tl.where(among & (x == _greatest(x, among)), e, BLOCK_EXPERTS), 1, keep_dims=True)


@triton.jit
def _number(x):
    """x, where a NaN is the least number there is."""
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def route(choices, weights, logits, bias, rows, experts, topk, groups, topgroups, bybest, sl, sigmoid, renormalize,
          biased, scale, BLOCK_ROWS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr):
    """The choices of each row, ascending, and their weights. Programs: ceil(rows/BLOCK_ROWS). Reads logits once.

    The experts of a row are taken one after the other, the best one first. The place of one among the row's choices is the number of
    chosen ones before it.
    """
    row, e, known, x = _logits(logits, rows, experts, sl, BLOCK_ROWS, BLOCK_EXPERTS)
    score = _scores(x, known, sigmoid)
    by = x
    if (biased != 0) | ((groups > 1) & (bybest == 0)):
        by = score + tl.load(bias + e, mask=(e < experts) & (biased != 0), other=0.0)
    by = _number(by)
    among = known
    if groups > 1:
        size = experts // groups
        group = e // size
        sums = by  # of each expert's group
        for g in range(0, groups):
            of = known & (group == g)
            first = _best(by, of, e, BLOCK_EXPERTS)
            second = tl.where(bybest != 0, 0.0, _greatest(by, of & (e != first)))
            sums = tl.where(of, _number(_greatest(by, of) + second), sums)
        left = known
        for _ in range(0, topgroups):
            left = left & (group != _best(sums, left, e, BLOCK_EXPERTS) // size)
        among = known & (left == 0)
    left = among
    for _ in range(0, topk):
        left = left & (e != _best(by, left, e, BLOCK_EXPERTS))
    chosen = among & (left == 0)
    divisor = 1.0 + 0.0 * tl.sum(score, 1, keep_dims=True)
    if renormalize != 0:
        divisor = tl.sum(tl.where(chosen, score, 0.0), 1, keep_dims=True)
    to = row.to(tl.int64) * topk + (tl.cumsum(chosen.to(tl.int32), 1) - 1)
    tl.store(choices + to, e + row * 0, mask=chosen)
    tl.store(weights + to, score / divisor * scale, mask=chosen)


@triton.jit
def route_grad(dlogits, dweights, logits, choices, rows, experts, topk, sd, sl, sigmoid, renormalize, scale,
               BLOCK_ROWS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr):
    """dlogits, from the gradients of the weights back to the scores, and from them to the logits. Programs: ceil(rows/BLOCK_ROWS).
    Reads logits and writes dlogits once."""
    row, e, known, x = _logits(logits, rows, experts, sl, BLOCK_ROWS, BLOCK_EXPERTS)
    score = _scores(x, known, sigmoid)
    gradient = tl.zeros([BLOCK_ROWS, BLOCK_EXPERTS], tl.float32)
    chosen = e + row * 0 < 0
    for i in range(0, topk):
        at = row.to(tl.int64) * topk + i
        this = e == tl.load(choices + at, mask=row < rows, other=-1)
        gradient = tl.where(this, tl.load(dweights + at, mask=row < rows, other=0.0), gradient)
        chosen = chosen | this
    if renormalize != 0:
        divisor = tl.sum(tl.where(chosen, score, 0.0), 1, keep_dims=True)
        mean = tl.sum(score / divisor * gradient, 1, keep_dims=True)
        gradient = tl.where(chosen, (gradient - mean) / divisor, 0.0)
    gradient *= scale
    soft = score * (gradient - tl.sum(score * gradient, 1, keep_dims=True))
    out = tl.where(sigmoid != 0, gradient * score * (1.0 - score), soft)
    tl.store(dlogits + row.to(tl.int64) * sd + e, out.to(dlogits.dtype.element_ty), mask=known)


@triton.jit
def sort_choices(order, rank, starts, choices, n, experts, BLOCK: tl.constexpr):
    """A counting sort that keeps the order of the choices of an expert. Programs: experts.

    A program counts the choices of the experts before its own, and then gives those of its own their places. So each program reads all
    choices twice, from the cache: a million choices of 512 experts are 4 GB in all, which takes less than a millisecond, next to
    products that take a hundred times as long. In return there is one launch, and nothing to keep between programs.
    """
    expert = tl.program_id(0)
    before = tl.zeros([BLOCK], tl.int32)
    for first in range(0, n, BLOCK):
        c = first + tl.arange(0, BLOCK)
        before += (tl.load(choices + c, mask=c < n, other=experts) < expert).to(tl.int32)
    place = tl.sum(before, 0)
    tl.store(starts + expert, place)
    tl.store(starts + experts, n, mask=expert == experts - 1)
    for first in range(0, n, BLOCK):
        c = first + tl.arange(0, BLOCK)
        mine = tl.load(choices + c, mask=c < n, other=experts) == expert
        to = place + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(order + to, c, mask=mine)
        tl.store(rank + c, to, mask=mine)
        place += tl.sum(mine.to(tl.int32), 0)


@triton.jit
def count_choices(counts, starts, experts, scale, BLOCK: tl.constexpr):
    """How many choices are of each expert, times scale. Programs: ceil(experts/BLOCK)."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, end = tl.load(starts + e, mask=e < experts), tl.load(starts + e + 1, mask=e < experts)
    tl.store(counts + e, (end - first).to(tl.float32) * scale, mask=e < experts)


@triton.jit
def scale_choices(y, x, factors, choices, n, BLOCK: tl.constexpr):
    """The number of each choice times that of its expert. Programs: ceil(n/BLOCK). Reads x and choices and writes y
    once; y may be x, since a program reads an element before it writes it."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.load(choices + i, mask=i < n, other=0)
    factor = tl.load(factors + e, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0) * factor, mask=i < n)


@triton.jit
def scale_choices_grad(dfactors, dy, x, choices, n, experts, BLOCK: tl.constexpr):
    """The sum of dy*x over the choices of each expert, added to dfactors. Programs: experts, each of which reads all
    choices once, as those of sort_choices do twice."""
    expert = tl.program_id(0)
    sums = tl.zeros([BLOCK], tl.float32)
    for first in range(0, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        mine = tl.load(choices + i, mask=i < n, other=experts) == expert
        sums += tl.load(dy + i, mask=mine, other=0.0) * tl.load(x + i, mask=mine, other=0.0)
    tl.store(dfactors + expert, tl.load(dfactors + expert) + tl.sum(sums, 0))


# What a program takes at once: a warp has a row.
WIDTHS = {"narrow": dict(BLOCK_ROWS=4, BLOCK_EXPERTS=128), "any": dict(BLOCK_ROWS=4, BLOCK_EXPERTS=512)}
ROWS = ("ceil(rows/BLOCK_ROWS)",)

KERNELS = [
    Kernel("sort_choices", sort_choices, "order:*i32 rank:*i32 starts:*i32 choices:*i32 n:i32 experts:i32", ("experts",), dict(BLOCK=2048),
           warps=8),
    Kernel("count_choices", count_choices, "counts:*fp32 starts:*i32 experts:i32 scale:fp32", ("ceil(experts/BLOCK)",), dict(BLOCK=128)),
    Kernel("scale_choices_grad", scale_choices_grad,
           "dfactors:*fp32 dy:*fp32 x:*fp32 choices:*i32 n:i32 experts:i32", ("experts",), dict(BLOCK=1024)),
]
KERNELS += [
    Kernel(f"scale_choices.{a}", scale_choices, f"y:*fp32 x:*fp32 factors:*{t} choices:*i32 n:i32",
           ("ceil(n/BLOCK)",), dict(BLOCK=512))
    for a, t in BF16_OR_F32
]
for variant, width in WIDTHS.items():
    most = dict(experts=width["BLOCK_EXPERTS"])
    KERNELS.append(Kernel(f"route.{variant}", route,
                          "choices:*i32 weights:*fp32 logits:*fp32 bias:*fp32 rows:i32 experts:i32 topk:i32 groups:i32 "
                          "topgroups:i32 bybest:i32 sl:i32 sigmoid:i32 renormalize:i32 biased:i32 scale:fp32",
                          ROWS, width, most=most))
    KERNELS += [
        Kernel(f"route_grad.{a}.{variant}", route_grad,
               f"dlogits:*{t} dweights:*fp32 logits:*fp32 choices:*i32 rows:i32 experts:i32 topk:i32 sd:i32 sl:i32 sigmoid:i32 "
               "renormalize:i32 scale:fp32", ROWS, width, most=most) for a, t in BF16_OR_F32
    ]
