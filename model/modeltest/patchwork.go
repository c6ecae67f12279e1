package modeltest

import (
	"encoding/json"
	"maps"
)

// PatchworkConfig is the config.json of a Patchwork whose decoder has these keys of a Llama.
func PatchworkConfig(llama map[string]any) []byte {
	text := maps.Clone(llama)
	text["model_type"] = "patchwork_text"
	text["sliding_window"] = 3
	text["wide_intermediate_size"] = 2*llama["intermediate_size"].(int) + 1
	doc, err := json.Marshal(map[string]any{"model_type": Patchwork.ModelType, "text_config": text,
		"vision_config": map[string]any{"depth": 2}})
	if err != nil {
		panic(err) // numbers and text
	}
	return doc
}
