package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/train/verbs"
)

// TestTurnsThatNeverEndAreRefused: a run whose turns teach a model to never stop is a wrong request, before its first step;
// preview shows it all the same. A run whose turns end says so, and has the counts in its summary.
func TestTurnsThatNeverEndAreRefused(t *testing.T) {
	spec, err := os.ReadFile(filepath.Join("..", "data", "tokenizer", "testdata", "smollm2.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, template := range map[string]string{
		"never":   "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|eos|>{% endfor %}",
		"lacking": "{% for m in messages %}<|x|>{{ m.role }}: {{ m.content }}<|/x|>\n{% endfor %}{{ '<|x|>assistant: ' if add_generation_prompt }}",
		"ends":    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|eos|>{% endfor %}{{ 'assistant: ' if add_generation_prompt }}",
	} {
		c := smallConfig(t)
		c.Model = writeModel(t, map[string]any{"vocab_size": 600, "eos_token_id": 560})
		c.Tokenizer = "auto"
		write(t, filepath.Join(c.Model, "tokenizer.json"), string(spec))
		write(t, filepath.Join(c.Model, "tokenizer_config.json"), `{"eos_token": "<|eos|>"}`)
		write(t, filepath.Join(c.Model, "chat_template.jinja"), template)
		rows := filepath.Join(t.TempDir(), "a.jsonl")
		write(t, rows, strings.Repeat(`{"prompt": "a", "response": "b"}`+"\n", 40))
		c.MaxSteps, c.Datasets = 1, []data.Source{{Path: rows, Type: data.PromptResponse}}
		var said strings.Builder
		env := newEnv(t)
		env.Progress = &said
		sum, err := Train(context.Background(), c, Options{Env: env})
		preview, shown := verbs.Preview(context.Background(), newEnv(t), c, verbs.PreviewOptions{Limit: 1},
			func(verbs.PreviewExample) error { return nil })
		if shown != nil || len(preview.TurnLines) != 1 {
			t.Fatalf("%s: preview: %v, %+v", name, shown, preview)
		}
		line := preview.TurnLines[0]
		if name == "ends" {
			if err != nil || sum.Turns != 40 || sum.EndedTurns != 40 || !strings.Contains(said.String(), line) ||
				line != "40 turns of the assistant: each ends with a token at which a generation ends" {
				t.Errorf("%s: %v, %+v, %q, said\n%s", name, err, sum, line, said.String())
			}
			continue
		}
		if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "no turn of the assistant ends with a token") || err.Error() != line {
			t.Errorf("%s: error %v; preview says %q", name, err, line)
		}
		if _, err := os.Stat(c.OutputDir); err == nil {
			t.Errorf("%s: the run has made its directory", name)
		}
	}
}
