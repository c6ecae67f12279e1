package gguf

import (
	"math"

	"github.com/millrace/millrace/hf"
)

// graniteScales are the multipliers of Granite, by their keys in config.json. In llama.cpp 0 stands for an absent one,
// and for 1 except of the scores, where it is one over the root of a head's width.
var graniteScales = map[string]string{"embedding_multiplier": "embedding_scale", "attention_multiplier": "attention.scale",
	"residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}

// refuseGranite refuses what llama.cpp has not: a multiplier that it takes for an absent one.
func refuseGranite(_ *decoder, r *hf.ConfigReader) {
	for key := range graniteScales {
		if float32(r.Positive(key, 1)) == 0 {
			r.Fail(key, "llama.cpp takes a number as small as that for none: use the Hugging Face directory")
		}
	}
}

func writeGranite(m *decoder, add func(key string, value any)) {
	writeLlama(m, add)
	r := decoderKeys(m.config)
	for _, key := range []string{"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"} {
		add(graniteScales[key], float32(r.Positive(key, 1)))
	}
}

func readGranite(g *header, m *stated) error {
	for key, name := range graniteScales {
		x, _, err := g.float(m.arch.name + "." + name)
		if err != nil {
			return err
		}
		if x == 0 {
			x = 1
			if key == "attention_multiplier" {
				x = 1 / math.Sqrt(float64(m.headDim))
			}
		}
		m.also[key] = floatF32(x)
	}
	return nil
}

func configGranite(m *stated) map[string]any {
	return map[string]any{"attention_bias": m.attentionBias, "mlp_bias": m.mlpBias}
}
