package gguf

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// logitScale is the factor of logits.
const logitScale = "logit_scale"

// cohereArchitectures lists the architectures of Command R.
var cohereArchitectures = []*architecture{
	{name: "command-r", dense: "cohere", layerNorm: "layer_norm_eps", keys: []string{epsLayer, logitScale},
		refuse: refuseCommandR, write: writeCommand, read: readCommand, config: configCommand},
	{name: "cohere2", dense: "cohere2", layerNorm: "layer_norm_eps", fullEvery: 4,
		keys:   []string{epsLayer, logitScale, slidingWindow, slidingPattern},
		refuse: refuseCohere2, write: writeCohere2, read: readCohere2, config: configCohere2},
}

// commandNorms: from that many layers on, a command-r has norms of queries and keys in llama.cpp.
const commandNorms = 64

// refuseCommand refuses what llama.cpp has in neither Command R. Source: its src/models/command-r.cpp and cohere2.cpp,
// where the head is the embedding and heads share the hidden size.
func refuseCommand(m *decoder, r *hf.ConfigReader) {
	refuseOtherBiases(m, r)
	m.refuseOwnWidth(r)
	if !m.Tied {
		r.Fail("tie_word_embeddings", "llama.cpp has no head of its own for %s: use the Hugging Face directory",
			m.arch.name)
	}
}

func refuseCommandR(m *decoder, r *hf.ConfigReader) {
	refuseCommand(m, r)
	if len(m.Blocks) >= commandNorms {
		r.Fail("num_hidden_layers", "llama.cpp needs norms of queries and keys in a command-r of %d layers or more: "+
			"use the Hugging Face directory", commandNorms)
	}
}

func writeCommand(m *decoder, add func(key string, value any)) {
	add(logitScale, m.Head.Scale)
	if m.Rope.Kind == nn.RopeDefault {
		add(scalingType, "none")
	}
}

// readCommand reads the factor of logits. In llama.cpp 0 stands for an absent one.
func readCommand(g *header, m *stated) error {
	scale, _, err := g.float(m.arch.name + "." + logitScale)
	if scale == 0 {
		scale = 1
	}
	m.also[logitScale] = floatF32(scale)
	return err
}

func configCommand(m *stated) map[string]any {
	return map[string]any{"attention_bias": false, "head_dim": nil}
}

// refuseCohere2 refuses a model without windows, too: in llama.cpp the layers with one alone are rotated.
func refuseCohere2(m *decoder, r *hf.ConfigReader) {
	refuseCommand(m, r)
	if m.window == 0 {
		r.Fail("sliding_window", "llama.cpp needs windows for cohere2: use the Hugging Face directory")
	}
}

func writeCohere2(m *decoder, add func(key string, value any)) {
	writeCommand(m, add)
	add("vocab_size", uint32(m.Vocab))
	add("rope.dimension_count", uint32(m.Rope.Width()))
	for l, b := range m.Blocks {
		if (b.Mixer.(nn.Attention).Window > 0) != m.arch.slides(l) {
			m.writeWindows(add)
			return
		}
	}
	m.writeWindow(add)
}

func readCohere2(g *header, m *stated) error {
	if err := readCommand(g, m); err != nil {
		return err
	}
	if _, err := g.size(m.arch.name + "." + slidingWindow); err != nil {
		return err
	}
	return g.windows(m, 0)
}

func configCohere2(m *stated) map[string]any {
	keys := configCommand(m)
	keys["layer_types"], keys["sliding_window"] = m.layerTypes(), m.window
	return keys
}
