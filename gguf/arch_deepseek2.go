package gguf

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// What files say of latent attention. In llama.cpp keys and values of all heads are the latents themselves, and the
// queries of a head are multiplied by what would make keys of them. The widths of the heads that a model has are those
// with "mla" in their keys.
const (
	queryRank  = "attention.q_lora_rank"
	keyRank    = "attention.kv_lora_rank"
	keyWidth   = "attention.key_length_mla"
	valueWidth = "attention.value_length_mla"
)

var latentKeys = slices.Concat(routingKeys, []string{queryRank, keyRank, keyWidth, valueWidth, yarnLogMultiple})

// latentMultiple turns "mscale_all_dim" into the yarnLogMultiple of files of latent attention, which is the product of
// both. Source: llama.cpp's converter (conversion/deepseek.py).
const latentMultiple = 0.1

// latentHeads holds the ranks and widths of latent attention that a file states.
type latentHeads struct {
	queryRank           int // 0: queries are of one product
	keyRank             int
	plain, rotated, val int         // columns of a head's query and key that are not rotated and that are; of its value
	multiple            json.Number // of yarn: "mscale_all_dim"
}

// hasQueryRank reports whether llama.cpp wants a rank of queries: by the number of layers, and of rows of the
// embedding. Source: its src/models/deepseek2.cpp (is_lite).
func hasQueryRank(layers, vocab int) bool {
	return layers != 26 && layers != 27 && !(layers == 48 && vocab == 128256)
}

// refuseDeepSeek refuses what llama.cpp has not, and notes what it computes otherwise. Source: its
// src/models/deepseek2.cpp, and for yarn also src/llama-context.cpp.
func refuseDeepSeek(m *decoder, r *hf.ConfigReader) {
	refuseOtherBiases(m, r)
	refuseRouting(m, r)
	l, layers := m.latent, len(m.Blocks)
	switch wants := hasQueryRank(layers, m.Vocab); {
	case wants && l.QueryRank == 0:
		r.Fail("q_lora_rank", "llama.cpp needs one for a deepseek2 of %d layers: use the Hugging Face directory",
			layers)
	case !wants && l.QueryRank > 0:
		r.Fail("q_lora_rank", "llama.cpp has none for a deepseek2 of %d layers: use the Hugging Face directory",
			layers)
	}
	for i, b := range m.Blocks {
		if _, routed := b.FeedForward.(nn.Experts); routed != (i >= m.dense) {
			r.Fail("mlp_layer_types", "in llama.cpp the layers without experts come first: "+
				"use the Hugging Face directory")
		}
	}
	if m.experts != nil && m.experts.Route.ByBest {
		r.Fail("topk_method", "llama.cpp chooses groups by their two best experts: use the Hugging Face directory")
	}
	key := "rope_parameters"
	if r.Has("rope_scaling") {
		key = "rope_scaling"
	}
	switch {
	case m.Rope.Kind == nn.RopeLinear:
		r.Fail(key, "llama.cpp has no linear kind for deepseek2: use the Hugging Face directory")
	case m.Rope.Kind == nn.RopeYaRN && (m.Rope.Magnitude != 1 || !(m.multiple() > 0)):
		r.Fail(key, "llama.cpp needs \"mscale_all_dim\" for the yarn of deepseek2, and an equal \"mscale\": "+
			"use the Hugging Face directory")
	}
	if l.Eps != m.Head.Norm.Eps {
		m.notes = append(m.notes, fmt.Sprintf("the norms of latents add %g, and those of llama.cpp add %g, as the "+
			"other norms do: its logits differ a little", l.Eps, m.Head.Norm.Eps))
	}
}

// multiple is the "mscale_all_dim" of yarn; 0: it has none.
func (m *decoder) multiple() (all float64) {
	for _, object := range []string{"rope_scaling", "rope_parameters"} {
		if scaling, ok := decoderKeys(m.config).Object(object); ok {
			all = scaling.FloatOr("mscale_all_dim", all)
		}
	}
	return all
}

func writeDeepSeek(m *decoder, add func(key string, value any)) {
	l := m.latent
	add("vocab_size", uint32(m.Vocab))
	if l.QueryRank > 0 {
		add(queryRank, uint32(l.QueryRank))
	}
	add(keyRank, uint32(l.KeyRank))
	add(keyWidth, uint32(l.Plain+l.Rotated))
	add(valueWidth, uint32(l.ValueDim))
	writeRotated(m, add)
	writeGroups(m, add)
	writeRouting(m, add)
}

