"""Every kernel but products, attention and those of experts, in Triton's interpreter, against plain NumPy: python -m unittest test_kernels

Kernels are launched as they are declared: with their constants, and on the grid that their expressions give. Operands are in memory
full of NaN, with gaps between rows, so that what strays shows.
"""

import dataclasses
import functools
import importlib
import itertools
import math
import re
import unittest

import interpreted  # first

import numpy as np
import torch
import triton
import triton.language as tl

import adamw
from poisoned import Field

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SOURCES = ("elementwise", "norm", "layernorm", "sums", "rope", "heads", "glu", "loss", "picks", "draws", "embedding", "adamw", "routing",
           "experts", "recurrent", "cache")
SHAPES = ((1, 1), (1, 17), (3, 1), (17, 37), (7, 600))
ALIGNED_SHAPES = ((3, 16), (5, 528), (2, 2064))
f32 = np.float32


@functools.cache
def declared():
    return {k.name: k for source in SOURCES for k in importlib.import_module(source).KERNELS}


def launch(name, *values, **constants):
    """Runs a kernel; values are its arguments in order, tensors or Fields for pointers; constants replace its own."""
    kernel = declared()[name].at("sm80")
    kernel = dataclasses.replace(kernel, constants={**kernel.constants, **constants})
    values = [v.mat if isinstance(v, Field) else v for v in values]
    typed = kernel.typed()
    assert len(typed) == len(values), name
    names = {**kernel.constants, **kernel.numbers, **{n: v for (n, _), v in zip(typed, values)}}
    ceil = lambda e: re.sub(r"ceil\((\w+)/(\w+)\)", r"-(-\1//\2)", e)
    grid = tuple(eval(ceil(e), {}, names) for e in kernel.grid)
    kernel.function[grid](*values, **kernel.constants)


def rounded(x, kind):
    """fp32 numbers in a type, as fp32."""
    return interpreted.from_bf16(interpreted.to_bf16(x)) if kind == "bf16" else np.asarray(x, f32)


def field(kind, values, stride=None):
    values = np.asarray(values, f32)
    return Field(TYPES[kind], *values.shape, rounded(values, kind), stride)


def empty(kind, rows, cols, stride=None):
    return Field(TYPES[kind], rows, cols, stride=stride)


def numbers(f):
    return f.mat.float().numpy()


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def bits_equal(a, b):
    a, b = np.asarray(a, f32), np.asarray(b, f32)
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


