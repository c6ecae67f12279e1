"""matmul.py in Triton's interpreter against float64: python -m unittest test_matmul"""

import itertools
import unittest

import interpreted  # first

import numpy as np
import torch

import matmul
from poisoned import Field

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SHAPES = ((1, 1, 1), (1, 37, 3), (3, 1, 131), (17, 37, 100), (50, 131, 17), (37, 3, 150), (70, 40, 64))
BLOCKS = dict(BLOCK_M=32, BLOCK_N=16, BLOCK_K=32, GROUP_M=2)


class MatMulTest(unittest.TestCase):
    def check(self, shape, source, result, trans_a, trans_b, accumulate, kernel):
        m, n, k = shape
        rng = np.random.default_rng(m * n + k)
        a = Field(TYPES[source], *((k, m) if trans_a else (m, k)), rng.standard_normal((k, m) if trans_a else (m, k)))
        b = Field(TYPES[source], *((n, k) if trans_b else (k, n)), rng.standard_normal((n, k) if trans_b else (k, n)))
        c = Field(TYPES[result], m, n, rng.standard_normal((m, n)) if accumulate == "in place" else None)
        base = Field(TYPES[result], m, n, rng.standard_normal((m, n))) if accumulate == "onto" else c
        want = (a.numpy().T if trans_a else a.numpy()) @ (b.numpy().T if trans_b else b.numpy())
        if accumulate:
            want += base.numpy()
        programs = -(-m // BLOCKS["BLOCK_M"]) * -(-n // BLOCKS["BLOCK_N"])
        flags = (int(trans_a), int(trans_b), int(bool(accumulate))) if kernel is matmul.matmul_any else (int(bool(accumulate)),)
        constants = BLOCKS if kernel is matmul.matmul_any else dict(TRANS_A=trans_a, TRANS_B=trans_b, **BLOCKS)
        kernel[(programs,)](c.mat, base.mat, a.mat, b.mat, m, n, k, c.stride, base.stride, a.stride, b.stride, *flags, **constants)
        # One rounding of the result, and those of a sum in fp32.
        error = np.abs(c.numpy() - want)
        limit = np.abs(want) * (2 ** -8 if result == "bf16" else 2 ** -23) + 2e-7 * k ** 0.5 * 4
        self.assertFalse(np.isnan(c.numpy()).any())
        self.assertTrue((error <= limit).all(), f"off by {error.max()}")
        self.assertTrue(c.intact_outside(), "written outside")

    def test_against_float64(self):
        shapes = [(matmul.matmul_any, s) for s in SHAPES] + [(matmul.matmul, s) for s in SHAPES[3:5]]
        for (kernel, shape), source, result in itertools.product(shapes, TYPES, TYPES):
            for trans_a, trans_b, accumulate in itertools.product((False, True), (False, True), ("", "in place", "onto")):
                what = f"{kernel.__name__} {shape} {source}->{result} trans {trans_a} {trans_b} {accumulate}"
                with self.subTest(what):
                    self.check(shape, source, result, trans_a, trans_b, accumulate, kernel)

    def test_nothing_to_sum(self):
        self.check((3, 5, 0), "f32", "f32", False, False, "", matmul.matmul_any)


class PlaceTest(unittest.TestCase):
    def test_each_tile_once(self):
        """Groups of rows that do not divide the rows of tiles: every tile is one program's."""
        for tiles_m, tiles_n in itertools.product(range(1, 8), range(1, 5)):
            m, n = tiles_m * 16 - 3, tiles_n * 16 - 5
            ones = lambda rows, cols: torch.ones(rows, cols)
            c = torch.zeros(m, n)
            matmul.matmul_any[(tiles_m * tiles_n,)](c, c, ones(m, 1), ones(1, n), m, n, 1, n, n, 1, n, 0, 0, 1, BLOCK_M=16, BLOCK_N=16,
                                                    BLOCK_K=16, GROUP_M=3)
            self.assertTrue((c == 1).all(), (tiles_m, tiles_n))


if __name__ == "__main__":
    unittest.main()
