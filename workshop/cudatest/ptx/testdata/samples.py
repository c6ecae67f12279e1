"""Small kernels that use what Triton's PTX consists of. Compiled with Triton 3.5.0, without a GPU:

    TRITON_DISABLE_LINE_INFO=1 python samples.py

writes NAME.ptx beside this file. samples_test.go says what each computes.
"""

import pathlib
import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget


@triton.jit
def softmax(y, x, cols, stride, BLOCK: tl.constexpr):
    """A row per program: shuffles, shared memory, exp."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + c, mask=c < cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * stride + c, tl.div_rn(e, tl.sum(e, 0)).to(tl.bfloat16), mask=c < cols)


@triton.jit
def matmul(c, a, b, m, n, k, sc, sa, sb, A_COLUMNS: tl.constexpr, B_COLUMNS: tl.constexpr,
           BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DOUBLE: tl.constexpr):
    """C = A B, each tile's loads ahead of its products: cp.async, ldmatrix, mma, or fma in float32; wgmma on sm_90a. DOUBLE: C = 2A B,
    and so A comes from registers."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, k, BK):
        kk = first + rk
        pa = a + (kk[None, :] * sa + rm[:, None] if A_COLUMNS else rm[:, None] * sa + kk[None, :])
        pb = b + (rn[None, :] * sb + kk[:, None] if B_COLUMNS else kk[:, None] * sb + rn[None, :])
        x = tl.load(pa, mask=(rm[:, None] < m) & (kk[None, :] < k), other=0.0)
        y = tl.load(pb, mask=(rn[None, :] < n) & (kk[:, None] < k), other=0.0)
        if DOUBLE:
            x = (x.to(tl.float32) * 2).to(x.dtype)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    tl.store(c + rm[:, None] * sc + rn[None, :], acc, mask=(rm[:, None] < m) & (rn[None, :] < n))


@triton.jit
def floats(y, x, z, n, BLOCK: tl.constexpr):
    """Operations that are rounded as IEEE says: no a*b+c becomes one."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=1.0)
    b = tl.load(z + i, mask=i < n, other=1.0)
    s = tl.div_rn(a, b) * a + b
    s = tl.sqrt_rn(tl.abs(s)) - tl.fma(a, b, s)
    s = tl.where(a < b, tl.minimum(s, b), tl.maximum(s, -a))
    tl.store(y + i, s, mask=i < n)


@triton.jit
def integers(y, x, z, sums, n, BLOCK: tl.constexpr):
    """Integers of 32 and 64 bits, atomics, and a sum over the block."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=1)
    b = tl.load(z + i, mask=i < n, other=1)
    t = a // b + a % b + (a << 3) + (a >> 2) + (a & b) + (a ^ b) + tl.minimum(a, b) + tl.abs(a) + tl.umulhi(a, b)
    t += (a.to(tl.int64) * b.to(tl.int64) >> 7).to(tl.int32)
    tl.store(y + i, t, mask=i < n)
    tl.atomic_add(sums, tl.sum(a.to(tl.int64), 0))
    tl.atomic_add(sums + 1 + (a & 7), b.to(tl.int64), mask=i < n)


@triton.jit
def first(y, ids, rows, cols, BLOCK: tl.constexpr):
    """Each program whose id has not come before counts it: loops, and a return in the middle."""
    t = tl.program_id(0)
    id = tl.load(ids + t)
    before = 0
    i = 0
    while i < t:
        before += (tl.load(ids + i) == id).to(tl.int32)
        i += 1
    if before > 0:
        return
    c = tl.arange(0, BLOCK)
    count = 0.0
    for i in range(t, rows):
        if tl.load(ids + i) == id:
            count += 1.0
    tl.store(y + id * cols + c, count + c, mask=c < cols)


@triton.jit
def squares(y, x, n, BLOCK: tl.constexpr):
    """A sum in float64, per program."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float64)
    tl.store(y + tl.program_id(0), tl.sum(v * v, 0))


def write(name, function, signature, constants, aligned="", capability=80, **options):
    names = function.arg_names
    types = dict(a.split(":") for a in signature.split()) | {c: "constexpr" for c in constants}
    source = triton.compiler.ASTSource(
        function, types, {(names.index(c),): v for c, v in constants.items()},
        {(names.index(a),): [["tt.divisibility", 16]] for a in aligned.split()})
    text = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(ptx_version=84, **options)).asm["ptx"]
    lines = (re.sub(r"\s*//.*", "", line).rstrip() for line in text.splitlines())
    pathlib.Path(__file__).with_name(name + ".ptx").write_text("\n".join(line for line in lines if line) + "\n")


MATMUL = "c:*fp32 a:*{0} b:*{0} m:i32 n:i32 k:i32 sc:i32 sa:i32 sb:i32"
ROUND = "c a b m n k sc sa sb"
write("softmax", softmax, "y:*bf16 x:*bf16 cols:i32 stride:i32", dict(BLOCK=512), num_warps=4)
for name, a, b in ("nn", 0, 0), ("tt", 1, 1):
    write("matmul-bf16-" + name, matmul, MATMUL.format("bf16"), dict(A_COLUMNS=a, B_COLUMNS=b, BM=32, BN=32, BK=16, DOUBLE=0), ROUND,
          num_warps=2, num_stages=3)
    write("wgmma-bf16-" + name, matmul, MATMUL.format("bf16"), dict(A_COLUMNS=a, B_COLUMNS=b, BM=64, BN=32, BK=32, DOUBLE=0), ROUND, 90,
          num_warps=4, num_stages=3)
write("wgmma-bf16-registers", matmul, MATMUL.format("bf16"), dict(A_COLUMNS=0, B_COLUMNS=0, BM=64, BN=16, BK=16, DOUBLE=1), ROUND, 90,
      num_warps=4, num_stages=2)
write("matmul-f32-nn", matmul, MATMUL.format("fp32"), dict(A_COLUMNS=0, B_COLUMNS=0, BM=16, BN=16, BK=16, DOUBLE=0), ROUND,
      num_warps=2, num_stages=2)
write("floats", floats, "y:*fp32 x:*fp32 z:*fp32 n:i32", dict(BLOCK=64), num_warps=2, enable_fp_fusion=False)
write("integers", integers, "y:*i32 x:*i32 z:*i32 sums:*i64 n:i32", dict(BLOCK=64), num_warps=2)
write("first", first, "y:*fp32 ids:*i32 rows:i32 cols:i32", dict(BLOCK=64), num_warps=2)
write("squares", squares, "y:*fp64 x:*fp32 n:i64", dict(BLOCK=256), num_warps=2)
