"""delta.py and delta_scan.py in Triton's interpreter, against the recurrence in float64: python -m unittest test_delta"""

import unittest

import interpreted  # first

import numpy as np
import torch

import delta
import delta_scan
from poisoned import Field
from test_kernels import TYPES, f32, rounded

CHUNK = 64
BY_NAME = {k.name: k for k in delta.KERNELS + delta_scan.KERNELS}


def starts(lengths):
    """The first row of each row's document."""
    return [first for first, n in zip(np.cumsum([0] + lengths), lengths) for _ in range(n)]


def ends(lengths):
    """The row after the last one of each row's document."""
    return [last for last, n in zip(np.cumsum(lengths), lengths) for _ in range(n)]


def recurrence(q, k, v, decay, beta, dout, start):
    """All results in float64, row by row. Operands of a head are [rows, dim], decay and beta [rows]; q and k as they
    are in memory."""
    rows, (keydim, valuedim) = len(q), (q.shape[1], v.shape[1])
    norm_q, norm_k = (1 / np.sqrt((x * x).sum(1, keepdims=True) + 1e-6) for x in (q, k))
    uq, uk = q * norm_q / np.sqrt(keydim), k * norm_k
    found, out, wrong = np.zeros((rows + 1, keydim, valuedim)), np.zeros((rows, valuedim)), np.zeros((rows, valuedim))
    left = found.copy()
    for t in range(rows):
        found[t] = 0 if start[t] == t else left[t - 1]
        s = np.exp(decay[t]) * found[t]
        wrong[t] = v[t] - s.T @ uk[t]
        left[t] = s + np.outer(uk[t], beta[t] * wrong[t])
        out[t] = left[t].T @ uq[t]
    dq, dk, dv, ddecay, dbeta = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros(rows), np.zeros(rows)
    dfound, ds = np.zeros_like(found), np.zeros((keydim, valuedim))
    for t in reversed(range(rows)):
        ds = ds + np.outer(uq[t], dout[t])
        dq[t], dx = left[t] @ dout[t], ds.T @ uk[t]
        s = np.exp(decay[t]) * found[t]
        dbeta[t], dv[t] = wrong[t] @ dx, beta[t] * dx
        dk[t] = ds @ (beta[t] * wrong[t]) - s @ dv[t]
        ds = ds - np.outer(uk[t], dv[t])
        ddecay[t] = (ds * s).sum()
        ds = dfound[t] = np.zeros_like(ds) if start[t] == t else np.exp(decay[t]) * ds
    dq = norm_q * (dq / np.sqrt(keydim) - q * norm_q * (dq / np.sqrt(keydim) * q * norm_q).sum(1, keepdims=True))
    dk = norm_k * (dk - uk * (dk * uk).sum(1, keepdims=True))
    return out, found[:rows:CHUNK], dq, dk, dv, ddecay, dbeta, dfound[:rows:CHUNK]


