package gguf

import (
	"math"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// The limits of scores and of logits.
const (
	scoreCap = "attn_logit_softcapping"
	logitCap = "final_logit_softcapping"
)

var gemmaKeys = slices.Concat(windowKeys, []string{scoreCap, logitCap})

// gemmaArchitectures lists Gemma's. The weights of their norms are the model's plus 1 (model.PlusOne).
var gemmaArchitectures = []*architecture{
	{name: "gemma2", dense: "gemma2", keys: gemmaKeys, fullEvery: 2, longerFirst: true, refuse: refuseGemma2,
		write: writeGemma2, read: readGemma2, config: configGemma},
	{name: "gemma4", dense: "gemma4_text", mixture: "gemma4_text", inner: expertInner, gateUp: true, keys: gemma4Keys,
		ownHeads: true, refuse: refuseGemma4, write: writeGemma4, read: readGemma4, config: configGemma4},
	{name: "gemma3", dense: "gemma3_text", keys: gemmaKeys, fullEvery: 6, longerFirst: true, refuse: refuseGemma3,
		write: writeGemma3, read: readGemma3, config: configGemma3},
}

// gemmaScalar returns the query_pre_attn_scalar that llama.cpp takes: the width of a head, and for the largest model that of
// a share of the hidden size. Source: its src/models/gemma2.cpp and gemma3.cpp.
func gemmaScalar(arch *architecture, layers, hidden, heads, headDim int) int {
	if largest := map[string]int{"gemma2": 46, "gemma3": 62}[arch.name]; layers == largest {
		return hidden / heads
	}
	return headDim
}

// refuseGemma refuses what llama.cpp has in neither.
func refuseGemma(m *decoder, r *hf.ConfigReader) {
	refuseOtherBiases(m, r)
	scalar := gemmaScalar(m.arch, len(m.Blocks), m.Hidden, m.Heads, m.HeadDim)
	if m.Scale != float32(1/math.Sqrt(float64(scalar))) {
		r.Fail("query_pre_attn_scalar", "in llama.cpp it is %d for such a %s: use the Hugging Face directory", scalar,
			m.arch.name)
	}
	if m.Rope.Kind != nn.RopeDefault && m.Rope.Kind != nn.RopeLinear {
		r.Fail("rope_scaling", "llama.cpp has the linear kind only for %s: use the Hugging Face directory", m.arch.name)
	}
}

// refuseGemma2 refuses what llama.cpp has not. Source: its src/models/gemma2.cpp, where both limits and the windows
// always are, and the head is the embedding.
func refuseGemma2(m *decoder, r *hf.ConfigReader) {
	refuseGemma(m, r)
	m.refuseWindows(r)
	switch {
	case m.SoftCap == 0:
		r.Fail(scoreCap, "llama.cpp needs it for gemma2: use the Hugging Face directory")
	case m.Head.SoftCap == 0:
		r.Fail(logitCap, "llama.cpp needs it for gemma2: use the Hugging Face directory")
	case !m.Tied:
		r.Fail("tie_word_embeddings", "llama.cpp has no head of its own for gemma2: use the Hugging Face directory")
	}
}

func writeGemma2(m *decoder, add func(key string, value any)) {
	add(scoreCap, m.SoftCap)
	add(logitCap, m.Head.SoftCap)
	m.writeWindow(add)
}

func readGemma2(g *header, m *stated) error {
	for _, c := range []struct {
		key   string
		other float64 // what llama.cpp takes
	}{{scoreCap, 50}, {logitCap, 30}} {
		limit, err := g.positive(m.arch.name+"."+c.key, c.other)
		if err != nil {
			return err
		}
		m.also[c.key] = floatF32(limit)
	}
	return g.windows(m, 4096)
}

// refuseGemma3 refuses what llama.cpp has not. Source: its src/models/gemma3.cpp.
func refuseGemma3(m *decoder, r *hf.ConfigReader) {
	refuseGemma(m, r)
	m.refuseSlidingRope(r, true)
	if m.window > 0 {
		m.refuseWindows(r)
	}
}

func writeGemma3(m *decoder, add func(key string, value any)) {
	if m.Head.SoftCap > 0 {
		add(logitCap, m.Head.SoftCap)
	}
	m.writeWindow(add)
	if m.window > 0 {
		add(slidingBase, float32(m.sliding.Theta))
	}
}

func readGemma3(g *header, m *stated) error {
	if limit, ok, err := g.float(m.arch.name + "." + logitCap); err != nil {
		return err
	} else if ok && limit > 0 {
		m.also[logitCap] = floatF32(limit)
	}
	base, err := g.positive(m.arch.name+"."+slidingBase, 10000)
	if err != nil {
		return err
	}
	m.also["rope_local_base_freq"] = floatF32(base)
	return g.windows(m, 0)
}

func configGemma(m *stated) map[string]any {
	keys := map[string]any{"attention_bias": false, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": nil,
		"query_pre_attn_scalar": gemmaScalar(m.arch, m.layers, m.hidden, m.heads, m.headDim),
		"layer_types":           m.layerTypes()}
	if m.window > 0 {
		keys["sliding_window"] = m.window
	}
	return keys
}

func configGemma3(m *stated) map[string]any {
	keys := configGemma(m)
	if _, ok := m.also[logitCap]; !ok {
		keys[logitCap] = jsonNull
	}
	return keys
}
