"""What generates text a few positions at a time: attention over a cache, and the recurrence of gated delta nets with
what it keeps of sequences (device.AttentionOps, ConvOps, DeltaOps), and rows that are put into a cache.

A row is the position end-1-start of the sequence start/each, whose rows in a cache begin at start and end before end.
Rows are computed one by one. Blocks of keys begin at multiples of their length from start, and the recurrence goes
row by row. So a row's bits depend on its sequence alone: not on which rows it comes with, and not on how the
sequence was cut.

Keys and values may be in blocks of rows that sequences share: row r of the sequences is then row
table[r // block]*block + r % block of the cache.

Sources are those of attention.py and of delta.py.
"""

import triton
import triton.language as tl

from attention import LOG2E, _tanh
from delta import EPSILON
from gates import _sigmoid
from recurrent import _taps
from registry import BF16_OR_F32, Kernel


@triton.jit
def _tile(base, row, col, inside, stride, cols):
    """Rows and columns of a matrix; zeros beyond cols and in rows that are not inside."""
    at = base + row.to(tl.int64)[:, None] * stride + col[None, :]
    return tl.load(at, mask=inside[:, None] & (col < cols)[None, :], other=0.0)


@triton.jit
def attend_cache(out, q, k, v, sinks, start, end, table, rows, heads, kvheads, group, headdim, window, block, so, sq,
                 sk, sv, scale, cap, GROUP: tl.constexpr, BLOCK_K: tl.constexpr, PIECE: tl.constexpr,
                 BLOCK_V: tl.constexpr):
    """Some columns of out of a row, of GROUP of the query heads that share a key head: they are the rows of a tile.
    scale > 0; cap and window may be 0, sinks null; and table null, where block is 1. Programs: rows,
    kvheads*ceil(group/GROUP), ceil(headdim/BLOCK_V).

    Scores are computed in pieces of the columns of a head, so that one kernel takes heads of any width; each block of
    columns of out computes them again. A row that sees no keys gets zeros.
    """
    row = tl.program_id(0)
    blocks = tl.cdiv(group, GROUP)
    kv = tl.program_id(1) // blocks
    member = tl.program_id(1) % blocks * GROUP + tl.arange(0, GROUP)
    head = kv * group + member
    col = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    q += row.to(tl.int64) * sq
    k += kv * headdim
    v += kv * headdim

    began = tl.load(start + row)
    ended = tl.load(end + row)
    lower = tl.where(window > 0, tl.maximum(began, ended - window), began)
    log2_scale = tl.where(cap > 0, cap, scale) * LOG2E
    to_tanh = 2 * LOG2E * scale / tl.where(cap > 0, cap, 1.0)
    # Finite, so that exp2 of a difference of two is a number.
    most = tl.full([GROUP], -3.0e38, tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, BLOCK_V], tl.float32)
    for first in range(began + (lower - began) // BLOCK_K * BLOCK_K, ended, BLOCK_K):
        key = first + tl.arange(0, BLOCK_K)
        seen = (key >= lower) & (key < ended)
        tabled = seen & (table.to(tl.int64) != 0)
        at = tl.where(tabled, tl.load(table + key // block, mask=tabled, other=0) * block + key % block, key)
        score = tl.zeros([GROUP, BLOCK_K], tl.float32)
        for piece in range(0, headdim, PIECE):
            c = piece + tl.arange(0, PIECE)
            queries = _tile(q, head, c, member < group, headdim, headdim)
            keys = _tile(k, at, c, seen, sk, headdim)
            score = tl.dot(queries, tl.trans(keys), score, input_precision="ieee")
        if cap > 0:
            score = _tanh(score * to_tanh)
        score = tl.where(seen[None, :], score * log2_scale, float("-inf"))
        new = tl.maximum(most, tl.max(score, 1))
        p = tl.exp2(score - new[:, None])
        fade = tl.exp2(most - new)
        total = total * fade + tl.sum(p, 1)
        values = _tile(v, at, col, seen, sv, headdim)
        acc = tl.dot(p.to(values.dtype), values, acc * fade[:, None], input_precision="ieee")
        most = new
    sink = tl.load(sinks + head, mask=(member < group) & (sinks.to(tl.int64) != 0), other=float("-inf"))
    total += tl.exp2(sink.to(tl.float32) * LOG2E - most)  # infinite if the sink is far above all scores: out is zero
    value = acc / tl.where(total > 0, total, 1.0)[:, None]
    to = out + row.to(tl.int64) * so + head[:, None] * headdim + col[None, :]
    tl.store(to, value.to(out.dtype.element_ty), mask=(member < group)[:, None] & (col < headdim)[None, :])


@triton.jit
def put(cache, x, at, rows, cols, cached, sc, sx, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """cache[at[r]] = x[r] where 0 <= at[r] < cached. Moves 2 elements for each of x. Programs: ceil(rows/BLOCK_ROWS),
    ceil(cols/BLOCK_COLS)."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    to = tl.load(at + row, mask=row < rows, other=-1).to(tl.int64)
    inside = (to >= 0) & (to < cached) & (col < cols)
    tl.store(cache + to * sc + col, tl.load(x + row.to(tl.int64) * sx + col, mask=inside), mask=inside)


@triton.jit
def _row_of(start, end, rows, began, ended, BLOCK: tl.constexpr):
    """The row with this start and end, or -1."""
    found = -1
    for first in range(0, rows, BLOCK):
        i = first + tl.arange(0, BLOCK)
        same = (tl.load(start + i, mask=i < rows, other=-1) == began) & (tl.load(end + i, mask=i < rows, other=-1)
                                                                         == ended)
        found = tl.maximum(found, tl.max(tl.where(same, i, -1), 0))
    return found


@triton.jit
def continue_conv(y, tail, x, w, start, end, rows, cols, taps, each, sy, st, sx, sw, BLOCK: tl.constexpr,
                  BLOCK_COLS: tl.constexpr):
    """Columns of y of a row: silu of the sum of w[j] times the position taps-1-j before it, in the order of j.
    Positions that are not among the rows are in tail, each at its number modulo taps-1. Programs: rows,
    ceil(cols/BLOCK_COLS)."""
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    began = tl.load(start + row)
    ended = tl.load(end + row)
    kept = taps - 1
    z = tl.zeros([BLOCK_COLS], tl.float32)
    for j in range(tl.maximum(taps - (ended - began), 0), taps):
        position = ended - began - taps + j
        at = _row_of(start, end, rows, began, began + position + 1, BLOCK)
        here = x + at.to(tl.int64) * sx
        there = tail + (began // each * kept + position % kept).to(tl.int64) * st
        v = tl.load(tl.where(at >= 0, here, there) + col, mask=col < cols, other=0.0)
        z += _taps(w, col, cols, taps, j, sw) * v.to(tl.float32)
    tl.store(y + row.to(tl.int64) * sy + col, (z * _sigmoid(z)).to(y.dtype.element_ty), mask=col < cols)


@triton.jit
def keep_rows(tail, x, start, end, rows, cols, kept, each, st, sx, BLOCK: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """Columns of a row in tail, if it is one of the last rows of its sequence, as many as are kept; when continue_conv
    has read tail. Programs: rows, ceil(cols/BLOCK_COLS)."""
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    began = tl.load(start + row)
    ended = tl.load(end + row)
    if _row_of(start, end, rows, began, ended + kept, BLOCK) < 0:
        to = (began // each * kept + (ended - 1 - began) % kept).to(tl.int64)
        tl.store(tail + to * st + col, tl.load(x + row.to(tl.int64) * sx + col, mask=col < cols), mask=col < cols)


@triton.jit
def continue_delta(out, states, qkv, decay, beta, start, end, rows, sequences, keyheads, heads, keydim, valuedim, each,
                   so, sqkv, KEYS: tl.constexpr, BLOCK_V: tl.constexpr):
    """Some columns of the state of a sequence and head, and of the outputs of its rows, from the first one to the last.
    Programs: sequences, heads, ceil(valuedim/BLOCK_V)."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    key = head // (heads // keyheads)
    i = tl.arange(0, KEYS)
    c = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = states + ((sequence * heads + head).to(tl.int64) * keydim + i[:, None]) * valuedim + c[None, :]
    inside = (i < keydim)[:, None] & (c < valuedim)[None, :]
    state = tl.zeros([KEYS, BLOCK_V], tl.float32)
    count = 0
    for row in range(0, rows):
        began = tl.load(start + row)
        if began // each == sequence:
            if (count == 0) & (tl.load(end + row) - began > 1):
                state = tl.load(place, mask=inside, other=0.0)
            count += 1
            of = qkv + tl.cast(row, tl.int64) * sqkv
            q = tl.load(of + key * keydim + i, mask=i < keydim, other=0.0).to(tl.float32)
            k = tl.load(of + (keyheads + key) * keydim + i, mask=i < keydim, other=0.0).to(tl.float32)
            v = tl.load(of + 2 * keyheads * keydim + head * valuedim + c, mask=c < valuedim, other=0.0).to(tl.float32)
            q *= tl.rsqrt(tl.sum(q * q, 0) + EPSILON) * tl.rsqrt(keydim.to(tl.float32))
            k *= tl.rsqrt(tl.sum(k * k, 0) + EPSILON)
            gate = tl.cast(row, tl.int64) * heads + head
            state *= tl.exp(tl.load(decay + gate))
            delta = tl.load(beta + gate) * (v - tl.sum(state * k[:, None], 0))
            state += k[:, None] * delta[None, :]
            tl.store(out + tl.cast(row, tl.int64) * so + head * valuedim + c,
                     tl.sum(state * q[:, None], 0).to(out.dtype.element_ty), mask=c < valuedim)
    tl.store(place, state, mask=inside & (count > 0))


# The variants of a kernel have one tiling, so that they compute the same bits.
TILES = {
    "f32": dict(GROUP=16, BLOCK_K=32, PIECE=32, BLOCK_V=64),
    "bf16": dict(GROUP=16, BLOCK_K=32, PIECE=64, BLOCK_V=128),
}

KERNELS = []
for a, t in BF16_OR_F32:
    for variant in ("any", "a16"):

        def kernel(op, function, arguments, grid, constants, aligned, **more):
            KERNELS.append(
                Kernel(f"{op}.{a}.{variant}", function, arguments.replace("*A", "*" + t), grid, constants,
                       aligned=aligned if variant == "a16" else "", **more))

        kernel("attend_cache", attend_cache,
               "out:*A q:*A k:*A v:*A sinks:*A start:*i32 end:*i32 table:*i32 rows:i32 heads:i32 kvheads:i32 group:i32 "
               "headdim:i32 window:i32 block:i32 so:i32 sq:i32 sk:i32 sv:i32 scale:fp32 cap:fp32",
               ("rows", "kvheads*ceil(group/GROUP)", "ceil(headdim/BLOCK_V)"),
               TILES[a], "out q k v headdim so sq sk sv", registers=144 if variant == "a16" else 255)
        kernel("put", put, "cache:*A x:*A at:*i32 rows:i32 cols:i32 cached:i32 sc:i32 sx:i32",
               ("ceil(rows/BLOCK_ROWS)", "ceil(cols/BLOCK_COLS)"), dict(BLOCK_ROWS=4, BLOCK_COLS=512),
               "cache x cols sc sx")
        kernel("continue_conv", continue_conv,
               "y:*A tail:*A x:*A w:*A start:*i32 end:*i32 rows:i32 cols:i32 taps:i32 each:i32 sy:i32 st:i32 sx:i32 "
               "sw:i32", ("rows", "ceil(cols/BLOCK_COLS)"), dict(BLOCK=512, BLOCK_COLS=1024),
               "y tail x cols sy st sx")
        kernel("keep_rows", keep_rows,
               "tail:*A x:*A start:*i32 end:*i32 rows:i32 cols:i32 kept:i32 each:i32 st:i32 sx:i32",
               ("rows", "ceil(cols/BLOCK_COLS)"), dict(BLOCK=512, BLOCK_COLS=1024), "tail x cols st sx")
    KERNELS.append(
        Kernel(f"continue_delta.{a}", continue_delta,
               f"out:*{t} states:*fp32 qkv:*{t} decay:*fp32 beta:*fp32 start:*i32 end:*i32 rows:i32 sequences:i32 "
               "keyheads:i32 heads:i32 keydim:i32 valuedim:i32 each:i32 so:i32 sqkv:i32",
               ("sequences", "heads", "ceil(valuedim/BLOCK_V)"), dict(KEYS=128, BLOCK_V=32), registers=232,
               most=dict(keydim=128)))
