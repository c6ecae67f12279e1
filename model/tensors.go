package model

import (
	"cmp"
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

// modules are the modules of a block in the order in which transformers declares them.
var modules = []string{".q_proj.", ".k_proj.", ".v_proj.", ".o_proj.", ".q_norm.", ".k_norm.",
	".gate_proj.", ".up_proj.", ".down_proj.", ".input_layernorm.", ".post_attention_layernorm."}

// module is the index of the module that a block's tensor belongs to.
func module(name string) int {
	return slices.IndexFunc(modules, func(m string) bool { return strings.Contains(name, m) })
}
