package model

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// Family is a kind of models: how its config.json becomes blocks, and what its checkpoints look like. What all families
// share is read before.
type Family struct {
	ModelType string // the model_type of config.json
	// Read makes a Spec of the decoder's keys that are not read yet.
	Read func(*hf.Config, *hf.ConfigReader, *Spec)
	// TextConfig says that the decoder's keys are in config.json's object "text_config". Read has the rest in Spec.Outer.
	TextConfig bool
	// Flat says that older files of a family with a TextConfig have the decoder's keys outside of it.
	Flat  bool
	Names Names // what files call its tensors
	// Base begins the names of all tensors but the head's. Files may leave it out. "": none may.
	Base string
	// Keys are the names that config.json has for keys that other families share, by the name that these have.
	Keys map[string]string
	// Class is the model_type whose configuration class of transformers reads a config.json of the family; "": ModelType.
	Class string
	// NoSizes says that published files leave out sizes of the decoder. Of other families they are asked for.
	NoSizes bool
	// GELU says that units are gated with GELU by tanh, which the key "hidden_activation" names.
	GELU bool
	// PlainMLP is the key of the activation of a feed-forward that has no gate; "": it has one.
	PlainMLP string
	// LayerNorm is the key of the number that keeps layer norms finite; "": norms are root-mean-square norms.
	LayerNorm string
	// Dropout says that published configurations ask for dropout in training. No family has dropout here.
	Dropout bool
	// Architecture is llama.cpp's name of the family; "": GGUF files are not written of it.
	Architecture string
	// Carried are patterns of path.Match for the names of tensors that are neither loaded nor trained, such as those of a
	// vision tower ("visual.*"). An export has them as the model's own files do. A pattern may have {next} in it, for the
	// number of a layer after the last one, which predicts tokens after the next one.
	Carried []string
	// Constants names the constants of a block (nn.Block.Constants) in checkpoints, of which {layer} is the number.
	// They are carried, too. ConstantsGGUF names them in GGUF files.
	Constants, ConstantsGGUF string
	// MXFP4 are patterns of path.Match for the names of tensors that an export can have in MXFP4: stacked and
	// transposed ones, since the format has both.
	MXFP4 []string
}

