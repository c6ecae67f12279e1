package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Params are the weights or the gradients of one part of a model, in device memory. The zero Params stands for "none":
// all its matrices are the zero Mat, which as gradients means that the whole part is frozen.
type Params struct {
	Mem    device.Mem
	Layout *tensor.Layout
	DType  tensor.DType
	// Grad says that this is the gradient extent, which has no place for frozen tensors.
	Grad bool
	// Fresh says that gradients of matrices hold nothing yet: they are written and not added to. The rest has been
	// cleared.
	Fresh bool
}

// Weights views mem, the start of a weights extent, through its layout.
func Weights(mem device.Mem, l *tensor.Layout, t tensor.DType) Params {
	return Params{Mem: mem, Layout: l, DType: t}
}

// Gradients views mem, the start of an fp32 gradient extent, through its layout.
func Gradients(mem device.Mem, l *tensor.Layout) Params {
	return Params{Mem: mem, Layout: l, DType: tensor.F32, Grad: true}
}

// Mat is the tensor at an index of the layout: a vector as one row, a matrix as its shape says. It is the zero Mat for
// the gradient of a frozen tensor.
func (p Params) Mat(field int) device.Mat { return p.Glued(field, 1) }

// Glued returns n tensors that the layout glued together as one matrix: the rows (or a vector's elements) of one follow
// the rows of the one before.
func (p Params) Glued(field, n int) device.Mat {
	if p.Layout == nil {
		return device.Mat{}
	}
	f := &p.Layout.Fields[field]
	first := f.First
	if p.Grad {
		if first = f.State; first < 0 {
			return device.Mat{}
		}
	}
	rows, cols := 1, 0
	if len(f.Shape) == 2 {
		rows, cols = 0, f.Shape[1]
	}
	for _, g := range p.Layout.Fields[field : field+n] {
		if len(f.Shape) == 2 {
			rows += g.Shape[0]
		} else {
			cols += g.Shape[0]
		}
	}
	size := p.DType.Bytes()
	return device.NewMat(p.Mem.Slice(first*size, int64(rows)*int64(cols)*size), p.DType, rows, cols)
}

// named is the one matrix of n glued tensors of which the first one has this name. It is the zero Mat where the
// layout has none, and for the gradient of a frozen tensor.
func (p Params) named(name string, n int) device.Mat {
	if p.Layout == nil {
		return device.Mat{}
	}
	for i := range p.Layout.Fields {
		if p.Layout.Fields[i].Name == name {
			return p.Glued(i, n)
		}
	}
	return device.Mat{}
}
