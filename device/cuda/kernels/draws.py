"""Tokens that rows of logits draw, over a vocabulary that is visited in tiles of columns, in order. device.HeadOps.DrawTokens says what is drawn.

stat [rows, 4] holds per row, of x = a logit, capped, times the inverse of the temperature: the greatest x so far, the sum of exp(x - that), and
of the token that is drawn so far x and the id. draws [rows, 6] has the two words of a row's key, those of its text's number, low words first,
the place in the text, and the bits of the inverse, 0 for the likeliest token.
"""

import itertools

import triton
import triton.language as tl

from adamw import _words
from loss import _capped
from registry import Kernel


@triton.jit
def _noise(words):
    """-log(-log u), u = (words + 0.5)/2^32. fp32 has 1-u where it is small, and so the noise that wins; off by less than 1e-5 from -2 on."""
    t = tl.minimum(((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * (1.0 / 4294967296.0), 1.0 - 1.0 / 16777216.0)
    short = t * (1.0 + t * (1.0 / 2 + t * (1.0 / 3 + t * (1.0 / 4 + t * (1.0 / 5 + t * (1.0 / 6))))))
    return -tl.log(tl.where(t < 1.0 / 16, short, -tl.log(1.0 - t)))


@triton.jit
def _long(low):
    """A number of 64 bits from two words."""
    return (tl.load(low).to(tl.int64) & 0xFFFFFFFF) | (tl.load(low + 1).to(tl.int64) << 32)


@triton.jit
def draw_tokens(drawn, stat, logits, draws, rows, cols, first, vocab, last, sl, cap, CAPPED: tl.constexpr, SKIPS: tl.constexpr,
                BLOCK: tl.constexpr):
    """Takes the columns [first, first+cols) of the vocabulary in, of which those from vocab on are padding, and writes drawn [rows, 2] if these
    are the last. Programs: rows. Reads logits once.

    Four tokens have their words from one counter. Where the first column is within four, SKIPS, blocks begin before it. Each place in a block
    keeps a maximum, a sum and its best token, so that there is one reduction at the end.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * sl
    stat += row * 4
    draws += row * 6
    key = _long(draws)
    text = _long(draws + 2)
    at = tl.load(draws + 4).to(tl.int64) << 32
    inverse = tl.load(draws + 5).to(tl.float32, bitcast=True)
    greedy = inverse == 0.0
    scale = tl.where(greedy, 1.0, inverse)
    skip = 0
    if SKIPS:
        skip = first % 4
    # Finite, so that places which saw nothing compute exp(-inf) = 0 and not exp(-inf - -inf).
    most = tl.full([BLOCK], -3.4028234e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    token = tl.zeros([BLOCK], tl.int32)
    for start in range(0, cols + skip, BLOCK):
        col = start - skip + tl.arange(0, BLOCK)
        inside = col < cols
        if SKIPS:
            inside = inside & (col >= 0)
        x = tl.load(logits + col, mask=inside, other=float("-inf"))
        if CAPPED:
            x = _capped(x, cap)
        x = tl.where(inside & (first + col < vocab), x * scale, float("-inf"))
        new = tl.maximum(most, x)
        total = total * tl.exp(most - new) + tl.exp(x - new)
        most = new
        counter = at + (first - skip + start) // 4 + tl.arange(0, BLOCK // 4)[None, :]
        score = tl.where(greedy, x, x + _noise(tl.reshape(_words(key, text, counter), [BLOCK])))
        token = tl.where(score > best, first + col, token)
        best = tl.maximum(best, score)
    old = tl.where(first == 0, -3.4028234e38, tl.load(stat))
    new = tl.maximum(old, tl.max(most, 0))
    total = tl.sum(total * tl.exp(most - new), 0)
    total += tl.where(first == 0, 0.0, tl.load(stat + 1)) * tl.exp(old - new)
    # The token of the tiles before, with its score.
    x = tl.where(first == 0, float("-inf"), tl.load(stat + 2))
    id = tl.where(first == 0, 0.0, tl.load(stat + 3)).to(tl.int32)
    words = tl.reshape(_words(key, text, at + id // 4 + tl.arange(0, 1)[None, :]), [4])
    words = tl.sum(tl.where(tl.arange(0, 4) == id % 4, words, 0), 0)
    score = tl.where(greedy, x, x + _noise(words.to(tl.uint32)))
    here = tl.max(best, 0)
    token = tl.min(tl.where(best == here, token, 0x7FFFFFFF), 0)
    better = here > score
    y = tl.load(logits + (token - first), mask=better, other=0.0)
    if CAPPED:
        y = _capped(y, cap)
    x = tl.where(better, y * scale, x)
    id = tl.where(better, token, id)
    tl.store(stat, new)
    tl.store(stat + 1, total)
    tl.store(stat + 2, x)
    tl.store(stat + 3, id.to(tl.float32))
    known = (total > 0.0) & (total <= 3.4028234e38)
    tl.store(drawn + row * 2, tl.where(known, id.to(tl.float32), -1.0), mask=last != 0)
    tl.store(drawn + row * 2 + 1, tl.where(known, (x - new) - tl.log(total), 0.0), mask=last != 0)


KERNELS = [
    Kernel(f"draw_tokens{word}.{variant}", draw_tokens,
           "drawn:*fp32 stat:*fp32 logits:*fp32 draws:*i32 rows:i32 cols:i32 first:i32 vocab:i32 last:i32 sl:i32 cap:fp32", ("rows",),
           dict(CAPPED=capped, SKIPS=skips, BLOCK=512 if skips else 1024), aligned=aligned)
    for (variant, aligned, skips), (word, capped) in itertools.product((("any", "", 1), ("a16", "logits cols first sl", 0)),
                                                                       (("", 0), (".cap", 1)))
]
