"""What is around the recurrence of a gated delta net: its convolution (device.ConvOps), its decays and betas
(device.DeltaOps), and gates (device.GateOps). The recurrence itself is in delta.py."""

import triton
import triton.language as tl

from gates import _sigmoid
from registry import BF16_OR_F32, Kernel


@triton.jit
def _taps(w, col, cols, taps, tap, sw):
    """The weights of one tap of a convolution, for columns."""
    return tl.load(w + col.to(tl.int64) * sw + tap, mask=(col < cols) & (tap < taps), other=0.0).to(tl.float32)


@triton.jit
def _convolved(x, w, row, began, col, rows, cols, taps, sx, sw):
    """z of rows and columns: the sum of w[j]*x[row-taps+1+j], in the order of j, over the rows of the row's
    document."""
    z = tl.zeros([row.shape[0], col.shape[1]], tl.float32)
    for j in range(0, taps):
        at = row - (taps - 1 - j)
        seen = (at >= began) & (row < rows) & (col < cols)
        z += _taps(w, col, cols, taps, j, sw) * tl.load(x + at.to(tl.int64) * sx + col, mask=seen, other=0.0).to(
            tl.float32)
    return z


@triton.jit
def causal_conv(y, x, w, start, rows, cols, taps, sy, sx, sw, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y = silu(z). Moves 2 elements for each of y: the rows before are in a cache. Programs: ceil(rows/BLOCK_ROWS),
    ceil(cols/BLOCK_COLS)."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    began = tl.load(start + row, mask=row < rows, other=0)
    z = _convolved(x, w, row, began, col, rows, cols, taps, sx, sw)
    tl.store(y + row.to(tl.int64) * sy + col, (z * _sigmoid(z)).to(y.dtype.element_ty),
             mask=(row < rows) & (col < cols))


@triton.jit
def _conv_slope(x, w, dy, row, began, inside, col, rows, cols, taps, sdy, sx, sw):
    """dz of rows and columns: dy times silu's slope at z; 0 where not inside."""
    z = _convolved(x, w, row, began, col, rows, cols, taps, sx, sw)
    s = _sigmoid(z)
    d = tl.load(dy + row.to(tl.int64) * sdy + col, mask=inside & (col < cols), other=0.0).to(tl.float32)
    return tl.where(inside, d * (s * (1.0 + z * (1.0 - s))), 0.0)


@triton.jit
def causal_conv_grad(dx, dy, x, w, start, rows, cols, taps, sdx, sdy, sx, sw, BLOCK_ROWS: tl.constexpr,
                     BLOCK_COLS: tl.constexpr):
    """dx[t] = the sum of w[taps-1-p]*dz[t+p] over the rows of the document from t on. A program computes each dz that
    it needs: a row's serves up to taps others, which may be another program's, and what it reads for that is in a
    cache. Moves 3 elements for each of dx. Programs: ceil(rows/BLOCK_ROWS), ceil(cols/BLOCK_COLS)."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    began = tl.load(start + row, mask=row < rows, other=0)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for i in range(0, taps):
        p = taps - 1 - i
        later = row + p
        inside = (later < rows) & (tl.load(start + later, mask=later < rows, other=-1) == began)
        acc += _taps(w, col, cols, taps, i, sw) * _conv_slope(x, w, dy, later, began, inside, col, rows, cols, taps,
                                                              sdy, sx, sw)
    tl.store(dx + row.to(tl.int64) * sdx + col, acc.to(dx.dtype.element_ty), mask=(row < rows) & (col < cols))


@triton.jit
def taps_grad(part, dy, x, w, start, rows, cols, taps, slices, sdy, sx, sw, TAPS: tl.constexpr,
              BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """part[s, c, j] = the sum over slice s of the rows of dz[t]*x[t-taps+1+j], which taps_fold adds up. Rows are taken
    one after the other, so that no layout of a tile decides in which order they are added; that many of them are in
    one turn of the loop, whose loads overlap. Reads x and dy once; what is of earlier rows is in a cache. Programs:
    ceil(cols/BLOCK_COLS), slices."""
    col = (tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    s = tl.program_id(1)
    size = tl.cdiv(tl.cdiv(rows, slices), BLOCK_ROWS) * BLOCK_ROWS
    stop = tl.minimum((s + 1) * size, rows)
    tap = tl.arange(0, TAPS)[:, None]
    acc = tl.zeros([TAPS, BLOCK_COLS], tl.float32)
    for first in range(s * size, stop, BLOCK_ROWS):
        for i in tl.static_range(BLOCK_ROWS):
            row = tl.full([1, 1], first + i, tl.int32)
            began = tl.load(start + row, mask=row < stop, other=0)
            dz = _conv_slope(x, w, dy, row, began, row < stop, col, rows, cols, taps, sdy, sx, sw)
            at = row - (taps - 1) + tap
            seen = (at >= began) & (tap < taps) & (row < stop) & (col < cols)
            acc += dz * tl.load(x + at.to(tl.int64) * sx + col, mask=seen, other=0.0).to(tl.float32)
    tl.store(part + (s * cols + col).to(tl.int64) * taps + tap, acc, mask=(tap < taps) & (col < cols))


@triton.jit
def taps_fold(dw, part, slices, cols, taps, sdw, BLOCK_SLICES: tl.constexpr, BLOCK: tl.constexpr):
    """dw[c, j] += the sum of part[s, c, j] over all s, many slices at a time. Programs: ceil(cols/COLS), for COLS*8 =
    BLOCK numbers each. Reads part once."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = i < cols * taps
    acc = tl.zeros([BLOCK_SLICES, BLOCK], tl.float32)
    for first in range(0, slices, BLOCK_SLICES):
        s = first + tl.arange(0, BLOCK_SLICES)[:, None]
        acc += tl.load(part + s.to(tl.int64) * cols * taps + i, mask=(s < slices) & inside, other=0.0)
    to = dw + (i // taps).to(tl.int64) * sdw + i % taps
    tl.store(to, tl.load(to, mask=inside, other=0.0) + tl.sum(acc, 0, keep_dims=True), mask=inside)


@triton.jit
def _act(gate, silu):
    """The activation of a gate, and its slope."""
    s = _sigmoid(gate)
    return tl.where(silu != 0, gate * s, s), tl.where(silu != 0, s * (1.0 + gate * (1.0 - s)), s * (1.0 - s))


@triton.jit
def gate(y, x, gates, rows, cols, each, silu, sy, sx, sgate, EACH: tl.constexpr, BLOCK_ROWS: tl.constexpr,
         BLOCK_COLS: tl.constexpr):
    """y = x*act(gate), where a gate serves that many neighbours: 1 if EACH. y may be x. Moves 2 elements for each of
    y, and the gates. Programs: ceil(rows/BLOCK_ROWS), ceil(cols/BLOCK_COLS)."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (col < cols)
    at = col if EACH else col // each
    act, _ = _act(tl.load(gates + row * sgate + at, mask=inside, other=0.0).to(tl.float32), silu)
    v = tl.load(x + row * sx + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * sy + col, (v * act).to(y.dtype.element_ty), mask=inside)


@triton.jit
def gate_grad(dx, dgate, dy, x, gates, rows, cols, each, silu, sdx, sdgate, sdy, sx, sgate, BLOCK_ROWS: tl.constexpr,
              BLOCK_COLS: tl.constexpr):
    """dx = dy*act(gate), and dgate = the sum of dy*x over what a gate serves, times the slope. A program has a gate
    of some rows, and reads what it serves before it writes that; dx may be dy, and dgate the gates. Moves 3 elements
    for each of x. Programs: ceil(rows/BLOCK_ROWS), ceil(cols/each)."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    at = tl.program_id(1)
    act, slope = _act(tl.load(gates + row * sgate + at, mask=row < rows, other=0.0).to(tl.float32), silu)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for first in range(0, each, BLOCK_COLS):
        c = first + tl.arange(0, BLOCK_COLS)[None, :]
        inside = (row < rows) & (c < each)
        col = at * each + c
        d = tl.load(dy + row * sdy + col, mask=inside, other=0.0).to(tl.float32)
        acc += d * tl.load(x + row * sx + col, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + row * sdx + col, (d * act).to(dx.dtype.element_ty), mask=inside)
    tl.store(dgate + row * sdgate + at, (tl.sum(acc, 1, keep_dims=True) * slope).to(dgate.dtype.element_ty), mask=row
             < rows)


@triton.jit
def gate_grad_each(dx, dgate, dy, x, gates, rows, cols, silu, sdx, sdgate, sdy, sx, sgate, BLOCK_ROWS: tl.constexpr,
                   BLOCK_COLS: tl.constexpr):
    """gate_grad where each element has a gate of its own. Moves 5 elements for each of x. Programs:
    ceil(rows/BLOCK_ROWS), ceil(cols/BLOCK_COLS)."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (col < cols)
    act, slope = _act(tl.load(gates + row * sgate + col, mask=inside, other=0.0).to(tl.float32), silu)
    d = tl.load(dy + row * sdy + col, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(x + row * sx + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx + row * sdx + col, (d * act).to(dx.dtype.element_ty), mask=inside)
    tl.store(dgate + row * sdgate + col, (d * v * slope).to(dgate.dtype.element_ty), mask=inside)


@triton.jit
def _softplus(x):
    """max(x, 0) + log(1 + e) with e = exp(-|x|). The logarithm is that of (1+s)/(1-s) with s = e/(2+e), up to 1/3: a
    series whose digits do not get lost where e is small."""
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    q = s * s
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13))))))
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + 2.0 * s * series


@triton.jit
def _rates(a, alog, dtbias, row, head, inside, heads, sa):
    """x of rows and heads, and the heads' rates."""
    x = tl.load(a + row * sa + head, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(dtbias + head, mask=head < heads, other=0.0).to(tl.float32)
    return x, -tl.exp(tl.load(alog + head, mask=head < heads, other=0.0).to(tl.float32))


@triton.jit
def delta_gates(decay, beta, a, b, alog, dtbias, rows, heads, sa, sb, BLOCK_ROWS: tl.constexpr,
                BLOCK_COLS: tl.constexpr):
    """decay = rate*softplus(x) and beta = sigmoid(b), with rate = -exp(alog) and x = a + dtbias. Programs:
    ceil(rows/BLOCK_ROWS), ceil(heads/BLOCK_COLS)."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
    head = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    inside = (row < rows) & (head < heads)
    x, rate = _rates(a, alog, dtbias, row, head, inside, heads, sa)
    at = row * heads + head
    tl.store(decay + at, rate * _softplus(x), mask=inside)
    tl.store(beta + at, _sigmoid(tl.load(b + row * sb + head, mask=inside, other=0.0).to(tl.float32)), mask=inside)


@triton.jit
def delta_gates_grad(part, da, db, ddecay, dbeta, a, b, alog, dtbias, rows, heads, slices, sda, sdb, sa, sb,
                     BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """da = ddecay*(rate*sigmoid(x)), db = dbeta*(beta*(1 - beta)), and of each slice of the rows the sum of
    ddecay*decay, and after these of all slices that of da, which fold adds up. Programs: ceil(heads/BLOCK_COLS),
    slices."""
    head = (tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    s = tl.program_id(1)
    size = tl.cdiv(tl.cdiv(rows, slices), BLOCK_ROWS) * BLOCK_ROWS
    stop = tl.minimum((s + 1) * size, rows)
    of_log, of_bias = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32), tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for first in range(s * size, stop, BLOCK_ROWS):
        row = (first + tl.arange(0, BLOCK_ROWS))[:, None].to(tl.int64)
        inside = (row < stop) & (head < heads)
        x, rate = _rates(a, alog, dtbias, row, head, inside, heads, sa)
        at = row * heads + head
        d = tl.load(ddecay + at, mask=inside, other=0.0)
        d_a = d * (rate * _sigmoid(x))
        of_log += d * (rate * _softplus(x))
        of_bias += d_a
        tl.store(da + row * sda + head, d_a.to(da.dtype.element_ty), mask=inside)
        y = _sigmoid(tl.load(b + row * sb + head, mask=inside, other=0.0).to(tl.float32))
        d_b = tl.load(dbeta + at, mask=inside, other=0.0) * (y * (1.0 - y))
        tl.store(db + row * sdb + head, d_b.to(db.dtype.element_ty), mask=inside)
    to = part + s * heads + head
    tl.store(to, tl.sum(of_log, 0, keep_dims=True), mask=head < heads)
    tl.store(to + slices * heads, tl.sum(of_bias, 0, keep_dims=True), mask=head < heads)


GRID = ("ceil(rows/BLOCK_ROWS)", "ceil(cols/BLOCK_COLS)")
CONV = "rows:i32 cols:i32 taps:i32"
GATES = "rows:i32 cols:i32 each:i32 silu:i32"

KERNELS = [
    Kernel("taps_fold.f32", taps_fold, "dw:*fp32 part:*fp32 slices:i32 cols:i32 taps:i32 sdw:i32",
           ("ceil(cols/COLS)", ), dict(BLOCK_SLICES=32, BLOCK=64), numbers=dict(COLS=8), most=dict(taps=8))
]
for a, t in BF16_OR_F32:
    for variant in ("any", "a16"):

        def stream(op, function, arguments, grid, constants, aligned, **more):
            KERNELS.append(
                Kernel(f"{op}.{a}.{variant}", function, arguments.replace("*A", "*" + t), grid, constants,
                       aligned=aligned if variant == "a16" else "", **more))

        of_element = dict(most=dict(each=1)) if variant == "a16" else {}
        stream("causal_conv", causal_conv, f"y:*A x:*A w:*A start:*i32 {CONV} sy:i32 sx:i32 sw:i32", GRID,
               dict(BLOCK_ROWS=8, BLOCK_COLS=256), "y x cols sy sx")
        stream("causal_conv_grad", causal_conv_grad,
               f"dx:*A dy:*A x:*A w:*A start:*i32 {CONV} sdx:i32 sdy:i32 sx:i32 sw:i32", GRID,
               dict(BLOCK_ROWS=8, BLOCK_COLS=256), "dx dy x cols sdx sdy sx")
        stream("taps_grad", taps_grad, f"part:*fp32 dy:*A x:*A w:*A start:*i32 {CONV} slices:i32 sdy:i32 sx:i32 sw:i32",
               ("ceil(cols/BLOCK_COLS)", "slices"), dict(TAPS=8, BLOCK_ROWS=4, BLOCK_COLS=128), "dy x cols sdy sx",
               most=dict(taps=8))
        stream("gate", gate, f"y:*A x:*A gates:*A {GATES} sy:i32 sx:i32 sgate:i32", GRID,
               dict(EACH=int(variant == "a16"), BLOCK_ROWS=4, BLOCK_COLS=512), "y x gates cols sy sx sgate",
               **of_element)
        stream("gate_grad_each", gate_grad_each,
               "dx:*A dgate:*A dy:*A x:*A gates:*A rows:i32 cols:i32 silu:i32 sdx:i32 sdgate:i32 sdy:i32 sx:i32 "
               "sgate:i32",
               GRID, dict(BLOCK_ROWS=2, BLOCK_COLS=512), "dx dgate dy x gates cols sdx sdgate sdy sx sgate")
    KERNELS += [
        Kernel(
            f"gate_grad.{a}", gate_grad, f"dx:*{t} dgate:*{t} dy:*{t} x:*{t} gates:*{t} {GATES} sdx:i32 sdgate:i32 "
            "sdy:i32 sx:i32 sgate:i32", ("ceil(rows/BLOCK_ROWS)", "ceil(cols/each)"), dict(BLOCK_ROWS=4,
                                                                                           BLOCK_COLS=128)),
        Kernel(f"delta_gates.{a}", delta_gates,
               f"decay:*fp32 beta:*fp32 a:*{t} b:*{t} alog:*{t} dtbias:*{t} rows:i32 heads:i32 sa:i32 sb:i32",
               ("ceil(rows/BLOCK_ROWS)", "ceil(heads/BLOCK_COLS)"), dict(BLOCK_ROWS=16, BLOCK_COLS=32)),
        Kernel(
            f"delta_gates_grad.{a}", delta_gates_grad,
            f"part:*fp32 da:*{t} db:*{t} ddecay:*fp32 dbeta:*fp32 a:*{t} b:*{t} alog:*{t} dtbias:*{t} rows:i32 "
            "heads:i32 slices:i32 sda:i32 sdb:i32 sa:i32 sb:i32", ("ceil(heads/BLOCK_COLS)", "slices"),
            dict(BLOCK_ROWS=16, BLOCK_COLS=32)),
    ]
