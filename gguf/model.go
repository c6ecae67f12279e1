package gguf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// stated is a decoder as the metadata of a file state it.
type stated struct {
	arch                                             *architecture
	modelType                                        string
	layers, hidden, heads, headDim, vocab, positions int

	inners   []int // of each layer: the width of its feed-forward; nil: not stated
	keyHeads []int // of each layer: its key/value heads

	experts, expertsUsed, expertInner int    // all 0: the model is dense
	window                            int    // of sliding attention; 0: not stated
	slides                            []bool // of layers: they have the window
	nextToken                         int    // layers after the last one, left out
	sharedKeys                        int    // layers that use keys and values of others, the last ones
	layerRows                         int    // columns of the second embedding that a layer has; 0: there are no rows
	routing                           routing
	latent                            latentHeads
	gemma4                            gemma4Heads

	eps, theta    json.Number // the shortest text of the fp32 value: 1e-05, not 9.999999747378752e-06
	rope          nn.RopeFrequencies
	tied          bool // no output.weight: the head is the embedding
	attentionBias bool // on Q, K and V
	mlpBias       bool
	unstacked     bool // each expert has tensors of its own

	also map[string]any // keys of config.json that only its architecture has
}

// jsonNull is written; nil takes a key away.
var jsonNull = json.RawMessage("null")

// What layers may differ in: the width of the feed-forward, and the number of key/value heads.
const (
	feedForward = "feed_forward_length"
	keyHeads    = "attention.head_count_kv"
)

// knownKeys are the metadata keys of an architecture that are understood, or that say nothing new.
var knownKeys = []string{
	"block_count", "context_length", "embedding_length", feedForward, "vocab_size", "attention.head_count", keyHeads,
	"attention.key_length", "attention.value_length", epsRMS,
	"rope.freq_base", "rope.dimension_count", scalingType, scalingFactor, scalingOriginal, scalingAttn, yarnAttn,
	yarnFast, yarnSlow, "rope.scaling.finetuned", "tensor_data_layout",
}

// stated reads the architecture's metadata.
func (g *header) stated(f *tensorReader) (*stated, error) {
	arch, _, err := g.text("general.architecture")
	if err != nil {
		return nil, err
	}
	m := &stated{arch: architectureOf(arch), also: map[string]any{}}
	if m.arch == nil {
		return nil, fmt.Errorf("metadata general.architecture is %s: supported are %s", terminal.Quote(arch),
			architectureNames())
	}
	if err := g.refuseUnknown(m.arch); err != nil {
		return nil, err
	}
	for _, s := range []struct {
		key string
		to  *int
	}{
		{"block_count", &m.layers}, {"embedding_length", &m.hidden}, {"attention.head_count", &m.heads},
		{"context_length", &m.positions},
	} {
		if *s.to, err = g.size(arch + "." + s.key); err != nil {
			return nil, err
		}
	}
	// A file of 65536 tensors at most has fewer layers than that, whatever it claims.
	if m.layers > len(g.tensors) {
		return nil, fmt.Errorf("%d layers are claimed, but there are only %d tensors", m.layers, len(g.tensors))
	}
	if m.arch.dense != "" || g.has(arch+"."+feedForward) {
		if m.inners, err = g.ofLayers(feedForward, m); err != nil {
			return nil, err
		}
	}
	m.keyHeads = slices.Repeat([]int{m.heads}, m.layers)
	if m.arch.ownHeads || g.has(arch+"."+keyHeads) {
		if m.keyHeads, err = g.ofLayers(keyHeads, m); err != nil {
			return nil, err
		}
	}
	for l, n := range m.keyHeads {
		if m.heads%n != 0 {
			return nil, fmt.Errorf("metadata %s.%s has %d for layer %d, which does not divide %d heads", arch, keyHeads,
				n, l, m.heads)
		}
	}
	heads := g.headDim
	if m.arch.latent {
		heads = g.latentHeads
	}
	if err := heads(m); err != nil {
		return nil, err
	}
	eps, ok, err := g.float(arch + "." + m.arch.eps())
	if err != nil {
		return nil, err
	}
	if !ok || eps <= 0 {
		return nil, fmt.Errorf("metadata %s.%s is missing or not positive", arch, m.arch.eps())
	}
	theta, ok, err := g.float(arch + ".rope.freq_base")
	if err != nil {
		return nil, err
	}
	if !ok {
		theta = 10000 // what llama.cpp takes
	}
	if theta <= 0 {
		return nil, fmt.Errorf("metadata %s.rope.freq_base is not positive", arch)
	}
	m.eps, m.theta = shortestF32(eps), shortestF32(theta)
	if int64(m.heads)*int64(m.headDim) > maxSize {
		return nil, fmt.Errorf("%d heads of %d are too large", m.heads, m.headDim)
	}
	emb, ok := g.tensors["token_embd.weight"]
	if !ok || len(emb.dims) != 2 {
		return nil, fmt.Errorf("it has no tensor token_embd.weight with two dimensions")
	}
	m.vocab = emb.dims[0]
	if m.arch.read != nil {
		if err := m.arch.read(g, m); err != nil {
			return nil, err
		}
	}
	if err := g.experts(m); err != nil {
		return nil, err
	}
	m.tied = !g.hasTensor("output.weight")
	m.mlpBias = g.hasTensor("blk.0.ffn_down.bias")
	// Qwen2 always has biases on Q, K and V, and config.json has no key for them. Elsewhere that is "attention_bias",
	// which in some families stands for one on the output, too.
	m.attentionBias = g.hasTensor("blk.0.attn_q.bias")
	return m, g.rope(theta, f, m)
}

