"""routing.py and experts.py in Triton's interpreter, against plain NumPy: python -m unittest test_experts"""

import itertools
import unittest

import interpreted  # first

import numpy as np
import torch

from test_kernels import TYPES, UNITS, Case, empty, field, ints, launch, numbers, rounded, unit


def scores(logits, sigmoid):
    if sigmoid:
        return 1 / (1 + np.exp(-logits))
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def best(x, n):
    """The numbers of the n greatest, of equal ones the first; a NaN is the least."""
    return sorted(range(len(x)), key=lambda i: (-x[i] if x[i] == x[i] else np.inf, i))[:n]


class RoutingTest(Case):
    # rows, experts, topk, sigmoid, renormalize, scale, groups, topgroups, bybest, biased
    SPECS = ((1, 1, 1, 0, 0, 1, 1, 0, 0, 0), (5, 7, 2, 0, 1, 1.5, 1, 0, 0, 1), (5, 6, 6, 0, 0, 1, 1, 0, 0, 0),
             (9, 24, 4, 1, 1, 2.5, 4, 2, 0, 1), (3, 16, 2, 1, 0, 1, 8, 1, 0, 0), (7, 20, 3, 0, 0, 16, 5, 2, 1, 0),
             (4, 6, 2, 0, 0, 1, 6, 3, 1, 1), (5, 128, 3, 1, 0, 1, 1, 0, 0, 0))
    WIDE = ((3, 300, 10, 0, 1, 1, 1, 0, 0, 0), (2, 512, 8, 1, 1, 2.5, 8, 4, 0, 1), (2, 160, 6, 0, 0, 16, 8, 3, 1, 0))

    def specs(self):
        for variant, specs in (("narrow", self.SPECS), ("any", self.SPECS[1:6:2] + self.WIDE)):
            for spec in specs:
                with self.subTest(f"{variant} {spec}"):
                    yield (variant, *spec)

    def test_route(self):
        for variant, rows, experts, topk, sigmoid, renormalize, scale, *rest in self.specs():
            groups, topgroups, bybest, biased = rest
            for ties in (False, True):
                x = self.normal(rows, experts)
                logits = field("f32", np.round(x) if ties else x, experts + 3)
                bias = field("f32", self.normal(1, experts), experts)
                choices, weights = torch.full((rows, topk), -1, dtype=torch.int32), empty("f32", rows, topk, topk)
                launch(f"route.{variant}", choices, weights, logits, bias, rows, experts, topk, groups, topgroups,
                       bybest, logits.stride, sigmoid, renormalize, biased, scale)
                of = scores(logits.numpy(), sigmoid)
                want, parts = [], []
                for row in of:
                    by = row + (bias.numpy()[0] if biased else 0)
                    if groups > 1:
                        size = experts // groups
                        of_groups = [np.sort(by[g * size:][:size])[bybest - 2:].sum() for g in range(groups)]
                        left = best(of_groups, topgroups)
                        by = np.where([e // size in left for e in range(experts)], by, -np.inf)
                    want.append(sorted(best(by, topk)))
                    part = row[want[-1]]
                    parts.append(part / (part.sum() if renormalize else 1) * scale)
                self.assertTrue((choices.numpy() == want).all())
                self.near(numbers(weights), np.array(parts), "f32", 1, weights)

    def test_numbers_that_are_none(self):
        x = np.array([[np.nan, 1, 0, np.nan], [-np.inf, np.nan, 3, 2], [np.nan] * 4, [0, 0, 0, -np.inf]])
        choices, weights = torch.full((4, 3), -1, dtype=torch.int32), empty("f32", 4, 3, 3)
        launch("route.narrow", choices, weights, field("f32", x), field("f32", x), 4, 4, 3, 1, 0, 0, 9, 0, 0, 0, 1.0)
        self.assertEqual(choices.tolist(), [[0, 1, 2], [0, 2, 3], [0, 1, 2], [0, 1, 2]])

    def test_count_choices(self):
        for experts in (1, 7, 128, 300):
            starts = np.concatenate([[0], np.cumsum(self.rng.integers(0, 9, experts))])
            counts = empty("f32", 1, experts, experts)
            launch("count_choices", counts, ints(starts), experts, 0.3)
            self.near(numbers(counts), np.diff(starts)[None] * 0.3, "f32", 1, counts)

    def test_scale_choices(self):
        for n, experts in ((1, 1), (7, 3), (2500, 5), (600, 300)):
            of = self.rng.integers(0, experts, n)
            choices, x = ints(of), self.normal(1, n)
            for kind in TYPES:
                factors, y = field(kind, self.normal(1, experts)), field("f32", x)
                launch(f"scale_choices.{kind}", y, y, factors, choices, n)
                self.near(numbers(y), x * factors.numpy()[:, of], "f32", 1, y)
            dy, sums = self.normal(1, n), self.normal(1, experts)
            dfactors = field("f32", sums)
            launch("scale_choices_grad", dfactors, field("f32", dy), field("f32", x), choices, n, experts)
            want = sums + np.bincount(of, (x * dy)[0], experts)[None]
            self.near(numbers(dfactors), want, "f32", np.sqrt(n) + 1, dfactors)

    def test_route_grad(self):
        for variant, rows, experts, topk, sigmoid, renormalize, scale, *_ in self.specs():
            for kind in TYPES:
                logits, dweights = field("f32", self.normal(rows, experts), experts + 3), field("f32", self.normal(rows, topk), topk)
                chosen = np.array([sorted(self.rng.permutation(experts)[:topk]) for _ in range(rows)])
                dlogits = empty(kind, rows, experts, experts + 1)
                launch(f"route_grad.{kind}.{variant}", dlogits, dweights, logits, ints(chosen), rows, experts, topk, dlogits.stride,
                       logits.stride, sigmoid, renormalize, scale)
                of = scores(logits.numpy(), sigmoid)
                part, d = np.take_along_axis(of, chosen, 1), dweights.numpy()
                by = part.sum(1, keepdims=True) if renormalize else 1
                mean = (part / by * d).sum(1, keepdims=True) if renormalize else 0
                ds = np.zeros_like(of)
                np.put_along_axis(ds, chosen, scale * (d - mean) / by, 1)
                want = ds * of * (1 - of) if sigmoid else of * (ds - (of * ds).sum(1, keepdims=True))
                self.near(numbers(dlogits), want, kind, 4 * scale, dlogits)

    def test_sort(self):
        for n, experts in ((0, 3), (1, 1), (7, 3), (2500, 5), (100, 300)):
            with self.subTest(f"{n} of {experts}"):
                choices = self.rng.integers(0, experts, n)
                order, rank, starts = (torch.full((max(k, 1),), -1, dtype=torch.int32) for k in (n, n, experts + 1))
                launch("sort_choices", order, rank, starts, ints(choices), n, experts)
                want = np.argsort(choices, kind="stable")
                self.assertEqual(order.tolist()[:n], want.tolist())
                self.assertEqual(rank.tolist()[:n], np.argsort(want).tolist())
                self.assertEqual(starts.tolist(), [int((choices < e).sum()) for e in range(experts + 1)])


class Mixture:
    """A routing, and the blocks of a call. first_expert and experts are those whose weights are there."""

    def __init__(self, rng, tokens, topk, of, rows, first_expert, experts, first, count):
        self.tokens, self.topk, self.rows, self.experts, self.first, self.count = tokens, topk, rows, experts, first, count
        # Expert 1 is a favourite, and so has several blocks.
        self.choices = np.array([sorted(rng.choice(of, topk, False, p=np.where(np.arange(of) == 1, of, 1) / (2 * of - 1)))
                                 for _ in range(tokens)]).reshape(-1)
        self.order = np.argsort(self.choices, kind="stable")
        starts = np.array([(self.choices < e).sum() for e in range(of + 1)])
        self.starts = starts[first_expert:][:experts + 1]
        self.blocks = []  # of the call: expert, rows of the matrix, their choices
        self.places = []  # of the call's blocks: places of these choices in the order
        number = 0
        for e in range(experts):
            for begin in range(self.starts[e], self.starts[e + 1], rows):
                mine = self.order[begin:min(begin + rows, self.starts[e + 1])]
                if first <= number < first + count:
                    at = (number - first) * rows
                    self.blocks.append((e, slice(at, at + len(mine)), mine))
                    self.places.append(slice(begin, begin + len(mine)))
                number += 1
        self.filled = np.zeros(count * rows, bool)
        for _, at, _ in self.blocks:
            self.filled[at] = True

    def args(self):
        """The arguments that most kernels have."""
        return ints(self.starts), self.experts, self.rows, self.first, self.count

    def stretches(self):
        return min(self.experts, self.count)


class ExpertsTest(Case):
    def mixtures(self, cols):
        """Mixtures for variants, with numbers of columns that these take and a stride for such a number."""
        few = ((1, 1, 1, 1, 0, 1, 0, 1), (9, 2, 5, 3, 0, 5, 0, 9), (9, 2, 5, 3, 1, 3, 1, 2), (5, 2, 4, 3, 2, 2, 7, 2))
        many = ((20, 3, 300, 5, 10, 280, 5, 25),)
        for kind, variant, of in itertools.product(TYPES, ("any", "a16"), few + many):
            if of in many and (kind, variant) not in (("f32", "any"), ("bf16", "a16")):
                continue  # the interpreter is slow
            with self.subTest(f"{kind}.{variant} {of}"):
                c = cols[variant]
                yield kind, variant, Mixture(self.rng, *of), c, (lambda n, a=variant: n + (16 if a == "a16" else 3))

    COLS = {"any": 37, "a16": 528}

    def block_matrix(self, m, kind, cols, stride):
        """Numbers in the rows that blocks fill, NaN in the others."""
        return field(kind, np.where(m.filled[:, None], self.normal(m.count * m.rows, cols), np.nan), stride)

    def rows_near(self, m, got, want, kind, scale, *written):
        if m.blocks:
            self.near(got[m.filled], want[m.filled], kind, scale, *written)
        self.assertTrue(np.isnan(got[~m.filled]).all(), "rows are written that no block has")

    def test_gather(self):
        for kind, variant, m, cols, pad in self.mixtures(self.COLS):
            x, y = field(kind, self.normal(m.tokens, cols), pad(cols)), empty(kind, m.count * m.rows, cols, pad(cols))
            want = numbers(y).copy()
            for _, at, choices in m.blocks:
                want[at] = numbers(x)[choices // m.topk]
            launch(f"gather_rows.{kind}.{variant}", y, x, ints(m.order), *m.args(), m.topk, cols, y.stride, x.stride)
            self.same(numbers(y), want, y)

    def test_bias_grad(self):
        for kind, variant, m, cols, pad in self.mixtures({"any": 37, "a16": 80}):
            for weighted in (0, 1):
                dy, bias = self.block_matrix(m, kind, cols, pad(cols)), field(kind, self.normal(m.experts, cols), pad(cols))
                db = field("f32", self.normal(m.experts, cols), pad(cols))
                weights, dweights = (field("f32", self.normal(m.tokens, m.topk), m.topk) for _ in range(2))
                want, dots = numbers(db).astype(np.float64), numbers(dweights).astype(np.float64).reshape(-1)
                w = weights.numpy().reshape(-1)
                for e, at, choices in m.blocks:
                    want[e] += ((w[choices, None] if weighted else 1) * dy.numpy()[at]).sum(0)
                    dots[choices] += dy.numpy()[at] @ bias.numpy()[e]
                launch(f"expert_bias_grad.{kind}.{variant}", db, dy, weights, ints(m.order), *m.args(), m.stretches(), cols, weighted,
                       db.stride, dy.stride)
                self.near(numbers(db), want, "f32", 8, db)
                launch(f"expert_bias_dot.{kind}.{variant}", dweights, dy, bias, ints(m.order), *m.args(), cols, dy.stride, bias.stride)
                self.near(numbers(dweights).reshape(-1), dots, "f32", 16, dweights)

    def test_glu(self):
        for kind, variant, m, inner, pad in self.mixtures({"any": 37, "a16": 592}):
            for word, *numbers_of in UNITS:
                gateup, dy = self.block_matrix(m, kind, 2 * inner, pad(2 * inner)), self.block_matrix(m, kind, inner, pad(inner))
                weights, dweights = (field("f32", self.normal(m.tokens, m.topk), m.topk) for _ in range(2))
                y = empty(kind, m.count * m.rows, inner, pad(inner))
                d = dy.numpy()
                act, by_gate, by_up = unit(gateup.numpy()[:, :inner], gateup.numpy()[:, inner:], word, *numbers_of)
                launch(f"expert_glu.{word}.{kind}.{variant}", y, gateup, *m.args(), inner, y.stride, gateup.stride,
                       *numbers_of)
                self.rows_near(m, numbers(y), act, kind, 1, y)
                w, sums = np.zeros((m.count * m.rows, 1)), numbers(dweights).astype(np.float64).reshape(-1)
                for _, at, choices in m.blocks:
                    w[at, 0] = weights.numpy().reshape(-1)[choices]
                    sums[choices] = (d * act)[at].sum(1)
                want = np.concatenate((d * by_gate, d * by_up), 1)
                launch(f"expert_glu_grad.{word}.{kind}.{variant}", gateup, dy, dweights, dy, gateup, weights,
                       ints(m.order), *m.args(), inner, gateup.stride, dy.stride, dy.stride, gateup.stride, *numbers_of)
                self.rows_near(m, numbers(gateup), w * want, kind, 4, gateup)
                self.rows_near(m, numbers(dy), w * act, kind, 2, dy)
                self.near(numbers(dweights).reshape(-1), sums, "f32", 16, dweights)

    def test_combine(self):
        sizes = (1, 1), (7, 3), (5, 8)
        for kind, variant, (n, topk), weighted in itertools.product(TYPES, ("any", "a16"), sizes, (0, 1)):
            for begin in dict.fromkeys((kind, "f32")):
                with self.subTest(f"{kind}.{begin}.{variant} {n} {topk} {weighted}"):
                    cols, pad = ((37, 40), (1040, 1056))[variant == "a16"]
                    x, y = field(kind, self.normal(n * topk + 3, cols), pad), field(kind, self.normal(n, cols), pad)
                    of = y if begin == kind else field("f32", self.normal(n, cols), pad)
                    weights = field("f32", self.normal(n, topk), topk)
                    places = self.rng.permutation(n * topk + 3)[:n * topk].reshape(n, topk)
                    w = weights.numpy() if weighted else np.ones((n, topk))
                    want = of.numpy() + (w[:, :, None] * x.numpy()[places]).sum(1)
                    name = f"combine_rows.{'f32' if begin == 'f32' else 'own'}.{kind}.{variant}"
                    launch(name, y, x, of, weights, ints(places), n, topk, cols, weighted, y.stride, x.stride,
                           of.stride)
                    self.near(numbers(y), want, kind, 8, y)

    def test_products(self):
        sizes = {"any": (37, 70), "a16": (80, 272)}
        for kind, variant, m, (k, n), pad in self.mixtures(sizes):
            for transposed, placed in ((0, 0), (1, 0), (1, 1)):
                a = self.block_matrix(m, kind, k, pad(k))
                w = field(kind, self.normal(m.experts * (n if transposed else k), k if transposed else n), pad(k if transposed else n))
                bias = field(kind, self.normal(m.experts, n), pad(n))
                c = empty(kind, len(m.order) if placed else m.count * m.rows, n, pad(n))
                want = np.full(numbers(c).shape, np.nan)
                for (e, at, _), place in zip(m.blocks, m.places):
                    of = w.numpy()[e * (n if transposed else k):][:n if transposed else k]
                    product = a.numpy()[at] @ (of.T if transposed else of)
                    want[place if placed else at] = product + placed * bias.numpy()[e]
                name = f"expert_matmul.{kind}.{('nn', 'nt')[transposed]}.{variant}"
                launch(name, c, a, w, bias, *m.args(), n, k, placed, placed, c.stride, a.stride, w.stride, bias.stride)
                filled = ~np.isnan(want[:, 0])
                if filled.any():
                    self.near(numbers(c)[filled], want[filled], kind, 8, c)
                self.assertTrue(np.isnan(numbers(c)[~filled]).all(), "rows are written that no block has")

    def test_weight_grads(self):
        for kind, variant, m, (k, n), pad in self.mixtures({"any": (37, 21), "a16": (144, 32)}):
            if m.experts > 100:
                k = n = 16  # the interpreter is slow
            self.weight_grads(kind, variant, m, k, n, pad)

    def test_weight_grads_in_one_loop(self):
        """Blocks of several steps, of which the last is not whole, in calls that begin and end inside of an expert."""
        for rows, first, count in ((21, 0, 9), (16, 0, 9), (21, 1, 2), (37, 0, 1), (5, 2, 12)):
            with self.subTest(f"{count} blocks of {rows} rows from {first}"):
                m = Mixture(self.rng, 40, 2, 3, rows, 0, 3, first, count)
                self.weight_grads("bf16", "a16", m, 32, 16, lambda n: n + 16, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16,
                                  ONE_LOOP=1)

    def weight_grads(self, kind, variant, m, k, n, pad, **constants):
        """Runs a gradient of experts' weights and compares it with float64."""
        dy, x = self.block_matrix(m, kind, k, pad(k)), self.block_matrix(m, kind, n, pad(n))
        dw = field("f32", self.normal(m.experts * k, n), pad(n))
        want = numbers(dw).astype(np.float64)
        for e, at, _ in m.blocks:
            want[e * k:][:k] += dy.numpy()[at].T @ x.numpy()[at]
        launch(f"expert_weight_grad.{kind}.{variant}", dw, dy, x, *m.args(), m.stretches(), k, n, dw.stride, dy.stride,
               x.stride, **constants)
        self.near(numbers(dw), want, "f32", 8, dw)


if __name__ == "__main__":
    unittest.main()
