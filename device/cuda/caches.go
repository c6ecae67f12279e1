package cuda

import (
	"fmt"

	"github.com/millrace/millrace/device"
)

// AttendCache implements device.AttentionOps.
func (s *Stream) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.AttendCache(out, q, k, v, spec)
	s.enqueue(func() error {
		if spec.Scale <= 0 {
			return fmt.Errorf("a scale of %g: the kernels take positive ones", spec.Scale)
		}
		return s.launch(named("attend_cache", typeName(q.DType)), ptr(out.Mem), ptr(q.Mem), ptr(k.Mem), ptr(v.Mem),
			ptr(spec.Sinks.Mem), ptr(spec.Docs.Start), ptr(spec.Docs.End), ptr(spec.Blocks.Table), i32(q.Rows),
			i32(spec.Heads), i32(spec.KVHeads), i32(spec.Heads/spec.KVHeads), i32(spec.HeadDim), i32(spec.Window),
			i32(max(spec.Blocks.Rows, 1)), stride(out), stride(q), stride(k), stride(v), f32(spec.Scale),
			f32(spec.SoftCap))
	})
}

// Put implements device.EmbeddingOps.
func (s *Stream) Put(cache, x device.Mat, at device.Mem) {
	s.operands.Put(cache, x, at)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		return s.launch(named("put", typeName(x.DType)), ptr(cache.Mem), ptr(x.Mem), ptr(at), i32(x.Rows), i32(x.Cols),
			i32(cache.Rows), stride(cache), stride(x))
	})
}

// ContinueConv implements device.ConvOps.
func (s *Stream) ContinueConv(y, tail, x, w device.Mat, of device.Continued) {
	s.operands.ContinueConv(y, tail, x, w, of)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		err := s.launch(named("continue_conv", typeName(x.DType)), ptr(y.Mem), ptr(tail.Mem), ptr(x.Mem), ptr(w.Mem),
			ptr(of.Docs.Start), ptr(of.Docs.End), i32(x.Rows), i32(x.Cols), i32(w.Cols), i32(of.Each), stride(y),
			stride(tail), stride(x), stride(w))
		if err != nil {
			return err
		}
		return s.launch(named("keep_rows", typeName(x.DType)), ptr(tail.Mem), ptr(x.Mem), ptr(of.Docs.Start),
			ptr(of.Docs.End), i32(x.Rows), i32(x.Cols), i32(w.Cols-1), i32(of.Each), stride(tail), stride(x))
	})
}

// ContinueDelta implements device.DeltaOps.
func (s *Stream) ContinueDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec, each int) {
	s.operands.ContinueDelta(out, states, qkv, decay, beta, spec, each)
	s.enqueue(func() error {
		if empty(qkv) {
			return nil
		}
		return s.launch(named("continue_delta", typeName(qkv.DType)), ptr(out.Mem), ptr(states.Mem), ptr(qkv.Mem),
			ptr(decay.Mem), ptr(beta.Mem), ptr(spec.Docs.Start), ptr(spec.Docs.End), i32(qkv.Rows), i32(states.Rows),
			i32(spec.KeyHeads), i32(spec.Heads), i32(spec.KeyDim), i32(spec.ValueDim), i32(each), stride(out),
			stride(qkv))
	})
}
