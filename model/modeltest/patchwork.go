package modeltest

import (
	"encoding/json"
	"maps"
)

// PatchworkConfig is the config.json of a Patchwork whose decoder has these keys of a Llama; with "groups" among
// them, of a Piecework.
func PatchworkConfig(llama map[string]any) []byte {
	text := maps.Clone(llama)
	text["model_type"] = "patchwork_text"
	text["sliding_window"] = 3
	text["wide_intermediate_size"] = 2*llama["intermediate_size"].(int) + 1
	family := Patchwork.ModelType
	if llama["groups"] != nil {
		family = Piecework.ModelType
		text["model_type"] = "piecework_text"
	}
	doc, err := json.Marshal(map[string]any{"model_type": family, "text_config": text,
		"vision_config": map[string]any{"depth": 2}})
	if err != nil {
		panic(err) // numbers and text
	}
	return doc
}
