"""recurrent.py in Triton's interpreter, against plain NumPy: python -m unittest test_recurrent"""

import itertools
import unittest

import interpreted  # first

import numpy as np
import torch

from test_kernels import TYPES, Case, empty, f32, field, ints, launch, numbers
from poisoned import Field

FAR = [-2 ** 31] * 64  # an index that was not masked leaves all memory


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


class RecurrentTest(Case):

    def starts(self, rows, *lengths):
        """The first row of each row's document; the last document has the rows that are left."""
        firsts = [first for first in np.cumsum([0, *lengths]) if first < rows]
        return [max(first for first in firsts if first <= t) for t in range(rows)]

    def test_convolution(self):
        cases = ((17, 37, 4, ()), (20, 5, 4, (1, 2, 5)), (1, 1, 1, ()), (9, 3, 8, (3, 1)), (5, 300, 7, ()),
                 (70, 5, 4, (10, 30)))
        aligned = ((19, 16, 4, (1, 2, 5)), (5, 272, 3, ()))
        for kind, (variant, (rows, cols, taps, lengths)) in itertools.product(
                TYPES, [("any", c) for c in cases] + [("a16", c) for c in aligned]):
            with self.subTest(f"{kind}.{variant} [{rows}, {cols}] taps {taps} documents {lengths}"):
                pad = (lambda n: n + 16) if variant == "a16" else (lambda n: n + 3)
                x, dy, w = field(kind, self.normal(rows, cols),
                                 pad(cols)), field(kind, self.normal(rows, cols),
                                                   pad(cols)), field(kind, self.normal(cols, taps), taps + 1)
                start = self.starts(rows, *lengths)
                y, dx = empty(kind, rows, cols, pad(cols)), empty(kind, rows, cols, pad(cols))
                numbers_x, numbers_w = x.numpy(), w.numpy()
                seen = [[(j, t - taps + 1 + j) for j in range(taps) if t - taps + 1 + j >= start[t]]
                        for t in range(rows)]
                z = np.array([sum(numbers_w[:, j] * numbers_x[at] for j, at in row) for row in seen])
                s = sigmoid(z)
                dz = dy.numpy() * s * (1 + z * (1 - s))
                want_dx, want_dw = np.zeros((rows, cols)), self.normal(cols, taps)
                dw = field("f32", want_dw, taps + 2)
                want_dw = want_dw.astype(np.float64)
                for t, row in enumerate(seen):
                    for j, at in row:
                        want_dx[at] += numbers_w[:, j] * dz[t]
                        want_dw[:, j] += dz[t] * numbers_x[at]
                launch(f"causal_conv.{kind}.{variant}", y, x, w, ints(start + FAR), rows, cols, taps, y.stride,
                       x.stride, w.stride)
                self.near(numbers(y), z * s, kind, 4, y)
                slices = 16
                part = Field(torch.float32, slices, cols * taps, stride=cols * taps)
                for wanted in (0, 1):
                    launch(f"causal_conv_grad.{kind}.{variant}", dx, part, dy, x, w, ints(start + FAR), rows, cols,
                           taps, slices, wanted, dx.stride, dy.stride, x.stride, w.stride)
                    self.assertEqual(np.isnan(part.numpy()).any(), not wanted)
                    self.near(numbers(dx), want_dx, kind, 16, dx)
                launch("taps_fold.f32", dw, part, slices, cols, taps, dw.stride)
                self.near(numbers(dw), want_dw, "f32", 32, dw, part)

    def test_gates(self):
        for kind, variant, rows, cols, pad in self.shapes():
            if rows * cols > 3000:
                continue  # the interpreter is slow
            for each in (1, ) if variant == "a16" else (1, 3) if rows * cols > 20 else (3, 130):
                for silu in (0, 1):
                    for in_place in (False, True):
                        wide = cols * each
                        x, dy = field(kind, self.normal(rows, wide),
                                      pad(wide)), field(kind, self.normal(rows, wide), pad(wide))
                        # Far into both tails.
                        gates = field(kind,
                                      self.normal(rows, cols) * np.array([1, 1, 30], f32)[np.arange(cols) % 3],
                                      pad(cols))
                        g, v, d = gates.numpy().repeat(each, 1), x.numpy(), dy.numpy()
                        s = sigmoid(g)
                        act, slope = (g * s, s * (1 + g * (1 - s))) if silu else (s, s * (1 - s))
                        dx, dgate = (dy, gates) if in_place else (empty(kind, rows, wide, pad(wide)),
                                                                  empty(kind, rows, cols, pad(cols)))
                        strides = (dx.stride, dgate.stride, dy.stride, x.stride, gates.stride)
                        if each == 1:
                            launch(f"gate_grad_each.{kind}.{variant}", dx, dgate, dy, x, gates, rows, cols, silu,
                                   *strides)
                        else:
                            launch(f"gate_grad.{kind}", dx, dgate, dy, x, gates, rows, wide, each, silu, *strides)
                        self.near(numbers(dx), d * act, kind, 1, dx)
                        self.near(numbers(dgate), (d * v * slope).reshape(rows, cols, each).sum(2), kind, 16, dgate)
                        if in_place:
                            gates.mat.copy_(torch.from_numpy(g[:, ::each].astype(f32)))
                        y = x if in_place else empty(kind, rows, wide, pad(wide))
                        launch(f"gate.{kind}.{variant}", y, x, gates, rows, wide, each, silu, y.stride, x.stride,
                               gates.stride)
                        self.near(numbers(y), v * act, kind, 1, y)

    def test_decays(self):
        for kind in ("f32", "bf16"):
            for rows, heads in ((1, 1), (37, 5), (100, 70)):
                wide = lambda: field(kind,
                                     self.normal(rows, heads) * np.array([1, 3, 30], f32)[np.arange(heads) % 3], heads +
                                     3)
                a, b, alog, dtbias = wide(), wide(), field(kind,
                                                           self.normal(1, heads)), field(kind, self.normal(1, heads))
                dense = lambda: Field(torch.float32, rows, heads, stride=heads)
                decay, beta = dense(), dense()
                launch(f"delta_gates.{kind}", decay, beta, a, b, alog, dtbias, rows, heads, a.stride, b.stride)
                x, rate = a.numpy() + dtbias.numpy(), -np.exp(alog.numpy())
                want = rate * np.logaddexp(0, x)
                # Small decays keep their digits: the limit is a share of each.
                self.assertTrue((np.abs(decay.numpy() - want) <= 4e-6 * np.abs(want) + 1e-37).all())
                self.near(numbers(beta), sigmoid(b.numpy()), "f32", 1, beta, decay)
                ddecay, dbeta = dense(), dense()
                for f in (ddecay, dbeta):
                    f.mat.copy_(torch.from_numpy(self.normal(rows, heads)))
                da, db, slices = empty(kind, rows, heads, heads + 1), empty(kind, rows, heads, heads + 2), 3
                part = Field(torch.float32, 2 * slices, heads, stride=heads)
                launch(f"delta_gates_grad.{kind}", part, da, db, ddecay, dbeta, a, b, alog, dtbias, rows, heads, slices,
                       da.stride, db.stride, a.stride, b.stride)
                want_a, y = ddecay.numpy() * rate * sigmoid(x), sigmoid(b.numpy())
                self.near(numbers(da), want_a, kind, 8, da)
                self.near(numbers(db), dbeta.numpy() * y * (1 - y), kind, 1, db)
                sums = part.numpy().reshape(2, slices, heads).sum(1)
                self.near(sums[:1], (ddecay.numpy() * want).sum(0)[None], "f32", 2000, part)
                self.near(sums[1:], want_a.sum(0)[None], "f32", 200, part)


if __name__ == "__main__":
    unittest.main()
