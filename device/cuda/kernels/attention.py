"""Attention over packed documents, exact and fused, and its gradient without atomics.

A query i of a document sees the keys from max(start[i], i - window + 1) to i, so always itself. The document of a position is
given by start (its first row) and end (one past its last row); documents follow one another, so the first key that a query
sees never decreases with i. That is what lets a block of queries know from two numbers which blocks of keys it
must visit (from the first key of its first row), and which of these need no mask (from the first key of its last row).

Query heads come in groups that share a key head. Operands are [rows, heads*headdim] with a stride; lse and delta are
[rows, heads], dense.

A head of 80 or 96 columns is worked on as 64 and 16 or 64 and 32, because Triton's tiles are powers of two, and one of
512 as two times 256. Where PADDED, headdim may be anything up to HEAD_A, and what is beyond counts as zero.

Where CAPPED, cap*tanh(score/cap) takes the place of a scaled score. What the kernels keep of it is the tanh: p = exp(cap*tanh - lse), and
the score's gradient has one more factor, 1 - tanh^2. Kernels without CAPPED do not read cap.

Sources: Dao et al., "FlashAttention" (2022) and "FlashAttention-2" (2023); Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018). Soft caps: Gemma Team, "Gemma 2" (2024). Sinks: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025).
"""

import triton
import triton.language as tl

from registry import BF16_OR_F32, Kernel

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _tile(base, first, stride, rows, headdim, column: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
          CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr):
    """The tile [ROWS, COLS] at row first and a column of one head; zeros beyond rows and headdim where these are checked."""
    r = tl.arange(0, ROWS)[:, None]
    c = column + tl.arange(0, COLS)[None, :]
    at = base + tl.cast(first, tl.int64) * stride + r * stride + c
    if CHECK_ROWS and CHECK_COLS:
        tile = tl.load(at, mask=(r < rows - first) & (c < headdim), other=0.0)
    elif CHECK_ROWS:
        tile = tl.load(at, mask=r < rows - first, other=0.0)
    elif CHECK_COLS:
        tile = tl.load(at, mask=c < headdim, other=0.0)
    else:
        tile = tl.load(at)
    return tile


@triton.jit
def _store(base, first, stride, rows, headdim, value, column: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
           CHECK_COLS: tl.constexpr):
    """Writes a tile as _tile reads it."""
    r = tl.arange(0, ROWS)[:, None]
    c = column + tl.arange(0, COLS)[None, :]
    at = base + tl.cast(first, tl.int64) * stride + r * stride + c
    if CHECK_COLS:
        tl.store(at, value.to(base.dtype.element_ty), mask=(r < rows - first) & (c < headdim))
    else:
        tl.store(at, value.to(base.dtype.element_ty), mask=r < rows - first)


