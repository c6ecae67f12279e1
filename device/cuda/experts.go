package cuda

import (
	"errors"

	"github.com/millrace/millrace/device"
)

// errNoExperts is the answer to all operations of mixtures of experts.
var errNoExperts = errors.New("the GPU driver has no kernels for mixtures of experts yet; use device: cpu")

// Route implements device.RoutingOps.
func (s *Stream) Route(choices device.Mem, weights, logits, bias device.Mat, spec device.RouteSpec) {
	s.operands.Route(choices, weights, logits, bias, spec)
	s.enqueue(func() error { return errNoExperts })
}

// RouteGrad implements device.RoutingOps.
func (s *Stream) RouteGrad(dlogits, dweights, logits device.Mat, choices device.Mem, spec device.RouteSpec) {
	s.operands.RouteGrad(dlogits, dweights, logits, choices, spec)
	s.enqueue(func() error { return errNoExperts })
}

// SortChoices implements device.RoutingOps.
func (s *Stream) SortChoices(r device.Routing) {
	s.operands.SortChoices(r)
	s.enqueue(func() error { return errNoExperts })
}

// CountChoices implements device.RoutingOps.
func (s *Stream) CountChoices(counts device.Mat, r device.Routing, scale float32) {
	s.operands.CountChoices(counts, r, scale)
	s.enqueue(func() error { return errNoExperts })
}

// GatherRows implements device.ExpertOps.
func (s *Stream) GatherRows(y, x device.Mat, b device.Blocks) {
	s.operands.GatherRows(y, x, b)
	s.enqueue(func() error { return errNoExperts })
}

// ExpertMatMul implements device.ExpertOps.
func (s *Stream) ExpertMatMul(c, a, w device.Mat, transposed bool, b device.Blocks) {
	s.operands.ExpertMatMul(c, a, w, transposed, b)
	s.enqueue(func() error { return errNoExperts })
}

// ExpertWeightGrad implements device.ExpertOps.
func (s *Stream) ExpertWeightGrad(dw, dy, x device.Mat, b device.Blocks) {
	s.operands.ExpertWeightGrad(dw, dy, x, b)
	s.enqueue(func() error { return errNoExperts })
}

// ExpertBias implements device.ExpertOps.
func (s *Stream) ExpertBias(y, bias device.Mat, b device.Blocks) {
	s.operands.ExpertBias(y, bias, b)
	s.enqueue(func() error { return errNoExperts })
}

// ExpertBiasGrad implements device.ExpertOps.
func (s *Stream) ExpertBiasGrad(db, dweights, dy, bias, weights device.Mat, b device.Blocks) {
	s.operands.ExpertBiasGrad(db, dweights, dy, bias, weights, b)
	s.enqueue(func() error { return errNoExperts })
}

// ExpertGLU implements device.ExpertOps.
func (s *Stream) ExpertGLU(y, gateUp device.Mat, spec device.GLUSpec, b device.Blocks) {
	s.operands.ExpertGLU(y, gateUp, spec, b)
	s.enqueue(func() error { return errNoExperts })
}

// ExpertGLUGrad implements device.ExpertOps.
func (s *Stream) ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights device.Mat, spec device.GLUSpec, b device.Blocks) {
	s.operands.ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights, spec, b)
	s.enqueue(func() error { return errNoExperts })
}

// CombineRows implements device.ExpertOps.
func (s *Stream) CombineRows(sum, x, weights device.Mat, b device.Blocks) {
	s.operands.CombineRows(sum, x, weights, b)
	s.enqueue(func() error { return errNoExperts })
}