class Net:
    """One gated delta net: operands as columns of one fused matrix, and all results."""

    def __init__(self, kind, variant, keyheads, heads, keydim, valuedim, lengths, at_once=3, decays=None,
                 keys=None):
        self.kind, self.suffix, self.at_once = kind, f".{kind}.{variant}", at_once
        self.keyheads, self.heads, self.keydim, self.valuedim = keyheads, heads, keydim, valuedim
        self.start, self.end = starts(lengths), ends(lengths)
        self.rows, self.chunks = sum(lengths), -(-sum(lengths) // CHUNK)
        rng = np.random.default_rng(self.rows + keydim)
        cols, values, pad = 2 * keyheads * keydim + heads * valuedim, heads * valuedim, 16 if variant == "a16" else 3
        normal = lambda rows, cols: rounded(rng.standard_normal((rows, cols)).astype(f32), kind)
        x = normal(self.rows, cols)
        if keys is not None:
            x[:, keyheads * keydim:2 * keyheads * keydim] = rounded(
                keys(rng, self.rows)[:, None] * np.ones(keyheads * keydim, f32), kind)
        self.qkv, self.dout = Field(TYPES[kind],
                                    self.rows, cols, x, cols + pad), Field(TYPES[kind], self.rows, values,
                                                                           normal(self.rows, values), values + pad)
        size = np.array([0.01, 0.3, 0.001, 1, 0, 0.1, 0.05])[np.arange(self.rows * heads).reshape(self.rows, heads) % 7]
        size[np.arange(self.rows) % 53 == 31] = 200
        decay = -size * rng.random((self.rows, heads)) if decays is None else decays(rng, self.rows, heads)
        dense = lambda rows, cols, x=None: Field(torch.float32, rows, cols, x, cols)
        self.decay, self.beta = dense(self.rows, heads, decay.astype(f32)), dense(self.rows, heads,
                                                                                  rng.random((self.rows, heads), f32))
        self.out, self.dqkv = Field(TYPES[kind], self.rows, values,
                                    stride=values + pad), Field(TYPES[kind], self.rows, cols, stride=cols + pad)
        self.states, self.dstates = (dense(self.chunks, heads * keydim * valuedim) for _ in range(2))
        self.ddecay, self.dbeta = (dense(self.rows, heads) for _ in range(2))
        self.forward, self.past = ("delta_solve", "delta_scan", "delta_out"), 2 * CHUNK * CHUNK
        self.backward = ("delta_solve", "delta_scan_grad", "delta_grad_values", "delta_grad_queries", "delta_grad_keys")
        if variant == "a16" and keydim == delta.KEYS and valuedim % 64 == 0:
            self.forward = tuple(op + "_terms" for op in self.forward)
            self.backward = ("delta_solve_terms", "delta_before", "delta_scan_grad_terms", "delta_grad_values_terms") + self.backward[3:]
            self.past = delta_scan.EACH
        self.each = self.past + 2 * CHUNK * valuedim
        self.solved = dense(min(at_once, self.chunks) * heads, self.each)

    def launch(self, op, first, count, *values):
        kernel = (BY_NAME.get(op + self.suffix) or BY_NAME[op + ".bf16"]).at("sm80")
        constants = kernel.constants
        blocks = -(-self.valuedim // constants.get("VALUES", self.valuedim))
        grid = {
            "delta_solve": (count * self.heads, ), "delta_out": (count * self.heads, blocks),
            "delta_solve_terms": (count * self.heads, ), "delta_out_terms": (count * self.heads, blocks),
            "delta_before": (count * self.heads, blocks), "delta_grad_values_terms": (count * self.heads, ),
            "delta_grad_values": (count * self.heads, ), "delta_grad_queries": (count * self.keyheads, ),
            "delta_grad_keys": (count * self.keyheads, )
        }.get(op, (self.heads, blocks, count))
        ids = torch.tensor(self.start + [-2 ** 31] * 256,
                           dtype=torch.int32)  # an index that was not masked leaves all memory
        ends = torch.tensor(self.end + [2 ** 31 - 1] * 256, dtype=torch.int32)
        by_name = dict(start=ids, end=ends, rows=self.rows, chunks=self.chunks, keyheads=self.keyheads, heads=self.heads,
                       keydim=self.keydim, valuedim=self.valuedim, first=first, count=count, each=self.each, past=self.past,
                       so=self.out.stride, sdo=self.dout.stride, sqkv=self.qkv.stride, sdqkv=self.dqkv.stride)
        at = lambda name: by_name[name] if name in by_name else getattr(self, name).mat
        kernel.function[grid](*(at(name) for name, _ in kernel.typed()), **constants)

    def run(self):
        stretches = [(first, min(self.at_once, self.chunks - first)) for first in range(0, self.chunks, self.at_once)]
        for stretch in stretches:
            for op in self.forward:
                self.launch(op, *stretch)
        for stretch in reversed(stretches):
            for op in self.backward:
                self.launch(op, *stretch)
        return self

    def results(self):
        fields = dict(out=self.out, states=self.states, dqkv=self.dqkv, ddecay=self.ddecay, dbeta=self.dbeta,
                      dstates=self.dstates)
        return {name: (f, f.numpy()) for name, f in fields.items()}

    def want(self):
        qkv, dout = self.qkv.numpy(), self.dout.numpy()
        decay, beta = self.decay.numpy(), self.beta.numpy()
        w = {name: np.zeros(x.shape) for name, (_, x) in self.results().items()}
        group, size = self.heads // self.keyheads, self.keydim * self.valuedim
        for h in range(self.heads):
            q = slice(h // group * self.keydim, (h // group + 1) * self.keydim)
            k = slice(q.start + self.keyheads * self.keydim, q.stop + self.keyheads * self.keydim)
            o = slice(h * self.valuedim, (h + 1) * self.valuedim)
            v = slice(2 * self.keyheads * self.keydim + o.start, 2 * self.keyheads * self.keydim + o.stop)
            s = slice(h * size, (h + 1) * size)
            out, states, dq, dk, dv, ddecay, dbeta, dstates = recurrence(qkv[:, q], qkv[:, k], qkv[:, v], decay[:, h],
                                                                         beta[:, h], dout[:, o], self.start)
            w["out"][:, o], w["states"][:, s], w["dqkv"][:, v], w["dstates"][:,
                                                                             s] = (out, states.reshape(self.chunks,
                                                                                                       -1), dv,
                                                                                   dstates.reshape(self.chunks, -1))
            w["dqkv"][:, q] += dq
            w["dqkv"][:, k] += dk
            w["ddecay"][:, h], w["dbeta"][:, h] = ddecay, dbeta
        return w

    def check(self, test):
        self.run()
        want = self.want()
        for name, (field, got) in self.results().items():
            test.assertFalse(np.isnan(got).any(), name + " has NaNs")
            most = max(np.abs(want[name]).max(), 1)
            # 64 roundings of fp32, 2^-24 each, of the greatest result: what the suite of all drivers allows a sum of
            # numbers that were rounded one after the other. A result in bf16 is half a unit of its last place off.
            limit = 64 / 2**24 * most + (np.abs(want[name]) / 256 if field.mat.dtype == torch.bfloat16 else 0)
            worst = (np.abs(got - want[name]) / limit).max()
            test.assertLessEqual(worst, 1, f"{name} is off by {worst:.3g} times what is allowed")
            test.assertTrue(field.intact_outside(), name + " is written outside")


class DeltaTest(unittest.TestCase):

    def each(self, *nets):
        for net in nets:
            with self.subTest(str(net)):
                Net(*net).check(self)

    def test_narrow_heads(self):
        for kind in TYPES:
            self.each((kind, "any", 1, 1, 1, 1, [1]), (kind, "any", 1, 2, 5, 3, [1, 1, 1]),
                      (kind, "any", 2, 6, 12, 10, [63, 2, 64, 1]), (kind, "any", 2, 2, 7, 9, [65]),
                      (kind, "any", 1, 3, 8, 16, [64, 64, 5, 17], 1), (kind, "any", 1, 1, 16, 16, [421]))

    def test_wide_heads(self):
        for kind in TYPES:
            self.each((kind, "any", 1, 2, 33, 65, [70, 3, 60], 2), (kind, "any", 1, 1, 128, 128, [100]))

    def test_stretches(self):
        """No bit depends on how chunks are cut into launches, wherever documents begin."""
        for kind, variant, dim in (("f32", "any", 8), ("bf16", "a16", 128)):
            net = lambda at_once: Net(kind, variant, 1, 2, dim, dim, [64, 30, 98, 1, 70], at_once).run().results()
            whole = net(99)
            for at_once in (1, 3):
                for name, (_, got) in net(at_once).items():
                    with self.subTest(f"{name} of {kind}.{variant}, {at_once} chunks at once"):
                        self.assertTrue(np.array_equal(got.view(np.uint32), whole[name][1].view(np.uint32)))

    def test_aligned(self):
        self.each(("bf16", "a16", 1, 2, 128, 64, [70, 3], 1), ("bf16", "a16", 1, 2, 128, 128, [130, 1, 69, 20], 2),
                  ("bf16", "a16", 2, 2, 128, 128, [320]))


if __name__ == "__main__":
    unittest.main()
