package nn

import (
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Letters of shapes in this file: those of experts.go.
//
//	h, dx             [T, H]      the residual stream that is read, and its gradient
//	dense             [S, H]      what the dense feed-forward made of h
//	shares            F32 [S, K]  the weights of choices before they are multiplied by their experts' factors
//	outcome           [T, H]      the sum of what experts made of rows, see Summed
//	sum, other        [c, H]      n1(dense) + n2(outcome), and what takes turns in a second buffer

// WithDense are experts with a dense feed-forward next to them. Both read the residual stream, each through a norm of
// its own, and so does the router; norms of their results are added up, and the norm of that is what the block adds:
//
//	y = h + n(n1(dense(n0(h))) + n2(experts(n3(h))))
//	logits = router(nr(h)) / sqrt(H)
//
// nr is the norm whose weight is the router's scale. The weight of a choice is multiplied by a trained factor of its
// expert. Experts.Shared are the inner columns of the dense feed-forward. It needs the rule [Branches], by which the
// block takes n3. Source: transformers, modeling_gemma4.py (Gemma4TextDecoderLayer).
type WithDense struct{ Experts }

var (
	_ Mixture = WithDense{}
	_ Summed  = WithDense{}
)

// The router's own tensors: of its norm, and the factors of experts.
const (
	routerScale   = "router.scale"
	routerFactors = "router.factors"
)

// With implements Mixture.
func (x WithDense) With(experts Experts) Mixture { return WithDense{experts} }

// LeavesOutcome implements Summed.
func (x WithDense) LeavesOutcome() bool { return true }

// Fields implements Half. The block has n3.
func (x WithDense) Fields(hidden int) []tensor.Field {
	fields := append(x.Experts.Fields(hidden), param(routerFactors, x.Number))
	for _, name := range []string{routerScale, feedNorm, sharedPost, routedPost, feedPost} {
		fields = append(fields, param(name, hidden))
	}
	return fields
}

// Scratch that follows that of Experts: statistics of norms. Rows of the residual stream and of what is made of them
// take turns in callRows and callDOut, since no call is under way when they are there.
const (
	inStat      = sharedAct + 1 + iota // F32 [c, 1], as the others
	denseStat                          // of n1
	outcomeStat                        // of n2
	sumStat                            // of n
)

// Values implements Half.
func (x WithDense) Values(hidden int) []Value {
	stat := Value{Cols: 1, DType: tensor.F32, Lives: Scratch}
	return append(x.Experts.Values(hidden), slices.Repeat([]Value{stat}, sumStat-sharedAct)...)
}

// Held values that follow those of Experts.
const (
	heldDense  = heldBalance + 1 + iota // [S, H]
	heldShares                          // F32 [S, K]
	heldNorms                           // [3, H]: the weights of n1, n2 and n, for the visit that combines
)

// HeldValues implements Routed.
func (x WithDense) HeldValues(hidden int) []Value {
	return append(x.Experts.HeldValues(hidden), Value{Cols: hidden, Away: ResidualAway},
		Value{Cols: x.Route.TopK, DType: tensor.F32}, Value{Cols: hidden, Rows: 3, Whole: true})
}

// norm writes the norm of rows to y, and their statistics.
func (x WithDense) norm(p *Pass, y device.Mat, stat int, rows, weight device.Mat) {
	p.RMSNorm(y, p.buf[stat].RowRange(0, rows.Rows), rows, weight, p.normed.of(1))
}

// normGrad writes the gradient of rows that were normed, plus the one that went around the norm if that is given, and
// adds that of the weight unless p has no gradients.
func (x WithDense) normGrad(p *Pass, d, dy device.Mat, stat int, rows device.Mat, weight string, around device.Mat) {
	p.normed.grad(p, d, dy, rows, p.buf[stat].RowRange(0, rows.Rows), around, p.w, p.g, weight)
}

// postNorms are the weights of n1, n2 and n.
func (x WithDense) postNorms(p *Pass) [3]device.Mat {
	return [3]device.Mat{p.w.named(sharedPost, 1), p.w.named(routedPost, 1), p.w.named(feedPost, 1)}
}

// two are the buffers of rows of a chunk.
func (x WithDense) two(p *Pass, c chunk) (a, b device.Mat) {
	return p.buf[callRows].RowRange(0, c.n), p.buf[callDOut].RowRange(0, c.n)
}

// Open implements Routed: the dense feed-forward, and the choices of rows.
func (x WithDense) Open(p *Pass, h device.Mat) {
	logits, choices := p.Held(heldLogits), p.Held(heldChoices).Mem
	for c := range chunks(h.Rows, p.chunk) {
		norm, _ := x.two(p, c)
		gateUp, act := x.shared(p, c)
		x.norm(p, norm, inStat, c.rows(h), p.w.named(feedNorm, 1))
		p.Project(gateUp, norm, sharedGateUp, 2)
		p.GLU(act, gateUp, x.Activation)
		p.Project(c.rows(p.Held(heldDense)), act, sharedDown, 1)
		x.norm(p, norm, inStat, c.rows(h), p.w.named(routerScale, 1))
		p.Project(c.rows(logits), norm, router, 1)
	}
	p.Scale(logits, logits, x.rootSize(h))
	p.Route(choices, p.Held(heldShares), logits, p.constants, x.Route)
	p.ScaleChoices(p.Held(heldWeights), p.Held(heldShares), p.w.named(routerFactors, 1), choices)
}

// rootSize multiplies the logits: it is 1/sqrt of the columns that the router reads, which are more than the logits.
func (x WithDense) rootSize(h device.Mat) float32 { return float32(1 / math.Sqrt(float64(h.Cols))) }

// OpenForward implements Routed. An operation keeps the weights of norms, since they may be used where host memory has
// them: a copy from there would be a transfer.
func (x WithDense) OpenForward(p *Pass, _ device.Mat) {
	for i, weight := range x.postNorms(p) {
		p.Scale(p.Held(heldNorms).RowRange(i, 1), weight, 1)
	}
}

// joined are n1(dense) + n2(outcome) of a chunk and, in other, the norm of that. The outcome may be in other.
func (x WithDense) joined(p *Pass, c chunk, outcome device.Mat, norms [3]device.Mat) (sum, other device.Mat) {
	sum, other = x.two(p, c)
	x.norm(p, sum, outcomeStat, outcome, norms[1])
	x.norm(p, other, denseStat, c.rows(p.Held(heldDense)), norms[0])
	p.Add(sum, sum, other)
	x.norm(p, other, sumStat, sum, norms[2])
	return sum, other
}

// Combine implements Routed.
func (x WithDense) Combine(p *Pass, y device.Mat) {
	var norms [3]device.Mat
	for i := range norms {
		norms[i] = p.Held(heldNorms).RowRange(i, 1)
	}
	for c := range chunks(y.Rows, p.chunk) {
		_, outcome := x.two(p, c)
		if !p.outcome.IsZero() {
			outcome = c.rows(p.outcome)
		}
		x.sumOf(p, c, outcome, c.rows(p.Held(heldWeights)))
		_, added := x.joined(p, c, outcome, norms)
		p.Add(c.rows(y), c.rows(y), added)
	}
}

// sumOf adds up the rows that experts left for each row of a chunk, multiplied by weights if there are any.
func (x WithDense) sumOf(p *Pass, c chunk, to, weights device.Mat) {
	p.Zero(to.Mem)
	p.CombineRows(to, x.outputs(p), to, weights, c.rows(p.Held(heldRank)).Mem, x.Route.TopK)
}

// OpenBackward implements Routed: it turns dy into the gradient of the outcome, which the experts read.
func (x WithDense) OpenBackward(p *Pass, dy device.Mat) {
	none := *p
	none.g = Params{}
	for c := range chunks(dy.Rows, p.chunk) {
		sum, d := x.joined(p, c, c.rows(p.outcome), x.postNorms(p))
		x.normGrad(&none, d, c.rows(dy), sumStat, sum, feedPost, device.Mat{})
		x.normGrad(&none, c.rows(dy), d, outcomeStat, c.rows(p.outcome), routedPost, device.Mat{})
	}
}

// CloseBackward implements Routed.
func (x WithDense) CloseBackward(p *Pass, h, dx, dNorm device.Mat) {
	dWeights, choices := p.Held(heldDWeights), p.Held(heldChoices).Mem
	if d := p.g.named(routerFactors, 1); !d.IsZero() {
		p.ScaleChoicesGrad(d, dWeights, p.Held(heldShares), choices)
	}
	p.ScaleChoices(dWeights, dWeights, p.w.named(routerFactors, 1), choices)
	for c := range chunks(dx.Rows, p.chunk) {
		part := *p
		part.g = p.g.at(c)
		dDense := x.joinedGrad(&part, c, c.rows(dx))
		x.denseGrad(&part, c, c.rows(h), c.rows(dx), dDense)
		x.routerGrad(&part, c, c.rows(h), c.rows(dx))
		x.sumOf(p, c, c.rows(dNorm), device.Mat{})
	}
}

// joinedGrad adds the gradients of n1, n2 and n of a chunk, given dy, and returns that of dense.
func (x WithDense) joinedGrad(p *Pass, c chunk, dy device.Mat) device.Mat {
	outcome := c.rows(p.outcome)
	sum, d := x.joined(p, c, outcome, x.postNorms(p))
	x.normGrad(p, d, dy, sumStat, sum, feedPost, device.Mat{})
	x.normGrad(p, sum, d, outcomeStat, outcome, routedPost, device.Mat{}) // for n2 alone: the experts are done
	x.normGrad(p, sum, d, denseStat, c.rows(p.Held(heldDense)), sharedPost, device.Mat{})
	return sum
}

// denseGrad is the backward of the dense feed-forward, of a chunk: it adds the gradient of h to dx. d, the gradient of
// dense, is in the first of the buffers of rows.
func (x WithDense) denseGrad(p *Pass, c chunk, h, dx, d device.Mat) {
	_, norm := x.two(p, c)
	gateUp, act := x.shared(p, c)
	x.norm(p, norm, inStat, h, p.w.named(feedNorm, 1))
	p.Project(gateUp, norm, sharedGateUp, 2)
	p.ProjectGrad(act, d, sharedDown, 1)
	p.GLUGrad(gateUp, act, act, gateUp, x.Activation)
	p.WeightGrad(sharedDown, 1, d, act)
	p.WeightGrad(sharedGateUp, 2, gateUp, norm)
	p.ProjectGrad(d, gateUp, sharedGateUp, 2)
	x.normGrad(p, dx, d, inStat, h, feedNorm, dx)
}

// routerGrad is the backward of the router, of a chunk: it adds the gradient of h to dx.
func (x WithDense) routerGrad(p *Pass, c chunk, h, dx device.Mat) {
	dRows, norm := x.two(p, c)
	d := x.logitsGrad(p, c)
	p.Scale(d, d, x.rootSize(h))
	x.norm(p, norm, inStat, h, p.w.named(routerScale, 1))
	p.WeightGrad(router, 1, d, norm)
	p.ProjectGrad(dRows, d, router, 1)
	x.normGrad(p, dx, dRows, inStat, h, routerScale, dx)
}
