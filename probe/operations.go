package probe

import (
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// Classes of operations whose rates do not follow from those of products and of memory are measured one by one:
// attention forward and backward by the width of heads, gated delta nets, convolutions, products of experts, the
// loss, gradients of norms and of gated units, and updates on a GPU with moments in 8 bits. There are some fifty of
// them, so that each has a fifth of the time that others take.

// operationShare is the part of probeSeconds that each takes.
const operationShare = 5

// operationSizes holds the sizes of the operations' operands.
type operationSizes struct {
	rows, length    int   // positions, and those of each document
	width           int   // columns of the queries of all heads
	headDims        []int // of attention
	keyHeads, heads int   // of a gated delta net with heads of deltaDim
	deltaDim        int
	tokens          int   // that choose one expert each
	each            []int // how many of them each expert has
	hidden, inner   int   // of experts
	tile            int   // columns of logits
}

// operationsFor are large enough for a device to spend its time on work: on a GPU a gated delta net has the shape
// of Qwen3.5's (16 heads of keys, 32 of values, 128 columns), and experts have that of Qwen3-30B-A3B's; on a CPU
// there is a quarter of the heads, as models of its size have.
func operationsFor(dev device.Info) operationSizes {
	if dev.Unified {
		return operationSizes{rows: 512, length: 512, width: 512, headDims: []int{64, 128, 256, 512}, keyHeads: 4, heads: 8,
			deltaDim: 128, tokens: 1024, each: []int{16, 256}, hidden: 512, inner: 512, tile: 8192}
	}
	s := operationSizes{rows: 8192, length: 2048, width: 4096, headDims: []int{64, 128, 256, 512}, keyHeads: 16, heads: 32,
		deltaDim: 128, tokens: 8192, each: []int{64, 256, 2048}, hidden: 2048, inner: 1536, tile: 8192}
	if dev.MemoryBytes < 12<<30 {
		s.rows, s.tokens = 2048, 2048
	}
	return s
}

// operation is something to measure.
type operation struct {
	plan.OperationRate                                  // without the rate
	amount             int64                            // FLOPs or bytes
	layout             func(*device.Arena) []device.Mat // lays operands out, twice, and returns those to be filled
	prepare            func() error                     // after that; nil: nothing
	run                func(device.Stream)
}

// operations measures all of a type.
func (p *prober) operations(dtype tensor.DType) func(*plan.Machine) error {
	return func(m *plan.Machine) error {
		all := p.attentions(dtype)
		all = append(all, p.deltas(dtype)...)
		all = append(all, p.experts(dtype)...)
		all = append(all, p.loss(dtype))
		all = append(all, p.gradients(dtype)...)
		for _, o := range all {
			if err := p.operation(m, o, dtype); err != nil {
				return err
			}
		}
		return nil
	}
}

// operation measures one, and notes its rate.
func (p *prober) operation(m *plan.Machine, o operation, dtype tensor.DType) error {
	var fill []device.Mat
	release, err := p.place(func(a *device.Arena) { fill = o.layout(a) })
	if err != nil {
		return err
	}
	defer release()
	if err := p.fill(p.compute, fill...); err != nil {
		return err
	}
	if o.prepare != nil {
		if err := o.prepare(); err != nil {
			return err
		}
	}
	rate, err := p.rate(task{p.compute, o.amount, func() { o.run(p.compute) }}, p.seconds/operationShare)
	if err != nil {
		return err
	}
	r := o.OperationRate
	if r.Compute = dtype.String(); r.Operation.IsFLOPs() {
		r.FLOPsPerSec = rate
	} else {
		r.BytesPerSec = rate
	}
	m.Operations = append(m.Operations, r)
	return nil
}

// attentions are forward and backward by the width of heads, without a soft cap and with one, as far as the device
// has them.
func (p *prober) attentions(dtype tensor.DType) (all []operation) {
	for _, capped := range []bool{false, true} {
		limit := p.device.Info().MaxHeadDim.Of(dtype, capped)
		for _, dim := range p.ops.headDims {
			if limit == 0 || dim <= limit {
				all = append(all, p.attentionOf(dtype, dim, capped)...)
			}
		}
	}
	return all
}

func (p *prober) attentionOf(dtype tensor.DType, dim int, capped bool) []operation {
	t, length, heads := p.ops.rows, p.ops.length, max(p.ops.width/dim, 1)
	kvHeads := max(heads/4, 1)
	spec := device.AttentionSpec{Heads: heads, KVHeads: kvHeads, HeadDim: dim, Scale: float32(1 / math.Sqrt(float64(dim)))}
	forward, backward := nn.OfAttention, nn.OfAttentionGrad
	if capped {
		spec.SoftCap = 50 // Gemma 2's
		forward, backward = nn.OfCappedAttention, nn.OfCappedAttentionGrad
	}
	flops := int64(t/length) * int64(length) * int64(length+1) / 2 * 2 * int64(heads*dim)
	var q, k, v, out, dq, dk, dv, dout, lse, delta device.Mat
	layout := func(a *device.Arena) []device.Mat {
		mat := func(heads int) device.Mat { return a.Mat(dtype, t, heads*dim) }
		q, k, v, out = mat(heads), mat(kvHeads), mat(kvHeads), mat(heads)
		dq, dk, dv, dout = mat(heads), mat(kvHeads), mat(kvHeads), mat(heads)
		lse, delta = a.Mat(tensor.F32, t, heads), a.Mat(tensor.F32, t, heads)
		spec.Docs = takeDocs(a, t)
		return []device.Mat{q, k, v, dout}
	}
	attend := func(s device.Stream) { s.Attention(out, lse, q, k, v, spec) }
	docs := func() error { return p.writeDocs(spec.Docs, t, length) }
	rate := plan.OperationRate{Operation: forward, HeadDim: dim, SequenceLen: length}
	rateBack := rate
	rateBack.Operation = backward
	return []operation{{rate, 2 * flops, layout, docs, attend}, {rateBack, 5 * flops, layout, func() error {
		if err := docs(); err != nil {
			return err
		}
		attend(p.compute)
		return nil
	}, func(s device.Stream) { s.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec) }}}
}

