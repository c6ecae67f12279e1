package nn

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Letters of shapes in this file: S rows of the step, T of them in a micro-batch, c positions of a chunk, H the hidden
// width, E experts, K of them for each row, X in a part, I the inner columns of an expert.
//
//	norm, dNorm         [S, H]                    the normed input; the gradient of y, then that of norm
//	logits              F32 [S, E]                of the router
//	choices, weights    I32 [S, K], F32 [S, K]    the experts of a row, and what their outputs are multiplied with
//	outputs             [S*K, H]                  what each choice's expert made of its row, by place in the order; in
//	                                              backward the gradient of that row
//	rows, dOut          [n, H]                    of one call of n rows: rows that chose an expert, and the gradient of
//	                                              its output
//	gateUp, act         [n, 2*I], [n, I]          of one call
//	gate, up; down      [2*I, H]; [H, I]          weights of an expert; those of a part's experts follow each other
//
// A mixture of experts has most of a model's weights, and each row uses few of them. With a visit for each micro-batch,
// a part of experts would cross the link as often as there are micro-batches, and each time meet a handful of rows for
// each expert. So experts see the rows of the whole step at once. The trunk's visits choose for one micro-batch after
// the other, and hold the choices. The first part's visit sorts them by expert. Then each part of experts comes once in
// a direction, takes the rows that chose it in calls of a fixed size (device.Blocks says why), and leaves an output for
// each choice. The trunk adds them up.
//
// The order of all sums follows from the order of experts and of rows: a row's outputs are added in the order of
// experts, and the gradient of an expert block by block. So the number of experts in a part changes no bit.

// Experts is a feed-forward of which each row uses TopK of Number, chosen by a router. Source: Shazeer et al.,
// "Outrageously Large Neural Networks" (2017); what families choose differently is in device.RouteSpec and
// device.GLUSpec.
//
//	y = shared(x) + the sum over chosen e of weight_e * down_e(act(gate_e(x), up_e(x)))
//
// where shared may have a gate: sigmoid(g(x)) * shared(x), with a number g(x) for each row.
type Experts struct {
	Inner   int // columns of gate and of up of each expert
	Number  int
	PerPart int // experts of a part; the last one may have fewer

	Route      device.RouteSpec
	Activation device.GLUSpec // of all experts, the shared one included

	RouterBias bool // is added to the logits
	// the block has a constant for each expert that is added to its score where rows choose, see device.RouteSpec
	Correction bool
	Bias       bool // biases on gate, up and down of each expert
	Balance    Balance

	Shared     int  // inner columns of the expert that all rows use, in the trunk; 0: no such expert
	SharedGate bool // its output is multiplied by the sigmoid of a product of its own, a number for each row
}

var (
	_ Mixture = Experts{}
	_ Loaded  = Experts{}
	_ Fixed   = Experts{}
)

// Mixture is a feed-forward with experts: [Experts] or [WithDense].
type Mixture interface {
	Routed
	// Mixture is the experts, and With the same feed-forward with others.
	Mixture() Experts
	With(Experts) Mixture
}

// Mixture implements Mixture.
func (x Experts) Mixture() Experts { return x }

// With implements Mixture.
func (x Experts) With(experts Experts) Mixture { return experts }

// Balance is a loss that is least if all experts are chosen equally often. It adds to the loss of a step
//
//	Weight * Number * the sum over experts e of f_e * P_e
//
// where f_e is how often e was chosen and P_e the sum of its probabilities (softmax of the logits), both over all rows
// of the step in all Blocks and divided by the number of these. f has no gradient. Source: Fedus et al., "Switch
// Transformers" (2021), section 2.2, as transformers has it (load_balancing_loss_func).
type Balance struct {
	Weight float32 // 0: there is no such loss
	Blocks int     // that have experts, all as many
}

// The tensors of the trunk. The shared expert's gate and up are glued.
const (
	router, routerBias       = "router.weight", "router.bias"
	sharedGateUp, sharedDown = "shared.gate.weight", "shared.down.weight"
	sharedGate               = "shared_gate.weight"
)

