package gguf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// decoder has the description of a model in a GGUF file.
type decoder struct {
	*model.Model
	nn.Attention             // of every block
	experts      *nn.Experts // of every block; nil: the blocks are dense
	config       *hf.Config
	form         *model.Form
}

// maxExperts is how many experts llama.cpp has at most (LLAMA_MAX_EXPERTS).
const maxExperts = 1024

// describe finds what a file says of a model, if llama.cpp knows its family.
func describe(c *hf.Config, m *model.Model) (d *decoder, err error) {
	r := c.Reader()
	d = &decoder{Model: m, config: c}
	if m.Architecture == "" {
		r.Fail("model_type",
			"a GGUF file is written of llama, mistral, mixtral, qwen2, qwen3 and qwen3_moe only: "+
				"use the Hugging Face directory")
		return nil, r.Err()
	}
	d.Attention = m.Blocks[0].Mixer.(nn.Attention)
	switch {
	case strings.HasPrefix(m.Architecture, "qwen3") && d.OutBias:
		r.Fail("attention_bias", "llama.cpp has no such biases for %s: use the Hugging Face directory", m.Architecture)
	case m.Architecture != "llama" && d.Rope.Kind == nn.RopeLlama3:
		r.Fail("model_type", "llama.cpp has the llama3 kind of rope scaling for llama only: use the Hugging Face directory")
	}
	if k := d.Rope.Kind; k == nn.RopeYaRN || k == nn.RopeLong {
		r.Fail("model_type", "GGUF files are not written of models with %v: use the Hugging Face directory", k)
	}
	d.readExperts(r)
	if r.Err() != nil {
		return nil, r.Err()
	}
	d.form, err = m.GGUF()
	return d, err
}

// readExperts finds the experts, and fails if llama.cpp cannot have them. Source: its src/models/qwen3moe.cpp and
// llama.cpp, which load experts of every layer and call build_moe_ffn with norm_w set.
func (m *decoder) readExperts(r *hf.ConfigReader) {
	for _, b := range m.Blocks {
		if x, ok := b.FeedForward.(nn.Experts); ok {
			m.experts = &x
		} else if m.Architecture == "qwen3moe" {
			key := "decoder_sparse_step"
			if len(r.IntsOr("mlp_only_layers", nil)) > 0 {
				key = "mlp_only_layers"
			}
			r.Fail(key, "a layer has no experts, and llama.cpp needs them in every layer of qwen3moe: "+
				"use the Hugging Face directory")
			return
		}
	}
	switch x := m.experts; {
	case x == nil:
	case !x.Route.Renormalize:
		r.Fail("norm_topk_prob", "in llama.cpp the weights of a token's experts always add up to 1: "+
			"use the Hugging Face directory")
	case x.Number > maxExperts:
		r.Fail("model_type", "a layer has %d experts, and llama.cpp has at most %d: use the Hugging Face directory",
			x.Number,
			maxExperts)
	}
}

// metadata reads the keys of the architecture. The source of the keys, and of which are left out, is llama.cpp's
// convert_hf_to_gguf.py (TextModel.set_gguf_parameters, LlamaModel).
func (m *decoder) metadata() []metaEntry {
	var all []metaEntry
	arch := m.Architecture
	add := func(key string, value any) { all = append(all, metaEntry{arch + "." + key, value}) }
	size := func(key string, n int) { add(key, uint32(n)) }
	float := func(key string, x float64) { add(key, float32(x)) }
	size("block_count", len(m.Blocks))
	size("context_length", m.MaxPositions)
	size("embedding_length", m.Hidden)
	size("feed_forward_length", m.config.Reader().Size("intermediate_size"))
	size("attention.head_count", m.Heads)
	size("attention.head_count_kv", m.KVHeads)
	float("rope.freq_base", m.Rope.Theta)
	add("attention.layer_norm_rms_epsilon", m.Head.Eps)
	if m.HeadDim*m.Heads != m.Hidden || m.config.Reader().Has("head_dim") {
		size("attention.key_length", m.HeadDim)
		size("attention.value_length", m.HeadDim)
	}
	if m.experts != nil {
		size("expert_count", m.experts.Number)
		size("expert_used_count", m.experts.Route.TopK)
		if arch == "qwen3moe" {
			size("expert_feed_forward_length", m.experts.Inner)
		}
	}
	switch {
	case m.Rope.Kind == nn.RopeLinear:
		add("rope.scaling.type", "linear")
		float("rope.scaling.factor", m.Rope.Factor)
	case m.Rope.Kind == nn.RopeLlama3 && m.Rope.OriginalPositions != llama3Positions:
		// The tensor says all; this is for those who want the parameters back.
		size("rope.scaling.original_context_length", m.Rope.OriginalPositions)
	}
	if arch == "llama" {
		size("vocab_size", m.Vocab)
		size("rope.dimension_count", m.HeadDim)
	}
	return all
}

