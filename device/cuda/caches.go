package cuda

import "github.com/millrace/millrace/device"

// There are no kernels for these operations yet; Info.NoCaches says so before there is a stream.

// AttendCache implements device.AttentionOps.
func (s *Stream) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	s.operands.AttendCache(out, q, k, v, spec)
	s.refuse()
}

// Put implements device.EmbeddingOps.
func (s *Stream) Put(cache, x device.Mat, at device.Mem) {
	s.operands.Put(cache, x, at)
	s.refuse()
}

// ContinueConv implements device.ConvOps.
func (s *Stream) ContinueConv(y, tail, x, w device.Mat, of device.Continued) {
	s.operands.ContinueConv(y, tail, x, w, of)
	s.refuse()
}

// ContinueDelta implements device.DeltaOps.
func (s *Stream) ContinueDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec, each int) {
	s.operands.ContinueDelta(out, states, qkv, decay, beta, spec, each)
	s.refuse()
}
