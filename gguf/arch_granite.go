package gguf

import (
	"math"

	"github.com/millrace/millrace/hf"
)

// graniteScales are the multipliers of Granite, by their keys in config.json and in files. In llama.cpp 0 stands for an
// absent one, and for 1 except of the scores, where it is one over the root of a head's width.
var graniteScales = []struct{ key, inFile string }{{"attention_multiplier", "attention.scale"},
	{"embedding_multiplier", "embedding_scale"}, {"residual_multiplier", "residual_scale"},
	{"logits_scaling", "logit_scale"}}

func graniteKeys() (all []string) {
	for _, s := range graniteScales {
		all = append(all, s.inFile)
	}
	return all
}

// refuseGranite refuses what llama.cpp has not: a multiplier that it takes for an absent one.
func refuseGranite(_ *decoder, r *hf.ConfigReader) {
	for _, s := range graniteScales {
		if float32(r.Positive(s.key, 1)) == 0 {
			r.Fail(s.key, "llama.cpp takes a number as small as that for none: use the Hugging Face directory")
		}
	}
}

func writeGranite(m *decoder, add func(key string, value any)) {
	writeLlama(m, add)
	r := decoderKeys(m.config)
	for _, s := range graniteScales {
		add(s.inFile, float32(r.Positive(s.key, 1)))
	}
}

func readGranite(g *header, m *stated) error {
	for _, s := range graniteScales {
		x, _, err := g.float(m.arch.name + "." + s.inFile)
		if err != nil {
			return err
		}
		if x == 0 {
			x = 1
			if s.key == "attention_multiplier" {
				x = 1 / math.Sqrt(float64(m.headDim))
			}
		}
		m.also[s.key] = floatF32(x)
	}
	return nil
}

func configGranite(m *stated) map[string]any {
	return map[string]any{"attention_bias": m.attentionBias, "mlp_bias": m.mlpBias}
}
