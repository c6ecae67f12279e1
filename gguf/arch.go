package gguf

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// architecture lists the particulars of the models that llama.cpp calls by one name. What all have in common is in
// decoder.go for the way out, and in model.go for the way in.
type architecture struct {
	name string // "qwen3moe"
	// dense and mixture are the model_type of a file without experts and of one with them; "": there is no such file.
	dense, mixture string
	layerNorm      string                 // the key in config.json of the number of layer norms; "": norms are others
	inner          string                 // the key that has the width of an expert
	typeOf         func(m *stated) string // the model_type, where that depends on more than experts; nil: it does not
	keys           []string               // metadata that it has in addition to knownKeys
	partlyRotated  bool                   // heads may be rotated in part
	latent         bool                   // attention is latent
	ownHeads       bool                   // layers that see all have heads of another width and number
	gateUp         bool                   // one tensor has the gates of experts and what they multiply
	// fullEvery: one of n layers sees all positions, and the others have a window; 0: layers do not differ in that.
	fullEvery int
	scalings  []nn.RopeKind // of rope scaling that it has, besides linear and yarn
	ownYaRN   bool          // llama.cpp reads the betas of yarn, and its multiple

	longerFirst bool // of merges of SentencePiece's kind that make one token (see tokens.mergesOf)

	// refuse fails for what llama.cpp computes otherwise, or does not load; nil: nothing.
	refuse func(m *decoder, r *hf.ConfigReader)
	// write adds the metadata that only this architecture has; nil: none.
	write func(m *decoder, add func(key string, value any))
	// read reads them; nil: none.
	read func(g *header, m *stated) error
	// config has the keys of config.json that depend on the family.
	config func(m *stated) map[string]any
}

// specialToken is a token that a file names as a special one, if the tokenizer has it.
type specialToken struct{ key, token string }

// specialTokens lists special tokens by model_type.
var specialTokens = map[string][]specialToken{"glm4": glmSpecial[1:3], "glm4_moe": glmSpecial,
	"glm4_moe_lite": glmSpecial}

var architectures = slices.Concat([]*architecture{
	{name: "llama", dense: "llama", mixture: "mixtral", inner: "feed_forward_length", scalings: llama3Scaling,
		keys: []string{"expert_count", "expert_used_count"}, write: writeLlama, config: configLlama},
	{name: "qwen2", dense: "qwen2", config: configQwen2},
	{name: "qwen3", dense: "qwen3", refuse: refuseQwen3, config: configQwen3},
	{name: "qwen3moe", mixture: "qwen3_moe", inner: expertInner, keys: []string{"expert_count", "expert_used_count",
		expertInner}, refuse: refuseQwen3MoE, write: writeInner, config: configQwen3MoE},
	{name: "gpt-oss", mixture: "gpt_oss", inner: expertInner, keys: []string{"expert_count", "expert_used_count",
		expertInner, slidingWindow}, fullEvery: 2,
		refuse: refuseGPTOSS, write: writeGPTOSS, read: readGPTOSS, config: configGPTOSS},
	{name: "glm4moe", mixture: "glm4_moe", inner: expertInner, keys: routingKeys, partlyRotated: true,
		refuse: refuseRouting, write: writeGLM, read: readGLM, config: configGLM},
	{name: "deepseek2", mixture: "deepseek_v3", inner: expertInner, keys: latentKeys, latent: true,
		typeOf: typeOfDeepSeek, refuse: refuseDeepSeek, write: writeDeepSeek, read: readDeepSeek,
		config: configDeepSeek},
}, denseArchitectures, cohereArchitectures, gptArchitectures, gemmaArchitectures, vlArchitectures, deltaArchitectures)

const expertInner = "expert_feed_forward_length"

var llama3Scaling = []nn.RopeKind{nn.RopeLlama3}

// The number that keeps norms finite, of root-mean-square norms and of layer norms.
const (
	epsRMS   = "attention.layer_norm_rms_epsilon"
	epsLayer = "attention.layer_norm_epsilon"
)

// eps is the key in files of the number that keeps norms finite.
func (a *architecture) eps() string {
	if a.layerNorm != "" {
		return epsLayer
	}
	return epsRMS
}

// architectureOf finds an architecture by its name; nil if it is not known.
func architectureOf(name string) *architecture {
	for _, a := range architectures {
		if a.name == name {
			return a
		}
	}
	return nil
}

// architectureNames lists them.
func architectureNames() string {
	var names []string
	for _, a := range architectures {
		names = append(names, a.name)
	}
	return strings.Join(names, ", ")
}

// families lists the families of which GGUF files are written.
func families() string {
	names := model.FamiliesInGGUF()
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func writeLlama(m *decoder, add func(key string, value any)) {
	add("vocab_size", uint32(m.Vocab))
	add("rope.dimension_count", uint32(m.HeadDim))
}

func writeInner(m *decoder, add func(key string, value any)) {
	add(expertInner, uint32(m.experts.Inner))
}

func configLlama(m *stated) map[string]any {
	if m.experts > 0 {
		return map[string]any{"num_local_experts": m.experts}
	}
	return map[string]any{"attention_bias": m.attentionBias, "mlp_bias": m.mlpBias}
}

func configQwen2(m *stated) map[string]any {
	keys := map[string]any{"use_sliding_window": false}
	if m.headDim*m.heads == m.hidden {
		keys["head_dim"] = nil // transformers computes it
	}
	return keys
}

func refuseQwen3(m *decoder, r *hf.ConfigReader) {
	if m.OutBias {
		r.Fail("attention_bias", "llama.cpp has no such biases for %s: use the Hugging Face directory", m.arch.name)
	}
}

func configQwen3(m *stated) map[string]any {
	return map[string]any{"attention_bias": m.attentionBias, "use_sliding_window": false}
}

// refuseQwen3MoE refuses what llama.cpp has not. Source: its src/models/qwen3moe.cpp, which loads experts of every
// layer and calls build_moe_ffn with norm_w set.
func refuseQwen3MoE(m *decoder, r *hf.ConfigReader) {
	refuseQwen3(m, r)
	if m.dense > 0 {
		key := "decoder_sparse_step"
		if len(r.IntsOr("mlp_only_layers", nil)) > 0 {
			key = "mlp_only_layers"
		}
		r.Fail(key, "a layer has no experts, and llama.cpp needs them in every layer of qwen3moe: "+
			"use the Hugging Face directory")
		return
	}
	if !m.experts.Route.Renormalize {
		r.Fail("norm_topk_prob", "in llama.cpp the weights of a token's experts always add up to 1: "+
			"use the Hugging Face directory")
	}
}

func configQwen3MoE(m *stated) map[string]any {
	return map[string]any{"attention_bias": m.attentionBias, "use_sliding_window": false, "num_experts": m.experts,
		"moe_intermediate_size": m.expertInner, "norm_topk_prob": true, "decoder_sparse_step": 1,
		"mlp_only_layers": []int{}}
}
