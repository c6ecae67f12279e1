package gguf

import (
	"fmt"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// temperature is by how much queries grow with positions (nn.RopeFrequencies.QueryBeta).
const temperature = "attention.temperature_scale"

// refuseMistral3 refuses what llama.cpp has not. Source: its src/models/mistral3.cpp, which takes the original
// positions of yarn for those of queries.
func refuseMistral3(m *decoder, r *hf.ConfigReader) {
	if m.Rope.QueryBeta != 0 && m.Rope.Kind != nn.RopeYaRN {
		r.Fail("rope_parameters", "llama.cpp scales queries by position with yarn only: use the Hugging Face directory")
	}
}

func writeMistral3(m *decoder, add func(key string, value any)) {
	writeLlama(m, add)
	if m.Rope.QueryBeta != 0 {
		add(temperature, float32(m.Rope.QueryBeta))
	}
}

func readMistral3(g *header, m *stated) error {
	beta, _, err := g.float(m.arch.name + "." + temperature)
	if err == nil && beta < 0 {
		err = fmt.Errorf("metadata %s.%s is negative", m.arch.name, temperature)
	}
	if err == nil && beta > 0 {
		if kind, _, _ := g.text(m.arch.name + "." + scalingType); kind != "yarn" {
			err = fmt.Errorf("metadata %s.%s scales queries by position, which llama.cpp does with yarn only",
				m.arch.name, temperature)
		}
	}
	m.rope.QueryBeta = beta
	return err
}

// typeOfMistral3 is Ministral 3 if queries are scaled, or else Mistral.
func typeOfMistral3(m *stated) string {
	if m.rope.QueryBeta != 0 {
		return "ministral3"
	}
	return "mistral"
}

func configMistral3(m *stated) map[string]any {
	keys := map[string]any{"sliding_window": jsonNull}
	if m.rope.QueryBeta != 0 {
		params := m.scalingConfig()
		params["rope_theta"], params["llama_4_scaling_beta"] = m.theta, floatF32(m.rope.QueryBeta)
		keys["rope_parameters"], keys["rope_scaling"], keys["rope_theta"] = params, nil, nil
	}
	return keys
}
