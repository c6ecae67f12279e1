package device

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/tensor"
)

// Operand is one matrix or vector that an operation touches.
type Operand struct {
	Name  string // as in the operation's signature
	Mat          // I32, I64 and F64 vectors too
	Write bool   // written, perhaps after being read; otherwise only read
	Adds  bool   // written, and what was there is read before
	Spare int64  // rows that are left alone: of operands by row those that no block has, if each expert has as many
}

// Moved is the number of bytes that the operation reads of the operand and writes to it.
func (o *Operand) Moved() (read, written int64) {
	n := (int64(o.Rows) - o.Spare) * int64(o.Cols) * o.DType.Bytes()
	switch {
	case o.Adds:
		return n, n
	case o.Write:
		return 0, n
	}
	return n, 0
}

// Operands are the rules that the operations' texts state, as code that all drivers share: it has a method for each
// operation, with the operation's signature, which checks the call and leaves in List what the operation reads and
// writes, all of it and nothing else. A driver calls it first, in the caller's goroutine.
//
// A call that breaks a rule is a bug of the engine, not an event of the run, and panics: shapes or types that do not
// agree, an operand that leaves its buffer, an output that overlaps another operand where the text does not allow it.
//
// The zero value is ready; List is overwritten by the next call.
type Operands struct {
	Op   string
	List []Operand
}

func (o *Operands) begin(op string) { o.Op, o.List = op, o.List[:0] }

// last is the operand that was added last.
func (o *Operands) last() *Operand { return &o.List[len(o.List)-1] }

func (o *Operands) fail(format string, args ...any) {
	panic("device: " + o.Op + ": " + fmt.Sprintf(format, args...))
}

// The sets of element types that operands may have.
var (
	f32Only    = []tensor.DType{tensor.F32}
	activation = []tensor.DType{tensor.F32, tensor.BF16}
	lowHalves  = []tensor.DType{tensor.I16, tensor.I8}
)

// add checks one operand by itself.
func (o *Operands) add(write bool, name string, m Mat, rows, cols int, types []tensor.DType) {
	known := false
	for _, t := range types {
		known = known || m.DType == t
	}
	size := m.DType.Bytes()
	switch {
	case m.Buf == nil:
		o.fail("%s has no memory", name)
	case !known:
		o.fail("%s is %s, not one of %v", name, m.DType, slices.Clone(types)) // a copy, so that types stay on the caller's stack
	case m.Rows != rows || m.Cols != cols:
		o.fail("%s is [%d, %d], not [%d, %d]", name, m.Rows, m.Cols, rows, cols)
	case m.Stride < m.Cols:
		o.fail("%s has %d columns in a stride of %d", name, m.Cols, m.Stride)
	case m.Off < 0 || m.Len < span(rows, cols, m.Stride)*size || m.Off > m.Buf.Bytes()-m.Len:
		o.fail("%s leaves its memory", name)
	case m.Off%size != 0:
		o.fail("%s is not aligned to its elements", name)
	}
	o.List = append(o.List, Operand{Name: name, Mat: m, Write: write})
}

func (o *Operands) read(name string, m Mat, rows, cols int, types []tensor.DType) {
	o.add(false, name, m, rows, cols, types)
}

func (o *Operands) write(name string, m Mat, rows, cols int, types []tensor.DType) {
	o.add(true, name, m, rows, cols, types)
}

// stat checks statistics, which are dense.
func (o *Operands) stat(write bool, name string, m Mat, rows, cols int) {
	if m.Rows > 1 && m.Stride != m.Cols {
		o.fail("%s has %d columns in a stride of %d; statistics and tables are dense", name, m.Cols, m.Stride)
	}
	o.add(write, name, m, rows, cols, f32Only)
}

// vec checks a plain vector, of which mem may hold more than n elements.
func (o *Operands) vec(write bool, name string, mem Mem, t tensor.DType, n int) {
	if mem.Buf == nil || mem.Len < int64(n)*t.Bytes() {
		o.fail("%s holds %d bytes, less than %d elements of %s", name, mem.Len, n, t)
	}
	o.add(write, name, NewVec(mem, t, n), 1, n, []tensor.DType{t})
}

