"""What is around the recurrence of a gated delta net: its convolution (device.ConvOps), its decays and betas
(device.DeltaOps), and gates (device.GateOps). The recurrence itself is in delta.py."""

import triton
import triton.language as tl

from gates import _sigmoid
from registry import BF16_OR_F32, Kernel


@triton.jit
def _taps(w, col, cols, taps, tap, sw):
    """The weights of one tap of a convolution, for columns."""
    return tl.load(w + col.to(tl.int64) * sw + tap, mask=(col < cols) & (tap >= 0) & (tap < taps),
                   other=0.0).to(tl.float32)


@triton.jit
def _row(x, at, seen, col, cols, sx):
    """Rows of x; zeros for those that are not seen."""
    return tl.load(x + at.to(tl.int64) * sx + col, mask=seen & (col < cols), other=0.0).to(tl.float32)


@triton.jit
def causal_conv(y, x, w, start, rows, cols, taps, sy, sx, sw, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """y = silu(z), where z is the sum of w[j]*x[row-taps+1+j], in the order of j, over the rows of the row's document.
    Moves 2 elements for each of y: the rows before are in a cache. Programs: ceil(rows/BLOCK_ROWS),
    ceil(cols/BLOCK_COLS)."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    began = tl.load(start + row, mask=row < rows, other=0)
    z = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for j in range(0, taps):
        at = row - (taps - 1 - j)
        z += _taps(w, col, cols, taps, j, sw) * _row(x, at, (at >= began) & (row < rows), col, cols, sx)
    tl.store(y + row.to(tl.int64) * sy + col, (z * _sigmoid(z)).to(y.dtype.element_ty),
             mask=(row < rows) & (col < cols))


@triton.jit
def causal_conv_grad(dx, part, dy, x, w, start, rows, cols, taps, slices, wanted, sdx, sdy, sx, sw, TAPS: tl.constexpr,
                     BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """dx[t] = the sum of w[taps-1-p]*dz[t+p] over the rows of the document from t on, where dz is dy times silu's slope
    at z; and if wanted part[s, c, j] = the sum over slice s of the rows of dz[t]*x[t-taps+1+j], which taps_fold adds
    up. A program has BLOCK_ROWS slices, of which slices is a multiple. It goes through all of them at once, each from
    its last row to its first, and keeps x of the taps-1 rows before and dz of those after. So each is computed once,
    except for rows after a slice, and no layout of a tile decides in which order rows are added. A turn of the loop
    reads x, dy and start for the next. Moves 3 elements for each of dx. Programs: ceil(cols/BLOCK_COLS),
    ceil(slices/BLOCK_ROWS)."""
    col = (tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    s = (tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    size = tl.cdiv(rows, slices)
    stop = tl.minimum(s * size + size, rows)
    none = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    row = s * size + size + taps - 2
    # weights: zeros before those of the first tap. before: the rows row-TAPS+1..row of x. after: dz of the rows from
    # row+1 on, of its document.
    weights, before, after, sums = (), (), (), ()
    for j in tl.static_range(TAPS):
        weights = weights + (_taps(w, col, cols, taps, j + taps - TAPS, sw), )
        at = row - (TAPS - 1 - j)
        before = before + (_row(x, at, (at >= 0) & (at < rows), col, cols, sx), )
        after, sums = after + (none, ), sums + (none, )
    began = tl.load(start + row, mask=row < rows, other=rows)
    d = _row(dy, row, row < rows, col, cols, sdy)
    turns = tl.where(tl.program_id(1) * BLOCK_ROWS * size < rows, size + taps - 1, 0)
    for i in range(0, turns):
        found = (row > 0) & (row <= rows)
        next_x = _row(x, row - TAPS, (row >= TAPS) & (row < rows + TAPS), col, cols, sx)
        next_d, next_began = _row(dy, row - 1, found, col, cols, sdy), tl.load(start + row - 1, mask=found, other=rows)
        first = tl.maximum(began, row - (taps - 1))
        z, seen = none, ()
        for j in tl.static_range(TAPS):
            seen = seen + (tl.where(row - (TAPS - 1 - j) >= first, before[j], 0.0), )
            z += weights[j] * seen[j]
        sigmoid = _sigmoid(z)
        dz = d * (sigmoid * (1.0 + z * (1.0 - sigmoid)))
        of_x = none
        for j in tl.static_range(TAPS - 1):
            of_x += weights[j] * after[TAPS - 2 - j]
        of_x += weights[TAPS - 1] * dz
        tl.store(dx + row.to(tl.int64) * sdx + col, of_x.to(dx.dtype.element_ty), mask=(row < stop) & (col < cols))
        of_taps = tl.where(row < stop, dz, 0.0)
        kept, shifted = (tl.where((began < row) & (taps > 1), dz, 0.0), ), (next_x, )
        added = (sums[0] + of_taps * seen[0], )
        for j in tl.static_range(1, TAPS):
            kept = kept + (tl.where((began < row) & (taps > 1 + j), after[j - 1], 0.0), )
            shifted = shifted + (before[j - 1], )
            added = added + (sums[j] + of_taps * seen[j], )
        after, before, sums = kept, shifted, added
        row, began, d = row - 1, next_began, next_d
    if wanted != 0:
        to = part + (s * cols + col).to(tl.int64) * taps
        for j in tl.static_range(TAPS):
            tap = j + taps - TAPS
            tl.store(to + tap, sums[j], mask=(tap >= 0) & (s < slices) & (col < cols))


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
        most, warps = (4, 4) if variant == "a16" else (8, 8)
        stream("causal_conv_grad", causal_conv_grad,
               f"dx:*A part:*fp32 dy:*A x:*A w:*A start:*i32 {CONV} slices:i32 wanted:i32 sdx:i32 sdy:i32 sx:i32 "
               "sw:i32",
               ("ceil(cols/BLOCK_COLS)", "ceil(slices/BLOCK_ROWS)"), dict(TAPS=most, BLOCK_ROWS=8, BLOCK_COLS=64),
               "dx dy x cols sdx sdy sx", most=dict(taps=most), warps=warps)
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
