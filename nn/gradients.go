package nn

import (
	"iter"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// A gradient is summed over the chunks of all micro-batches. Matrices get theirs from products, which can write what
// they would else be added to: so the first chunk's overwrite ([Params.Fresh]), and clearing, which would move 8
// bytes for each parameter in a step, is left to what no product writes: vectors, and what fills the extent between
// tensors.

// notWritten yields the ranges of elements of a gradient extent that belong to no matrix: the first element, and one
// past the last.
func notWritten(l *tensor.Layout) iter.Seq2[int64, int64] {
	return func(yield func(first, end int64) bool) {
		at := int64(0)
		for _, f := range l.Fields {
			if f.State < 0 || len(f.Shape) != 2 {
				continue
			}
			if f.State > at && !yield(at, f.State) {
				return
			}
			at = f.State + f.Elems
		}
		if at < l.StateElems {
			yield(at, l.StateElems)
		}
	}
}

// ClearedBytes counts the bytes that [Params.Clear] writes to an fp32 gradient of this layout.
func ClearedBytes(l *tensor.Layout) int64 {
	n := int64(0)
	for first, end := range notWritten(l) {
		n += (end - first) * tensor.F32.Bytes()
	}
	return n
}

// Clear zeroes the elements that the first chunk adds to. It leaves the others to the first chunk, which overwrites
// them if it is given a fresh gradient.
func (p Params) Clear(s device.Stream) {
	if p.Layout == nil {
		return
	}
	size := p.DType.Bytes()
	for first, end := range notWritten(p.Layout) {
		s.Zero(p.Mem.Slice(first*size, (end-first)*size))
	}
}

// zero clears all of a gradient.
func (p Params) zero(s device.Stream) {
	if p.Layout != nil {
		s.Zero(p.Mem.Slice(0, p.Layout.StateElems*p.DType.Bytes()))
	}
}

// empty has a gradient that is fresh hold that of no rows: its matrices become zeros.
func (p Params) empty(s device.Stream) {
	if !p.Fresh || p.Layout == nil {
		return
	}
	size := p.DType.Bytes()
	for _, f := range p.Layout.Fields {
		if f.State >= 0 && len(f.Shape) == 2 {
			s.Zero(p.Mem.Slice(f.State*size, f.Elems*size))
		}
	}
}

// at is the gradient as a chunk finds it: fresh for the first one only.
func (p Params) at(c chunk) Params {
	p.Fresh = p.Fresh && c.first == 0
	return p
}
