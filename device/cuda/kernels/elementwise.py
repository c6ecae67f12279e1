"""Additions, casts, biases and factors: each element is read once and written once, so they run at the speed of memory.

A program takes a block of rows and columns. In the a16 variants rows begin at multiples of 16 elements and end there, so that a
thread moves 16 bytes at once.
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def _block(rows, cols, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """A program's rows, columns, and which of them there are."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    return row.to(tl.int64), col, (row < rows) & (col < cols)


@triton.jit
def add(y, a, b, rows, cols, sy, sa, sb, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y = a + b, summed in fp32. y may be a or b: an element is read by whom it is written by. Moves 3 elements for each of y."""
    row, col, inside = _block(rows, cols, BLOCK_ROWS, BLOCK_COLS)
    x = tl.load(a + row * sa + col, mask=inside).to(tl.float32) + tl.load(b + row * sb + col, mask=inside).to(tl.float32)
    tl.store(y + row * sy + col, x.to(y.dtype.element_ty), mask=inside)


@triton.jit
def scale(y, x, rows, cols, sy, sx, by, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y = by*x. y may be x: an element is read by whom it is written by. Moves 2 elements for each of y."""
    row, col, inside = _block(rows, cols, BLOCK_ROWS, BLOCK_COLS)
    v = by * tl.load(x + row * sx + col, mask=inside).to(tl.float32)
    tl.store(y + row * sy + col, v.to(y.dtype.element_ty), mask=inside)


@triton.jit
def cast(dst, src, rows, cols, sd, ss, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """dst = src in dst's type. Moves one element of each."""
    row, col, inside = _block(rows, cols, BLOCK_ROWS, BLOCK_COLS)
    tl.store(dst + row * sd + col, tl.load(src + row * ss + col, mask=inside).to(dst.dtype.element_ty), mask=inside)


@triton.jit
def add_bias(y, bias, rows, cols, sy, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y[r] += bias, summed in fp32. Moves 2 elements for each of y."""
    row, col, inside = _block(rows, cols, BLOCK_ROWS, BLOCK_COLS)
    at = y + row * sy + col
    x = tl.load(at, mask=inside).to(tl.float32) + tl.load(bias + col, mask=col < cols).to(tl.float32)
    tl.store(at, x.to(y.dtype.element_ty), mask=inside)


BLOCK = dict(BLOCK_ROWS=4, BLOCK_COLS=512)
GRID = ("ceil(rows/BLOCK_ROWS)", "ceil(cols/BLOCK_COLS)")

KERNELS = []
for a, t in BF16_OR_F32:
    for variant in ("any", "a16"):
        a16 = variant == "a16"
        KERNELS += [
            Kernel(f"add.{a}.{variant}", add, f"y:*{t} a:*{t} b:*{t} rows:i32 cols:i32 sy:i32 sa:i32 sb:i32", GRID, BLOCK,
                   aligned="y a b cols sy sa sb" if a16 else ""),
            Kernel(f"scale.{a}.{variant}", scale, f"y:*{t} x:*{t} rows:i32 cols:i32 sy:i32 sx:i32 by:fp32", GRID, BLOCK,
                   aligned="y x cols sy sx" if a16 else ""),
            Kernel(f"add_bias.{a}.{variant}", add_bias, f"y:*{t} bias:*{t} rows:i32 cols:i32 sy:i32", GRID, BLOCK,
                   aligned="y bias cols sy" if a16 else ""),
        ] + [
            Kernel(f"cast.{a}_{b}.{variant}", cast, f"dst:*{u} src:*{t} rows:i32 cols:i32 sd:i32 ss:i32", GRID, BLOCK,
                   aligned="dst src cols sd ss" if a16 else "") for b, u in BF16_OR_F32
        ]
