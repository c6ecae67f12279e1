package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/tensor"
)

// Tensor is a tensor of a checkpoint and the pieces that make it up, in the order of its rows.
type Tensor struct {
	Name   string
	Shape  tensor.Shape
	Pieces []Piece
}

// Piece is one field of one part.
type Piece struct {
	Part, Field int
}

// Tensors are all tensors of the model in the order in which transformers numbers its parameters, which is the order of
// exported files. A tied head is not among them.
func (m *Model) Tensors() []Tensor {
	var all []Tensor
	for i := range m.Parts {
		p := &m.Parts[i]
		first := len(all)
		for _, src := range p.Tensors {
			piece := Piece{Part: i, Field: src.Field}
			if src.FirstRow > 0 { // the rest of a tensor whose first tile is in the part before
				last := &all[len(all)-1]
				last.Pieces = append(last.Pieces, piece)
				continue
			}
			all = append(all, Tensor{Name: src.HFName, Shape: src.HFShape, Pieces: []Piece{piece}})
		}
		if p.Kind == Block {
			// Stable: in the layout and in transformers, a module's weight stands before its bias.
			slices.SortStableFunc(all[first:], func(a, b Tensor) int { return cmp.Compare(module(a.Name), module(b.Name)) })
		}
	}
	return all
}

// ReadTensor returns a tensor of the model by its name, row by row. read returns the values of a part, which need to be
// valid until its next call.
func (m *Model) ReadTensor(name string, read func(part int) (Values, error)) ([]float32, error) {
	all := m.Tensors()
	i := slices.IndexFunc(all, func(t Tensor) bool { return t.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("the model has no tensor %.200q; Model.Tensors lists the names", name)
	}
	values := make([]float32, 0, all[i].Shape.Elems())
	for _, piece := range all[i].Pieces {
		v, err := read(piece.Part)
		if err != nil {
			return nil, err
		}
		f := &m.Parts[piece.Part].Layout.Fields[piece.Field]
		values = values[:int64(len(values))+f.Elems]
		v.Elems(f, 0, values[int64(len(values))-f.Elems:])
	}
	return values, nil
}

// modules are the modules of a block in the order in which transformers declares them.
var modules = []string{".q_proj.", ".k_proj.", ".v_proj.", ".o_proj.", ".q_norm.", ".k_norm.",
	".gate_proj.", ".up_proj.", ".down_proj.", ".input_layernorm.", ".post_attention_layernorm."}

// module is the index of the module that a block's tensor belongs to.
func module(name string) int {
	return slices.IndexFunc(modules, func(m string) bool { return strings.Contains(name, m) })
}