// latentHeads reads the widths of heads. Files from before llama.cpp had latents in its cache have none of them.
func (g *header) latentHeads(m *stated) error {
	arch, l := m.arch.name+".", &m.latent
	if m.keyHeads[0] != 1 {
		return fmt.Errorf("metadata %sattention.head_count_kv is %d: 1 is supported, as llama.cpp has it since 2025; "+
			"convert the model again", arch, m.keyHeads[0])
	}
	var head int
	for _, s := range []struct {
		key string
		to  *int
	}{{keyRank, &l.keyRank}, {keyWidth, &head}, {valueWidth, &l.val}, {"rope.dimension_count", &l.rotated}} {
		n, err := g.size(arch + s.key)
		if err != nil {
			return err
		}
		*s.to = n
	}
	if g.has(arch + queryRank) {
		n, err := g.size(arch + queryRank)
		if err != nil {
			return err
		}
		l.queryRank = n
	}
	for i, key := range []string{"attention.value_length", "attention.key_length"} {
		if n, err := g.size(arch + key); err != nil {
			return err
		} else if want := l.keyRank + i*l.rotated; n != want {
			return fmt.Errorf("metadata %s is %d: with a rank of %d and %d rotated columns it is %d", arch+key, n,
				l.keyRank, l.rotated, want)
		}
	}
	if l.plain = head - l.rotated; l.plain < 1 {
		return fmt.Errorf("metadata %s is %d, of which %d are rotated: some must not be", arch+keyWidth, head,
			l.rotated)
	}
	m.headDim = l.rotated // the width that rotary positions have
	return nil
}

// latentYaRN reads the factor of scores. Sines and cosines have none in llama.cpp.
func (g *header) latentYaRN(m *stated) error {
	arch := m.arch.name + "."
	share, err := g.positive(arch+yarnLogMultiple, 0)
	if err != nil {
		return err
	}
	exact, err := shortestF32(share).Float64()
	if err != nil {
		return err
	}
	if err := checkF32(arch+yarnLogMultiple, exact/latentMultiple); err != nil {
		return err
	}
	m.latent.multiple, m.rope.Magnitude = floatF32(exact/latentMultiple), 1
	for _, key := range []string{scalingAttn, yarnAttn} {
		if factor, err := g.positive(arch+key, 1); err != nil {
			return err
		} else if factor != 1 {
			return fmt.Errorf("metadata %s is %g: 1 is supported with latent attention", arch+key, factor)
		}
	}
	return nil
}

func readDeepSeek(g *header, m *stated) error {
	arch := m.arch.name + "."
	if kind, _, err := g.text(arch + scalingType); err != nil {
		return err
	} else if kind == "linear" {
		return fmt.Errorf("metadata %s is \"linear\": none and yarn are supported for %s", arch+scalingType,
			m.arch.name)
	}
	if err := g.nextLayers(m); err != nil {
		return err
	}
	absent := gatingSoftmax
	if (m.layers == 47 || m.layers == 48) && m.vocab == 154880 { // what llama.cpp knows GLM-4.7-Flash by
		absent = gatingSigmoid
	}
	if err := g.routing(m, absent, gatingSoftmax, gatingSigmoid); err != nil {
		return err
	}
	if m.routing.gating == gatingSoftmax && m.routing.groups > 1 {
		return fmt.Errorf("metadata %sexpert_group_count is %d: groups are not supported where a softmax scores "+
			"experts", arch, m.routing.groups)
	}
	return nil
}

// typeOfDeepSeek is DeepSeek-V2 if a softmax scores experts, or else DeepSeek-V3.
func typeOfDeepSeek(m *stated) string {
	if m.routing.gating == gatingSoftmax {
		return "deepseek_v2"
	}
	return m.arch.mixture
}

func configDeepSeek(m *stated) map[string]any {
	keys, l := m.routingConfig(), m.latent
	keys["attention_bias"], keys["head_dim"], keys["num_key_value_heads"] = false, nil, m.heads
	keys["attention_dropout"] = floatF32(0) // transformers refuses a whole number of deepseek_v2
	keys["kv_lora_rank"], keys["v_head_dim"] = l.keyRank, l.val
	keys["qk_nope_head_dim"], keys["qk_rope_head_dim"] = l.plain, l.rotated
	if keys["q_lora_rank"] = jsonNull; l.queryRank > 0 {
		keys["q_lora_rank"] = l.queryRank
	}
	if m.modelType == "deepseek_v2" {
		keys["topk_method"] = "greedy"
	} else {
		keys["n_group"], keys["topk_group"] = max(m.routing.groups, 1), max(m.routing.usedGroups, 1)
	}
	return keys
}
