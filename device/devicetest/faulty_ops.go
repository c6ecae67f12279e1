package devicetest

import "github.com/millrace/millrace/device"

// Every operation is checked in the caller's goroutine and runs on the stream's.

func (s *faultyStream) Copy(dst, src device.Mem) {
	s.operands.Copy(dst, src)
	s.op(func() { s.inner.Copy(dst, src) })
}

func (s *faultyStream) Zero(dst device.Mem) {
	s.operands.Zero(dst)
	s.op(func() { s.inner.Zero(dst) })
}

func (s *faultyStream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	s.operands.MatMul(c, a, b, f)
	s.op(func() { s.inner.MatMul(c, a, b, f) })
}

func (s *faultyStream) AddBias(y, bias device.Mat) {
	s.operands.AddBias(y, bias)
	s.op(func() { s.inner.AddBias(y, bias) })
}

func (s *faultyStream) BiasGrad(db, dy device.Mat) {
	s.operands.BiasGrad(db, dy)
	s.op(func() { s.inner.BiasGrad(db, dy) })
}

func (s *faultyStream) Add(y, a, b device.Mat) {
	s.operands.Add(y, a, b)
	s.op(func() { s.inner.Add(y, a, b) })
}

func (s *faultyStream) Scale(y, x device.Mat, by float32) {
	s.operands.Scale(y, x, by)
	s.op(func() { s.inner.Scale(y, x, by) })
}

func (s *faultyStream) Cast(dst, src device.Mat) {
	s.operands.Cast(dst, src)
	s.op(func() { s.inner.Cast(dst, src) })
}

func (s *faultyStream) RMSNorm(y, rstd, x, w device.Mat, spec device.NormSpec) {
	s.operands.RMSNorm(y, rstd, x, w, spec)
	s.op(func() { s.inner.RMSNorm(y, rstd, x, w, spec) })
}

func (s *faultyStream) RMSNormGrad(dx, dw, dy, x, w, rstd, resid device.Mat, spec device.NormSpec) {
	s.operands.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, spec)
	s.op(func() { s.inner.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, spec) })
}

func (s *faultyStream) LayerNorm(y, stat, x, w, b device.Mat, eps float32) {
	s.operands.LayerNorm(y, stat, x, w, b, eps)
	s.op(func() { s.inner.LayerNorm(y, stat, x, w, b, eps) })
}

func (s *faultyStream) LayerNormGrad(dx, dw, dy, x, w, stat, resid device.Mat) {
	s.operands.LayerNormGrad(dx, dw, dy, x, w, stat, resid)
	s.op(func() { s.inner.LayerNormGrad(dx, dw, dy, x, w, stat, resid) })
}

func (s *faultyStream) RoPE(y, x, bias device.Mat, heads int, cos, sin device.Mat, positions device.Mem, inverse bool) {
	s.operands.RoPE(y, x, bias, heads, cos, sin, positions, inverse)
	s.op(func() { s.inner.RoPE(y, x, bias, heads, cos, sin, positions, inverse) })
}

func (s *faultyStream) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.Attention(out, lse, q, k, v, spec)
	s.op(func() { s.inner.Attention(out, lse, q, k, v, spec) })
}

func (s *faultyStream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	s.operands.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
	s.op(func() { s.inner.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec) })
}

func (s *faultyStream) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.AttendCache(out, q, k, v, spec)
	s.op(func() { s.inner.AttendCache(out, q, k, v, spec) })
}

func (s *faultyStream) SinkGrad(dsinks, sinks, lse, delta device.Mat) {
	s.operands.SinkGrad(dsinks, sinks, lse, delta)
	s.op(func() { s.inner.SinkGrad(dsinks, sinks, lse, delta) })
}

func (s *faultyStream) JoinHeads(y, a, b device.Mat, heads int) {
	s.operands.JoinHeads(y, a, b, heads)
	s.op(func() { s.inner.JoinHeads(y, a, b, heads) })
}

func (s *faultyStream) SplitHeads(a, b, y device.Mat, heads int) {
	s.operands.SplitHeads(a, b, y, heads)
	s.op(func() { s.inner.SplitHeads(a, b, y, heads) })
}

func (s *faultyStream) GLU(y, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLU(y, gateUp, spec)
	s.op(func() { s.inner.GLU(y, gateUp, spec) })
}

func (s *faultyStream) GLUGrad(dGateUp, act, dy, gateUp device.Mat, spec device.GLUSpec) {
	s.operands.GLUGrad(dGateUp, act, dy, gateUp, spec)
	s.op(func() { s.inner.GLUGrad(dGateUp, act, dy, gateUp, spec) })
}