// takeDocs takes memory for the documents of t positions.
func takeDocs(a *device.Arena, t int) device.Docs {
	n := int64(t) * tensor.I32.Bytes()
	return device.Docs{Positions: a.Take(n), Start: a.Take(n), End: a.Take(n)}
}

// deltas are a gated delta net and the convolution of what it reads, and their gradients.
func (p *prober) deltas(dtype tensor.DType) []operation {
	const taps = 4
	z := &p.ops
	t := z.rows
	spec := device.DeltaSpec{KeyHeads: z.keyHeads, Heads: z.heads, KeyDim: z.deltaDim, ValueDim: z.deltaDim}
	var out, qkv, decay, beta, a0, b0, aLog, dtBias, states, dqkv, ddecay, dbeta, dstates device.Mat
	layout := func(a *device.Arena) []device.Mat {
		mat := func(t tensor.DType, cols int) device.Mat { return a.Mat(t, z.rows, cols) }
		out, qkv, dqkv = mat(dtype, spec.Values()), mat(dtype, spec.QKVCols()), mat(dtype, spec.QKVCols())
		a0, b0, aLog, dtBias = mat(dtype, z.heads), mat(dtype, z.heads), a.Mat(dtype, 1, z.heads), a.Mat(dtype, 1, z.heads)
		decay, beta = mat(tensor.F32, z.heads), mat(tensor.F32, z.heads)
		ddecay, dbeta = mat(tensor.F32, z.heads), mat(tensor.F32, z.heads)
		chunks, cols := spec.States(t)
		states, dstates = a.Mat(tensor.F32, chunks, cols), a.Mat(tensor.F32, chunks, cols)
		spec.Docs = takeDocs(a, t)
		return []device.Mat{qkv, a0, b0, aLog, dtBias}
	}
	forward := func(s device.Stream) { s.GatedDelta(out, states, qkv, decay, beta, spec) }
	prepare := func() error {
		p.compute.DeltaGates(decay, beta, a0, b0, aLog, dtBias)
		return p.writeDocs(spec.Docs, t, z.length)
	}
	flops, flopsBack := spec.FLOPs(t)
	cols := spec.QKVCols()
	var x, y, w, dx, dw device.Mat
	var docs device.Docs
	convLayout := func(a *device.Arena) []device.Mat {
		x, y, dx, w, dw = a.Mat(dtype, t, cols), a.Mat(dtype, t, cols), a.Mat(dtype, t, cols), a.Mat(dtype, cols, taps),
			a.Mat(tensor.F32, cols, taps)
		docs = takeDocs(a, t)
		return []device.Mat{x, y, w}
	}
	convDocs := func() error { return p.writeDocs(docs, t, z.length) }
	bytes := int64(t) * int64(cols) * dtype.Bytes()
	rate := func(of nn.Class, dim int) plan.OperationRate { return plan.OperationRate{Operation: of, HeadDim: dim} }
	return []operation{{rate(nn.OfDelta, z.deltaDim), flops, layout, prepare, forward},
		{rate(nn.OfDeltaGrad, z.deltaDim), flopsBack, layout, func() error {
			if err := prepare(); err != nil {
				return err
			}
			forward(p.compute)
			return nil
		}, func(s device.Stream) {
			s.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, out, qkv, decay, beta, states, spec)
		}},
		{rate(nn.OfConv, 0), 2 * bytes, convLayout, convDocs, func(s device.Stream) { s.CausalConv(y, x, w, docs) }},
		{rate(nn.OfConvGrad, 0), 3 * bytes, convLayout, convDocs,
			func(s device.Stream) { s.CausalConvGrad(dx, dw, y, x, w, docs) }}}
}