// families lists the families of this package.
var families = []Family{
	{ModelType: "llama", Read: readLlama, Names: Llama, Architecture: "llama"},
	{ModelType: "mistral", Read: readMistral, Names: Llama, Architecture: "llama"},
	{ModelType: "qwen2", Read: readQwen2, Names: qwen, Architecture: "qwen2"},
	{ModelType: "qwen3", Read: readQwen3, Names: qwen, Architecture: "qwen3"},
	{ModelType: "qwen3_moe", Read: readQwen3MoE, Names: qwenMoE, Architecture: "qwen3moe"},
	{ModelType: "qwen3_5", Read: readQwen35, Names: qwen35.Under(qwenNested), TextConfig: true, Carried: qwenCarried,
		Architecture: "qwen35"},
	{ModelType: "qwen3_5_text", Read: readQwen35, Names: qwen35, Carried: qwenCarried, Architecture: "qwen35"},
	{ModelType: "qwen3_5_moe", Read: readQwen35MoE, Names: qwen35MoE.Under(qwenNested), TextConfig: true,
		Carried: qwenCarried, Architecture: "qwen35moe"},
	{ModelType: "qwen3_5_moe_text", Read: readQwen35MoE, Names: qwen35MoE, Carried: qwenCarried,
		Architecture: "qwen35moe"},
	{ModelType: "qwen3_next", Read: readQwenNext, Names: qwenNext, Carried: qwenCarried, Architecture: "qwen3next"},
	{ModelType: "mixtral", Read: readMixtral, Names: mixtral, Architecture: "llama"},
	{ModelType: "gpt_oss", Read: readGPTOSS, Names: gptOSS, Architecture: "gpt-oss", MXFP4: gptOSSInMXFP4},
	{ModelType: "phi3", Read: readPhi3, Names: phi3, Architecture: "phi3"},
	{ModelType: "smollm3", Read: readSmolLM3, Names: Llama, Architecture: "smollm3"},
	{ModelType: "seed_oss", Read: readSeedOSS, Names: seedOSS, Dropout: true, Architecture: "seed_oss"},
	{ModelType: "ministral3", Read: readMinistral3, Names: Llama, Architecture: "mistral3"},
	{ModelType: "mistral3", Read: readMistral3, TextConfig: true, Names: mistral3, Carried: mistral3Images,
		Architecture: "mistral3"},
	{ModelType: "exaone4", Read: readEXAONE4, Names: postNorms, Architecture: "exaone4"},
	{ModelType: "glm4", Read: readGLM4, Names: glm4, Architecture: "glm4"},
	{ModelType: "olmo2", Read: readOLMo2, Names: postNorms, Architecture: "olmo2"},
	{ModelType: "olmo3", Read: readOLMo3, Names: postNorms, Architecture: "olmo2"},
	{ModelType: "granite", Read: readGranite, Names: Llama, Architecture: "granite"},
	{ModelType: "qwen2_5_vl", Read: readQwen25VL, TextConfig: true, Flat: true, Names: qwen,
		Carried: []string{"visual.*"}, Architecture: "qwen2vl"},
	{ModelType: "qwen3_vl", Read: readQwen3VL, TextConfig: true, Names: qwen.Under("model.language_model."),
		Carried: []string{"model.visual.*"}, Architecture: "qwen3vl"},
	{ModelType: "qwen3_vl_moe", Read: readQwen3VLMoE, TextConfig: true, Names: qwen3VLMoE,
		Carried: []string{"model.visual.*"}, Architecture: "qwen3vlmoe"},
	{ModelType: "gemma2", Read: readGemma2, Names: gemma, NoSizes: true, GELU: true,
		Architecture: "gemma2"},
	{ModelType: "gemma3_text", Read: readGemma3, Names: gemma, NoSizes: true, GELU: true,
		Architecture: "gemma3"},
	{ModelType: "gemma3", Read: readGemma3Images, TextConfig: true, Names: gemma3, NoSizes: true, GELU: true,
		Carried: gemma3Images, Architecture: "gemma3"},
	{ModelType: "gemma4_text", Read: readGemma4Text, Names: gemma4Names, NoSizes: true, GELU: true,
		Constants: "model.layers.{layer}.layer_scalar", ConstantsGGUF: gemma4ScalarInGGUF,
		Architecture: "gemma4"},
	{ModelType: "gemma4", Read: beyondText(readGemma4Text), TextConfig: true, Names: gemma4Names.Under(gemma4Nested),
		NoSizes: true, GELU: true, Carried: gemma4Media,
		Constants: gemma4Nested + "layers.{layer}.layer_scalar", ConstantsGGUF: gemma4ScalarInGGUF,
		Architecture: "gemma4"},
	{ModelType: "gemma4_unified_text", Read: readGemma4Unified, Names: sandwich, NoSizes: true,
		GELU: true, Constants: "model.layers.{layer}.layer_scalar", ConstantsGGUF: gemma4ScalarInGGUF,
		Architecture: "gemma4"},
	{ModelType: "gemma4_unified", Read: beyondText(readGemma4Unified), TextConfig: true,
		Names: sandwich.Under(gemma4Nested), NoSizes: true, GELU: true, Carried: gemma4Media,
		Constants: gemma4Nested + "layers.{layer}.layer_scalar", ConstantsGGUF: gemma4ScalarInGGUF,
		Architecture: "gemma4"},
	{ModelType: "cohere", Read: readCohere, Names: cohere, LayerNorm: "layer_norm_eps", Architecture: "command-r"},
	{ModelType: "cohere2", Read: readCohere2, Names: cohere, LayerNorm: "layer_norm_eps", Architecture: "cohere2"},
	{ModelType: "gpt_neox", Read: readGPTNeoX, Names: gptNeoX, LayerNorm: "layer_norm_eps", PlainMLP: "hidden_act",
		Carried: gptNeoXBuffers, Architecture: "gptneox"},
	{ModelType: "gpt2", Read: readGPT2, Names: gpt2, Base: gpt2Base, Keys: gpt2Keys,
		LayerNorm: "layer_norm_epsilon", PlainMLP: "activation_function", Carried: gpt2Buffers,
		Architecture: "gpt2"},
	{ModelType: "glm4_moe", Read: readGLM4MoE, Names: glmMoE, Architecture: "glm4moe", Constants: glmCorrection,
		ConstantsGGUF: glmCorrectionInGGUF, Carried: glmNextToken},
	{ModelType: "glm4_moe_lite", Read: readGLM4MoELite, Names: latentMoE,
		Constants: glmCorrection, ConstantsGGUF: glmCorrectionInGGUF, Carried: glmNextToken, Architecture: "deepseek2"},
	{ModelType: "deepseek_v3", Read: readDeepSeekV3, Names: latentMoE,
		Constants: glmCorrection, ConstantsGGUF: glmCorrectionInGGUF, Carried: glmNextToken, Architecture: "deepseek2"},
	{ModelType: "kimi_k2", Class: "deepseek_v3", Read: readDeepSeekV3, Names: latentMoE,
		Constants: glmCorrection, Carried: glmNextToken},
	{ModelType: "deepseek_v2", Read: readDeepSeekV2, Names: latentMoE,
		Architecture: "deepseek2"},
}

