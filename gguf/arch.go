package gguf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/tensor"
)

// describe reads the config.json of a model whose family llama.cpp knows. Another package has checked the config:
// here it is read for what a GGUF file says.
func describe(c *hf.Config) (m *decoder, arch string, err error) {
	r := c.Reader()
	arch = r.StringOr("model_type", "")
	if !slices.Contains([]string{"llama", "mistral", "qwen2", "qwen3"}, arch) {
		r.Fail("model_type",
			"a GGUF file is written of llama, mistral, qwen2 and qwen3 only: use the Hugging Face directory")
	}
	if r.Err() != nil {
		return nil, "", r.Err()
	}
	modelType := arch
	if arch == "mistral" { // llama.cpp has one architecture for the two
		arch = "llama"
	}
	m = &decoder{family: families[arch]}
	m.modelType = modelType
	m.layers, m.hidden, m.intermediate = r.Size("num_hidden_layers"), r.Size("hidden_size"), r.Size("intermediate_size")
	m.heads = r.Size("num_attention_heads")
	m.kvHeads = r.SizeOr("num_key_value_heads", m.heads)
	m.vocab, m.positions = r.Size("vocab_size"), r.Size("max_position_embeddings")
	if r.Err() != nil {
		return nil, "", r.Err()
	}
	m.headDim = m.hidden / m.heads
	if modelType == "qwen3" {
		m.headDim = 128
	}
	m.headDim = r.SizeOr("head_dim", m.headDim)
	m.eps = shortestF32(r.FloatOr("rms_norm_eps", 1e-6))
	m.rope = r.Rope(10000)
	m.theta = shortestF32(m.rope.Theta)
	m.tied = r.BoolOr("tie_word_embeddings", false)
	m.attentionBias = modelType != "qwen2" && modelType != "mistral" && r.BoolOr("attention_bias", false)
	m.mlpBias = modelType == "llama" && r.BoolOr("mlp_bias", false)
	switch {
	case r.Err() != nil:
	case modelType == "qwen3" && m.attentionBias:
		r.Fail("attention_bias", "llama.cpp has no such biases for qwen3: use the Hugging Face directory")
	case arch != "llama" && m.rope.Type == "llama3":
		r.Fail("model_type", "llama.cpp has the llama3 kind of rope scaling for llama only: use the Hugging Face directory")
	}
	return m, arch, r.Err()
}

// metadata is what the keys of the architecture say. The source of the keys, and of which are left out, is llama.cpp's
// convert_hf_to_gguf.py (TextModel.set_gguf_parameters, LlamaModel).
func (m *decoder) metadata(c *hf.Config, arch string) []metaEntry {
	var all []metaEntry
	add := func(key string, value any) { all = append(all, metaEntry{arch + "." + key, value}) }
	size := func(key string, n int) { add(key, uint32(n)) }
	float := func(key string, x float64) { add(key, float32(x)) }
	size("block_count", m.layers)
	size("context_length", m.positions)
	size("embedding_length", m.hidden)
	size("feed_forward_length", m.intermediate)
	size("attention.head_count", m.heads)
	size("attention.head_count_kv", m.kvHeads)
	float("rope.freq_base", m.rope.Theta)
	eps, _ := m.eps.Float64() // it was made of a number
	float("attention.layer_norm_rms_epsilon", eps)
	if m.headDim*m.heads != m.hidden || c.Reader().Has("head_dim") {
		size("attention.key_length", m.headDim)
		size("attention.value_length", m.headDim)
	}
	switch {
	case m.rope.Type == "linear":
		add("rope.scaling.type", "linear")
		float("rope.scaling.factor", m.rope.Factor)
	case m.rope.Type == "llama3" && m.rope.OriginalPositions != llama3Positions:
		// The tensor says all; this is for those who want the parameters back.
		size("rope.scaling.original_context_length", m.rope.OriginalPositions)
	}
	if arch == "llama" {
		size("vocab_size", m.vocab)
		size("rope.dimension_count", m.headDim)
	}
	return all
}

// divisors are those of each pair of a head under the llama3 kind of rope scaling.
func (m *decoder) divisors() []float32 {
	plain := hf.Rope{Type: "default", Theta: m.rope.Theta}
	out := make([]float32, m.headDim/2)
	for i := range out {
		out[i] = float32(plain.Frequency(i, m.headDim) / m.rope.Frequency(i, m.headDim))
	}
	return out
}

// Type names a form in which a model is written as GGUF.
type Type string

// The forms. In all of them tensors of one dimension are F32.
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
// projection of some layers and to the matrix of the head; rows that are not whole blocks get a type of smaller blocks.
func (m *decoder) typeOf(t Type, n name) ggmlType {
	if len(n.dims) < 2 {
		return ggmlF32
	}
	typ := map[Type]ggmlType{F32: ggmlF32, BF16: ggmlBF16, F16: ggmlF16, Q8: ggmlQ8_0,
		Q4: ggmlQ4_K}[t]
	isHead := n.gguf == "output.weight" || n.gguf == "token_embd.weight" && m.tied
	if t == Q4 {
		more := n.layer >= 0 && moreBits(n.layer, m.layers)
		isValue, isDown := strings.HasSuffix(n.hf, ".v_proj.weight"), strings.HasSuffix(n.hf, ".down_proj.weight")
		switch {
		case isHead || more && (isValue || isDown):
			typ = ggmlQ6_K
		case isValue && m.isNamed70B():
			typ = ggmlQ5_K
		}
	}
	columns := int64(n.dims[len(n.dims)-1])
	if q, _ := typ.quant(); columns%q.elems != 0 {
		typ = map[ggmlType]ggmlType{ggmlQ4_K: ggmlQ5_0, ggmlQ5_K: ggmlQ8_0, ggmlQ6_K: ggmlQ8_0, ggmlQ8_0: ggmlF16}[typ]
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
	return m.layers == 80 && (m.modelType == "qwen2" || m.kvHeads != m.heads && m.modelType != "qwen3")
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

// params counts the parameters of the model.
func (m *decoder) params() (n int64) {
	for t := range m.names {
		n += tensor.Shape(t.dims).Elems()
	}
	return n
}