// experts are products of experts and gradients of their weights, with each number of rows an expert.
func (p *prober) experts(dtype tensor.DType) (all []operation) {
	z := &p.ops
	for _, each := range z.each {
		experts := z.tokens / each
		var r device.Routing
		var b device.Blocks
		var x, y, w, dw device.Mat
		layout := func(a *device.Arena) []device.Mat {
			ints := func(n int) device.Mem { return a.Take(int64(n) * tensor.I32.Bytes()) }
			r = device.Routing{Rows: z.tokens, TopK: 1, Experts: experts, Choices: ints(z.tokens), Order: ints(z.tokens),
				Rank: ints(z.tokens), Starts: ints(experts + 1)}
			size := min(each, nn.ExpertBlockRows)
			b = device.Blocks{Routing: r, Experts: experts, Rows: size, Count: z.tokens / size}
			x, y = a.Mat(dtype, z.tokens, z.hidden), a.Mat(dtype, z.tokens, z.inner)
			w, dw = a.Mat(dtype, experts*z.inner, z.hidden), a.Mat(tensor.F32, experts*z.inner, z.hidden)
			return []device.Mat{x, y, w}
		}
		prepare := func() error {
			choices := make([]int32, z.tokens)
			for i := range choices {
				choices[i] = int32(i % experts)
			}
			err := p.writeInts(r.Choices, choices)
			p.compute.SortChoices(r)
			return err
		}
		flops := 2 * int64(z.tokens) * int64(z.hidden) * int64(z.inner)
		rate := func(of nn.Class) plan.OperationRate { return plan.OperationRate{Operation: of, Rows: each} }
		all = append(all, operation{rate(nn.OfExperts), flops, layout, prepare, func(s device.Stream) {
			s.ExpertMatMul(y, x, w, device.Mat{}, device.ExpertProduct{Transposed: true}, b)
		}}, operation{rate(nn.OfExpertGrads), flops, layout, prepare,
			func(s device.Stream) { s.ExpertWeightGrad(dw, y, x, b) }})
	}
	return all
}

