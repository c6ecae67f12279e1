package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Letters of shapes in this file: t rows of the pass, H the hidden width, k key heads of K columns, h heads of V
// columns (each key head serves h/k of them), C = 2*k*K + h*V, n the number of chunks of device.DeltaChunk rows in t.
//
//	x, dx               [t, H]                    input of the block and its gradient
//	in, dIn             [t, C + h*V + 2*h]        queries, keys, values; the output's gate z; b and a: of one product
//	conv, dConv         [t, C]                    queries, keys and values after the convolution
//	decay, beta         F32 [t, h]                what b and a become; and their gradients
//	core, dCore         [t, h*V]                  output of the heads
//	states, dStates     F32 [n, h*K*V]            what a head remembers before each chunk
//	gated               [t, h*V]                  core, normed by head and gated
//	q, k, v, z, b, a    [C + h*V + 2*h, H]        weights, glued: one matrix
//	conv weight         [C, taps]
//	out weight          [H, h*V]
//
// Which of these does backward read, and which of them is kept? It reads in, for the gradients of the convolution and
// of the gates; conv, decay, beta and states, for that of the recurrence; and core, for that of the norm. What conv and
// the gates take is a pass over rows, and they are never kept. in takes the product, and at 128 columns a head, in
// bf16, about 24 KiB a row in a model of 4 billion parameters. states take 32 KiB a row there, and core 8: together
// more memory than in, for a recurrence of which the arithmetic is a twelfth of the product's, but which goes from
// chunk to chunk. So the levels of what is kept are: x alone; in too (KeepAttention); states and core too (KeepAll),
// which the recurrence makes together. Where they are not kept, Recompute runs it again from the start of each
// document.
//
// The recurrence and the convolution look from one row at others, so they see all rows of a micro-batch at once. The
// rest goes in chunks, for which scratch suffices.

// DeltaTaps is the number of rows that the convolution of a gated delta net sees, the row itself included.
const DeltaTaps = 4

// GatedDelta is a mixer that remembers a document in a state of fixed size for each head: a gated delta net. Short
// convolutions go before it, and a norm of each head and a gate after it. Source: Yang et al., "Gated Delta Networks:
// Improving Mamba2 with Delta Rule" (2024), in the form of Qwen3-Next.
type GatedDelta struct {
	KeyHeads, Heads  int // each key head serves Heads/KeyHeads neighbours
	KeyDim, ValueDim int
}

// The tensors of a gated delta net. Of those that are glued it is the first.
const (
	deltaIn     = "delta.q.weight" // then k, v, z, b, a
	deltaConv   = "delta.conv.weight"
	deltaOut    = "delta.out.weight"
	deltaNorm   = "delta.norm.weight"
	deltaDTBias = "delta.dt_bias"
	deltaIns    = 6
)

// DeltaALog is the tensor with the logarithms of how quickly heads forget. It is glued to dt_bias, since the gradients
// of both come together.
const DeltaALog = "delta.a_log"

// The buffers of a gated delta net, t rows each but the states.
const (
	dnIn      = iota // [t, inCols]
	dnCore           // [t, values]
	dnStates         // F32 [n, h*K*V]
	dnGated          // [t, values]; in backward the normed core
	dnRstd           // F32 [t, Heads]: of the norm
	dnConv           // [t, qkvCols]
	dnDecay          // F32 [t, Heads]
	dnBeta           // F32 [t, Heads]
	dnDCore          // [t, values]
	dnDConv          // [t, qkvCols]
	dnDIn            // [t, inCols]
	dnDDecay         // F32 [t, Heads]
	dnDBeta          // F32 [t, Heads]
	dnDStates        // F32 [n, h*K*V]
)

