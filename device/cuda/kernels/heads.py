"""Heads that are put together of columns of two matrices, and taken apart."""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def move_heads(to, source, rows, heads, width, tohead, sourcehead, sto, ssource, BLOCK_HEADS: tl.constexpr,
               BLOCK_COLS: tl.constexpr):
    """Copies width columns of each head. Heads are tohead columns apart in to, and sourcehead in source: 0 where all
    share one. Without a source, to becomes zero. Programs: rows, ceil(heads/BLOCK_HEADS). Moves 2 elements for each of
    to."""
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    given = source.to(tl.int64) != 0
    for first in range(0, width, BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)[None, :]
        inside = (head < heads) & (col < width)
        x = tl.load(source + row * ssource + head * sourcehead + col, mask=inside & given, other=0.0)
        tl.store(to + row * sto + head * tohead + col, x, mask=inside)


@triton.jit
def sum_heads(to, source, rows, heads, width, sourcehead, sto, ssource, BLOCK_ROWS: tl.constexpr,
              BLOCK_COLS: tl.constexpr):
    """to[r] = the sum over heads of width columns of each, in the order of heads and in fp32. Heads are sourcehead
    columns apart. Programs: ceil(rows/BLOCK_ROWS), ceil(width/BLOCK_COLS). Reads the columns once."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < width)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for head in range(0, heads):
        acc += tl.load(source + row * ssource + head * sourcehead + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(to + row * sto + col, acc.to(to.dtype.element_ty), mask=inside)


KERNELS = [
    kernel for a, t in BF16_OR_F32 for variant in ("any", "a16") for kernel in (
        Kernel(f"move_heads.{a}.{variant}", move_heads,
               f"to:*{t} source:*{t} rows:i32 heads:i32 width:i32 tohead:i32 sourcehead:i32 sto:i32 ssource:i32",
               ("rows", "ceil(heads/BLOCK_HEADS)"), dict(BLOCK_HEADS=16, BLOCK_COLS=64),
               aligned="to source width tohead sourcehead sto ssource" if variant == "a16" else ""),
        Kernel(f"sum_heads.{a}.{variant}", sum_heads,
               f"to:*{t} source:*{t} rows:i32 heads:i32 width:i32 sourcehead:i32 sto:i32 ssource:i32",
               ("ceil(rows/BLOCK_ROWS)", "ceil(width/BLOCK_COLS)"), dict(BLOCK_ROWS=16, BLOCK_COLS=64), exact=True,
               aligned="to source width sourcehead sto ssource" if variant == "a16" else ""))
]