// bounds adds where documents begin and end.
func (o *Operands) bounds(d Docs, rows int) {
	o.vec(false, "start", d.Start, tensor.I32, rows)
	o.vec(false, "end", d.End, tensor.I32, rows)
}

// same makes sure that two operands have one element type.
func (o *Operands) same(name string, a, b Mat) {
	if a.DType != b.DType {
		o.fail("%s is %s where its partner is %s", name, a.DType, b.DType)
	}
}

// apart makes sure that no output overlaps another operand. The pairs of names are allowed to be one and the same matrix.
func (o *Operands) apart(pairs ...[2]string) {
	for i, w := range o.List {
		if !w.Write {
			continue
		}
	others:
		for j, r := range o.List {
			if j == i || j < i && r.Write || !w.Mat.Overlaps(r.Mat) {
				continue
			}
			for _, p := range pairs {
				if p == [2]string{w.Name, r.Name} && w.Off == r.Off && w.DType == r.DType && (w.Stride == r.Stride || w.Rows == 1) &&
					w.Rows == r.Rows && w.Cols == r.Cols {
					continue others
				}
			}
			o.fail("%s overlaps %s", w.Name, r.Name)
		}
	}
}

// Overlaps reports whether a and b share an element. Column ranges of one matrix do not; for matrices of different
// strides that are in one another the answer is yes.
func (a Mat) Overlaps(b Mat) bool {
	if a.Buf != b.Buf || a.Rows == 0 || b.Rows == 0 || a.Cols == 0 || b.Cols == 0 {
		return false
	}
	as, bs := a.DType.Bytes(), b.DType.Bytes()
	if a.Off >= b.Off+span(b.Rows, b.Cols, b.Stride)*bs || b.Off >= a.Off+span(a.Rows, a.Cols, a.Stride)*as {
		return false
	}
	stride := int64(a.Stride) * as
	if a.Rows == 1 {
		stride = int64(b.Stride) * bs
	} else if b.Rows > 1 && stride != int64(b.Stride)*bs {
		return true
	}
	width, other := int64(a.Cols)*as, int64(b.Cols)*bs
	if width > stride || other > stride {
		return true // one row, longer than the other matrix's rows
	}
	// In columns counted from a's first one, b takes [d, d+other), where what passes the stride is in a's next row.
	d := ((b.Off-a.Off)%stride + stride) % stride
	return d < width || d+other > stride
}

// Copy checks a copy of bytes.
func (o *Operands) Copy(dst, src Mem) {
	o.begin("Copy")
	if dst.Len != src.Len {
		o.fail("dst has %d bytes, src %d", dst.Len, src.Len)
	}
	o.vec(true, "dst", dst, tensor.U8, int(dst.Len))
	o.vec(false, "src", src, tensor.U8, int(src.Len))
	o.apart()
}

// FromPeer reports whether an operand may be in memory of another device, from which this one copies.
func (o *Operands) FromPeer(operand Operand) bool { return o.Op == "Copy" && !operand.Write }

// Zero checks the clearing of bytes.
func (o *Operands) Zero(dst Mem) {
	o.begin("Zero")
	o.vec(true, "dst", dst, tensor.U8, int(dst.Len))
}

func (o *Operands) MatMul(c, a, b Mat, f MatMulFlags) {
	o.begin("MatMul")
	m, k := a.Rows, a.Cols
	if f.TransA {
		m, k = k, m
	}
	bk, n := b.Rows, b.Cols
	if f.TransB {
		bk, n = n, bk
	}
	if k != bk {
		o.fail("the inner dimensions are %d and %d", k, bk)
	}
	if f.Of != 0 && f.Of < k {
		o.fail("the inner dimension is %d, of %d", k, f.Of)
	}
	o.write("c", c, m, n, activation)
	o.last().Adds = f.Accumulate
	o.read("a", a, a.Rows, a.Cols, activation)
	o.read("b", b, b.Rows, b.Cols, activation)
	o.same("b", b, a)
	if !f.Onto.IsZero() {
		o.read("onto", f.Onto, m, n, activation)
		o.same("onto", f.Onto, c)
	}
	o.apart()
}

