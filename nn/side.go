package nn

import (
	"slices"

	"github.com/millrace/millrace/device"
)

// The problem. Blocks pass on the residual stream, and nothing else: that is why a step can fetch one block at a
// time, and why the plan knows a block's input as the only thing that crosses its border. Some models are not like
// that. Blocks of Gemma 4 use keys and values of a block before them, and all of them read rows of a second
// embedding.
//
// The obvious answer widens the residual stream by such columns. Then each block between the maker and the last
// reader saves them with its input, although one copy would do, and moves gradients of them that are not its own.
//
// The answer here: a side. A half lists the sides that it makes or reads ([Sided]); the plan gives each of them
// memory for the rows of all micro-batches, and visits find it in [Args.Sides]. On the way up the maker writes it,
// and later blocks read it. On the way down the readers come first: the last block's gradient is written, those of
// the blocks before it are added, in the order of blocks and in the type of activations, as is that of the residual
// stream. The maker finds the sum. The order follows from the model alone, so no placement changes a bit.

// Side is a matrix of rows besides the residual stream, as a half of a block sees it: [T, Cols], in the type of
// activations.
type Side struct {
	Number int // of the side in the model, from 0
	Cols   int // columns that the half sees
	// Makes says that the half writes the side on the way up. On the way down it finds the gradient there and may
	// change it: what is left belongs to the embedding that has written the side before, if one has.
	Makes bool
	// Sliced says that each block reads columns of its own: those of the first block come first. A half that makes the
	// side sees those of all blocks. The gradient takes the value's place.
	Sliced bool
}

// Sided is a half with sides.
type Sided interface {
	Half
	Sides() []Side
}

// SideRows are the rows of a side for one micro-batch, in columns that the half sees.
type SideRows struct {
	Value device.Mat // [T, Cols]
	// Grad is the gradient, in visits on the way down: [T, Cols]. It is Value where the side is Sliced: a half has read
	// rows before it writes their gradient.
	Grad  device.Mat
	Fresh bool // Grad holds nothing yet: this half is the first on the way down that writes it
}

// Sides lists the sides of the mixer, of the feed-forward and of the rows of the layer, in this order.
func (d *Block) Sides() []Side {
	return slices.Concat(sidesOf(d.Mixer), sidesOf(d.FeedForward), sidesOf(d.PerLayer))
}

func sidesOf(h Half) []Side {
	if s, ok := h.(Sided); ok {
		return s.Sides()
	}
	return nil
}

// Columns are some columns of the side.
func (r SideRows) Columns(first, n int) SideRows {
	return r.cut(func(m device.Mat) device.Mat { return m.ColRange(first, n) })
}

// cut has a part of the value and of its gradient.
func (r SideRows) cut(part func(device.Mat) device.Mat) SideRows {
	if !r.Value.IsZero() {
		r.Value = part(r.Value)
	}
	if !r.Grad.IsZero() {
		r.Grad = part(r.Grad)
	}
	return r
}

// Side is one of the half's sides, by its index.
func (p *Pass) Side(i int) SideRows { return p.sides[i] }

// AddSideGradient adds a gradient to that of a side which the half reads, or writes it there if it is the first one.
func (p *Pass) AddSideGradient(i int, d device.Mat) {
	if s := p.sides[i]; s.Fresh {
		p.Scale(s.Grad, d, 1)
	} else {
		p.Add(s.Grad, s.Grad, d)
	}
}
