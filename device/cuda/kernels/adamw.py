"""AdamW, with moments in fp32 or in codes of 8 or 4 bits, to the bits of every other device: IEEE operations in the contract's order, none fused.

Weights are fp32, or split: the high half is the nearest bf16 number, ties away from zero, the low half what is to be added to its
bits, 16 of them, or 8 where the weight is rounded to 24 bits by a random word. LOW is the bytes of a low half. tally counts new
weights that are infinite or NaN, and has the bits of the longest move. Its are the only atomic operations of all kernels, on integers,
and done only where they change something.

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
    """New weights, what was subtracted from them, and new moments."""
    g = clip * g
    p = p * decay
    m = _flush(m + (g - m) * omb1)
    v = _flush(beta2 * v + (omb2 * g) * g)
    move = tl.div_rn(step * m, tl.div_rn(tl.sqrt_rn(v), sqrtbc2) + eps)
    return p - move, move, m, v


@triton.jit
def _load_weights(weights, low, at, inside, LOW: tl.constexpr):
    if LOW == 0:
        p = tl.load(weights + at, mask=inside, other=0.0)
    else:
        high = tl.load(weights + at, mask=inside, other=0).to(tl.int32)
        rest = tl.load(low + at, mask=inside, other=0).to(tl.int32)
        if LOW == 1:
            rest = rest << 8
        p = ((high << 16) + rest).to(tl.float32, bitcast=True)
    return p


@triton.jit
def _store_weights(weights, low, tally, at, inside, p, words, LOW: tl.constexpr):
    """words are random and round weights of 24 bits, whose high halves are infinite for some finite numbers, too."""
    bits = p.to(tl.int32, bitcast=True)
    if LOW == 0:
        tl.store(weights + at, p, mask=inside)
    elif LOW == 1:
        bits = tl.where(p != p, 0x7FC00000, bits) + (words & 0xFF).to(tl.int32)
        tl.store(low + at, (bits >> 8).to(tl.int8), mask=inside)
        bits += 0x8000
        tl.store(weights + at, (bits >> 16).to(tl.int16), mask=inside)
    else:
        nan = p != p
        tl.store(weights + at, tl.where(nan, 0x7FC0, (bits + 0x8000) >> 16).to(tl.int16), mask=inside)
        tl.store(low + at, tl.where(nan, 0, bits).to(tl.int16), mask=inside)
    not_finite = tl.sum((((bits & 0x7F800000) == 0x7F800000) & inside).to(tl.int32))
    if not_finite > 0:
        tl.atomic_add(tally, not_finite.to(tl.int64), sem="relaxed")


@triton.jit
def _tell_move(tally, inside, move, step):
    """The longest move, in steps. Numbers that are not negative are in the order of their bits, and NaNs are above infinity."""
    bits = tl.where(inside, move.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
    longest = tl.minimum(tl.max(bits), 0x7F800000).to(tl.float32, bitcast=True)
    steps = tl.div_rn(longest, tl.where(step == 0.0, 1.0, step)).to(tl.int32, bitcast=True)
    seen = tl.load(tally + 1, volatile=True)  # while other programs change it; an old number costs an operation, and is not wrong
    if (step != 0.0) & (steps > seen):
        tl.atomic_max(tally + 1, steps.to(tl.int64), sem="relaxed")


@triton.jit
def _words(key, part, counter):
    """The random words of four elements for each of a block of counters [rows, n]: [rows, 4*n].

    Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
    """
    k0, k1 = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    c0, c1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c2, c3 = (counter * 0 + part).to(tl.uint32), (counter * 0 + (part >> 32)).to(tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), [counter.shape[0], 4 * counter.shape[1]])


@triton.jit
def adamw(weights, low, m, v, grad, tally, n, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps, LOW: tl.constexpr,
          BLOCK: tl.constexpr):
    """One step. Programs: ceil(n/BLOCK). Moves 24 bytes and the gradient's for each parameter."""
    _adamw(weights, low, m, v, grad, tally, n, 0, 0, 0, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps, LOW, BLOCK)


@triton.jit
def adamw24(weights, low, m, v, grad, tally, n, key, part, counter, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps,
            LOW: tl.constexpr, BLOCK: tl.constexpr):
    """One step for weights of 24 bits, rounded by random words: see adamw8. Programs: ceil(n/BLOCK). Moves 22 bytes and the
    gradient's for each parameter.
    """
    _adamw(weights, low, m, v, grad, tally, n, key, part, counter, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps, LOW, BLOCK)


