package export

import (
	"encoding/json"
	"strings"
	"testing"
)

// A config.json without a size, which then stands for one, cannot say that the model has grown.
func TestAddTokensNeedsSizes(t *testing.T) {
	for _, c := range []struct {
		left, want string
		cols       int
	}{
		{"vocab_size", `write "vocab_size": 262144 into it`, 0},
		{"vocab_size_per_layer_input", `needs as many rows as "vocab_size" says, 262147`, 8},
	} {
		config := map[string]any{"model_type": "gemma4_text", "vocab_size": 262147, "hidden_size": 48,
			"intermediate_size": 96,
			"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
			"rms_norm_eps": 1e-5, "head_dim": 12, "global_head_dim": 24, "sliding_window": 16,
			"hidden_size_per_layer_input": c.cols, "vocab_size_per_layer_input": 320, "tie_word_embeddings": true}
		delete(config, c.left)
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		err = checkRows("config.json", text, 262147)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("without %s: %v, want %q", c.left, err, c.want)
		}
	}
}
