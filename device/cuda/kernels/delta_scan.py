"""The forward scan of gated delta nets for aligned heads in bf16: what delta.py's kernels compute, for the tensor cores of
one warp group, with the state in registers.

Where delta_scan's chunk took 7.8 us on an H100, neither products nor memory did: a chunk was a chain of a load of the
state, a product, a load of T, a product, a product and a store, with decays and norms between them and barriers around.
Here a chain has three products and nothing else:

	read^T = S^T K^T             S^T is an operand from registers, K comes straight from memory
	D^T = (V^T b - read^T p) T^T    T comes from memory in the three terms in which products take it
	S'^T = left S^T + (D^T q) K

so all that does not need the state is computed before, by delta_solve: T in terms, and the vectors p = c*sk*b,
q = m*sk and b, where sk normalizes keys. Loads of the next chunk are under way while this one is computed, for which the
loop must know where it ends: at the chunk in which the document of the first chunk's last row ends (Docs.End).

Backward is the adjoint in the same form. P^T dO, which needs no state either, is in Y's place before Y is:

	z^T = q written^T + (P^T dO)^T      written^T = dS'^T K^T
	Y^T = z^T T
	dS^T = left dS'^T + (dO^T r) Q - (Y^T p) K      r = c*sq normalizes queries

A chunk and head has in the workspace: T's first two terms, 64 x 64 of bf16 each; P, 64 x 64 of fp32; T's last term; the
vectors p, q, b and r, and left, of fp32; for gradients Y and D. So what delta.py's kernels leave for each other, dG and
dA, is where they look for it. The letters are those of delta.py.
"""

import triton
import triton.language as tl

from delta import (KEYS, OF_VECTORS, ROWS, VALUES_ARGUMENTS, _begins, _by_terms, _dot, _of_terms, _product, _split, _terms, delta_grad_values,
                   delta_solve)
from registry import Kernel

EACH = 2 * 64 * 64 + 64 * 32 + 4 * 64 + 16  # all of them, a multiple of 16


