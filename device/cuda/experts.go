package cuda

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Route implements device.RoutingOps.
func (s *Stream) Route(choices device.Mem, weights, logits, bias device.Mat, spec device.RouteSpec) {
	s.operands.Route(choices, weights, logits, bias, spec)
	s.enqueue(func() error {
		if empty(logits) {
			return nil
		}
		return s.launch(named("route"), ptr(choices), ptr(weights.Mem), ptr(logits.Mem), ptr(bias.Mem),
			i32(logits.Rows), i32(logits.Cols),
			i32(spec.TopK), i32(max(spec.Groups, 1)), i32(spec.TopGroups), flag(spec.ByBest),
			i32(logits.Stride), flag(spec.Sigmoid), flag(spec.Renormalize), flag(!bias.IsZero()), f32(spec.Scale))
	})
}

// RouteGrad implements device.RoutingOps.
func (s *Stream) RouteGrad(dlogits, dweights, logits device.Mat, choices device.Mem, spec device.RouteSpec) {
	s.operands.RouteGrad(dlogits, dweights, logits, choices, spec)
	s.enqueue(func() error {
		if empty(logits) {
			return nil
		}
		return s.launch(named("route_grad", typeName(dlogits.DType)), ptr(dlogits.Mem), ptr(dweights.Mem),
			ptr(logits.Mem), ptr(choices),
			i32(logits.Rows), i32(logits.Cols), i32(spec.TopK), i32(dlogits.Stride), i32(logits.Stride),
			flag(spec.Sigmoid),
			flag(spec.Renormalize), f32(spec.Scale))
	})
}

// SortChoices implements device.RoutingOps.
func (s *Stream) SortChoices(r device.Routing) {
	s.operands.SortChoices(r)
	s.enqueue(func() error {
		return s.launch(named("sort_choices"), ptr(r.Order), ptr(r.Rank), ptr(r.Starts), ptr(r.Choices),
			i32(r.Rows*r.TopK), i32(r.Experts))
	})
}

// starts returns the starts of the experts whose weights are there.
func starts(b device.Blocks) device.Mem {
	return b.Routing.Starts.Slice(int64(b.First)*4, int64(b.Experts+1)*4)
}

// stretches is the greatest number of experts that have blocks in a call.
func stretches(b device.Blocks) int { return min(b.Count, b.Experts) }

// launchBlocks launches a kernel for the rows of blocks, whose arguments are those before, the blocks, and those after.
// Strides stay as given, also of a single row: which kernel computes a block does not depend on how many the call
// has.
func (s *Stream) launchBlocks(o operation, b device.Blocks, before, after []arg) error {
	if b.Routing.Rows == 0 {
		return nil
	}
	args := append(append(s.args[:0], before...), ptr(starts(b)), i32(b.Experts), i32(b.Rows), i32(b.From),
		i32(b.Count))
	return s.launch(o, append(args, after...)...)
}

// CountChoices implements device.RoutingOps.
func (s *Stream) CountChoices(counts device.Mat, r device.Routing, scale float32) {
	s.operands.CountChoices(counts, r, scale)
	s.enqueue(func() error {
		return s.launch(named("count_choices"), ptr(counts.Mem), ptr(r.Starts), i32(r.Experts), f32(scale))
	})
}

// ScaleChoices implements device.RoutingOps.
func (s *Stream) ScaleChoices(y, x, factors device.Mat, choices device.Mem) {
	s.operands.ScaleChoices(y, x, factors, choices)
	s.enqueue(func() error {
		if empty(x) {
			return nil
		}
		return s.launch(named("scale_choices", typeName(factors.DType)), ptr(y.Mem), ptr(x.Mem), ptr(factors.Mem),
			ptr(choices), i32(x.Rows*x.Cols))
	})
}

// ScaleChoicesGrad implements device.RoutingOps.
func (s *Stream) ScaleChoicesGrad(dfactors, dy, x device.Mat, choices device.Mem) {
	s.operands.ScaleChoicesGrad(dfactors, dy, x, choices)
	s.enqueue(func() error {
		return s.launch(named("scale_choices_grad"), ptr(dfactors.Mem), ptr(dy.Mem), ptr(x.Mem), ptr(choices),
			i32(x.Rows*x.Cols), i32(dfactors.Cols))
	})
}

// GatherRows implements device.ExpertOps.
func (s *Stream) GatherRows(y, x device.Mat, b device.Blocks) {
	s.operands.GatherRows(y, x, b)
	s.enqueue(func() error {
		return s.launchBlocks(named("gather_rows", typeName(y.DType)), b, []arg{ptr(y.Mem), ptr(x.Mem),
			ptr(b.Routing.Order)},
			[]arg{i32(b.Routing.TopK), i32(y.Cols), i32(y.Stride), i32(x.Stride)})
	})
}