// Families are the supported values of model_type.
func Families() []string { return modelTypes(families) }

// FamiliesInGGUF lists the families whose models are written as GGUF files.
func FamiliesInGGUF() []string {
	return modelTypes(slices.DeleteFunc(slices.Clone(families), func(f Family) bool { return f.Architecture == "" }))
}

func modelTypes(families []Family) []string {
	var names []string
	for _, f := range families {
		names = append(names, f.ModelType)
	}
	return names
}

// Spec describes a decoder, as a family reads it from a config.json.
type Spec struct {
	Hidden, Vocab, Layers, Positions int
	Tied                             bool // the head uses the token embedding
	InitStd                          float64
	Norm                             nn.Norm // all norms
	EmbedScale                       Multiplier
	LayerRows                        LayerRows
	LogitScale                       float32 // multiplies the logits; 0: none
	SoftCap                          float32 // bounds the logits; 0: none

	// Attention and GLU hold for every layer, except the settings that LayerTypes reads. The keys that all families
	// share are in them before the family reads.
	Attention nn.Attention
	GLU       nn.GLU
	// Mixers and FeedForwards are those of each layer, where not all have the Attention, or the GLU.
	Mixers       []nn.Mixer
	FeedForwards []nn.FeedForward
	// Blocks are the halves of each layer's block, where layers differ in more than that. Of attention a Scale of 0 is
	// 1/sqrt(HeadDim).
	Blocks []nn.Block
	Chains []ChainSpec // before the text

	Outer *hf.ConfigReader // of config.json as a whole

	Scoring    Scoring // of a reward model
	isScored   bool
	replaced   string // name of the head of a model of text, in whose place scores are
	family     Family
	nextTokens int      // layers after the last one, where their number is in the file
	sides      int      // numbers given to sides
	carried    []string // further patterns of tensors, as in Family
	windows    []int    // of each layer's attention; none: no layer has one
}

// LayerRows is a second embedding, of which each layer has columns of its own; the zero value has no columns.
type LayerRows struct {
	Cols  int // of a layer
	Scale Multiplier
	Side  int // that begins with its rows
}

// Multiplier is a number that activations are multiplied by. Rounded says that transformers rounds it to their type
// first.
type Multiplier struct {
	By      float64
	Rounded bool
}

// Limits that no model comes near and that keep products of sizes far from overflow.
const (
	maxLayers = 1 << 12
	maxWidth  = 1 << 20
	maxHeads  = 1 << 16 // of all layers: names and cuts of each take memory
	maxVocab  = 1 << 24
)

func readSpec(c *hf.Config, families []Family) (*Spec, error) {
	r := c.Reader()
	if !r.Has("model_type") {
		r.Fail("model_type", "supported are %s", strings.Join(modelTypes(families), ", "))
	}
	s := &Spec{Outer: r}
	modelType := r.OneOf("model_type", "", modelTypes(families)...)
	for _, f := range families {
		if f.ModelType == modelType && r.Err() == nil {
			s.family = f
			decoder := r
			if f.TextConfig && !(f.Flat && !r.Has("text_config")) {
				decoder = r.Config("text_config")
			}
			decoder.Default(f.defaults(decoder))
			decoder.Called(f.Keys)
			s.common(decoder)
			f.Read(c, decoder, s)
			s.finish(decoder)
			if s.scores(r); s.isScored {
				s.endInScore()
			}
		}
	}
	return s, r.Finish()
}

// common reads the keys that mean the same in all families. The sizes of a model have no defaults but in families that
// have NoSizes.
func (s *Spec) common(r *hf.ConfigReader) {
	s.EmbedScale.By = 1
	s.Vocab = limited(r, "vocab_size", maxVocab)
	s.Layers = limited(r, "num_hidden_layers", maxLayers)
	s.Positions = r.Size("max_position_embeddings")
	s.Tied = s.Outer.BoolOr("tie_word_embeddings", r.Bool("tie_word_embeddings"))
	s.InitStd = r.FloatOr("initializer_range", 0.02)
	if s.InitStd < 0 {
		r.Fail("initializer_range", "a standard deviation is not negative")
	}
	s.Hidden = limited(r, "hidden_size", maxWidth)
	if r.HasValue("intermediate_size") { // else no layer has a GLU: finish checks that
		s.GLU.Inner = limited(r, "intermediate_size", maxWidth)
	}
	s.Attention.Heads = limited(r, "num_attention_heads", maxWidth)
	if s.Attention.Heads > maxHeads/max(s.Layers, 1) {
		r.Fail("num_attention_heads", "more than %d in all layers together are not supported", maxHeads)
	}
	s.norms(r)
	s.activation(r)

	// Features that exist in one form only.
	if s.family.Dropout {
		r.Ignore("attention_dropout")
	} else {
		r.Require("attention_dropout", 0.0)
	}
	r.Require("is_encoder_decoder", false)
	r.Require("is_decoder", false)
	r.Require("add_cross_attention", false)
	r.Require("chunk_size_feed_forward", 0)
}