// ofLayers reads a number that layers may differ in: a positive one for all of them, or a list.
func (g *header) ofLayers(key string, m *stated) ([]int, error) {
	key = m.arch.name + "." + key
	v := g.meta[key]
	if v.typ != typeArray {
		n, err := g.size(key)
		return slices.Repeat([]int{n}, m.layers), err
	}
	if v.elem != typeI32 && v.elem != typeU32 || v.n != int64(m.layers) {
		return nil, fmt.Errorf("metadata %s is not a list of %d numbers", key, m.layers)
	}
	all := make([]int, m.layers)
	for l := range all {
		n := int64(binary.LittleEndian.Uint32(v.raw[4*l:]))
		if n < 1 || n > maxSize {
			return nil, fmt.Errorf("metadata %s has %d for layer %d: a positive whole number is expected", key, n, l)
		}
		if all[l] = int(n); all[l] != all[0] && !m.arch.ownHeads {
			return nil, fmt.Errorf("metadata %s differs between layers, which is not supported for %s", key,
				m.arch.name)
		}
	}
	return all, nil
}

// maxAllExperts bounds the experts of all layers, and so the memory that the names of their tensors take: some 2 KB for
// each. The largest Qwen 3 has a fifth of them.
const maxAllExperts = 1 << 16

// experts reads what the metadata say of a mixture, and fails unless every layer of experts has the tensors.
func (g *header) experts(m *stated) error {
	arch := m.arch.name + "."
	isMixture := m.arch.dense == ""
	for _, key := range []string{"expert_count", "expert_used_count"} {
		n, _, err := g.integer(arch + key)
		if err != nil {
			return err
		}
		isMixture = isMixture || n != 0
	}
	if m.modelType = m.arch.dense; isMixture {
		m.modelType = m.arch.mixture
	}
	if m.arch.typeOf != nil {
		m.modelType = m.arch.typeOf(m)
	}
	if !isMixture {
		return nil
	}
	var err error
	for _, s := range []struct {
		key string
		to  *int
	}{{"expert_count", &m.experts}, {"expert_used_count", &m.expertsUsed}, {m.arch.inner, &m.expertInner}} {
		if *s.to, err = g.size(arch + s.key); err != nil {
			return err
		}
	}
	if m.experts > maxExperts || m.layers*m.experts > maxAllExperts {
		return fmt.Errorf("%d layers with %d experts each are more than models have: supported are %d in a layer "+
			"and %d in all",
			m.layers, m.experts, maxExperts, maxAllExperts)
	}
	// Files of the llama architecture may be from before April 2024.
	m.unstacked = m.arch.name == "llama" && g.hasTensor("blk.0.ffn_gate.0.weight")
	names := []string{"gate", "up", "down"}
	if m.arch.gateUp {
		names = []string{"gate_up", "down"}
	}
	for l := m.routing.dense; l < m.layers; l++ {
		for _, name := range names {
			shape := tensor.Shape{m.experts, m.expertInner, m.hidden}
			switch name {
			case "gate_up":
				shape[1] *= 2
			case "down":
				shape[1], shape[2] = shape[2], shape[1]
			}
			if !m.unstacked {
				if err := g.checkTensor(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", l, name), shape); err != nil {
					return err
				}
				continue
			}
			for e := range m.experts {
				if err := g.checkTensor(fmt.Sprintf("blk.%d.ffn_%s.%d.weight", l, name, e), shape[1:]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (g *header) has(key string) bool        { _, ok := g.meta[key]; return ok }
func (g *header) hasTensor(name string) bool { _, ok := g.tensors[name]; return ok }

// refuseUnknown fails on a metadata key of the architecture that is not understood: it may change the mathematics.
func (g *header) refuseUnknown(arch *architecture) error {
	known := map[string]bool{}
	for _, k := range slices.Concat(knownKeys, arch.keys) {
		known[arch.name+"."+k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(g.meta)) {
		if !strings.HasPrefix(k, arch.name+".") || known[k] {
			continue
		}
		// Dense models may say that they have no experts.
		if n, ok, err := g.integer(k); err == nil && ok && n == 0 && strings.HasPrefix(k, arch.name+".expert_") {
			continue
		}
		return fmt.Errorf("metadata %s is not supported: this kind of model cannot be imported", terminal.Quote(k))
	}
	return nil
}

// headDim reads the width of heads, and how much of it is rotated.
func (g *header) headDim(m *stated) error {
	arch := m.arch.name
	if key := arch + ".attention.key_length"; g.has(key) {
		n, err := g.size(key)
		if err != nil {
			return err
		}
		m.headDim = n
	} else if m.hidden%m.heads != 0 {
		return fmt.Errorf("an embedding length of %d is not a multiple of %d heads", m.hidden, m.heads)
	} else {
		m.headDim = m.hidden / m.heads
	}
	if m.headDim%2 != 0 {
		return fmt.Errorf("a head dimension of %d is odd", m.headDim)
	}
	for _, k := range []string{".attention.value_length", ".rope.dimension_count"} {
		if !g.has(arch + k) {
			continue
		}
		n, err := g.size(arch + k)
		if err != nil {
			return err
		}
		if n < m.headDim && n%2 == 0 && m.arch.partlyRotated && k == ".rope.dimension_count" {
			m.rope.Rotated = n
		} else if n != m.headDim {
			return fmt.Errorf("metadata %s is %d, the head dimension is %d: this is not supported", arch+k, n, m.headDim)
		}
	}
	return nil
}

// shortestF32 is the shortest text that reads back as the same fp32 number.
func shortestF32(x float64) json.Number {
	return json.Number(strconv.FormatFloat(float64(float32(x)), 'g', -1, 32))
}

// floatF32 is the same as a number that is not whole in JSON: transformers tells 1 from 1.0.
func floatF32(x float64) json.Number {
	n := shortestF32(x)
	if _, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		n += ".0"
	}
	return n
}

// checkTensors fails if the file lacks a tensor of the model or has it in another shape, and if it has one that does not
// belong to such a model.
func (g *header) checkTensors(m *model.Model, form *model.Form, s *stated) error {
	used := map[string]bool{ropeFreqs: true, ropeLong: true, ropeShort: true} // became rope_scaling
	for _, t := range slices.Concat(form.Tensors, form.Constants) {
		used[t.Name] = true
		if err := g.checkTensor(t.Name, t.Shape); err != nil {
			return err
		}
	}
	for _, name := range g.names {
		if !used[name] && !s.isLeftOut(name) {
			return fmt.Errorf("tensor %s does not belong to a %s model: this kind of model cannot be imported",
				terminal.Quote(name), m.Type)
		}
	}
	return nil
}

// isLeftOut reports whether a tensor is of a layer that predicts tokens after the next one, or makes keys and values of
// a layer that uses those of another one: llama.cpp's converter copies these, and no program uses them.
func (m *stated) isLeftOut(name string) bool {
	rest, ok := strings.CutPrefix(name, "blk.")
	number, of, _ := strings.Cut(rest, ".")
	l, err := strconv.Atoi(number)
	if !ok || err != nil {
		return false
	}
	if l >= m.layers {
		return l < m.layers+m.nextToken
	}
	return l >= m.layers-m.sharedKeys &&
		slices.Contains([]string{"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}, of)
}

func (g *header) checkTensor(name string, shape tensor.Shape) error {
	there, ok := g.tensors[name]
	if !ok {
		return fmt.Errorf("tensor %s is missing", terminal.Quote(name))
	}
	// A tensor of one row may be stored as a vector, as llama.cpp's quantizer has it.
	if !there.dims.Equal(shape) && !(len(shape) == 2 && shape[0] == 1 && there.dims.Equal(shape[1:])) {
		return fmt.Errorf("tensor %s has shape %v, its metadata asks for %v", terminal.Quote(name), there.dims, shape)
	}
	return nil
}

// config is config.json, in the style of transformers 4, which 5 reads as well.
func (m *stated) config(t *tokens, d tensor.DType) ([]byte, error) {
	c := map[string]any{"architectures": []string{classes[m.modelType]}, "attention_dropout": 0, "bos_token_id": t.bos,
		"eos_token_id": t.eos, "head_dim": m.headDim, "hidden_act": "silu", "hidden_size": m.hidden,
		"initializer_range": 0.02, "max_position_embeddings": m.positions,
		"model_type": m.modelType, "num_attention_heads": m.heads, "num_hidden_layers": m.layers,
		"num_key_value_heads": m.keyHeads[0], "rms_norm_eps": m.eps, "rope_scaling": m.scalingConfig(),
		"rope_theta": m.theta, "tie_word_embeddings": m.tied, "torch_dtype": hf.DTypeName(d),
		"use_cache": true, "vocab_size": m.vocab}
	if t.pad != nil {
		c["pad_token_id"] = t.pad
	}
	if m.experts > 0 {
		c["num_experts_per_tok"] = m.expertsUsed
	}
	if m.inners != nil {
		c["intermediate_size"] = m.inners[0]
	}
	if key := m.arch.layerNorm; key != "" {
		delete(c, "rms_norm_eps")
		c[key] = m.eps
	}
	maps.Copy(c, m.also)
	for key, value := range m.arch.config(m) {
		if c[key] = value; value == nil {
			delete(c, key)
		}
	}
	return marshalIndent(c)
}

// classes maps the families to the classes of transformers.
var classes = map[string]string{"llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM",
	"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
	"gpt_oss": "GptOssForCausalLM", "glm4_moe": "Glm4MoeForCausalLM", "smollm3": "SmolLM3ForCausalLM",
	"seed_oss": "SeedOssForCausalLM", "glm4": "Glm4ForCausalLM", "olmo2": "Olmo2ForCausalLM",
	"phi3": "Phi3ForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
	"olmo3": "Olmo3ForCausalLM", "exaone4": "Exaone4ForCausalLM", "granite": "GraniteForCausalLM",
	"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM",
	"qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
	"qwen3_next": "Qwen3NextForCausalLM", "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM",
	"gpt_neox": "GPTNeoXForCausalLM", "gpt2": "GPT2LMHeadModel",
	"deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
	"gemma4_text": "Gemma4ForCausalLM"}

// generationConfig is generation_config.json: a generation ends at the end of text, of a turn and of a message.
func (t *tokens) generationConfig() ([]byte, error) {
	var ends []int
	for _, id := range []*int{t.eos, t.eot, t.eom} {
		if id != nil && !slices.Contains(ends, *id) {
			ends = append(ends, *id)
		}
	}
	var eos any // one as a number, as transformers writes it
	switch len(ends) {
	case 0:
	case 1:
		eos = ends[0]
	default:
		eos = ends
	}
	return marshalIndent(struct {
		FromModel bool `json:"_from_model_config"`
		BOS       *int `json:"bos_token_id,omitempty"`
		EOS       any  `json:"eos_token_id,omitempty"`
		PAD       *int `json:"pad_token_id,omitempty"`
	}{true, t.bos, eos, t.pad})
}

// marshalIndent is JSON as Python's json.dumps(indent=2) lays it out, with <, > and & as they are.
func marshalIndent(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return b.Bytes(), err
}
