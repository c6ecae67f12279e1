package gguf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// Type names a form in which a model is written as GGUF.
type Type string

// The forms. In all of them norms, biases, learned positions, routers and short convolutions are F32, and in those with
// blocks also what makes the rows of Gemma 4's layers.
const (
	F32  Type = "f32"
	BF16 Type = "bf16"
	F16  Type = "f16"
	Q8   Type = "q8_0"   // 8.5 bits for a weight
	Q4   Type = "q4_k_m" // about 4.9 bits for a weight
	// MXFP4 is of mixtures: 4.25 bits for a weight of an expert, and 8.5 for others.
	MXFP4 Type = "mxfp4"
)

// Types are all forms, the exact ones first.
var Types = []Type{F32, BF16, F16, Q8, Q4, MXFP4}

// fileType is general.file_type, which says to people what is inside (llama.cpp: enum llama_ftype).
func (t Type) fileType() uint32 {
	return map[Type]uint32{F32: 0, F16: 1, Q8: 7, Q4: 15, BF16: 32, MXFP4: 38}[t]
}

// typeOf chooses a tensor's type as llama.cpp's quantizer does without an importance matrix (llama-quant.cpp:
// llama_tensor_get_type_impl, tensor_type_fallback). Q4_K_M gives more bits to the value projection and the down
// projection of some layers and to the matrix of the head, and to attention, which is small, with eight experts; MXFP4
// has everything but experts in Q8_0. Rows that are not whole blocks get a type of smaller blocks.
func (m *decoder) typeOf(t Type, of model.Tensor) ggmlType {
	part := &m.Parts[of.Pieces[0].Part]
	role := part.Layout.Fields[of.Pieces[0].Field].Name
	_, name, isExpert := nn.ExpertField(role)
	if isExpert {
		role = name
	}
	hasBlocks := t == Q8 || t == Q4 || t == MXFP4
	if len(of.Shape) < 2 || role == "router.weight" || role == "delta.conv.weight" ||
		role == "shared_gate.weight" || role == "positions.weight" || strings.HasSuffix(role, ".bias") ||
		role == "layer_rows.project.weight" && hasBlocks {
		return ggmlF32
	}
	typ := map[Type]ggmlType{F32: ggmlF32, BF16: ggmlBF16, F16: ggmlF16, Q8: ggmlQ8_0, Q4: ggmlQ4_K,
		MXFP4: ggmlQ8_0}[t]
	if t == MXFP4 && isExpert && m.experts.Number > 1 {
		typ = ggmlMXFP4
	}
	isHead := part.Kind == model.HeadTile || m.Tied && (part.Kind == model.Embed || part.Kind == model.LayerEmbed)
	if t == Q4 {
		layer, layers := part.Layer-1, len(m.Blocks)
		more := part.Kind == model.Block && moreBits(layer, layers)
		// A tensor that is more than the value projection counts as that.
		isValue := slices.ContainsFunc(of.Pieces, func(p model.Piece) bool {
			name := m.Parts[p.Part].Layout.Fields[p.Field].Name
			return name == "v.weight" || name == "delta.v.weight"
		})
		if isValue {
			more = moreBits(m.valuesBefore(layer), m.valuesBefore(layers))
		}
		isDown := role == "down.weight" || role == "shared.down.weight"
		isOfEight := m.experts != nil && m.experts.Number == 8
		switch {
		case isOfEight && (isValue || role == "k.weight"):
			typ = ggmlQ8_0
		case isOfEight && role == "o.weight":
			typ = ggmlQ5_K
		case isHead || more && (isValue || isDown):
			typ = ggmlQ6_K
		case isValue && m.isNamed70B():
			typ = ggmlQ5_K
		}
	}
	columns := int64(of.Shape[len(of.Shape)-1])
	smaller := map[ggmlType]ggmlType{ggmlQ4_K: ggmlQ5_0, ggmlQ5_K: ggmlQ5_1, ggmlQ6_K: ggmlQ8_0}
	if q, _ := typ.quant(); columns%q.elems != 0 && smaller[typ] != 0 {
		typ = smaller[typ]
	}
	if q, _ := typ.quant(); columns%q.elems != 0 {
		typ = ggmlF16
	}
	return typ
}

// valuesBefore counts the layers before that one which have matrices that make values: llama.cpp numbers layers by
// them.
func (m *decoder) valuesBefore(layer int) (n int) {
	for _, b := range m.Blocks[:layer] {
		if a, ok := b.Mixer.(nn.Attention); !ok || !a.KeyIsValue && a.KV.Role != nn.KVTaken {
			n++
		}
	}
	return n
}

// moreBits reports whether a layer is in the first or last eighth, or every third of those between.
func moreBits(layer, layers int) bool {
	return layer < layers/8 || layer >= 7*layers/8 || (layer-layers/8)%3 == 2
}

// isNamed70B reports whether llama.cpp calls the model a 70B, whose value projections are small compared with the rest.
func (m *decoder) isNamed70B() bool {
	return len(m.Blocks) == 80 && (m.Architecture == "qwen2" || m.KVHeads != m.Heads && m.Architecture == "llama")
}

// ParseType reads a form that a model can be written in.
func ParseType(s string) (Type, error) {
	if t := Type(strings.ToLower(s)); slices.Contains(Types, t) {
		return t, nil
	}
	return "", fmt.Errorf("dtype is %q: use f32, bf16, f16, q8_0 or q4_k_m for a GGUF file, or mxfp4 for the "+
		"experts of a mixture", s)
}