@triton.jit
def _adamw(weights, low, m, v, grad, tally, n, key, part, counter, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps,
           LOW: tl.constexpr, BLOCK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    at = begin + tl.arange(0, BLOCK)
    inside = at < n
    p = _load_weights(weights, low, at, inside, LOW)
    m0 = tl.load(m + at, mask=inside, other=0.0)
    v0 = tl.load(v + at, mask=inside, other=0.0)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    p, move, m1, v1 = _step(p, m0, v0, g, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps)
    tl.store(m + at, m1, mask=inside)
    tl.store(v + at, v1, mask=inside)
    words = p
    if LOW == 1:
        words = tl.reshape(_words(key, part, counter + begin // 4 + tl.arange(0, BLOCK // 4)[None, :]), [BLOCK])
    _store_weights(weights, low, tally, at, inside, p, words, LOW)
    _tell_move(tally, inside, move, step)


@triton.jit
def _of(table, at):
    """The elements of a table of 256 at a block of places, through shared memory."""
    return tl.reshape(tl.gather(table, tl.reshape(at, [at.shape[0] * at.shape[1]]), 0), at.shape)


@triton.jit
def _scaled(x):
    """Moments in units of the greatest magnitude of their row, and these scales; NaNs are left aside."""
    scale = tl.max(tl.where(x == x, tl.abs(x), 0.0), 1, keep_dims=True)
    # 0 has no inverse, and everything is 0 then.
    return x * tl.div_rn(1.0, tl.where(scale == 0.0, 1.0, scale)), scale


EDGES = tl.constexpr((1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1))
# The line that counts cells in each decade, where the lowest has one: cells to a unit, and what it is at zero.
SLOPES = tl.constexpr(tuple(2 ** d * 10 ** (6 - d) / 0.9 for d in range(7)))
BEGINS = tl.constexpr(tuple(2 ** d * (1 - 0.1 / 0.9) for d in range(7)))


@triton.jit
def _encode_first(x, values, ZERO: tl.constexpr):
    """Codes of a block of first moments in each row, and the rows' scales. values are what codes stand for, ZERO is the code of 0.

    The code of a magnitude is ZERO + k, or ZERO - k if the moment is negative. Magnitudes are in seven decades, each cut into twice
    as many equal cells as the one below; k counts cells, of which the lowest decade has one. A guess that is half a cell too high is k
    or k + 1, and the mean of two codes settles which.
    """
    y, scale = _scaled(x)
    y = tl.abs(y)
    y = tl.where(y == y, y, 0.0)

    slope = y * 0.0 + SLOPES[0]
    begin = y * 0.0 + (BEGINS[0] + 0.5)  # below a decade are as many cells as in it
    for decade in tl.static_range(6):
        up = y >= EDGES[decade]
        slope = tl.where(up, SLOPES[decade + 1], slope)
        begin = tl.where(up, BEGINS[decade + 1] + 0.5, begin)
    k = tl.minimum(tl.maximum((y * slope + begin).to(tl.int32), 1), 255 - ZERO)

    i = tl.arange(0, 256)
    mean = _of((tl.load(values + tl.maximum(i - 1, 0)) + tl.load(values + i)) * 0.5, ZERO + k)
    reached = (y > mean) | ((y == mean) & ((ZERO + k) % 2 == 0))
    k = tl.where(reached, k, k - 1)
    k = tl.where(x < 0.0, -tl.minimum(k, ZERO), k)
    return tl.where(scale == 0.0, 0, ZERO + k).to(tl.uint8), scale


# The rungs of device/cpu/kernels' ladder, which says what they are: where the next one begins, the line over the codes of each, and that
# over the gap above them, in 1/65536 of a code.
RUNGS = tl.constexpr((2.1249998098937795e-06, 1.5624998923158273e-05, 0.00012812500062864274, 0.0011406249832361937, 0.010703125968575478,
                      0.103515625, 0.9964843988418579))
RUNG_SLOPES = tl.constexpr((1.4563557376e+11, 2.9127112704e+10, 5.825422336e+09, 1.165084416e+09, 2.33016896e+08, 4.660338e+07,
                            9.320675e+06, 1.8641478e+07))
RUNG_BEGINS = tl.constexpr((18204.935546875, 134713.390625, 367730.28125, 833764.0625, 1.765831625e+06, 3.62996675e+06, 7.358237e+06,
                            -1.929793e+06))
GAP_SLOPES = tl.constexpr((4.8545189888e+10, 9.709037568e+09, 1.941807232e+09, 3.883616e+08, 7.7672184e+07, 1.553446e+07, 0.0, 0.0))
GAP_BEGINS = tl.constexpr((93449.9765625, 307048.78125, 734246.4375, 1.5886415e+06, 3.29743325e+06, 6.715013e+06, 1.6646144e+07,
                           1.671168e+07))
LEAST = tl.constexpr(3.2500003044333425e-07)  # what code 1 stands for


@triton.jit
def _encode_second(x, words):
    """Codes of a block of second moments in each row, rounded by the high halves of random words, and the rows' scales."""
    y, scale = _scaled(x)
    y = tl.where(y > LEAST, y, LEAST)
    slope = y * 0.0 + RUNG_SLOPES[0]
    begin = y * 0.0 + RUNG_BEGINS[0]
    gap_slope = y * 0.0 + GAP_SLOPES[0]
    gap_begin = y * 0.0 + GAP_BEGINS[0]
    for rung in tl.static_range(7):
        up = y > RUNGS[rung]
        slope = tl.where(up, RUNG_SLOPES[rung + 1], slope)
        begin = tl.where(up, RUNG_BEGINS[rung + 1], begin)
        gap_slope = tl.where(up, GAP_SLOPES[rung + 1], gap_slope)
        gap_begin = tl.where(up, GAP_BEGINS[rung + 1], gap_begin)
    place = tl.minimum(y * slope + begin, y * gap_slope + gap_begin).to(tl.int32)
    k = (place + (words >> 16).to(tl.int32)) >> 16
    return tl.where(scale == 0.0, 0, k).to(tl.uint8), scale


@triton.jit
def adamw8(weights, low, m, v, mscale, vscale, grad, tally, mcodes, vcodes, n, key, part, counter, clip, decay, omb1, beta2, omb2, step,
           sqrtbc2, eps, LOW: tl.constexpr, BLOCKS: tl.constexpr, MOMENTS: tl.constexpr, MZERO: tl.constexpr):
    """One step for moments in blocks of MOMENTS, each with a scale. Programs: ceil(n/ELEMENTS). Second moments, and weights of 24 bits,
    are rounded by random words, of the key and, for four elements each, the counters from counter on, with part in their high halves.

    Moves 12 bytes, or 10 for weights of 24 bits, and the gradient's for each parameter; what the codes stand for comes from the cache, once for each
    program.
    """
    block = (tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS))[:, None]
    at = block * MOMENTS + tl.arange(0, MOMENTS)[None, :]
    inside = at < n
    known = block * MOMENTS < n
    p = _load_weights(weights, low, at, inside, LOW)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    i = tl.arange(0, 256)
    m0 = _of(tl.load(mcodes + i), tl.load(m + at, mask=inside, other=0).to(tl.int32))
    v0 = _of(tl.load(vcodes + i), tl.load(v + at, mask=inside, other=0).to(tl.int32))
    m0 *= tl.load(mscale + block, mask=known, other=0.0)
    v0 *= tl.load(vscale + block, mask=known, other=0.0)
    p, move, m1, v1 = _step(p, m0, v0, g, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps)
    codes, scale = _encode_first(m1, mcodes, MZERO)
    tl.store(m + at, codes, mask=inside)
    tl.store(mscale + block, scale, mask=known)
    fours = block * (MOMENTS // 4) + tl.arange(0, MOMENTS // 4)[None, :]
    words = _words(key, part, counter + fours)
    codes, scale = _encode_second(v1, words)
    tl.store(v + at, codes, mask=inside)
    tl.store(vscale + block, scale, mask=known)
    _store_weights(weights, low, tally, at, inside, p, words, LOW)
    _tell_move(tally, inside, move, step)


# Codes of 4 bits, as device/cpu/kernels has them: the magnitudes of first moments and the roots of second ones, in units of the greatest
# of a block, and how far it is from each to the next one.
FIRST4 = tl.constexpr((0.0, 0.00771356048, 0.0436344892, 0.120242514, 0.246833935, 0.43120116, 0.680194378, 1.0))
FIRST4_GAPS = tl.constexpr((0.00771356048, 0.0359209292, 0.0766080245, 0.126591414, 0.184367225, 0.248993218, 0.319805622))
SECOND4 = tl.constexpr((0.019536633, 0.025397623, 0.0330169089, 0.0429219827, 0.0557985753, 0.0725381523, 0.0942995921, 0.122589476,
                        0.15936631, 0.207176208, 0.269329071, 0.350127786, 0.455166131, 0.591715991, 0.769230783, 1.0))
SECOND4_GAPS = tl.constexpr((0.00586098991, 0.00761928596, 0.00990507379, 0.0128765926, 0.0167395771, 0.0217614397, 0.0282898843,
                             0.0367768332, 0.0478098989, 0.0621528625, 0.0807987154, 0.105038345, 0.13654986, 0.177514791, 0.230769217))


@triton.jit
def _nibbles(codes, at, known):
    """The codes of two blocks of 4 bits in each row, from their bytes: [rows, 128], a row for each block."""
    packed = tl.load(codes + at, mask=known, other=0).to(tl.int32)
    return tl.reshape(tl.join(packed & 15, packed >> 4), [packed.shape[0], 2 * packed.shape[1]])


@triton.jit
def _first4(code, scale):
    k = code & 7
    value = scale * 0.0
    for j in tl.static_range(1, 8):
        value = tl.where(k >= j, FIRST4[j], value)
    value *= scale
    return tl.where(code >= 8, -value, value)


@triton.jit
def _second4(code, scale):
    value = scale * 0.0 + SECOND4[0]
    for k in tl.static_range(1, 16):
        value = tl.where(code >= k, SECOND4[k], value)
    root = value * scale
    return _flush(root * root)


@triton.jit
def _round4(y, share, VALUES: tl.constexpr, GAPS: tl.constexpr, COUNT: tl.constexpr):
    """The greatest code that y reaches, or the next one where the rest of the way is more than a share of the gap."""
    code = (y * 0.0).to(tl.int32)
    value = share * 0.0 + VALUES[0]
    gap = share * 0.0 + GAPS[0]
    for k in tl.static_range(1, COUNT):
        up = y >= VALUES[k]
        code = tl.where(up, k, code)
        value = tl.where(up, VALUES[k], value)
        if k < COUNT - 1:
            gap = tl.where(up, GAPS[k], gap)
    return tl.where((code < COUNT - 1) & (y - value > share * gap), code + 1, code)


@triton.jit
def _store_nibbles(codes, at, known, code):
    low, high = tl.split(tl.reshape(code, [code.shape[0], code.shape[1] // 2, 2]))
    tl.store(codes + at, (low | high << 4).to(tl.uint8), mask=known)


@triton.jit
def adamw4(weights, low, m, v, mscale, vscale, grad, tally, mcodes, n, key, part, counter, clip, decay, omb1, beta2, omb2, step, sqrtbc2,
           eps, LOW: tl.constexpr, FIRST: tl.constexpr, BLOCKS: tl.constexpr, MOMENTS: tl.constexpr, MZERO: tl.constexpr):
    """adamw8 for second moments of 4 bits, in blocks of MOMENTS/2, and first moments of FIRST bits, 4 or 8. Programs: ceil(n/ELEMENTS)."""
    block = (tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS))[:, None]
    at = block * MOMENTS + tl.arange(0, MOMENTS)[None, :]
    inside = at < n
    known = block * MOMENTS < n
    # A row for each block of 4 bits, of which there are two in one of 8.
    HALF: tl.constexpr = MOMENTS // 2
    half = (tl.program_id(0).to(tl.int64) * (2 * BLOCKS) + tl.arange(0, 2 * BLOCKS))[:, None]
    bytes = half * (HALF // 2) + tl.arange(0, HALF // 2)[None, :]
    halves = half * HALF < n
    p = _load_weights(weights, low, at, inside, LOW)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    if FIRST == 4:
        m0 = _first4(_nibbles(m, bytes, halves), tl.load(mscale + half, mask=halves, other=0.0))
        m0 = tl.reshape(m0, [BLOCKS, MOMENTS])
    else:
        m0 = _of(tl.load(mcodes + tl.arange(0, 256)), tl.load(m + at, mask=inside, other=0).to(tl.int32))
        m0 *= tl.load(mscale + block, mask=known, other=0.0)
    v0 = _second4(_nibbles(v, bytes, halves), tl.load(vscale + half, mask=halves, other=0.0))
    p, move, m1, v1 = _step(p, m0, tl.reshape(v0, [BLOCKS, MOMENTS]), g, clip, decay, omb1, beta2, omb2, step, sqrtbc2, eps)
    fours = half * (HALF // 4) + tl.arange(0, HALF // 4)[None, :]
    words = _words(key, part, counter + fours)
    if FIRST == 4:
        m1 = tl.reshape(m1, [2 * BLOCKS, HALF])
        y, scale = _scaled(m1)
        share = (((words >> 8) & 0xFF).to(tl.float32) + 0.5) * (1.0 / 256)
        code = _round4(tl.abs(y), share, FIRST4, FIRST4_GAPS, 8)
        code = tl.where((m1 < 0.0) & (code > 0), code + 8, code)
        _store_nibbles(m, bytes, halves, tl.where(scale == 0.0, 0, code))
        tl.store(mscale + half, scale, mask=halves)
    else:
        codes, scale = _encode_first(m1, mcodes, MZERO)
        tl.store(m + at, codes, mask=inside)
        tl.store(mscale + block, scale, mask=known)
    y, scale = _scaled(tl.sqrt_rn(tl.reshape(v1, [2 * BLOCKS, HALF])))
    share = ((words >> 16).to(tl.float32) + 0.5) * (1.0 / 65536)
    code = _round4(y, share, SECOND4, SECOND4_GAPS, 16)
    _store_nibbles(v, bytes, halves, tl.where(scale == 0.0, 0, code))
    tl.store(vscale + half, scale, mask=halves)
    _store_weights(weights, low, tally, at, inside, p, tl.reshape(words, [BLOCKS, MOMENTS]), LOW)
    _tell_move(tally, inside, move, step)


MOMENTS = 256  # tensor.MomentBlock
MZERO = 127  # the code of 0 where codes have a sign: 127 below it, 128 above
SCALARS = " ".join(f"{s}:fp32" for s in "clip decay omb1 beta2 omb2 step sqrtbc2 eps".split())

# Eight programs share a multiprocessor: more loads are under way.
FULL = dict(sm90a=dict(registers=64, held=True, spill=32))

KERNELS = []
for master, low, gradient in (("split", 2, "f32"), ("split", 2, "bf16"), ("split24", 1, "f32"), ("split24", 1, "bf16"), ("f32", 0, "f32")):
    words = f"{master}.{gradient}"
    vectors = (f"weights:*{'i16' if low else 'fp32'} low:*{'i8' if low == 1 else 'i16'} m:*%s v:*%s%s "
               f"grad:*{'fp32' if gradient == 'f32' else 'bf16'} tally:*i64")
    draw = "key:i64 part:i64 counter:i64"
    full = f"{vectors % ('fp32', 'fp32', '')} n:i64 {draw + ' ' if low == 1 else ''}{SCALARS}"
    coded = f"{vectors % ('u8', 'u8', ' mscale:*fp32 vscale:*fp32')} mcodes:*fp32 vcodes:*fp32 n:i64 {draw} {SCALARS}"
    narrow = coded.replace("vcodes:*fp32 ", "")
    for variant, aligned, blocks in (("any", "", 2), ("a16", "weights low m v grad n", 4)):
        KERNELS += [
            Kernel(f"adamw.{words}.{variant}", adamw24 if low == 1 else adamw, full, ("ceil(n/BLOCK)",), dict(LOW=low, BLOCK=512),
                   aligned=aligned, exact=True),
            Kernel(f"adamw8.{words}.{variant}", adamw8, coded, ("ceil(n/ELEMENTS)",),
                   dict(LOW=low, BLOCKS=blocks, MOMENTS=MOMENTS, MZERO=MZERO),
                   numbers=dict(ELEMENTS=blocks * MOMENTS), aligned=aligned, exact=True,
                   on=FULL if variant == "a16" else {}),
        ] + [
            Kernel(f"adamw{name}.{words}.{variant}", adamw4, narrow, ("ceil(n/ELEMENTS)",),
                   dict(LOW=low, FIRST=first, BLOCKS=blocks, MOMENTS=MOMENTS, MZERO=MZERO),
                   numbers=dict(ELEMENTS=blocks * MOMENTS), aligned=aligned, exact=True, spill=32)
            for name, first in (("84", 8), ("4", 4))
        ]