func (o *Operands) AddBias(y, bias Mat) {
	o.begin("AddBias")
	o.write("y", y, y.Rows, y.Cols, activation)
	o.last().Adds = true
	o.read("bias", bias, 1, y.Cols, activation)
	o.same("bias", bias, y)
	o.apart()
}

func (o *Operands) BiasGrad(db, dy Mat) {
	o.begin("BiasGrad")
	o.write("db", db, 1, dy.Cols, f32Only)
	o.read("dy", dy, dy.Rows, dy.Cols, activation)
	o.apart()
}

func (o *Operands) Add(y, a, b Mat) {
	o.begin("Add")
	o.write("y", y, y.Rows, y.Cols, activation)
	o.read("a", a, y.Rows, y.Cols, activation)
	o.read("b", b, y.Rows, y.Cols, activation)
	o.same("a", a, y)
	o.same("b", b, y)
	o.apart([2]string{"y", "a"}, [2]string{"y", "b"})
}

func (o *Operands) Scale(y, x Mat, by float32) {
	o.begin("Scale")
	o.finite("the factor", by)
	o.write("y", y, y.Rows, y.Cols, activation)
	o.read("x", x, y.Rows, y.Cols, activation)
	o.same("x", x, y)
	o.apart([2]string{"y", "x"})
}

func (o *Operands) finite(what string, x float32) {
	if x-x != 0 {
		o.fail("%s is %g", what, x)
	}
}

func (o *Operands) Cast(dst, src Mat) {
	o.begin("Cast")
	o.write("dst", dst, src.Rows, src.Cols, activation)
	o.read("src", src, src.Rows, src.Cols, activation)
	o.apart()
}

func (o *Operands) RMSNorm(y, rstd, x, w Mat, spec NormSpec) {
	o.begin("RMSNorm")
	d := o.groupLen(x, spec.Groups)
	o.write("y", y, x.Rows, x.Cols, activation)
	o.stat(true, "rstd", rstd, x.Rows, spec.Groups)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.normWeight(w, x, d, spec)
	o.same("y", y, x)
	o.apart()
}

// normWeight checks the weight of a norm of x over groups of d columns.
func (o *Operands) normWeight(w, x Mat, d int, spec NormSpec) {
	if !w.IsZero() {
		o.read("w", w, 1, d, activation)
		o.same("w", w, x)
	} else if spec.Offset != 0 {
		o.fail("an offset of %g to no weight", spec.Offset)
	}
}

func (o *Operands) RMSNormGrad(dx, dw, dy, x, w, rstd, resid Mat, spec NormSpec) {
	o.begin("RMSNormGrad")
	d := o.groupLen(x, spec.Groups)
	o.write("dx", dx, x.Rows, x.Cols, activation)
	if !dw.IsZero() {
		if w.IsZero() {
			o.fail("a gradient of no weight")
		}
		o.write("dw", dw, 1, d, f32Only)
	}
	o.read("dy", dy, x.Rows, x.Cols, activation)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.normWeight(w, x, d, spec)
	o.stat(false, "rstd", rstd, x.Rows, spec.Groups)
	o.same("dx", dx, x)
	o.same("dy", dy, x)
	if !resid.IsZero() {
		o.read("resid", resid, x.Rows, x.Cols, activation)
		o.same("resid", resid, x)
	}
	o.apart([2]string{"dx", "dy"}, [2]string{"dx", "resid"})
}

func (o *Operands) LayerNorm(y, stat, x, w, b Mat, eps float32) {
	o.begin("LayerNorm")
	o.layerNorm(x, w, stat, true)
	o.write("y", y, x.Rows, x.Cols, activation)
	o.same("y", y, x)
	if !b.IsZero() {
		o.read("b", b, 1, x.Cols, activation)
		o.same("b", b, x)
	}
	o.apart()
}

