"""attention_dkdv with two programs for a block of keys, one for dk and one for dv: a candidate for wide heads (candidates.py).

dk and dv of 64 keys by 256 columns fill all registers of 8 warps, so attention_dkdv of such heads has small tiles and spills. A program with one of
the two has room for the other tile of a product, and computes p again: 5 products in place of 4.
"""

import triton
import triton.language as tl

from attention import LOG2E, _longest, _statistics, _step, _store, _tile


@triton.jit
def _add(acc, k_t, v_t, q, dout, statistics, key, stop, first, rows, headdim, sdo, sq, log2_scale, minus_inverse, OF_KEYS: tl.constexpr,
         MASKED: tl.constexpr, HEAD: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Adds what one block of queries of one head gives to dk, or to dv, in the order of attention._grad_keys."""
    query = first + tl.arange(0, BLOCK_Q)
    n = tl.arange(0, BLOCK_Q)
    SHAPE: tl.constexpr = (k_t.shape[0], BLOCK_Q)
    log_sum = tl.gather(statistics, n, 0)
    q_t = _tile(q, first, sq, rows, headdim, 0, BLOCK_Q, HEAD, MASKED, False)
    score = tl.dot(k_t, tl.trans(q_t), tl.broadcast_to((log_sum * minus_inverse)[None, :], SHAPE), input_precision="ieee")
    p = tl.exp2(score * log2_scale)
    if MASKED:
        p = tl.where((query[None, :] - key[:, None]).to(tl.uint32) < (stop - key).to(tl.uint32)[:, None], p, 0.0)
    do_t = _tile(dout, first, sdo, rows, headdim, 0, BLOCK_Q, HEAD, MASKED, False)
    if not OF_KEYS:
        return tl.dot(p.to(q_t.dtype), do_t, acc, input_precision="ieee")
    shift = tl.gather(statistics, BLOCK_Q + n, 0)
    dp = tl.dot(v_t, tl.trans(do_t), tl.broadcast_to(-shift[None, :], SHAPE), input_precision="ieee")
    return tl.dot((p * dp).to(q_t.dtype), q_t, acc, input_precision="ieee")


@triton.jit
def _half(k, v, q, dout, lse, delta, end, first, reach, head_lo, share, rows, heads, headdim, sdo, sq, sk, sv, scale, OF_KEYS: tl.constexpr,
          HEAD: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, THREADS: tl.constexpr):
    """dk, without scale, or dv of a block of keys: attention_dkdv says which blocks of queries are whole."""
    last = tl.minimum(first + BLOCK_K, rows) - 1
    first_stop = tl.minimum(tl.load(end + first), first + reach)
    last_stop = tl.minimum(tl.load(end + last), last + reach)
    lo = first // BLOCK_Q
    hi = (last_stop + BLOCK_Q - 1) // BLOCK_Q
    whole_lo = (last + BLOCK_Q - 1) // BLOCK_Q
    whole_hi = tl.maximum(first_stop // BLOCK_Q, whole_lo)
    k_t = _tile(k, first, sk, rows, headdim, 0, BLOCK_K, HEAD, True, False)
    v_t = k_t
    if OF_KEYS:
        v_t = _tile(v, first, sv, rows, headdim, 0, BLOCK_K, HEAD, True, False)
    acc = tl.zeros([BLOCK_K, HEAD], tl.float32)
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
        acc = _add(acc, k_t, v_t, q + head * headdim, dout + head * headdim, statistics, key, stop, block * BLOCK_Q, rows, headdim, sdo, sq,
                   scale * LOG2E, -1.0 / scale, OF_KEYS, True, HEAD, BLOCK_Q)
        statistics, head, block = ahead, next_head, next_block
    whole = whole_hi - whole_lo
    steps = share * whole
    per_head = tl.maximum(whole, 1)
    head, block = _step(0, per_head, head_lo, whole, whole_lo, 0)
    statistics = _statistics(lse, delta, head, block, rows, heads, BLOCK_Q, THREADS)
    for i in range(0, steps):
        next_head, next_block = _step(tl.minimum(i + 1, steps - 1), per_head, head_lo, whole, whole_lo, 0)
        ahead = _statistics(lse, delta, next_head, next_block, rows, heads, BLOCK_Q, THREADS)
        acc = _add(acc, k_t, v_t, q + head * headdim, dout + head * headdim, statistics, None, None, block * BLOCK_Q, rows, headdim, sdo, sq,
                   scale * LOG2E, -1.0 / scale, OF_KEYS, False, HEAD, BLOCK_Q)
        statistics, head, block = ahead, next_head, next_block
    return acc


@triton.jit
def attention_dkdv_halves(dk, dv, part, dout, q, k, v, lse, delta, end, rows, heads, kvheads, headdim, window, splits, sdk, sdv, sdo, sq, sk, sv,
                          scale, cap, CAPPED: tl.constexpr, HEAD_A: tl.constexpr, HEAD_B: tl.constexpr, PADDED: tl.constexpr,
                          BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, THREADS: tl.constexpr, RANKED: tl.constexpr):
    """attention_dkdv for aligned heads of HEAD_A columns without a cap. Programs: 2*kvheads*splits*ceil(rows/BLOCK_K); the two of a block follow
    one another, so that they share its queries in the second cache."""
    tl.static_assert(HEAD_B == 0 and not PADDED and not CAPPED)
    program = tl.program_id(0) // 2
    reach = tl.where(window > 0, tl.minimum(window, rows), rows)
    kv = program % kvheads
    split = program // kvheads % splits
    block_k = program // kvheads // splits
    if RANKED > 0:
        if tl.cdiv(rows, BLOCK_K) <= RANKED:
            block_k = _longest(end, rows, reach, block_k, BLOCK_K, RANKED)
    first = block_k * BLOCK_K
    group = heads // kvheads
    head_lo = kv * group + group * split // splits
    share = kv * group + group * (split + 1) // splits - head_lo
    cols = kvheads * headdim
    part += split.to(tl.int64) * 2 * rows * cols + kv * headdim
    if tl.program_id(0) % 2 == 0:
        acc = _half(k + kv * headdim, v + kv * headdim, q, dout, lse, delta, end, first, reach, head_lo, share, rows, heads, headdim, sdo, sq, sk, sv,
                    scale, True, HEAD_A, BLOCK_Q, BLOCK_K, THREADS) * scale
        if splits == 1:
            _store(dk + kv * headdim, first, sdk, rows, headdim, acc, 0, BLOCK_K, HEAD_A, PADDED)
        else:
            _store(part, first, cols, rows, headdim, acc, 0, BLOCK_K, HEAD_A, PADDED)
    else:
        acc = _half(k + kv * headdim, v + kv * headdim, q, dout, lse, delta, end, first, reach, head_lo, share, rows, heads, headdim, sdo, sq, sk, sv,
                    scale, False, HEAD_A, BLOCK_Q, BLOCK_K, THREADS)
        if splits == 1:
            _store(dv + kv * headdim, first, sdv, rows, headdim, acc, 0, BLOCK_K, HEAD_A, PADDED)
        else:
            _store(part + rows.to(tl.int64) * cols, first, cols, rows, headdim, acc, 0, BLOCK_K, HEAD_A, PADDED)
