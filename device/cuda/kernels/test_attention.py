"""attention.py in Triton's interpreter against float64: python -m unittest test_attention"""

import unittest

import interpreted  # first

import numpy as np
import torch

import attention
from poisoned import Field

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# What rounding leaves, relative to the greatest element of a result or 1.
LIMITS = {"f32": 4e-6, "bf16": 1e-2}


def documents(lengths):
    """start and end of each row for documents of these lengths."""
    start, end = [], []
    for n in lengths:
        first = len(start)
        start += [first] * n
        end += [first + n] * n
    return start, end


def reference(q, k, v, dout, start, window, scale, group, cap=0.0, sinks=None):
    """out, lse, dq, dk, dv and dsinks in float64 with the whole matrix of scores; operands are [rows, heads, headdim]."""
    rows = len(q)
    i, j = np.arange(rows)[:, None], np.arange(rows)[None, :]
    seen = (j <= i) & (j >= np.array(start)[:, None])
    if window:
        seen &= j > i - window
    key, value = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s, sink = np.einsum("ihd,jhd->hij", q, key) * scale, np.full(q.shape[1], -np.inf) if sinks is None else sinks
    slope = 1 - np.tanh(s / cap) ** 2 if cap else 1
    s = np.where(seen, cap * np.tanh(s / cap) if cap else s, -np.inf)
    most = np.maximum(s.max(2, keepdims=True), sink[:, None, None])
    e = np.exp(s - most)
    total = e.sum(2, keepdims=True) + np.exp(sink[:, None, None] - most)
    p = e / total
    out = np.einsum("hij,jhd->ihd", p, value)
    dp = np.einsum("ihd,jhd->hij", dout, value)
    delta = (p * dp).sum(2, keepdims=True)
    ds = p * (dp - delta) * slope * scale
    dsinks = -(np.exp(sink[:, None, None] - most) / total * delta).sum((1, 2))
    heads = lambda x: x.reshape(rows, k.shape[1], group, -1).sum(2)
    return (out, (most + np.log(total))[:, :, 0].T, np.einsum("hij,jhd->ihd", ds, key), heads(np.einsum("hij,ihd->jhd", ds, q)),
            heads(np.einsum("hij,ihd->jhd", p, dout)), dsinks)