// Type names a form in which a model is written as GGUF.
type Type string

// The forms. In all of them tensors of one dimension and routers are F32.
const (
	F32  Type = "f32"
	BF16 Type = "bf16"
	F16  Type = "f16"
	Q8   Type = "q8_0"   // 8.5 bits for a weight
	Q4   Type = "q4_k_m" // about 4.9 bits for a weight
)

// Types are all forms, the exact ones first.
var Types = []Type{F32, BF16, F16, Q8, Q4}

// fileType is general.file_type, which says to people what is inside (llama.cpp: enum llama_ftype).
func (t Type) fileType() uint32 {
	return map[Type]uint32{F32: 0, F16: 1, Q8: 7, Q4: 15, BF16: 32}[t]
}

// typeOf chooses a tensor's type as llama.cpp's quantizer does without an importance matrix (llama-quant.cpp:
// llama_tensor_get_type_impl, tensor_type_fallback). Q4_K_M gives more bits to the value projection and the down
// projection of some layers and to the matrix of the head, and to attention, which is small, with eight experts; rows
// that are not whole blocks get a type of smaller blocks.
func (m *decoder) typeOf(t Type, of model.Tensor) ggmlType {
	part := &m.Parts[of.Pieces[0].Part]
	role := part.Layout.Fields[of.Pieces[0].Field].Name
	if _, name, ok := nn.ExpertField(role); ok {
		role = name
	}
	if len(of.Shape) < 2 || role == "router.weight" {
		return ggmlF32
	}
	typ := map[Type]ggmlType{F32: ggmlF32, BF16: ggmlBF16, F16: ggmlF16, Q8: ggmlQ8_0,
		Q4: ggmlQ4_K}[t]
	isHead := part.Kind == model.HeadTile || part.Kind == model.Embed && m.Tied
	if t == Q4 {
		more := part.Kind == model.Block && moreBits(part.Layer-1, len(m.Blocks))
		isValue, isDown := role == "v.weight", role == "down.weight"
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
	if q, _ := typ.quant(); columns%q.elems != 0 {
		typ = map[ggmlType]ggmlType{ggmlQ4_K: ggmlQ5_0, ggmlQ5_K: ggmlQ5_1, ggmlQ6_K: ggmlQ8_0, ggmlQ8_0: ggmlF16}[typ]
	}
	if q, _ := typ.quant(); columns%q.elems != 0 {
		typ = ggmlF16
	}
	return typ
}

// moreBits reports whether a layer is in the first or last eighth, or every third of those between.
func moreBits(layer, layers int) bool {
	return layer < layers/8 || layer >= 7*layers/8 || (layer-layers/8)%3 == 2
}

// isNamed70B reports whether llama.cpp calls the model a 70B, whose value projections are small compared with the rest.
func (m *decoder) isNamed70B() bool {
	return len(m.Blocks) == 80 && (m.Architecture == "qwen2" || m.KVHeads != m.Heads && m.Architecture == "llama")
}

// sizeLabel is general.size_label: of a mixture the experts, and the parameters that one expert has with what is
// shared, such as 8x7.2B.
func (m *decoder) sizeLabel() string {
	params, _ := m.Params()
	if m.experts == nil {
		return SizeLabel(params)
	}
	each := 3 * int64(len(m.Blocks)) * int64(m.Hidden) * int64(m.experts.Inner)
	return fmt.Sprintf("%dx%s", m.experts.Number, SizeLabel(params-int64(m.experts.Number-1)*each))
}

// SizeLabel says how many parameters a model has as llama.cpp does: two digits at least, such as 135M, 1.2B or 70B.
func SizeLabel(params int64) string {
	scaled, suffix := float64(params)/1e3, "K"
	switch {
	case params > 1e12:
		scaled, suffix = float64(params)/1e12, "T"
	case params > 1e9:
		scaled, suffix = float64(params)/1e9, "B"
	case params > 1e6:
		scaled, suffix = float64(params)/1e6, "M"
	}
	whole := strconv.FormatFloat(scaled, 'f', 0, 64)
	digits := max(0, 2-len(whole))
	if whole == "0" {
		digits = 2
	}
	return strconv.FormatFloat(scaled, 'f', digits, 64) + suffix
}

// ParseType reads a form that a model can be written in.
func ParseType(s string) (Type, error) {
	if t := Type(strings.ToLower(s)); slices.Contains(Types, t) {
		return t, nil
	}
	return "", fmt.Errorf("dtype is %q: use f32, bf16, f16, q8_0 or q4_k_m for a GGUF file", s)
}
