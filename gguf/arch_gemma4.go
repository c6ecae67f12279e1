package gguf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// What files of Gemma 4 say in addition. The widths without "swa" are those of layers that see all.
const (
	narrowKey     = "attention.key_length_swa"
	narrowValue   = "attention.value_length_swa"
	narrowRotated = "rope.dimension_count_swa"
)

var gemma4Keys = slices.Concat(windowKeys, []string{logitCap, narrowKey, narrowValue, narrowRotated, sharedKeys,
	layerRows, "expert_count", "expert_used_count", expertInner})

// gemma4Visible are tokens of chats that llama.cpp is to show, for who reads calls of tools from its text. Source: its
// converter (conversion/gemma.py).
var gemma4Visible = []string{"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
	"<tool_response|>", `<|"|>`}

// notRotated divides the frequencies of columns that are not rotated, in the tensor of divisors. Source: llama.cpp's
// converter (conversion/gemma.py).
const notRotated = 1e30

// logitCapOfGemma4 is the limit of logits that llama.cpp takes if a file has none. Source: its src/llama-hparams.h.
const logitCapOfGemma4 = 30

// gemma4Heads holds the numbers of heads that a file states, of layers with a window and of those that see all.
type gemma4Heads struct {
	narrow, narrowKV, fullKV int
	base                     float64
}

// refuseGemma4 refuses what llama.cpp has not. Source: its src/models/gemma4.cpp.
func refuseGemma4(m *decoder, r *hf.ConfigReader) {
	refuseOtherBiases(m, r)
	slides := make([]bool, len(m.Blocks))
	for l, b := range m.Blocks {
		slides[l] = b.Mixer.(nn.Attention).Window > 0
	}
	if err := checkSharedKeys(slides, m.ownKeys()); err != nil {
		r.Fail("num_kv_shared_layers", "%s: use the Hugging Face directory", err)
	}
	switch {
	case m.window == 0:
		r.Fail("sliding_window", "llama.cpp needs windows for gemma4: use the Hugging Face directory")
	case m.Rope.Kind != nn.RopeDefault && m.Rope.Kind != nn.RopeProportional || m.sliding.Kind != nn.RopeDefault:
		r.Fail("rope_parameters", "llama.cpp has no such kind of rope scaling for gemma4: "+
			"use the Hugging Face directory")
	}
}

// proportional are the divisors of the frequencies of layers that see all.
func (m *decoder) proportional() []float32 {
	divisors := slices.Repeat([]float32{notRotated}, m.HeadDim/2)
	for i := range m.Rope.Width() / 2 {
		divisors[i] = float32(cmp.Or(m.Rope.Factor, 1))
	}
	return divisors
}

func writeGemma4(m *decoder, add func(key string, value any)) {
	add(logitCap, m.Head.SoftCap) // also 0: without the key llama.cpp takes logitCapOfGemma4
	m.writeWindows(add)
	add(slidingBase, float32(m.sliding.Theta))
	add(narrowKey, uint32(m.narrow.HeadDim))
	add(narrowValue, uint32(m.narrow.HeadDim))
	add("rope.dimension_count", uint32(m.HeadDim))
	add(narrowRotated, uint32(m.narrow.HeadDim))
	add(sharedKeys, uint32(len(m.Blocks)-m.ownKeys()))
	add(layerRows, uint32(m.Blocks[0].PerLayer.Inner))
	if m.experts != nil {
		writeInner(m, add)
	}
}

