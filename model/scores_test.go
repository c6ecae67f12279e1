package model_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
)

// scoringConfig is the config.json of a small reward model with other values of some keys; nil leaves a key out.
func scoringConfig(t *testing.T, change map[string]any) *hf.Config {
	t.Helper()
	c := map[string]any{"model_type": "llama", "architectures": []string{"LlamaForSequenceClassification"},
		"vocab_size": 98, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
		"max_position_embeddings": 128, "pad_token_id": 7, "id2label": map[string]string{"0": "LABEL_0"}}
	maps.Copy(c, change)
	maps.DeleteFunc(c, func(key string, _ any) bool { v, changed := change[key]; return changed && v == nil })
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := hf.ParseConfig("config.json", text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// A config.json says whether a model is a reward model, and one that transformers would read in another way is refused.
func TestScoringConfigs(t *testing.T) {
	for _, c := range []struct {
		change map[string]any
		want   string // of the error
	}{
		{nil, ""},
		{map[string]any{"id2label": nil, "num_labels": 1}, ""},
		{map[string]any{"id2label": nil}, `"architectures" is`},
		{map[string]any{"id2label": map[string]string{"0": "a", "1": "b"}}, "a classifier of 2 labels (id2label)"},
		{map[string]any{"num_labels": 3, "id2label": nil}, "a classifier of 3 labels"},
		{map[string]any{"pad_token_id": nil}, `"pad_token_id" is missing: it says at which of its tokens`},
		{map[string]any{"model_type": "granite", "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
			"attention_multiplier": 1.0, "logits_scaling": 1.0}, "reward models of kind granite are not supported"},
	} {
		m, err := model.New(scoringConfig(t, c.change))
		switch {
		case c.want == "" && (err != nil || !m.Scores() || m.Scoring.Pad != 7 || m.Tied):
			t.Errorf("%v: %v", c.change, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%v: %v, want %q", c.change, err, c.want)
		}
	}
}

// A reward model has its row in place of a head, also where that would be the embedding, and no GGUF file holds it.
func TestScoringTensors(t *testing.T) {
	for _, tied := range []bool{false, true} {
		m, err := model.New(scoringConfig(t, map[string]any{"tie_word_embeddings": tied}))
		if err != nil {
			t.Fatal(err)
		}
		all := m.Tensors()
		last := all[len(all)-1]
		if last.Name != "score.weight" || len(last.Shape) != 2 || last.Shape[0] != 1 || last.Shape[1] != 48 {
			t.Errorf("the last tensor is %s %v", last.Name, last.Shape)
		}
		if _, err := m.Tensor("lm_head.weight"); err == nil {
			t.Error("there is another head")
		}
		if _, err := m.GGUF(); err == nil || !strings.Contains(err.Error(), "cannot hold a reward model") {
			t.Errorf("as GGUF: %v", err)
		}
	}
}

// A text is read at its last token that is no padding.
func TestPosition(t *testing.T) {
	for _, c := range []struct {
		pad    int32
		tokens []int32
		want   int
	}{
		{7, []int32{1, 2, 3}, 2}, {7, []int32{1, 2, 7}, 1}, {7, []int32{1, 7, 7, 7}, 0}, {7, []int32{7, 7}, 0},
		{7, []int32{7, 1, 7, 2, 7}, 3}, {-1, []int32{1, 7}, 1}, {0, []int32{5, 0}, 0}, {7, []int32{5}, 0},
	} {
		if got := (model.Scoring{Pad: c.pad}).Position(c.tokens); got != c.want {
			t.Errorf("%v, padded with %d, is read at %d, want %d", c.tokens, c.pad, got, c.want)
		}
	}
}