// expertField is the name of a tensor of an expert, by its number in the part. Those of gate and up of all experts are
// glued, and so are those of down.
func expertField(expert int, name string) string { return fmt.Sprintf("experts.%d.%s", expert, name) }

// ExpertField returns the number in its part of the expert that a field of it belongs to, and the field's name there.
func ExpertField(field string) (expert int, name string, ok bool) {
	rest, ok := strings.CutPrefix(field, "experts.")
	if !ok {
		return 0, "", false
	}
	number, name, ok := strings.Cut(rest, ".")
	expert, err := strconv.Atoi(number)
	return expert, name, ok && err == nil
}

// ExpertBlockRows is the number of rows of an expert that make a block. Their products are summed before they are added
// to the expert's gradient, so it sets bits. A GPU's tile of a product has as many rows.
const ExpertBlockRows = 128

// Count implements InParts.
func (x Experts) Count() int { return (x.Number + x.PerPart - 1) / x.PerPart }

// Balanced implements Loaded.
func (x Experts) Balanced() float32 { return x.Balance.Weight }

// Loads implements Loaded.
func (x Experts) Loads() int { return x.Number }

// Constants implements Fixed.
func (x Experts) Constants() int { return when(x.Correction, x.Number) }

// FirstExpert is the number of a part's first expert.
func (x Experts) FirstExpert(part int) int { return part * x.PerPart }

// in is the number of a part's experts.
func (x Experts) in(part int) int { return min(x.PerPart, x.Number-x.FirstExpert(part)) }

// Fields implements Half.
func (x Experts) Fields(hidden int) []tensor.Field {
	fields := []tensor.Field{param(router, x.Number, hidden)}
	if x.RouterBias {
		fields = append(fields, param(routerBias, x.Number))
	}
	if x.Shared > 0 {
		fields = append(fields, param(sharedGateUp, x.Shared, hidden), glued("shared.up.weight", x.Shared, hidden),
			param(sharedDown, hidden, x.Shared))
	}
	if x.SharedGate {
		fields = append(fields, param(sharedGate, 1, hidden))
	}
	return fields
}

// PartFields implements InParts.
func (x Experts) PartFields(hidden, part int) (fields []tensor.Field) {
	for e := range x.in(part) {
		fields = append(fields, glued(expertField(e, gateUpWeight), x.Inner, hidden), glued(expertField(e,
			"up.weight"), x.Inner, hidden))
	}
	down := len(fields)
	for e := range x.in(part) {
		fields = append(fields, glued(expertField(e, downWeight), hidden, x.Inner))
	}
	fields[0].Glued, fields[down].Glued = false, false
	if !x.Bias {
		return fields
	}
	biases := len(fields)
	for e := range x.in(part) {
		fields = append(fields, glued(expertField(e, gateUpBias), x.Inner), glued(expertField(e, "up.bias"), x.Inner))
	}
	downs := len(fields)
	for e := range x.in(part) {
		fields = append(fields, glued(expertField(e, downBias), hidden))
	}
	fields[biases].Glued, fields[downs].Glued = false, false
	return fields
}

// Scratch: of a call, of a chunk, or one row. A call and the shared expert take turns in the same memory.
const (
	callRows    = iota // [n, H]
	callDOut           // [n, H]
	callGateUp         // [n, 2*I]; of the shared expert
	callAct            // [n, I]; of the shared expert
	dNormOthers        // F32 [c, H]: the gradient of norm by the router and the shared expert
	dLogits            // [c, E]
	biasNumbers        // F32 [1, E]: the router's bias
	allExperts         // I32 [c, E]: with a load-balancing loss, choices of all experts
	allWeights         // F32 [c, E]: their probabilities, or gradients of these
	dBalance           // [c, E]: the gradient of logits by that loss
	sharedScale        // [c, 1]: with SharedGate, the gate; in backward then its gradient
	sharedAct          // [c, I]: with SharedGate, of the shared expert before it is gated
)

