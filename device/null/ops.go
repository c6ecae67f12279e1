package null

import "github.com/millrace/millrace/device"

func (s *stream) Zero(dst device.Mem) {
	s.operands.Zero(dst)
	s.count(0)
}

func (s *stream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	s.operands.MatMul(c, a, b, f)
	s.count(matMulFLOPs(c, a, f))
	if told := s.device.options.Product; told != nil {
		told(device.Product{C: c, A: a, B: b, MatMulFlags: f})
	}
}

func (s *stream) AddBias(y, bias device.Mat) {
	s.operands.AddBias(y, bias)
	s.count(0)
}

func (s *stream) BiasGrad(db, dy device.Mat) {
	s.operands.BiasGrad(db, dy)
	s.count(0)
}

func (s *stream) Add(y, a, b device.Mat) {
	s.operands.Add(y, a, b)
	s.count(0)
}

func (s *stream) Scale(y, x device.Mat, by float32) {
	s.operands.Scale(y, x, by)
	s.count(0)
}

func (s *stream) Cast(dst, src device.Mat) {
	s.operands.Cast(dst, src)
	s.count(0)
}

func (s *stream) RMSNorm(y, rstd, x, w device.Mat, spec device.NormSpec) {
	s.operands.RMSNorm(y, rstd, x, w, spec)
	s.count(0)
}

func (s *stream) RMSNormGrad(dx, dw, dy, x, w, rstd, resid device.Mat, spec device.NormSpec) {
	s.operands.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, spec)
	s.count(0)
}

func (s *stream) LayerNorm(y, stat, x, w, b device.Mat, eps float32) {
	s.operands.LayerNorm(y, stat, x, w, b, eps)
	s.count(0)
}

func (s *stream) LayerNormGrad(dx, dw, dy, x, w, stat, resid device.Mat) {
	s.operands.LayerNormGrad(dx, dw, dy, x, w, stat, resid)
	s.count(0)
}

func (s *stream) RoPE(y, x, bias device.Mat, heads int, cos, sin device.Mat, positions device.Mem, inverse bool) {
	s.operands.RoPE(y, x, bias, heads, cos, sin, positions, inverse)
	s.count(0)
}

func (s *stream) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.Attention(out, lse, q, k, v, spec)
	s.count(attentionFLOPs(q.Rows, spec))
}

func (s *stream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	s.operands.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
	s.count(5 * attentionFLOPs(q.Rows, spec) / 2)
}

func (s *stream) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.AttendCache(out, q, k, v, spec)
	s.count(spec.CacheFLOPs(q.Rows, k.Rows))
}

func (s *stream) SinkGrad(dsinks, sinks, lse, delta device.Mat) {
	s.operands.SinkGrad(dsinks, sinks, lse, delta)
	s.count(0)
}

func (s *stream) JoinHeads(y, a, b device.Mat, heads int) {
	s.operands.JoinHeads(y, a, b, heads)
	s.count(0)
}

func (s *stream) SplitHeads(a, b, y device.Mat, heads int) {
	s.operands.SplitHeads(a, b, y, heads)
	s.count(0)
}

func (s *stream) GLU(y, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLU(y, gateUp, spec)
	s.count(0)
}

func (s *stream) GLUGrad(dGateUp, act, dy, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLUGrad(dGateUp, act, dy, gateUp, spec)
	s.count(0)
}

func (s *stream) LSEInit(stat device.Mat) {
	s.operands.LSEInit(stat)
	s.count(0)
}

func (s *stream) LSEUpdate(stat, logits device.Mat, targets device.Mem, first int, softCap float32) {
	s.operands.LSEUpdate(stat, logits, targets, first, softCap)
	s.count(0)
}

func (s *stream) TokenLoss(figures, stat device.Mat, targets device.Mem) {
	s.operands.TokenLoss(figures, stat, targets)
	s.count(0)
}

func (s *stream) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights, entropySlopes device.Mem,
	first int, softCap float32) {
	s.operands.CrossEntropyGrad(dlogits, logits, stat, targets, weights, entropySlopes, first, softCap)
	s.count(0)
}

func (s *stream) PickLogits(picked, logits device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PickLogits(picked, logits, ids, first, softCap)
	s.count(0)
}

func (s *stream) PutLogitGrads(dlogits, logits, values device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PutLogitGrads(dlogits, logits, values, ids, first, softCap)
	s.count(0)
}

func (s *stream) DrawTokens(drawn, stat, logits device.Mat, draws device.Mem, first, vocab int, softCap float32) {
	s.operands.DrawTokens(drawn, stat, logits, draws, first, vocab, softCap)
	s.count(0)
}

func (s *stream) Sum(dst device.Mem, x device.Mat) {
	s.operands.Sum(dst, x)
	s.count(0)
}

func (s *stream) Gather(y, table device.Mat, ids device.Mem, first int) {
	s.operands.Gather(y, table, ids, first)
	s.count(0)
}

func (s *stream) Put(cache, x device.Mat, at device.Mem) {
	s.operands.Put(cache, x, at)
	s.count(0)
}

func (s *stream) ScatterAdd(dtable, dy device.Mat, ids device.Mem, first int, by float32) {
	s.operands.ScatterAdd(dtable, dy, ids, first, by)
	s.count(0)
}

func (s *stream) AdamW(args device.AdamWArgs, tally device.Mem) {
	s.operands.AdamW(args, tally)
	s.count(0)
}

func (s *stream) AdamW8(args device.AdamW8Args, tally device.Mem) {
	s.operands.AdamW8(args, tally)
	s.count(0)
}

func (s *stream) SumSquares(dst device.Mem, x device.Mat) {
	s.operands.SumSquares(dst, x)
	s.count(0)
}
