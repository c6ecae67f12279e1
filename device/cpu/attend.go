package cpu

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/attention"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// RoPE implements device.AttentionOps.
func (s *Stream) RoPE(y, x, bias device.Mat, heads int, cos, sin device.Mat, positions device.Mem, inverse bool) {
	s.operands.RoPE(y, x, bias, heads, cos, sin, positions, inverse)
	s.enqueue(func() {
		a := &kernels.RoPE{X: mat(x), Y: mat(y), Heads: heads, HeadDim: x.Cols / heads, Cos: floats(cos), Sin: floats(sin),
			Positions: ints(positions, x.Rows), Inverse: inverse}
		if !bias.IsZero() {
			a.Bias = vec(bias)
		}
		s.crew.split(x.Rows, 1, rowBytes(x, y), func(lo, hi int) { s.crew.RoPERows(a, lo, hi) })
	})
}

func attentionSpec(out, lse, q, k, v device.Mat, spec device.AttentionSpec) *attention.Spec {
	a := &attention.Spec{Q: mat(q), K: mat(k), V: mat(v), Out: mat(out),
		Heads: spec.Heads, KVHeads: spec.KVHeads, HeadDim: spec.HeadDim, Scale: spec.Scale, Window: spec.Window, SoftCap: spec.SoftCap,
		DocStart: ints(spec.Docs.Start, q.Rows)}
	if !lse.IsZero() {
		a.LSE = floats(lse)
	}
	if !spec.Sinks.IsZero() {
		a.Sinks = vec(spec.Sinks)
	}
	return a
}

// Attention implements device.AttentionOps.
func (s *Stream) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.Attention(out, lse, q, k, v, spec)
	s.try(func() error {
		a := attentionSpec(out, lse, q, k, v, spec)
		if err := a.Check(false); err != nil {
			return err
		}
		c := s.crew
		c.attention.Lock()
		defer c.attention.Unlock()
		bytes := attentionBlock(spec.HeadDim)
		if err := c.equip(bytes, 0); err != nil {
			return err
		}
		packing := c.pack(a, false, c.shared())
		c.Run(a.ForwardTasks(), func(worker, task int) {
			attention.Forward(c.Table, multiplier{c.engine}, worker, a, packing, task, c.block(worker, bytes))
		})
		return nil
	})
}

// AttendCache implements device.AttentionOps.
func (s *Stream) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.AttendCache(out, q, k, v, spec)
	s.try(func() error {
		a := attentionSpec(out, device.Mat{}, q, k, v, spec)
		a.End = ints(spec.Docs.End, q.Rows)
		if b := spec.Blocks; !b.None() {
			a.Table, a.TableRows = ints(b.Table, b.Entries()), b.Rows
		}
		cached, err := attention.NewCached(a)
		if err != nil {
			return err
		}
		c := s.crew
		c.attention.Lock()
		defer c.attention.Unlock()
		bytes := attentionBlock(spec.HeadDim)
		if err := c.equip(bytes, 0); err != nil {
			return err
		}
		c.Run(cached.Tasks(), func(worker, task int) {
			cached.Run(c.Table, multiplier{c.engine}, worker, task, c.block(worker, bytes))
		})
		return nil
	})
}

// attentionElemBytes counts what AttentionGrad takes for each element of the queries: 8 for the gradients of keys and
// values that each query head contributes, in fp32, and 4 for keys and values that are packed once for all query heads.
// With two query heads or more to a key head, nearly all blocks of a document that fills the rows have room. Attention
// packs keys in this memory, if there is any.
const attentionElemBytes = 12

func attentionGradBytes(rows, heads, headDim int) int64 {
	return attentionElemBytes * int64(rows) * int64(heads) * int64(headDim)
}

// pack packs what the tasks of an attention share, into memory of the crew.
func (c *crew) pack(a *attention.Spec, backward bool, memory []float32) *attention.Packing {
	p := attention.NewPacking(multiplier{c.engine}, a, backward, memory)
	c.Run(p.Tasks(a), func(worker, task int) { p.Run(multiplier{c.engine}, worker, a, task) })
	return p
}

// AttentionGrad implements device.AttentionOps.
func (s *Stream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	s.operands.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
	spec.Sinks = device.Mat{} // lse has them
	s.try(func() error {
		a := attentionSpec(out, lse, q, k, v, spec)
		a.Delta = floats(delta)
		a.DOut, a.DQ, a.DK, a.DV = mat(dout), mat(dq), mat(dk), mat(dv)
		c := s.crew
		c.attention.Lock()
		defer c.attention.Unlock()
		bytes := attentionBlock(spec.HeadDim)
		if err := c.equip(bytes, attentionGradBytes(q.Rows, spec.Heads, spec.HeadDim)); err != nil {
			return err
		}
		memory, grads := c.shared(), a.HeadGradsLen()
		a.HeadGrads = memory[:grads]
		if err := a.Check(true); err != nil {
			return err
		}
		packing, turns := c.pack(a, true, memory[min((grads+15)/16*16, len(memory)):]), attention.NewTurns(a)
		c.Run(a.BackwardTasks(), func(worker, task int) {
			attention.Backward(c.Table, multiplier{c.engine}, worker, a, packing, turns, task, c.block(worker, bytes))
		})
		c.Run(a.ReduceTasks(), func(_, task int) { attention.Reduce(c.Table, a, task) })
		return nil
	})
}

// JoinHeads implements device.AttentionOps.
func (s *Stream) JoinHeads(y, a, b device.Mat, heads int) {
	s.operands.JoinHeads(y, a, b, heads)
	s.enqueue(func() {
		j := joined(y, a, b, heads)
		s.crew.split(y.Rows, 1, rowBytes(y, y), func(lo, hi int) { s.crew.JoinHeads(j, lo, hi) })
	})
}

// SplitHeads implements device.AttentionOps.
func (s *Stream) SplitHeads(a, b, y device.Mat, heads int) {
	s.operands.SplitHeads(a, b, y, heads)
	s.enqueue(func() {
		j := joined(y, a, b, heads)
		s.crew.split(y.Rows, 1, rowBytes(y, y), func(lo, hi int) { s.crew.SplitHeads(j, lo, hi) })
	})
}

func joined(y, a, b device.Mat, heads int) *kernels.Joined {
	j := &kernels.Joined{Y: mat(y), A: mat(a), Heads: heads}
	if !b.IsZero() {
		j.B = mat(b)
	}
	return j
}

// SinkGrad implements device.AttentionOps.
func (s *Stream) SinkGrad(dsinks, sinks, lse, delta device.Mat) {
	s.operands.SinkGrad(dsinks, sinks, lse, delta)
	s.enqueue(func() { attention.SinkGrad(floats(dsinks), vec(sinks), floats(lse), floats(delta)) })
}
