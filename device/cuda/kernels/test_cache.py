"""cache.py in Triton's interpreter, against plain NumPy: python -m unittest test_cache"""

import unittest

import interpreted  # first

import numpy as np
import torch

from test_kernels import TYPES, Case, empty, f32, field, ints, launch, numbers
from poisoned import Field

FAR = [-2**31] * 600  # an index that was not masked leaves all memory


def silu(x):
    return x * 0.5 * (1 + np.tanh(0.5 * x))


class CacheTest(Case):

    def attended(self, q, k, v, start, end, group, window, scale, cap, sinks):
        """Outputs in float64; q is [rows, heads, headdim], k and v are [cached, kvheads, headdim]."""
        out = np.zeros(q.shape)
        for r, head in np.ndindex(q.shape[:2]):
            first = max(start[r], end[r] - window) if window else start[r]
            if first >= end[r]:
                continue
            s = k[first:end[r], head // group] @ q[r, head] * scale
            s = cap * np.tanh(s / cap) if cap else s
            sink = sinks[head] if sinks is not None else -np.inf
            most = max(s.max(), sink)
            p = np.exp(s - most)
            out[r, head] = p @ v[first:end[r], head // group] / (p.sum() + np.exp(sink - most))
        return out

    def test_attention(self):
        each = 200  # rows of a sequence in the cache, of which there are three
        cases = (("any", 5, 3, 6, 0, 0.0, False, 0), ("any", 2, 1, 20, 7, 0.0, True, 0),
                 ("any", 18, 1, 8, 0, 2.0, False, 0), ("any", 1, 1, 131, 0, 0.0, True, 0),
                 ("a16", 4, 2, 64, 40, 0.0, False, 0), ("a16", 2, 1, 144, 0, 30.0, True, 0),
                 ("any", 2, 1, 20, 7, 0.0, True, 3), ("a16", 4, 2, 64, 40, 0.0, False, 40))
        rows = [(0, 1), (0, 2), (2, 200), (0, 70), (1, 65), (1, 0), (2, 3)]  # a sequence, and the keys seen of it
        start = [each * sequence for sequence, _ in rows]
        end = [each * sequence + n for sequence, n in rows]
        for kind in TYPES:
            for variant, heads, kvheads, headdim, window, cap, sunk, block in cases:
                kvheads = 1 if heads % kvheads else kvheads
                group, pad = heads // kvheads, 16 if variant == "a16" else 3
                with self.subTest(f"{kind}.{variant} {heads} of {headdim}, window {window}, cap {cap}, sinks {sunk}, "
                                  f"blocks of {block}"):
                    table = self.rng.permutation(3 * each // block) if block else []
                    at = np.arange(3 * each)  # where the rows of the sequences are in the cache
                    if block:
                        at = table[at // block] * block + at % block
                    q = field(kind, self.normal(len(rows), heads * headdim), heads * headdim + pad)
                    seen = np.zeros(3 * each, bool)
                    for a, b in zip(start, end):
                        seen[at[a:b]] = True
                    k, v = (field(kind, np.where(seen[:, None], self.normal(3 * each, kvheads * headdim), np.nan),
                                  kvheads * headdim + pad) for _ in range(2))
                    sinks = torch.tensor(3 * np.arange(heads) - 6.0 if sunk else [], dtype=TYPES[kind])
                    out = empty(kind, len(rows), heads * headdim, heads * headdim + pad)
                    want = self.attended(q.numpy().reshape(len(rows), heads, headdim),
                                         k.numpy()[at].reshape(-1, kvheads, headdim),
                                         v.numpy()[at].reshape(-1, kvheads, headdim), start, end, group, window,
                                         headdim**-0.5, cap, sinks.double().numpy() if sunk else None)
                    launch(f"attend_cache.{kind}.{variant}", out, q, k, v, sinks, ints(start + FAR), ints(end + FAR),
                           ints(list(table) + FAR) if block else ints([]), len(rows), heads, kvheads, group, headdim,
                           window, max(block, 1), out.stride, q.stride, k.stride, v.stride, headdim**-0.5, cap)
                    self.near(numbers(out), want.reshape(len(rows), -1), kind, 4, out)

    def test_put(self):
        for kind, variant, rows, cols, pad in self.shapes():
            cache = field(kind, self.normal(rows + 3, cols), pad(cols))
            x = field(kind, self.normal(rows, cols), pad(cols))
            at = self.rng.permutation(rows + 3)[:rows]
            at = np.where(at % 5 == 1, -1 - at, at)
            want = numbers(cache).copy()
            want[at[at >= 0]] = numbers(x)[at >= 0]
            launch(f"put.{kind}.{variant}", cache, x, ints(list(at) + FAR), rows, cols, rows + 3, cache.stride,
                   x.stride)
            self.same(numbers(cache), want, cache)

    def passes(self, sequences, each):
        """Passes over mixtures of sequences: for each its start and end, and where their rows are in all sequences."""
        done = [0] * sequences
        for most in (3, 9, 1, 2, 6):
            rows = []
            for sequence in self.rng.permutation(sequences):
                for _ in range(min(self.rng.integers(most + 1), each - done[sequence])):
                    rows.append((sequence, done[sequence]))
                    done[sequence] += 1
            rows.sort(key=lambda row: row[1])  # rows of others are between those of a sequence
            if rows:
                at = [each * s + at for s, at in rows]
                yield [each * s for s, _ in rows], [row + 1 for row in at], at

    def test_convolution(self):
        sequences, each = 3, 12
        for kind in TYPES:
            for variant, cols, taps in (("any", 37, 4), ("any", 5, 2), ("any", 3, 8), ("a16", 48, 4)):
                with self.subTest(f"{kind}.{variant} {cols} columns, taps {taps}"):
                    pad = lambda n: n + (16 if variant == "a16" else 3)
                    all_x = self.normal(sequences * each, cols)
                    w = field(kind, self.normal(cols, taps), taps + 1)
                    tail = empty(kind, sequences * (taps - 1), cols, pad(cols))
                    for start, end, at in self.passes(sequences, each):
                        x, y = field(kind, all_x[at], pad(cols)), empty(kind, len(at), cols, pad(cols))
                        exact = field(kind, all_x).numpy()
                        launch(f"continue_conv.{kind}.{variant}", y, tail, x, w, ints(start + FAR), ints(end + FAR),
                               len(at), cols, taps, each, y.stride, tail.stride, x.stride, w.stride)
                        launch(f"keep_rows.{kind}.{variant}", tail, x, ints(start + FAR), ints(end + FAR), len(at),
                               cols, taps - 1, each, tail.stride, x.stride)
                        z = np.array([
                            sum(w.numpy()[:, taps - 1 - back] * exact[row - back] for back in range(taps)
                                if row - back >= first) for row, first in zip(at, start)
                        ])
                        self.near(numbers(y), silu(z), kind, 4, y, tail)
                        for first, stop in zip(start, end):
                            if stop == max(e for f, e in zip(start, end) if f == first):
                                for row in range(max(first, stop - taps + 1), stop):
                                    kept = tail.numpy()[first // each * (taps - 1) + (row - first) % (taps - 1)]
                                    self.assertTrue((kept == exact[row]).all())

    def test_recurrence(self):
        sequences, each = 3, 12
        for kind in TYPES:
            for keyheads, heads, keydim, valuedim in ((1, 2, 5, 3), (2, 4, 16, 40), (1, 1, 128, 33)):
                with self.subTest(f"{kind} {heads} heads of {valuedim}, {keyheads} of {keydim}"):
                    cols, total = 2 * keyheads * keydim + heads * valuedim, sequences * each
                    all_qkv = field(kind, self.normal(total, cols))
                    decay = -self.rng.random((total, heads)).astype(f32)
                    beta, size = self.rng.random((total, heads)).astype(f32), heads * keydim * valuedim
                    states = Field(torch.float32, sequences, size, stride=size)
                    want = np.zeros((sequences, heads, keydim, valuedim))
                    for start, end, at in self.passes(sequences, each):
                        dense = lambda x: Field(torch.float32, len(at), heads, x[at], stride=heads)
                        qkv = field(kind, numbers(all_qkv)[at], cols + 3)
                        out = empty(kind, len(at), heads * valuedim, heads * valuedim + 3)
                        launch(f"continue_delta.{kind}", out, states, qkv, dense(decay), dense(beta), ints(start + FAR),
                               ints(end + FAR), len(at), sequences, keyheads, heads, keydim, valuedim, each, out.stride,
                               qkv.stride)
                        expected = np.zeros((len(at), heads, valuedim))
                        for i, row in enumerate(at):
                            q, k = (all_qkv.numpy()[row, p * keyheads * keydim:][:keyheads * keydim].reshape(
                                keyheads, -1) for p in (0, 1))
                            q, k = (x / np.sqrt((x * x).sum(1, keepdims=True) + 1e-6) for x in (q, k))
                            values = all_qkv.numpy()[row, 2 * keyheads * keydim:].reshape(heads, valuedim)
                            for h in range(heads):
                                s = want[row // each, h]
                                s *= np.exp(np.float64(decay[row, h]))
                                key = k[h // (heads // keyheads)]
                                s += np.outer(key, beta[row, h] * (values[h] - key @ s))
                                expected[i, h] = q[h // (heads // keyheads)] / np.sqrt(keydim) @ s
                        self.near(numbers(out), expected.reshape(len(at), -1), kind, 2, out, states)
                        for sequence in {first // each for first in start}:
                            self.near(numbers(states)[sequence], want[sequence].reshape(-1), "f32", 4)


if __name__ == "__main__":
    unittest.main()
