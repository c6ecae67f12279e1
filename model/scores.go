package model

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/hf"
)

// A reward model is a decoder that ends in one number for a text instead of logits: the final norm's result at one of
// its positions times the row "score.weight", without a bias. In transformers it is the class ForSequenceClassification
// with one label (GenericForSequenceClassification in modeling_layers.py), and config.json says so. It has no lm_head,
// and an embedding that the head would share is an embedding alone.

// classifier ends the names of these classes.
const classifier = "ForSequenceClassification"

// classifiers are the beginnings of the names of these classes by model_type: of those that are the generic one, and
// that have no other part than the decoder.
var classifiers = map[string]string{"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3",
	"qwen3_moe": "Qwen3Moe", "qwen3_5_text": "Qwen3_5Text", "qwen3_next": "Qwen3Next", "mixtral": "Mixtral",
	"gpt_oss": "GptOss", "phi3": "Phi3", "smollm3": "SmolLM3", "seed_oss": "SeedOss", "ministral3": "Ministral3",
	"exaone4": "Exaone4", "glm4": "Glm4", "olmo2": "Olmo2", "olmo3": "Olmo3", "gemma2": "Gemma2",
	"gemma3_text": "Gemma3Text", "deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3"}

// Scoring says how a reward model reads a text.
type Scoring struct {
	// Pad is the token that texts are padded with, which the model does not read at their end: a text has the score of
	// its last other token, or of its first token. If Pad is negative, that is the last token.
	Pad int32
}

// Position is the position of a text whose score is the text's.
func (s Scoring) Position(tokens []int32) int {
	for t := len(tokens) - 1; t > 0; t-- {
		if s.Pad < 0 || tokens[t] != s.Pad {
			return t
		}
	}
	return 0
}

// IsScoring reports whether a config.json is that of a classifier, such as a reward model.
func IsScoring(c *hf.Config) bool { return isClassifier(c.Reader()) }

func isClassifier(r *hf.ConfigReader) bool {
	of := r.StringsOr("architectures", nil)
	return len(of) > 0 && strings.HasSuffix(of[0], classifier) && r.Err() == nil
}

// Scores reports whether the model is a reward model.
func (m *Model) Scores() bool { return m.Head.Scores }

// scores reads whether config.json describes a reward model, and refuses other classifiers.
func (s *Spec) scores(r *hf.ConfigReader) {
	if !isClassifier(r) {
		return
	}
	labels := r.SizeOr("num_labels", 2) // which is that of transformers, too
	if n := r.Entries("id2label"); n > 0 {
		labels = n
	}
	switch {
	case classifiers[s.family.ModelType] == "":
		r.Fail("architectures", "reward models of kind %s are not supported; supported are %s", s.family.ModelType,
			strings.Join(slices.Sorted(maps.Keys(classifiers)), ", "))
	case labels != 1:
		r.Fail("architectures", "it is a classifier of %d labels (id2label), and a reward model has 1", labels)
	case !r.Has("pad_token_id") && !r.IsNull("pad_token_id"): // to transformers it is then that of the class
		r.Fail("pad_token_id", "it says at which of its tokens a text has its score: write the id of the token that texts "+
			"are padded with, or null")
	}
	s.isScored, s.Scoring.Pad = true, int32(r.IntOr("pad_token_id", -1))
}

// endInScore has the spec end in scores.
func (s *Spec) endInScore() {
	s.replaced = s.family.Names.nameOf("lm_head.weight")
	s.Tied, s.LogitScale, s.SoftCap = false, 0, 0
	s.family.Names = s.family.Names.Renamed(Names{{Role: "lm_head.*", HF: "score.*"}})
}

// nameOf is the name in checkpoints of a role that no block has; "" if the table has no line for it.
func (n Names) nameOf(role string) string {
	line, word, ok := n.find(role)
	if !ok {
		return ""
	}
	return strings.ReplaceAll(n[line].HF, "*", word)
}

// ScoringConfig is the text of a config.json in which a model of text is a reward model, whose texts are padded with a
// token, or not if it is negative.
func ScoringConfig(c *hf.Config, pad int32) ([]byte, error) {
	kind := c.Reader().StringOr("model_type", "")
	class := classifiers[kind]
	if class == "" {
		return nil, fmt.Errorf("%s: there are no reward models of kind %s; there are of %s", c.Path(), cmp.Or(kind, "none"),
			strings.Join(slices.Sorted(maps.Keys(classifiers)), ", "))
	}
	classes, err := json.Marshal([]string{class + classifier})
	if err != nil {
		return nil, err
	}
	padding := "null"
	if pad >= 0 {
		padding = strconv.Itoa(int(pad))
	}
	text := c.Raw()
	for _, key := range [][2]string{{"architectures", string(classes)}, {"id2label", `{"0": "LABEL_0"}`},
		{"label2id", `{"LABEL_0": 0}`}, {"pad_token_id", padding}} {
		if text, err = hf.WithKey(text, key[0], key[1]); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Path(), err)
		}
	}
	return hf.WithoutKey(text, "num_labels")
}

// Drawn is a reward model whose files are those of a model of text: its row is drawn at random (InitPart), and their
// head is left out.
func (m *Model) Drawn() *Model {
	drawn := *m
	drawn.drawsScore = true
	return &drawn
}

// Draws reports whether files have nothing for a part.
func (m *Model) Draws(p *Part) bool { return m.drawsScore && p.Kind == HeadTile }
