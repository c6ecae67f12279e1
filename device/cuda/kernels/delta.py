"""The recurrence of gated delta nets (device.DeltaOps), forward and backward, in chunks of 64 rows and without
atomics.

The mathematics and their letters are those of device/cpu/delta: the chunked form of Yang et al., "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length" (2024), with the decays of "Gated Delta Networks"
(2024). What differs is who computes what:

	delta_solve        T = (I + L)^-1 and P of each chunk and head, which need no state
	delta_scan         states, from the first chunk to the last: D = T (beta*(V - c*(K S))), S' = c_n S + (m*K)^T D
	delta_out          O = c*(Q S) + P D of each chunk and head, with D once more
	delta_scan_grad    dstates, from the last chunk to the first: Y = T^T (P^T dO + m*(K dS')),
	                   dS = c_n dS' + Q^T (c*dO) - K^T (c*beta*Y)
	delta_grad_values  the gradients of values, decays and betas of each chunk and head, with D once more
	delta_grad_queries, delta_grad_keys
	                   the gradients of queries and of keys of each chunk and key head

Only the two scans go from chunk to chunk. A program of theirs has some columns of one head's state, which depend on no
others, and the chunks between two in which documents begin, which need nothing of what is outside. What kernels leave
for the next ones is in the workspace, so a launch takes as many chunks as that has room for: count of them, from the
chunk first on. Each chunk and head has a number of fp32 there: T, P, and for gradients Y and D, which are
[64, valuedim].

A chunk may have rows of several documents. The CPU cuts it into pieces; here it stays whole, and what crosses from
one document to another is masked: M between rows, c of rows whose document began in the chunk, m of rows whose
document ends in it. Rows beyond the last one are zeros with a decay of zero.

Sums of decays are in fp64. A difference of two is that of their fp32 halves, so it has all digits of an fp32 number
however large both are.

Queries and keys stay as they are in memory, and what they are normalized by multiplies rows of products.

All products are the tensor cores', of bf16 numbers with sums in fp32. A number in fp32 is the sum of three of bf16,
with 8 bits each and so as exact; a product of two such numbers is the six products of terms that matter, and what is
left out is about 2^-24 of it. Operands in bf16 have one term.
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel

ROWS = tl.constexpr(64)  # of a chunk: device.DeltaChunk
HALF = tl.constexpr(32)
EPSILON = tl.constexpr(1e-6)
SQUARE = tl.constexpr(64 * 64)
LAST_TERM = tl.constexpr(4 * 64 * 64)  # of T in terms, in numbers of bf16: after P
OF_VECTORS = tl.constexpr(2 * 64 * 64 + 64 * 32)  # after that, in numbers of fp32


@triton.jit
def _tile(base, first, stride, rows, cols, column, COUNT: tl.constexpr, COLS: tl.constexpr):
    """The tile [COUNT, COLS] at row first and a column of a head that has cols; zeros beyond both."""
    r = tl.arange(0, COUNT)[:, None]
    c = column + tl.arange(0, COLS)[None, :]
    inside = (r < rows - first) & (c < cols)
    return tl.load(base + tl.cast(first, tl.int64) * stride + r * stride + c, mask=inside, other=0.0)


@triton.jit
def _store(base, first, stride, rows, cols, value, column, COUNT: tl.constexpr, COLS: tl.constexpr):
    """Writes a tile as _tile reads it."""
    r = tl.arange(0, COUNT)[:, None]
    c = column + tl.arange(0, COLS)[None, :]
    inside = (r < rows - first) & (c < cols)
    tl.store(base + tl.cast(first, tl.int64) * stride + r * stride + c, value.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _split(x):
    """Three numbers of bf16 whose sum is x, the greatest first."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _dot(a, b, acc):
    """acc + a·b, the smallest products first."""
    if a.dtype == tl.bfloat16 and b.dtype == tl.bfloat16:
        acc = tl.dot(a, b, acc)
    elif a.dtype == tl.bfloat16:
        b0, b1, b2 = _split(b)
        acc = tl.dot(a, b0, tl.dot(a, b1, tl.dot(a, b2, acc)))
    elif b.dtype == tl.bfloat16:
        a0, a1, a2 = _split(a)
        acc = tl.dot(a0, b, tl.dot(a1, b, tl.dot(a2, b, acc)))
    else:
        a0, a1, a2 = _split(a)
        b0, b1, b2 = _split(b)
        acc = tl.dot(a2, b0, tl.dot(a0, b2, tl.dot(a1, b1, acc)))
        acc = tl.dot(a0, b0, tl.dot(a1, b0, tl.dot(a0, b1, acc)))
    return acc


@triton.jit
def _product(a, b, M: tl.constexpr, N: tl.constexpr):
    return _dot(a, b, tl.zeros([M, N], tl.float32))


@triton.jit
def _squares(x):
    """The sums of the squares of rows."""
    x = x.to(tl.float32)
    return tl.sum(x * x, 1)


@triton.jit
def _norms(x):
    """What the rows of x are multiplied by, so that their squares sum to 1."""
    return tl.rsqrt(_squares(x) + EPSILON)


