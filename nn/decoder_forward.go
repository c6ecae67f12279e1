package nn

import "github.com/millrace/millrace/device"

// Forward computes y from x, both [b.T, Hidden]. kept receives what its level keeps. x is not changed; y is not x.
func (d *Decoder) Forward(s device.Stream, w Params, x, y device.Mat, b *Batch, r *Rope, kept *Kept, work *Work) {
	p := d.places()
	buf := kept.over(work)
	for c := range chunks(b.T, work.chunk) {
		part := buf.at(c)
		d.projectQKV(s, w, p, c.rows(x), &part)
		d.rotate(s, w, p, &part, c.ids(b.Docs.Positions), r)
	}
	q, k, v := d.operands(buf)
	s.Attention(buf.att, buf.lse, q, k, v, d.spec(b))
	for c := range chunks(b.T, work.chunk) {
		part, y := buf.at(c), c.rows(y)
		// The residual stream runs in y, but where KeepAll wants the value between the halves for later.
		h, down := y, device.MatMulFlags{TransB: true, Accumulate: true}
		if kept.keep >= KeepAll {
			h, down = part.h, device.MatMulFlags{TransB: true, Onto: part.h}
		}
		d.addAttention(s, w, p, c.rows(x), h, &part)
		s.RMSNorm(part.norm, part.rstd, h, w.Mat(p.mlpNorm), 1, d.Eps)
		d.projectGateUp(s, w, p, &part)
		s.SwiGLU(part.act, part.gu)
		s.MatMul(y, part.act, w.Mat(p.down), down)
		if d.MLPBias {
			s.AddBias(y, w.Mat(p.downBias))
		}
	}
}

// over is work with the kept buffers in the place of its own.
func (k *Kept) over(work *Work) *Work {
	buf := *work
	if k.keep >= KeepAttention {
		buf.att, buf.lse = k.att, k.lse
	}
	if k.keep >= KeepGateUp {
		buf.gu = k.gu
	}
	if k.keep >= KeepAll {
		buf.qkv, buf.h = k.qkv, k.h
	}
	return &buf
}

func (d *Decoder) spec(b *Batch) device.AttentionSpec {
	return device.AttentionSpec{Heads: d.Heads, KVHeads: d.KVHeads, HeadDim: d.HeadDim,
		Scale: d.Scale, Window: d.Window, Docs: b.Docs}
}

// projectQKV is qkv = norm(x)·Wqkv^T + bias, but for the biases that rotate adds.
func (d *Decoder) projectQKV(s device.Stream, w Params, p places, x device.Mat, buf *Work) {
	s.RMSNorm(buf.norm, buf.rstd, x, w.Mat(p.attnNorm), 1, d.Eps)
	s.MatMul(buf.qkv, buf.norm, w.Glued(p.qkv, 3), device.MatMulFlags{TransB: true})
	switch _, _, v := d.split(buf.qkv); {
	case d.QKVBias && d.QKNorm:
		s.AddBias(buf.qkv, w.Glued(p.qkvBias, 3))
	case d.QKVBias:
		s.AddBias(v, w.Mat(p.qkvBias+2))
	}
}

// split views the columns of [t, qkvCols] as queries, keys and values.
func (d *Decoder) split(qkv device.Mat) (q, k, v device.Mat) {
	return qkv.ColRange(0, d.qCols()), qkv.ColRange(d.qCols(), d.kvCols()), qkv.ColRange(d.qCols()+d.kvCols(), d.kvCols())
}

// operands are what attention reads: the queries and keys lie in qkv itself, or beside it when QK norms keep qkv as it was.
func (d *Decoder) operands(buf *Work) (q, k, v device.Mat) {
	q, k, v = d.split(buf.qkv)
	if d.QKNorm {
		q, k = buf.qk.ColRange(0, d.qCols()), buf.qk.ColRange(d.qCols(), d.kvCols())
	}
	return q, k, v
}

// rotate norms the queries and keys where the block does so, or else adds their biases, and rotates them.
func (d *Decoder) rotate(s device.Stream, w Params, p places, buf *Work, positions device.Mem, r *Rope) {
	qk, bias := buf.qkv.ColRange(0, d.qkCols()), device.Mat{}
	switch {
	case d.QKNorm:
		qk = buf.qk
		q, k, _ := d.operands(buf)
		rawQ, rawK, _ := d.split(buf.qkv)
		s.RMSNorm(q, buf.qRstd, rawQ, w.Mat(p.qNorm), d.Heads, d.Eps)
		s.RMSNorm(k, buf.kRstd, rawK, w.Mat(p.kNorm), d.KVHeads, d.Eps)
	case d.QKVBias:
		bias = w.Glued(p.qkvBias, 2)
	}
	s.RoPE(qk, qk, bias, d.Heads+d.KVHeads, r.Cos, r.Sin, positions, false)
}

// addAttention is h = x + att·Wo^T + bias.
func (d *Decoder) addAttention(s device.Stream, w Params, p places, x, h device.Mat, buf *Work) {
	s.MatMul(h, buf.att, w.Mat(p.out), device.MatMulFlags{TransB: true, Onto: x})
	if d.OutBias {
		s.AddBias(h, w.Mat(p.outBias))
	}
}

// projectGateUp is gu = norm·Wgu^T + bias, from the norm of the residual stream that is in buf.norm.
func (d *Decoder) projectGateUp(s device.Stream, w Params, p places, buf *Work) {
	s.MatMul(buf.gu, buf.norm, w.Glued(p.gateUp, 2), device.MatMulFlags{TransB: true})
	if d.MLPBias {
		s.AddBias(buf.gu, w.Glued(p.gateUpBias, 2))
	}
}