class Case:
    """One attention: operands as columns of one fused matrix, as projections leave them, and all results."""

    def __init__(self, dtype, lengths, heads, kvheads, headdim, window, pieces=None, blocks=(16, 16), splits=1, cap=0.0,
                 sinks=None, one_loop=0):
        self.dtype, self.lengths, self.heads, self.kvheads, self.headdim, self.window = dtype, lengths, heads, kvheads, headdim, window
        self.rows, self.scale, self.splits, self.cap = sum(lengths), headdim ** -0.5, splits, cap
        self.one_loop = one_loop
        rng = np.random.default_rng(self.rows * 1000 + headdim)
        t, cols, keys = TYPES[dtype], heads * headdim, kvheads * headdim
        self.qkv = Field(t, self.rows, cols + 2 * keys, rng.standard_normal((self.rows, cols + 2 * keys)))
        self.dout = Field(t, self.rows, cols, rng.standard_normal((self.rows, cols)))
        self.out, self.dqkv = Field(t, self.rows, cols), Field(t, self.rows, cols + 2 * keys)
        self.lse, self.delta = (Field(torch.float32, self.rows, heads, stride=heads) for _ in range(2))
        self.part = Field(torch.float32, splits * 2 * self.rows, keys, stride=keys)
        self.parts = ((0, cols), (cols, cols + keys), (cols + keys, cols + 2 * keys))
        self.start, self.end = documents(lengths)
        # No sinks are a null pointer, as an empty tensor has.
        self.sinks = torch.tensor([] if sinks is None else sinks, dtype=t)
        self.dsinks = Field(torch.float32, 32, heads, stride=heads)
        head_a, head_b = pieces or (max(16, 1 << (headdim - 1).bit_length()), 0)
        self.constants = dict(CAPPED=int(cap > 0), HEAD_A=head_a, HEAD_B=head_b, PADDED=head_a + head_b != headdim,
                              BLOCK_Q=blocks[0], BLOCK_K=blocks[1])

    def run(self):
        ids = lambda x: torch.tensor(x + [-2 ** 31] * 256, dtype=torch.int32)  # an index that was not masked leaves all memory
        start, end = ids(self.start), ids(self.end)
        q, k, v = (self.qkv.mat[:, a:b] for a, b in self.parts)
        dq, dk, dv = (self.dqkv.mat[:, a:b] for a, b in self.parts)
        out, dout, lse, delta = self.out.mat, self.dout.mat, self.lse.mat, self.delta.mat
        sizes = (self.rows, self.heads, self.kvheads, self.headdim, self.window)
        s, ds, so, sdo = self.qkv.stride, self.dqkv.stride, self.out.stride, self.dout.stride
        ceil = lambda block: -(-self.rows // block)
        queries = (self.heads * ceil(self.constants["BLOCK_Q"]),)
        keys = (self.kvheads * self.splits * ceil(self.constants["BLOCK_K"]),)
        attention.attention[queries](out, lse, q, k, v, self.sinks, start, *sizes, so, s, s, s, self.scale, self.cap,
                                     ONE_LOOP=self.one_loop, **self.constants)
        attention.attention_delta[(ceil(32), self.heads)](delta, out, dout, self.rows, self.heads, self.headdim, so, sdo, BLOCK_ROWS=32,
                                                          BLOCK_COLS=32)
        # THREADS: more than two blocks of queries have, or as many.
        part, splits, cols = self.part.mat, self.splits, self.kvheads * self.headdim
        attention.attention_dkdv[keys](dk, dv, part, dout, q, k, v, lse, delta, end, *sizes, splits, ds, ds, sdo,
                                       s, s, s, self.scale, self.cap, THREADS=64, RANKED=4, **self.constants)
        if splits > 1:
            blocks = (ceil(4), -(-cols // 16), 2)
            attention.attention_fold[blocks](dk, dv, part, self.rows, cols, splits, ds, ds, BLOCK_ROWS=4, BLOCK_COLS=16)
        attention.attention_dq[queries](dq, dout, q, k, v, lse, delta, start, *sizes, ds, sdo, s, s, s, self.scale, self.cap,
                                        **self.constants)
        if len(self.sinks):
            attention.sink_grad[(-(-self.heads // 2), 32)](self.dsinks.mat, self.sinks, lse, delta, self.rows, self.heads, 32,
                                                           BLOCK_ROWS=16, BLOCK_HEADS=2)
        return self

    def results(self):
        grads = self.dqkv.numpy()
        split = lambda x: x.reshape(self.rows, -1, self.headdim)
        return (split(self.out.numpy()), self.lse.numpy(), *(split(grads[:, a:b]) for a, b in self.parts),
                self.dsinks.numpy().sum(0) if len(self.sinks) else np.zeros(self.heads))

    def operands(self):
        x = self.qkv.numpy()
        return [part.reshape(self.rows, -1, self.headdim) for part in (*(x[:, a:b] for a, b in self.parts), self.dout.numpy())]

    def check(self, test):
        self.run()
        sinks = self.sinks.double().numpy() if len(self.sinks) else None
        want = reference(*self.operands(), self.start, self.window, self.scale, self.heads // self.kvheads, self.cap, sinks)
        for name, got, exact in zip(("out", "lse", "dq", "dk", "dv", "dsinks"), self.results(), want):
            error = np.abs(got - exact).max() / max(np.abs(exact).max(), 1)
            limit = LIMITS["f32"] if name == "lse" else LIMITS[self.dtype]
            test.assertFalse(np.isnan(got).any(), name + " has NaNs")
            test.assertLess(error, limit, f"{name} of {self.lengths}")
        for name in ("out", "lse", "delta", "dqkv"):
            test.assertTrue(getattr(self, name).intact_outside(), name + " is written outside")


class AttentionTest(unittest.TestCase):
    def test_against_float64(self):
        for lengths, heads, kvheads, headdim, window, pieces, blocks in (
            ([1], 1, 1, 2, 0, None, (16, 16)),
            ([3], 2, 1, 16, 0, None, (16, 32)),
            ([1] * 19, 1, 1, 8, 0, None, (16, 16)),                  # documents of one row
            ([5, 12], 3, 3, 6, 4, None, (32, 16)),
            ([16, 16, 16], 2, 1, 16, 0, None, (16, 16)),             # documents that are blocks
            ([1, 30, 2, 44], 4, 2, 64, 0, (64, 0), (16, 32)),
            ([70], 1, 1, 16, 1, None, (16, 16)),                     # sees itself only
            ([61, 9], 2, 2, 80, 33, (64, 16), (32, 16)),
            ([57], 3, 1, 96, 16, (64, 32), (16, 16)),
            ([83], 1, 1, 16, 40, None, (16, 16)),
            ([97, 3], 6, 2, 16, 0, None, (32, 32)),
            ([40], 1, 1, 100, 2 ** 31 - 1, None, (16, 16)),
        ):
            for dtype in TYPES:
                with self.subTest(f"{dtype} {lengths} {heads}/{kvheads} heads of {headdim}, window {window}, blocks {blocks}"):
                    Case(dtype, lengths, heads, kvheads, headdim, window, pieces, blocks).check(self)

    def test_one_loop(self):
        """One loop over blocks of which some are masked, as the forward kernel has it where two spill more."""
        for lengths, heads, kvheads, headdim, window, blocks, cap in (
            ([70], 2, 1, 16, 0, (32, 16), 0.0),
            ([16, 32, 16], 1, 1, 16, 0, (16, 16), 0.0),
            ([1, 30, 2, 44], 4, 2, 16, 20, (16, 32), 0.0),
            ([57, 9], 3, 1, 24, 40, (16, 16), 2.0),
        ):
            for dtype in TYPES:
                with self.subTest(f"{dtype} {lengths}, window {window}, blocks {blocks}, cap {cap}"):
                    Case(dtype, lengths, heads, kvheads, headdim, window, None, blocks, cap=cap, one_loop=1).check(self)

    def test_splits(self):
        """Programs that share the query heads of a group, as equally as they can, and one without a share."""
        for splits in (2, 3, 7):
            for dtype in TYPES:
                with self.subTest(f"{dtype}, {splits} splits"):
                    Case(dtype, [35, 14], 10, 2, 24, 0, blocks=(16, 32), splits=splits).check(self)

    def test_wide_heads(self):
        for headdim in (128, 256):
            Case("bf16", [9, 31], 2, 1, headdim, 0, (headdim, 0), (16, 16)).check(self)
        for dtype in TYPES:
            Case(dtype, [9, 31], 2, 1, 512, 11, (256, 256), (32, 16)).check(self)

    def test_caps_and_sinks(self):
        """Caps that hardly and that strongly bend scores, sinks from far below scores to far above them, and both."""
        for lengths, heads, kvheads, headdim, window, cap, sinks, splits in (
            ([30, 11], 2, 1, 16, 0, 50.0, None, 1),
            ([1, 40], 4, 2, 24, 9, 0.5, None, 2),
            ([25, 16], 3, 1, 16, 0, 0.0, [-200.0, 0.5, 150.0], 1),
            ([33], 2, 2, 96, 20, 2.0, [1.0, 4.0], 1),
        ):
            for dtype in TYPES:
                with self.subTest(f"{dtype} {lengths}, cap {cap}, sinks {sinks}"):
                    pieces = (64, 32) if headdim == 96 else None
                    Case(dtype, lengths, heads, kvheads, headdim, window, pieces, (16, 32), splits, cap, sinks).check(self)

    def test_far_capped_scores(self):
        """Scores of thousands are the cap, with its sign; a NaN stays one."""
        case = Case("f32", [20, 17], 2, 1, 16, 0, cap=5.0)
        case.qkv.mat[:, :16 * 3] *= 60
        want = reference(*case.run().operands(), case.start, 0, case.scale, 2, 5.0)
        for name, got, exact in zip(("out", "lse", "dq", "dk", "dv"), case.results(), want):
            self.assertLess(np.abs(got - exact).max() / np.abs(exact).max(), 5e-3, name)
        case = Case("f32", [20], 1, 1, 16, 0, cap=5.0)
        case.qkv.mat[7, 0] = float("nan")
        self.assertTrue(np.isnan(case.run().results()[0][7]).all())

    def test_far_scores(self):
        """Scores of thousands: the greatest is subtracted, nothing overflows, nor does what a mask hides."""
        case = Case("f32", [20, 37], 2, 1, 16, 0)
        case.qkv.mat[:, :16 * 3] *= 60
        with np.errstate(over="ignore"):  # what is hidden may overflow, and is replaced
            case.run()
        want = reference(*case.operands(), case.start, 0, case.scale, 2)
        for name, got, exact in zip(("out", "lse", "dq", "dk", "dv"), case.results(), want):
            self.assertLess(np.abs(got - exact).max() / np.abs(exact).max(), 5e-3, name)

    def test_against_torch(self):
        case = Case("f32", [45], 4, 2, 32, 0).run()
        q, k, v, dout = (torch.from_numpy(x).transpose(0, 1)[None].clone().requires_grad_() for x in case.operands())
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out.backward(dout.detach())
        got = case.results()
        for name, x, exact in (("out", got[0], out), ("dq", got[2], q.grad), ("dk", got[3], k.grad), ("dv", got[4], v.grad)):
            error = np.abs(x - exact.detach()[0].transpose(0, 1).numpy()).max()
            self.assertLess(error, 1e-5, name)

    def test_blocks_change_rounding_only(self):
        small, large = (Case("f32", [50, 27], 2, 1, 16, 20, None, blocks).run().results() for blocks in ((16, 16), (64, 32)))
        for a, b in zip(small, large):
            self.assertLess(np.abs(a - b).max(), 1e-5)


if __name__ == "__main__":
    unittest.main()
