package null

import "github.com/millrace/millrace/device"

func (s *stream) CausalConv(y, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConv(y, x, w, docs)
	s.count(0)
}

func (s *stream) CausalConvGrad(dx, dw, dy, x, w device.Mat, docs device.Docs) {
	s.operands.CausalConvGrad(dx, dw, dy, x, w, docs)
	s.count(0)
}

func (s *stream) ContinueConv(y, tail, x, w device.Mat, of device.Continued) {
	s.operands.ContinueConv(y, tail, x, w, of)
	s.count(0)
}

func (s *stream) Gate(y, x, gate device.Mat, kind device.GateKind) {
	s.operands.Gate(y, x, gate, kind)
	s.count(0)
}

func (s *stream) GateGrad(dx, dgate, dy, x, gate device.Mat, kind device.GateKind) {
	s.operands.GateGrad(dx, dgate, dy, x, gate, kind)
	s.count(0)
}

func (s *stream) DeltaGates(decay, beta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGates(decay, beta, a, b, aLog, dtBias)
	s.count(0)
}

func (s *stream) DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias device.Mat) {
	s.operands.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias)
	s.count(0)
}

func (s *stream) GatedDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) {
	s.operands.GatedDelta(out, states, qkv, decay, beta, spec)
	forward, _ := spec.FLOPs(qkv.Rows)
	s.count(forward)
}

func (s *stream) GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states device.Mat,
	spec device.DeltaSpec) {
	s.operands.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec)
	_, backward := spec.FLOPs(qkv.Rows)
	s.count(backward)
}

func (s *stream) ContinueDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec, each int) {
	s.operands.ContinueDelta(out, states, qkv, decay, beta, spec, each)
	s.count(spec.StepFLOPs(qkv.Rows))
}