func (o *Operands) LayerNormGrad(dx, dw, dy, x, w, stat, resid Mat) {
	o.begin("LayerNormGrad")
	o.write("dx", dx, x.Rows, x.Cols, activation)
	if !dw.IsZero() {
		o.write("dw", dw, 1, x.Cols, f32Only)
	}
	o.read("dy", dy, x.Rows, x.Cols, activation)
	o.layerNorm(x, w, stat, false)
	o.same("dx", dx, x)
	o.same("dy", dy, x)
	if !resid.IsZero() {
		o.read("resid", resid, x.Rows, x.Cols, activation)
		o.same("resid", resid, x)
	}
	o.apart([2]string{"dx", "dy"}, [2]string{"dx", "resid"})
}

// layerNorm checks what LayerNorm and its gradient share.
func (o *Operands) layerNorm(x, w, stat Mat, writes bool) {
	o.stat(writes, "stat", stat, x.Rows, 2)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.read("w", w, 1, x.Cols, activation)
	o.same("w", w, x)
}

func (o *Operands) groupLen(x Mat, groups int) int {
	if groups < 1 || x.Cols%groups != 0 {
		o.fail("%d columns in %d groups", x.Cols, groups)
	}
	return x.Cols / groups
}

func (o *Operands) RoPE(y, x, bias Mat, heads int, cos, sin Mat, positions Mem, inverse bool) {
	o.begin("RoPE")
	if d := o.groupLen(x, heads); d%2 != 0 {
		o.fail("heads of %d columns have no halves", d)
	}
	half := x.Cols / heads / 2
	o.write("y", y, x.Rows, x.Cols, activation)
	o.read("x", x, x.Rows, x.Cols, activation)
	if !bias.IsZero() {
		if inverse {
			o.fail("a bias is added before a rotation, not before its inverse")
		}
		o.read("bias", bias, 1, x.Cols, activation)
		o.same("bias", bias, x)
	}
	o.stat(false, "cos", cos, cos.Rows, half)
	o.stat(false, "sin", sin, cos.Rows, half)
	o.vec(false, "positions", positions, tensor.I32, x.Rows)
	o.same("y", y, x)
	o.apart([2]string{"y", "x"})
}

// attention adds the documents of an attention's rows, and checks what its spec says of heads and scores.
func (o *Operands) attention(spec AttentionSpec, rows int) (queries, keys int) {
	o.bounds(spec.Docs, rows)
	if spec.Heads < 1 || spec.KVHeads < 1 || spec.HeadDim < 1 || spec.Heads%spec.KVHeads != 0 {
		o.fail("%d heads of %d columns share %d key heads", spec.Heads, spec.HeadDim, spec.KVHeads)
	}
	if spec.Window < 0 {
		o.fail("a window of %d keys", spec.Window)
	}
	o.softCap(spec.SoftCap)
	return spec.Heads * spec.HeadDim, spec.KVHeads * spec.HeadDim
}

// softCap checks that scores or logits can be capped so.
func (o *Operands) softCap(limit float32) {
	if !(limit >= 0) || math.IsInf(float64(limit), 1) {
		o.fail("a soft cap of %g", limit)
	}
}

func (o *Operands) Attention(out, lse, q, k, v Mat, spec AttentionSpec) {
	o.begin("Attention")
	queries, keys := o.attention(spec, q.Rows)
	o.write("out", out, q.Rows, queries, activation)
	o.stat(true, "lse", lse, q.Rows, spec.Heads)
	o.read("q", q, q.Rows, queries, activation)
	o.read("k", k, q.Rows, keys, activation)
	o.read("v", v, q.Rows, keys, activation)
	o.same("out", out, q)
	o.same("k", k, q)
	o.same("v", v, q)
	o.sinks(q, spec)
	o.apart()
}

func (o *Operands) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta Mat, spec AttentionSpec) {
	o.begin("AttentionGrad")
	queries, keys := o.attention(spec, q.Rows)
	o.write("dq", dq, q.Rows, queries, activation)
	o.write("dk", dk, q.Rows, keys, activation)
	o.write("dv", dv, q.Rows, keys, activation)
	o.stat(true, "delta", delta, q.Rows, spec.Heads)
	o.read("dout", dout, q.Rows, queries, activation)
	o.read("q", q, q.Rows, queries, activation)
	o.read("k", k, q.Rows, keys, activation)
	o.read("v", v, q.Rows, keys, activation)
	o.read("out", out, q.Rows, queries, activation)
	o.stat(false, "lse", lse, q.Rows, spec.Heads)
	for _, p := range o.List {
		if p.DType == tensor.F32 && q.DType == tensor.BF16 && (p.Name == "lse" || p.Name == "delta") || p.DType == tensor.I32 {
			continue
		}
		o.same(p.Name, p.Mat, q)
	}
	o.apart()
}

