package null

import "github.com/millrace/millrace/device"

// The operations of experts count the rows of a routing that chooses each expert equally often.

func (s *stream) Route(choices device.Mem, weights, logits, bias device.Mat, spec device.RouteSpec) {
	s.operands.Route(choices, weights, logits, bias, spec)
	s.count(0)
}

func (s *stream) RouteGrad(dlogits, dweights, logits device.Mat, choices device.Mem, spec device.RouteSpec) {
	s.operands.RouteGrad(dlogits, dweights, logits, choices, spec)
	s.count(0)
}

func (s *stream) SortChoices(r device.Routing) {
	s.operands.SortChoices(r)
	s.count(0)
}

func (s *stream) CountChoices(counts device.Mat, r device.Routing, scale float32) {
	s.operands.CountChoices(counts, r, scale)
	s.count(0)
}

func (s *stream) ScaleChoices(y, x, factors device.Mat, choices device.Mem) {
	s.operands.ScaleChoices(y, x, factors, choices)
	s.count(0)
}

func (s *stream) ScaleChoicesGrad(dfactors, dy, x device.Mat, choices device.Mem) {
	s.operands.ScaleChoicesGrad(dfactors, dy, x, choices)
	s.count(0)
}

func (s *stream) GatherRows(y, x device.Mat, b device.Blocks) {
	s.operands.GatherRows(y, x, b)
	s.count(0)
}

func (s *stream) ExpertMatMul(c, a, w, bias device.Mat, of device.ExpertProduct, b device.Blocks) {
	s.operands.ExpertMatMul(c, a, w, bias, of, b)
	s.count(2 * b.Balanced() * int64(a.Cols) * int64(c.Cols))
}

func (s *stream) ExpertWeightGrad(dw, dy, x device.Mat, b device.Blocks) {
	s.operands.ExpertWeightGrad(dw, dy, x, b)
	s.count(2 * b.Balanced() * int64(dy.Cols) * int64(x.Cols))
}

func (s *stream) ExpertBiasGrad(db, dweights, dy, bias, weights device.Mat, b device.Blocks) {
	s.operands.ExpertBiasGrad(db, dweights, dy, bias, weights, b)
	s.count(0)
}

func (s *stream) ExpertGLU(y, gateUp device.Mat, spec device.GLUSpec, b device.Blocks) {
	s.operands.ExpertGLU(y, gateUp, spec, b)
	s.count(0)
}

func (s *stream) ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights device.Mat, spec device.GLUSpec,
	b device.Blocks) {
	s.operands.ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights, spec, b)
	s.count(0)
}

func (s *stream) CombineRows(y, x, from, weights device.Mat, places device.Mem, topK int) {
	s.operands.CombineRows(y, x, from, weights, places, topK)
	s.count(0)
}
