package gguf

import (
	"slices"

	"github.com/millrace/millrace/hf"
)

// What files of models that see images say in addition: the frequencies that go by time, row and column, and how many
// layers get rows of the vision tower added. Neither matters for text.
const (
	sections  = "rope.dimension_sections"
	deepstack = "n_deepstack_layers"
)

// imageKeys are the keys of both.
var imageKeys = []string{sections, deepstack}

// vlArchitectures are the text of Qwens that see images. A file of one comes back as the Qwen that its text is.
var vlArchitectures = []*architecture{
	{name: "qwen2vl", dense: "qwen2", keys: imageKeys, write: writeSections(16, 24, 24), config: configQwen2},
	{name: "qwen3vl", dense: "qwen3", keys: imageKeys, refuse: refuseQwen3, write: writeQwen3VL, config: configQwen3},
	{name: "qwen3vlmoe", mixture: "qwen3_moe", inner: expertInner, keys: slices.Concat(imageKeys, []string{
		"expert_count", "expert_used_count", expertInner}), refuse: refuseQwen3MoE, write: writeQwen3VLMoE,
		config: configQwen3MoE},
}

// writeSections returns what adds the sections: those of config.json, or else these, which transformers takes.
func writeSections(def ...int) func(m *decoder, add func(key string, value any)) {
	return func(m *decoder, add func(key string, value any)) {
		all := def
		for _, key := range []string{"rope_scaling", "rope_parameters"} {
			if scaling, ok := decoderKeys(m.config).Object(key); ok {
				all = scaling.IntsOr("mrope_section", all)
			}
		}
		four := make([]int32, 4)
		for i, n := range all[:min(len(all), 4)] {
			four[i] = int32(n)
		}
		add(sections, four)
	}
}

func writeQwen3VL(m *decoder, add func(key string, value any)) {
	writeSections(24, 20, 20)(m, add)
	layers := []int(nil)
	if vision, ok := m.config.Reader().Object("vision_config"); ok {
		layers = vision.IntsOr("deepstack_visual_indexes", []int{8, 16, 24}) // what transformers takes
	}
	add(deepstack, uint32(len(layers)))
}

func writeQwen3VLMoE(m *decoder, add func(key string, value any)) {
	writeQwen3VL(m, add)
	writeInner(m, add)
}

// decoderKeys reads the keys of the decoder, which are nested in models that see images.
func decoderKeys(c *hf.Config) *hf.ConfigReader {
	if r := c.Reader(); r.Has("text_config") {
		return r.Config("text_config")
	}
	return c.Reader()
}