class Case(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(7)

    def normal(self, *shape):
        return self.rng.standard_normal(shape).astype(f32)

    def same(self, got, want, *written):
        self.assertTrue(bits_equal(got, want))
        self.whole(*written)

    def near(self, got, want, kind, scale=1.0, *written):
        rel, abso = (2 ** -8, 2 ** -10) if kind == "bf16" else (4e-6, 2e-6)
        error, limit = np.abs(got.astype(np.float64) - want), rel * np.abs(want) + abso * scale
        self.assertFalse(np.isnan(got).any())
        self.assertTrue((error <= limit).all(), f"off by {error.max()}")
        self.whole(*written)

    def whole(self, *written):
        for f in written:
            self.assertTrue(f.intact_outside(), "written outside")

    def shapes(self):
        """Variants with shapes that they take, and a stride for a number of columns."""
        for variant, shapes in (("any", SHAPES), ("a16", ALIGNED_SHAPES)):
            for kind, (rows, cols) in itertools.product(TYPES, shapes):
                with self.subTest(f"{kind}.{variant} [{rows}, {cols}]"):
                    yield kind, variant, rows, cols, (lambda n, a=variant: n + (16 if a == "a16" else 3))


CORNERS = np.array([0.0, -0.0, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -1 - 2 ** -8, 3.4e38, 2 ** -126, 2 ** -133, 2 ** -134, 2 ** -149, np.inf, -np.inf,
                    np.nan], f32)


class ElementwiseTest(Case):
    def test_add(self):
        for kind, variant, rows, cols, pad in self.shapes():
            for alias in ("", "a", "b"):
                a, b = field(kind, self.normal(rows, cols), pad(cols)), field(kind, self.normal(rows, cols), pad(cols))
                y = {"": empty(kind, rows, cols, pad(cols)), "a": a, "b": b}[alias]
                want = rounded(numbers(a) + numbers(b), kind)
                launch(f"add.{kind}.{variant}", y, a, b, rows, cols, y.stride, a.stride, b.stride)
                self.same(numbers(y), want, y)

    def test_scale(self):
        for kind, variant, rows, cols, pad in self.shapes():
            for in_place in (False, True):
                x = field(kind, self.normal(rows, cols), pad(cols))
                y = x if in_place else empty(kind, rows, cols, pad(cols))
                want = rounded(f32(1.7) * numbers(x), kind)
                launch(f"scale.{kind}.{variant}", y, x, rows, cols, y.stride, x.stride, 1.7)
                self.same(numbers(y), want, y)

    def test_cast(self):
        for kind, variant, rows, cols, pad in self.shapes():
            for other in TYPES:
                x = (self.normal(rows, cols) * np.exp2(self.rng.integers(-20, 20, (rows, cols)))).astype(f32)
                x.flat[:len(CORNERS)] = CORNERS[:x.size]
                src, dst = field(kind, x, pad(cols)), empty(other, rows, cols, pad(cols))
                launch(f"cast.{kind}_{other}.{variant}", dst, src, rows, cols, dst.stride, src.stride)
                self.same(numbers(dst), rounded(numbers(src), other), dst)

    def test_bias(self):
        for kind, variant, rows, cols, pad in self.shapes():
            y, bias = field(kind, self.normal(rows, cols), pad(cols)), field(kind, self.normal(1, cols))
            want = rounded(numbers(y) + numbers(bias), kind)
            launch(f"add_bias.{kind}.{variant}", y, bias, rows, cols, y.stride)
            self.same(numbers(y), want, y)

    def test_bias_grad(self):
        for kind, variant, rows, cols, pad in self.shapes():
            if cols > 1000:
                continue
            rows = rows * 67
            dy, db = field(kind, self.normal(rows, cols), pad(cols)), field("f32", self.normal(1, cols))
            part = empty("f32", 32, cols, cols)
            want = numbers(db) + numbers(dy).astype(np.float64).sum(0)
            launch(f"bias_grad.{kind}.{variant}", part, dy, rows, cols, 32, dy.stride)
            launch("fold.f32", db, part, 32, cols)
            self.near(numbers(db), want, "f32", rows ** 0.5 + 1, db, part)


# What is added to a norm's weight, and whether there is one. -0 leaves each number as it is.
WEIGHTS = ((-0.0, 1), (1.0, 1), (-0.0, 0))


class NormTest(Case):
    def cases(self):
        wide = ((1, 1, 1), (3, 1, 100), (5, 3, 37), (2, 1, 2100))
        for variant, groupings in (("any", wide), ("a16", ((3, 2, 48), (2, 1, 2064))), ("narrow", ((3, 2, 48), (5, 9, 64), (2, 1, 256)))):
            for kind, (rows, groups, d) in itertools.product(TYPES, groupings):
                with self.subTest(f"{kind}.{variant} [{rows}, {groups}*{d}]"):
                    yield kind, variant, rows, groups, d, (lambda n, a=variant: n + (3 if a == "any" else 16))

    def test_forward(self):
        for kind, variant, rows, groups, d, pad in self.cases():
            cols, eps = groups * d, 2.0 ** -17
            for offset, weighted in WEIGHTS:
                x, w = field(kind, self.normal(rows, cols), pad(cols)), field(kind, self.normal(1, d))
                y, rstd = empty(kind, rows, cols, pad(cols)), empty("f32", rows, groups, groups)
                v = x.numpy().reshape(rows, groups, d)
                want_rstd = 1 / np.sqrt((v * v).mean(2) + eps)
                want = ((w.numpy() + offset if weighted else 1) * v * want_rstd[:, :, None]).reshape(rows, cols)
                launch(f"rmsnorm.{kind}.{variant}", y, rstd, x, w, rows, groups, d, y.stride, x.stride, eps, offset,
                       weighted)
                self.near(numbers(rstd), want_rstd, "f32", 0, rstd)
                self.near(numbers(y), want, kind, 0, y)

    def grad_cases(self):
        """Variants of the gradient with groups of rows that they take: as few as there are slices, and several turns of each slice."""
        cases = {"any": ((7, 3, 17), (2, 1, 600)), "a16": ((7, 2, 48), (3, 1, 4112)), "narrow": ((3, 2, 48), (41, 9, 64), (13, 1, 256)),
                 "c2048": ((9, 1, 2048), (5, 3, 272)), "c4096": ((9, 1, 3584),), "c8192": ((5, 1, 8192),)}
        for variant, groupings in cases.items():
            for kind, (rows, groups, d), slices in itertools.product(TYPES, groupings, (1, 3)):
                with self.subTest(f"{kind}.{variant} [{rows}, {groups}*{d}] in {slices}"):
                    yield kind, variant, rows, groups, d, slices, (lambda n, a=variant: n + (3 if a == "any" else 16))

    def test_grad(self):
        for kind, variant, rows, groups, d, slices, pad in self.grad_cases():
            cols = groups * d
            for i, (has_resid, alias) in enumerate(((False, ""), (False, "dy"), (True, ""), (True, "resid"))):
                offset, weighted = WEIGHTS[(i + slices) % 3]
                x, w, dy, resid = (field(kind, self.normal(r, c), pad(c)) for r, c in ((rows, cols), (1, d), (rows, cols), (rows, cols)))
                dw, part = field("f32", self.normal(1, d)), empty("f32", slices, d, d)
                v = x.numpy().reshape(rows, groups, d)
                rstd = field("f32", 1 / np.sqrt((v * v).mean(2) + 1e-5), groups)
                r = rstd.numpy()[:, :, None]
                terms = dy.numpy().reshape(rows, groups, d) * v * r
                g = (w.numpy() + offset if weighted else 1) * dy.numpy().reshape(rows, groups, d)
                want = (r * (g - v * r * (g * v * r).mean(2, keepdims=True))).reshape(rows, cols)
                if has_resid:
                    want += resid.numpy()
                want_dw = dw.numpy() + terms.sum((0, 1))
                dx = {"": empty(kind, rows, cols, pad(cols)), "dy": dy, "resid": resid}[alias]
                launch(f"rmsnorm_grad.{kind}{'.resid' if has_resid else ''}.{variant}", part, dx, dy, x, w, rstd, resid if has_resid else x,
                       rows, groups, d, slices, dx.stride, dy.stride, x.stride, resid.stride if has_resid else 0,
                       offset, weighted)
                self.near(numbers(dx), want, kind, 4, dx, part)
                launch("fold.f32", dw, part, slices, d)
                self.near(numbers(dw), want_dw, "f32", (rows * groups) ** 0.5 + 1, dw)


class LayerNormTest(Case):
    def cases(self, cases):
        for variant, shapes in cases.items():
            for kind, (rows, n) in itertools.product(TYPES, shapes):
                with self.subTest(f"{kind}.{variant} [{rows}, {n}]"):
                    yield kind, variant, rows, n, (lambda n, a=variant: n + (3 if a == "any" else 16))

    def rows(self, kind, rows, n, pad):
        """Rows with means far from zero, and what they are normed to, with their means and scales."""
        x = field(kind, self.normal(rows, n) + np.arange(rows)[:, None] % 5, pad(n))
        mean = x.numpy().mean(1, keepdims=True)
        rstd = 1 / np.sqrt(((x.numpy() - mean) ** 2).mean(1, keepdims=True) + 1e-5)
        return x, (x.numpy() - mean) * rstd, np.concatenate((mean, rstd), 1)

    def test_forward(self):
        shapes = {"any": ((1, 1), (3, 100), (2, 1100)), "a16": ((3, 48), (2, 4112))}
        for kind, variant, rows, n, pad in self.cases(shapes):
            for biased in (0, 1):
                x, xhat, want_stat = self.rows(kind, rows, n, pad)
                w, b = field(kind, self.normal(1, n)), field(kind, self.normal(1, n))
                y, stat = empty(kind, rows, n, pad(n)), empty("f32", rows, 2, 2)
                launch(f"layernorm.{kind}.{variant}", y, stat, x, w, b, rows, n, y.stride, x.stride, 1e-5, biased)
                self.near(numbers(stat), want_stat, "f32", 1, stat)
                self.near(numbers(y), w.numpy() * xhat + biased * b.numpy(), kind, 4, y)

    def test_grad(self):
        for kind, variant, rows, n, pad in self.cases({"any": ((7, 17), (2, 1100)), "a16": ((7, 48), (3, 4112))}):
            for around, alias, slices in ((0, "", 1), (0, "dy", 3), (1, "", 3), (1, "resid", 1)):
                x, xhat, stats = self.rows(kind, rows, n, pad)
                stat, dw, part = field("f32", stats, 2), field("f32", self.normal(1, n)), empty("f32", slices, n, n)
                w, dy, resid = (field(kind, self.normal(r, n), pad(n)) for r in (1, rows, rows))
                g = w.numpy() * dy.numpy()
                want = stats[:, 1:] * (g - g.mean(1, keepdims=True) - xhat * (g * xhat).mean(1, keepdims=True))
                want += around * resid.numpy()
                want_dw = dw.numpy() + (dy.numpy() * xhat).sum(0)
                dx = {"": empty(kind, rows, n, pad(n)), "dy": dy, "resid": resid}[alias]
                launch(f"layernorm_grad.{kind}.{variant}", part, dx, dy, x, w, stat, resid, rows, n, slices,
                       dx.stride, dy.stride, x.stride, resid.stride, around)
                self.near(numbers(dx), want, kind, 4, dx, part)
                launch("fold.f32", dw, part, slices, n)
                self.near(numbers(dw), want_dw, "f32", rows ** 0.5 + 1, dw)


class RoPETest(Case):
    def test_turns(self):
        shapes = {"any": ((1, 1, 2), (3, 2, 64), (5, 3, 6), (2, 17, 80), (2, 1, 262)), "a16": ((3, 2, 64), (2, 17, 80), (2, 1, 256))}
        for kind, variant in itertools.product(TYPES, shapes):
            modes = ((0, ""), (1, ""), (0, ".bias"))
            for (rows, heads, headdim), (inverse, biased), in_place in itertools.product(shapes[variant], modes, (False, True)):
                with self.subTest(f"{kind}{biased}.{variant} {rows} {heads} {headdim} {inverse} {in_place}"):
                    cols, half = heads * headdim, headdim // 2
                    angles = np.arange(50)[:, None] * 1e4 ** -(np.arange(half) * 2 / headdim)
                    cos, sin = field("f32", np.cos(angles), half), field("f32", np.sin(angles), half)
                    positions = self.rng.integers(0, 50, rows)
                    stride = cols + (16 if variant == "a16" else 3)
                    x, bias = field(kind, self.normal(rows, cols), stride), field(kind, self.normal(1, cols))
                    v = rounded(numbers(x) + numbers(bias), kind).astype(np.float64) if biased else x.numpy()
                    v = v.reshape(rows, heads, 2, half)
                    c, s = cos.numpy()[positions][:, None], sin.numpy()[positions][:, None] * (-1 if inverse else 1)
                    want = np.stack((v[:, :, 0] * c - v[:, :, 1] * s, v[:, :, 1] * c + v[:, :, 0] * s), 2).reshape(rows, cols)
                    y = x if in_place else empty(kind, rows, cols, stride)
                    launch(f"rope.{kind}{biased}.{variant}", y, x, bias, cos, sin, ints(positions), rows, heads, headdim, inverse, y.stride,
                           x.stride)
                    self.near(numbers(y), want, kind, 2, y)


INF = float("inf")
# Gated units: the word of the activation, alpha, the limit, and what is added to up.
UNITS = (("silu", 1.0, INF, -0.0), ("gelu", 1.0, INF, -0.0), ("gelu_tanh", 1.0, INF, -0.0), ("silu", 1.702, 0.75, 1.0))


def unit(gate, up, word, alpha, limit, plus):
    """A gated unit and its derivatives by gate and up."""
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit) + plus
    if word == "silu":
        s = 1 / (1 + np.exp(-alpha * g))
        slope = s * (1 + alpha * g * (1 - s))
    elif word == "gelu":
        s = np.vectorize(math.erfc)(-g / math.sqrt(2)) / 2
        slope = s + g * np.exp(-g * g / 2) / math.sqrt(2 * math.pi)
    else:
        root = math.sqrt(2 / math.pi)
        tanh = np.tanh(root * (g + 0.044715 * g ** 3))
        s = (1 + tanh) / 2
        slope = s + g * (1 - tanh * tanh) / 2 * root * (1 + 3 * 0.044715 * g * g)
    return g * s * u, np.where(gate > limit, 0, u * slope), np.where(abs(up) > limit, 0, g * s)