func readGemma4(g *header, m *stated) error {
	arch, heads := m.arch.name+".", &m.gemma4
	limit, ok, err := g.float(arch + logitCap)
	if err != nil {
		return err
	}
	if !ok {
		limit = logitCapOfGemma4
	}
	if limit > 0 {
		m.also[logitCap] = floatF32(limit)
	}
	if heads.narrow, err = g.size(arch + narrowKey); err != nil {
		return err
	}
	for _, key := range []string{narrowValue, narrowRotated} {
		if n, err := g.size(arch + key); err != nil {
			return err
		} else if n != heads.narrow {
			return fmt.Errorf("metadata %s is %d, and %s is %d: they must be the same", arch+key, n, arch+narrowKey,
				heads.narrow)
		}
	}
	if heads.base, err = g.positive(arch+slidingBase, 10000); err != nil {
		return err
	}
	if _, err = g.size(arch + slidingWindow); err != nil {
		return err
	}
	if _, err = g.flags(arch+slidingPattern, m.layers); err != nil {
		return err
	}
	if err = g.windows(m, 0); err != nil {
		return err
	}
	if m.slides[m.layers-1] {
		return fmt.Errorf("metadata %s has a window in the last layer, which sees all in transformers",
			arch+slidingPattern)
	}
	for l, slides := range m.slides {
		of := &heads.fullKV
		if slides {
			of = &heads.narrowKV
		}
		if *of == 0 {
			*of = m.keyHeads[l]
		}
		if *of != m.keyHeads[l] {
			return fmt.Errorf("metadata %s differs in layers of one kind, such as layer %d", arch+keyHeads, l)
		}
	}
	if heads.narrowKV == 0 {
		return fmt.Errorf("metadata %s has no layer with a window, which is not supported", arch+slidingPattern)
	}
	if err := g.layersOfOthers(m); err != nil {
		return err
	}
	if keyIsValue := !g.hasTensor(fmt.Sprintf("blk.%d.attn_v.weight", m.layers-m.sharedKeys-1)); keyIsValue {
		m.also["attention_k_eq_v"], m.also["num_global_key_value_heads"] = true, heads.fullKV
	} else if heads.fullKV != heads.narrowKV {
		return fmt.Errorf("metadata %s differs between layers, and values are not keys: transformers has no such "+
			"gemma4", arch+keyHeads)
	}
	return nil
}

// proportional reads which columns are rotated of layers that see all.
func (g *header) proportional(f *tensorReader, m *stated) error {
	p := &m.rope
	if p.Kind != nn.RopeDefault {
		return fmt.Errorf("it has %s rope scaling, which is not supported for %s", p.Kind, m.arch.name)
	}
	if err := g.checkTensor(ropeFreqs, tensor.Shape{m.headDim / 2}); err != nil {
		return err
	}
	t := g.tensors[ropeFreqs]
	divisors := make([]float32, t.elems)
	if err := f.read(t, divisors, 0); err != nil {
		return err
	}
	factor := divisors[0]
	n := 1
	for n < len(divisors) && divisors[n] == factor {
		n++
	}
	isTurned := func(x float32) bool { return !(x >= notRotated/2) } // also if it is no number
	if !(factor > 0 && factor < 1e6) || slices.ContainsFunc(divisors[n:], isTurned) {
		return fmt.Errorf("tensor %s does not divide the first frequencies by one number and the others by %g",
			ropeFreqs, notRotated)
	}
	p.Kind, p.Factor, p.Rotated = nn.RopeProportional, float64(factor), 2*n
	return nil
}

func configGemma4(m *stated) map[string]any {
	p, heads := m.rope, m.gemma4
	full := map[string]any{"rope_type": "proportional", "rope_theta": m.theta,
		"partial_rotary_factor": rotaryFactor(p.Rotated, m.headDim)}
	if p.Factor != 1 {
		full["factor"] = floatF32(p.Factor)
	}
	keys := map[string]any{"attention_bias": false, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": nil,
		"head_dim": heads.narrow, "global_head_dim": m.headDim, "num_key_value_heads": heads.narrowKV,
		"layer_types": m.layerTypes(), "sliding_window": m.window, "hidden_size_per_layer_input": m.layerRows,
		"num_kv_shared_layers": m.sharedKeys, "enable_moe_block": false, "rope_theta": nil, "rope_scaling": nil,
		"rope_parameters": map[string]any{"full_attention": full, "sliding_attention": map[string]any{
			"rope_type": "default", "rope_theta": floatF32(heads.base)}}}
	if _, ok := m.also[logitCap]; !ok {
		keys[logitCap] = jsonNull
	}
	if m.layerRows > 0 {
		keys["vocab_size_per_layer_input"] = m.vocab
	}
	if m.experts > 0 {
		maps.Copy(keys, map[string]any{"enable_moe_block": true, "num_experts": m.experts,
			"top_k_experts": m.expertsUsed, "num_experts_per_tok": nil, "moe_intermediate_size": m.expertInner})
	}
	return keys
}
