"""Additions, casts and biases: each element is read once and written once, so they run at the speed of memory.

A program takes a block of rows and columns. In the a16 variants rows begin at multiples of 16 elements, so that a thread
moves 16 bytes at once.
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def add(y, a, b, rows, cols, sy, sa, sb, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y = a + b in fp32, rounded once. Moves 3 elements for each of y. y may be a or b: a program reads what it writes, first."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (col < cols)
    row = row.to(tl.int64)
    x = tl.load(a + row * sa + col, mask=inside).to(tl.float32) + tl.load(b + row * sb + col, mask=inside).to(tl.float32)
    tl.store(y + row * sy + col, x.to(y.dtype.element_ty), mask=inside)


BLOCK = dict(BLOCK_ROWS=4, BLOCK_COLS=512)
GRID = ("ceil(rows/BLOCK_ROWS)", "ceil(cols/BLOCK_COLS)")

KERNELS = [
    Kernel(f"add.{a}.{variant}", add, f"y:*{t} a:*{t} b:*{t} rows:i32 cols:i32 sy:i32 sa:i32 sb:i32", GRID, BLOCK, aligned=aligned)
    for a, t in BF16_OR_F32 for variant, aligned in (("any", ""), ("a16", "y a b cols sy sa sb"))
]