class HeadsTest(Case):
    def cases(self):
        for kind, variant in itertools.product(TYPES, ("any", "a16")):
            shapes = {"any": ((1, 1, 1, 0), (5, 3, 7, 4), (3, 20, 70, 1)), "a16": ((5, 3, 64, 128), (17, 20, 80, 16))}
            for rows, heads, width, gap in shapes[variant]:
                with self.subTest(f"{kind}.{variant} {rows} {heads} {width} {gap}"):
                    yield kind, variant, rows, heads, width, width + gap, 16 if variant == "a16" else 3

    def test_move_heads(self):
        for kind, variant, rows, heads, width, step, pad in self.cases():
            for source, to in ((step, width), (width, step), (0, step), (None, step)):
                cols = max(source or 0, width) * heads
                x = field(kind, self.normal(rows, cols), cols + pad)
                y = field(kind, self.normal(rows, to * heads), to * heads + pad)
                want = numbers(y).copy()
                for h in range(heads):
                    part = 0 if source is None else numbers(x)[:, h * source:][:, :width]
                    want[:, h * to:h * to + width] = part
                # No source is a null pointer, as an empty tensor has.
                given = torch.tensor([], dtype=TYPES[kind]) if source is None else x
                launch(f"move_heads.{kind}.{variant}", y, given, rows, heads, width, to, source or 0, y.stride,
                       x.stride)
                self.same(numbers(y), want, y)

    def test_sum_heads(self):
        for kind, variant, rows, heads, width, step, pad in self.cases():
            x = field(kind, self.normal(rows, step * heads), step * heads + pad)
            y = empty(kind, rows, width, width + pad)
            want = np.zeros((rows, width), f32)
            for h in range(heads):
                want += numbers(x)[:, h * step:][:, :width]
            launch(f"sum_heads.{kind}.{variant}", y, x, rows, heads, width, step, y.stride, x.stride)
            self.same(numbers(y), rounded(want, kind), y)


