package nn

import (
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Letters of shapes in this file: c positions of a chunk, H the hidden width, I the columns of a layer's rows, L the
// layers.
//
//	x, dx      [c, H]       the token's embedding, which is the first block's input, and its gradient
//	h, y       [c, H]       the residual stream before and after the layer's rows have been added
//	rows       [c, I]       of the layer, in a side; [c, L*I] of all layers
//	gateRows   [c, 2*I]     the gate of h, and the layer's rows; in backward their gradients
//	act        [c, I]       act(gate, rows); in backward the gradient of it first
//	out        [c, H]       down(act)
//	all        [c, L*I]     the projection of x for all layers
//
//	gate; down [I, H]; [H, I]    weights
//	project    [L*I, H]          weights, of the first block alone

// PerLayer adds to the output of a block what rows of a second embedding say, of which each layer has columns of its
// own:
//
//	y = h + norm(down(act(gate(h), rows)))
//
// The first block has the rows of all layers made of what the second embedding has for a token and of a projection of
// its first one: rows = (norm(project(x)/sqrt(H)) + rows)/sqrt(2), each layer's columns normed by themselves with one
// weight. Source: Google, Gemma 3n (2025) and Gemma 4 (2026); transformers, modeling_gemma4.py.
type PerLayer struct {
	Inner      int // columns of a layer's rows; 0: the block has none of this
	Layers     int // of the first block: the number of layers whose rows it makes; else 0
	Activation device.GLUSpec
	Number     int // of the side that has the rows
}

// The tensors of a block's rows.
const (
	perLayerProject     = "layer_rows.project.weight" // of the first block
	perLayerProjectNorm = "layer_rows.project_norm.weight"
	perLayerGate        = "layer_rows.gate.weight"
	perLayerDown        = "layer_rows.down.weight"
	perLayerNorm        = "layer_rows.norm.weight"
)

// The buffers of a block's rows.
const (
	plGateRows  = iota // [c, 2*I]
	plAct              // [c, I]
	plOut              // [c, H]
	plStat             // F32 [c, 1], of the norm of out
	plStream           // [c, H]: h, in backward
	plAll              // [c, L*I]
	plAllNormed        // [c, L*I]; in backward the gradient of all
	plAllRstd          // F32 [c, L]
)

func (l PerLayer) Fields(hidden int) []tensor.Field {
	if l.Inner == 0 {
		return nil
	}
	fields := []tensor.Field{param(perLayerGate, l.Inner, hidden), param(perLayerDown, hidden, l.Inner),
		param(perLayerNorm, hidden)}
	if l.Layers > 0 {
		fields = append(fields, param(perLayerProject, l.Layers*l.Inner, hidden), param(perLayerProjectNorm, l.Inner))
	}
	return fields
}

func (l PerLayer) Values(hidden int) []Value {
	if l.Inner == 0 {
		return nil
	}
	return []Value{
		plGateRows:  {Cols: 2 * l.Inner, Lives: Scratch},
		plAct:       {Cols: l.Inner, Lives: Scratch},
		plOut:       {Cols: hidden, Lives: Scratch},
		plStat:      {Cols: 1, DType: tensor.F32, Lives: Scratch},
		plStream:    {Cols: hidden, Lives: Scratch},
		plAll:       {Cols: l.Layers * l.Inner, Lives: Scratch},
		plAllNormed: {Cols: l.Layers * l.Inner, Lives: Scratch},
		plAllRstd:   {Cols: l.Layers, DType: tensor.F32, Lives: Scratch},
	}
}

// Sides implements Sided: first the layer's rows, then those of all layers.
func (l PerLayer) Sides() []Side {
	if l.Inner == 0 {
		return nil
	}
	sides := []Side{{Number: l.Number, Cols: l.Inner, Sliced: true}}
	if l.Layers > 0 {
		sides = append(sides, Side{Number: l.Number, Cols: l.Layers * l.Inner, Makes: true, Sliced: true})
	}
	return sides
}

// allNorm is the norm of the projection for all layers, which is not divided by sqrt(H) here: Eps is larger instead.
func (l PerLayer) allNorm(p *Pass, hidden int) device.NormSpec {
	return Norm{Eps: p.normed.Eps * float32(hidden), Offset: p.normed.Offset}.of(l.Layers)
}

// project computes all and its norm.
func (l PerLayer) project(p *Pass, x device.Mat) {
	p.Project(p.buf[plAll], x, perLayerProject, 1)
	w := p.w.named(perLayerProjectNorm, 1)
	p.RMSNorm(p.buf[plAllNormed], p.buf[plAllRstd], p.buf[plAll], w, l.allNorm(p, x.Cols))
}

// makeRows makes the rows of all layers, of a chunk.
func (l PerLayer) makeRows(p *Pass, x device.Mat) {
	l.project(p, x)
	rows := p.Side(1).Value
	p.Add(rows, rows, p.buf[plAllNormed])
	p.Scale(rows, rows, math.Sqrt2/2)
}

// makeRowsGrad adds to dx the gradient that comes through the rows of all layers, and leaves in these that of what the
// second embedding has for the tokens.
func (l PerLayer) makeRowsGrad(p *Pass, x, dx device.Mat) {
	d := p.Side(1).Grad
	p.Scale(d, d, math.Sqrt2/2)
	l.project(p, x)
	dAll := p.buf[plAllNormed]
	p.RMSNormGrad(dAll, p.g.named(perLayerProjectNorm, 1), d, p.buf[plAll], p.w.named(perLayerProjectNorm, 1),
		p.buf[plAllRstd], device.Mat{}, l.allNorm(p, x.Cols))
	p.WeightGrad(perLayerProject, 1, dAll, x)
	p.MatMul(dx, dAll, p.w.named(perLayerProject, 1), device.MatMulFlags{Accumulate: true})
}

// forward adds the layer's rows to a chunk of the residual stream.
func (l PerLayer) forward(p *Pass, y device.Mat) {
	l.normedOut(p, y)
	p.Add(y, y, p.norm)
}

// normedOut writes to p.norm what is added to h.
func (l PerLayer) normedOut(p *Pass, h device.Mat) {
	gate, rows := l.halves(p)
	p.Project(gate, h, perLayerGate, 1)
	p.Scale(rows, p.Side(0).Value, 1)
	p.GLU(p.buf[plAct], p.buf[plGateRows], l.Activation)
	p.Project(p.buf[plOut], p.buf[plAct], perLayerDown, 1)
	p.normed.apply(p, p.norm, p.buf[plStat], p.buf[plOut], p.w, perLayerNorm)
}

// halves are the columns of gateRows.
func (l PerLayer) halves(p *Pass) (gate, rows device.Mat) {
	m := p.buf[plGateRows]
	return m.ColRange(0, l.Inner), m.ColRange(l.Inner, l.Inner)
}

// backward turns dx, of a chunk, from the gradient of y into that of h, and writes the gradient of the layer's rows.
func (l PerLayer) backward(p *Pass, h, dx device.Mat) {
	l.normedOut(p, h)
	act, gateRows, dOut := p.buf[plAct], p.buf[plGateRows], p.norm
	p.normed.grad(p, dOut, dx, p.buf[plOut], p.buf[plStat], device.Mat{}, p.w, p.g, perLayerNorm)
	p.WeightGrad(perLayerDown, 1, dOut, act)
	p.ProjectGrad(act, dOut, perLayerDown, 1)
	p.GLUGrad(gateRows, act, act, gateRows, l.Activation)
	dGate, dRows := l.halves(p)
	p.AddSideGradient(0, dRows)
	p.WeightGrad(perLayerGate, 1, dGate, h)
	p.MatMul(dx, dGate, p.w.named(perLayerGate, 1), device.MatMulFlags{Accumulate: true})
}
