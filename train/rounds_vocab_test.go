package train

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/millrace/millrace/train/traintest"
)

// A model whose table has more rows than the tokenizer has tokens samples from all of them, as its trainer and servers
// have them: the log-probabilities of the two agree, and the rows of its rounds are read.
func TestLoopOfPaddedVocabulary(t *testing.T) {
	c := loopConfig(t)
	config := maps.Clone(qwenConfig)
	config["vocab_size"] = 320
	c.Model, c.MaxSteps = traintest.WriteModel(t, config), 1
	m := loopRecords(t, c)[0]
	if d, ok := m.Objective[farthest]; !ok || d != 0 {
		t.Errorf("log-probabilities differ by %v", d)
	}
	// 257 to 319 have no token.
	beyond := 0
	for _, row := range roundRows(t, c.OutputDir, 0) {
		for _, id := range row["ids"].([]any) {
			if n := id.(json.Number); len(n) == 3 && n > "256" {
				beyond++
			}
		}
	}
	if beyond == 0 {
		t.Error("no id without a token was drawn, of a fifth of the table")
	}
}
