package model

import (
	_ "embed"
	"slices"
	"sync"

	"github.com/millrace/millrace/hf"
)

// defaultsJSON has the values of the configuration classes of transformers for keys that a config.json lacks or has as
// null. modeltest/golden_defaults.py writes it, from these classes alone, so no reader of a family repeats a default.
//
//go:embed defaults.json
var defaultsJSON []byte

var allDefaults = sync.OnceValue(func() map[string]*hf.Defaults {
	all, err := hf.ParseDefaults(defaultsJSON)
	if err != nil {
		panic("model: defaults.json: " + err.Error())
	}
	return all
})

// sizes are the keys that a config.json has to have, for they make the model that it describes.
var sizes = []string{"vocab_size", "num_hidden_layers", "max_position_embeddings", "hidden_size", "intermediate_size",
	"num_attention_heads", "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts", "num_local_experts",
	"n_routed_experts", "n_embd", "n_layer", "n_head", "n_positions"}

// defaults returns the defaults of a decoder's keys; nil for a family that transformers does not have. Where a
// configuration and its "text_config" have one class each, the head is the embedding by default if both say so.
func (f *Family) defaults(decoder *hf.ConfigReader) *hf.Defaults {
	class := f.ModelType
	if f.Class != "" {
		class = f.Class
	}
	d := allDefaults()[class]
	if d != nil && d.Text != "" {
		text := d.Text
		if d.Auto {
			text = decoder.StringOr("model_type", text)
		}
		outer := d
		if d = allDefaults()[text]; d != nil && !outer.IsTrue("tie_word_embeddings") {
			d = d.Without("tie_word_embeddings")
		}
	}
	if d == nil || f.NoSizes {
		return d
	}
	return d.Without(slices.Clone(sizes)...)
}
