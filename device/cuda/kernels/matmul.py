"""Matrix products of our own: what runs where cuBLASLt is missing.

c = op(a)·op(b), or c += with accumulate. Each program sums the whole inner dimension of its tile in fp32, in order, and rounds
once. bf16 goes through tensor cores; f32 uses IEEE multiply-adds, never TF32.

Programs are numbered along groups of GROUP_M rows of tiles, so that those which run at the same time share rows of a and columns
of b in the L2 cache.
"""

import triton
import triton.language as tl


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
def _finish(c, acc, i, j, m, n, sc, accumulate):
    """Rounds a tile and writes it, or adds it to what is there."""
    at = c + i.to(tl.int64)[:, None] * sc + j[None, :]
    inside = (i[:, None] < m) & (j[None, :] < n)
    if accumulate != 0:
        acc += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def matmul(c, a, b, m, n, k, sc, sa, sb, accumulate, TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, BLOCK_M: tl.constexpr,
           BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):
    """The fast one. Programs: ceil(m/BLOCK_M)*ceil(n/BLOCK_N). Compiled for columns of a, b and c in multiples of 16."""
    tile_m, tile_n = _place(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    i = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    l = tl.arange(0, BLOCK_K)
    # Tiles are loaded as they lie in memory, so that a thread's columns are neighbours, and turned for the product.
    if TRANS_A:
        at_a = a + l.to(tl.int64)[:, None] * sa + i[None, :]
        step_a = BLOCK_K * tl.cast(sa, tl.int64)
    else:
        at_a = a + i.to(tl.int64)[:, None] * sa + l[None, :]
        step_a = BLOCK_K
    if TRANS_B:
        at_b = b + j.to(tl.int64)[:, None] * sb + l[None, :]
        step_b = BLOCK_K
    else:
        at_b = b + l.to(tl.int64)[:, None] * sb + j[None, :]
        step_b = BLOCK_K * tl.cast(sb, tl.int64)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for done in range(0, k, BLOCK_K):
        left = k - done
        if TRANS_A:
            x = tl.trans(tl.load(at_a, mask=(l[:, None] < left) & (i[None, :] < m), other=0.0))
        else:
            x = tl.load(at_a, mask=(i[:, None] < m) & (l[None, :] < left), other=0.0)
        if TRANS_B:
            y = tl.trans(tl.load(at_b, mask=(j[:, None] < n) & (l[None, :] < left), other=0.0))
        else:
            y = tl.load(at_b, mask=(l[:, None] < left) & (j[None, :] < n), other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
        at_a += step_a
        at_b += step_b
    _finish(c, acc, i, j, m, n, sc, accumulate)


@triton.jit
def matmul_any(c, a, b, m, n, k, sc, sa, sb, transa, transb, accumulate, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
               BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):
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
    _finish(c, acc, i, j, m, n, sc, accumulate)