// Values implements Half.
func (x Experts) Values(hidden int) []Value {
	inner, balanced := max(x.Inner, x.Shared), when(x.Balance.Weight != 0, x.Number)
	return []Value{
		callRows:    {Cols: hidden, Lives: Call},
		callDOut:    {Cols: hidden, Lives: Call},
		callGateUp:  {Cols: 2 * inner, Lives: Call},
		callAct:     {Cols: inner, Lives: Call},
		dNormOthers: {Cols: hidden, DType: tensor.F32, Lives: Scratch},
		dLogits:     {Cols: x.Number, Lives: Scratch},
		biasNumbers: {Cols: when(x.RouterBias, x.Number), DType: tensor.F32, Rows: 1, Lives: Scratch},
		allExperts:  {Cols: balanced, DType: tensor.I32, Lives: Scratch},
		allWeights:  {Cols: balanced, DType: tensor.F32, Lives: Scratch},
		dBalance:    {Cols: balanced, Lives: Scratch},
		sharedScale: {Cols: when(x.SharedGate, 1), Lives: Scratch},
		sharedAct:   {Cols: when(x.SharedGate, x.Shared), Lives: Scratch},
	}
}

// The held values.
const (
	heldLogits   = iota // F32 [S, E]
	heldChoices         // I32 [S, K]
	heldWeights         // F32 [S, K]
	heldDWeights        // F32 [S, K]
	heldOrder           // I32 [S, K], see device.Routing
	heldRank            // I32 [S, K]
	heldStarts          // I32 [E+1, 1]
	heldOutputs         // [S, K*H]: see outputs
	heldBalance         // F32 [1, E]: the sum of Args.Balance
)

// HeldValues implements Routed.
func (x Experts) HeldValues(hidden int) []Value {
	k := x.Route.TopK
	return []Value{
		heldLogits:   {Cols: x.Number, DType: tensor.F32},
		heldChoices:  {Cols: k, DType: tensor.I32},
		heldWeights:  {Cols: k, DType: tensor.F32},
		heldDWeights: {Cols: k, DType: tensor.F32},
		heldOrder:    {Cols: k, DType: tensor.I32},
		heldRank:     {Cols: k, DType: tensor.I32},
		heldStarts:   {Cols: 1, DType: tensor.I32, Rows: x.Number + 1, Whole: true},
		heldOutputs:  {Cols: k * hidden, Whole: true, Away: OutputsAway},
		heldBalance:  {Cols: when(x.Balance.Weight != 0, x.Number), DType: tensor.F32, Rows: 1, Whole: true},
	}
}

// outputs has a row for each choice of the step, and more where a pass that continues has fewer rows.
func (x Experts) outputs(p *Pass) device.Mat {
	all, k := p.Held(heldOutputs), x.Route.TopK
	return device.NewMat(all.Mem, all.DType, all.Rows*k, all.Cols/k)
}

// Open implements Routed: rows choose their experts. Logits are products of the activations' type, summed in fp32 and
// not rounded.
func (x Experts) Open(p *Pass, _ device.Mat) {
	logits := p.Held(heldLogits)
	p.Project(logits, p.norm, router, 1)
	if x.RouterBias {
		p.Cast(p.buf[biasNumbers], p.w.named(routerBias, 1))
		p.AddBias(logits, p.buf[biasNumbers])
	}
	p.Route(p.Held(heldChoices).Mem, p.Held(heldWeights), logits, p.constants, x.Route)
}

// OpenForward implements Routed: the shared expert adds its output.
func (x Experts) OpenForward(p *Pass, y device.Mat) {
	if x.Shared == 0 {
		return
	}
	for c := range chunks(y.Rows, p.chunk) {
		gateUp, act := x.shared(p, c)
		p.Project(gateUp, c.rows(p.norm), sharedGateUp, 2)
		p.GLU(act, gateUp, x.Activation)
		if x.SharedGate {
			x.gateShared(p, c, act, act)
		}
		p.MatMul(c.rows(y), act, p.w.named(sharedDown, 1), device.MatMulFlags{TransB: true, Accumulate: true})
	}
}

