package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Letters of shapes in this file: t rows of the pass, H the hidden width, h query heads, k key heads (each serves h/k
// queries heads), d the width of a head.
//
//	x, dx            [t, H]           input of the block and its gradient
//	qkv, dQKV        [t, (h+2k)*d]    queries, keys and values side by side: one product makes all three
//	qk               [t, (h+k)*d]     normed and rotated queries and keys, with QK norms alone
//	values           [t, k*d]         normed values, with value norms alone
//	gate             [t, h*d]         more columns of qkv and dQKV, where the output is gated
//	att, dAtt        [t, h*d]         output of the heads
//	gated            [t, h*d]         att*sigmoid(gate), where the output is gated
//	lse, delta       F32 [t, h]       log-sum-exp of the scores; row sums of att*dAtt
//	q, k, v weights  [(h+2k)*d, H]    glued: one matrix, with the gate's if there is one; no v with KeyIsValue, and
//	                                  neither k nor v where they are those of a block before
//	shared           [t, 2k*d]        keys and values that cross blocks, side by side
//	o weight         [H, h*d]
//
// Which of these does backward read, and which of them is kept? Scores are the largest of all, t*t for each head, and are
// never in memory: a kernel computes them in tiles, and again in backward from lse. Of the rest, att and lse are what is
// dear to compute again (a pass over all keys), and qkv takes a product. So the levels of what is kept are: x alone;
// att and lse too (KeepAttention); qkv too (KeepAll). Recompute makes up for what is not kept, with the same operations in
// the same order as Forward, so that the bits of all levels agree.
//
// The rotation is done in place where backward can undo it: it is orthogonal, so the gradient is rotated backward. With QK
// norms it cannot be: the norm's backward needs the product as it was, and so the rotated rows have a buffer of their own.
//
// Work on rows (products, norms, rotation) goes in chunks, for which scratch suffices. Attention itself sees all rows of
// the micro-batch at once, since a row attends to rows of other chunks; that is why Backward has two loops over chunks,
// before and after AttentionGrad.

// Attention is grouped-query attention with rotary positions. Source: Ainslie et al., "GQA" (2023).
type Attention struct {
	Heads, KVHeads, HeadDim int
	Rope                    RopeFrequencies // of heads of that width; the zero value: heads are not rotated

	QKVBias bool // biases on the q, k and v projections
	OutBias bool // a bias on the output projection
	QKNorm  bool // RMS norms of each head's query and key, before the rotation
	QKWide  bool // with QKNorm: one norm over the queries of all heads, and one over the keys
	VNorm   bool // with QKNorm: RMS norms of each head's value, without weights
	// With QKNorm and VNorm: values are norms of the product that makes the keys, and have no weights of their own.
	KeyIsValue bool
	Sinks      bool // a logit for each query head, see device.AttentionSpec
	Gated      bool // the output is multiplied by the sigmoid of a gate, which is a projection of its own
	KV         SharedKV

	Scale   float32 // of the scores, usually 1/sqrt(HeadDim)
	Window  int     // a query sees this many latest keys, itself included; 0: all
	SoftCap float32 // bounds the scores, see device.AttentionSpec; 0: none
}

// SharedKV says whether keys and values, normed and rotated, cross blocks.
type SharedKV struct {
	Role   KVRole
	Number int // of the side that has them
}

// KVRole is the part that a block has in it.
type KVRole uint8

// The roles.
const (
	KVAlone KVRole = iota // keys and values are the block's own, and no other one reads them
	KVGiven               // later blocks read them, too
	KVTaken               // with QKNorm: they are those of a block before, and the block has no weights for them
)

// The tensors of attention. Of those that are glued it is the first.
const (
	qkvWeight, qkvBias = "q.weight", "q.bias"
	vBias              = "v.bias"
	outWeight, outBias = "o.weight", "o.bias"
	qNorm, kNorm       = "q_norm.weight", "k_norm.weight"
	sinks              = "sinks"
)

// The buffers of attention, t rows each.
const (
	att     = iota // [t, qCols]: the output
	lse            // F32 [t, Heads]: log-sum-exp
	qkv            // [t, qkvCols]; rotated, unless QK norms need the products as they were
	qk             // [t, qkCols]: normed and rotated queries and keys, with QKNorm only
	values         // [t, kvCols]: normed values, with VNorm only
	qRstd          // F32 [t, Heads], with QKNorm only; one column with QKWide
	kRstd          // F32 [t, KVHeads], the same
	vRstd          // F32 [t, KVHeads], with VNorm only
	dAtt           // [t, qCols]
	dQKV           // [t, qkvCols]
	dValues        // [t, kvCols], with KeyIsValue only, where dQKV has no columns for it
	dTaken         // [t, 2*kvCols]: of keys and values that are those of a block before
	delta          // F32 [t, Heads]
	gated          // [t, qCols], with Gated only; in backward the gradient of it
)

func (a Attention) Values(int) []Value {
	qkvLives := Operand
	if a.Gated { // the gate is read for the output
		qkvLives = Result
	}
	return []Value{
		att:     {Cols: a.qCols(), Level: KeepAttention, Lives: Result},
		lse:     {Cols: a.Heads, DType: tensor.F32, Level: KeepAttention, Lives: Result},
		qkv:     {Cols: a.qkvCols(), Level: KeepAll, Lives: qkvLives},
		qk:      {Cols: when(a.QKNorm, a.qkCols()), Lives: Operand},
		values:  {Cols: when(a.VNorm, a.ownCols()), Lives: Operand},
		qRstd:   {Cols: when(a.QKNorm, a.normGroups(a.Heads)), DType: tensor.F32, Lives: Operand},
		kRstd:   {Cols: when(a.QKNorm && a.ownKV(), a.normGroups(a.KVHeads)), DType: tensor.F32, Lives: Operand},
		vRstd:   {Cols: when(a.VNorm && a.ownKV(), a.KVHeads), DType: tensor.F32, Lives: Operand},
		dAtt:    {Cols: a.qCols(), Lives: Gradient},
		dQKV:    {Cols: a.qkvCols(), Lives: Gradient},
		dValues: {Cols: when(a.KeyIsValue, a.ownCols()), Lives: Gradient},
		dTaken:  {Cols: when(!a.ownKV(), 2*a.kvCols()), Lives: Gradient},
		delta:   {Cols: a.Heads, DType: tensor.F32, Lives: Gradient},
		gated:   {Cols: when(a.Gated, a.qCols()), Lives: Result},
	}
}

// Rotary implements Rotated.
func (a Attention) Rotary() RopeFrequencies { return a.Rope }

func (a Attention) head() (columns int, capped bool) { return a.HeadDim, a.SoftCap > 0 }

func (a Attention) qCols() int  { return a.Heads * a.HeadDim }
func (a Attention) kvCols() int { return a.KVHeads * a.HeadDim }
func (a Attention) qkCols() int { return a.qCols() + a.ownCols() }
func (a Attention) qkvCols() int {
	return a.qkCols() + when(!a.KeyIsValue, a.ownCols()) + when(a.Gated, a.qCols())
}

// ownKV reports whether the block computes keys and values, and ownCols is the number of columns of its keys.
func (a Attention) ownKV() bool  { return a.KV.Role != KVTaken }
func (a Attention) ownCols() int { return when(a.ownKV(), a.kvCols()) }

// Sides implements Sided.
func (a Attention) Sides() []Side {
	if a.KV.Role == KVAlone {
		return nil
	}
	return []Side{{Number: a.KV.Number, Cols: 2 * a.kvCols(), Makes: a.KV.Role == KVGiven}}
}

// shared views the columns of [t, 2*kvCols] as keys and values.
func (a Attention) shared(kv device.Mat) (k, v device.Mat) {
	return kv.ColRange(0, a.kvCols()), kv.ColRange(a.kvCols(), a.kvCols())
}

// projections is the number of matrices that are glued to one: q, k, v and the gate.
func (a Attention) projections() int {
	return 1 + when(a.ownKV(), 1) + when(a.ownKV() && !a.KeyIsValue, 1) + when(a.Gated, 1)
}

// rotates reports whether heads are rotated.
func (a Attention) rotates() bool { return a.Rope != RopeFrequencies{} }

// normGroups is the number of groups in which the norm of that many heads takes a row.
func (a Attention) normGroups(heads int) int {
	if a.QKWide {
		return 1
	}
	return heads
}

func (a Attention) Fields(hidden int) []tensor.Field {
	fields := []tensor.Field{param(qkvWeight, a.qCols(), hidden)}
	if a.ownKV() {
		fields = append(fields, glued("k.weight", a.kvCols(), hidden))
	}
	if a.ownKV() && !a.KeyIsValue {
		fields = append(fields, glued("v.weight", a.kvCols(), hidden))
	}
	if a.Gated {
		fields = append(fields, glued("q_gate.weight", a.qCols(), hidden))
	}
	fields = append(fields, param(outWeight, hidden, a.qCols()))
	if a.QKNorm {
		fields = append(fields, param(qNorm, a.qCols()/a.normGroups(a.Heads)))
		if a.ownKV() {
			fields = append(fields, param(kNorm, a.kvCols()/a.normGroups(a.KVHeads)))
		}
	}
	if a.QKVBias {
		fields = append(fields, param(qkvBias, a.qCols()))
		if a.ownKV() {
			fields = append(fields, glued("k.bias", a.kvCols()))
		}
		if a.ownKV() && !a.KeyIsValue {
			fields = append(fields, glued(vBias, a.kvCols()))
		}
		if a.Gated {
			fields = append(fields, glued("q_gate.bias", a.qCols()))
		}
	}
	if a.OutBias {
		fields = append(fields, param(outBias, hidden))
	}
	if a.Sinks {
		fields = append(fields, param(sinks, a.Heads))
	}
	return fields
}

func (a Attention) Forward(p *Pass, x device.Mat) {
	for c := range p.chunks() {
		part := p.At(c)
		a.projectQKV(part, c.rows(x))
		a.rotate(part)
		a.give(part)
	}
	a.attend(p)
}

// give hands keys and values on to later blocks.
func (a Attention) give(p *Pass) {
	if a.KV.Role != KVGiven {
		return
	}
	_, k, v := a.operands(p)
	toK, toV := a.shared(p.Side(0).Value)
	p.Scale(toK, k, 1)
	p.Scale(toV, v, 1)
}

func (a Attention) Recompute(p *Pass, x device.Mat) {
	for c := range p.chunks() {
		part := p.At(c)
		if p.keep < KeepAll {
			a.projectQKV(part, c.rows(x))
		}
		// Without norms a kept qkv is rotated already.
		if p.keep < KeepAll || a.QKNorm {
			a.rotate(part)
		}
	}
	if p.keep < KeepAttention {
		a.attend(p)
	}
}

// projectQKV computes qkv = norm(x)·Wqkv^T + bias, except the biases that rotate adds.
func (a Attention) projectQKV(p *Pass, x device.Mat) {
	p.Normalize(x)
	p.Project(p.buf[qkv], p.norm, qkvWeight, a.projections())
	switch at := a.qkCols(); {
	case a.QKVBias && (a.QKNorm || !a.rotates()):
		p.AddBias(p.buf[qkv], p.w.named(qkvBias, a.projections()))
	case a.QKVBias:
		p.AddBias(p.buf[qkv].ColRange(at, a.qkvCols()-at), p.w.named(vBias, a.projections()-2))
	}
}

// split views the columns of [t, qkvCols] as queries, keys and values, which are the keys' columns with KeyIsValue; the
// latter two are the zero Mat where they are those of a block before.
func (a Attention) split(qkv device.Mat) (q, k, v device.Mat) {
	if !a.ownKV() {
		return qkv.ColRange(0, a.qCols()), k, v
	}
	q, k = qkv.ColRange(0, a.qCols()), qkv.ColRange(a.qCols(), a.kvCols())
	if a.KeyIsValue {
		return q, k, k
	}
	return q, k, qkv.ColRange(a.qkCols(), a.kvCols())
}

// gradients returns the gradients of the matrices that operands returns.
func (a Attention) gradients(p *Pass) (dq, dk, dv device.Mat) {
	dq, dk, dv = a.split(p.buf[dQKV])
	if !a.ownKV() {
		dk, dv = a.shared(p.buf[dTaken])
		return dq, dk, dv
	}
	if a.KeyIsValue {
		dv = p.buf[dValues]
	}
	return dq, dk, dv
}

// gate views the columns of [t, qkvCols] that are the gate.
func (a Attention) gate(qkv device.Mat) device.Mat {
	return qkv.ColRange(a.qkvCols()-a.qCols(), a.qCols())
}

// operands returns the inputs of attention. They are in qkv itself, or in matrices of their own where norms leave qkv
// as it was.
func (a Attention) operands(p *Pass) (q, k, v device.Mat) {
	q, k, v = a.split(p.buf[qkv])
	if !a.ownKV() {
		k, v = a.shared(p.Side(0).Value)
		return p.buf[qk], k, v
	}
	if a.QKNorm {
		q, k = p.buf[qk].ColRange(0, a.qCols()), p.buf[qk].ColRange(a.qCols(), a.kvCols())
	}
	if a.VNorm {
		v = p.buf[values]
	}
	return q, k, v
}

// rotate norms the queries and keys where the mixer does so, or else adds their biases, and rotates them. It norms the
// values, too.
func (a Attention) rotate(p *Pass) {
	rotated, bias := p.buf[qkv].ColRange(0, a.qkCols()), device.Mat{}
	switch {
	case a.QKNorm:
		rotated = p.buf[qk]
		q, k, _ := a.operands(p)
		rawQ, rawK, _ := a.split(p.buf[qkv])
		p.RMSNorm(q, p.buf[qRstd], rawQ, p.w.named(qNorm, 1), p.normed.of(a.normGroups(a.Heads)))
		if a.ownKV() {
			p.RMSNorm(k, p.buf[kRstd], rawK, p.w.named(kNorm, 1), p.normed.of(a.normGroups(a.KVHeads)))
		}
	case a.QKVBias:
		bias = p.w.named(qkvBias, 2)
	}
	a.turn(p, rotated, bias, false)
	if a.VNorm && a.ownKV() {
		_, _, raw := a.split(p.buf[qkv])
		p.RMSNorm(p.buf[values], p.buf[vRstd], raw, device.Mat{}, a.valueNorm(p))
	}
}

// valueNorm is the norm of values: it has no weight, and so no offset to one.
func (a Attention) valueNorm(p *Pass) device.NormSpec { return Norm{Eps: p.normed.Eps}.of(a.KVHeads) }

// turn rotates queries and keys, which stand side by side, or turns their gradient back.
func (a Attention) turn(p *Pass, qk, bias device.Mat, inverse bool) {
	switch turn := func(x, bias device.Mat, heads int, r *Rope) {
		p.RoPE(x, x, bias, heads, r.Cos, r.Sin, p.positions, inverse)
	}; {
	case !a.rotates():
	case a.Rope.QueryBeta == 0:
		turn(qk, bias, a.Heads+when(a.ownKV(), a.KVHeads), p.r)
	case !a.ownKV():
		turn(qk, bias, a.Heads, p.r.queries())
	default:
		q, k := qk.ColRange(0, a.qCols()), qk.ColRange(a.qCols(), a.kvCols())
		if bias.IsZero() {
			turn(q, bias, a.Heads, p.r.queries())
			turn(k, bias, a.KVHeads, p.r)
			return
		}
		turn(q, bias.ColRange(0, a.qCols()), a.Heads, p.r.queries())
		turn(k, bias.ColRange(a.qCols(), a.kvCols()), a.KVHeads, p.r)
	}
}

// The values of attention that a cache keeps, a row for each position.
const (
	cachedKeys   = iota // [C, kvCols]: rotated
	cachedValues        // [C, kvCols]
)

// CacheValues implements Cached.
func (a Attention) CacheValues(int, Caches) []Value {
	return []Value{cachedKeys: {Cols: a.kvCols()}, cachedValues: {Cols: a.kvCols()}}
}

func (a Attention) attend(p *Pass) {
	q, k, v := a.operands(p)
	if keys, ok := p.Cached(cachedKeys); ok {
		values, _ := p.Cached(cachedValues)
		p.Put(keys, k, p.b.Places)
		p.Put(values, v, p.b.Places)
		p.AttendCached(p.buf[att], q, keys, values, a.spec(p))
		return
	}
	p.Attention(p.buf[att], p.buf[lse], q, k, v, a.spec(p))
}

func (a Attention) spec(p *Pass) device.AttentionSpec {
	s := device.AttentionSpec{Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Scale: a.Scale, Window: a.Window,
		SoftCap: a.SoftCap, Docs: p.b.Docs}
	if a.Sinks {
		s.Sinks = p.w.named(sinks, 1)
	}
	return s
}

// output is h = x + att·Wo^T + bias, where att may be gated.
func (a Attention) Output(p *Pass, x, h device.Mat) {
	out := p.buf[att]
	if a.Gated {
		out = p.buf[gated]
		p.Gate(out, p.buf[att], a.gate(p.buf[qkv]), device.SigmoidGate)
	}
	p.MatMul(h, out, p.w.named(outWeight, 1), device.MatMulFlags{TransB: true, Onto: x})
	if a.OutBias {
		p.AddBias(h, p.w.named(outBias, 1))
	}
}

func (a Attention) Backward(p *Pass, x, dy, dx device.Mat) {
	for c := range p.chunks() {
		a.backwardOutput(p.At(c), c.rows(dy))
	}
	q, k, v := a.operands(p)
	dq, dk, dv := a.gradients(p)
	p.AttentionGrad(dq, dk, dv, p.buf[dAtt], q, k, v, p.buf[att], p.buf[lse], p.buf[delta], a.spec(p))
	a.shareGradient(p, dk, dv)
	if d := p.g.named(sinks, 1); a.Sinks && !d.IsZero() {
		p.SinkGrad(d, p.w.named(sinks, 1), p.buf[lse], p.buf[delta])
	}
	for c := range p.chunks() {
		a.backwardQKV(p.At(c), c.rows(x), c.rows(dx))
	}
}

// shareGradient takes the gradient of keys and values to the block that has made them, or adds there what later
// blocks have taken.
func (a Attention) shareGradient(p *Pass, dk, dv device.Mat) {
	switch a.KV.Role {
	case KVTaken:
		p.AddSideGradient(0, p.buf[dTaken])
	case KVGiven:
		givenK, givenV := a.shared(p.Side(0).Grad)
		p.Add(dk, dk, givenK)
		p.Add(dv, dv, givenV)
	}
}

// backwardOutput takes the gradient of a chunk's result back to the output of the heads, and to its gate.
func (a Attention) backwardOutput(p *Pass, dy device.Mat) {
	out, dOut := p.buf[att], p.buf[dAtt]
	if a.Gated {
		out, dOut = p.buf[dAtt], p.buf[gated]
		p.Gate(out, p.buf[att], a.gate(p.buf[qkv]), device.SigmoidGate)
	}
	p.WeightGrad(outWeight, 1, dy, out)
	if a.OutBias {
		p.BiasGradient(outBias, 1, dy)
	}
	p.ProjectGrad(dOut, dy, outWeight, 1)
	if a.Gated {
		p.GateGrad(p.buf[dAtt], a.gate(p.buf[dQKV]), dOut, p.buf[att], a.gate(p.buf[qkv]), device.SigmoidGate)
	}
}

// backwardQKV takes a chunk of the gradient of what attention read back to x.
func (a Attention) backwardQKV(p *Pass, x, dx device.Mat) {
	dqkv := p.buf[dQKV]
	dqk := dqkv.ColRange(0, a.qkCols())
	a.turn(p, dqk, device.Mat{}, true)
	dq, dk, dv := a.gradients(p)
	rawQ, rawK, rawV := a.split(p.buf[qkv])
	none := device.Mat{}
	if a.QKNorm {
		p.RMSNormGrad(dq, p.g.named(qNorm, 1), dq, rawQ, p.w.named(qNorm, 1), p.buf[qRstd], none,
			p.normed.of(a.normGroups(a.Heads)))
		if a.ownKV() {
			p.RMSNormGrad(dk, p.g.named(kNorm, 1), dk, rawK, p.w.named(kNorm, 1), p.buf[kRstd], none,
				p.normed.of(a.normGroups(a.KVHeads)))
		}
	}
	switch {
	case !a.ownKV():
	case a.KeyIsValue: // the projection has both gradients
		p.RMSNormGrad(dk, none, dv, rawV, none, p.buf[vRstd], dk, a.valueNorm(p))
	case a.VNorm:
		p.RMSNormGrad(dv, none, dv, rawV, none, p.buf[vRstd], none, a.valueNorm(p))
	}
	// The feed-forward took over the buffer of this norm; to repeat it is cheaper than to hold t*Hidden elements
	// meanwhile.
	p.Normalize(x)
	p.WeightGrad(qkvWeight, a.projections(), dqkv, p.norm)
	if a.QKVBias {
		p.BiasGradient(qkvBias, a.projections(), dqkv)
	}
	p.ProjectGrad(p.norm, dqkv, qkvWeight, a.projections())
	p.NormalizeGrad(x, dx)
}