// Values implements Half.
func (d GatedDelta) Values(int) []Value {
	_, state := d.spec(device.Docs{}).States(1)
	return []Value{
		dnIn:      {Cols: d.inCols(), Level: KeepAttention, Lives: Result},
		dnCore:    {Cols: d.valueCols(), Level: KeepAll, Lives: Result},
		dnStates:  {Cols: state, DType: tensor.F32, Every: device.DeltaChunk, Level: KeepAll, Lives: Operand},
		dnGated:   {Cols: d.valueCols(), Lives: Result},
		dnRstd:    {Cols: d.Heads, DType: tensor.F32, Lives: Result},
		dnConv:    {Cols: d.qkvCols(), Lives: Operand},
		dnDecay:   {Cols: d.Heads, DType: tensor.F32, Lives: Operand},
		dnBeta:    {Cols: d.Heads, DType: tensor.F32, Lives: Operand},
		dnDCore:   {Cols: d.valueCols(), Lives: Gradient},
		dnDConv:   {Cols: d.qkvCols(), Lives: Gradient},
		dnDIn:     {Cols: d.inCols(), Lives: Gradient},
		dnDDecay:  {Cols: d.Heads, DType: tensor.F32, Lives: Gradient},
		dnDBeta:   {Cols: d.Heads, DType: tensor.F32, Lives: Gradient},
		dnDStates: {Cols: state, DType: tensor.F32, Every: device.DeltaChunk, Lives: Gradient},
	}
}

func (d GatedDelta) spec(docs device.Docs) device.DeltaSpec {
	return device.DeltaSpec{KeyHeads: d.KeyHeads, Heads: d.Heads, KeyDim: d.KeyDim, ValueDim: d.ValueDim, Docs: docs}
}

func (d GatedDelta) keyCols() int   { return d.KeyHeads * d.KeyDim }
func (d GatedDelta) valueCols() int { return d.Heads * d.ValueDim }
func (d GatedDelta) qkvCols() int   { return 2*d.keyCols() + d.valueCols() }
func (d GatedDelta) inCols() int    { return d.qkvCols() + d.valueCols() + 2*d.Heads }

// Fields implements Half.
func (d GatedDelta) Fields(hidden int) []tensor.Field {
	return []tensor.Field{
		param(deltaIn, d.keyCols(), hidden),
		glued("delta.k.weight", d.keyCols(), hidden),
		glued("delta.v.weight", d.valueCols(), hidden),
		glued("delta.z.weight", d.valueCols(), hidden),
		glued("delta.b.weight", d.Heads, hidden),
		glued("delta.a.weight", d.Heads, hidden),
		param(deltaOut, hidden, d.valueCols()),
		param(deltaConv, d.qkvCols(), DeltaTaps),
		param(deltaNorm, d.ValueDim),
		param(DeltaALog, d.Heads),
		glued(deltaDTBias, d.Heads),
	}
}

// split views the columns of [t, inCols].
func (d GatedDelta) split(in device.Mat) (qkv, z, b, a device.Mat) {
	at := d.qkvCols()
	return in.ColRange(0, at), in.ColRange(at, d.valueCols()), in.ColRange(at+d.valueCols(), d.Heads),
		in.ColRange(at+d.valueCols()+d.Heads, d.Heads)
}

// Forward implements Mixer.
func (d GatedDelta) Forward(p *Pass, x device.Mat) {
	d.project(p, x)
	d.convolve(p)
	d.remember(p)
}

// Recompute implements Mixer.
func (d GatedDelta) Recompute(p *Pass, x device.Mat) {
	if p.keep < KeepAttention {
		d.project(p, x)
	}
	d.convolve(p)
	if p.keep < KeepAll {
		d.remember(p)
	}
}

// project computes in = norm(x)·Win^T.
func (d GatedDelta) project(p *Pass, x device.Mat) {
	for c := range p.chunks() {
		part := p.At(c)
		part.Normalize(c.rows(x))
		part.Project(part.buf[dnIn], part.norm, deltaIn, deltaIns)
	}
}

// convolve computes what the recurrence reads.
func (d GatedDelta) convolve(p *Pass) {
	qkv, _, b, a := d.split(p.buf[dnIn])
	if tail, ok := p.Cached(cachedTail); ok {
		p.ContinueConv(p.buf[dnConv], tail, qkv, p.w.named(deltaConv, 1), p.Continued())
	} else {
		p.CausalConv(p.buf[dnConv], qkv, p.w.named(deltaConv, 1), p.b.Docs)
	}
	p.DeltaGates(p.buf[dnDecay], p.buf[dnBeta], a, b, p.w.named(DeltaALog, 1), p.w.named(deltaDTBias, 1))
}

// The values of a gated delta net that a cache keeps: of each sequence the latest rows that the convolution reads, and
// a state.
const (
	cachedTail   = iota // [sequences*(DeltaTaps-1), C]
	cachedStates        // F32 [sequences, h*K*V]
)

