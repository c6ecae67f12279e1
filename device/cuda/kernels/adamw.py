"""AdamW, with moments in fp32 or in 8 bits, to the bits of every other device: IEEE operations in the contract's order, none fused.

Weights are fp32, or split: the high half is the nearest bf16 number, ties away from zero, the low half what is to be added to its
bits. bad counts new weights that are infinite or NaN. That is the only atomic addition of all kernels, of integers, and done only when there is
one to add.

Sources: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019); Dettmers et al., "8-bit Optimizers via Block-wise
Quantization" (2022). device.OptimizerOps says what is computed.
"""

import triton
import triton.language as tl

from registry import Kernel


@triton.jit
def _flush(x):
    """A denormal becomes +0."""
    return tl.where((x.to(tl.int32, bitcast=True) & 0x7F800000) == 0, 0.0, x)


@triton.jit
def _step(p, m, v, g, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps):
    """New weights and moments."""
    g = clip * g
    p = p * decay
    m = _flush(m + (g - m) * omb1)
    v = _flush(beta2 * v + (omb2 * g) * g)
    p = p - tl.div_rn(step * m, tl.div_rn(tl.sqrt_rn(v), sqrtbc2) + eps)
    return p, m, v


@triton.jit
def _load_weights(weights, low, at, inside, SPLIT: tl.constexpr):
    if SPLIT:
        high = tl.load(weights + at, mask=inside, other=0).to(tl.int32)
        bits = (high << 16) + tl.load(low + at, mask=inside, other=0).to(tl.int32)
        p = bits.to(tl.float32, bitcast=True)
    else:
        p = tl.load(weights + at, mask=inside, other=0.0)
    return p


@triton.jit
def _store_weights(weights, low, bad, at, inside, p, SPLIT: tl.constexpr):
    bits = p.to(tl.int32, bitcast=True)
    if SPLIT:
        nan = p != p
        tl.store(weights + at, tl.where(nan, 0x7FC0, (bits + 0x8000) >> 16).to(tl.int16), mask=inside)
        tl.store(low + at, tl.where(nan, 0, bits).to(tl.int16), mask=inside)
    else:
        tl.store(weights + at, p, mask=inside)
    not_finite = tl.sum((((bits & 0x7F800000) == 0x7F800000) & inside).to(tl.int32))
    if not_finite > 0:
        tl.atomic_add(bad, not_finite.to(tl.int64), sem="relaxed")