// gateShared multiplies what the shared expert's down reads by the gate, of a chunk, which is as good as its output:
// down is linear, and its inner columns are fewer. It returns the gate before its activation.
func (x Experts) gateShared(p *Pass, c chunk, to, act device.Mat) device.Mat {
	gate := p.buf[sharedScale].RowRange(0, c.n)
	p.Project(gate, c.rows(p.norm), sharedGate, 1)
	p.Gate(to, act, gate, device.SigmoidGate)
	return gate
}

// shared are gate and up of the shared expert, and what its down reads, of a chunk.
func (x Experts) shared(p *Pass, c chunk) (gateUp, act device.Mat) {
	return p.buf[callGateUp].RowRange(0, c.n).ColRange(0, 2*x.Shared), p.buf[callAct].RowRange(0, c.n).ColRange(0,
		x.Shared)
}

// sharedGrad is the backward of the shared expert, of a chunk: it adds the gradient of norm to sum.
func (x Experts) sharedGrad(p *Pass, c chunk, dy, sum device.Mat) {
	norm := c.rows(p.norm)
	gateUp, act := x.shared(p, c)
	p.Project(gateUp, norm, sharedGateUp, 2)
	if x.SharedGate {
		own := p.buf[sharedAct].RowRange(0, c.n)
		p.GLU(own, gateUp, x.Activation)
		gate := x.gateShared(p, c, act, own)
		p.WeightGrad(sharedDown, 1, dy, act)
		p.ProjectGrad(act, dy, sharedDown, 1)
		p.GateGrad(act, gate, act, own, gate, device.SigmoidGate)
		p.GLUGrad(gateUp, own, act, gateUp, x.Activation)
		p.WeightGrad(sharedGate, 1, gate, norm)
		p.MatMul(sum, gate, p.w.named(sharedGate, 1), device.MatMulFlags{Accumulate: true})
	} else {
		p.ProjectGrad(act, dy, sharedDown, 1)
		p.GLUGrad(gateUp, act, act, gateUp, x.Activation)
		p.WeightGrad(sharedDown, 1, dy, act)
	}
	p.WeightGrad(sharedGateUp, 2, gateUp, norm)
	p.MatMul(sum, gateUp, p.w.named(sharedGateUp, 2), device.MatMulFlags{Accumulate: true})
}

// call has the blocks of one call for a part's experts, and its memory.
type call struct {
	device.Blocks
	rows, dOut, gateUp, act device.Mat
	outputs                 device.Mat // of all choices
}

// routing returns the routing of all rows of the step.
func (x Experts) routing(p *Pass) device.Routing {
	return device.Routing{Rows: p.norm.Rows, TopK: x.Route.TopK, Experts: x.Number, Choices: p.Held(heldChoices).Mem,
		Order: p.Held(heldOrder).Mem, Rank: p.Held(heldRank).Mem, Starts: p.Held(heldStarts).Mem}
}

// calls runs do for as many calls as the worst case of a part has.
func (x Experts) calls(p *Pass, part int, do func(*call)) {
	b := device.Blocks{Routing: x.routing(p), First: x.FirstExpert(part), Experts: x.in(part),
		Rows: min(ExpertBlockRows, p.chunk)}
	most := b.Most()
	b.Count = min(p.call/b.Rows, most)
	n := b.Count * b.Rows
	c := &call{b, p.buf[callRows].RowRange(0, n), p.buf[callDOut].RowRange(0, n),
		p.buf[callGateUp].RowRange(0, n).ColRange(0, 2*x.Inner), p.buf[callAct].RowRange(0, n).ColRange(0, x.Inner),
		x.outputs(p).RowRange(0, b.Routing.Rows*b.Routing.TopK)}
	for ; c.From < most; c.From += c.Count {
		do(c)
	}
}