@triton.jit
def _key_blocks(start, first, last, reach, BLOCK_K: tl.constexpr):
    """The blocks of keys that the queries first..last see: [lo, hi), and of these [whole_lo, whole_hi) need no mask."""
    lower = tl.maximum(tl.load(start + first), first - reach + 1)
    upper = tl.maximum(tl.load(start + last), last - reach + 1)
    lo = lower // BLOCK_K
    hi = last // BLOCK_K + 1
    whole_lo = (upper + BLOCK_K - 1) // BLOCK_K
    whole_hi = tl.maximum((first + 1) // BLOCK_K, whole_lo)
    return lo, hi, whole_lo, whole_hi


@triton.jit
def _queries(heads, rows, BLOCK_Q: tl.constexpr):
    """A program's head, and the first row of its block of queries.

    The heads of a block follow one another, so that programs which run at the same time share keys in the L2 cache and
    are about as long. Blocks at the end see most keys, so they go first.
    """
    program = tl.program_id(0)
    return program % heads, (tl.cdiv(rows, BLOCK_Q) - 1 - program // heads) * BLOCK_Q


@triton.jit
def _tanh(twice):
    """tanh(x) of twice = 2*x*log2(e), off by about 2^-22 where a GPU's ex2 is off by two units in the last place. A NaN stays one."""
    e = tl.exp2(tl.minimum(twice, 64.0, propagate_nan=tl.PropagateNan.ALL))
    return (e - 1.0) / (e + 1.0)


@triton.jit
def _forward_keys(acc_a, acc_b, most, total, q_a, q_b, k, v, first, query, lower, rows, headdim, sk, sv, log2_scale,
                  to_tanh, MASKED: tl.constexpr, CAPPED: tl.constexpr, HEAD_A: tl.constexpr, HEAD_B: tl.constexpr, PADDED: tl.constexpr,
                  BLOCK_K: tl.constexpr, edge=True):
    """Takes in one block of keys, and where MASKED masks it if it is at an edge. most is in units of log2."""
    k_a = _tile(k, first, sk, rows, headdim, 0, BLOCK_K, HEAD_A, MASKED, PADDED)
    score = tl.dot(q_a, tl.trans(k_a), input_precision="ieee")
    if HEAD_B > 0:
        k_b = _tile(k, first, sk, rows, headdim, HEAD_A, BLOCK_K, HEAD_B, MASKED, PADDED)
        score = tl.dot(q_b, tl.trans(k_b), score, input_precision="ieee")
    if CAPPED:
        score = _tanh(score * to_tanh)
    if MASKED:
        if edge:
            key = first + tl.arange(0, BLOCK_K)
            score = tl.where((key[None, :] >= lower[:, None]) & (key[None, :] <= query[:, None]), score, float("-inf"))
    new = tl.maximum(most, tl.max(score, 1) * log2_scale)
    p = tl.exp2(score * log2_scale - new[:, None])
    fade = tl.exp2(most - new)
    total = total * fade + tl.sum(p, 1)
    p = p.to(v.dtype.element_ty)
    v_a = _tile(v, first, sv, rows, headdim, 0, BLOCK_K, HEAD_A, MASKED, PADDED)
    acc_a = tl.dot(p, v_a, acc_a * fade[:, None], input_precision="ieee")
    if HEAD_B > 0:
        v_b = _tile(v, first, sv, rows, headdim, HEAD_A, BLOCK_K, HEAD_B, MASKED, PADDED)
        acc_b = tl.dot(p, v_b, acc_b * fade[:, None], input_precision="ieee")
    return acc_a, acc_b, new, total


@triton.jit
def attention(out, lse, q, k, v, sinks, start, rows, heads, kvheads, headdim, window, so, sq, sk, sv, scale, cap,
              CAPPED: tl.constexpr, HEAD_A: tl.constexpr, HEAD_B: tl.constexpr, PADDED: tl.constexpr, BLOCK_Q: tl.constexpr,
              BLOCK_K: tl.constexpr, ONE_LOOP: tl.constexpr):
    """out and lse of a block of queries of one head. Programs: heads*ceil(rows/BLOCK_Q). scale > 0.

    sinks may be null; else it has a logit for each head that the sum of its softmaxes has besides the keys.

    ONE_LOOP visits all blocks of keys in turn, and masks those that need it. Else two loops do, of which the first has
    no masks.
    """
    head, first = _queries(heads, rows, BLOCK_Q)
    q += head * headdim
    k += head // (heads // kvheads) * headdim
    v += head // (heads // kvheads) * headdim
    out += head * headdim
    log2_scale = (cap if CAPPED else scale) * LOG2E
    to_tanh = 2 * LOG2E * scale / cap if CAPPED else 0.0
    reach = tl.where(window > 0, tl.minimum(window, rows), rows)

    lo, hi, whole_lo, whole_hi = _key_blocks(start, first, tl.minimum(first + BLOCK_Q, rows) - 1, reach, BLOCK_K)

    q_a = _tile(q, first, sq, rows, headdim, 0, BLOCK_Q, HEAD_A, True, PADDED)
    acc_a = tl.zeros([BLOCK_Q, HEAD_A], tl.float32)
    q_b = q_a
    acc_b = acc_a
    if HEAD_B > 0:
        q_b = _tile(q, first, sq, rows, headdim, HEAD_A, BLOCK_Q, HEAD_B, True, PADDED)
        acc_b = tl.zeros([BLOCK_Q, HEAD_B], tl.float32)
    # Finite, so that a row whose first block is all masked computes exp2(-inf) = 0 and not exp2(-inf - -inf).
    most = tl.full([BLOCK_Q], -3.0e38, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)

    if not ONE_LOOP:
        for block in range(whole_lo, whole_hi):
            acc_a, acc_b, most, total = _forward_keys(
                acc_a, acc_b, most, total, q_a, q_b, k, v, block * BLOCK_K, None, None, rows, headdim, sk, sv,
                log2_scale, to_tanh, False, CAPPED, HEAD_A, HEAD_B, PADDED, BLOCK_K)
    # Rows beyond the last repeat it: they have something to see, and are not written.
    query = tl.minimum(first + tl.arange(0, BLOCK_Q), rows - 1)
    lower = tl.maximum(tl.load(start + query), query - reach + 1)
    if ONE_LOOP:
        for block in range(lo, hi):
            edge = (block < whole_lo) | (block >= whole_hi)
            acc_a, acc_b, most, total = _forward_keys(
                acc_a, acc_b, most, total, q_a, q_b, k, v, block * BLOCK_K, query, lower, rows, headdim, sk, sv,
                log2_scale, to_tanh, True, CAPPED, HEAD_A, HEAD_B, PADDED, BLOCK_K, edge)
    else:
        # The blocks on both sides of the whole ones.
        before = whole_lo - lo
        for i in range(0, before + hi - whole_hi):
            block = tl.where(i < before, lo + i, whole_hi - before + i)
            acc_a, acc_b, most, total = _forward_keys(
                acc_a, acc_b, most, total, q_a, q_b, k, v, block * BLOCK_K, query, lower, rows, headdim, sk, sv,
                log2_scale, to_tanh, True, CAPPED, HEAD_A, HEAD_B, PADDED, BLOCK_K)

    sink = tl.load(sinks + head, mask=sinks.to(tl.int64) != 0, other=float("-inf")).to(tl.float32) * LOG2E
    over = total + tl.exp2(sink - most)  # infinite if the sink is that far above all scores: then out is zero
    _store(out, first, so, rows, headdim, acc_a / over[:, None], 0, BLOCK_Q, HEAD_A, PADDED)
    if HEAD_B > 0:
        _store(out, first, so, rows, headdim, acc_b / over[:, None], HEAD_A, BLOCK_Q, HEAD_B, PADDED)
    new = tl.maximum(most, sink)
    total = total * tl.exp2(most - new) + tl.exp2(sink - new)
    row = first + tl.arange(0, BLOCK_Q)
    tl.store(lse + row.to(tl.int64) * heads + head, (new + tl.log2(total)) * LN2, mask=row < rows)


@triton.jit
def attention_delta(delta, out, dout, rows, heads, headdim, so, sdo, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """delta = row sums of out*dout of one head. Programs: ceil(rows/BLOCK_ROWS), heads."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    head = tl.program_id(1)
    o = out + row.to(tl.int64)[:, None] * so + head * headdim
    do = dout + row.to(tl.int64)[:, None] * sdo + head * headdim
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    for first in range(0, headdim, BLOCK_COLS):
        c = first + tl.arange(0, BLOCK_COLS)[None, :]
        inside = (row[:, None] < rows) & (c < headdim)
        x, y = tl.load(o + c, mask=inside, other=0.0), tl.load(do + c, mask=inside, other=0.0)
        total += tl.sum(x.to(tl.float32) * y.to(tl.float32), 1)
    tl.store(delta + row.to(tl.int64) * heads + head, total, mask=row < rows)


@triton.jit
def sink_grad(part, sinks, lse, delta, rows, heads, slices, BLOCK_ROWS: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    """part[s] = - sum over slice s of the rows of exp(sinks - lse)*delta, which fold adds up. Programs: ceil(heads/BLOCK_HEADS), slices."""
    head = tl.program_id(0) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[None, :]
    s = tl.program_id(1)
    size = tl.cdiv(tl.cdiv(rows, slices), BLOCK_ROWS) * BLOCK_ROWS
    stop = tl.minimum((s + 1) * size, rows)
    sink = tl.load(sinks + head, mask=head < heads, other=0.0).to(tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_HEADS], tl.float32)
    for first in range(s * size, stop, BLOCK_ROWS):
        row = first + tl.arange(0, BLOCK_ROWS)[:, None]
        at = row.to(tl.int64) * heads + head
        inside = (row < stop) & (head < heads)
        p = tl.exp(sink - tl.load(lse + at, mask=inside, other=float("inf")))
        acc -= p * tl.load(delta + at, mask=inside, other=0.0)
    tl.store(part + s * heads + head, tl.sum(acc, 0, keep_dims=True), mask=head < heads)


@triton.jit
def _step(i, per_head, head, before, lo, after):
    """The query head and the block of queries of step i. Heads go from head on, each has before blocks from lo, the rest from after."""
    n = i % per_head
    return head + i // per_head, tl.where(n < before, lo + n, after + n - before)


@triton.jit
def _statistics(lse, delta, head, block, rows, heads, BLOCK_Q: tl.constexpr, THREADS: tl.constexpr):
    """lse of a block of queries, then delta, again and again until each thread has one. They are fetched a step ahead.

    Of fewer elements than threads the compiler makes one load for each place in the product where a thread needs one.
    """
    COUNT: tl.constexpr = THREADS if THREADS > 2 * BLOCK_Q else 2 * BLOCK_Q
    i = tl.arange(0, COUNT)
    row = block * BLOCK_Q + i % BLOCK_Q
    at = row.to(tl.int64) * heads + head
    return tl.load(tl.where(i // BLOCK_Q % 2 == 0, lse + at, delta + at), mask=row < rows, other=0.0)


@triton.jit
def _grad_keys(dk_a, dk_b, dv_a, dv_b, k_a, k_b, v_a, v_b, q, dout, statistics, key, stop, first, rows, headdim, sdo, sq,
               log2_scale, minus_inverse, to_tanh, MASKED: tl.constexpr, CAPPED: tl.constexpr, HEAD_A: tl.constexpr,
               HEAD_B: tl.constexpr, PADDED: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Adds what one block of queries of one head gives to dk and dv. Scores are transposed: keys by queries.

    The products begin at -lse/scale and -delta, so that they end as log p and dp - delta, and no thread keeps a row of either. Where
    CAPPED, the scores begin at zero.
    """
    query = first + tl.arange(0, BLOCK_Q)
    n = tl.arange(0, BLOCK_Q)
    log_sum, shift = tl.gather(statistics, n, 0), tl.gather(statistics, BLOCK_Q + n, 0)
    SHAPE: tl.constexpr = (k_a.shape[0], BLOCK_Q)
    q_a = _tile(q, first, sq, rows, headdim, 0, BLOCK_Q, HEAD_A, MASKED, PADDED)
    if CAPPED:
        score = tl.dot(k_a, tl.trans(q_a), input_precision="ieee")
    else:
        score = tl.dot(k_a, tl.trans(q_a), tl.broadcast_to((log_sum * minus_inverse)[None, :], SHAPE), input_precision="ieee")
    if HEAD_B > 0:
        q_b = _tile(q, first, sq, rows, headdim, HEAD_A, BLOCK_Q, HEAD_B, MASKED, PADDED)
        score = tl.dot(k_b, tl.trans(q_b), score, input_precision="ieee")
    if CAPPED:
        score = _tanh(score * to_tanh)
        p = tl.exp2(score * log2_scale - (log_sum * LOG2E)[None, :])
    else:
        p = tl.exp2(score * log2_scale)
    if MASKED:
        # key <= query < stop as one comparison: of two, ptxas keeps the first one's bits through the products.
        p = tl.where((query[None, :] - key[:, None]).to(tl.uint32) < (stop - key).to(tl.uint32)[:, None], p, 0.0)
    do_a = _tile(dout, first, sdo, rows, headdim, 0, BLOCK_Q, HEAD_A, MASKED, PADDED)
    dp = tl.dot(v_a, tl.trans(do_a), tl.broadcast_to(-shift[None, :], SHAPE), input_precision="ieee")
    dv_a = tl.dot(p.to(q_a.dtype), do_a, dv_a, input_precision="ieee")
    if HEAD_B > 0:
        do_b = _tile(dout, first, sdo, rows, headdim, HEAD_A, BLOCK_Q, HEAD_B, MASKED, PADDED)
        dp = tl.dot(v_b, tl.trans(do_b), dp, input_precision="ieee")
        dv_b = tl.dot(p.to(q_a.dtype), do_b, dv_b, input_precision="ieee")
    if CAPPED:
        dp *= 1.0 - score * score
    ds = (p * dp).to(q_a.dtype)
    dk_a = tl.dot(ds, q_a, dk_a, input_precision="ieee")
    if HEAD_B > 0:
        dk_b = tl.dot(ds, q_b, dk_b, input_precision="ieee")
    return dk_a, dk_b, dv_a, dv_b


@triton.jit
def _store_keys(dk, dv, sdk, sdv, dk_a, dk_b, dv_a, dv_b, first, rows, headdim, scale, HEAD_A: tl.constexpr, HEAD_B: tl.constexpr,
                PADDED: tl.constexpr, BLOCK_K: tl.constexpr):
    """Writes a block of dk and dv of one head."""
    _store(dk, first, sdk, rows, headdim, dk_a * scale, 0, BLOCK_K, HEAD_A, PADDED)
    _store(dv, first, sdv, rows, headdim, dv_a, 0, BLOCK_K, HEAD_A, PADDED)
    if HEAD_B > 0:
        _store(dk, first, sdk, rows, headdim, dk_b * scale, HEAD_A, BLOCK_K, HEAD_B, PADDED)
        _store(dv, first, sdv, rows, headdim, dv_b, HEAD_A, BLOCK_K, HEAD_B, PADDED)


@triton.jit
def _longest(end, rows, reach, rank, BLOCK: tl.constexpr, MOST: tl.constexpr):
    """Of up to MOST blocks of keys, the one with this rank by how many queries see its first key: most first, then as
    they lie."""
    block = tl.arange(0, MOST)
    first = block * BLOCK
    stop = tl.load(end + tl.minimum(first, rows - 1))
    n = tl.where(first < rows, tl.minimum(stop, first + reach) - first, -1)
    above = (n[None, :] > n[:, None]) | ((n[None, :] == n[:, None]) & (block[None, :] < block[:, None]))
    return tl.sum(tl.where(tl.sum(above.to(tl.int32), 1) == rank, block, 0), 0)


@triton.jit
def attention_dkdv(dk, dv, part, dout, q, k, v, lse, delta, end, rows, heads, kvheads, headdim, window, splits, sdk, sdv, sdo, sq, sk, sv,
                   scale, cap, CAPPED: tl.constexpr, HEAD_A: tl.constexpr, HEAD_B: tl.constexpr, PADDED: tl.constexpr,
                   BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, THREADS: tl.constexpr, RANKED: tl.constexpr):
    """dk and dv of a block of keys of one key head. Programs: kvheads*splits*ceil(rows/BLOCK_K).

    Heads and splits of a block follow one another. Up to RANKED blocks go by how many queries see them, most first, so
    that the last programs to begin are short; more go as they lie, which is the same in one document.

    One program adds up its share of the group's query heads and all queries, in this order, so bits do not depend on timing. If it is the
    only one, it writes dk and dv. Of several, each leaves its sums in part [splits, 2, rows, kvheads*headdim] for attention_fold.
    """
    reach = tl.where(window > 0, tl.minimum(window, rows), rows)
    kv = tl.program_id(0) % kvheads
    split = tl.program_id(0) // kvheads % splits
    block_k = tl.program_id(0) // kvheads // splits
    if RANKED > 0:
        if tl.cdiv(rows, BLOCK_K) <= RANKED:
            block_k = _longest(end, rows, reach, block_k, BLOCK_K, RANKED)
    first = block_k * BLOCK_K
    group = heads // kvheads
    head_lo = kv * group + group * split // splits
    share = kv * group + group * (split + 1) // splits - head_lo
    k += kv * headdim
    v += kv * headdim
    log2_scale = (cap if CAPPED else scale) * LOG2E
    to_tanh = 2 * LOG2E * scale / cap if CAPPED else 0.0

    # A key is seen by the queries from itself to stop; that never decreases with the key.
    last = tl.minimum(first + BLOCK_K, rows) - 1
    first_stop = tl.minimum(tl.load(end + first), first + reach)
    last_stop = tl.minimum(tl.load(end + last), last + reach)
    lo = first // BLOCK_Q
    hi = (last_stop + BLOCK_Q - 1) // BLOCK_Q
    whole_lo = (last + BLOCK_Q - 1) // BLOCK_Q
    whole_hi = tl.maximum(first_stop // BLOCK_Q, whole_lo)

    k_a = _tile(k, first, sk, rows, headdim, 0, BLOCK_K, HEAD_A, True, PADDED)
    v_a = _tile(v, first, sv, rows, headdim, 0, BLOCK_K, HEAD_A, True, PADDED)
    dk_a = tl.zeros([BLOCK_K, HEAD_A], tl.float32)
    dv_a = tl.zeros([BLOCK_K, HEAD_A], tl.float32)
    k_b, v_b, dk_b, dv_b = k_a, v_a, dk_a, dv_a
    if HEAD_B > 0:
        k_b = _tile(k, first, sk, rows, headdim, HEAD_A, BLOCK_K, HEAD_B, True, PADDED)
        v_b = _tile(v, first, sv, rows, headdim, HEAD_A, BLOCK_K, HEAD_B, True, PADDED)
        dk_b = tl.zeros([BLOCK_K, HEAD_B], tl.float32)
        dv_b = tl.zeros([BLOCK_K, HEAD_B], tl.float32)

    # The blocks on both sides of the whole ones, then these, each for one query head after the other. A loop over heads around
    # one over blocks would be plainer, but what the compiler moves out of both takes more registers than there are.
    before = whole_lo - lo
    key = tl.minimum(first + tl.arange(0, BLOCK_K), last)
    stop = tl.minimum(tl.load(end + key), key + reach)
    masked = before + hi - whole_hi
    steps = share * masked
    per_head = tl.maximum(masked, 1)
    head, block = _step(0, per_head, head_lo, before, lo, whole_hi)
    statistics = _statistics(lse, delta, head, block, rows, heads, BLOCK_Q, THREADS)
    for i in range(0, steps):
        next_head, next_block = _step(tl.minimum(i + 1, steps - 1), per_head, head_lo, before, lo, whole_hi)
        ahead = _statistics(lse, delta, next_head, next_block, rows, heads, BLOCK_Q, THREADS)
        dk_a, dk_b, dv_a, dv_b = _grad_keys(dk_a, dk_b, dv_a, dv_b, k_a, k_b, v_a, v_b, q + head * headdim, dout + head * headdim,
                                            statistics, key, stop, block * BLOCK_Q, rows, headdim,
                                            sdo, sq, log2_scale, -1.0 / scale, to_tanh, True, CAPPED, HEAD_A, HEAD_B, PADDED, BLOCK_Q)
        statistics, head, block = ahead, next_head, next_block
    whole = whole_hi - whole_lo
    steps = share * whole
    per_head = tl.maximum(whole, 1)
    head, block = _step(0, per_head, head_lo, whole, whole_lo, 0)
    statistics = _statistics(lse, delta, head, block, rows, heads, BLOCK_Q, THREADS)
    for i in range(0, steps):
        next_head, next_block = _step(tl.minimum(i + 1, steps - 1), per_head, head_lo, whole, whole_lo, 0)
        ahead = _statistics(lse, delta, next_head, next_block, rows, heads, BLOCK_Q, THREADS)
        dk_a, dk_b, dv_a, dv_b = _grad_keys(dk_a, dk_b, dv_a, dv_b, k_a, k_b, v_a, v_b, q + head * headdim, dout + head * headdim,
                                            statistics, None, None, block * BLOCK_Q, rows, headdim,
                                            sdo, sq, log2_scale, -1.0 / scale, to_tanh, False, CAPPED, HEAD_A, HEAD_B, PADDED, BLOCK_Q)
        statistics, head, block = ahead, next_head, next_block

    if splits == 1:
        _store_keys(dk + kv * headdim, dv + kv * headdim, sdk, sdv, dk_a, dk_b, dv_a, dv_b, first, rows, headdim, scale, HEAD_A, HEAD_B,
                    PADDED, BLOCK_K)
    else:
        cols = kvheads * headdim
        part += split.to(tl.int64) * 2 * rows * cols + kv * headdim
        _store_keys(part, part + rows.to(tl.int64) * cols, cols, cols, dk_a, dk_b, dv_a, dv_b, first, rows, headdim, scale, HEAD_A, HEAD_B,
                    PADDED, BLOCK_K)


@triton.jit
def attention_fold(dk, dv, part, rows, cols, splits, sdk, sdv, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """dk and dv: the sums that attention_dkdv left in part, added in the order of splits. Programs: ceil(rows/BLOCK_ROWS),
    ceil(cols/BLOCK_COLS), 2. Reads part once."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (col < cols)
    size = rows.to(tl.int64) * cols
    part += tl.program_id(2) * size + row * cols + col
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for split in range(0, splits):
        acc += tl.load(part + 2 * split * size, mask=inside, other=0.0)
    if tl.program_id(2) == 0:
        tl.store(dk + row * sdk + col, acc.to(dk.dtype.element_ty), mask=inside)
    else:
        tl.store(dv + row * sdv + col, acc.to(dv.dtype.element_ty), mask=inside)


@triton.jit
def _grad_queries(dq_a, dq_b, q_a, q_b, do_a, do_b, k, v, log2_sum, shift, first, query, lower, rows, headdim, sk, sv, log2_scale,
                  to_tanh, MASKED: tl.constexpr, CAPPED: tl.constexpr, HEAD_A: tl.constexpr, HEAD_B: tl.constexpr, PADDED: tl.constexpr,
                  BLOCK_K: tl.constexpr):
    """Adds what one block of keys gives to dq."""
    k_a = _tile(k, first, sk, rows, headdim, 0, BLOCK_K, HEAD_A, MASKED, PADDED)
    v_a = _tile(v, first, sv, rows, headdim, 0, BLOCK_K, HEAD_A, MASKED, PADDED)
    score = tl.dot(q_a, tl.trans(k_a), input_precision="ieee")
    dp = tl.dot(do_a, tl.trans(v_a), input_precision="ieee")
    if HEAD_B > 0:
        k_b = _tile(k, first, sk, rows, headdim, HEAD_A, BLOCK_K, HEAD_B, MASKED, PADDED)
        v_b = _tile(v, first, sv, rows, headdim, HEAD_A, BLOCK_K, HEAD_B, MASKED, PADDED)
        score = tl.dot(q_b, tl.trans(k_b), score, input_precision="ieee")
        dp = tl.dot(do_b, tl.trans(v_b), dp, input_precision="ieee")
    if CAPPED:
        score = _tanh(score * to_tanh)
    p = tl.exp2(score * log2_scale - log2_sum[:, None])
    if MASKED:
        key = first + tl.arange(0, BLOCK_K)
        p = tl.where((key[None, :] >= lower[:, None]) & (key[None, :] <= query[:, None]), p, 0.0)
    dp -= shift[:, None]
    if CAPPED:
        dp *= 1.0 - score * score
    ds = (p * dp).to(k_a.dtype)
    dq_a = tl.dot(ds, k_a, dq_a, input_precision="ieee")
    if HEAD_B > 0:
        dq_b = tl.dot(ds, k_b, dq_b, input_precision="ieee")
    return dq_a, dq_b


@triton.jit
def attention_dq(dq, dout, q, k, v, lse, delta, start, rows, heads, kvheads, headdim, window, sdq, sdo, sq, sk, sv, scale, cap,
                 CAPPED: tl.constexpr, HEAD_A: tl.constexpr, HEAD_B: tl.constexpr, PADDED: tl.constexpr, BLOCK_Q: tl.constexpr,
                 BLOCK_K: tl.constexpr):
    """dq of a block of queries of one head. Programs: heads*ceil(rows/BLOCK_Q)."""
    head, first = _queries(heads, rows, BLOCK_Q)
    q += head * headdim
    dq += head * headdim
    dout += head * headdim
    k += head // (heads // kvheads) * headdim
    v += head // (heads // kvheads) * headdim
    log2_scale = (cap if CAPPED else scale) * LOG2E
    to_tanh = 2 * LOG2E * scale / cap if CAPPED else 0.0
    reach = tl.where(window > 0, tl.minimum(window, rows), rows)

    query = tl.minimum(first + tl.arange(0, BLOCK_Q), rows - 1)
    at = query.to(tl.int64) * heads + head
    log2_sum = tl.load(lse + at) * LOG2E
    shift = tl.load(delta + at)
    lo, hi, whole_lo, whole_hi = _key_blocks(start, first, tl.minimum(first + BLOCK_Q, rows) - 1, reach, BLOCK_K)

    q_a = _tile(q, first, sq, rows, headdim, 0, BLOCK_Q, HEAD_A, True, PADDED)
    do_a = _tile(dout, first, sdo, rows, headdim, 0, BLOCK_Q, HEAD_A, True, PADDED)
    dq_a = tl.zeros([BLOCK_Q, HEAD_A], tl.float32)
    q_b, do_b, dq_b = q_a, do_a, dq_a
    if HEAD_B > 0:
        q_b = _tile(q, first, sq, rows, headdim, HEAD_A, BLOCK_Q, HEAD_B, True, PADDED)
        do_b = _tile(dout, first, sdo, rows, headdim, HEAD_A, BLOCK_Q, HEAD_B, True, PADDED)
        dq_b = tl.zeros([BLOCK_Q, HEAD_B], tl.float32)

    for block in range(whole_lo, whole_hi):
        dq_a, dq_b = _grad_queries(dq_a, dq_b, q_a, q_b, do_a, do_b, k, v, log2_sum, shift, block * BLOCK_K, None, None, rows, headdim,
                                   sk, sv, log2_scale, to_tanh, False, CAPPED, HEAD_A, HEAD_B, PADDED, BLOCK_K)
    query = tl.minimum(first + tl.arange(0, BLOCK_Q), rows - 1)
    lower = tl.maximum(tl.load(start + query), query - reach + 1)
    before = whole_lo - lo
    for i in range(0, before + hi - whole_hi):
        block = tl.where(i < before, lo + i, whole_hi - before + i)
        dq_a, dq_b = _grad_queries(dq_a, dq_b, q_a, q_b, do_a, do_b, k, v, log2_sum, shift, block * BLOCK_K, query, lower, rows, headdim,
                                   sk, sv, log2_scale, to_tanh, True, CAPPED, HEAD_A, HEAD_B, PADDED, BLOCK_K)

    _store(dq, first, sdq, rows, headdim, dq_a * scale, 0, BLOCK_Q, HEAD_A, PADDED)
    if HEAD_B > 0:
        _store(dq, first, sdq, rows, headdim, dq_b * scale, HEAD_A, BLOCK_Q, HEAD_B, PADDED)


# Tiles of attention, attention_dkdv and attention_dq: (BLOCK_Q, BLOCK_K, warps, stages, instructions of the hot loop at
# most, and where it is not 0, of them to local memory). They are as large as a thread's registers and, on sm80, 99 KiB
# of shared memory allow. On sm90a tl.dot becomes wgmma, whose tiles have 64 rows for every four warps. One of
# attention's ends with the registers that a thread is held to, so that two programs share a multiprocessor: it has one
# loop, which spills less than two do.
HEADS = {  # (HEAD_A, HEAD_B), tiles on sm80, tiles on sm90a
    64: ((64, 0), ((128, 64, 4, 3, 670), (64, 64, 4, 2, 550), (128, 64, 8, 2, 345)),
         ((128, 64, 4, 3, 555), (64, 64, 4, 2, 445), (128, 64, 8, 2, 320))),
    80: ((64, 16), ((128, 64, 8, 2, 390), (32, 64, 4, 2, 355), (128, 64, 8, 2, 395)),
         ((128, 64, 8, 3, 400), (64, 64, 4, 2, 520), (128, 64, 8, 2, 380))),
    96: ((64, 32), ((128, 64, 8, 2, 430), (32, 64, 4, 2, 385), (128, 64, 8, 2, 440)),
         ((128, 64, 8, 3, 420), (64, 64, 4, 2, 535), (128, 64, 8, 2, 405))),
    128: ((128, 0), ((128, 64, 8, 2, 510), (64, 64, 8, 2, 470), (128, 32, 8, 2, 285)),
          ((128, 64, 8, 2, 715, 16, 128), (64, 128, 8, 3, 580), (128, 64, 8, 3, 435))),
    256: ((256, 0), ((64, 32, 8, 2, 580), (32, 32, 8, 2, 375), (64, 16, 4, 2, 475)),
          ((128, 32, 8, 2, 520), (32, 64, 8, 2, 955, 20), (128, 32, 8, 2, 545))),
    512: ((256, 256), ((32, 16, 4, 2, 540), (16, 16, 4, 2, 395), (16, 16, 4, 2, 280)),
          ((64, 16, 8, 2, 925), (32, 32, 8, 2, 550), (32, 32, 8, 2, 455))),
}
# The same with a soft cap, for fewer sizes; other heads take the kernels for any head.
CAPPED_HEADS = {
    64: ((64, 0), ((128, 64, 4, 3, 1340), (64, 64, 4, 2, 940), (128, 64, 8, 2, 740)),
         ((128, 64, 4, 3, 1215), (64, 64, 4, 2, 825), (128, 64, 8, 2, 715))),
    128: ((128, 0), ((128, 64, 8, 2, 870), (64, 64, 8, 2, 665), (128, 32, 8, 2, 490)),
          ((128, 64, 8, 3, 755), (64, 128, 8, 2, 985, 18), (128, 64, 8, 2, 835))),
    256: ((256, 0), ((64, 32, 8, 2, 805), (32, 32, 8, 2, 470), (64, 16, 4, 2, 675)),
          ((128, 32, 8, 2, 685), (16, 64, 8, 2, 950, 3), (128, 32, 8, 2, 745))),
}
# Of the kernels for any head up to a size and any alignment, on all targets.
ANY = {
    "bf16": {16: ((32, 32, 4, 2),) * 3, 64: ((32, 32, 4, 2),) * 3, 128: ((32, 32, 4, 2),) * 3,
             256: ((16, 16, 4, 2),) * 3, 512: ((16, 16, 4, 2), (16, 16, 8, 2), (16, 16, 8, 2))},
    "f32": {16: ((32, 32, 4, 2),) * 3, 64: ((32, 16, 4, 2),) * 3, 128: ((32, 16, 8, 2),) * 3, 256: ((16, 16, 8, 2),) * 3},
}
CAPPED_ANY = {
    "bf16": {128: ((32, 32, 4, 2), (32, 32, 8, 2), (32, 32, 8, 2)), 256: ANY["bf16"][256]},
    "f32": {128: ANY["f32"][128], 256: ANY["f32"][256]},
}
# The bytes that a thread may spill, next to thousands of products: dk and dv of wide heads fill the registers.
SPILL = {"sm80": 128, "sm90a": 256}
# Up to how many blocks of keys go by their length on sm90a, in kernels for aligned operands. Each program ranks all.
RANKED = 128

# Inside of a tile of up to 128 rows, offsets have 32 bits.
LONGEST_STRIDE = 2 ** 24

SIZES = "rows:i32 heads:i32 kvheads:i32 headdim:i32 window:i32"
FORWARD = f"out:*A lse:*fp32 q:*A k:*A v:*A sinks:*A start:*i32 {SIZES} so:i32 sq:i32 sk:i32 sv:i32 scale:fp32 cap:fp32"
DKDV = (f"dk:*A dv:*A part:*fp32 dout:*A q:*A k:*A v:*A lse:*fp32 delta:*fp32 end:*i32 {SIZES} splits:i32 "
        "sdk:i32 sdv:i32 sdo:i32 sq:i32 sk:i32 sv:i32 scale:fp32 cap:fp32")
DQ = f"dq:*A dout:*A q:*A k:*A v:*A lse:*fp32 delta:*fp32 start:*i32 {SIZES} sdq:i32 sdo:i32 sq:i32 sk:i32 sv:i32 scale:fp32 cap:fp32"


def _tiled(name, t, pieces, padded, capped, sm80, sm90a):
    """The three kernels of one type and head."""
    queries, keys = "heads*ceil(rows/BLOCK_Q)", "kvheads*splits*ceil(rows/BLOCK_K)"
    kernels = (attention, FORWARD, queries), (attention_dkdv, DKDV, keys), (attention_dq, DQ, queries)
    for (function, arguments, grid), tile, tile90 in zip(kernels, sm80, sm90a):
        def at(tile, ranked=0):
            block_q, block_k, warps, stages, most, local, held = (*tile, 0, 0, 0)[:7]
            own = {attention: dict(ONE_LOOP=int(held > 0)), attention_dq: {},
                   attention_dkdv: dict(THREADS=32 * warps, RANKED=ranked)}
            loads = int(function is attention_dkdv)  # the statistics
            return dict(constants=dict(CAPPED=int(capped), HEAD_A=pieces[0], HEAD_B=pieces[1], PADDED=int(padded),
                                       BLOCK_Q=block_q, BLOCK_K=block_k, **own[function]),
                        warps=warps, stages=stages, registers=held or 255, held=held > 0,
                        loop=(most, loads, local) if most else ())

        typed = [a.split(":") for a in arguments.split()]
        strides = [a for a, t in typed if a[0] == "s" and t == "i32" and a != "splits"]
        aligned = [a for a, t in typed if t == "*A" and a != "sinks" or a == "part"] + strides + ["headdim"]
        yield Kernel(name.replace("OP", function.__name__), function, arguments.replace("*A", "*" + t), (grid,),
                     **at(tile), aligned="" if padded else " ".join(aligned),
                     most={"headdim": sum(pieces), **dict.fromkeys(strides, LONGEST_STRIDE)}, spill=SPILL["sm80"],
                     on={"sm90a": {**at(tile90, 0 if padded else RANKED), "spill": SPILL["sm90a"]}})


KERNELS = [
    kernel for a, t in BF16_OR_F32 for head, tiles in ANY[a].items()
    for kernel in _tiled(f"OP.{a}.h{head}.any", t, (head, 0), True, False, tiles, tiles)
] + [
    kernel for a, t in BF16_OR_F32 for head, tiles in CAPPED_ANY[a].items()
    for kernel in _tiled(f"OP.{a}.cap.h{head}.any", t, (head, 0), True, True, tiles, tiles)
] + [
    kernel for head, (pieces, sm80, sm90a) in HEADS.items()
    for kernel in _tiled(f"OP.bf16.h{head}.a16", "bf16", pieces, False, False, sm80, sm90a)
] + [
    kernel for head, (pieces, sm80, sm90a) in CAPPED_HEADS.items()
    for kernel in _tiled(f"OP.bf16.cap.h{head}.a16", "bf16", pieces, False, True, sm80, sm90a)
] + [
    Kernel(f"attention_delta.{a}.{variant}", attention_delta,
           f"delta:*fp32 out:*{t} dout:*{t} rows:i32 heads:i32 headdim:i32 so:i32 sdo:i32", ("ceil(rows/BLOCK_ROWS)", "heads"),
           dict(BLOCK_ROWS=32, BLOCK_COLS=64), aligned=aligned, registers=192)
    for a, t in BF16_OR_F32 for variant, aligned in (("any", ""), ("a16", "out dout headdim so sdo"))
] + [
    Kernel(f"sink_grad.{a}", sink_grad, f"part:*fp32 sinks:*{t} lse:*fp32 delta:*fp32 rows:i32 heads:i32 slices:i32",
           ("ceil(heads/BLOCK_HEADS)", "slices"), dict(BLOCK_ROWS=64, BLOCK_HEADS=16)) for a, t in BF16_OR_F32
] + [
    Kernel(f"attention_fold.{a}.{variant}", attention_fold, f"dk:*{t} dv:*{t} part:*fp32 rows:i32 cols:i32 splits:i32 sdk:i32 sdv:i32",
           ("ceil(rows/BLOCK_ROWS)", "ceil(cols/BLOCK_COLS)", "TWO"), dict(BLOCK_ROWS=4, BLOCK_COLS=256), numbers=dict(TWO=2),
           aligned=aligned)
    for a, t in BF16_OR_F32 for variant, aligned in (("any", ""), ("a16", "dk dv part cols sdk sdv"))
]
