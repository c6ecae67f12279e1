package gguf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// modelTypes are transformers' names of the families that llama.cpp's architectures stand for. A llama with experts is
// a mixtral.
var modelTypes = map[string]string{"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}

// classes are those of transformers for the families.
var classes = map[string]string{"llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM",
	"qwen2": "Qwen2ForCausalLM",
	"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}

// stated is a decoder as the metadata of a file state it.
type stated struct {
	modelType                                                               string
	layers, hidden, intermediate, heads, kvHeads, headDim, vocab, positions int
	experts, expertsUsed, expertInner                                       int // all 0: the model is dense

	eps, theta    json.Number // the shortest text of the fp32 value: 1e-05, not 9.999999747378752e-06
	rope          nn.RopeFrequencies
	tied          bool // no output.weight: the head is the embedding
	attentionBias bool // on Q, K, V and the output
	mlpBias       bool
}

// knownKeys are the metadata keys of an architecture that are understood, or that say nothing new.
var knownKeys = []string{
	"block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
	"attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
	"rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
	"rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout",
}

// expertKeys are those of mixtures. A llama has the first two.
var expertKeys = []string{"expert_count", "expert_used_count", "expert_feed_forward_length"}

// stated reads the architecture's metadata.
func (g *header) stated(f *tensorReader) (*stated, error) {
	arch, _, err := g.text("general.architecture")
	if err != nil {
		return nil, err
	}
	if modelTypes[arch] == "" {
		return nil, fmt.Errorf("metadata general.architecture is %s: supported are llama, qwen2, qwen3, qwen3moe",
			terminal.Quote(arch))
	}
	if err := g.refuseUnknown(arch); err != nil {
		return nil, err
	}
	m := &stated{modelType: modelTypes[arch]}
	for _, s := range []struct {
		key string
		to  *int
	}{
		{"block_count", &m.layers}, {"embedding_length", &m.hidden}, {"feed_forward_length", &m.intermediate},
		{"attention.head_count", &m.heads}, {"context_length", &m.positions},
	} {
		if *s.to, err = g.size(arch + "." + s.key); err != nil {
			return nil, err
		}
	}
	m.kvHeads = m.heads
	if key := arch + ".attention.head_count_kv"; g.has(key) {
		if m.kvHeads, err = g.size(key); err != nil {
			return nil, err
		}
	}
	if m.heads%m.kvHeads != 0 {
		return nil, fmt.Errorf("%d heads are not a multiple of %d key/value heads", m.heads, m.kvHeads)
	}
	if err := g.headDim(arch, m); err != nil {
		return nil, err
	}
	eps, ok, err := g.float(arch + ".attention.layer_norm_rms_epsilon")
	if err != nil {
		return nil, err
	}
	if !ok || eps <= 0 {
		return nil, fmt.Errorf("metadata %s.attention.layer_norm_rms_epsilon is missing or not positive", arch)
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
	// A file of 65536 tensors at most has fewer layers than that, whatever it claims.
	if m.layers > len(g.tensors) {
		return nil, fmt.Errorf("%d layers are claimed, but there are only %d tensors", m.layers, len(g.tensors))
	}
	if int64(m.heads)*int64(m.headDim) > maxSize {
		return nil, fmt.Errorf("%d heads of %d are too large", m.heads, m.headDim)
	}
	if err := g.experts(arch, m); err != nil {
		return nil, err
	}
	emb, ok := g.tensors["token_embd.weight"]
	if !ok || len(emb.dims) != 2 {
		return nil, fmt.Errorf("it has no tensor token_embd.weight with two dimensions")
	}
	m.vocab = emb.dims[0]
	m.tied = !g.hasTensor("output.weight")
	m.mlpBias = g.hasTensor("blk.0.ffn_down.bias")
	// Qwen2 has Q, K and V biases always, and states no key for it. Elsewhere "attention_bias" stands for all four.
	m.attentionBias = m.modelType != "qwen2" && g.hasTensor("blk.0.attn_q.bias")
	return m, g.rope(arch, theta, f, m)
}

// maxAllExperts bounds the experts of all layers, and so the memory that the names of their tensors take: some 2 KB for
// each. The largest Qwen 3 has a fifth of them.
const maxAllExperts = 1 << 16

// experts reads what the metadata say of a mixture, and fails unless every layer has the tensors.
func (g *header) experts(arch string, m *stated) error {
	isMixture := arch == "qwen3moe"
	for _, key := range []string{"expert_count", "expert_used_count"} {
		n, _, err := g.integer(arch + "." + key)
		if err != nil {
			return err
		}
		isMixture = isMixture || n != 0
	}
	if !isMixture {
		return nil
	}
	inner := "feed_forward_length"
	if arch == "qwen3moe" {
		inner = "expert_feed_forward_length"
	} else {
		m.modelType = "mixtral"
	}
	var err error
	for _, s := range []struct {
		key string
		to  *int
	}{{"expert_count", &m.experts}, {"expert_used_count", &m.expertsUsed}, {inner, &m.expertInner}} {
		if *s.to, err = g.size(arch + "." + s.key); err != nil {
			return err
		}
	}
	if m.experts > maxExperts || m.layers*m.experts > maxAllExperts {
		return fmt.Errorf("%d layers with %d experts each are more than models have: supported are %d in a layer "+
			"and %d in all",
			m.layers, m.experts, maxExperts, maxAllExperts)
	}
	for l := range m.layers {
		for _, name := range []string{"gate", "up", "down"} {
			shape := tensor.Shape{m.experts, m.expertInner, m.hidden}
			if name == "down" {
				shape[1], shape[2] = shape[2], shape[1]
			}
			if err := g.checkTensor(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", l, name), shape); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *header) has(key string) bool        { _, ok := g.meta[key]; return ok }
func (g *header) hasTensor(name string) bool { _, ok := g.tensors[name]; return ok }

// refuseUnknown fails on a metadata key of the architecture that is not understood: it may change the mathematics.
func (g *header) refuseUnknown(arch string) error {
	known := map[string]bool{}
	keys := knownKeys
	switch arch {
	case "llama":
		keys = slices.Concat(keys, expertKeys[:2])
	case "qwen3moe":
		keys = slices.Concat(keys, expertKeys)
	}
	for _, k := range keys {
		known[arch+"."+k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(g.meta)) {
		if !strings.HasPrefix(k, arch+".") || known[k] {
			continue
		}
		// Dense models may say that they have no experts.
		if n, ok, err := g.integer(k); err == nil && ok && n == 0 && strings.HasPrefix(k, arch+".expert_") {
			continue
		}
		return fmt.Errorf("metadata %s is not supported: this kind of model cannot be imported", terminal.Quote(k))
	}
	return nil
}

func (g *header) headDim(arch string, m *stated) error {
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
		if n != m.headDim {
			return fmt.Errorf("metadata %s is %d, the head dimension is %d: this is not supported", arch+k, n, m.headDim)
		}
	}
	return nil
}

// rope reads the rotary embedding's scaling. The llama3 kind is stored as a tensor of divisors, rope_freqs.weight; it
// is turned back into its parameters if the published ones give the same divisors.
func (g *header) rope(arch string, theta float64, f *tensorReader, m *stated) error {
	m.rope = nn.RopeFrequencies{HeadDim: m.headDim, Theta: theta}
	kind, ok, err := g.text(arch + ".rope.scaling.type")
	if err != nil {
		return err
	}
	if ok && kind != "none" && kind != "linear" {
		return fmt.Errorf("metadata %s.rope.scaling.type is %s: none and linear are supported", arch, terminal.Quote(kind))
	}
	if kind == "linear" {
		factor, ok, err := g.float(arch + ".rope.scaling.factor")
		if err != nil {
			return err
		}
		if !ok || factor <= 0 {
			return fmt.Errorf("metadata %s.rope.scaling.factor is missing or not positive", arch)
		}
		if factor != 1 {
			m.rope.Kind, m.rope.Factor = nn.RopeLinear, factor
		}
	}
	t, ok := g.tensors[ropeFreqs]
	if !ok {
		return nil
	}
	if m.rope.Kind == nn.RopeLinear {
		return fmt.Errorf("it has both linear rope scaling and rope_freqs.weight: this is not supported")
	}
	if want := (tensor.Shape{m.headDim / 2}); !t.dims.Equal(want) {
		return fmt.Errorf("tensor rope_freqs.weight has shape %v, expected is %v", t.dims, want)
	}
	divisors := make([]float32, t.elems)
	if err := f.read(t, divisors, 0); err != nil {
		return err
	}
	original := llama3Positions
	if key := arch + ".rope.scaling.original_context_length"; g.has(key) {
		if original, err = g.size(key); err != nil {
			return err
		}
	}
	p, ok := llama3FromDivisors(divisors, theta, original)
	if !ok {
		return fmt.Errorf("tensor rope_freqs.weight is not the llama3 rope scaling with the published parameters (low_freq_factor 1, high_freq_factor 4, %d original positions): use the model's Hugging Face directory", original)
	}
	m.rope = p
	return nil
}

// llama3FromDivisors finds the scaling whose divisors those are, to the accuracy of fp32 arithmetic. Divisors that
// are all one are no scaling.
func llama3FromDivisors(divisors []float32, theta float64, original int) (nn.RopeFrequencies, bool) {
	p := nn.RopeFrequencies{HeadDim: 2 * len(divisors), Theta: theta}
	if largest := slices.Max(divisors); largest != 1 {
		p.Kind, p.Factor, p.LowFreqFactor, p.HighFreqFactor = nn.RopeLlama3, float64(largest), 1, 4
		p.OriginalPositions = original
	}
	for i, want := range p.Divisors() {
		if !(math.Abs(float64(divisors[i]-want)) <= 1e-5*float64(want)) { // also when one is NaN
			return p, false
		}
	}
	return p, true
}

// shortestF32 is the shortest text that reads back as the same fp32 number.
func shortestF32(x float64) json.Number {
	return json.Number(strconv.FormatFloat(float64(float32(x)), 'g', -1, 32))
}

// checkTensors fails if the file lacks a tensor of the model or has it in another shape, and if it has one that does not
// belong to such a model.
func (g *header) checkTensors(m *model.Model, form *model.Form) error {
	used := map[string]bool{ropeFreqs: true} // became rope_scaling
	for _, t := range form.Tensors {
		used[t.Name] = true
		if err := g.checkTensor(t.Name, t.Shape); err != nil {
			return err
		}
	}
	for _, name := range g.names {
		if !used[name] {
			return fmt.Errorf("tensor %s does not belong to a %s model: this kind of model cannot be imported",
				terminal.Quote(name), m.Type)
		}
	}
	return nil
}

func (g *header) checkTensor(name string, shape tensor.Shape) error {
	there, ok := g.tensors[name]
	if !ok {
		return fmt.Errorf("tensor %s is missing", terminal.Quote(name))
	}
	if !there.dims.Equal(shape) {
		return fmt.Errorf("tensor %s has shape %v, its metadata asks for %v", terminal.Quote(name), there.dims, shape)
	}
	return nil
}

// llama3Positions are the original positions that every published Llama 3 model has.
const llama3Positions = 8192

// ropeFreqs is the tensor of divisors that stands for the llama3 kind of rope scaling.
const ropeFreqs = "rope_freqs.weight"

// ropeScalingJSON is rope_scaling in the style of transformers 4.
type ropeScalingJSON struct {
	Factor            float64 `json:"factor"`
	HighFreqFactor    float64 `json:"high_freq_factor,omitempty"`
	LowFreqFactor     float64 `json:"low_freq_factor,omitempty"`
	OriginalPositions int     `json:"original_max_position_embeddings,omitempty"`
	RopeType          string  `json:"rope_type"`
}

// config is config.json, in the style of transformers 4, which 5 reads as well.
func (m *stated) config(t *tokens, d tensor.DType) ([]byte, error) {
	c := struct {
		Architectures    []string         `json:"architectures"`
		AttentionBias    *bool            `json:"attention_bias,omitempty"`
		AttentionDropout float64          `json:"attention_dropout"`
		BOS              *int             `json:"bos_token_id"`
		SparseStep       int              `json:"decoder_sparse_step,omitempty"`
		EOS              *int             `json:"eos_token_id"`
		HeadDim          int              `json:"head_dim,omitempty"`
		HiddenAct        string           `json:"hidden_act"`
		HiddenSize       int              `json:"hidden_size"`
		InitializerRange float64          `json:"initializer_range"`
		Intermediate     int              `json:"intermediate_size"`
		Positions        int              `json:"max_position_embeddings"`
		MLPBias          *bool            `json:"mlp_bias,omitempty"`
		DenseLayers      *[]int           `json:"mlp_only_layers,omitempty"`
		ModelType        string           `json:"model_type"`
		ExpertInner      int              `json:"moe_intermediate_size,omitempty"`
		Renormalize      bool             `json:"norm_topk_prob,omitempty"`
		Heads            int              `json:"num_attention_heads"`
		Experts          int              `json:"num_experts,omitempty"`
		ExpertsUsed      int              `json:"num_experts_per_tok,omitempty"`
		Layers           int              `json:"num_hidden_layers"`
		KVHeads          int              `json:"num_key_value_heads"`
		LocalExperts     int              `json:"num_local_experts,omitempty"`
		PAD              *int             `json:"pad_token_id,omitempty"`
		Eps              json.Number      `json:"rms_norm_eps"`
		RopeScaling      *ropeScalingJSON `json:"rope_scaling"`
		Theta            json.Number      `json:"rope_theta"`
		Tied             bool             `json:"tie_word_embeddings"`
		DType            string           `json:"torch_dtype"`
		UseCache         bool             `json:"use_cache"`
		SlidingWindow    *bool            `json:"use_sliding_window,omitempty"`
		Vocab            int              `json:"vocab_size"`
	}{
		Architectures: []string{classes[m.modelType]}, BOS: t.bos, EOS: t.eos, PAD: t.pad, HeadDim: m.headDim, HiddenAct: "silu",
		HiddenSize: m.hidden, InitializerRange: 0.02, Intermediate: m.intermediate, Positions: m.positions,
		ModelType: m.modelType, Heads: m.heads, Layers: m.layers, KVHeads: m.kvHeads, Eps: m.eps, Theta: m.theta,
		ExpertsUsed: m.expertsUsed, Tied: m.tied, DType: hf.DTypeName(d), UseCache: true, Vocab: m.vocab,
	}
	no := false
	switch m.modelType {
	case "llama":
		c.AttentionBias, c.MLPBias = &m.attentionBias, &m.mlpBias
	case "qwen2":
		c.SlidingWindow = &no
		if m.mlpBias {
			return nil, fmt.Errorf("biases of the feed-forward part are not known for qwen2")
		}
		if m.headDim*m.heads == m.hidden {
			c.HeadDim = 0 // transformers computes it
		}
	case "qwen3":
		c.AttentionBias, c.SlidingWindow = &m.attentionBias, &no
		if m.mlpBias {
			return nil, fmt.Errorf("biases of the feed-forward part are not known for qwen3")
		}
	case "mixtral":
		c.LocalExperts = m.experts
	case "qwen3_moe":
		c.AttentionBias, c.SlidingWindow = &m.attentionBias, &no
		c.Experts, c.ExpertInner, c.Renormalize, c.SparseStep, c.DenseLayers = m.experts, m.expertInner, true, 1,
			&[]int{}
	}
	if m.rope.Kind != nn.RopeDefault {
		c.RopeScaling = &ropeScalingJSON{m.rope.Factor, m.rope.HighFreqFactor, m.rope.LowFreqFactor, m.rope.OriginalPositions,
			m.rope.Kind.String()}
	}
	return marshalIndent(c)
}

// generationConfig is generation_config.json.
func (t *tokens) generationConfig() ([]byte, error) {
	return marshalIndent(struct {
		FromModel bool `json:"_from_model_config"`
		BOS       *int `json:"bos_token_id,omitempty"`
		EOS       *int `json:"eos_token_id,omitempty"`
		PAD       *int `json:"pad_token_id,omitempty"`
	}{true, t.bos, t.eos, t.pad})
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