// The weights of a part, or their gradients, stacked by expert.

func (x Experts) gateUps(of Params, part int) device.Mat {
	return of.named(expertField(0, gateUpWeight), 2*x.in(part))
}

func (x Experts) downs(of Params, part int) device.Mat {
	return of.named(expertField(0, downWeight), x.in(part))
}

func (x Experts) gateUpBiases(of Params, part int) device.Mat {
	return byExpert(of.named(expertField(0, gateUpBias), 2*x.in(part)), x.in(part))
}

func (x Experts) downBiases(of Params, part int) device.Mat {
	return byExpert(of.named(expertField(0, downBias), x.in(part)), x.in(part))
}

// byExpert is one vector as a row for each expert.
func byExpert(v device.Mat, experts int) device.Mat {
	if v.IsZero() {
		return v
	}
	return device.NewMat(v.Mem, v.DType, experts, v.Cols/experts)
}

// gatedRows gathers a call's rows, and computes their gate and up.
func (x Experts) gatedRows(p *Pass, part int, c *call) {
	p.GatherRows(c.rows, p.norm, c.Blocks)
	p.ExpertMatMul(c.gateUp, c.rows, x.gateUps(p.w, part), x.gateUpBiases(p.w, part),
		device.ExpertProduct{Transposed: true}, c.Blocks)
}

// ForwardPart implements Routed.
func (x Experts) ForwardPart(p *Pass, part int) {
	if part == 0 {
		p.SortChoices(x.routing(p))
		x.tell(p)
	}
	x.calls(p, part, func(c *call) {
		x.gatedRows(p, part, c)
		p.ExpertGLU(c.act, c.gateUp, x.Activation, c.Blocks)
		p.ExpertMatMul(c.outputs, c.act, x.downs(p.w, part), x.downBiases(p.w, part),
			device.ExpertProduct{Transposed: true, Placed: true}, c.Blocks)
	})
}

// tell writes what people, and the load-balancing loss, want to know of the choices of the step.
func (x Experts) tell(p *Pass) {
	if p.loads.Len == 0 {
		return // a caller that asks for no loads, and has no such loss
	}
	counts := device.NewVec(p.loads, tensor.F32, x.Number)
	p.CountChoices(counts, x.routing(p), 1)
	if x.Balance.Weight == 0 {
		return
	}
	rows := float64(x.Balance.Blocks) * float64(p.stepRows)
	p.CountChoices(p.balance, x.routing(p), float32(float64(x.Balance.Weight)*float64(x.Number)/(rows*rows)))
	sums := device.NewVec(p.loads.Slice(counts.Len, counts.Len), tensor.F32, x.Number)
	p.Zero(sums.Mem)
	for c := range chunks(p.norm.Rows, p.chunk) {
		_, probabilities := x.chooseAll(p, c.rows(p.Held(heldLogits)))
		p.BiasGrad(sums, probabilities)
	}
}

// everyExpert is a routing of which each row chooses all experts, so that their weights are their probabilities.
func (x Experts) everyExpert() device.RouteSpec { return device.RouteSpec{TopK: x.Number, Scale: 1} }

// chooseAll returns the choice of all experts for some rows, and their probabilities.
func (x Experts) chooseAll(p *Pass, logits device.Mat) (choices device.Mem, probabilities device.Mat) {
	all, probabilities := p.buf[allExperts].RowRange(0, logits.Rows), p.buf[allWeights].RowRange(0, logits.Rows)
	p.Route(all.Mem, probabilities, logits, device.Mat{}, x.everyExpert())
	return all.Mem, probabilities
}

// balanceGrad adds to dlogits the gradient of the load-balancing loss, of which Held(heldBalance) is that of each row's
// probabilities.
func (x Experts) balanceGrad(p *Pass, dlogits, logits device.Mat) {
	choices, d := x.chooseAll(p, logits)
	p.Zero(d.Mem)
	p.AddBias(d, p.Held(heldBalance))
	own := p.buf[dBalance].RowRange(0, logits.Rows)
	p.RouteGrad(own, d, logits, choices, x.everyExpert())
	p.Add(dlogits, dlogits, own)
}

