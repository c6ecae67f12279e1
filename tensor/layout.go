package tensor

import (
	"fmt"
	"math"
)

// Align divides the first element of every tensor that is not glued to its predecessor. At two bytes per element it
// is 512 bytes: whole cache lines, vectors and GPU transactions for each kind of extent. 8-bit moments are quantized
// in blocks of the same length, so that a block holds elements of two tensors only where these are glued: of q, k and
// v, and of their biases, where a size is no multiple of 256.
const Align = 256

// MomentBlock is the number of elements that share a scale where moments are kept in 8 bits.
const MomentBlock = Align

// MomentBlock4 is the number where they are kept in 4 bits. In longer blocks more moments are far below the greatest,
// and such codes are coarse.
const MomentBlock4 = MomentBlock / 2

// Field asks for a tensor in a layout.
type Field struct {
	Name       string // its role inside the part, such as "q.weight"
	Shape      Shape
	Trainable  bool // a frozen tensor has no gradient and no optimizer state
	Decay      bool // weight decay applies
	ParamGroup int  // whose learning rate and decay it has; 0: those of the run
	// Glued puts the tensor directly after its predecessor, without padding, so that the two form one matrix
	// (Q, K and V; gate and up).
	Glued bool
}

// Placed is a field with its place.
type Placed struct {
	Field
	Elems int64 // product of Shape
	First int64 // first element in the weights extent
	State int64 // first element in the gradient and moment extents; -1 when frozen
}

// Layout is the place of every tensor inside the extents of one part. Offsets are counted in elements, since the
// extents of a part (weights, low halves, gradients, moments) have the same order and differ in element size only.
// Frozen tensors take space in weights and in no other extent. The padding between tensors holds zeros, always; of
// moments in codes it holds those of zero.
type Layout struct {
	Fields []Placed
	// WeightElems and StateElems are the lengths, padding included, multiples of Align: of the weights extent, and of
	// the gradient, low half and moment extents.
	WeightElems, StateElems int64
}

// NewLayout places the fields in order. It fails on an empty or repeated name and on a size that is absurd.
func NewLayout(fields ...Field) (*Layout, error) {
	l := &Layout{}
	seen := make(map[string]bool, len(fields))
	for i, f := range fields {
		n := f.Shape.Elems()
		switch {
		case f.Name == "" || seen[f.Name]:
			return nil, fmt.Errorf("layout: tensor name %q is empty or appears twice", f.Name)
		case n <= 0 || n > math.MaxInt64/64:
			return nil, fmt.Errorf("layout: tensor %q has shape %v", f.Name, f.Shape)
		case f.Glued && (i == 0 || fields[i-1].Trainable != f.Trainable || !fields[i-1].updatedAs(f)):
			return nil, fmt.Errorf("layout: tensor %q is glued to a neighbour that is trained otherwise", f.Name)
		}
		seen[f.Name] = true
		if !f.Glued {
			l.WeightElems, l.StateElems = alignUp(l.WeightElems), alignUp(l.StateElems)
		}
		p := Placed{Field: f, Elems: n, First: l.WeightElems, State: -1}
		l.WeightElems += n
		if f.Trainable {
			p.State = l.StateElems
			l.StateElems += n
		}
		l.Fields = append(l.Fields, p)
	}
	l.WeightElems, l.StateElems = alignUp(l.WeightElems), alignUp(l.StateElems)
	return l, nil
}

func alignUp(n int64) int64 { return (n + Align - 1) / Align * Align }

// Field finds a tensor by name.
func (l *Layout) Field(name string) (Placed, bool) {
	for _, p := range l.Fields {
		if p.Name == name {
			return p, true
		}
	}
	return Placed{}, false
}

// Params is the number of real parameters, padding not counted.
func (l *Layout) Params() (all, trainable int64) {
	for _, p := range l.Fields {
		all += p.Elems
		if p.Trainable {
			trainable += p.Elems
		}
	}
	return all, trainable
}

// updatedAs reports whether the settings of the optimizer are the same for two tensors.
func (f Field) updatedAs(other Field) bool {
	return f.Decay == other.Decay && f.ParamGroup == other.ParamGroup
}

// Stretch is a range of trainable elements that is contiguous in the weights and in the state extents, of one group and
// with one weight-decay rule: what one optimizer call covers.
type Stretch struct {
	First, State, Elems int64
	Decay               bool
	ParamGroup          int
}

// Stretches lists what the optimizer walks, in order, padding between their tensors included (it is zero and
// stays zero). Together they cover all trainable elements.
func (l *Layout) Stretches() []Stretch {
	var runs []Stretch
	for _, p := range l.Fields {
		if !p.Trainable {
			continue
		}
		if k := len(runs) - 1; k >= 0 {
			r := &runs[k]
			if r.Decay == p.Decay && r.ParamGroup == p.ParamGroup && p.First-r.First == p.State-r.State && p.State-(r.State+r.Elems) < Align {
				r.Elems = p.State + p.Elems - r.State
				continue
			}
		}
		runs = append(runs, Stretch{First: p.First, State: p.State, Elems: p.Elems, Decay: p.Decay, ParamGroup: p.ParamGroup})
	}
	return runs
}
