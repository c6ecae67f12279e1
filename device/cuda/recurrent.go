package cuda

import "github.com/millrace/millrace/device"

// There are no kernels for these operations yet; Info.NoRecurrence says so before there is a stream.

// CausalConv implements device.ConvOps.
func (s *Stream) CausalConv(y, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConv(y, x, w, docs)
	s.refuse()
}

// CausalConvGrad implements device.ConvOps.
func (s *Stream) CausalConvGrad(dx, dw, dy, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConvGrad(dx, dw, dy, x, w, docs)
	s.refuse()
}

// Gate implements device.GateOps.
func (s *Stream) Gate(y, x, gate device.Mat, kind device.GateKind) {
	s.operands.Gate(y, x, gate, kind)
	s.refuse()
}

// GateGrad implements device.GateOps.
func (s *Stream) GateGrad(dx, dgate, dy, x, gate device.Mat, kind device.GateKind) {
	s.operands.GateGrad(dx, dgate, dy, x, gate, kind)
	s.refuse()
}

// DeltaGates implements device.DeltaOps.
func (s *Stream) DeltaGates(decay, beta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGates(decay, beta, a, b, aLog, dtBias)
	s.refuse()
}

// DeltaGatesGrad implements device.DeltaOps.
func (s *Stream) DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
	s.refuse()
}

// GatedDelta implements device.DeltaOps.
func (s *Stream) GatedDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) {
	s.operands.GatedDelta(out, states, qkv, decay, beta, spec)
	s.refuse()
}

// GatedDeltaGrad implements device.DeltaOps.
func (s *Stream) GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states device.Mat,
	spec device.DeltaSpec) {
	s.operands.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
	s.refuse()
}
