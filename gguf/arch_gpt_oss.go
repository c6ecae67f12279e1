package gguf

import (
	"github.com/millrace/millrace/hf"
)

// llama.cpp has these as constants of gpt-oss (llama-graph.cpp, LLM_FFN_SWIGLU_OAI_MOE).
const (
	gptOSSAlpha = 1.702
	gptOSSLimit = 7
)

// refuseGPTOSS refuses what llama.cpp has not. Source: its src/models/openai-moe.cpp, which asks for a head and for all
// biases, and where even layers have the window and odd ones see all.
func refuseGPTOSS(m *decoder, r *hf.ConfigReader) {
	switch {
	case m.Tied:
		r.Fail("tie_word_embeddings", "llama.cpp needs a head of its own for gpt-oss: use the Hugging Face directory")
	case !m.OutBias:
		r.Fail("attention_bias", "llama.cpp needs these biases for gpt-oss: use the Hugging Face directory")
	case m.experts.Activation.Alpha != gptOSSAlpha:
		r.Fail("swiglu_alpha", "in llama.cpp it is always %v: use the Hugging Face directory", gptOSSAlpha)
	case m.experts.Activation.Limit != gptOSSLimit:
		r.Fail("swiglu_limit", "in llama.cpp it is always %v: use the Hugging Face directory", gptOSSLimit)
	}
	m.refuseWindows(r)
}

func writeGPTOSS(m *decoder, add func(key string, value any)) {
	m.writeWindow(add)
	writeInner(m, add)
}

func readGPTOSS(g *header, m *stated) error {
	if _, err := g.size(m.arch.name + "." + slidingWindow); err != nil {
		return err
	}
	return g.windows(m, 0)
}

func configGPTOSS(m *stated) map[string]any {
	return map[string]any{"attention_bias": m.attentionBias, "num_local_experts": m.experts,
		"intermediate_size": m.expertInner, "sliding_window": m.window, "layer_types": m.layerTypes(),
		"swiglu_limit": floatF32(gptOSSLimit)}
}