class GLUTest(Case):
    def test_forward_and_backward(self):
        for kind, variant, rows, inner, pad in self.shapes():
            for ups, (word, *numbers_of) in [(1, u) for u in UNITS] + [(0, u) for u in UNITS if u[2] == INF]:
                cols = (1 + ups) * inner
                x = self.normal(rows, cols)
                x[:, :inner:7] *= 60  # far into both tails of the activation
                gateup, dy = field(kind, x, pad(cols)), field(kind, self.normal(rows, inner), pad(inner))
                d = dy.numpy()
                up = gateup.numpy()[:, inner:] if ups else np.ones((rows, inner))
                want_y, by_gate, by_up = unit(gateup.numpy()[:, :inner], up, word, *numbers_of)
                y = empty(kind, rows, inner, pad(inner))
                launch(f"glu.{word}.{kind}.{variant}", y, gateup, rows, inner, y.stride, gateup.stride, ups,
                       *numbers_of)
                self.near(numbers(y), want_y, kind, 1, y)
                want = np.concatenate((d * by_gate, d * by_up), 1)[:, :cols]
                apart = empty(kind, rows, cols, pad(cols)), empty(kind, rows, inner, pad(inner))
                for dgateup, act in (apart, (gateup, dy)):
                    launch(f"glu_grad.{word}.{kind}.{variant}", dgateup, act, dy, gateup, rows, inner, dgateup.stride,
                           act.stride, dy.stride, gateup.stride, ups, *numbers_of)
                    self.near(numbers(dgateup), want, kind, 4, dgateup)
                    self.same(numbers(act), numbers(y), act)


class LossTest(Case):
    def test_tiles(self):
        cases = (("any", 1, 1, 1, 0.0), ("any", 3, 17, 17, 0.0), ("any", 17, 100, 37, 0.0), ("any", 5, 2500, 2100, 0.0),
                 ("a16", 5, 96, 48, 0.0), ("a16", 3, 2256, 2080, 0.0), ("any", 17, 100, 37, 30.0), ("a16", 3, 2256, 2080, 3.0))
        for kind, (variant, rows, vocabulary, tile, cap) in itertools.product(TYPES, cases):
            with self.subTest(f"{kind}.{variant} {rows} {vocabulary} {tile} {cap}"):
                word = ".cap" if cap else ""
                stride = vocabulary + (16 if variant == "a16" else 3)
                logits = field("f32", 10 * self.normal(rows, vocabulary) + np.arange(rows)[:, None] % 3 * 80, stride)
                targets = self.rng.integers(0, vocabulary, rows)
                if cap:  # where many logits are near the cap, targets are the greatest
                    targets[:] = logits.numpy().argmax(1)
                    targets[3::6] = logits.numpy().argmin(1)[3::6]
                targets[::4] = logits.numpy().argmax(1)[::4]
                targets[1::5] = -100
                logits.mat[torch.from_numpy((np.arange(vocabulary) % 11 == 5) & (np.arange(vocabulary) != targets[:, None]))] = -INF
                weights, slopes = self.normal(rows) * 2.0 ** -7, self.normal(rows) * 2.0 ** -8
                slopes[2::7] = 0
                stat, figures = empty("f32", rows, 4, 4), empty("f32", 3, rows, rows)
                grad, sloped = empty(kind, rows, vocabulary, stride), empty(kind, rows, vocabulary, stride)
                launch("lse_init", stat, rows)
                self.same(numbers(stat), np.tile(np.array([-np.inf, 0, 0, 0], f32), (rows, 1)), stat)
                spans = [(a, min(tile, vocabulary - a)) for a in range(0, vocabulary, tile)]
                for first, n in spans:
                    launch(f"lse_update{word}.{variant}", stat, logits.mat[:, first:first + n], ints(targets), rows, n, first,
                           logits.stride, cap)
                launch("token_loss", figures, stat, ints(targets), rows)
                by = field("f32", weights[None], rows)
                for entropy, to, more in (("", grad, by), (".entropy", sloped, field("f32", slopes[None], rows))):
                    for first, n in spans:
                        launch(f"ce_grad.{kind}{entropy}{word}.{variant}", to.mat[:, first:first + n], logits.mat[:, first:first + n],
                               stat, ints(targets), by, more, rows, n, first, to.stride, logits.stride, cap)
                v = cap * np.tanh(logits.numpy() / cap) if cap else np.maximum(logits.numpy(), -1e4)
                p = np.exp(v - v.max(1, keepdims=True))
                lse = v.max(1) + np.log(p.sum(1))
                counts = targets >= 0
                picked = np.where(counts, targets, 0)
                p /= p.sum(1, keepdims=True)
                losses = lse - v[np.arange(rows), picked]
                entropies = lse - (p * v).sum(1)
                hits = v[np.arange(rows), picked] >= v.max(1)
                dentropies = -p * (v - lse[:, None] + entropies[:, None])
                p[np.arange(rows), picked] -= 1
                by_cap = 1 - (v / cap) ** 2 if cap else 1
                want = p * weights[:, None] * by_cap
                want_sloped = want + dentropies * slopes[:, None] * by_cap
                self.near(numbers(figures), np.where(counts, np.stack((losses, entropies, hits)), 0), "f32", 200, figures)
                self.near(numbers(grad), np.where(counts[:, None], want, 0), kind, 8 * 2.0 ** -7, grad, stat)
                self.near(numbers(sloped), np.where(counts[:, None], want_sloped, 0), kind, 8 * 2.0 ** -7, sloped, stat)
                level = slopes == 0  # and then the bits are those without slopes
                self.same(numbers(sloped)[level], numbers(grad)[level], sloped)


