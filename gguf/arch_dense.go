package gguf

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// denseArchitectures lists the architectures whose blocks differ from Llama's in norms, biases or rotation.
var denseArchitectures = []*architecture{
	{name: "smollm3", dense: "smollm3", refuse: refuseSmolLM3, write: writeLlama, config: configSmolLM3},
	{name: "seed_oss", dense: "seed_oss", refuse: refuseOtherBiases, config: configSeedOSS},
	{name: "glm4", dense: "glm4", partlyRotated: true, write: writeRotated, config: configGLM4},
	{name: "phi3", dense: "phi3", keys: []string{slidingWindow}, partlyRotated: true, refuse: refusePhi3,
		write: writePhi3, read: readPhi3, config: configPhi3, scalings: []nn.RopeKind{nn.RopeLong}},
	{name: "olmo2", dense: "olmo2", keys: windowKeys, fullEvery: 4,
		refuse: refuseOLMo2, write: writeOLMo2,
		read: readOLMo2, typeOf: typeOfOLMo, config: configOLMo2},
	{name: "exaone4", dense: "exaone4", keys: windowKeys[:2], fullEvery: 4, scalings: llama3Scaling,
		refuse: refuseEXAONE4, write: writeEXAONE4, read: readEXAONE4, config: configEXAONE4},
	{name: "granite", dense: "granite", keys: graniteKeys(), scalings: llama3Scaling,
		refuse: refuseGranite, write: writeGranite, read: readGranite, config: configGranite},
	{name: "mistral3", dense: "mistral", keys: []string{temperature, yarnLogMultiple}, scalings: llama3Scaling,
		ownYaRN: true, refuse: refuseMistral3, write: writeMistral3, read: readMistral3,
		typeOf: typeOfMistral3, config: configMistral3},
}

// refuseOtherBiases refuses biases that llama.cpp does not load: those of the output projection and of the
// feed-forward.
func refuseOtherBiases(m *decoder, r *hf.ConfigReader) {
	if m.OutBias {
		key := "attention_bias"
		if r.Has("attention_out_bias") {
			key = "attention_out_bias"
		}
		r.Fail(key, "llama.cpp has no such biases for %s: use the Hugging Face directory", m.arch.name)
	}
	if g, ok := m.Blocks[0].FeedForward.(nn.GLU); ok && g.Bias {
		r.Fail("mlp_bias", "llama.cpp has no such biases for %s: use the Hugging Face directory", m.arch.name)
	}
}

// refuseOwnWidth refuses heads whose width does not follow from the hidden size.
func (m *decoder) refuseOwnWidth(r *hf.ConfigReader) {
	if m.HeadDim*m.Heads != m.Hidden {
		r.Fail("head_dim", "in llama.cpp the heads of %s share the hidden size: use the Hugging Face directory",
			m.arch.name)
	}
}

// refuseSmolLM3 refuses what llama.cpp has not. Source: its src/models/smollm3.cpp, where every fourth layer is not
// rotated.
func refuseSmolLM3(m *decoder, r *hf.ConfigReader) {
	refuseOtherBiases(m, r)
	for l, b := range m.Blocks {
		if rotated := b.Rotary() != (nn.RopeFrequencies{}); rotated != ((l+1)%4 != 0) {
			r.Fail("no_rope_layers", "in llama.cpp every fourth layer is not rotated, and layer %d differs: "+
				"use the Hugging Face directory", l)
			return
		}
	}
}

func configSmolLM3(m *stated) map[string]any {
	return map[string]any{"attention_bias": false, "mlp_bias": false, "use_sliding_window": false,
		"no_rope_layer_interval": 4}
}

func configSeedOSS(m *stated) map[string]any {
	return map[string]any{"attention_bias": m.attentionBias, "attention_out_bias": false, "mlp_bias": false}
}

// writeRotated adds how many columns of a head are rotated.
func writeRotated(m *decoder, add func(key string, value any)) {
	add("rope.dimension_count", uint32(m.Rope.Width()))
}

func configGLM4(m *stated) map[string]any {
	return map[string]any{"attention_bias": m.attentionBias,
		"partial_rotary_factor": rotaryFactor(m.rope.Rotated, m.headDim)}
}

// refuseOLMo2 refuses what llama.cpp has not. Source: its src/models/olmo2.cpp, which asks for a head and for heads
// that share the hidden size.
func refuseOLMo2(m *decoder, r *hf.ConfigReader) {
	refuseOtherBiases(m, r)
	m.refuseSlidingRope(r, false)
	m.refuseOwnWidth(r)
	if m.Tied {
		r.Fail("tie_word_embeddings", "llama.cpp needs a head of its own for olmo2: use the Hugging Face directory")
	}
}

// OLMo 3 is OLMo 2 with windows, and llama.cpp has one name for both. It takes no notice of a base of windows alone.
func readOLMo2(g *header, m *stated) error { return g.windows(m, 0) }

func writeOLMo2(m *decoder, add func(key string, value any)) {
	m.writeWindows(add)
	if m.window > 0 {
		add(slidingBase, float32(m.sliding.Theta))
	}
}

func typeOfOLMo(m *stated) string {
	if m.window > 0 {
		return "olmo3"
	}
	return "olmo2"
}

func configOLMo2(m *stated) map[string]any {
	keys := map[string]any{"attention_bias": false, "head_dim": nil}
	if m.window > 0 {
		keys["sliding_window"], keys["layer_types"] = m.window, m.layerTypes()
	}
	return keys
}

// exaoneWindows is the number of layers of an EXAONE 4 that has windows. llama.cpp knows windows by nothing else.
const exaoneWindows = 64

// refuseEXAONE4 refuses what llama.cpp has not. Source: its src/models/exaone4.cpp.
func refuseEXAONE4(m *decoder, r *hf.ConfigReader) {
	m.refuseOwnWidth(r)
	if (len(m.Blocks) == exaoneWindows) != (m.window > 0) {
		r.Fail("sliding_window", "in llama.cpp an exaone4 has windows if it has %d layers, and only then: "+
			"use the Hugging Face directory", exaoneWindows)
	}
}

func writeEXAONE4(m *decoder, add func(key string, value any)) {
	add("vocab_size", uint32(m.Vocab))
	m.writeWindows(add)
}

func readEXAONE4(g *header, m *stated) error {
	if m.layers == exaoneWindows {
		return g.windows(m, 4096)
	}
	m.slides = make([]bool, m.layers)
	return nil
}

func configEXAONE4(m *stated) map[string]any {
	keys := map[string]any{"layer_types": m.layerTypes(), "sliding_window": jsonNull}
	if m.window > 0 {
		keys["sliding_window"] = m.window
	}
	return keys
}
