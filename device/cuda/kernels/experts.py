"""The feed-forwards of a mixture of experts, on blocks of rows: device/experts.go says what these are.

A grid has programs for all blocks that a call may have. How many there are is known on the device alone: a program looks its block up,
and ends if there is no such block. starts begins with the first expert whose weights are there; all numbers of experts count from that one.

Each block is computed alike whatever other blocks a call has, and nothing is added by atomics. So bits depend neither on the calls nor on
what runs when. Matrices of blocks, and weights of several experts, may have more than 2^31 elements: offsets of rows are 64-bit.
"""

import triton
import triton.language as tl

from gates import ACTIVATIONS, GLU, gated
from matmul import along
from registry import BF16_OR_F32, Kernel

SOME = tl.constexpr(128)  # experts that are looked at together


@triton.jit
def _some(starts, first, experts, rows):
    """Experts from the first one on, which of them there are, and how many blocks each one has."""
    e = first + tl.arange(0, SOME)
    known = e < experts
    n = tl.load(starts + e + 1, mask=known, other=0) - tl.load(starts + e, mask=known, other=0)
    return e, known, (n + rows - 1) // rows


@triton.jit
def _block(starts, experts, rows, number):
    """The expert of a block, where in the order of choices the block begins, and how many rows it has; 0 if there is no such block."""
    expert = 0
    before = 0  # blocks of the experts before that one
    total = 0
    for first in range(0, experts, SOME):
        e, known, blocks = _some(starts, first, experts, rows)
        end = total + tl.cumsum(blocks, 0)
        past = known & (end <= number)
        expert += tl.sum(past.to(tl.int32), 0)
        before = tl.maximum(before, tl.max(tl.where(past, end, 0), 0))
        total += tl.sum(blocks, 0)
    begin = tl.load(starts + expert, mask=expert < experts, other=0) + (number - before) * rows
    end = tl.load(starts + expert + 1, mask=expert < experts, other=begin)
    return expert, begin, tl.minimum(end - begin, rows)