// ExpertMatMul implements device.ExpertOps.
func (s *Stream) ExpertMatMul(c, a, w, bias device.Mat, of device.ExpertProduct, b device.Blocks) {
	s.operands.ExpertMatMul(c, a, w, bias, of, b)
	s.enqueue(func() error {
		form := "nn"
		if of.Transposed {
			form = "nt"
		}
		return s.launchBlocks(named("expert_matmul", typeName(c.DType), form), b, []arg{ptr(c.Mem), ptr(a.Mem),
			ptr(w.Mem), ptr(bias.Mem)},
			[]arg{i32(c.Cols), i32(a.Cols), flag(of.Placed), flag(!bias.IsZero()), i32(c.Stride), i32(a.Stride),
				i32(w.Stride), i32(bias.Stride)})
	})
}

// ExpertWeightGrad implements device.ExpertOps.
func (s *Stream) ExpertWeightGrad(dw, dy, x device.Mat, b device.Blocks) {
	s.operands.ExpertWeightGrad(dw, dy, x, b)
	s.enqueue(func() error {
		return s.launchBlocks(named("expert_weight_grad", typeName(dy.DType)), b, []arg{ptr(dw.Mem), ptr(dy.Mem),
			ptr(x.Mem)},
			[]arg{i32(stretches(b)), i32(dy.Cols), i32(x.Cols), i32(dw.Stride), i32(dy.Stride), i32(x.Stride)})
	})
}

// ExpertBiasGrad implements device.ExpertOps.
func (s *Stream) ExpertBiasGrad(db, dweights, dy, bias, weights device.Mat, b device.Blocks) {
	s.operands.ExpertBiasGrad(db, dweights, dy, bias, weights, b)
	s.enqueue(func() error {
		if !weights.IsZero() {
			err := s.launchBlocks(named("expert_bias_dot", typeName(dy.DType)), b,
				[]arg{ptr(dweights.Mem), ptr(dy.Mem), ptr(bias.Mem), ptr(b.Routing.Order)},
				[]arg{i32(dy.Cols), i32(dy.Stride), i32(bias.Stride)})
			if err != nil {
				return err
			}
		}
		if db.IsZero() {
			return nil
		}
		return s.launchBlocks(named("expert_bias_grad", typeName(dy.DType)), b,
			[]arg{ptr(db.Mem), ptr(dy.Mem), ptr(weights.Mem), ptr(b.Routing.Order)},
			[]arg{i32(stretches(b)), i32(dy.Cols), flag(!weights.IsZero()), i32(db.Stride), i32(dy.Stride)})
	})
}

// ExpertGLU implements device.ExpertOps.
func (s *Stream) ExpertGLU(y, gateUp device.Mat, spec device.GLUSpec, b device.Blocks) {
	s.operands.ExpertGLU(y, gateUp, spec, b)
	s.enqueue(func() error {
		alpha, limit, plus := gated(spec)
		return s.launchBlocks(named("expert_glu", activations[spec.Gate], typeName(y.DType)), b,
			[]arg{ptr(y.Mem), ptr(gateUp.Mem)},
			[]arg{i32(y.Cols), i32(y.Stride), i32(gateUp.Stride), alpha, limit, plus})
	})
}

// ExpertGLUGrad implements device.ExpertOps.
func (s *Stream) ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights device.Mat, spec device.GLUSpec,
	b device.Blocks) {
	s.operands.ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights, spec, b)
	s.enqueue(func() error {
		alpha, limit, plus := gated(spec)
		return s.launchBlocks(named("expert_glu_grad", activations[spec.Gate], typeName(dy.DType)), b,
			[]arg{ptr(dGateUp.Mem), ptr(act.Mem), ptr(dweights.Mem), ptr(dy.Mem), ptr(gateUp.Mem), ptr(weights.Mem),
				ptr(b.Routing.Order)},
			[]arg{i32(dy.Cols), i32(dGateUp.Stride), i32(act.Stride), i32(dy.Stride), i32(gateUp.Stride), alpha,
				limit, plus})
	})
}

// CombineRows implements device.ExpertOps.
func (s *Stream) CombineRows(y, x, from, weights device.Mat, places device.Mem, topK int) {
	s.operands.CombineRows(y, x, from, weights, places, topK)
	s.enqueue(func() error {
		if empty(y) {
			return nil
		}
		begin := "own"
		if from.DType == tensor.F32 {
			begin = "f32"
		}
		return s.launch(named("combine_rows", begin, typeName(y.DType)), ptr(y.Mem), ptr(x.Mem),
			ptr(from.Mem), ptr(weights.Mem), ptr(places), i32(y.Rows), i32(topK), i32(y.Cols), flag(!weights.IsZero()),
			i32(y.Stride), i32(x.Stride), i32(from.Stride))
	})
}