@triton.jit
def delta_scan_terms(states, solved, qkv, start, end, rows, chunks, keyheads, heads, valuedim, first, count, each, sqkv,
                     KEYS: tl.constexpr, VALUES: tl.constexpr, STAGES: tl.constexpr):
    """delta_scan from what delta_solve left. Programs: heads, ceil(valuedim/VALUES), count."""
    head, column = tl.program_id(0), tl.program_id(1) * VALUES
    begin = first + tl.program_id(2)
    begins = _begins(start, begin, rows)
    after = tl.minimum((begin + 1) * ROWS, rows)  # the first chunk's last row, plus one
    ends = tl.load(end + after - 1)
    stop = tl.where(ends < rows, tl.minimum(ends // ROWS, first + count), first + count)
    stop = tl.where(begins | (begin == first), stop, begin)  # else another program has this chunk

    r, kk, vv = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, VALUES)
    k = qkv + (keyheads + head // (heads // keyheads)) * KEYS
    v = qkv + 2 * keyheads * KEYS + head * valuedim + column
    step = tl.cast(heads, tl.int64) * KEYS * valuedim
    states += begin * step + head * KEYS * valuedim + column
    at = kk[None, :] * valuedim + vv[:, None]
    known = (begins == 0) & (begin < stop)
    s = tl.load(states + at, mask=known, other=0.0)
    tl.store(states + at, s, mask=begin == 0)
    for chunk in tl.range(begin, stop, num_stages=STAGES):
        top = chunk * ROWS
        here = top + ROWS
        row = top.to(tl.int64) + r
        is_row = row < rows
        keys = tl.load(k + row[:, None] * sqkv + kk[None, :], mask=is_row[:, None], other=0.0)
        x = tl.load(v + row[:, None] * sqkv + vv[None, :], mask=is_row[:, None], other=0.0)
        mine = solved + ((chunk - first).to(tl.int64) * heads + head) * each
        t0, t1, t2 = _terms(mine)
        vectors = mine + OF_VECTORS + r
        p, q, b = tl.load(vectors), tl.load(vectors + ROWS), tl.load(vectors + 2 * ROWS)
        left = tl.load(mine + OF_VECTORS + 4 * ROWS)
        read = _product(s, tl.trans(keys), VALUES, ROWS)
        x = tl.trans(x).to(tl.float32) * b[None, :] - read * p[None, :]
        d = _by_terms(x, tl.trans(t0), tl.trans(t1), tl.trans(t2))
        s = _dot(d * q[None, :], keys, s * left)
        states += step
        ended = tl.load(start + tl.minimum(here, rows - 1)) == here  # rows beyond the last have a start that is less
        if chunk + 1 < chunks:
            tl.store(states + at, tl.where(ended, 0.0, s))


@triton.jit
def delta_out_terms(out, states, solved, qkv, rows, keyheads, heads, valuedim, first, count, each, so, sqkv, KEYS: tl.constexpr,
                    PART: tl.constexpr, VALUES: tl.constexpr):
    """out of a chunk and some columns of a head, from what delta_solve left. Programs: count*heads, ceil(valuedim/VALUES)."""
    chunk, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    column = tl.program_id(1) * VALUES
    top = (first + chunk) * ROWS
    q = qkv + head // (heads // keyheads) * KEYS
    k = q + keyheads * KEYS
    v = qkv + 2 * keyheads * KEYS + head * valuedim + column
    r, kk, vv = tl.arange(0, ROWS), tl.arange(0, PART), tl.arange(0, VALUES)
    row = top.to(tl.int64) + r
    is_row = (row < rows)[:, None]
    states += ((first + chunk).to(tl.int64) * heads + head) * KEYS * valuedim + column
    solved += tl.program_id(0).to(tl.int64) * each
    read, o = tl.zeros([ROWS, VALUES], tl.float32), tl.zeros([ROWS, VALUES], tl.float32)
    for part in range(0, KEYS, PART):
        s0, s1, s2 = _split(tl.load(states + (part + kk)[:, None] * valuedim + vv[None, :]))
        at = row[:, None] * sqkv + part + kk[None, :]
        keys, queries = tl.load(k + at, mask=is_row, other=0.0), tl.load(q + at, mask=is_row, other=0.0)
        read = tl.dot(keys, s0, tl.dot(keys, s1, tl.dot(keys, s2, read)))
        o = tl.dot(queries, s0, tl.dot(queries, s1, tl.dot(queries, s2, o)))
    vectors = solved + OF_VECTORS + r
    x = tl.load(v + row[:, None] * sqkv + vv[None, :], mask=is_row, other=0.0)
    x = x.to(tl.float32) * tl.load(vectors + 2 * ROWS)[:, None] - tl.load(vectors)[:, None] * read
    t0, t1, t2 = _terms(solved)
    d = _of_terms(t0, t1, t2, x)
    o = _dot(tl.load(solved + ROWS * ROWS + r[:, None] * ROWS + r[None, :]), d, o * tl.load(vectors + 3 * ROWS)[:, None])
    tl.store(out + row[:, None] * so + head * valuedim + column + vv[None, :], o.to(out.dtype.element_ty), mask=is_row)


@triton.jit
def delta_before(solved, dout, rows, heads, valuedim, first, count, each, past, sdo, VALUES: tl.constexpr):
    """P^T dO of a chunk and some columns of a head, where Y goes. Programs: count*heads, ceil(valuedim/VALUES)."""
    chunk, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    column = tl.program_id(1) * VALUES
    r, vv = tl.arange(0, ROWS), tl.arange(0, VALUES)
    row = ((first + chunk) * ROWS).to(tl.int64) + r
    solved += tl.program_id(0).to(tl.int64) * each
    douts = tl.load(dout + row[:, None] * sdo + head * valuedim + column + vv[None, :], mask=(row < rows)[:, None], other=0.0)
    p = tl.load(solved + ROWS * ROWS + r[:, None] * ROWS + r[None, :])
    tl.store(solved + past + r[:, None] * valuedim + column + vv[None, :], _product(tl.trans(p), douts, ROWS, VALUES))


@triton.jit
def delta_scan_grad_terms(dstates, solved, dout, qkv, start, rows, chunks, keyheads, heads, valuedim, first, count, each, past, sdo, sqkv,
                          KEYS: tl.constexpr, VALUES: tl.constexpr, STAGES: tl.constexpr):
    """delta_scan_grad from what delta_solve and delta_before left. Programs: heads, ceil(valuedim/VALUES), count."""
    head, column = tl.program_id(0), tl.program_id(1) * VALUES
    mine = first + tl.program_id(2)
    ends = mine + 1 == first + count
    apart = (ends == 0) & _begins(start, tl.minimum(mine + 1, chunks - 1), rows)
    last = mine + apart.to(tl.int32)
    began = tl.load(start + tl.minimum((mine + 1) * ROWS, rows) - 1)
    number = tl.where(ends | apart, last + 1 - tl.maximum(began // ROWS, first), 0)  # of chunks; 0: another program has them

    r, kk, vv = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, VALUES)
    q = qkv + head // (heads // keyheads) * KEYS
    k = q + keyheads * KEYS
    dout += head * valuedim + column
    step = tl.cast(heads, tl.int64) * KEYS * valuedim
    dstates += (last + 1) * step + head * KEYS * valuedim + column
    at = kk[None, :] * valuedim + vv[:, None]
    s = tl.load(dstates + at, mask=(apart == 0) & (number > 0) & (last + 1 < chunks), other=0.0)  # transposed: [VALUES, KEYS]
    for i in tl.range(0, number, num_stages=STAGES):
        chunk = last - i
        row = (chunk * ROWS).to(tl.int64) + r
        is_row = (row < rows)[:, None]
        keys = tl.load(k + row[:, None] * sqkv + kk[None, :], mask=is_row, other=0.0)
        queries = tl.load(q + row[:, None] * sqkv + kk[None, :], mask=is_row, other=0.0)
        douts = tl.load(dout + row[:, None] * sdo + vv[None, :], mask=is_row, other=0.0)
        here = solved + ((chunk - first).to(tl.int64) * heads + head) * each
        of_y = here + past + column + r[None, :] * valuedim + vv[:, None]
        t0, t1, t2 = _terms(here)
        vectors = here + OF_VECTORS + r
        p, by_m, by_c = tl.load(vectors), tl.load(vectors + ROWS), tl.load(vectors + 3 * ROWS)
        left = tl.load(here + OF_VECTORS + 4 * ROWS)
        written = _product(s, tl.trans(keys), VALUES, ROWS)
        y = _by_terms(written * by_m[None, :] + tl.load(of_y), t0, t1, t2)
        if chunk <= mine:
            tl.store(of_y, y)
        s = _dot(tl.trans(douts).to(tl.float32) * by_c[None, :], queries, s * left)
        s = _dot(y * -p[None, :], keys, s)
        dstates -= step
        if (chunk * ROWS > began) | (chunk > mine) | (chunk == first):
            tl.store(dstates + at, s)


SOME = "first:i32 count:i32 each:i32"

# A head has KEYS columns of keys and of values a multiple of 64: other heads take the kernels of delta.py. tl.dot becomes
# wgmma on sm90a, whose tiles have 64 rows, here columns of values; two programs share a multiprocessor.
KERNELS = [
    Kernel("delta_solve_terms.bf16", delta_solve,
           "solved:*fp32 qkv:*bf16 decay:*fp32 beta:*fp32 start:*i32 rows:i32 keyheads:i32 heads:i32 keydim:i32 " + SOME + " sqkv:i32",
           ("count*heads", ), dict(PART=32, TERMS=1), stages=1, numbers=dict(EACH=EACH),
           aligned="solved qkv sqkv each keydim", most=dict(keydim=KEYS), registers=255),
    Kernel("delta_scan_terms.bf16", delta_scan_terms,
           f"states:*fp32 solved:*fp32 qkv:*bf16 start:*i32 end:*i32 rows:i32 chunks:i32 keyheads:i32 heads:i32 valuedim:i32 {SOME} sqkv:i32",
           ("heads", "ceil(valuedim/VALUES)", "count"), dict(KEYS=KEYS, VALUES=32, STAGES=1), stages=1,
           aligned="states solved qkv sqkv each valuedim", registers=255, loop=(1489, 30, 0),
           on=dict(sm90a=dict(constants=dict(VALUES=64, STAGES=2), stages=2, spill=344, loop=(2144, 4, 134)))),
    Kernel("delta_out_terms.bf16", delta_out_terms,
           f"out:*bf16 states:*fp32 solved:*fp32 qkv:*bf16 rows:i32 keyheads:i32 heads:i32 valuedim:i32 {SOME} so:i32 sqkv:i32",
           ("count*heads", "ceil(valuedim/VALUES)"), dict(KEYS=KEYS, PART=32, VALUES=32), stages=1,
           aligned="out states solved qkv so sqkv each valuedim", registers=255, on=dict(sm90a=dict(constants=dict(VALUES=64)))),
    Kernel("delta_before.bf16", delta_before,
           f"solved:*fp32 dout:*bf16 rows:i32 heads:i32 valuedim:i32 {SOME} past:i32 sdo:i32",
           ("count*heads", "ceil(valuedim/VALUES)"), dict(VALUES=64), stages=1, aligned="solved dout valuedim each past sdo", registers=255),
    Kernel("delta_scan_grad_terms.bf16", delta_scan_grad_terms,
           "dstates:*fp32 solved:*fp32 dout:*bf16 qkv:*bf16 start:*i32 rows:i32 chunks:i32 keyheads:i32 heads:i32 valuedim:i32 "
           f"{SOME} past:i32 sdo:i32 sqkv:i32", ("heads", "ceil(valuedim/VALUES)", "count"), dict(KEYS=KEYS, VALUES=32, STAGES=1), stages=1,
           aligned="dstates solved dout qkv each past sdo sqkv valuedim", registers=255, spill=276, loop=(2548, 41, 78),
           on=dict(sm90a=dict(constants=dict(VALUES=64, STAGES=2), stages=2, spill=576, loop=(2768, 4, 155)))),
    Kernel("delta_grad_values_terms.bf16", delta_grad_values, VALUES_ARGUMENTS.replace("*A", "*bf16"), ("count*heads", ),
           dict(PART=32, VALUES=16, TERMS=1), stages=1, registers=255, spill=192,
           aligned="dqkv dstates solved dout qkv states keydim valuedim each past sdqkv sdo sqkv", most=dict(keydim=KEYS, valuedim=KEYS)),
]
