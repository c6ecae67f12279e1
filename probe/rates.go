package probe

import (
	"errors"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// products measures the products of an MLP, the largest ones of a block: forward, input gradients and weight
// gradients, as nn asks for them. Their times add up as in a step.
func (p *prober) products(dtype tensor.DType) func(*plan.Machine) error {
	return func(m *plan.Machine) error {
		t, hidden, inner := p.positions, p.hidden, p.intermediate
		var x, y, dx, gateUp, act, dAct, wGateUp, wDown, dGateUp, dDown device.Mat
		release, err := p.place(func(a *device.Arena) {
			x, y, dx = a.Mat(dtype, t, hidden), a.Mat(dtype, t, hidden), a.Mat(dtype, t, hidden)
			gateUp, act, dAct = a.Mat(dtype, t, 2*inner), a.Mat(dtype, t, inner), a.Mat(dtype, t, inner)
			wGateUp, wDown = a.Mat(dtype, 2*inner, hidden), a.Mat(dtype, hidden, inner)
			dGateUp, dDown = a.Mat(tensor.F32, 2*inner, hidden), a.Mat(tensor.F32, hidden, inner)
		})
		if err != nil {
			return err
		}
		defer release()
		nt, tn := device.MatMulFlags{TransB: true}, device.MatMulFlags{TransA: true, Accumulate: true}
		onto := nt
		onto.Accumulate = true
		products := []device.Product{{C: gateUp, A: x, B: wGateUp, MatMulFlags: nt},
			{C: y, A: act, B: wDown, MatMulFlags: onto}, {C: dDown, A: y, B: act, MatMulFlags: tn}, {C: dAct, A: y, B: wDown},
			{C: dGateUp, A: gateUp, B: x, MatMulFlags: tn},
			{C: dx, A: gateUp, B: wGateUp}}
		if tuner, ok := p.device.(device.ProductTuner); ok && p.device.Info().TunesProducts { // as a run does
			if err := tuner.TuneProducts(products, device.Whole(x.Buf)); err != nil {
				return err
			}
		}
		if err := p.fill(p.compute, x, y, act, wGateUp, wDown, dGateUp, dDown); err != nil {
			return err
		}
		flops := 3 * 2 * int64(t) * int64(hidden) * int64(3*inner)
		r, err := p.rate(task{p.compute, flops, func() {
			for _, m := range products {
				p.compute.MatMul(m.C, m.A, m.B, m.MatMulFlags)
			}
		}}, float64(p.long)*p.seconds)
		if dtype == tensor.F32 {
			m.F32FLOPsPerSec = r
		} else {
			m.BF16FLOPsPerSec = r
		}
		return err
	}
}

// usualLength is the length whose rate of attention stands for all where only one is looked at.
const usualLength = 2048

// attention measures attention in a type.
func (p *prober) attention(dtype tensor.DType) func(*plan.Machine) error {
	return func(m *plan.Machine) error {
		rates, err := p.attentionRates(dtype)
		if err != nil {
			return err
		}
		if dtype != tensor.F32 {
			m.AttentionByLength = rates
			m.AttentionFLOPsPerSec = m.AttentionFLOPsPerSecAt(dtype, usualLength)
			return nil
		}
		m.F32AttentionByLength, m.F32AttentionFLOPsPerSec = rates, rates[0].FLOPsPerSec
		m.F32AttentionFLOPsPerSec = m.AttentionFLOPsPerSecAt(dtype, usualLength)
		return nil
	}
}

// attentionRates measures rows that are full of sequences of one length after the other: forward and backward, seven
// products over the pairs that causality leaves.
func (p *prober) attentionRates(dtype tensor.DType) (rates []plan.AttentionRate, err error) {
	t := p.lengths[len(p.lengths)-1]
	var q, k, v, out, dq, dk, dv, dout, lse, delta device.Mat
	var docs device.Docs
	release, err := p.place(func(a *device.Arena) {
		mat := func(heads int) device.Mat { return a.Mat(dtype, t, heads*p.headDim) }
		q, k, v, out = mat(p.heads), mat(p.kvHeads), mat(p.kvHeads), mat(p.heads)
		dq, dk, dv, dout = mat(p.heads), mat(p.kvHeads), mat(p.kvHeads), mat(p.heads)
		lse, delta = a.Mat(tensor.F32, t, p.heads), a.Mat(tensor.F32, t, p.heads)
		docs = takeDocs(a, t)
	})
	if err != nil {
		return nil, err
	}
	defer release()
	if err := p.fill(p.compute, q, k, v, dout); err != nil {
		return nil, err
	}
	spec := device.AttentionSpec{Heads: p.heads, KVHeads: p.kvHeads, HeadDim: p.headDim, Scale: float32(1 / math.Sqrt(float64(p.headDim))),
		Docs: docs}
	for _, length := range p.lengths {
		if dtype == tensor.F32 && length > usualLength {
			break // products without tensor cores take as long for each pair in any length, and an H100 20 s for 32,768
		}
		if err := p.writeDocs(docs, t, length); err != nil {
			return nil, err
		}
		pairs := int64(t/length) * int64(length) * int64(length+1) / 2
		r, err := p.rate(task{p.compute, 7 * 2 * pairs * int64(p.heads*p.headDim), func() {
			p.compute.Attention(out, lse, q, k, v, spec)
			p.compute.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
		}}, p.seconds)
		if err != nil {
			return nil, err
		}
		rates = append(rates, plan.AttentionRate{SequenceLen: length, FLOPsPerSec: r})
	}
	return rates, nil
}

// writeDocs writes the arrays of t positions that are full of documents of one length.
func (p *prober) writeDocs(docs device.Docs, t, length int) error {
	positions, starts, ends := make([]int32, t), make([]int32, t), make([]int32, t)
	for i := range t {
		first := i / length * length
		positions[i], starts[i], ends[i] = int32(i-first), int32(first), int32(first+length)
	}
	return errors.Join(p.writeInts(docs.Positions, positions), p.writeInts(docs.Start, starts),
		p.writeInts(docs.End, ends))
}

// starts measures how many operations a stream gets through that have next to no work.
func (p *prober) starts(m *plan.Machine) error {
	const elems = 32
	var x, y device.Mat
	release, err := p.place(func(a *device.Arena) { x, y = a.Mat(tensor.F32, 1, elems), a.Mat(tensor.F32, 1, elems) })
	if err != nil {
		return err
	}
	defer release()
	m.DeviceOpsPerSec, err = p.rate(task{p.compute, 1, func() { p.compute.Add(y, y, x) }}, p.seconds)
	return err
}

// elements measures what is limited by the device's memory: a norm, a residual addition and the gated activation,
// forward, in a type.
func (p *prober) elements(dtype tensor.DType) func(*plan.Machine) error {
	return func(m *plan.Machine) error {
		cols := p.hidden
		rows := max(int(p.bytes/(dtype.Bytes()*int64(cols)))/4, 1)
		var x, y, w, rstd, gateUp device.Mat
		release, err := p.place(func(a *device.Arena) {
			x, y, w = a.Mat(dtype, rows, cols), a.Mat(dtype, rows, cols), a.Mat(dtype, 1, cols)
			rstd, gateUp = a.Mat(tensor.F32, rows, 1), a.Mat(dtype, rows, 2*cols)
		})
		if err != nil {
			return err
		}
		defer release()
		if err := p.fill(p.compute, x, w, gateUp); err != nil {
			return err
		}
		one := int64(rows) * int64(cols) * dtype.Bytes()
		r, err := p.rate(task{p.compute, (2 + 3 + 3) * one, func() {
			p.compute.RMSNorm(y, rstd, x, w, device.NormSpec{Groups: 1, Eps: 1e-6})
			p.compute.Add(y, y, x)
			p.compute.GLU(y, gateUp, device.GLUSpec{})
		}}, p.seconds)
		if dtype == tensor.F32 {
			m.F32DeviceBytesPerSec = r
		} else {
			m.DeviceBytesPerSec = r
		}
		return err
	}
}

// copies are the two tasks of copying to the device and back, each in memory of its own.
func (p *prober) copies() (up, down task, release func(), err error) {
	var there, from device.Mem
	free, err := p.place(func(a *device.Arena) { there, from = a.Take(p.bytes), a.Take(p.bytes) })
	if err != nil {
		return up, down, nil, err
	}
	mem, _, freeHost, err := p.region(p.device, 2*p.bytes)
	if err != nil {
		free()
		return up, down, nil, err
	}
	here, to := mem.Slice(0, p.bytes), mem.Slice(p.bytes, p.bytes)
	up = task{p.compute, p.bytes, func() { p.compute.Copy(there, here) }}
	down = task{p.back, p.bytes, func() { p.back.Copy(to, from) }}
	return up, down, func() { freeHost(); free() }, nil
}

// links measures copies between host and device, one way and, where there is a link, both ways at once.
func (p *prober) links(m *plan.Machine) error {
	up, down, release, err := p.copies()
	if err != nil {
		return err
	}
	defer release()
	if m.UploadBytesPerSec, err = p.rate(up, p.seconds); err != nil {
		return err
	}
	if m.DownloadBytesPerSec, err = p.rate(down, p.seconds); err != nil || p.device.Info().Unified {
		return err
	}
	rates, err := p.together(p.seconds, up, down)
	if err == nil {
		m.DuplexUploadBytesPerSec, m.DuplexDownloadBytesPerSec = rates[0], rates[1]
	}
	return err
}

// hostCopies measures a copy on the host, which reads and writes.
func (p *prober) hostCopies(m *plan.Machine) error {
	mem, _, release, err := p.region(p.hostDevice, 2*p.bytes)
	if err != nil {
		return err
	}
	defer release()
	from, to := mem.Slice(0, p.bytes), mem.Slice(p.bytes, p.bytes)
	m.HostBytesPerSec, err = p.rate(task{p.host, 2 * p.bytes, func() { p.host.Copy(to, from) }}, p.seconds)
	return err
}

// deviceCopies measures a copy on the device, which reads and writes.
func (p *prober) deviceCopies(m *plan.Machine) error {
	n := int(p.bytes / tensor.F32.Bytes())
	var from, to device.Mat
	release, err := p.place(func(a *device.Arena) { from, to = a.Mat(tensor.F32, 1, n), a.Mat(tensor.F32, 1, n) })
	if err != nil {
		return err
	}
	defer release()
	if err := p.fill(p.compute, from); err != nil {
		return err
	}
	m.DeviceCopyBytesPerSec, err = p.rate(task{p.compute, 2 * from.Len, func() { p.compute.Copy(to.Mem, from.Mem) }}, p.seconds)
	return err
}

// peerCopies measures a copy from another device.
func (p *prober) peerCopies(peer device.Device) func(m *plan.Machine) error {
	return func(m *plan.Machine) error {
		var mem [2]device.Buffer
		for i, d := range []device.Device{p.device, peer} {
			b, err := d.Alloc("probe", p.bytes)
			if err != nil {
				return blame.BadRequest(err)
			}
			defer b.Close()
			mem[i] = b
		}
		to, from := device.Whole(mem[0]), device.Whole(mem[1])
		rate, err := p.rate(task{p.compute, p.bytes, func() { p.compute.Copy(to, from) }}, p.seconds)
		m.PeerCopyBytesPerSec = rate
		return err
	}
}

// updates8 measures AdamW with moments in 8 bits, in the memory of args and with its masters and gradients. Moments
// and their scales begin as zeros.
func (p *prober) updates8(m *plan.Machine, args *device.AdamWArgs, tally device.Mem) error {
	const touched = 2*(2+2+1+1) + 2
	eight := inEightBits(args)
	r, err := p.rate(task{p.host, touched * int64(eight.Weights.Cols), func() { p.host.AdamW8(eight, tally) }}, p.seconds)
	m.AdamW8BytesPerSec = r
	return err
}

// inEightBits is an update with moments in 8 bits of as many whole blocks, in the memory of one with fp32 moments.
func inEightBits(args *device.AdamWArgs) device.AdamW8Args {
	n := args.Weights.Cols / tensor.MomentBlock * tensor.MomentBlock
	of := func(whole device.Mem, t tensor.DType, elems int) device.Mat {
		return device.NewVec(whole.Slice(0, int64(elems)*t.Bytes()), t, elems)
	}
	half := args.M.Len / 2
	scales := func(whole device.Mem) device.Mat { // after the moments, a byte each
		return of(whole.Slice(half, half), tensor.F32, n/tensor.MomentBlock)
	}
	return device.AdamW8Args{Weights: of(args.Weights.Mem, tensor.BF16, n), Low: of(args.Low.Mem, tensor.I16, n),
		Grad: of(args.Grad.Mem, tensor.BF16, n), M: of(args.M.Mem, tensor.U8, n), V: of(args.V.Mem, tensor.U8, n),
		MScale: scales(args.M.Mem), VScale: scales(args.V.Mem), AdamWScalars: args.AdamWScalars}
}

// probedScalars holds the scalars of the updates that are measured.
var probedScalars = device.AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: 0.1, Beta2: 0.999, OneMinusBeta2: 0.001,
	StepSize: 1e-5, SqrtBC2: 1, Eps: 1e-8}