class PicksTest(Case):
    def test_tiles(self):
        cases = ((1, 1, 1, 1, 0.0), (17, 100, 37, 9, 0.0), (5, 700, 300, 200, 3.0))
        for kind, (rows, vocabulary, tile, n, cap) in itertools.product(TYPES, cases):
            with self.subTest(f"{kind} {rows} {vocabulary} {tile} {n} {cap}"):
                word = ".cap" if cap else ""
                logits = field("f32", 3 * self.normal(rows, vocabulary), vocabulary + 3)
                grad = field(kind, self.normal(rows, vocabulary), vocabulary + 5)
                ids = np.stack([self.rng.permutation(vocabulary + n)[:n] - n // 2 for _ in range(rows)])
                picked, values = field("f32", self.normal(rows, n), n), field("f32", self.normal(rows, n), n)
                v = cap * np.tanh(logits.numpy() / cap) if cap else logits.numpy()
                slope = 1 - (v / cap) ** 2 if cap else np.ones_like(v)
                want, dwant = picked.numpy().copy(), grad.numpy().copy()
                for row, i in np.ndindex(rows, n):
                    if 0 <= ids[row, i] < vocabulary:
                        want[row, i] = v[row, ids[row, i]]
                        dwant[row, ids[row, i]] = values.numpy()[row, i] * slope[row, ids[row, i]]
                for first in range(0, vocabulary, tile):
                    cols = min(tile, vocabulary - first)
                    there = logits.mat[:, first:first + cols]
                    launch(f"pick_logits{word}", picked, there, ints(ids.ravel()), rows, n, cols, first, logits.stride, cap)
                    launch(f"put_logit_grads.{kind}{word}", grad.mat[:, first:first + cols], there, values, ints(ids.ravel()), rows, n, cols,
                           first, grad.stride, logits.stride, cap)
                self.near(numbers(picked), want, "f32", 8 if cap else 0.01, picked)
                self.near(numbers(grad), dwant, kind, 8, grad)


class DrawsTest(Case):
    def test_tiles(self):
        cases = (("any", 1, 1, 1, 1, 0.0), ("any", 9, 1100, 370, 1099, 0.0), ("any", 5, 700, 301, 400, 3.0), ("a16", 6, 2064, 1040, 2050, 0.0))
        for variant, rows, columns, tile, vocabulary, cap in cases:
            with self.subTest(f"{variant} {rows} {columns} {tile} {vocabulary} {cap}"):
                logits = field("f32", 3 * self.normal(rows, columns), -(-columns // 16) * 16 + 16)
                stat, drawn = field("f32", np.full((rows, 4), np.nan), 4), field("f32", np.zeros((rows, 2)), 2)
                named = self.rng.integers(0, 2 ** 32, (rows, 6), dtype=np.uint32)
                named[:, 4] >>= 2
                inverse = np.asarray([0, 1, 2, 0.5], f32)[np.arange(rows) % 4]
                named[:, 5] = inverse.view(np.uint32)
                for first in range(0, columns, tile):
                    cols = min(tile, columns - first)
                    launch(f"draw_tokens{'.cap' if cap else ''}.{variant}", drawn, stat, logits.mat[:, first:first + cols],
                           ints(named.view(np.int32).ravel()), rows, cols, first, vocabulary, int(first + cols == columns), logits.stride, cap)
                x = logits.numpy()[:, :vocabulary].astype(np.float64)
                x = cap * np.tanh(x / cap) if cap else x
                want = np.zeros((rows, 2))
                for row in range(rows):
                    key0, key1, text0, text1, at, _ = (int(word) for word in named[row])
                    words = [philox(key0 | key1 << 32, text0 | text1 << 32, i | at << 32) for i in range(vocabulary // 4 + 1)]
                    u = (np.asarray(words).ravel()[:vocabulary] + 0.5) / 2 ** 32
                    y = x[row] * (inverse[row] or 1)
                    want[row, 0] = np.argmax(y - np.log(-np.log(u)) if inverse[row] else y)
                    want[row, 1] = y[int(want[row, 0])] - y.max() - np.log(np.exp(y - y.max()).sum())
                self.near(numbers(drawn), want, "f32", 8, drawn, stat)


class EmbeddingTest(Case):
    def cases(self):
        for kind, variant, rows, cols, pad in self.shapes():
            if cols > 1000:
                continue
            rows *= 9
            for first in (0, 50):
                yield kind, variant, rows, cols, pad, first, self.rng.integers(0, 100, rows)

    def test_gather(self):
        for kind, variant, rows, cols, pad, first, ids in self.cases():
            table, y = field(kind, self.normal(40, cols), pad(cols)), field(kind, self.normal(rows, cols), pad(cols))
            want = numbers(y).copy()
            for t, id in enumerate(ids):
                if 0 <= id - first < 40:
                    want[t] = numbers(table)[id - first]
            launch(f"gather.{kind}.{variant}", y, table, ints(ids), rows, cols, first, 40, y.stride, table.stride)
            self.same(numbers(y), want, y)

    def test_scatter_add(self):
        for kind, variant, rows, cols, pad, first, ids in self.cases():
            self.scatter(kind, variant, rows, cols, pad, first, ids)

    def test_scatter_add_over_blocks_of_ids(self):
        """An id that is first met in one block of ids and again in others."""
        rows = 2100
        ids = np.arange(rows) + 100
        ids[[3, 5, 1024, 2047, 2048, 2099]] = 7
        self.scatter("bf16", "any", rows, 5, lambda n: n, 0, ids)

    def scatter(self, kind, variant, rows, cols, pad, first, ids):
        dtable, dy = field("f32", self.normal(40, cols), pad(cols)), field(kind, self.normal(rows, cols), pad(cols))
        for by in (1.0, 1.7):
            want = numbers(dtable).copy()
            for t, id in enumerate(ids):
                if 0 <= id - first < 40:
                    want[id - first] += f32(by) * numbers(dy)[t]
            launch(f"scatter_add.{kind}.{variant}", dtable, dy, ints(ids), rows, cols, first, 40, dtable.stride,
                   dy.stride, by)
            self.same(numbers(dtable), want, dtable)


def sum_in_order(x):
    """The order of device.OptimizerOps."""
    total = 0.0
    for first in range(0, len(x), 65536):
        chunk = x[first:first + 65536].astype(np.float64)
        lanes = np.zeros(16)
        for i in range(0, len(chunk), 16):
            part = chunk[i:i + 16]
            lanes[:len(part)] += part
        for half in (8, 4, 2, 1):
            lanes[:half] += lanes[half:2 * half]
        total += lanes[0]
    return total


class SumTest(Case):
    def test_order(self):
        for n in (1, 17, 131, 65537, 131072 + 300):
            x = (self.normal(n) * np.exp2(np.arange(n) % 40 - 20)).astype(f32)
            for name, kind, square in (("sum.f32", "f32", False), ("sumsq.f32", "f32", True), ("sumsq.bf16", "bf16", True)):
                with self.subTest(f"{name} {n}"):
                    chunks = -(-n // 65536)
                    if chunks > 1 and kind == "bf16":
                        continue  # the interpreter is slow, and its orders are those of f32
                    v = field(kind, x[None])
                    values = numbers(v)[0].astype(np.float64)
                    partials, dst = torch.full((chunks + 2,), float("nan"), dtype=torch.float64), torch.full((1,), 3.0, dtype=torch.float64)
                    launch(name, partials, v, n)
                    self.assertTrue(torch.isnan(partials[chunks:]).all(), "written outside")
                    launch("sum_fold", dst, partials, chunks, 0)
                    want = sum_in_order(values * values if square else values)
                    self.assertEqual(dst.item(), want)

    def test_fold(self):
        for chunks, accumulate in itertools.product((1, 15, 16, 50), (0, 1)):
            partials, dst = torch.from_numpy(self.rng.standard_normal(chunks)), torch.full((1,), 3.0, dtype=torch.float64)
            launch("sum_fold", dst, partials, chunks, accumulate)
            total = 3.0 if accumulate else 0.0
            for p in partials.tolist():
                total += p
            self.assertEqual(dst.item(), total)


SCALARS = tuple(float(f32(x)) for x in (0.75, 1 - 1e-3, 0.1, 0.999, 1 - 0.999, 3e-3, 0.05, 1e-8))


def flush(x):
    return np.where(x.view(np.uint32) & 0x7F800000 == 0, f32(0), x)


def step(p, m, v, g):
    """One step for one parameter, every operation rounded to fp32; and the bits of the longest move."""
    clip, decay, omb1, beta2, omb2, size, sqrtbc2, eps = map(f32, SCALARS)
    with np.errstate(all="ignore"):
        g = clip * g
        p = p * decay
        m = flush(m + (g - m) * omb1)
        v = flush(beta2 * v + (omb2 * g) * g)
        move = (size * m) / (np.sqrt(v) / sqrtbc2 + eps)
        longest = f32(np.abs(move).max() / size)
        return p - move, m, v, (longest if longest == longest else f32(np.inf)).view(np.int32)


def split(p):
    bits = p.view(np.uint32)
    nan = np.isnan(p)
    high = np.where(nan, 0x7FC0, (bits + np.uint32(0x8000)) >> 16).astype(np.uint16)
    return high, np.where(nan, 0, bits & 0xFFFF).astype(np.uint16).view(np.int16)


def split24(p, random):
    """Halves of 24 bits, rounded by 8 bits each of random words."""
    bits = p.view(np.uint32).astype(np.uint64)
    bits = np.where(np.isnan(p), 0x7FC00000, bits) + (random & 0xFF)
    return ((bits + 0x8000) >> 16).astype(np.uint16), (bits >> 8 & 0xFF).astype(np.uint8).view(np.int8)


def random_words(key, part, counter, n):
    return np.array([philox(key, part, counter + i) for i in range(-(-n // 4))], np.uint64).reshape(-1)[:n]


def code_values(signed):
    """What the codes of bitsandbytes' dynamic map stand for."""
    positive = []
    for decade in range(7):
        cells = 2 ** decade if signed else 2 ** (decade + 1)
        edges = np.linspace(0.1, 1, cells + 1, dtype=f32)
        positive += list(f32(10.0 ** (decade - 6)) * ((edges[:-1] + edges[1:]) / 2))
    negative = [-x for x in positive] if signed else []
    return np.sort(np.array([0, 1] + positive + negative, f32))


def scaled(x):
    """Rows in units of their greatest magnitude, and these scales."""
    scale = np.where(np.isnan(x), 0, np.abs(x)).max(1)
    with np.errstate(all="ignore"):
        return x * (f32(1) / np.where(scale == 0, f32(1), scale))[:, None], scale


def nearest(x, values):
    """Codes and scales of rows of 256 first moments, by a search among all means of two codes."""
    zero = int(np.flatnonzero(values == 0)[0])
    y, scale = scaled(x)
    codes = np.zeros(x.shape, np.uint8)
    means = (values[zero:-1] + values[zero + 1:]) * f32(0.5)
    even = (zero + 1 + np.arange(len(means))) % 2 == 0
    for r in np.flatnonzero(scale):
        with np.errstate(all="ignore"):
            k = ((np.abs(y[r])[:, None] > means) | ((np.abs(y[r])[:, None] == means) & even)).sum(1)
        codes[r] = zero + np.where(x[r] < 0, -np.minimum(k, zero), k)
    return codes, scale


def philox(key, part, counter):
    """Philox4x32-10 in Python's integers: four words."""
    k = [key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF]
    c = [counter & 0xFFFFFFFF, counter >> 32, part & 0xFFFFFFFF, part >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def rounded_up(x, values, words):
    """Codes of rows of 256 second moments for random words, where they are clear of the places' error, and where that is; scales."""
    y, scale = scaled(x)
    y = np.clip(np.nan_to_num(y.astype(np.float64), nan=0.0), values[1], 1)
    k = np.clip(np.searchsorted(values, y, "right") - 1, 1, 254)
    place = (y - values[k]) / (values[k + 1].astype(np.float64) - values[k]) * 65536 + (words >> 16)
    codes = k + (place >= 65536)
    codes[scale == 0] = 0
    return codes, (np.abs(place - 65536) > 8) & ((k < 254) | (place < 65536 * 1.99)) | (scale == 0)[:, None], scale


FIRST4 = np.array([(j / 7) ** 2.5 for j in range(8)], f32)
SECOND4 = np.array([1.3 ** (k - 15) for k in range(16)], f32)


def unpacked(codes):
    """Codes of 4 bits from their bytes."""
    return np.stack([codes & 15, codes >> 4], -1).reshape(-1)


def packed(codes):
    low, high = codes.astype(np.uint8).reshape(-1, 2).T
    return low | high << 4


def rounded4(x, values, shares):
    """Codes of rows of 128 magnitudes, rounded by shares of a gap, and scales."""
    y, scale = scaled(np.abs(x))
    codes = np.zeros(x.shape, int)
    for k, value in enumerate(values[1:], 1):
        codes[y >= value] = k
    gaps = np.append(values[1:] - values[:-1], f32(np.inf))
    with np.errstate(all="ignore"):
        codes += y - values[codes] > shares * gaps[codes]
    codes[scale == 0] = 0
    return codes, scale


@triton.jit
def encode(codes, scales, x, values, ZERO: tl.constexpr):
    """One row of 256 first moments."""
    row = tl.program_id(0) + tl.arange(0, 1)[:, None]
    at = row * 256 + tl.arange(0, 256)[None, :]
    code, scale = adamw._encode_first(tl.load(x + at), values, ZERO)
    tl.store(codes + at, code)
    tl.store(scales + row, scale)


class AdamWTest(Case):
    def parameters(self, n):
        p, g = self.normal(n), self.normal(n)
        p[:min(n, len(CORNERS))] = CORNERS[:n]
        g[5::31] *= f32(2.0 ** -130)  # moments become denormal
        g[6::31] = 0
        if n != 1600:  # whose moves are finite
            g[100:101], g[101:102] = np.nan, np.inf
        return p, g

    FORMS = ("split.f32", "split.bf16", "split24.f32", "split24.bf16", "f32.f32")
    DRAW = (0x123456789ABCDEF0, 3 << 33 | 5, (1 << 32) - 9)  # key, part, counter

    def weights(self, p, words):
        """p as the kernel has it, and how to compare it."""
        if words.startswith("split"):
            if words.startswith("split24"):
                high, low = split24(p, np.full(len(p), 0x80, np.uint64))
                rest = low.astype(np.int32) << 8
            else:
                high, low = split(p)
                rest = low.astype(np.int32)
            p = ((high.astype(np.uint32) << 16) + rest.view(np.uint32)).view(f32)
            return p, torch.from_numpy(np.ascontiguousarray(high.view(np.int16))), torch.from_numpy(np.ascontiguousarray(low))
        high = torch.from_numpy(p.copy())
        return p, high, high

    def check_weights(self, p, high, low, words, random):
        """Compares new weights with p, and returns the number of those that are infinite or NaN."""
        if not words.startswith("split"):
            self.assertTrue(bits_equal(high.numpy(), p))
            return (~np.isfinite(p)).sum()
        want_high, want_low = split24(p, random) if words.startswith("split24") else split(p)
        self.assertTrue((high.numpy().view(np.uint16) == want_high).all())
        self.assertTrue((low.numpy() == want_low).all())
        if words.startswith("split24"):
            return (want_high & 0x7F80 == 0x7F80).sum()
        return (~np.isfinite(p)).sum()

    def test_fp32_moments(self):
        for words, variant, n in itertools.product(self.FORMS, ("any", "a16"), (1, 3, 131, 1600)):
            if variant == "a16" and n % 16:
                continue
            with self.subTest(f"{words}.{variant} {n}"):
                p, g = self.parameters(n)
                g = rounded(g, words.split(".")[1])
                m = self.normal(n)
                m[np.arange(n) % 31 <= 6] = f32(2.0 ** -126)
                v = np.abs(m)
                p, high, low = self.weights(p, words)
                tm, tv, tally = torch.from_numpy(m.copy()), torch.from_numpy(v.copy()), torch.tensor([5, 7])
                grad = torch.from_numpy(g).to(TYPES[words.split(".")[1]])
                draw = self.DRAW if words.startswith("split24") else ()
                launch(f"adamw.{words}.{variant}", high, low, tm, tv, grad, tally, n, *draw, *SCALARS)
                p, m, v, longest = step(p, m, v, g)
                bad = self.check_weights(p, high, low, words, random_words(*self.DRAW, n))
                self.assertTrue(bits_equal(tm.numpy(), m) and bits_equal(tv.numpy(), v))
                self.assertEqual(tally.tolist(), [5 + bad, longest])

    def test_8_bit_moments(self):
        signed, unsigned = code_values(True), code_values(False)
        for words, variant, blocks in itertools.product(self.FORMS, ("any", "a16"), (1, 7)):
            with self.subTest(f"{words}.{variant} {blocks}"):
                n = blocks * 256
                p, g = self.parameters(n)
                g = rounded(g, words.split(".")[1])
                scales = np.resize(np.array([1, 0, 2.0 ** -30, 3], f32), blocks)
                codes = [np.where(scales.repeat(256) == 0, 0, self.rng.integers(0, 256, n)).astype(np.uint8) for _ in range(2)]
                p, high, low = self.weights(p, words)
                tm, tv, ms, vs = (torch.from_numpy(x.copy()) for x in (codes[0], codes[1], scales, scales))
                tally, grad = torch.tensor([5, 0]), torch.from_numpy(g).to(TYPES[words.split(".")[1]])
                launch(f"adamw8.{words}.{variant}", high, low, tm, tv, ms, vs, grad, tally, torch.from_numpy(signed), torch.from_numpy(unsigned), n,
                       *self.DRAW, *SCALARS)
                p, m, v, longest = step(p, signed[codes[0]] * scales.repeat(256), unsigned[codes[1]] * scales.repeat(256), g)
                random = random_words(*self.DRAW, n)
                bad = self.check_weights(p, high, low, words, random)
                want, scale = nearest(m.reshape(blocks, 256), signed)
                self.assertTrue(bits_equal(ms.numpy(), scale))
                self.assertTrue((tm.numpy() == want.reshape(-1)).all())
                want, clear, scale = rounded_up(v.reshape(blocks, 256), unsigned, random.reshape(blocks, 256))
                self.assertTrue(bits_equal(vs.numpy(), scale))
                self.assertTrue(((tv.numpy().reshape(blocks, 256) == want) | ~clear).all())
                self.assertGreater(clear.mean(), 0.98)
                self.assertEqual(tally.tolist(), [5 + bad, longest])

    def test_4_bit_moments(self):
        signed = code_values(True)
        for words, variant, blocks, first in itertools.product(self.FORMS, ("any", "a16"), (1, 7), (4, 8)):
            with self.subTest(f"{words}.{variant} {blocks} {first}"):
                n = blocks * 256
                p, g = self.parameters(n)
                g = rounded(g, words.split(".")[1])
                few = np.array([1, 0, 2.0 ** -30, 3, 2.0 ** -126, 2.0 ** -63], f32)
                scales = [np.resize(few, 2 * blocks if first == 4 else blocks), np.resize(few[::-1], 2 * blocks)]
                codes = [np.where(scales[i].repeat(n // len(scales[i])) == 0, 0, self.rng.integers(0, (2 ** first, 16)[i], n)).astype(np.uint8)
                         for i in range(2)]
                p, high, low = self.weights(p, words)
                tm, tv, ms, vs = (torch.from_numpy(x.copy()) for x in (packed(codes[0]) if first == 4 else codes[0], packed(codes[1]), *scales))
                tally, grad = torch.tensor([5, 0]), torch.from_numpy(g).to(TYPES[words.split(".")[1]])
                launch(f"adamw{'4' if first == 4 else '84'}.{words}.{variant}", high, low, tm, tv, ms, vs, grad, tally, torch.from_numpy(signed), n,
                       *self.DRAW, *SCALARS)
                signs = np.where(codes[0] >= 8, f32(-1), f32(1))
                m = (signs * FIRST4[codes[0] & 7] if first == 4 else signed[codes[0]]) * scales[0].repeat(n // len(scales[0]))
                root = SECOND4[codes[1]] * scales[1].repeat(128)
                with np.errstate(all="ignore"):
                    v = root * root
                v[v < f32(2.0 ** -126)] = 0
                p, m, v, longest = step(p, m, v, g)
                random = random_words(*self.DRAW, n)
                bad = self.check_weights(p, high, low, words, random)
                random = random.astype(np.uint32).reshape(2 * blocks, 128)
                if first == 4:
                    want, scale = rounded4(m.reshape(-1, 128), FIRST4, ((random >> 8 & 255).astype(f32) + f32(0.5)) / f32(256))
                    want += 8 * ((m.reshape(-1, 128) < 0) & (want > 0))
                    got = unpacked(tm.numpy())
                else:
                    want, scale = nearest(m.reshape(blocks, 256), signed)
                    got = tm.numpy()
                self.assertTrue(bits_equal(ms.numpy(), scale))
                self.assertTrue((got == want.reshape(-1)).all())
                want, scale = rounded4(np.sqrt(v).reshape(-1, 128), SECOND4, ((random >> 16).astype(f32) + f32(0.5)) / f32(65536))
                self.assertTrue(bits_equal(vs.numpy(), scale))
                self.assertTrue((unpacked(tv.numpy()) == want.reshape(-1)).all())
                self.assertEqual(tally.tolist(), [5 + bad, longest])

    def test_codes_part_at_means(self):
        """First moments at, and next to, the means of two codes, the ends of decades, and the codes."""
        values, zero = code_values(True), 127
        positive = values[zero:]
        points = np.concatenate((positive, (positive[:-1] + positive[1:]) * f32(0.5), f32(10) ** np.arange(-9, 1, dtype=f32), np.geomspace(1e-9, 1, 3000)))
        points = points.astype(f32)[:, None].view(np.int32) + np.arange(-2, 3, dtype=np.int32)
        x = np.clip(np.nan_to_num(points.reshape(-1).view(f32), nan=0.0), 0, 1)
        x = np.resize(x[x <= 1], (-(-len(x) // 255), 255))
        x = np.concatenate((np.ones((len(x), 1), f32), x), 1)  # the scale is 1
        x[:, 1::2] *= -1
        codes, scale = np.zeros(x.shape, np.uint8), np.zeros((len(x), 1), f32)
        tc, ts, tx = torch.from_numpy(codes), torch.from_numpy(scale), torch.from_numpy(x)
        encode[(len(x),)](tc, ts, tx, torch.from_numpy(values), ZERO=zero)
        want, _ = nearest(x, values)
        self.assertTrue((tc.numpy() == want).all(), np.argwhere(tc.numpy() != want)[:5])


if __name__ == "__main__":
    unittest.main()