// Combine implements Routed.
func (x Experts) Combine(p *Pass, y device.Mat) {
	p.CombineRows(y, x.outputs(p), y, p.Held(heldWeights), p.Held(heldRank).Mem, x.Route.TopK)
}

// OpenBackward implements Routed. Parts read dy where it is: in dNorm, since the gradient of norm is written last.
func (x Experts) OpenBackward(*Pass, device.Mat) {}

// BackwardPart implements Routed. An expert that no row chose gets a gradient of zeros.
func (x Experts) BackwardPart(p *Pass, part int) {
	p.g.zero(p)
	if part == 0 {
		p.SortChoices(x.routing(p))
		if x.Balance.Weight != 0 {
			p.Zero(p.Held(heldBalance).Mem)
			p.BiasGrad(p.Held(heldBalance), p.balance)
		}
	}
	weights, dWeights, none := p.Held(heldWeights), p.Held(heldDWeights), device.Mat{}
	x.calls(p, part, func(c *call) {
		x.gatedRows(p, part, c)
		p.GatherRows(c.dOut, p.held.dNorm, c.Blocks)
		p.ExpertMatMul(c.act, c.dOut, x.downs(p.w, part), none, device.ExpertProduct{}, c.Blocks)
		p.ExpertGLUGrad(c.gateUp, c.act, dWeights, c.act, c.gateUp, weights, x.Activation, c.Blocks)
		if dw := x.downs(p.g, part); !dw.IsZero() {
			p.ExpertWeightGrad(dw, c.dOut, c.act, c.Blocks)
		}
		if x.Bias {
			p.ExpertBiasGrad(x.downBiases(p.g, part), dWeights, c.dOut, x.downBiases(p.w, part), weights, c.Blocks)
			if db := x.gateUpBiases(p.g, part); !db.IsZero() {
				p.ExpertBiasGrad(db, none, c.gateUp, none, none, c.Blocks)
			}
		}
		if dw := x.gateUps(p.g, part); !dw.IsZero() {
			p.ExpertWeightGrad(dw, c.gateUp, c.rows, c.Blocks)
		}
		p.ExpertMatMul(c.outputs, c.gateUp, x.gateUps(p.w, part), none, device.ExpertProduct{Placed: true}, c.Blocks)
	})
}

// CloseBackward implements Routed. On entry dNorm has dy.
func (x Experts) CloseBackward(p *Pass, _, _, dNorm device.Mat) {
	for c := range chunks(dNorm.Rows, p.chunk) {
		part := *p
		part.g = p.g.at(c)
		norm, dy := c.rows(p.norm), c.rows(dNorm)
		d, others := x.logitsGrad(p, c), p.buf[dNormOthers].RowRange(0, c.n)
		part.WeightGrad(router, 1, d, norm)
		if x.RouterBias {
			part.BiasGradient(routerBias, 1, d)
		}
		p.MatMul(others, d, p.w.named(router, 1), device.MatMulFlags{})
		if x.Shared > 0 {
			x.sharedGrad(&part, c, dy, others)
		}
		p.CombineRows(dy, x.outputs(p), others, device.Mat{}, c.rows(p.Held(heldRank)).Mem, x.Route.TopK)
	}
}

// logitsGrad is the gradient of a chunk's logits.
func (x Experts) logitsGrad(p *Pass, c chunk) device.Mat {
	d, logits := p.buf[dLogits].RowRange(0, c.n), c.rows(p.Held(heldLogits))
	p.RouteGrad(d, c.rows(p.Held(heldDWeights)), logits, c.rows(p.Held(heldChoices)).Mem, x.Route)
	if x.Balance.Weight != 0 {
		x.balanceGrad(p, d, logits)
	}
	return d
}
