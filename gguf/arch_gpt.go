package gguf

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// parallelSum says that the halves of a block read the same input.
const parallelSum = "use_parallel_residual"

// gptArchitectures lists the architectures with layer norms that have biases, and a feed-forward without a gate.
var gptArchitectures = []*architecture{
	{name: "gptneox", dense: "gpt_neox", layerNorm: "layer_norm_eps", keys: []string{epsLayer, parallelSum},
		partlyRotated: true, refuse: refuseNeoX, write: writeNeoX, read: readNeoX, config: configNeoX},
	{name: "gpt2", dense: "gpt2", layerNorm: "layer_norm_epsilon", keys: []string{epsLayer}, refuse: refuseGPT2,
		config: configGPT2},
}

// refuseNeoX refuses what llama.cpp has not, and notes what it computes otherwise. Source: its src/models/gptneox.cpp,
// which asks for a head, for all biases and for heads that share the hidden size.
func refuseNeoX(m *decoder, r *hf.ConfigReader) {
	m.refuseOwnWidth(r)
	switch {
	case m.Tied:
		r.Fail("tie_word_embeddings", "llama.cpp needs a head of its own for gptneox: use the Hugging Face directory")
	case !m.OutBias:
		r.Fail("attention_bias", "llama.cpp needs these biases for gptneox: use the Hugging Face directory")
	}
	if m.isExactGELU() {
		m.notes = append(m.notes, exactGELU)
	} else {
		m.notes = append(m.notes, "the model has GELU by tanh, which a GGUF file cannot say: an import of the file "+
			"takes the exact one, which GPT-NeoX is published with")
	}
}

const exactGELU = "the model has the exact GELU, and llama.cpp has it by tanh: its logits differ a little"

// isExactGELU reports whether the feed-forward has GELU by the error function.
func (m *decoder) isExactGELU() bool {
	return m.Blocks[0].FeedForward.(nn.GLU).Activation.Gate == device.GELU
}

func writeNeoX(m *decoder, add func(key string, value any)) {
	writeRotated(m, add)
	add(parallelSum, m.Blocks[0].Rule == nn.ParallelNorms)
}

func readNeoX(g *header, m *stated) error {
	key := m.arch.name + "." + parallelSum
	if !g.has(key) {
		return fmt.Errorf("metadata %s is missing", key)
	}
	parallel, err := g.boolean(key, false)
	m.also[parallelSum] = parallel
	return err
}

func configNeoX(m *stated) map[string]any {
	return map[string]any{"attention_bias": true, "head_dim": nil, "hidden_act": "gelu", "num_key_value_heads": nil,
		"rotary_emb_base": m.theta, "rope_theta": nil, "rotary_pct": rotaryFactor(m.rope.Rotated, m.headDim)}
}

// refuseGPT2 refuses what llama.cpp has not, and notes what it computes otherwise. Source: its src/models/gpt2.cpp.
func refuseGPT2(m *decoder, r *hf.ConfigReader) {
	for _, b := range m.Blocks {
		if a := b.Mixer.(nn.Attention); a.Scale != float32(1/math.Sqrt(float64(a.HeadDim))) {
			r.Fail("scale_attn_by_inverse_layer_idx", "in llama.cpp it is always false: use the Hugging Face directory")
			return
		}
	}
	if m.isExactGELU() {
		m.notes = append(m.notes, exactGELU+", and an import of the file takes that by tanh")
	}
}

// configGPT2 has the names that GPT-2 has for keys, and drops those of rotary positions.
func configGPT2(m *stated) map[string]any {
	return map[string]any{"n_embd": m.hidden, "n_head": m.heads, "n_inner": m.inners[0], "n_layer": m.layers,
		"n_positions": m.positions, "activation_function": "gelu_new", "attention_dropout": nil, "head_dim": nil,
		"hidden_act": nil, "hidden_size": nil, "intermediate_size": nil, "max_position_embeddings": nil,
		"num_attention_heads": nil, "num_hidden_layers": nil, "num_key_value_heads": nil, "rope_scaling": nil,
		"rope_theta": nil}
}