@triton.jit
def adamw(weights, low, m, v, grad, bad, n, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps, SPLIT: tl.constexpr,
          BLOCK: tl.constexpr):
    """One step. Programs: ceil(n/BLOCK). Moves 24 bytes and the gradient's for each parameter."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    p = _load_weights(weights, low, at, inside, SPLIT)
    m0 = tl.load(m + at, mask=inside, other=0.0)
    v0 = tl.load(v + at, mask=inside, other=0.0)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    p, m1, v1 = _step(p, m0, v0, g, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps)
    tl.store(m + at, m1, mask=inside)
    tl.store(v + at, v1, mask=inside)
    _store_weights(weights, low, bad, at, inside, p, SPLIT)


EDGES = tl.constexpr((1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1))
# The line that counts cells in each decade, where the lowest has one: cells to a unit, and what it is at zero.
SLOPES = tl.constexpr(tuple(2 ** d * 10 ** (6 - d) / 0.9 for d in range(7)))
BEGINS = tl.constexpr(tuple(2 ** d * (1 - 0.1 / 0.9) for d in range(7)))


@triton.jit
def _of(table, at):
    """The elements of a table of 256 at a block of places, through shared memory."""
    return tl.reshape(tl.gather(table, tl.reshape(at, [at.shape[0] * at.shape[1]]), 0), at.shape)


@triton.jit
def _encode(x, values, ZERO: tl.constexpr):
    """Codes of a block of moments in each row, and the rows' scales. values are what codes stand for, ZERO is the code of 0.

    The code of a magnitude is ZERO + k, or ZERO - k if the moment is negative. Magnitudes are in seven decades, each cut into twice
    as many equal cells as the one below; k counts cells. A guess that is half a cell too high is k or k + 1, and the mean of two
    codes settles which.
    """
    known = x == x
    scale = tl.max(tl.where(known, tl.abs(x), 0.0), 1, keep_dims=True)
    # 0 has no inverse, and everything is 0 then.
    y = tl.abs(x * tl.div_rn(1.0, tl.where(scale == 0.0, 1.0, scale)))
    y = tl.where(y == y, y, 0.0)

    # The lowest decade has one cell where codes have a sign, else two; below a decade are as many as in it, or one
    # less.
    LOWEST: tl.constexpr = 1.0 if ZERO > 0 else 2.0
    HALF: tl.constexpr = 0.5 if ZERO > 0 else -0.5
    slope = y * 0.0 + LOWEST * SLOPES[0]
    begin = y * 0.0 + (LOWEST * BEGINS[0] + HALF)
    for decade in tl.static_range(6):
        up = y >= EDGES[decade]
        slope = tl.where(up, LOWEST * SLOPES[decade + 1], slope)
        begin = tl.where(up, LOWEST * BEGINS[decade + 1] + HALF, begin)
    k = tl.minimum(tl.maximum((y * slope + begin).to(tl.int32), 1), 255 - ZERO)

    i = tl.arange(0, 256)
    mean = _of((tl.load(values + tl.maximum(i - 1, 0)) + tl.load(values + i)) * 0.5, ZERO + k)
    reached = (y > mean) | ((y == mean) & ((ZERO + k) % 2 == 0))
    k = tl.where(reached, k, k - 1)
    if ZERO > 0:
        k = tl.where(x < 0.0, -tl.minimum(k, ZERO), k)
    else:
        k = tl.maximum(k, 1)
    return tl.where(scale == 0.0, 0, ZERO + k).to(tl.uint8), scale


@triton.jit
def adamw8(weights, low, m, v, mscale, vscale, grad, bad, mcodes, vcodes, n, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps,
           SPLIT: tl.constexpr, BLOCKS: tl.constexpr, MOMENTS: tl.constexpr, MZERO: tl.constexpr):
    """One step for moments in blocks of MOMENTS, each with a scale. Programs: ceil(n/ELEMENTS).

    Moves 12 bytes and the gradient's for each parameter; what the codes stand for comes from the cache, once for each
    program.
    """
    block = (tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS))[:, None]
    at = block * MOMENTS + tl.arange(0, MOMENTS)[None, :]
    inside = at < n
    known = block * MOMENTS < n
    p = _load_weights(weights, low, at, inside, SPLIT)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    i = tl.arange(0, 256)
    m0 = _of(tl.load(mcodes + i), tl.load(m + at, mask=inside, other=0).to(tl.int32))
    v0 = _of(tl.load(vcodes + i), tl.load(v + at, mask=inside, other=0).to(tl.int32))
    m0 *= tl.load(mscale + block, mask=known, other=0.0)
    v0 *= tl.load(vscale + block, mask=known, other=0.0)
    p, m1, v1 = _step(p, m0, v0, g, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps)
    codes, scale = _encode(m1, mcodes, MZERO)
    tl.store(m + at, codes, mask=inside)
    tl.store(mscale + block, scale, mask=known)
    codes, scale = _encode(v1, vcodes, 0)
    tl.store(v + at, codes, mask=inside)
    tl.store(vscale + block, scale, mask=known)
    _store_weights(weights, low, bad, at, inside, p, SPLIT)


MOMENTS = 256  # tensor.MomentBlock
MZERO = 127  # the code of 0 where codes have a sign: 127 below it, 128 above
SCALARS = " ".join(f"{s}:fp32" for s in "clip decay omb1 beta2 omb2 step sqrtbc2 eps".split())

# Eight programs share a multiprocessor: more loads are under way.
FULL = dict(sm90a=dict(registers=64, held=True, spill=32))

KERNELS = []
for words, weights, gradient in (("split.f32", "i16", "fp32"), ("split.bf16", "i16", "bf16"), ("f32.f32", "fp32", "fp32")):
    split = weights == "i16"
    full = f"weights:*{weights} low:*i16 m:*fp32 v:*fp32 grad:*{gradient} bad:*i64 n:i64 {SCALARS}"
    coded = (f"weights:*{weights} low:*i16 m:*u8 v:*u8 mscale:*fp32 vscale:*fp32 grad:*{gradient} bad:*i64 "
             f"mcodes:*fp32 vcodes:*fp32 n:i64 {SCALARS}")
    for variant, aligned, blocks in (("any", "", 2), ("a16", "weights low m v grad n", 4)):
        KERNELS += [
            Kernel(f"adamw.{words}.{variant}", adamw, full, ("ceil(n/BLOCK)",), dict(SPLIT=split, BLOCK=512), aligned=aligned,
                   exact=True),
            Kernel(f"adamw8.{words}.{variant}", adamw8, coded, ("ceil(n/ELEMENTS)",),
                   dict(SPLIT=split, BLOCKS=blocks, MOMENTS=MOMENTS, MZERO=MZERO),
                   numbers=dict(ELEMENTS=blocks * MOMENTS), aligned=aligned, exact=True,
                   on=FULL if variant == "a16" else {}),
        ]
