package model

import "github.com/millrace/millrace/hf"

// mistral3 has Llama's names below those of the language model.
var mistral3 = Llama.Under("language_model.model.").Renamed(Names{{Role: "lm_head.*",
	HF: "language_model.lm_head.*", GGUF: "output.*"}})

// mistral3Images turn images into rows.
var mistral3Images = []string{"vision_tower.*", "multi_modal_projector.*"}

// readMistral3 reads the text of models that see images: Mistral Small 3.1 and 3.2, and Ministral 3.
// Source: transformers, configuration_mistral3.py and modeling_mistral3.py.
func readMistral3(c *hf.Config, r *hf.ConfigReader, s *Spec) {
	if r.OneOf("model_type", "mistral", "mistral", "ministral3") == "ministral3" {
		readMinistral3(c, r, s)
	} else {
		readMistral(c, r, s)
	}
	s.Outer.Ignore("vision_config", "image_token_index", "image_token_id", "projector_hidden_act",
		"vision_feature_layer", "multimodal_projector_bias", "spatial_merge_size")
}

// readMinistral3 reads the text of Ministral 3: Mistral's block with YaRN, and queries that are scaled by position.
// Source: transformers, configuration_ministral3.py and modeling_ministral3.py.
func readMinistral3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	scaling, params := ropeObjects(r)
	if params == nil {
		params = scaling
	}
	if params != nil {
		params.Ignore("max_position_embeddings") // a copy
		s.Attention.Rope.QueryBeta = params.FloatOr("llama_4_scaling_beta", 0)
		if s.Attention.Rope.OriginalPositions == 0 { // only YaRN reads it
			s.Attention.Rope.OriginalPositions = params.Size("original_max_position_embeddings")
		}
	}
	s.windowEverywhere(window(r))
}