func (s *faultyStream) LSEInit(stat device.Mat) {
	s.operands.LSEInit(stat)
	s.op(func() { s.inner.LSEInit(stat) })
}

func (s *faultyStream) LSEUpdate(stat, logits device.Mat, targets device.Mem, first int, softCap float32) {
	s.operands.LSEUpdate(stat, logits, targets, first, softCap)
	s.op(func() { s.inner.LSEUpdate(stat, logits, targets, first, softCap) })
}

func (s *faultyStream) TokenLoss(figures, stat device.Mat, targets device.Mem) {
	s.operands.TokenLoss(figures, stat, targets)
	s.op(func() { s.inner.TokenLoss(figures, stat, targets) })
}

func (s *faultyStream) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights, entropySlopes device.Mem,
	first int, softCap float32) {
	s.operands.CrossEntropyGrad(dlogits, logits, stat, targets, weights, entropySlopes, first, softCap)
	s.op(func() {
		s.inner.CrossEntropyGrad(dlogits, logits, stat, targets, weights, entropySlopes, first, softCap)
	})
}

func (s *faultyStream) PickLogits(picked, logits device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PickLogits(picked, logits, ids, first, softCap)
	s.op(func() { s.inner.PickLogits(picked, logits, ids, first, softCap) })
}

func (s *faultyStream) PutLogitGrads(dlogits, logits, values device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PutLogitGrads(dlogits, logits, values, ids, first, softCap)
	s.op(func() { s.inner.PutLogitGrads(dlogits, logits, values, ids, first, softCap) })
}

func (s *faultyStream) DrawTokens(drawn, stat, logits device.Mat, draws device.Mem, first, vocab int,
	softCap float32) {
	s.operands.DrawTokens(drawn, stat, logits, draws, first, vocab, softCap)
	s.op(func() { s.inner.DrawTokens(drawn, stat, logits, draws, first, vocab, softCap) })
}

func (s *faultyStream) Sum(dst device.Mem, x device.Mat) {
	s.operands.Sum(dst, x)
	s.op(func() { s.inner.Sum(dst, x) })
}

func (s *faultyStream) Gather(y, table device.Mat, ids device.Mem, first int) {
	s.operands.Gather(y, table, ids, first)
	s.op(func() { s.inner.Gather(y, table, ids, first) })
}

func (s *faultyStream) Put(cache, x device.Mat, at device.Mem) {
	s.operands.Put(cache, x, at)
	s.op(func() { s.inner.Put(cache, x, at) })
}

func (s *faultyStream) ScatterAdd(dtable, dy device.Mat, ids device.Mem, first int, by float32) {
	s.operands.ScatterAdd(dtable, dy, ids, first, by)
	s.op(func() { s.inner.ScatterAdd(dtable, dy, ids, first, by) })
}

func (s *faultyStream) AdamW(args device.AdamWArgs, tally device.Mem) {
	s.operands.AdamW(args, tally)
	s.op(func() { s.inner.AdamW(args, tally) })
}

func (s *faultyStream) AdamW8(args device.AdamW8Args, tally device.Mem) {
	s.operands.AdamW8(args, tally)
	s.op(func() { s.inner.AdamW8(args, tally) })
}

func (s *faultyStream) SumSquares(dst device.Mem, x device.Mat) {
	s.operands.SumSquares(dst, x)
	s.op(func() { s.inner.SumSquares(dst, x) })
}

func (s *faultyStream) Route(choices device.Mem, weights, logits, bias device.Mat, spec device.RouteSpec) {
	s.operands.Route(choices, weights, logits, bias, spec)
	s.op(func() { s.inner.Route(choices, weights, logits, bias, spec) })
}

func (s *faultyStream) RouteGrad(dlogits, dweights, logits device.Mat, choices device.Mem, spec device.RouteSpec) {
	s.operands.RouteGrad(dlogits, dweights, logits, choices, spec)
	s.op(func() { s.inner.RouteGrad(dlogits, dweights, logits, choices, spec) })
}

func (s *faultyStream) SortChoices(r device.Routing) {
	s.operands.SortChoices(r)
	s.op(func() { s.inner.SortChoices(r) })
}

func (s *faultyStream) CountChoices(counts device.Mat, r device.Routing, scale float32) {
	s.operands.CountChoices(counts, r, scale)
	s.op(func() { s.inner.CountChoices(counts, r, scale) })
}

