package device

import "github.com/millrace/millrace/tensor"

// routing checks a routing by itself.
func (o *Operands) routing(r Routing) {
	if r.Rows < 0 || r.TopK < 1 || r.TopK > r.Experts {
		o.fail("%d rows choose %d of %d experts", r.Rows, r.TopK, r.Experts)
	}
}

// sorted adds what a routing has besides the choices.
func (o *Operands) sorted(write bool, r Routing) {
	o.vec(write, "order", r.Order, tensor.I32, r.Rows*r.TopK)
	o.vec(write, "rank", r.Rank, tensor.I32, r.Rows*r.TopK)
	o.vec(write, "starts", r.Starts, tensor.I32, r.Experts+1)
}

// blocks checks blocks, adds their routing, and returns the rows of their matrices.
func (o *Operands) blocks(b Blocks) int {
	o.routing(b.Routing)
	if b.First < 0 || b.Experts < 1 || b.First+b.Experts > b.Routing.Experts {
		o.fail("the experts [%d, %d) of %d", b.First, b.First+b.Experts, b.Routing.Experts)
	}
	if b.Rows < 1 || b.From < 0 || b.Count < 1 {
		o.fail("%d blocks of %d rows, from %d", b.Count, b.Rows, b.From)
	}
	o.vec(false, "choices", b.Routing.Choices, tensor.I32, b.Routing.Rows*b.Routing.TopK)
	o.sorted(false, b.Routing)
	return b.Count * b.Rows
}

// perChoice adds weights of choices or their gradients.
func (o *Operands) perChoice(write bool, name string, m Mat, r Routing) {
	o.stat(write, name, m, r.Rows, r.TopK)
}

func (o *Operands) route(logits Mat, spec RouteSpec) {
	groups := max(spec.Groups, 1)
	switch e := logits.Cols; {
	case spec.TopK < 1 || spec.TopK > e:
		o.fail("%d of %d experts", spec.TopK, e)
	case e%groups != 0:
		o.fail("%d experts in %d groups", e, groups)
	case groups > 1 && (e/groups < spec.LeastInGroup() || spec.TopGroups < 1 || spec.TopGroups > groups ||
		spec.TopGroups*(e/groups) < spec.TopK):
		o.fail("%d experts from %d of %d groups of %d", spec.TopK, spec.TopGroups, groups, e/groups)
	}
}

func (o *Operands) Route(choices Mem, weights, logits, bias Mat, spec RouteSpec) {
	o.begin("Route")
	o.route(logits, spec)
	o.vec(true, "choices", choices, tensor.I32, logits.Rows*spec.TopK)
	o.stat(true, "weights", weights, logits.Rows, spec.TopK)
	o.read("logits", logits, logits.Rows, logits.Cols, f32Only)
	if !bias.IsZero() {
		o.read("bias", bias, 1, logits.Cols, f32Only)
	}
	o.apart()
}

func (o *Operands) RouteGrad(dlogits, dweights, logits Mat, choices Mem, spec RouteSpec) {
	o.begin("RouteGrad")
	o.route(logits, spec)
	o.write("dlogits", dlogits, logits.Rows, logits.Cols, activation)
	o.stat(false, "dweights", dweights, logits.Rows, spec.TopK)
	o.read("logits", logits, logits.Rows, logits.Cols, f32Only)
	o.vec(false, "choices", choices, tensor.I32, logits.Rows*spec.TopK)
	o.apart()
}

func (o *Operands) SortChoices(r Routing) {
	o.begin("SortChoices")
	o.routing(r)
	o.sorted(true, r)
	o.vec(false, "choices", r.Choices, tensor.I32, r.Rows*r.TopK)
	o.apart()
}

func (o *Operands) CountChoices(counts Mat, r Routing, _ float32) {
	o.begin("CountChoices")
	o.routing(r)
	o.stat(true, "counts", counts, 1, r.Experts)
	o.vec(false, "starts", r.Starts, tensor.I32, r.Experts+1)
	o.apart()
}

func (o *Operands) ScaleChoices(y, x, factors Mat, choices Mem) {
	o.begin("ScaleChoices")
	o.stat(true, "y", y, x.Rows, x.Cols)
	o.stat(false, "x", x, x.Rows, x.Cols)
	o.read("factors", factors, 1, factors.Cols, activation)
	o.vec(false, "choices", choices, tensor.I32, x.Rows*x.Cols)
	o.apart([2]string{"y", "x"})
}

func (o *Operands) ScaleChoicesGrad(dfactors, dy, x Mat, choices Mem) {
	o.begin("ScaleChoicesGrad")
	o.stat(true, "dfactors", dfactors, 1, dfactors.Cols)
	o.stat(false, "dy", dy, x.Rows, x.Cols)
	o.stat(false, "x", x, x.Rows, x.Cols)
	o.vec(false, "choices", choices, tensor.I32, x.Rows*x.Cols)
	o.apart()
}