@triton.jit
def _store_unnormed(to, x, d, share, first, sto, sx, rows, cols, COLS: tl.constexpr):
    """Writes the gradient of rows x, where d is that of what they are normalized to times share."""
    x = _tile(x, first, sx, rows, cols, 0, ROWS, COLS).to(tl.float32)
    by = _norms(x)
    unit = x * by[:, None]
    _store(to, first, sto, rows, cols, (by * share)[:, None] * (d - unit * tl.sum(d * unit, 1)[:, None]), 0, ROWS, COLS)


@triton.jit
def _apart(g_i, g_j, began_i, row_i, row_j):
    """M: exp(g_i - g_j) where row i sees row j, else 0."""
    hi_i, hi_j = g_i.to(tl.float32), g_j.to(tl.float32)
    lo_i, lo_j = (g_i - hi_i.to(tl.float64)).to(tl.float32), (g_j - hi_j.to(tl.float64)).to(tl.float32)
    seen = (row_j[None, :] <= row_i[:, None]) & (row_j[None, :] >= began_i[:, None])
    return tl.where(seen, tl.exp((hi_i[:, None] - hi_j[None, :]) + (lo_i[:, None] - lo_j[None, :])), 0.0)


@triton.jit
def _decays(decay, start, first, rows, heads, head):
    """g of a chunk's rows, and with it c, m and c_n: 0 where a document that begins or ends in the chunk says so."""
    row = first + tl.arange(0, ROWS)
    d = tl.load(decay + row.to(tl.int64) * heads + head, mask=row < rows, other=0.0).to(tl.float64)
    g, total = tl.cumsum(d, 0), tl.sum(d, 0)
    began = tl.load(start + tl.minimum(row, rows - 1))
    last = tl.load(start + tl.minimum(first + ROWS, rows) - 1)
    c = tl.where(began < first, tl.exp(g.to(tl.float32)), 0.0)
    m = tl.where(row >= last, tl.exp((total - g).to(tl.float32)), 0.0)
    return g, c, m, tl.where(last < first, tl.exp(total.to(tl.float32)), 0.0)


@triton.jit
def _betas(beta, first, rows, heads, head):
    row = first + tl.arange(0, ROWS)
    return tl.load(beta + row.to(tl.int64) * heads + head, mask=row < rows, other=0.0)


@triton.jit
def _square():
    """Where the numbers of a matrix [ROWS, ROWS] are."""
    return tl.arange(0, ROWS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]


@triton.jit
def _store_terms(to, x):
    """Writes the three terms of x, each to a matrix of its own."""
    x0, x1, x2 = _split(x)
    tl.store(to, x0)
    tl.store(to + SQUARE, x1)
    tl.store(to + LAST_TERM, x2)