// updates measures AdamW on split masters in host memory: alone, and while a device copies from host memory and to it.
func (p *prober) updates(m *plan.Machine) error {
	const perElem, touched = 2 + 2 + 2 + 4 + 4, 2*(2+2+4+4) + 2 // kept; read and written, the gradient read only
	n := int(p.stateBytes / perElem / tensor.Align * tensor.Align)
	mem, _, release, err := p.region(p.hostDevice, int64(n)*perElem+hostmem.PageBytes)
	if err != nil {
		return err
	}
	defer release()
	at := int64(0)
	vec := func(t tensor.DType) device.Mat {
		v := device.NewVec(mem.Slice(at, int64(n)*t.Bytes()), t, n)
		at += v.Len
		return v
	}
	args := device.AdamWArgs{M: vec(tensor.F32), V: vec(tensor.F32), Weights: vec(tensor.BF16), Low: vec(tensor.I16),
		Grad: vec(tensor.BF16), AdamWScalars: probedScalars}
	if err := p.fill(p.host, args.Weights, args.Low, args.Grad); err != nil {
		return err
	}
	tally := mem.Slice(at, device.TallyBytes)
	if err := p.updates8(m, &args, tally); err != nil {
		return err
	}
	p.host.Zero(args.V.Mem) // no square is negative
	if err := p.fill(p.host, args.M); err != nil {
		return err
	}
	update := task{p.host, touched * int64(n), func() { p.host.AdamW(args, tally) }}
	if m.AdamWBytesPerSec, err = p.rate(update, float64(p.long)*p.seconds); err != nil || p.device.Info().Unified {
		return err
	}
	up, down, releaseCopies, err := p.copies()
	if err != nil {
		return err
	}
	defer releaseCopies()
	rates, err := p.together(float64(p.long)*p.seconds, update, up, down)
	if err == nil {
		m.AdamWUnderCopiesBytesPerSec = rates[0]
		m.UploadUnderAdamWBytesPerSec, m.DownloadUnderAdamWBytesPerSec = rates[1], rates[2]
	}
	return err
}
