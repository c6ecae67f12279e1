package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Letters of shapes in this file: c positions of a chunk, H the hidden width, I the inner one.
//
//	norm            [c, H]            the normed input, in backward then its gradient
//	h, dx           [c, H]            the residual stream that was normed, and its gradient
//	y, dy           [c, H]            output and its gradient
//	gate, up; down  [2*I, H]; [H, I]  weights; ungated there is one projection, up [I, H]

// GLU is a gated feed-forward: down(act(gate(x), up(x))), in the Llama family with silu(gate)*up; or with an ungated
// activation the plain one of two projections, down(act(up(x))). Sources: Shazeer, "GLU Variants Improve Transformer"
// (2020); Vaswani et al., "Attention Is All You Need" (2017).
type GLU struct {
	Inner      int  // columns of gate and of up
	Bias       bool // biases on gate, up and down
	Activation device.GLUSpec
}

// The tensors of a GLU. Gate and up are glued.
const (
	gateUpWeight, gateUpBias = "gate.weight", "gate.bias"
	upWeight, upBias         = "up.weight", "up.bias"
	downWeight, downBias     = "down.weight", "down.bias"
)

// projections are the first of the tensors that project the input, and the number of matrices.
func (g GLU) projections() (weight, bias string, n int) {
	if g.Activation.Ungated {
		return upWeight, upBias, 1
	}
	return gateUpWeight, gateUpBias, 2
}

// The buffers of a GLU.
const (
	gateUp = iota // [c, 2*I]: gate and up, then the gradient of both; [c, I] ungated
	act           // [c, I]: act(gate, up); in backward the gradient of it first
)

func (g GLU) Values(int) []Value {
	return []Value{
		gateUp: {Cols: g.Activation.Inputs() * g.Inner, Level: KeepGateUp, Lives: Scratch},
		act:    {Cols: g.Inner, Lives: Scratch},
	}
}

func (g GLU) Fields(hidden int) (fields []tensor.Field) {
	project := func(gate, up string, shape ...int) {
		if g.Activation.Ungated {
			fields = append(fields, param(up, shape...))
		} else {
			fields = append(fields, param(gate, shape...), glued(up, shape...))
		}
	}
	project(gateUpWeight, upWeight, g.Inner, hidden)
	fields = append(fields, param(downWeight, hidden, g.Inner))
	if g.Bias {
		project(gateUpBias, upBias, g.Inner)
		fields = append(fields, param(downBias, hidden))
	}
	return fields
}

func (g GLU) Forward(p *Pass, h, y device.Mat, last device.MatMulFlags) {
	p.Normalize(h)
	g.projectGateUp(p)
	p.GLU(p.buf[act], p.buf[gateUp], g.Activation)
	p.MatMul(y, p.buf[act], p.w.named(downWeight, 1), last)
	if g.Bias {
		p.AddBias(y, p.w.named(downBias, 1))
	}
}

// projectGateUp is gateUp = norm·Wgu^T + bias.
func (g GLU) projectGateUp(p *Pass) {
	weight, bias, n := g.projections()
	p.Project(p.buf[gateUp], p.norm, weight, n)
	if g.Bias {
		p.AddBias(p.buf[gateUp], p.w.named(bias, n))
	}
}

// backward has gateUp and the norm take their own gradients as soon as they were read last; act has its gradient first,
// and gets what down read in exchange.
func (g GLU) Backward(p *Pass, h, dy, dx device.Mat) {
	p.Normalize(h)
	if p.keep < KeepGateUp {
		g.projectGateUp(p)
	}
	p.ProjectGrad(p.buf[act], dy, downWeight, 1)
	p.GLUGrad(p.buf[gateUp], p.buf[act], p.buf[act], p.buf[gateUp], g.Activation)
	p.WeightGrad(downWeight, 1, dy, p.buf[act])
	if g.Bias {
		p.BiasGradient(downBias, 1, dy)
	}
	weight, bias, n := g.projections()
	p.WeightGrad(weight, n, p.buf[gateUp], p.norm)
	if g.Bias {
		p.BiasGradient(bias, n, p.buf[gateUp])
	}
	p.ProjectGrad(p.norm, p.buf[gateUp], weight, n)
	p.NormalizeGrad(h, dx)
}
