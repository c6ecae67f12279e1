package train

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/source"
)

// The ids at which a generation ends, as generation_config.json and config.json list them, end the turns that a chat template leaves
// open; not with another tokenizer, whose ids mean something else.
func TestStopsOfTheTemplate(t *testing.T) {
	dir := writeModel(t, map[string]any{"vocab_size": 600, "eos_token_id": 560})
	spec, err := os.ReadFile(filepath.Join("..", "data", "tokenizer", "testdata", "smollm2.json"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tokenizer.json"), string(spec))
	write(t, filepath.Join(dir, "tokenizer_config.json"), `{"eos_token": "<|eos|>"}`)
	write(t, filepath.Join(dir, "generation_config.json"), `{"eos_token_id": [9, 7]}`)
	write(t, filepath.Join(dir, "chat_template.jinja"), turnTemplate)
	src, err := source.OpenModel(t.Context(), newEnv(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]int32{"auto": {7, 9, 560, 561}, "bytes": nil} {
		r, err := src.OpenReader(&runfile.Config{Tokenizer: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Renderer.(*data.Chat).Stops; !slices.Equal(got, want) {
			t.Errorf("tokenizer %s: stops %v, want %v", name, got, want)
		}
	}
}
