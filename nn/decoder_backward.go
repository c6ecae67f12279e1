package nn

import "github.com/millrace/millrace/device"

// Backward turns dx, which holds the gradient of y on entry, into the gradient of x, and adds the gradients of the
// parameters to g, or writes those of matrices if g is fresh. x is what Forward read and kept what it left; what kept lacks is computed again first, all but the
// last projection, whose result nobody needs. The bits do not depend on kept's level.
func (d *Decoder) Backward(s device.Stream, w, g Params, x, dx device.Mat, b *Batch, r *Rope, kept *Kept, work *Work) {
	p := d.places()
	buf := kept.over(work)
	d.recomputeAttention(s, w, p, x, b, r, kept.keep, buf)
	for c := range chunks(b.T, work.chunk) {
		part := buf.at(c)
		d.recomputeMLP(s, w, p, c.rows(x), kept.keep, &part)
		d.backwardMLP(s, w, g.at(c), p, c.rows(dx), &part)
	}
	d.backwardAttention(s, w, g, p, x, dx, b, r, buf)
}

// recomputeAttention fills buf with what attention read and wrote.
func (d *Decoder) recomputeAttention(s device.Stream, w Params, p places, x device.Mat, b *Batch, r *Rope, keep Keep, buf *Work) {
	for c := range chunks(b.T, buf.chunk) {
		part := buf.at(c)
		if keep < KeepAll {
			d.projectQKV(s, w, p, c.rows(x), &part)
		}
		// Without QK norms a kept qkv is rotated already.
		if keep < KeepAll || d.QKNorm {
			d.rotate(s, w, p, &part, c.ids(b.Docs.Positions), r)
		}
	}
	if keep < KeepAttention {
		q, k, v := d.operands(buf)
		s.Attention(buf.att, buf.lse, q, k, v, d.spec(b))
	}
}

// recomputeMLP fills a chunk of buf with what backwardMLP reads, up to the gate and up projections.
func (d *Decoder) recomputeMLP(s device.Stream, w Params, p places, x device.Mat, keep Keep, buf *Work) {
	if keep < KeepAll {
		d.addAttention(s, w, p, x, buf.h, buf)
	}
	s.RMSNorm(buf.norm, buf.rstd, buf.h, w.Mat(p.mlpNorm), 1, d.Eps)
	if keep < KeepGateUp {
		d.projectGateUp(s, w, p, buf)
	}
}

// backwardMLP turns a chunk of dx from dy into dh. gu and norm take their own gradients as soon as they were read last; act has its
// gradient first, and gets what down read in exchange.
func (d *Decoder) backwardMLP(s device.Stream, w, g Params, p places, dx device.Mat, buf *Work) {
	dAct := buf.act
	s.MatMul(dAct, dx, w.Mat(p.down), device.MatMulFlags{})
	dGU := buf.gu
	s.SwiGLUGrad(dGU, buf.act, dAct, buf.gu)
	weightGrad(s, g.Mat(p.down), dx, buf.act, g.Fresh)
	if d.MLPBias {
		biasGrad(s, g.Mat(p.downBias), dx)
	}
	weightGrad(s, g.Glued(p.gateUp, 2), dGU, buf.norm, g.Fresh)
	if d.MLPBias {
		biasGrad(s, g.Glued(p.gateUpBias, 2), dGU)
	}
	dNorm := buf.norm
	s.MatMul(dNorm, dGU, w.Glued(p.gateUp, 2), device.MatMulFlags{})
	s.RMSNormGrad(dx, g.Mat(p.mlpNorm), dNorm, buf.h, w.Mat(p.mlpNorm), buf.rstd, dx, 1)
}

// backwardAttention turns dx from dh into the gradient of x.
func (d *Decoder) backwardAttention(s device.Stream, w, g Params, p places, x, dx device.Mat, b *Batch, r *Rope, buf *Work) {
	for c := range chunks(b.T, buf.chunk) {
		part, dx, g := buf.at(c), c.rows(dx), g.at(c)
		weightGrad(s, g.Mat(p.out), dx, part.att, g.Fresh)
		if d.OutBias {
			biasGrad(s, g.Mat(p.outBias), dx)
		}
		s.MatMul(part.dAtt, dx, w.Mat(p.out), device.MatMulFlags{})
	}
	q, k, v := d.operands(buf)
	dq, dk, dv := d.split(buf.dQKV)
	s.AttentionGrad(dq, dk, dv, buf.dAtt, q, k, v, buf.att, buf.lse, buf.delta, d.spec(b))
	for c := range chunks(b.T, buf.chunk) {
		part := buf.at(c)
		d.backwardQKV(s, w, g.at(c), p, c.rows(x), c.rows(dx), c.ids(b.Docs.Positions), r, &part)
	}
}

// backwardQKV takes a chunk of the gradient of what attention read back to x.
func (d *Decoder) backwardQKV(s device.Stream, w, g Params, p places, x, dx device.Mat, positions device.Mem, r *Rope, buf *Work) {
	dqk := buf.dQKV.ColRange(0, d.qkCols())
	s.RoPE(dqk, dqk, device.Mat{}, d.Heads+d.KVHeads, r.Cos, r.Sin, positions, true)
	if d.QKNorm {
		dq, dk, _ := d.split(buf.dQKV)
		rawQ, rawK, _ := d.split(buf.qkv)
		s.RMSNormGrad(dq, g.Mat(p.qNorm), dq, rawQ, w.Mat(p.qNorm), buf.qRstd, device.Mat{}, d.Heads)
		s.RMSNormGrad(dk, g.Mat(p.kNorm), dk, rawK, w.Mat(p.kNorm), buf.kRstd, device.Mat{}, d.KVHeads)
	}
	// The MLP half took over the buffer of this norm; to repeat it is cheaper than to hold t*Hidden elements meanwhile.
	s.RMSNorm(buf.norm, buf.rstd, x, w.Mat(p.attnNorm), 1, d.Eps)
	weightGrad(s, g.Glued(p.qkv, 3), buf.dQKV, buf.norm, g.Fresh)
	if d.QKVBias {
		biasGrad(s, g.Glued(p.qkvBias, 3), buf.dQKV)
	}
	dNorm := buf.norm
	s.MatMul(dNorm, buf.dQKV, w.Glued(p.qkv, 3), device.MatMulFlags{})
	s.RMSNormGrad(dx, g.Mat(p.attnNorm), dNorm, x, w.Mat(p.attnNorm), buf.rstd, dx, 1)
}

// weightGrad is dw += dy^T·x for y = x·w^T, or dw = if that is fresh, unless w is frozen.
func weightGrad(s device.Stream, dw, dy, x device.Mat, fresh bool) {
	if !dw.IsZero() {
		s.MatMul(dw, dy, x, device.MatMulFlags{TransA: true, Accumulate: !fresh})
	}
}

// biasGrad is db += the sum of dy's rows, unless the bias is frozen.
func biasGrad(s device.Stream, db, dy device.Mat) {
	if !db.IsZero() {
		s.BiasGrad(db, dy)
	}
}