func (o *Operands) AttendCache(out, q, k, v Mat, spec AttentionSpec) {
	o.begin("AttendCache")
	queries, keys := o.attention(spec, q.Rows)
	o.write("out", out, q.Rows, queries, activation)
	o.read("q", q, q.Rows, queries, activation)
	o.read("k", k, k.Rows, keys, activation)
	o.read("v", v, k.Rows, keys, activation)
	o.same("out", out, q)
	o.same("k", k, q)
	o.same("v", v, q)
	o.sinks(q, spec)
	if b := spec.Blocks; !b.None() {
		if b.Rows < 1 || b.Rows > max(k.Rows, 1) || b.Each < 1 || b.Each%b.Rows != 0 {
			o.fail("blocks of %d rows for sequences of %d in a cache of %d", b.Rows, b.Each, k.Rows)
		}
		o.vec(false, "table", b.Table, tensor.I32, b.Entries())
	}
	o.apart()
}

// sinks checks the sinks of an attention, if it has any.
func (o *Operands) sinks(q Mat, spec AttentionSpec) {
	if !spec.Sinks.IsZero() {
		o.read("sinks", spec.Sinks, 1, spec.Heads, activation)
		o.same("sinks", spec.Sinks, q)
	}
}

func (o *Operands) SinkGrad(dsinks, sinks, lse, delta Mat) {
	o.begin("SinkGrad")
	o.write("dsinks", dsinks, 1, sinks.Cols, f32Only)
	o.read("sinks", sinks, 1, sinks.Cols, activation)
	o.stat(false, "lse", lse, lse.Rows, sinks.Cols)
	o.stat(false, "delta", delta, lse.Rows, sinks.Cols)
	o.apart()
}

func (o *Operands) JoinHeads(y, a, b Mat, heads int) {
	o.begin("JoinHeads")
	o.joined(true, y, a, b, heads)
}

func (o *Operands) SplitHeads(a, b, y Mat, heads int) {
	o.begin("SplitHeads")
	o.joined(false, y, a, b, heads)
}

// joined checks heads that are made of two parts.
func (o *Operands) joined(join bool, y, a, b Mat, heads int) {
	width, n := o.groupLen(y, heads), o.groupLen(a, heads)
	if rest := width - n; rest < 0 || !b.IsZero() && (rest == 0 || b.Cols != rest && b.Cols != rest*heads) {
		o.fail("heads of %d columns from %d and a matrix of %d", width, n, b.Cols)
	}
	o.add(join, "y", y, a.Rows, y.Cols, activation)
	o.add(!join, "a", a, a.Rows, a.Cols, activation)
	o.same("a", a, y)
	if !b.IsZero() {
		o.add(!join, "b", b, a.Rows, b.Cols, activation)
		o.same("b", b, y)
	}
	o.apart()
}

// glu checks the numbers of a gated unit.
func (o *Operands) glu(spec GLUSpec) {
	if spec.Limit < 0 || spec.Limit == 0 && spec.Alpha != 0 || spec.Limit > 0 && (spec.Gate != SiLU || spec.Ungated) ||
		spec.Gate > GELUTanh {
		o.fail("a gated unit of activation %d with the limit %g and alpha %g, ungated %v", spec.Gate, spec.Limit,
			spec.Alpha, spec.Ungated)
	}
}

func (o *Operands) GLU(y, gateUp Mat, spec GLUSpec) {
	o.begin("GLU")
	o.glu(spec)
	o.write("y", y, gateUp.Rows, y.Cols, activation)
	o.read("gateUp", gateUp, gateUp.Rows, spec.Inputs()*y.Cols, activation)
	o.same("y", y, gateUp)
	o.apart()
}

