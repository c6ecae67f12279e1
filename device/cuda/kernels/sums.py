"""Sums: of columns, for the gradients of biases and norms, and of whole vectors, for norms of gradients and losses.

All orders are fixed, by constants that do not depend on the GPU.
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def bias_grad(part, dy, rows, cols, slices, sdy, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """part[s] = sum of slice s of the rows of dy, which fold adds up. Programs: ceil(cols/BLOCK_COLS), slices. Reads dy once."""
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    s = tl.program_id(1)
    size = tl.cdiv(tl.cdiv(rows, slices), BLOCK_ROWS) * BLOCK_ROWS
    stop = tl.minimum((s + 1) * size, rows)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for first in range(s * size, stop, BLOCK_ROWS):
        row = first + tl.arange(0, BLOCK_ROWS)[:, None]
        acc += tl.load(dy + row.to(tl.int64) * sdy + col, mask=(row < stop) & (col < cols), other=0.0).to(tl.float32)
    tl.store(part + s * cols + col, tl.sum(acc, 0, keep_dims=True), mask=col < cols)


@triton.jit
def fold(dst, part, slices, cols, BLOCK_SLICES: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """dst[c] += the sum of part[s, c] over all s. Programs: ceil(cols/BLOCK_COLS). Reads part once, many slices at a time."""
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    acc = tl.zeros([BLOCK_SLICES, BLOCK_COLS], tl.float32)
    for first in range(0, slices, BLOCK_SLICES):
        s = first + tl.arange(0, BLOCK_SLICES)[:, None]
        acc += tl.load(part + s.to(tl.int64) * cols + col, mask=(s < slices) & (col < cols), other=0.0)
    total = tl.load(dst + col, mask=col < cols, other=0.0) + tl.sum(acc, 0, keep_dims=True)
    tl.store(dst + col, total, mask=col < cols)


@triton.jit
def _halved(lanes, CHUNKS: tl.constexpr, LANES: tl.constexpr):
    """Adds the second half of the lanes of each chunk to the first."""
    low, high = tl.split(tl.trans(tl.reshape(lanes, [CHUNKS, 2, LANES // 2]), 0, 2, 1))
    return low + high


@triton.jit
def chunk_sums(partials, x, n, SQUARES: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr):
    """partials[c] = sum of chunk c of x, or of its squares, in fp64 and to the bit: 16 lanes, lane j takes the elements j, j+16, ...
    of the chunk; then lanes are added 8 to 8, 4 to 4, 2 to 2, 1 to 1. Programs: ceil(n/ELEMENTS), of one warp: a thread is a lane.

    The additions of a lane wait for each other, so speed comes from many chunks at once, and from UNROLL loads under way.
    Reads x once.
    """
    chunk = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)[:, None]
    first = chunk.to(tl.int64) * CHUNK + tl.arange(0, 16)[None, :]
    lanes = tl.zeros([CHUNKS, 16], tl.float64)
    left = n - tl.program_id(0).to(tl.int64) * CHUNKS * CHUNK
    for i in range(0, tl.minimum(left, CHUNK).to(tl.int32), 16 * UNROLL):
        for j in tl.static_range(UNROLL):
            at = first + (i + j * 16)
            v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float64)
            if SQUARES:
                v = v * v
            lanes += v
    lanes = _halved(_halved(_halved(_halved(lanes, CHUNKS, 16), CHUNKS, 8), CHUNKS, 4), CHUNKS, 2)
    tl.store(partials + chunk, tl.reshape(lanes, [CHUNKS, 1]), mask=chunk.to(tl.int64) * CHUNK < n)


@triton.jit
def sum_fold(dst, partials, chunks, accumulate, UNROLL: tl.constexpr):
    """dst = partials added in order, after what dst was if accumulate is not 0. One program of one thread's work."""
    total = tl.zeros([], tl.float64)
    if accumulate != 0:
        total += tl.load(dst)
    whole = chunks // UNROLL * UNROLL
    for i in range(0, whole, UNROLL):
        for j in tl.static_range(UNROLL):
            total += tl.load(partials + i + j)
    for i in range(whole, chunks):
        total += tl.load(partials + i)
    tl.store(dst, total)


CHUNK = 65536  # as device.OptimizerOps has it

KERNELS = []
for a, t in BF16_OR_F32:
    for variant, aligned in (("any", ""), ("a16", "dy cols sdy")):
        KERNELS.append(Kernel(f"bias_grad.{a}.{variant}", bias_grad, f"part:*fp32 dy:*{t} rows:i32 cols:i32 slices:i32 sdy:i32",
                              ("ceil(cols/BLOCK_COLS)", "slices"), dict(BLOCK_ROWS=32, BLOCK_COLS=64), aligned=aligned))
KERNELS.append(Kernel("fold.f32", fold, "dst:*fp32 part:*fp32 slices:i32 cols:i32", ("ceil(cols/BLOCK_COLS)",),
                      dict(BLOCK_SLICES=64, BLOCK_COLS=32)))
for name, t, squares in (("sum.f32", "fp32", False), ("sumsq.f32", "fp32", True), ("sumsq.bf16", "bf16", True)):
    KERNELS.append(Kernel(name, chunk_sums, f"partials:*fp64 x:*{t} n:i64", ("ceil(n/ELEMENTS)",),
                          dict(SQUARES=squares, CHUNKS=2, CHUNK=CHUNK, UNROLL=16), warps=1, numbers=dict(ELEMENTS=2 * CHUNK),
                          exact=True))
KERNELS.append(Kernel("sum_fold", sum_fold, "dst:*fp64 partials:*fp64 chunks:i32 accumulate:i32", ("ONE",),
                      dict(UNROLL=32), warps=1, numbers=dict(ONE=1), exact=True))