// loss is the sums of exponentials of a tile of logits, and their gradient.
func (p *prober) loss(dtype tensor.DType) operation {
	t, n := p.ops.rows, p.ops.tile
	var stat, logits, weights, dlogits device.Mat
	var targets device.Mem
	layout := func(a *device.Arena) []device.Mat {
		stat, logits, weights = a.Mat(tensor.F32, t, device.HeadStats), a.Mat(tensor.F32, t, n), a.Mat(tensor.F32, 1, t)
		dlogits, targets = a.Mat(dtype, t, n), a.Take(int64(t)*tensor.I32.Bytes())
		return []device.Mat{logits, weights}
	}
	prepare := func() error {
		all := make([]int32, t)
		for i := range all {
			all[i] = int32(i % n)
		}
		return p.writeInts(targets, all)
	}
	bytes := int64(t) * int64(n) * (2*tensor.F32.Bytes() + dtype.Bytes())
	return operation{plan.OperationRate{Operation: nn.OfLoss}, bytes, layout, prepare, func(s device.Stream) {
		s.LSEInit(stat)
		s.LSEUpdate(stat, logits, targets, 0, 0)
		s.CrossEntropyGrad(dlogits, logits, stat, targets, weights.Mem, device.Mem{}, 0, 0)
	}}
}

// gradients lists the gradients of norms and of gated units, of as many rows as there are positions.
func (p *prober) gradients(dtype tensor.DType) []operation {
	t, n := p.ops.rows, p.ops.width
	var dx, dw, dy, x, w, rstd, resid, dGateUp, act, gateUp device.Mat
	norm := device.NormSpec{Groups: 1, Eps: 1e-6}
	norms := func(a *device.Arena) []device.Mat {
		mat := func() device.Mat { return a.Mat(dtype, t, n) }
		dx, dy, x, resid, w = mat(), mat(), mat(), mat(), a.Mat(dtype, 1, n)
		dw, rstd = a.Mat(tensor.F32, 1, n), a.Mat(tensor.F32, t, 1)
		return []device.Mat{dy, x, resid, w}
	}
	units := func(a *device.Arena) []device.Mat {
		dGateUp, act, dy, gateUp = a.Mat(dtype, t, 4*n), a.Mat(dtype, t, 2*n), a.Mat(dtype, t, 2*n), a.Mat(dtype, t, 4*n)
		return []device.Mat{dy, gateUp}
	}
	one := int64(t) * int64(n) * dtype.Bytes()
	return []operation{
		{plan.OperationRate{Operation: nn.OfNormGrads}, 4 * one, norms, func() error {
			p.compute.RMSNorm(dx, rstd, x, w, norm)
			return nil
		}, func(s device.Stream) { s.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, norm) }},
		{plan.OperationRate{Operation: nn.OfUnitGrads}, (4 + 2 + 2 + 4) * one, units, nil,
			func(s device.Stream) { s.GLUGrad(dGateUp, act, dy, gateUp, device.GLUSpec{}) }},
	}
}

// deviceUpdates8 measures AdamW with moments in 8 bits in the memory of a GPU.
func (p *prober) deviceUpdates8(m *plan.Machine) error {
	const perElem, touched = 2 + 2 + 2 + 4 + 4, 2*(2+2+1+1) + 2
	n := int(p.bytes / perElem / tensor.Align * tensor.Align)
	var args device.AdamWArgs
	var tally device.Mem
	o := operation{OperationRate: plan.OperationRate{Operation: nn.OfUpdates8},
		amount: touched * int64(n/tensor.MomentBlock*tensor.MomentBlock),
		layout: func(a *device.Arena) []device.Mat {
			vec := func(t tensor.DType) device.Mat { return a.Mat(t, 1, n) }
			args = device.AdamWArgs{M: vec(tensor.F32), V: vec(tensor.F32), Weights: vec(tensor.BF16), Low: vec(tensor.I16),
				Grad: vec(tensor.BF16), AdamWScalars: probedScalars}
			tally = a.Take(device.TallyBytes)
			return []device.Mat{args.Weights, args.Low, args.Grad}
		},
		run: func(s device.Stream) { s.AdamW8(inEightBits(&args), tally) }}
	return p.operation(m, o, tensor.BF16)
}

// writeInts writes numbers to memory of the device.
func (p *prober) writeInts(to device.Mem, ints []int32) error {
	n := int64(len(ints)) * tensor.I32.Bytes()
	mem, bytes, release, err := p.region(p.device, n)
	if err != nil {
		return err
	}
	defer release()
	copy(hostmem.I32(bytes), ints)
	p.compute.Copy(to.Slice(0, n), mem.Slice(0, n))
	return p.compute.Sync()
}