func (o *Operands) GLUGrad(dGateUp, act, dy, gateUp Mat, spec GLUSpec) {
	o.begin("GLUGrad")
	o.glu(spec)
	o.write("dGateUp", dGateUp, dy.Rows, spec.Inputs()*dy.Cols, activation)
	o.write("act", act, dy.Rows, dy.Cols, activation)
	o.read("dy", dy, dy.Rows, dy.Cols, activation)
	o.read("gateUp", gateUp, dy.Rows, spec.Inputs()*dy.Cols, activation)
	o.same("dGateUp", dGateUp, dy)
	o.same("act", act, dy)
	o.same("gateUp", gateUp, dy)
	o.apart([2]string{"dGateUp", "gateUp"}, [2]string{"act", "dy"})
}

func (o *Operands) LSEInit(stat Mat) {
	o.begin("LSEInit")
	o.stat(true, "stat", stat, stat.Rows, HeadStats)
}

func (o *Operands) LSEUpdate(stat, logits Mat, targets Mem, first int, softCap float32) {
	o.begin("LSEUpdate")
	o.softCap(softCap)
	o.stat(true, "stat", stat, logits.Rows, HeadStats)
	o.read("logits", logits, logits.Rows, logits.Cols, f32Only)
	o.vec(false, "targets", targets, tensor.I32, logits.Rows)
	o.apart()
}

func (o *Operands) TokenLoss(figures, stat Mat, targets Mem) {
	o.begin("TokenLoss")
	o.stat(true, "figures", figures, TokenFigures, stat.Rows)
	o.stat(false, "stat", stat, stat.Rows, HeadStats)
	o.vec(false, "targets", targets, tensor.I32, stat.Rows)
	o.apart()
}

func (o *Operands) CrossEntropyGrad(dlogits, logits, stat Mat, targets, weights, entropySlopes Mem, first int,
	softCap float32) {
	o.begin("CrossEntropyGrad")
	o.softCap(softCap)
	o.write("dlogits", dlogits, logits.Rows, logits.Cols, activation)
	o.read("logits", logits, logits.Rows, logits.Cols, f32Only)
	o.stat(false, "stat", stat, logits.Rows, HeadStats)
	o.vec(false, "targets", targets, tensor.I32, logits.Rows)
	o.vec(false, "weights", weights, tensor.F32, logits.Rows)
	if !entropySlopes.IsZero() {
		o.vec(false, "entropySlopes", entropySlopes, tensor.F32, logits.Rows)
	}
	o.apart()
}

func (o *Operands) PickLogits(picked, logits Mat, ids Mem, first int, softCap float32) {
	o.begin("PickLogits")
	o.softCap(softCap)
	o.stat(true, "picked", picked, logits.Rows, picked.Cols)
	o.read("logits", logits, logits.Rows, logits.Cols, f32Only)
	o.vec(false, "ids", ids, tensor.I32, picked.Rows*picked.Cols)
	o.apart()
}

func (o *Operands) PutLogitGrads(dlogits, logits, values Mat, ids Mem, first int, softCap float32) {
	o.begin("PutLogitGrads")
	o.softCap(softCap)
	o.write("dlogits", dlogits, logits.Rows, logits.Cols, activation)
	o.read("logits", logits, logits.Rows, logits.Cols, f32Only)
	o.stat(false, "values", values, logits.Rows, values.Cols)
	o.vec(false, "ids", ids, tensor.I32, values.Rows*values.Cols)
	o.apart()
}

func (o *Operands) DrawTokens(drawn, stat, logits Mat, draws Mem, first, vocab int, softCap float32) {
	o.begin("DrawTokens")
	o.softCap(softCap)
	if first < 0 || vocab < 1 || vocab > MaxDrawVocab {
		o.fail("columns from %d on of a vocabulary of %d", first, vocab)
	}
	if !drawn.IsZero() {
		o.stat(true, "drawn", drawn, logits.Rows, DrawnFigures)
	}
	o.stat(true, "stat", stat, logits.Rows, HeadStats)
	o.read("logits", logits, logits.Rows, logits.Cols, f32Only)
	o.vec(false, "draws", draws, tensor.I32, logits.Rows*DrawWords)
	o.apart()
}