func (s *faultyStream) ScaleChoices(y, x, factors device.Mat, choices device.Mem) {
	s.operands.ScaleChoices(y, x, factors, choices)
	s.op(func() { s.inner.ScaleChoices(y, x, factors, choices) })
}

func (s *faultyStream) ScaleChoicesGrad(dfactors, dy, x device.Mat, choices device.Mem) {
	s.operands.ScaleChoicesGrad(dfactors, dy, x, choices)
	s.op(func() { s.inner.ScaleChoicesGrad(dfactors, dy, x, choices) })
}

func (s *faultyStream) GatherRows(y, x device.Mat, b device.Blocks) {
	s.operands.GatherRows(y, x, b)
	s.op(func() { s.inner.GatherRows(y, x, b) })
}

func (s *faultyStream) ExpertMatMul(c, a, w, bias device.Mat, of device.ExpertProduct, b device.Blocks) {
	s.operands.ExpertMatMul(c, a, w, bias, of, b)
	s.op(func() { s.inner.ExpertMatMul(c, a, w, bias, of, b) })
}

func (s *faultyStream) ExpertWeightGrad(dw, dy, x device.Mat, b device.Blocks) {
	s.operands.ExpertWeightGrad(dw, dy, x, b)
	s.op(func() { s.inner.ExpertWeightGrad(dw, dy, x, b) })
}

func (s *faultyStream) ExpertBiasGrad(db, dweights, dy, bias, weights device.Mat, b device.Blocks) {
	s.operands.ExpertBiasGrad(db, dweights, dy, bias, weights, b)
	s.op(func() { s.inner.ExpertBiasGrad(db, dweights, dy, bias, weights, b) })
}

func (s *faultyStream) ExpertGLU(y, gateUp device.Mat, spec device.GLUSpec, b device.Blocks) {
	s.operands.ExpertGLU(y, gateUp, spec, b)
	s.op(func() { s.inner.ExpertGLU(y, gateUp, spec, b) })
}

func (s *faultyStream) ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights device.Mat, spec device.GLUSpec,
	b device.Blocks) {
	s.operands.ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights, spec, b)
	s.op(func() { s.inner.ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights, spec, b) })
}

func (s *faultyStream) CombineRows(y, x, from, weights device.Mat, places device.Mem, topK int) {
	s.operands.CombineRows(y, x, from, weights, places, topK)
	s.op(func() { s.inner.CombineRows(y, x, from, weights, places, topK) })
}

func (s *faultyStream) CausalConv(y, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConv(y, x, w, docs)
	s.op(func() { s.inner.CausalConv(y, x, w, docs) })
}

func (s *faultyStream) CausalConvGrad(dx, dw, dy, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConvGrad(dx, dw, dy, x, w, docs)
	s.op(func() { s.inner.CausalConvGrad(dx, dw, dy, x, w, docs) })
}

func (s *faultyStream) Gate(y, x, gate device.Mat, kind device.GateKind) {
	s.operands.Gate(y, x, gate, kind)
	s.op(func() { s.inner.Gate(y, x, gate, kind) })
}

func (s *faultyStream) GateGrad(dx, dgate, dy, x, gate device.Mat, kind device.GateKind) {
	s.operands.GateGrad(dx, dgate, dy, x, gate, kind)
	s.op(func() { s.inner.GateGrad(dx, dgate, dy, x, gate, kind) })
}

func (s *faultyStream) DeltaGates(decay, beta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGates(decay, beta, a, b, aLog, dtBias)
	s.op(func() { s.inner.DeltaGates(decay, beta, a, b, aLog, dtBias) })
}

func (s *faultyStream) DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
	s.op(func() { s.inner.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias) })
}

func (s *faultyStream) GatedDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) {
	s.operands.GatedDelta(out, states, qkv, decay, beta, spec)
	s.op(func() { s.inner.GatedDelta(out, states, qkv, decay, beta, spec) })
}

func (s *faultyStream) GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states device.Mat,
	spec device.DeltaSpec) {
	s.operands.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
	s.op(func() { s.inner.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec) })
}

func (s *faultyStream) ContinueConv(y, tail, x, w device.Mat, of device.Continued) {
	s.operands.ContinueConv(y, tail, x, w, of)
	s.op(func() { s.inner.ContinueConv(y, tail, x, w, of) })
}

func (s *faultyStream) ContinueDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec, each int) {
	s.operands.ContinueDelta(out, states, qkv, decay, beta, spec, each)
	s.op(func() { s.inner.ContinueDelta(out, states, qkv, decay, beta, spec, each) })
}