func (o *Operands) GatherRows(y, x Mat, b Blocks) {
	o.begin("GatherRows")
	o.write("y", y, o.blocks(b), x.Cols, activation)
	o.read("x", x, b.Routing.Rows, x.Cols, activation)
	o.last().Spare = int64(x.Rows) - b.Balanced()
	o.same("x", x, y)
	o.apart()
}

func (o *Operands) ExpertMatMul(c, a, w, bias Mat, of ExpertProduct, b Blocks) {
	o.begin("ExpertMatMul")
	n := o.blocks(b)
	rows, cols, results := a.Cols, c.Cols, n // of an expert's weight; of c
	if of.Transposed {
		rows, cols = cols, rows
	}
	if of.Placed {
		results = b.Routing.Rows * b.Routing.TopK
	}
	o.write("c", c, results, c.Cols, activation)
	o.last().Spare = int64(results) - b.Balanced()
	o.read("a", a, n, a.Cols, activation)
	o.read("w", w, b.Experts*rows, cols, activation)
	o.same("w", w, a)
	o.same("c", c, a)
	if !bias.IsZero() {
		o.read("bias", bias, b.Experts, c.Cols, activation)
		o.same("bias", bias, a)
	}
	o.apart()
}

func (o *Operands) ExpertWeightGrad(dw, dy, x Mat, b Blocks) {
	o.begin("ExpertWeightGrad")
	n := o.blocks(b)
	o.write("dw", dw, b.Experts*dy.Cols, x.Cols, f32Only)
	o.read("dy", dy, n, dy.Cols, activation)
	o.read("x", x, n, x.Cols, activation)
	o.same("x", x, dy)
	o.apart()
}

func (o *Operands) ExpertBiasGrad(db, dweights, dy, bias, weights Mat, b Blocks) {
	o.begin("ExpertBiasGrad")
	n := o.blocks(b)
	if !db.IsZero() {
		o.write("db", db, b.Experts, dy.Cols, f32Only)
	}
	o.read("dy", dy, n, dy.Cols, activation)
	if weights.IsZero() != dweights.IsZero() || weights.IsZero() != bias.IsZero() {
		o.fail("weights, their gradients and the bias come together")
	}
	if !weights.IsZero() {
		o.perChoice(true, "dweights", dweights, b.Routing)
		o.perChoice(false, "weights", weights, b.Routing)
		o.read("bias", bias, b.Experts, dy.Cols, activation)
		o.same("bias", bias, dy)
	}
	o.apart()
}

// expertGLU checks the gated unit of experts.
func (o *Operands) expertGLU(spec GLUSpec) {
	if o.glu(spec); spec.Ungated {
		o.fail("experts have gated units alone")
	}
}

func (o *Operands) ExpertGLU(y, gateUp Mat, spec GLUSpec, b Blocks) {
	o.begin("ExpertGLU")
	o.expertGLU(spec)
	n := o.blocks(b)
	o.write("y", y, n, y.Cols, activation)
	o.read("gateUp", gateUp, n, 2*y.Cols, activation)
	o.same("y", y, gateUp)
	o.apart()
}

func (o *Operands) ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights Mat, spec GLUSpec, b Blocks) {
	o.begin("ExpertGLUGrad")
	o.expertGLU(spec)
	n := o.blocks(b)
	o.write("dGateUp", dGateUp, n, 2*dy.Cols, activation)
	o.write("act", act, n, dy.Cols, activation)
	o.perChoice(true, "dweights", dweights, b.Routing)
	o.read("dy", dy, n, dy.Cols, activation)
	o.read("gateUp", gateUp, n, 2*dy.Cols, activation)
	o.perChoice(false, "weights", weights, b.Routing)
	o.same("dGateUp", dGateUp, dy)
	o.same("act", act, dy)
	o.same("gateUp", gateUp, dy)
	o.apart([2]string{"dGateUp", "gateUp"}, [2]string{"act", "dy"})
}

func (o *Operands) CombineRows(y, x, from, weights Mat, places Mem, topK int) {
	o.begin("CombineRows")
	if topK < 1 {
		o.fail("the sum of %d rows", topK)
	}
	o.write("y", y, y.Rows, y.Cols, activation)
	o.read("x", x, x.Rows, y.Cols, activation)
	o.last().Spare = int64(x.Rows) - int64(y.Rows)*int64(topK)
	o.same("x", x, y)
	o.read("from", from, y.Rows, y.Cols, activation)
	if from.DType != tensor.F32 {
		o.same("from", from, y)
	}
	o.vec(false, "places", places, tensor.I32, y.Rows*topK)
	if !weights.IsZero() {
		o.stat(false, "weights", weights, y.Rows, topK)
	}
	o.apart([2]string{"y", "from"})
}