func (o *Operands) Sum(dst Mem, x Mat) {
	o.begin("Sum")
	o.vec(true, "dst", dst, tensor.F64, 1)
	o.read("x", x, 1, x.Cols, f32Only)
	o.apart()
}

func (o *Operands) Gather(y, table Mat, ids Mem, first int) {
	o.begin("Gather")
	o.write("y", y, y.Rows, table.Cols, activation)
	o.read("table", table, table.Rows, table.Cols, activation)
	o.vec(false, "ids", ids, tensor.I32, y.Rows)
	o.same("table", table, y)
	o.apart()
}

func (o *Operands) Put(cache, x Mat, at Mem) {
	o.begin("Put")
	o.write("cache", cache, cache.Rows, x.Cols, activation)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.vec(false, "at", at, tensor.I32, x.Rows)
	o.same("x", x, cache)
	o.apart()
}

func (o *Operands) ScatterAdd(dtable, dy Mat, ids Mem, first int, by float32) {
	o.begin("ScatterAdd")
	o.finite("the factor", by)
	o.write("dtable", dtable, dtable.Rows, dy.Cols, f32Only)
	o.read("dy", dy, dy.Rows, dy.Cols, activation)
	o.vec(false, "ids", ids, tensor.I32, dy.Rows)
	o.apart()
}

// master is for weights of an update, and for what rounds them.
func (o *Operands) master(weights, low Mat, d Draw) {
	o.write("Weights", weights, 1, weights.Cols, activation)
	if weights.DType == tensor.BF16 {
		o.write("Low", low, 1, weights.Cols, lowHalves)
	} else if !low.IsZero() {
		o.fail("F32 weights have no low halves")
	}
	if d.First%DrawTogether != 0 {
		o.fail("the parameters begin at %d of their part, which is no multiple of %d", d.First, DrawTogether)
	}
}

func (o *Operands) AdamW(args AdamWArgs, tally Mem) {
	o.begin("AdamW")
	n := args.Weights.Cols
	o.master(args.Weights, args.Low, args.Draw)
	o.write("M", args.M, 1, n, f32Only)
	o.write("V", args.V, 1, n, f32Only)
	o.vec(true, "tally", tally, tensor.I64, 2)
	o.read("Grad", args.Grad, 1, n, activation)
	if args.Weights.DType == tensor.F32 {
		o.same("Grad", args.Grad, args.Weights)
	}
	o.apart()
}

func (o *Operands) AdamW8(args AdamW8Args, tally Mem) {
	o.begin("AdamW8")
	n := args.Weights.Cols
	if n%tensor.MomentBlock != 0 {
		o.fail("%d elements are not whole blocks of %d", n, tensor.MomentBlock)
	}
	if args.Draw.First%tensor.MomentBlock != 0 {
		o.fail("the parameters begin at %d of their part, inside of a block of %d", args.Draw.First, tensor.MomentBlock)
	}
	o.master(args.Weights, args.Low, args.Draw)
	if args.First4() && !args.Second4() {
		o.fail("first moments have 4 bits, and second ones 8")
	}
	o.codes([2]string{"M", "MScale"}, args.M, args.MScale, n, args.First4())
	o.codes([2]string{"V", "VScale"}, args.V, args.VScale, n, args.Second4())
	o.vec(true, "tally", tally, tensor.I64, 2)
	o.read("Grad", args.Grad, 1, n, activation)
	if args.Weights.DType == tensor.F32 {
		o.same("Grad", args.Grad, args.Weights)
	}
	o.apart()
}

// codes adds the codes and scales of n moments.
func (o *Operands) codes(names [2]string, codes, scales Mat, n int, narrow bool) {
	bytes, blocks := n, n/tensor.MomentBlock
	if narrow {
		bytes, blocks = n/2, n/tensor.MomentBlock4
	}
	o.write(names[0], codes, 1, bytes, []tensor.DType{tensor.U8})
	o.write(names[1], scales, 1, blocks, f32Only)
}

func (o *Operands) SumSquares(dst Mem, x Mat) {
	o.begin("SumSquares")
	o.vec(true, "dst", dst, tensor.F64, 1)
	o.read("x", x, 1, x.Cols, activation)
	o.apart()
}