@triton.jit
def _terms(mine):
    """The three terms of T, [ROWS, ROWS] each, of the numbers of a chunk and head."""
    at = mine.to(tl.pointer_type(tl.bfloat16)) + tl.arange(0, ROWS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    return tl.load(at), tl.load(at + SQUARE), tl.load(at + LAST_TERM)


@triton.jit
def _by_terms(x, t0, t1, t2):
    """x t, of x in fp32, the smallest products first."""
    x0, x1, x2 = _split(x)
    d = tl.dot(x2, t0, tl.dot(x0, t2, tl.dot(x1, t1)))
    return tl.dot(x0, t0, tl.dot(x1, t0, tl.dot(x0, t1, d)))


@triton.jit
def _of_terms(t0, t1, t2, x):
    """t x, in the same order."""
    x0, x1, x2 = _split(x)
    d = tl.dot(t2, x0, tl.dot(t0, x2, tl.dot(t1, x1)))
    return tl.dot(t0, x0, tl.dot(t1, x0, tl.dot(t0, x1, d)))


@triton.jit
def _state(row, column, keydim, valuedim, KEYS: tl.constexpr, VALUES: tl.constexpr):
    """Where KEYS rows and VALUES columns of a state are, and which of them there are."""
    k, v = row + tl.arange(0, KEYS)[:, None], column + tl.arange(0, VALUES)[None, :]
    return k * valuedim + v, (k < keydim) & (v < valuedim)


@triton.jit
def _inverses(l_a, l_b, across_a, across_b):
    """The transposes of (I + l)^-1 of two matrices [HALF, HALF] with zeros on and above their diagonals. They and
    their transposes are in memory, with rows of ROWS. Row r of t = (I + l)^-1 is -l[r] t plus a 1, where t has the rows
    before r. Rows of t are columns here, so that a sum stays within a warp: no row waits for all threads."""
    i, j = tl.arange(0, HALF)[:, None], tl.arange(0, HALF)[None, :]
    at = i * ROWS + j
    t_a, t_b = -tl.load(across_a + at), -tl.load(across_b + at)
    for r in range(1, HALF):
        row_a, row_b = tl.load(l_a + r * ROWS + j), tl.load(l_b + r * ROWS + j)
        t_a -= tl.where(j == r, tl.sum(row_a * t_a, 1)[:, None], 0.0)
        t_b -= tl.where(j == r, tl.sum(row_b * t_b, 1)[:, None], 0.0)
    return tl.where(i == j, 1.0, t_a), tl.where(i == j, 1.0, t_b)


@triton.jit
def delta_solve(solved, qkv, decay, beta, start, rows, keyheads, heads, keydim, first, count, each, sqkv,
                PART: tl.constexpr, TERMS: tl.constexpr):
    """T and P of a chunk and a head: 2 matrices [64, 64] of fp32. With TERMS, T in three terms of bf16 and the vectors
    of delta_scan.py. Programs: count*heads.

    The rows are worked on in halves: of (I + L) = [A 0; B C], the inverse is [A^-1 0; -C^-1 B A^-1 C^-1]. Rows of the
    inverse of a half follow one from the other, as in the CPU's substitution; powers of L, which are shorter, may be
    far greater than their sum.
    """
    chunk, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    solved += tl.program_id(0).to(tl.int64) * each
    top = (first + chunk) * ROWS
    low = top + HALF
    q = qkv + head // (heads // keyheads) * keydim
    k = q + keyheads * keydim
    i = tl.arange(0, HALF)
    row_a, row_b = top + i, low + i
    at_a, at_b = row_a.to(tl.int64) * heads + head, row_b.to(tl.int64) * heads + head
    d_a = tl.load(decay + at_a, mask=row_a < rows, other=0.0).to(tl.float64)
    d_b = tl.load(decay + at_b, mask=row_b < rows, other=0.0).to(tl.float64)
    g_a = tl.cumsum(d_a, 0)
    g_b = tl.sum(d_a, 0) + tl.cumsum(d_b, 0)
    beta_a = tl.load(beta + at_a, mask=row_a < rows, other=0.0)
    beta_b = tl.load(beta + at_b, mask=row_b < rows, other=0.0)
    began_a, began_b = tl.load(start + tl.minimum(row_a, rows - 1)), tl.load(start + tl.minimum(row_b, rows - 1))

    none = tl.zeros([HALF, HALF], tl.float32)
    kk_aa, kk_ba, kk_bb, qk_aa, qk_ba, qk_bb = none, none, none, none, none, none
    squares = tl.zeros([HALF], tl.float32) + EPSILON
    kk_a, kk_b, qq_a, qq_b = squares, squares, squares, squares
    for column in range(0, keydim, PART):
        k_a = _tile(k, top, sqkv, rows, keydim, column, HALF, PART)
        k_b = _tile(k, low, sqkv, rows, keydim, column, HALF, PART)
        q_a = _tile(q, top, sqkv, rows, keydim, column, HALF, PART)
        q_b = _tile(q, low, sqkv, rows, keydim, column, HALF, PART)
        kk_a, kk_b, qq_a, qq_b = kk_a + _squares(k_a), kk_b + _squares(k_b), qq_a + _squares(q_a), qq_b + _squares(q_b)
        kk_aa = _dot(k_a, tl.trans(k_a), kk_aa)
        kk_ba = _dot(k_b, tl.trans(k_a), kk_ba)
        kk_bb = _dot(k_b, tl.trans(k_b), kk_bb)
        qk_aa = _dot(q_a, tl.trans(k_a), qk_aa)
        qk_ba = _dot(q_b, tl.trans(k_a), qk_ba)
        qk_bb = _dot(q_b, tl.trans(k_b), qk_bb)
    sk_a, sk_b = tl.rsqrt(kk_a), tl.rsqrt(kk_b)
    share = tl.rsqrt(keydim.to(tl.float32))
    sq_a, sq_b = tl.rsqrt(qq_a) * share, tl.rsqrt(qq_b) * share
    if TERMS:
        last = tl.load(start + tl.minimum(top + ROWS, rows) - 1)
        total = tl.sum(d_a, 0) + tl.sum(d_b, 0)
        c_a = tl.where(began_a < top, tl.exp(g_a.to(tl.float32)), 0.0)
        c_b = tl.where(began_b < top, tl.exp(g_b.to(tl.float32)), 0.0)
        by_m_a = tl.where(row_a >= last, tl.exp((total - g_a).to(tl.float32)), 0.0)
        by_m_b = tl.where(row_b >= last, tl.exp((total - g_b).to(tl.float32)), 0.0)
        of_a, of_b = solved + OF_VECTORS + i, solved + OF_VECTORS + HALF + i
        tl.store(of_a, c_a * sk_a * beta_a)
        tl.store(of_b, c_b * sk_b * beta_b)
        tl.store(of_a + ROWS, by_m_a * sk_a)
        tl.store(of_b + ROWS, by_m_b * sk_b)
        tl.store(of_a + 2 * ROWS, beta_a)
        tl.store(of_b + 2 * ROWS, beta_b)
        tl.store(of_a + 3 * ROWS, c_a * sq_a)
        tl.store(of_b + 3 * ROWS, c_b * sq_b)
        tl.store(solved + OF_VECTORS + 4 * ROWS, tl.where(last < top, tl.exp(total.to(tl.float32)), 0.0))
    m_aa = _apart(g_a, g_a, began_a, row_a, row_a) * sk_a[None, :]
    m_ba = _apart(g_b, g_a, began_b, row_b, row_a) * sk_a[None, :]
    m_bb = _apart(g_b, g_b, began_b, row_b, row_b) * sk_b[None, :]
    at = solved + i[:, None] * ROWS + i[None, :]
    corner, under, end = HALF, HALF * ROWS, HALF * ROWS + HALF
    at_p = at + ROWS * ROWS
    tl.store(at_p, sq_a[:, None] * m_aa * qk_aa)
    tl.store(at_p + corner, none)
    tl.store(at_p + under, sq_b[:, None] * m_ba * qk_ba)
    tl.store(at_p + end, sq_b[:, None] * m_bb * qk_bb)

    below = i[None, :] < i[:, None]
    by_b = (beta_b * sk_b)[:, None]
    l_a = tl.where(below, (beta_a * sk_a)[:, None] * m_aa * kk_aa, 0.0)
    l_b = tl.where(below, by_b * m_bb * kk_bb, 0.0)
    between = by_b * m_ba * kk_ba
    tl.store(at, l_a)
    tl.store(at + end, l_b)
    tl.store(at + corner, tl.trans(l_a))
    tl.store(at + under, tl.trans(l_b))
    tl.debug_barrier()  # all threads have written these
    a, b = _inverses(solved, solved + end, solved + corner, solved + under)
    tl.debug_barrier()  # and read them
    t_a, t_b = tl.trans(a), tl.trans(b)
    if TERMS:
        at_t = solved.to(tl.pointer_type(tl.bfloat16)) + i[:, None] * ROWS + i[None, :]
        _store_terms(at_t, t_a)
        _store_terms(at_t + corner, none)
        _store_terms(at_t + end, t_b)
        _store_terms(at_t + under, -_product(_product(t_b, between, HALF, HALF), t_a, HALF, HALF))
    else:
        tl.store(at, t_a)
        tl.store(at + corner, none)
        tl.store(at + end, t_b)
        tl.store(at + under, -_product(_product(t_b, between, HALF, HALF), t_a, HALF, HALF))


@triton.jit
def _begins(start, chunk, rows):
    """Whether a document begins in a chunk. If so, neither the state after the chunk nor the gradient of the one before
    it depends on what is on the other side of the chunk."""
    return tl.load(start + tl.minimum((chunk + 1) * ROWS, rows) - 1) >= chunk * ROWS


@triton.jit
def delta_scan(states, solved, qkv, decay, beta, start, rows, chunks, keyheads, heads, keydim, valuedim, first, count,
               each, sqkv, PART: tl.constexpr, VALUES: tl.constexpr):
    """The states before the chunks first+1..first+count, from the one before the chunk first; before the first of
    all, which it writes too, that is zero. A program has some columns of a head's state, and the chunks from first+i,
    if i is 0 or a document begins in that one, to the next one in which a document begins. A state goes from chunk to
    chunk through the memory where it belongs: in registers all of it would leave no room. Programs: heads,
    ceil(valuedim/VALUES), count for i."""
    head, column = tl.program_id(0), tl.program_id(1) * VALUES
    chunk, stop = first + tl.program_id(2), first + count
    k = qkv + (keyheads + head // (heads // keyheads)) * keydim
    v = qkv + 2 * keyheads * keydim + head * valuedim
    size = keydim * valuedim
    step = tl.cast(heads, tl.int64) * size
    at_state = states + chunk * step + head * size
    if chunk == 0:
        for part in range(0, keydim, PART):
            at, inside = _state(part, column, keydim, valuedim, PART, VALUES)
            tl.store(at_state + at, tl.zeros([PART, VALUES], tl.float32), mask=inside)
    begins = _begins(start, chunk, rows)
    more = begins | (chunk == first)
    while more:
        tl.debug_barrier()  # all threads have written the state
        top = chunk * ROWS
        read, of_keys = tl.zeros([ROWS, VALUES], tl.float32), tl.zeros([ROWS], tl.float32) + EPSILON
        for part in range(0, keydim, PART):
            at, inside = _state(part, column, keydim, valuedim, PART, VALUES)
            keys = _tile(k, top, sqkv, rows, keydim, part, ROWS, PART)
            read = _dot(keys, tl.load(at_state + at, mask=inside & (begins == 0), other=0.0), read)
            of_keys += _squares(keys)
        _, c, m, left = _decays(decay, start, top, rows, heads, head)
        b, sk = _betas(beta, top, rows, heads, head), tl.rsqrt(of_keys)
        x = _tile(v, top, sqkv, rows, valuedim, column, ROWS, VALUES).to(tl.float32)
        x = b[:, None] * (x - (c * sk)[:, None] * read)
        t = tl.load(solved + ((chunk - first).to(tl.int64) * heads + head) * each + _square())
        d = (m * sk)[:, None] * _product(t, x, ROWS, VALUES)
        here = top + ROWS
        ends = tl.load(start + tl.minimum(here, rows - 1)) == here  # rows beyond the last have a start that is less
        chunk += 1
        for part in range(0, keydim, PART):
            at, inside = _state(part, column, keydim, valuedim, PART, VALUES)
            keys = _tile(k, top, sqkv, rows, keydim, part, ROWS, PART)
            s = tl.load(at_state + at, mask=inside & (begins == 0), other=0.0) * left
            s = _dot(tl.trans(keys), d, s)
            tl.store(at_state + step + at, tl.where(ends, 0.0, s), mask=inside & (chunk < chunks))
        at_state += step
        begins = _begins(start, tl.minimum(chunk, chunks - 1), rows)
        more = (chunk < stop) & (begins == 0)


@triton.jit
def delta_out(out, states, solved, qkv, decay, beta, start, rows, chunks, keyheads, heads, keydim, valuedim, first,
              count, each, so, sqkv, PART: tl.constexpr, VALUES: tl.constexpr):
    """out of a chunk and some columns of a head. Programs: count*heads, ceil(valuedim/VALUES)."""
    chunk, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    column = tl.program_id(1) * VALUES
    top = (first + chunk) * ROWS
    q = qkv + head // (heads // keyheads) * keydim
    v = qkv + 2 * keyheads * keydim + head * valuedim
    states += ((first + chunk).to(tl.int64) * heads + head) * keydim * valuedim
    solved += tl.program_id(0).to(tl.int64) * each
    read, o = tl.zeros([ROWS, VALUES], tl.float32), tl.zeros([ROWS, VALUES], tl.float32)
    of_keys = tl.zeros([ROWS], tl.float32) + EPSILON
    of_queries = of_keys
    for part in range(0, keydim, PART):
        at, inside = _state(part, column, keydim, valuedim, PART, VALUES)
        s = tl.load(states + at, mask=inside, other=0.0)
        keys = _tile(q + keyheads * keydim, top, sqkv, rows, keydim, part, ROWS, PART)
        read = _dot(keys, s, read)
        queries = _tile(q, top, sqkv, rows, keydim, part, ROWS, PART)
        o = _dot(queries, s, o)
        of_keys, of_queries = of_keys + _squares(keys), of_queries + _squares(queries)
    _, c, _, _ = _decays(decay, start, top, rows, heads, head)
    b = _betas(beta, top, rows, heads, head)
    x = _tile(v, top, sqkv, rows, valuedim, column, ROWS, VALUES).to(tl.float32)
    x = b[:, None] * (x - (c * tl.rsqrt(of_keys))[:, None] * read)
    d = _product(tl.load(solved + _square()), x, ROWS, VALUES)
    o *= (c * tl.rsqrt(of_queries * keydim.to(tl.float32)))[:, None]
    o = _dot(tl.load(solved + ROWS * ROWS + _square()), d, o)
    _store(out + head * valuedim, top, so, rows, valuedim, o, column, ROWS, VALUES)


@triton.jit
def delta_scan_grad(dstates, solved, dout, qkv, decay, beta, start, rows, chunks, keyheads, heads, keydim, valuedim,
                    first, count, each, sdo, sqkv, PART: tl.constexpr, VALUES: tl.constexpr):
    """Y of all chunks, and the gradients of the states before the chunks first+count-1..first, from that of the state
    before the chunk first+count; after the last one it is zero. A program has some columns of a head, and the chunks
    from first+i, if that is the stretch's last or a document begins in the next one, down to the next in which a
    document begins. It begins with the gradient before the next chunk, which does not depend on what is after that; so
    of a chunk in which a document begins it writes Y alone, unless that is the stretch's first. Gradients go from
    chunk to chunk as states do. Programs: heads, ceil(valuedim/VALUES), count for i."""
    head, column = tl.program_id(0), tl.program_id(1) * VALUES
    mine = first + tl.program_id(2)
    q = qkv + head // (heads // keyheads) * keydim
    k = q + keyheads * keydim
    size = keydim * valuedim
    step = tl.cast(heads, tl.int64) * size
    share = tl.rsqrt(keydim.to(tl.float32))
    ends = mine + 1 == first + count
    apart = (ends == 0) & _begins(start, tl.minimum(mine + 1, chunks - 1), rows)
    chunk = mine + apart.to(tl.int32)
    at_state = dstates + (chunk + 1) * step + head * size
    more = ends | apart
    while more:
        tl.debug_barrier()  # all threads have written the gradient
        top = chunk * ROWS
        begins = _begins(start, chunk, rows)
        after = (chunk <= mine) & (chunk + 1 < chunks)
        written, of_keys = tl.zeros([ROWS, VALUES], tl.float32), tl.zeros([ROWS], tl.float32) + EPSILON
        of_queries = of_keys
        for part in range(0, keydim, PART):
            at, inside = _state(part, column, keydim, valuedim, PART, VALUES)
            keys = _tile(k, top, sqkv, rows, keydim, part, ROWS, PART)
            written = _dot(keys, tl.load(at_state + at, mask=inside & after, other=0.0), written)
            queries = _tile(q, top, sqkv, rows, keydim, part, ROWS, PART)
            of_keys, of_queries = of_keys + _squares(keys), of_queries + _squares(queries)
        _, c, m, left = _decays(decay, start, top, rows, heads, head)
        b, sk = _betas(beta, top, rows, heads, head), tl.rsqrt(of_keys)
        douts = _tile(dout + head * valuedim, top, sdo, rows, valuedim, column, ROWS, VALUES)
        here = solved + ((chunk - first).to(tl.int64) * heads + head) * each
        z = _dot(tl.trans(tl.load(here + ROWS * ROWS + _square())), douts, (m * sk)[:, None] * written)
        y = _product(tl.trans(tl.load(here + _square())), z, ROWS, VALUES)
        if chunk <= mine:
            _store(here + 2 * ROWS * ROWS, 0, valuedim, ROWS, valuedim, y, column, ROWS, VALUES)
        if (begins == 0) | (chunk > mine) | (chunk == first):
            by_keys = -(c * b * sk)[:, None] * y
            by_queries = (c * tl.rsqrt(of_queries) * share)[:, None] * douts.to(tl.float32)
            for part in range(0, keydim, PART):
                at, inside = _state(part, column, keydim, valuedim, PART, VALUES)
                ds = tl.load(at_state + at, mask=inside & after & (begins == 0), other=0.0) * left
                keys = _tile(k, top, sqkv, rows, keydim, part, ROWS, PART)
                ds = _dot(tl.trans(keys), by_keys, ds)
                queries = _tile(q, top, sqkv, rows, keydim, part, ROWS, PART)
                ds = _dot(tl.trans(queries), by_queries, ds)
                tl.store(at_state - step + at, ds, mask=inside)
        chunk -= 1
        at_state -= step
        more = (chunk >= first) & ((begins == 0) | (chunk == mine))


@triton.jit
def delta_grad_values(dqkv, ddecay, dbeta, dstates, solved, dout, qkv, decay, beta, states, start, rows, chunks,
                      keyheads, heads, keydim, valuedim, first, count, each, past, sdqkv, sdo, sqkv, PART: tl.constexpr,
                      VALUES: tl.constexpr, TERMS: tl.constexpr):
    """The gradients of a chunk's values, decays and betas of a head; D, after Y; and in the places of T and P, dG and
    dA. Programs: count*heads.

    A decay is in g_i - g_j of the rows with j < t <= i, in c of the rows from t on, in m of the rows before t, and in
    c_n. So its gradient is the sum of just these.
    """
    chunk, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    top = (first + chunk) * ROWS
    row = top + tl.arange(0, ROWS)
    q = qkv + head // (heads // keyheads) * keydim
    k = q + keyheads * keydim
    v = 2 * keyheads * keydim + head * valuedim
    mine = solved + tl.program_id(0).to(tl.int64) * each
    of_y, of_d = mine + past, mine + past + ROWS * valuedim
    of_states = ((first + chunk).to(tl.int64) * heads + head) * keydim * valuedim
    states += of_states
    dstates += of_states + tl.cast(heads, tl.int64) * keydim * valuedim  # those of the next chunk
    after = first + chunk + 1 < chunks
    g, c, m, left = _decays(decay, start, top, rows, heads, head)
    b = _betas(beta, top, rows, heads, head)
    of_keys = tl.zeros([ROWS], tl.float32) + EPSILON
    of_queries = of_keys
    for part in range(0, keydim, PART):
        of_keys += _squares(_tile(k, top, sqkv, rows, keydim, part, ROWS, PART))
        of_queries += _squares(_tile(q, top, sqkv, rows, keydim, part, ROWS, PART))
    sk, by_q = tl.rsqrt(of_keys), c * tl.rsqrt(of_queries * keydim.to(tl.float32))

    near, past = tl.zeros([ROWS, ROWS], tl.float32), tl.zeros([ROWS, ROWS], tl.float32)
    db, by_c, by_m = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    by_left = tl.zeros([PART], tl.float32)
    for column in range(0, valuedim, VALUES):
        of_k, of_q, written = (tl.zeros([ROWS, VALUES],
                                        tl.float32), tl.zeros([ROWS, VALUES],
                                                              tl.float32), tl.zeros([ROWS, VALUES], tl.float32))
        for part in range(0, keydim, PART):
            at, inside = _state(part, column, keydim, valuedim, PART, VALUES)
            s = tl.load(states + at, mask=inside, other=0.0)
            ds = tl.load(dstates + at, mask=inside & after, other=0.0)
            by_left += tl.sum(s * ds, 1)
            keys = _tile(k, top, sqkv, rows, keydim, part, ROWS, PART)
            of_k = _dot(keys, s, of_k)
            written = _dot(keys, ds, written)
            of_q = _dot(_tile(q, top, sqkv, rows, keydim, part, ROWS, PART), s, of_q)
        read = (c * sk)[:, None] * of_k
        x = _tile(qkv + v, top, sqkv, rows, valuedim, column, ROWS, VALUES).to(tl.float32) - read
        if TERMS:
            t0, t1, t2 = _terms(mine)
            d = _of_terms(t0, t1, t2, b[:, None] * x)
        else:
            d = _product(tl.load(mine + _square()), b[:, None] * x, ROWS, VALUES)
        _store(of_d, 0, valuedim, ROWS, valuedim, d, column, ROWS, VALUES)
        by_m += tl.sum(d * ((m * sk)[:, None] * written), 1)
        y = _tile(of_y, 0, valuedim, ROWS, valuedim, column, ROWS, VALUES)
        past = _dot(y, tl.trans(d), past)
        db += tl.sum(y * x, 1)
        dv = b[:, None] * y
        _store(dqkv + v, top, sdqkv, rows, valuedim, dv, column, ROWS, VALUES)
        douts = _tile(dout + head * valuedim, top, sdo, rows, valuedim, column, ROWS, VALUES)
        near = _dot(douts, tl.trans(d), near)
        by_c += tl.sum(by_q[:, None] * douts.to(tl.float32) * of_q - dv * read, 1)

    products = tl.zeros([ROWS, ROWS], tl.float32)  # after the sums above, for there is no room for all
    for part in range(0, keydim, PART):
        keys = _tile(k, top, sqkv, rows, keydim, part, ROWS, PART)
        products = _dot(keys, tl.trans(keys), products)
    began = tl.load(start + tl.minimum(row, rows - 1))
    below, above = row[None, :] < row[:, None], row[None, :] > row[:, None]
    decays = _apart(g, g, began, row, row)
    past = tl.where(below, decays * past, 0.0)
    of_keys = past * products * (sk[:, None] * sk[None, :])
    e = tl.where(below, tl.load(mine + ROWS * ROWS + _square()) * near, 0.0) - b[:, None] * of_keys
    by_decay = tl.where(above, by_m[:, None], tl.cumsum(e, 1) - e + by_c[:, None])
    at_row = row.to(tl.int64) * heads + head
    tl.store(ddecay + at_row, tl.sum(by_decay, 0) + left * tl.sum(by_left, 0), mask=row < rows)
    tl.store(dbeta + at_row, db - tl.sum(of_keys, 1), mask=row < rows)
    tl.debug_barrier()  # all threads have read T and P
    tl.store(mine + _square(), -b[:, None] * past)
    tl.store(mine + ROWS * ROWS + _square(), decays * near)


@triton.jit
def _sum_of_heads(solved, chunk, heads, head, group, each):
    """The sum of a matrix [ROWS, ROWS] of each head of a group: what multiplies queries and keys, which they share."""
    x = tl.zeros([ROWS, ROWS], tl.float32)
    for i in range(0, group):
        x += tl.load(solved + (chunk.to(tl.int64) * heads + head + i) * each + _square())
    return x


@triton.jit
def delta_grad_queries(dqkv, solved, dout, qkv, decay, states, start, rows, chunks, keyheads, heads, keydim, valuedim,
                       first, count, each, sdqkv, sdo, sqkv, KEYS: tl.constexpr, VALUES: tl.constexpr):
    """The gradients of a chunk's queries of a key head, summed over its heads in order, from dA, which
    delta_grad_values left. Programs: count*keyheads."""
    chunk, keyhead = tl.program_id(0) // keyheads, tl.program_id(0) % keyheads
    group = heads // keyheads
    top = (first + chunk) * ROWS
    q = qkv + keyhead * keydim
    k = q + keyheads * keydim
    sk = _norms(_tile(k, top, sqkv, rows, keydim, 0, ROWS, KEYS))
    acc = tl.zeros([ROWS, KEYS], tl.float32)
    for head in range(keyhead * group, (keyhead + 1) * group):
        of_state = states + ((first + chunk).to(tl.int64) * heads + head) * keydim * valuedim
        _, c, _, _ = _decays(decay, start, top, rows, heads, head)
        for column in range(0, valuedim, VALUES):
            at, inside = _state(0, column, keydim, valuedim, KEYS, VALUES)
            s = tl.load(of_state + at, mask=inside, other=0.0)
            do = _tile(dout + head * valuedim, top, sdo, rows, valuedim, column, ROWS, VALUES).to(tl.float32)
            acc = _dot(c[:, None] * do, tl.trans(s), acc)
    da = _sum_of_heads(solved + ROWS * ROWS, chunk, heads, keyhead * group, group, each)
    acc = _dot(da * sk[None, :], _tile(k, top, sqkv, rows, keydim, 0, ROWS, KEYS), acc)
    _store_unnormed(dqkv + keyhead * keydim, q, acc, tl.rsqrt(keydim.to(tl.float32)), top, sdqkv, sqkv, rows, keydim,
                    KEYS)


@triton.jit
def delta_grad_keys(dqkv, dstates, solved, qkv, decay, beta, states, start, rows, chunks, keyheads, heads, keydim,
                    valuedim, first, count, each, past, sdqkv, sqkv, KEYS: tl.constexpr, VALUES: tl.constexpr):
    """delta_grad_queries for keys, from Y, D, dG and dA."""
    chunk, keyhead = tl.program_id(0) // keyheads, tl.program_id(0) % keyheads
    group = heads // keyheads
    top = (first + chunk) * ROWS
    q = qkv + keyhead * keydim
    k = q + keyheads * keydim
    sk = _norms(_tile(k, top, sqkv, rows, keydim, 0, ROWS, KEYS))
    sq = _norms(_tile(q, top, sqkv, rows, keydim, 0, ROWS, KEYS)) * tl.rsqrt(keydim.to(tl.float32))
    acc = tl.zeros([ROWS, KEYS], tl.float32)
    for head in range(keyhead * group, (keyhead + 1) * group):
        mine = solved + (chunk.to(tl.int64) * heads + head) * each
        of_y, of_d = mine + past, mine + past + ROWS * valuedim
        at_state = ((first + chunk).to(tl.int64) * heads + head) * keydim * valuedim
        to_next = tl.cast(heads, tl.int64) * keydim * valuedim
        _, c, m, _ = _decays(decay, start, top, rows, heads, head)
        by_y = -c * _betas(beta, top, rows, heads, head)
        for column in range(0, valuedim, VALUES):
            at, inside = _state(0, column, keydim, valuedim, KEYS, VALUES)
            s = tl.load(states + at_state + at, mask=inside, other=0.0)
            y = _tile(of_y, 0, valuedim, ROWS, valuedim, column, ROWS, VALUES)
            acc = _dot(by_y[:, None] * y, tl.trans(s), acc)
            ds = tl.load(dstates + at_state + to_next + at, mask=inside & (first + chunk + 1 < chunks), other=0.0)
            d = _tile(of_d, 0, valuedim, ROWS, valuedim, column, ROWS, VALUES)
            acc = _dot(m[:, None] * d, tl.trans(ds), acc)
    dg = _sum_of_heads(solved, chunk, heads, keyhead * group, group, each)
    acc = _dot((dg + tl.trans(dg)) * sk[None, :], _tile(k, top, sqkv, rows, keydim, 0, ROWS, KEYS), acc)
    da = _sum_of_heads(solved + ROWS * ROWS, chunk, heads, keyhead * group, group, each)
    acc = _dot(tl.trans(da * sq[:, None]), _tile(q, top, sqkv, rows, keydim, 0, ROWS, KEYS), acc)
    _store_unnormed(dqkv + (keyheads + keyhead) * keydim, k, acc, 1.0, top, sdqkv, sqkv, rows, keydim, KEYS)


SIZES = "rows:i32 keyheads:i32 heads:i32 keydim:i32"
READ = "qkv:*A decay:*fp32 beta:*fp32"
SOME = "first:i32 count:i32 each:i32"
WIDE = "rows:i32 chunks:i32 keyheads:i32 heads:i32 keydim:i32 valuedim:i32"
EACH, SCAN = "count*heads", ("heads", "ceil(valuedim/VALUES)", "count")

VALUES_ARGUMENTS = (f"dqkv:*A ddecay:*fp32 dbeta:*fp32 dstates:*fp32 solved:*fp32 dout:*A {READ} states:*fp32 start:*i32 "
                    f"{WIDE} {SOME} past:i32 sdqkv:i32 sdo:i32 sqkv:i32")

# The kernels: function, arguments and grid.
OPERATIONS = (
    (delta_solve, f"solved:*fp32 {READ} start:*i32 {SIZES} {SOME} sqkv:i32", (EACH, )),
    (delta_scan, f"states:*fp32 solved:*fp32 {READ} start:*i32 {WIDE} {SOME} sqkv:i32", SCAN),
    (delta_out, f"out:*A states:*fp32 solved:*fp32 {READ} start:*i32 {WIDE} {SOME} so:i32 sqkv:i32",
     (EACH, "ceil(valuedim/VALUES)")),
    (delta_scan_grad, f"dstates:*fp32 solved:*fp32 dout:*A {READ} start:*i32 {WIDE} {SOME} sdo:i32 sqkv:i32", SCAN),
    (delta_grad_values, VALUES_ARGUMENTS, (EACH, )),
    (delta_grad_queries,
     f"dqkv:*A solved:*fp32 dout:*A qkv:*A decay:*fp32 states:*fp32 start:*i32 {WIDE} {SOME} sdqkv:i32 sdo:i32 "
     "sqkv:i32", ("count*keyheads", )),
    (delta_grad_keys,
     f"dqkv:*A dstates:*fp32 solved:*fp32 {READ} states:*fp32 start:*i32 {WIDE} {SOME} past:i32 sdqkv:i32 sqkv:i32",
     ("count*keyheads", )),
)
# The columns of values and of keys that an operation works on at a time, and its warps. KEYS is the most columns of a
# head, which the last two have at once. These are small: the terms of fp32 fill registers, so gradients need eight warps.
# In bf16, aligned heads of KEYS columns have delta_scan.py, whose results the last two take in larger tiles.
KEYS = 128
ANY = {
    delta_solve: (0, 16, 4), delta_scan: (16, 16, 4), delta_out: (16, 16, 4), delta_scan_grad: (16, 16, 4),
    delta_grad_values: (16, 16, 8), delta_grad_queries: (16, 0, 8), delta_grad_keys: (16, 0, 8)
}
ALIGNED = {delta_grad_queries: (32, 0, 4), delta_grad_keys: (16, 0, 4)}
# The most bytes that a thread spills on any architecture, of ptxas 12.8.
SPILLS = {
    "f32.any": {
        delta_solve: 176, delta_scan: 8, delta_scan_grad: 112, delta_grad_values: 456, delta_grad_queries: 132,
        delta_grad_keys: 472
    },
    "bf16.any": {
        delta_scan: 8, delta_scan_grad: 40, delta_grad_values: 396, delta_grad_queries: 52, delta_grad_keys: 84
    },
    "bf16.a16": {delta_grad_queries: 52, delta_grad_keys: 92}
}
SIZED = ("solved", "states", "dstates", "so", "sdo", "sqkv", "sdqkv", "each", "past", "keydim", "valuedim")


def _kernel(function, arguments, grid, a, variant, tiles):
    values, part, warps = tiles[function]
    tiles = dict(KEYS=KEYS, PART=part, VALUES=values, TERMS=0)
    typed = [argument.split(":") for argument in arguments.split()]
    aligned = [name for name, t in typed if t == "*A" or name in SIZED]
    dims = [name for name, _ in typed if name in ("keydim", "valuedim")]
    return Kernel(f"{function.__name__}.{a}.{variant}", function, arguments.replace("*A", "*" + dict(BF16_OR_F32)[a]),
                  grid, {name: n for name, n in tiles.items() if name in function.arg_names}, warps=warps, stages=1,
                  aligned=" ".join(aligned) if variant == "a16" else "", most=dict.fromkeys(dims, KEYS), registers=255,
                  spill=SPILLS[f"{a}.{variant}"].get(function, 0))


KERNELS = [
    _kernel(function, arguments, grid, a, variant, tiles)
    for a, variant, tiles in (("f32", "any", ANY), ("bf16", "any", ANY), ("bf16", "a16", ALIGNED))
    for function, arguments, grid in OPERATIONS if function in tiles
]
