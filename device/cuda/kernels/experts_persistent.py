"""expert_matmul as one program for each multiprocessor, which goes through tiles: a candidate (candidates.py).

A program that ends leaves its multiprocessor to the next one, whose first loads then take their time with nothing to compute. Here the steps of
all tiles are one loop, so the first loads of a tile are under way while the tile before it ends and is written.
"""

import triton
import triton.language as tl

from experts import _block, _place


@triton.jit
def expert_matmul_persistent(c, a, w, bias, starts, experts, rows, first, count, n, k, placed, biased, sc, sa, sw, sb,
                             TRANSPOSED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                             GROUP_M: tl.constexpr):
    """expert_matmul, in the same order of sums. Programs: as many as there are multiprocessors. A tile without rows takes its time."""
    tiles = tl.cdiv(rows, BLOCK_M)
    tiles_m = count * tiles
    tiles_n = tl.cdiv(n, BLOCK_N)
    steps = tl.cdiv(k, BLOCK_K)
    programs = tl.num_programs(0)
    mine = (tiles_m * tiles_n - tl.program_id(0) + programs - 1) // programs
    tile = tl.program_id(0) - programs
    done = k  # of the inner dimension of the tile
    l = tl.arange(0, BLOCK_K)
    i = tl.arange(0, BLOCK_M)
    j = tl.arange(0, BLOCK_N)
    begin = 0
    filled = 0
    block = 0
    expert = 0
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(0, mine * steps):
        if done >= k:
            done = 0
            tile += programs
            tile_m, tile_n = _place(tile, tiles_m, tiles_n, GROUP_M)
            block = tile_m // tiles
            expert, begin, filled = _block(starts, experts, rows, first + block)
            i = tile_m % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
            j = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
            b = tl.load(bias + expert.to(tl.int64) * sb + j, mask=(biased != 0) & (filled > 0) & (j < n), other=0.0)
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32) + b.to(tl.float32)[None, :]
        left = k - done
        if TRANSPOSED:
            # Rows beyond the last repeat it.
            at_a = a + (block.to(tl.int64) * rows + tl.minimum(i, tl.maximum(filled, 1) - 1))[:, None] * sa + done + l[None, :]
            at_w = w + (expert.to(tl.int64) * n + tl.minimum(j, n - 1))[None, :] * sw + done + l[:, None]
            some = filled > 0
            x = tl.load(at_a, mask=(l[None, :] < left) & some, other=0.0)
            y = tl.load(at_w, mask=(l[:, None] < left) & some, other=0.0)
        else:
            at_a = a + (block.to(tl.int64) * rows + i)[:, None] * sa + done + l[None, :]
            at_w = w + (expert.to(tl.int64) * k + done + l)[:, None] * sw + j[None, :]
            x = tl.load(at_a, mask=(i[:, None] < filled) & (l[None, :] < left), other=0.0)
            y = tl.load(at_w, mask=(l[:, None] < left) & (j[None, :] < n) & (filled > 0), other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
        done += BLOCK_K
        if done >= k:
            to = tl.where(placed != 0, begin, block * rows).to(tl.int64) + i
            inside = (i[:, None] < filled) & (j[None, :] < n)
            tl.store(c + to[:, None] * sc + j[None, :], acc.to(c.dtype.element_ty), mask=inside)