// norms reads what keeps norms finite.
func (s *Spec) norms(r *hf.ConfigReader) {
	key, eps := "rms_norm_eps", 1e-6
	if s.family.LayerNorm != "" {
		key, eps, s.Norm.Layer = s.family.LayerNorm, 1e-5, true
	}
	s.Norm.Eps = float32(r.FloatOr(key, eps))
	if !(s.Norm.Eps >= 0 && s.Norm.Eps < 1) {
		r.Fail(key, "a small positive number is expected")
	}
}

// plainActivations maps the names in config.json to the activations of feed-forwards without a gate.
var plainActivations = map[string]device.Activation{"gelu": device.GELU, "gelu_new": device.GELUTanh,
	"gelu_fast": device.GELUTanh, "gelu_pytorch_tanh": device.GELUTanh}

// activation reads that of the feed-forward, of which each family with a gate has one.
func (s *Spec) activation(r *hf.ConfigReader) {
	switch key := s.family.PlainMLP; {
	case key != "":
		name := r.OneOf(key, "gelu", slices.Sorted(maps.Keys(plainActivations))...)
		s.GLU.Activation = device.GLUSpec{Gate: plainActivations[name], Ungated: true}
	case s.family.GELU:
		r.Require("hidden_activation", "gelu_pytorch_tanh")
		r.Ignore("hidden_act") // hidden_activation took its place
		s.GLU.Activation.Gate = device.GELUTanh
	default:
		r.Require("hidden_act", "silu")
	}
}

// limited reads a size that must be there and is at most limit.
func limited(r *hf.ConfigReader, key string, limit int) int {
	n := r.Size(key)
	if n > limit {
		r.Fail(key, "more than %d is not supported", limit)
		return 0
	}
	return n
}

// Heads reads how many heads keys and values have, and the width of a head. Without a value there is one head of keys for
// each of queries, and the heads share the hidden size.
func (s *Spec) Heads(r *hf.ConfigReader) {
	a := &s.Attention
	a.KVHeads = r.SizeOr("num_key_value_heads", a.Heads)
	s.HeadDim(r)
}

// HeadDim reads the width of a head; without a value the heads share the hidden size.
func (s *Spec) HeadDim(r *hf.ConfigReader) {
	a := &s.Attention
	if !r.HasValue("head_dim") && a.Heads > 0 && s.Hidden%a.Heads != 0 {
		r.Fail("num_attention_heads", "it does not divide \"hidden_size\" (%d), and there is no \"head_dim\"", s.Hidden)
	}
	a.HeadDim = r.SizeOr("head_dim", s.Hidden/max(a.Heads, 1))
}

// Biases reads whether all projections of attention have a bias.
func (s *Spec) Biases(r *hf.ConfigReader) {
	bias := r.Bool("attention_bias")
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
}

// Rotary reads the rotary positions of heads whose width is known.
func (s *Spec) Rotary(r *hf.ConfigReader) { s.Attention.Rope = readRope(r, s.Attention.HeadDim) }

// window reads how many positions attention sees where it slides; 0: none, since the key is null.
func window(r *hf.ConfigReader) int { return r.SizeOr("sliding_window", 0) }

// newSide is the number of a side that no block has yet (nn.Side).
func (s *Spec) newSide() int {
	s.sides++
	return s.sides - 1
}

// carry has tensors of these roles carried wherever a block has no place for them.
func (s *Spec) carry(roles ...string) {
	for _, role := range roles {
		if line, word, ok := s.family.Names.find(role); ok {
			name := strings.ReplaceAll(s.family.Names[line].HF, "*", word)
			s.carried = append(s.carried, strings.ReplaceAll(name, "{layer}", "*"))
		}
	}
}

