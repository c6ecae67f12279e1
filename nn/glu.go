package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// GLU is the feed-forward of the Llama family: down(silu(gate(x)) * up(x)). Source: Shazeer, "GLU Variants Improve
// Transformer" (2020).
type GLU struct {
	Inner int  // columns of gate and of up
	Bias  bool // biases on gate, up and down
}

// The tensors of a GLU. Gate and up are glued.
const (
	gateUpWeight, gateUpBias = "mlp.gate_proj.weight", "mlp.gate_proj.bias"
	downWeight, downBias     = "mlp.down_proj.weight", "mlp.down_proj.bias"
)

// The buffers of a GLU.
const (
	gateUp = iota // [c, 2*Inner]: gate and up, then the gradient of both
	act           // [c, Inner]: silu(gate)*up; in backward the gradient of it first
)

func (g GLU) buffers() []buffer {
	return []buffer{
		gateUp: {cols: 2 * g.Inner, kept: KeepGateUp, lives: scratch},
		act:    {cols: g.Inner, lives: scratch},
	}
}

func (g GLU) fields(hidden int) []tensor.Field {
	fields := []tensor.Field{
		param(gateUpWeight, g.Inner, hidden), glued("mlp.up_proj.weight", g.Inner, hidden),
		param(downWeight, hidden, g.Inner),
	}
	if g.Bias {
		fields = append(fields, param(gateUpBias, g.Inner), glued("mlp.up_proj.bias", g.Inner), param(downBias, hidden))
	}
	return fields
}

func (g GLU) forward(p *pass, h, y device.Mat, last device.MatMulFlags) {
	p.normalize(h)
	g.projectGateUp(p)
	p.SwiGLU(p.buf[act], p.buf[gateUp])
	p.MatMul(y, p.buf[act], p.w.named(downWeight, 1), last)
	if g.Bias {
		p.AddBias(y, p.w.named(downBias, 1))
	}
}

// projectGateUp is gateUp = norm·Wgu^T + bias.
func (g GLU) projectGateUp(p *pass) {
	p.project(p.buf[gateUp], p.norm, gateUpWeight, 2)
	if g.Bias {
		p.AddBias(p.buf[gateUp], p.w.named(gateUpBias, 2))
	}
}

// backward has gateUp and the norm take their own gradients as soon as they were read last; act has its gradient first,
// and gets what down read in exchange.
func (g GLU) backward(p *pass, h, dx device.Mat) {
	p.normalize(h)
	if p.keep < KeepGateUp {
		g.projectGateUp(p)
	}
	p.projectGrad(p.buf[act], dx, downWeight, 1)
	p.SwiGLUGrad(p.buf[gateUp], p.buf[act], p.buf[act], p.buf[gateUp])
	p.weightGrad(downWeight, 1, dx, p.buf[act])
	if g.Bias {
		p.biasGrad(downBias, 1, dx)
	}
	p.weightGrad(gateUpWeight, 2, p.buf[gateUp], p.norm)
	if g.Bias {
		p.biasGrad(gateUpBias, 2, p.buf[gateUp])
	}
	p.projectGrad(p.norm, p.buf[gateUp], gateUpWeight, 2)
	p.normalizeGrad(h, dx)
}

func (g GLU) flops(hidden, t int, _ int64) (forward, backward int64, recompute [Keeps]int64) {
	product := 2 * int64(t) * int64(hidden) * int64(g.Inner) // gate, up and down are one each
	recompute = [Keeps]int64{KeepInput: 2 * product, KeepAttention: 2 * product}
	return 3 * product, 6 * product, recompute
}

func (g GLU) ops(chunks int) (forward, backward int, recompute [Keeps]int) {
	project := 1 + when(g.Bias, 1)
	again := chunks * project
	return chunks * (1 + project + 1 + 1 + when(g.Bias, 1)), chunks * (7 + when(g.Bias, 2)),
		[Keeps]int{KeepInput: again, KeepAttention: again}
}

func (g GLU) elementTraffic(hidden int, keep Keep) (forward, backward int) {
	norm, normGrad := normTraffic(hidden)
	project := when(g.Bias, twice*2*g.Inner)
	const swiglu = 3 // gate, up, y
	forward = norm + project + swiglu*g.Inner + when(g.Bias, twice*hidden)
	backward = norm + when(g.Bias, once*hidden) + 6*g.Inner + when(g.Bias, once*2*g.Inner) + normGrad +
		when(keep < KeepGateUp, project)
	return forward, backward
}