@triton.jit
def _rows(starts, experts, rows, first, BLOCK_ROWS: tl.constexpr):
    """A program's rows of matrices of blocks, their places in the order of choices, which of them there are, and their expert."""
    tiles = tl.cdiv(rows, BLOCK_ROWS)
    block = tl.program_id(0) // tiles
    expert, begin, n = _block(starts, experts, rows, first + block)
    i = (tl.program_id(0) % tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    return block.to(tl.int64) * rows + i, begin + i, i < n, expert


@triton.jit
def _stretch(starts, experts, rows, first, count, which):
    """One of the experts that have blocks in the call, by its number among these: the expert, and its blocks [lo, hi) in the call, counted
    from its first one. That block would begin at the row at; the expert's choices are the places [begin, end). lo is hi if there are
    fewer experts.
    """
    expert = 0
    before = 0
    blocks_here = 0
    seen = 0
    total = 0
    for start in range(0, experts, SOME):
        e, known, blocks = _some(starts, start, experts, rows)
        end = total + tl.cumsum(blocks, 0)
        here = (blocks > 0) & (end > first) & (end - blocks < first + count)
        this = here & (seen + tl.cumsum(here.to(tl.int32), 0) == which + 1)
        expert += tl.sum(tl.where(this, e, 0), 0)
        before += tl.sum(tl.where(this, end - blocks, 0), 0)
        blocks_here += tl.sum(tl.where(this, blocks, 0), 0)
        seen += tl.sum(here.to(tl.int32), 0)
        total += tl.sum(blocks, 0)
    lo = tl.maximum(first - before, 0)
    hi = tl.maximum(tl.minimum(blocks_here, first + count - before), lo)
    begin = tl.load(starts + expert)
    end = tl.load(starts + expert + 1)
    return expert, lo, hi, (before - first).to(tl.int64) * rows, begin, end


@triton.jit
def gather_rows(y, x, order, starts, experts, rows, first, count, topk, cols, sy, sx, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y[i] = x[row of i]. Moves 2 elements for each of y."""
    row, place, known, _ = _rows(starts, experts, rows, first, BLOCK_ROWS)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = known & (col < cols)
    of = (tl.load(order + place, mask=known, other=0) // topk).to(tl.int64)
    tl.store(y + row * sy + col, tl.load(x + of * sx + col, mask=inside), mask=inside)


@triton.jit
def expert_bias_grad(db, dy, weights, order, starts, experts, rows, first, count, stretches, cols, weighted, sdb, sdy,
                     BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """db of an expert += the sum of weight*dy over the rows of each of its blocks, one block after the other. Reads dy once.
    Programs: ceil(cols/BLOCK_COLS), stretches, as many as there may be experts with blocks in the call."""
    expert, lo, hi, at, begin, end = _stretch(starts, experts, rows, first, count, tl.program_id(1))
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    to = db + expert.to(tl.int64) * sdb + col
    if lo < hi:
        total = tl.load(to, mask=col < cols, other=0.0)
        for block in range(lo, hi):
            n = tl.minimum(end - begin - block * rows, rows)
            acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
            for done in range(0, n, BLOCK_ROWS):
                i = done + tl.arange(0, BLOCK_ROWS)[:, None]
                row = block * rows + i
                choice = tl.load(order + begin + row, mask=(i < n) & (weighted != 0), other=0)
                weight = tl.load(weights + choice, mask=(i < n) & (weighted != 0), other=1.0)
                acc += weight * tl.load(dy + (at + row) * sdy + col, mask=(i < n) & (col < cols), other=0.0).to(tl.float32)
            total += tl.sum(acc, 0, keep_dims=True)
        tl.store(to, total, mask=col < cols)


@triton.jit
def expert_bias_dot(dweights, dy, bias, order, starts, experts, rows, first, count, cols, sdy, sb, BLOCK_ROWS: tl.constexpr,
                    BLOCK_COLS: tl.constexpr):
    """dweights of each row's choice += dy[i]·the bias of its expert. Reads dy once."""
    row, place, known, expert = _rows(starts, experts, rows, first, BLOCK_ROWS)
    bias += expert.to(tl.int64) * sb
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)[None, :]
        b = tl.load(bias + col, mask=(expert < experts) & (col < cols), other=0.0).to(tl.float32)
        acc += tl.load(dy + row * sdy + col, mask=known & (col < cols), other=0.0).to(tl.float32) * b
    to = dweights + tl.load(order + place, mask=known, other=0)
    tl.store(to, tl.load(to, mask=known, other=0.0) + tl.sum(acc, 1, keep_dims=True), mask=known)


@triton.jit
def expert_glu(y, gateup, starts, experts, rows, first, count, inner, sy, sgu, alpha, limit, plus,
               ACTIVATION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y = f(g)*u of the gated unit. Moves 3 elements for each of y."""
    row, _, known, _ = _rows(starts, experts, rows, first, BLOCK_ROWS)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = known & (col < inner)
    at = gateup + row * sgu + col
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=inside, other=0.0).to(tl.float32)
    f, _, u = gated(gate, up, alpha, limit, plus, ACTIVATION)
    tl.store(y + row * sy + col, (f * u).to(y.dtype.element_ty), mask=inside)


@triton.jit
def expert_glu_grad(dgateup, act, dweights, dy, gateup, weights, order, starts, experts, rows, first, count, inner, sdgu, sact, sdy, sgu,
                    alpha, limit, plus, ACTIVATION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """Both halves of dgateup and the activation in act, times the weight, and the sum over the row of dy*activation in dweights. A program
    has whole rows. Moves 6 elements for each of dy. dgateup may be gateup and act may be dy: a program writes only what it read first.
    """
    row, place, known, _ = _rows(starts, experts, rows, first, BLOCK_ROWS)
    choice = tl.load(order + place, mask=known, other=0)
    weight = tl.load(weights + choice, mask=known, other=0.0)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for start in range(0, inner, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)[None, :]
        inside = known & (col < inner)
        at = gateup + row * sgu + col
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(at + inner, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(dy + row * sdy + col, mask=inside, other=0.0).to(tl.float32)
        f, slope, u = gated(gate, up, alpha, limit, plus, ACTIVATION)
        y = f * u
        acc += d * y
        d *= weight
        dgate = tl.where(gate > limit, 0.0, d * u * slope)
        dup = tl.where(tl.abs(up) > limit, 0.0, d * f)
        out = dgateup + row * sdgu + col
        tl.store(out, dgate.to(dgateup.dtype.element_ty), mask=inside)
        tl.store(out + inner, dup.to(dgateup.dtype.element_ty), mask=inside)
        tl.store(act + row * sact + col, (weight * y).to(act.dtype.element_ty), mask=inside)
    tl.store(dweights + choice, tl.sum(acc, 1, keep_dims=True), mask=known)


@triton.jit
def combine_rows(y, x, begin, weights, places, n, topk, cols, weighted, sy, sx, sbegin, BLOCK_COLS: tl.constexpr):
    """y[t] = begin[t] + the sum of weight*x[place] over the choices of t, one after the other. Moves topk elements of x
    for each of y. begin may be y. Programs: n, ceil(cols/BLOCK_COLS)."""
    t = tl.program_id(0).to(tl.int64)
    places += t * topk
    weights += t * topk
    col = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    acc = tl.zeros([BLOCK_COLS], tl.float32)
    for i in range(0, topk):
        row = tl.load(places + i).to(tl.int64)
        weight = tl.load(weights + i, mask=weighted != 0, other=1.0)
        acc += weight * tl.load(x + row * sx + col, mask=col < cols, other=0.0).to(tl.float32)
    acc += tl.load(begin + t * sbegin + col, mask=col < cols, other=0.0).to(tl.float32)
    tl.store(y + t * sy + col, acc.to(y.dtype.element_ty), mask=col < cols)


@triton.jit
def _place(program, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """The tile of a program, as matmul.py has it: those that run at the same time share rows and columns in the L2 cache."""
    group = program // (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    within = program - group * GROUP_M * tiles_n
    return group * GROUP_M + within % height, within // height


@triton.jit
def expert_matmul(c, a, w, bias, starts, experts, rows, first, count, n, k, placed, biased, sc, sa, sw, sb,
                  TRANSPOSED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                  GROUP_M: tl.constexpr):
    """c = a·w_e or a·w_e^T, plus bias_e, for the rows of a block. A program has a tile of c; no tile has rows of two
    blocks. Each sums the whole inner dimension in fp32 onto the bias, in order, and rounds once. Rows of c are at their
    places in the order of choices, or as those of a are. Programs: count*ceil(rows/BLOCK_M)*ceil(n/BLOCK_N)."""
    tiles = tl.cdiv(rows, BLOCK_M)
    tile_m, tile_n = _place(tl.program_id(0), count * tiles, tl.cdiv(n, BLOCK_N), GROUP_M)
    block = tile_m // tiles
    top = tile_m % tiles * BLOCK_M
    expert, begin, filled = _block(starts, experts, rows, first + block)
    if top < filled:
        i = top + tl.arange(0, BLOCK_M)
        j = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        l = tl.arange(0, BLOCK_K)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        b = tl.load(bias + expert.to(tl.int64) * sb + j, mask=(biased != 0) & (j < n), other=0.0)
        acc += b.to(tl.float32)[None, :]
        if TRANSPOSED:
            # Rows beyond the last repeat it.
            at_a = a + (block.to(tl.int64) * rows + tl.minimum(i, filled - 1))[:, None] * sa + l[None, :]
            at_w = w + (expert.to(tl.int64) * n + tl.minimum(j, n - 1))[None, :] * sw + l[:, None]
            acc = along(acc, at_a, at_w, l, k, BLOCK_K)
        else:
            at_a = a + (block.to(tl.int64) * rows + i)[:, None] * sa + l[None, :]
            at_w = w + (expert.to(tl.int64) * k + l)[:, None] * sw + j[None, :]
            for done in range(0, k, BLOCK_K):
                left = k - done
                x = tl.load(at_a, mask=(i[:, None] < filled) & (l[None, :] < left), other=0.0)
                y = tl.load(at_w, mask=(l[:, None] < left) & (j[None, :] < n), other=0.0)
                acc = tl.dot(x, y, acc, input_precision="ieee")
                at_a += BLOCK_K
                at_w += BLOCK_K * tl.cast(sw, tl.int64)
        to = tl.where(placed != 0, begin, block * rows).to(tl.int64) + i
        inside = (i[:, None] < filled) & (j[None, :] < n)
        tl.store(c + to[:, None] * sc + j[None, :], acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def expert_weight_grad(dw, dy, x, starts, experts, rows, first, count, stretches, m, n, sdw, sdy, sx, BLOCK_M: tl.constexpr,
                       BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, ONE_LOOP: tl.constexpr):
    """dw_e += dy^T·x of each block of an expert. A program has a tile of one expert's dw, which it reads and writes once, and goes through
    the expert's blocks: the product of a block is summed in fp32, in order, and then added. ONE_LOOP goes through the
    steps of all blocks, so that a block's first loads are under way while the block before it ends; else there is a
    loop over steps in one over blocks.
    Programs: stretches*ceil(m/BLOCK_M)*ceil(n/BLOCK_N), where stretches are as many as there may be experts with blocks in the call."""
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    tile_m, tile_n = _place(tl.program_id(0) % tiles, tiles_m, tiles_n, GROUP_M)
    expert, lo, hi, at, begin, end = _stretch(starts, experts, rows, first, count, tl.program_id(0) // tiles)
    if lo < hi:
        i = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        j = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        l = tl.arange(0, BLOCK_K)
        to = dw + (expert.to(tl.int64) * m + i)[:, None] * sdw + j[None, :]
        inside = (i[:, None] < m) & (j[None, :] < n)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32) + tl.load(to, mask=inside, other=0.0)
        places = end - begin
        if ONE_LOOP:
            row = at + lo * rows + l
            at_dy = dy + i[:, None] + row[None, :] * sdy
            at_x = x + row[:, None] * sx + j[None, :]
            before = lo * rows  # places before the block that a step is in
            left = tl.minimum(places - before, rows)  # rows of that block
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            last_block = tl.minimum(places - (hi - 1) * rows, rows)
            for _ in range(0, (hi - lo - 1) * tl.cdiv(rows, BLOCK_K) + tl.cdiv(last_block, BLOCK_K)):
                u = tl.load(at_dy, mask=(i[:, None] < m) & (l[None, :] < left), other=0.0)
                v = tl.load(at_x, mask=(l[:, None] < left) & (j[None, :] < n), other=0.0)
                taken = tl.minimum(left, BLOCK_K)
                at_dy += taken * tl.cast(sdy, tl.int64)
                at_x += taken * tl.cast(sx, tl.int64)
                last = left <= BLOCK_K
                before += tl.where(last, rows, 0)
                left = tl.where(last, tl.minimum(places - before, rows), left - BLOCK_K)
                acc = tl.dot(u, v, acc, input_precision="ieee")
                if last:
                    total += acc
                    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        else:
            for block in range(lo, hi):
                filled = tl.minimum(places - block * rows, rows)
                row = at + block * rows + l
                at_dy = dy + i[:, None] + row[None, :] * sdy
                at_x = x + row[:, None] * sx + j[None, :]
                acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
                for done in range(0, filled, BLOCK_K):
                    left = filled - done
                    u = tl.load(at_dy, mask=(i[:, None] < m) & (l[None, :] < left), other=0.0)
                    v = tl.load(at_x, mask=(l[:, None] < left) & (j[None, :] < n), other=0.0)
                    acc = tl.dot(u, v, acc, input_precision="ieee")
                    at_dy += BLOCK_K * tl.cast(sdy, tl.int64)
                    at_x += BLOCK_K * tl.cast(sx, tl.int64)
                total += acc
        tl.store(to, total, mask=inside)


BLOCKS = "starts:*i32 experts:i32 rows:i32 first:i32 count:i32"
TILE = dict(BLOCK_ROWS=8, BLOCK_COLS=512)
HALF = dict(BLOCK_ROWS=4, BLOCK_COLS=512)
QUARTER = dict(BLOCK_ROWS=2, BLOCK_COLS=512)


def _grid(cols):
    return "count*ceil(rows/BLOCK_ROWS)", f"ceil({cols}/BLOCK_COLS)"


def _tile(m, n, k):
    return dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8)


KERNELS = []
for a, t in BF16_OR_F32:
    for variant in ("any", "a16"):
        def stream(op, function, arguments, grid, constants, aligned, spill=0):
            KERNELS.append(Kernel(f"{op}.{a}.{variant}", function, arguments, grid, constants, aligned=aligned if variant == "a16" else "",
                                  spill=spill))

        stream("gather_rows", gather_rows, f"y:*{t} x:*{t} order:*i32 {BLOCKS} topk:i32 cols:i32 sy:i32 sx:i32", _grid("cols"), TILE,
               "y x cols sy sx")
        stream("expert_bias_grad", expert_bias_grad,
               f"db:*fp32 dy:*{t} weights:*fp32 order:*i32 {BLOCKS} stretches:i32 cols:i32 weighted:i32 sdb:i32 sdy:i32",
               ("ceil(cols/BLOCK_COLS)", "stretches"), dict(BLOCK_ROWS=16, BLOCK_COLS=64), "db dy cols sdb sdy",
               spill=16)  # outside of its loop over rows
        stream("expert_bias_dot", expert_bias_dot, f"dweights:*fp32 dy:*{t} bias:*{t} order:*i32 {BLOCKS} cols:i32 sdy:i32 sb:i32",
               _grid("cols")[:1], HALF, "dy bias cols sdy sb")
        for activation in ACTIVATIONS:
            word = dict(ACTIVATION=ACTIVATIONS[activation])
            spill = 0 if activation == "silu" else 8
            stream(f"expert_glu.{activation}", expert_glu,
                   f"y:*{t} gateup:*{t} {BLOCKS} inner:i32 sy:i32 sgu:i32 {GLU}", _grid("inner"), word | HALF,
                   "y gateup inner sy sgu", spill)
            stream(f"expert_glu_grad.{activation}", expert_glu_grad,
                   f"dgateup:*{t} act:*{t} dweights:*fp32 dy:*{t} gateup:*{t} weights:*fp32 order:*i32 {BLOCKS} "
                   f"inner:i32 sdgu:i32 sact:i32 sdy:i32 sgu:i32 {GLU}", _grid("inner")[:1], word | QUARTER,
                   "dgateup act dy gateup inner sdgu sact sdy sgu", spill)
        for begin, of in {"f32": "fp32", "own": t}.items():
            if begin == "own" and a == "f32":
                continue
            stream(f"combine_rows.{begin}", combine_rows,
                   f"y:*{t} x:*{t} begin:*{of} weights:*fp32 places:*i32 n:i32 topk:i32 cols:i32 weighted:i32 "
                   "sy:i32 sx:i32 sbegin:i32", ("n", "ceil(cols/BLOCK_COLS)"), dict(BLOCK_COLS=1024),
                   "y x begin cols sy sx sbegin")

# The tiles of products: those of matmul.py, but that a gradient of weights holds two of them. With them go warps, stages and registers.
PRODUCTS = {
    ("bf16", "a16"): (_tile(128, 128, 64), 8, 3, 255), ("f32", "a16"): (_tile(64, 64, 16), 4, 3, 255),
    ("bf16", "any"): (_tile(64, 32, 32), 4, 2, 224), ("f32", "any"): (_tile(32, 32, 32), 4, 2, 224),
}
# The most instructions of the hot loops, for sm80 and for sm90a.
LOOPS = {("bf16", "nn"): (200, 185), ("bf16", "nt"): (175, 160), ("bf16", "tn"): (205, 450),
         ("f32", "nn"): (660, 660), ("f32", "nt"): (660, 660), ("f32", "tn"): (660, 660)}
# A gradient of weights spills some of its two tiles outside of the hot loop.
SPILL = 64
# On sm90a in bf16, three of its programs share a multiprocessor.
THREE = dict(constants=dict(BLOCK_M=64, ONE_LOOP=1), warps=4, registers=168, held=True, spill=112)


def _product(op, function, a, variant, form, arguments, grid, aligned, fixed, spill=0, on90={}):
    tile, warps, stages, registers = PRODUCTS[a, variant]
    more = {}
    if variant == "a16":
        loop, loop90 = LOOPS[a, form]
        more = dict(aligned=aligned, loop=(loop, 0, 0), on=dict(sm90a={"loop": (loop90, 0, 0), **on90}))
    return Kernel(f"{op}.{variant}", function, arguments, grid, {**tile, **fixed}, warps=warps, stages=stages, registers=registers,
                  spill=spill, **more)


for a, variant in PRODUCTS:
    t = dict(BF16_OR_F32)[a]
    large, three = (dict(constants=dict(BLOCK_N=256), stages=4), THREE) if a == "bf16" else ({}, {})
    KERNELS += [
        _product(f"expert_matmul.{a}.{form}", expert_matmul, a, variant, form,
                 f"c:*{t} a:*{t} w:*{t} bias:*{t} {BLOCKS} n:i32 k:i32 placed:i32 biased:i32 sc:i32 sa:i32 "
                 "sw:i32 sb:i32",
                 ("count*ceil(rows/BLOCK_M)*ceil(n/BLOCK_N)",), "c a w n k sc sa sw",
                 dict(TRANSPOSED=int(form == "nt")), on90=large)
        for form in ("nn", "nt")
    ] + [
        _product(f"expert_weight_grad.{a}", expert_weight_grad, a, variant, "tn",
                 f"dw:*fp32 dy:*{t} x:*{t} {BLOCKS} stretches:i32 m:i32 n:i32 sdw:i32 sdy:i32 sx:i32",
                 ("stretches*ceil(m/BLOCK_M)*ceil(n/BLOCK_N)",), "dw dy x m n sdw sdy sx",
                 dict(ONE_LOOP=0), SPILL, three)
    ]