// LayerTypes reads which layers' attention sees a window only. Absent, those do for which slides returns true, if
// window is not 0.
func (s *Spec) LayerTypes(r *hf.ConfigReader, window int, slides func(layer int) bool) {
	types := r.StringsOr("layer_types", nil)
	if r.Err() != nil {
		return
	}
	s.windows = make([]int, s.Layers)
	if types == nil {
		for l := range s.windows {
			if slides(l) {
				s.windows[l] = window
			}
		}
		return
	}
	if len(types) != s.Layers {
		r.Fail("layer_types", "it has %d entries, \"num_hidden_layers\" is %d", len(types), s.Layers)
		return
	}
	for l, t := range types {
		switch {
		case t == "full_attention":
		case t == "sliding_attention" && window > 0:
			s.windows[l] = window
		case t == "sliding_attention":
			r.Fail("layer_types", "a layer has sliding attention, but \"use_sliding_window\" and \"sliding_window\" turn it off")
		default:
			r.Fail("layer_types", "supported are full_attention, sliding_attention; layer %d has %.40q", l, t)
		}
	}
}

// windowEverywhere gives the attention of every layer a window; 0: none.
func (s *Spec) windowEverywhere(window int) { s.windows = slices.Repeat([]int{window}, s.Layers) }

// attention returns the attention of a layer, for families whose layers differ in more than windows.
func (s *Spec) attention(layer int) nn.Attention {
	a := s.Attention
	if s.windows != nil {
		a.Window = s.windows[layer]
	}
	return a
}

// each makes blocks with a rule of the spec's attention and GLU, after LayerTypes. change, if there is one, makes the
// attention of a layer differ from others.
func (s *Spec) each(r *hf.ConfigReader, rule nn.Rule, change func(layer int, a *nn.Attention)) {
	for l := range s.Layers {
		if r.Err() != nil {
			return
		}
		a := s.attention(l)
		if change != nil {
			change(l, &a)
		}
		s.Blocks = append(s.Blocks, nn.Block{Rule: rule, Mixer: a, FeedForward: s.GLU})
	}
}

// finish completes the blocks and checks what concerns several keys.
func (s *Spec) finish(r *hf.ConfigReader) {
	for l := range s.Layers {
		if r.Err() != nil {
			return
		}
		if l == len(s.Blocks) {
			b := nn.Block{Mixer: s.attention(l), FeedForward: s.GLU}
			if s.Mixers != nil {
				b.Mixer = s.Mixers[l]
			}
			if s.FeedForwards != nil {
				b.FeedForward = s.FeedForwards[l]
			}
			s.Blocks = append(s.Blocks, b)
		}
		s.complete(r, &s.Blocks[l], s.Hidden)
	}
	for i := range s.Chains {
		for b := range s.Chains[i].Blocks {
			s.complete(r, &s.Chains[i].Blocks[b], s.Chains[i].Hidden)
		}
	}
	s.checkRopes(r)
}

// complete gives a block what it shares with others, and checks its sizes.
func (s *Spec) complete(r *hf.ConfigReader, b *nn.Block, hidden int) {
	b.Hidden, b.Norm = hidden, s.Norm
	switch f := b.FeedForward.(type) {
	case nn.GLU:
		s.needsInner(r, f.Inner)
	case nn.Mixture:
		s.needsInner(r, f.Mixture().Inner)
		b.FeedForward = f.With(s.parted(r, f.Mixture()))
	}
	if a, ok := b.Mixer.(nn.Attention); ok {
		b.Mixer = s.checked(r, a)
	}
}

// needsInner fails if a feed-forward has no columns because config.json does not say how many.
func (s *Spec) needsInner(r *hf.ConfigReader, inner int) {
	if inner == 0 {
		r.Size("intermediate_size")
	}
}

// checked is attention with its scale, and with rotary positions of its own width.
func (s *Spec) checked(r *hf.ConfigReader, a nn.Attention) nn.Attention {
	switch {
	case a.KVHeads > a.Heads || a.Heads%a.KVHeads != 0:
		r.Fail("num_key_value_heads", "it does not divide \"num_attention_heads\" (%d)", a.Heads)
	case a.HeadDim%2 != 0 && r.Has("head_dim"):
		r.Fail("head_dim", "rotary positions need an even one")
	case a.HeadDim%2 != 0:
		r.Fail("num_attention_heads", "heads of width %d are odd, and rotary positions need an even width", a.HeadDim)
	case a.HeadDim > maxWidth || a.Heads > maxWidth/a.HeadDim:
		r.Fail("num_attention_heads", "heads that are together wider than %d are not supported", maxWidth)
	}
	if a.Rope != (nn.RopeFrequencies{}) {
		a.Rope.HeadDim = a.HeadDim
	}
	if a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(float64(a.HeadDim)))
	}
	return a
}
