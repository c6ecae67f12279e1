"""Matrix products of our own: what runs where cuBLASLt is missing.

c = op(a)·op(b), or base + op(a)·op(b) with accumulate; base may be c. Each program sums the whole inner dimension of its tile in fp32, in order, and rounds
once. bf16 goes through tensor cores; f32 uses IEEE multiply-adds, never TF32.

Programs are numbered along groups of GROUP_M rows of tiles, so that those which run at the same time share rows of a and columns
of b in the L2 cache.
"""

import triton
import triton.language as tl

from registry import Kernel


@triton.jit
def _place(program, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The tile of a program: its row and column of tiles."""
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    group = program // (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    within = program - group * GROUP_M * tiles_n
    return group * GROUP_M + within % height, within // height


@triton.jit
def along(acc, at_a, at_b, l, k, BLOCK_K: tl.constexpr):
    """acc plus the product of operands that both lie along k. at_a and at_b are at their columns l; all rows may be
    read.

    Only a last step that is no whole one has masks. With masks in each step, products took 1.1 to 1.6 times as long on
    an H100.
    """
    whole = k // BLOCK_K * BLOCK_K
    for _ in range(0, whole, BLOCK_K):
        acc = tl.dot(tl.load(at_a), tl.load(at_b), acc, input_precision="ieee")
        at_a += BLOCK_K
        at_b += BLOCK_K
    if whole < k:
        x = tl.load(at_a, mask=l[None, :] < k - whole, other=0.0)
        y = tl.load(at_b, mask=l[:, None] < k - whole, other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    return acc


@triton.jit
def _finish(c, base, acc, i, j, m, n, sc, sbase, accumulate):
    """Rounds a tile, or its sum with the base, and writes it."""
    inside = (i[:, None] < m) & (j[None, :] < n)
    if accumulate != 0:
        acc += tl.load(base + i.to(tl.int64)[:, None] * sbase + j[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(c + i.to(tl.int64)[:, None] * sc + j[None, :], acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def matmul(c, base, a, b, m, n, k, sc, sbase, sa, sb, accumulate, TRANS_A: tl.constexpr, TRANS_B: tl.constexpr,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):
    """The fast one. Programs: ceil(m/BLOCK_M)*ceil(n/BLOCK_N). Compiled for columns of a, b and c in multiples of 16."""
    tile_m, tile_n = _place(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    i = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    l = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if TRANS_B and not TRANS_A:
        # Rows beyond the last repeat it.
        at_a = a + tl.minimum(i, m - 1).to(tl.int64)[:, None] * sa + l[None, :]
        at_b = b + l[:, None] + tl.minimum(j, n - 1).to(tl.int64)[None, :] * sb
        acc = along(acc, at_a, at_b, l, k, BLOCK_K)
    else:
        # Where an operand is turned, its columns are the neighbours in memory: the compiler sees it, and has the
        # threads lie along them.
        if TRANS_A:
            at_a = a + i[:, None] + l.to(tl.int64)[None, :] * sa
            step_a = BLOCK_K * tl.cast(sa, tl.int64)
        else:
            at_a = a + i.to(tl.int64)[:, None] * sa + l[None, :]
            step_a = BLOCK_K
        if TRANS_B:
            at_b = b + l[:, None] + j.to(tl.int64)[None, :] * sb
            step_b = BLOCK_K
        else:
            at_b = b + l.to(tl.int64)[:, None] * sb + j[None, :]
            step_b = BLOCK_K * tl.cast(sb, tl.int64)
        for done in range(0, k, BLOCK_K):
            left = k - done
            x = tl.load(at_a, mask=(i[:, None] < m) & (l[None, :] < left), other=0.0)
            y = tl.load(at_b, mask=(l[:, None] < left) & (j[None, :] < n), other=0.0)
            acc = tl.dot(x, y, acc, input_precision="ieee")
            at_a += step_a
            at_b += step_b
    _finish(c, base, acc, i, j, m, n, sc, sbase, accumulate)


@triton.jit
def matmul_any(c, base, a, b, m, n, k, sc, sbase, sa, sb, transa, transb, accumulate, BLOCK_M: tl.constexpr,
               BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):
    """The one for every shape, alignment and flag. Programs: ceil(m/BLOCK_M)*ceil(n/BLOCK_N)."""
    tile_m, tile_n = _place(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    i = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    l = tl.arange(0, BLOCK_K)
    a_rows = tl.cast(tl.where(transa != 0, 1, sa), tl.int64)
    a_cols = tl.cast(tl.where(transa != 0, sa, 1), tl.int64)
    b_rows = tl.cast(tl.where(transb != 0, 1, sb), tl.int64)
    b_cols = tl.cast(tl.where(transb != 0, sb, 1), tl.int64)
    at_a = a + i[:, None] * a_rows + l[None, :] * a_cols
    at_b = b + l[:, None] * b_rows + j[None, :] * b_cols
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for done in range(0, k, BLOCK_K):
        left = k - done
        x = tl.load(at_a, mask=(i[:, None] < m) & (l[None, :] < left), other=0.0)
        y = tl.load(at_b, mask=(l[:, None] < left) & (j[None, :] < n), other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
        at_a += BLOCK_K * a_cols
        at_b += BLOCK_K * b_rows
    _finish(c, base, acc, i, j, m, n, sc, sbase, accumulate)


BLOCKS = ("ceil(m/BLOCK_M)*ceil(n/BLOCK_N)",)


def _fast(a, t, c, u, trans, constants, warps, stages, loop, **on):
    trans_a, trans_b = int(trans[0] == "t"), int(trans[1] == "t")
    # The sizes that run along memory are multiples of 16, so that loads and stores are of 16 bytes.
    aligned = f"c base a b n {'m' if trans_a else 'k'} sc sbase sa sb"
    return Kernel(f"matmul.{a}.{c}.{trans}.a16", matmul,
                  f"c:*{u} base:*{u} a:*{t} b:*{t} m:i32 n:i32 k:i32 sc:i32 sbase:i32 sa:i32 sb:i32 accumulate:i32", BLOCKS,
                  dict(TRANS_A=trans_a, TRANS_B=trans_b, GROUP_M=8, **constants), warps=warps, stages=stages, aligned=aligned,
                  registers=255, loop=(loop, 0, 0), on=on)


def _tile(m, n, k):
    return dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k)


KERNELS = [
    # What the accumulators of sm90a leave of the registers is too little to add C to them at once; it spills after the loop.
    _fast("bf16", "bf16", c, u, trans, _tile(128, 128, 64), 8, 3, loop,
          sm90a=dict(constants=_tile(128, 256, 64), stages=4, spill=300, loop=(loop90, 0, 0)))
    for c, u in (("f32", "fp32"), ("bf16", "bf16"))
    for trans, loop, loop90 in (("nn", 200, 180), ("nt", 175, 145), ("tn", 185, 180))
] + [
    _fast("f32", "fp32", "f32", "fp32", trans, _tile(64, 64, 16), 4, 3, 660) for trans in ("nn", "nt", "tn")
] + [
    Kernel(f"matmul.{a}.{c}.any", matmul_any,
           f"c:*{u} base:*{u} a:*{t} b:*{t} m:i32 n:i32 k:i32 sc:i32 sbase:i32 sa:i32 sb:i32 transa:i32 transb:i32 accumulate:i32", BLOCKS,
           dict(GROUP_M=8, **tile), registers=224)
    for a, t, tile in (("f32", "fp32", _tile(32, 32, 32)), ("bf16", "bf16", _tile(64, 64, 32)))
    for c, u in (("f32", "fp32"), ("bf16", "bf16"))
]
