"""Rows of a table that holds the rows [first, first+tablerows) of a vocabulary, by the ids of positions."""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel


@triton.jit
def gather(y, table, ids, rows, cols, first, tablerows, sy, st, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y[t] = table[ids[t]-first] for the ids in range; other rows of y stay. Moves 2 elements for each of y."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    at = tl.load(ids + row, mask=row < rows, other=-1).to(tl.int64) - first
    inside = (row < rows) & (at >= 0) & (at < tablerows) & (col < cols)
    tl.store(y + row.to(tl.int64) * sy + col, tl.load(table + at * st + col, mask=inside), mask=inside)


@triton.jit
def scatter_add(dtable, dy, ids, rows, cols, first, tablerows, sdt, sdy, by, BLOCK_IDS: tl.constexpr,
                BLOCK_COLS: tl.constexpr):
    """dtable[ids[t]-first] += by*dy[t] for the ids in range, in the order of t. Programs: rows, ceil(cols/BLOCK_COLS).

    The program of the first position with an id adds all positions with it; those of the others look back, find that one, and end.
    Reads dy once, and reads and writes once the rows of dtable that there are ids for; and all ids for each program, from the
    cache.
    """
    t = tl.program_id(0)
    id = tl.load(ids + t)
    at = id.to(tl.int64) - first
    if (at >= 0) & (at < tablerows):
        earlier = 0
        start = 0
        while (start < t) & (earlier == 0):
            i = start + tl.arange(0, BLOCK_IDS)
            same = (tl.load(ids + i, mask=i < t, other=0) == id) & (i < t)
            earlier = tl.max(same.to(tl.int32), 0)
            start += BLOCK_IDS
        if earlier == 0:
            col = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
            into = dtable + at * sdt + col
            acc = tl.load(into, mask=col < cols, other=0.0)
            for start in range(t // BLOCK_IDS * BLOCK_IDS, rows, BLOCK_IDS):
                i = start + tl.arange(0, BLOCK_IDS)
                same = (tl.load(ids + i, mask=i < rows, other=0) == id) & (i < rows)
                # One row after the other: the first one that is not yet added.
                next = tl.min(tl.where(same, i, rows), 0)
                while next < rows:
                    acc += by * tl.load(dy + next.to(tl.int64) * sdy + col, mask=col < cols, other=0.0).to(tl.float32)
                    next = tl.min(tl.where(same & (i > next), i, rows), 0)
            tl.store(into, acc, mask=col < cols)


# One program looks for its row's id once, and adds all of its columns.
WHOLE_ROWS = dict(sm90a=dict(constants=dict(BLOCK_IDS=2048, BLOCK_COLS=4096), warps=8))

KERNELS = []
for a, t in BF16_OR_F32:
    for variant in ("any", "a16"):
        a16 = variant == "a16"
        KERNELS += [
            Kernel(f"gather.{a}.{variant}", gather,
                   f"y:*{t} table:*{t} ids:*i32 rows:i32 cols:i32 first:i32 tablerows:i32 sy:i32 st:i32",
                   ("ceil(rows/BLOCK_ROWS)", "ceil(cols/BLOCK_COLS)"), dict(BLOCK_ROWS=4, BLOCK_COLS=512),
                   aligned="y table cols sy st" if a16 else ""),
            Kernel(f"scatter_add.{a}.{variant}", scatter_add,
                   f"dtable:*fp32 dy:*{t} ids:*i32 rows:i32 cols:i32 first:i32 tablerows:i32 sdt:i32 sdy:i32 "
                   "by:fp32", ("rows", "ceil(cols/BLOCK_COLS)"), dict(BLOCK_IDS=1024, BLOCK_COLS=1024), exact=True,
                   aligned="dtable dy cols sdt sdy" if a16 else "", on=WHOLE_ROWS if a16 else {}),
        ]