// CacheValues implements Cached.
func (d GatedDelta) CacheValues(_ int, of Caches) []Value {
	_, state := d.spec(device.Docs{}).States(1)
	return []Value{cachedTail: {Cols: d.qkvCols(), Rows: of.Sequences * (DeltaTaps - 1)},
		cachedStates: {Cols: state, DType: tensor.F32, Rows: of.Sequences}}
}

func (d GatedDelta) remember(p *Pass) {
	if states, ok := p.Cached(cachedStates); ok {
		p.ContinueDelta(p.buf[dnCore], states, p.buf[dnConv], p.buf[dnDecay], p.buf[dnBeta], d.spec(p.b.Docs),
			p.Continued().Each)
		return
	}
	p.GatedDelta(p.buf[dnCore], p.buf[dnStates], p.buf[dnConv], p.buf[dnDecay], p.buf[dnBeta], d.spec(p.b.Docs))
}

// norm describes the norm of each head's output. Its weights have no offset.
func (d GatedDelta) norm(p *Pass) device.NormSpec { return Norm{Eps: p.normed.Eps}.of(d.Heads) }

// normalize writes the normed output of the heads to the buffer of what is gated.
func (d GatedDelta) normalize(p *Pass) {
	p.RMSNorm(p.buf[dnGated], p.buf[dnRstd], p.buf[dnCore], p.w.named(deltaNorm, 1), d.norm(p))
}

// Output is h = x + (norm(core)*silu(z))·Wo^T.
func (d GatedDelta) Output(p *Pass, x, h device.Mat) {
	_, z, _, _ := d.split(p.buf[dnIn])
	gated := p.buf[dnGated]
	d.normalize(p)
	p.Gate(gated, gated, z, device.SiLUGate)
	p.MatMul(h, gated, p.w.named(deltaOut, 1), device.MatMulFlags{TransB: true, Onto: x})
}

// Backward implements Mixer. The gradient of what was gated has the buffer of its own, in turn with what was gated.
func (d GatedDelta) Backward(p *Pass, x, dy, dx device.Mat) {
	for c := range p.chunks() {
		d.backwardOutput(p.At(c), c.rows(dy))
	}
	p.GatedDeltaGrad(p.buf[dnDConv], p.buf[dnDDecay], p.buf[dnDBeta], p.buf[dnDStates], p.buf[dnDCore], p.buf[dnConv],
		p.buf[dnDecay], p.buf[dnBeta], p.buf[dnStates], d.spec(p.b.Docs))
	qkv, _, b, a := d.split(p.buf[dnIn])
	dqkv, _, db, da := d.split(p.buf[dnDIn])
	p.DeltaGatesGrad(da, db, p.g.named(DeltaALog, 1), p.g.named(deltaDTBias, 1), p.buf[dnDDecay], p.buf[dnDBeta], a, b,
		p.w.named(DeltaALog, 1), p.w.named(deltaDTBias, 1))
	dw := p.g.named(deltaConv, 1)
	if p.g.Fresh && !dw.IsZero() {
		p.Zero(dw.Mem) // the operation adds, while products overwrite
	}
	p.CausalConvGrad(dqkv, dw, p.buf[dnDConv], qkv, p.w.named(deltaConv, 1), p.b.Docs)
	for c := range p.chunks() {
		part, x := p.At(c), c.rows(x)
		part.Normalize(x)
		part.WeightGrad(deltaIn, deltaIns, part.buf[dnDIn], part.norm)
		part.ProjectGrad(part.norm, part.buf[dnDIn], deltaIn, deltaIns)
		part.NormalizeGrad(x, c.rows(dx))
	}
}

// backwardOutput takes the gradient of a chunk's result back to the output of the heads, and to its gate.
func (d GatedDelta) backwardOutput(p *Pass, dy device.Mat) {
	_, z, _, _ := d.split(p.buf[dnIn])
	_, dz, _, _ := d.split(p.buf[dnDIn])
	normed, dCore := p.buf[dnGated], p.buf[dnDCore]
	d.normalize(p)
	p.Gate(dCore, normed, z, device.SiLUGate) // what the last product read
	p.WeightGrad(deltaOut, 1, dy, dCore)
	p.ProjectGrad(dCore, dy, deltaOut, 1)
	p.GateGrad(dCore, dz, dCore, normed, z, device.SiLUGate)
	p.RMSNormGrad(dCore, p.g.named(deltaNorm, 1), dCore, p.buf[dnCore], p.w.named(deltaNorm, 1), p.buf[dnRstd],
		device.Mat{}, d.norm(p))
}
