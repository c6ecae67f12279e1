package data

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/millrace/millrace/data/template"
)

// Which template is taken, and which special tokens it sees, is as in transformers, see tokenizer/testdata/configs.py.
func TestChatsAreChosenAsInTransformers(t *testing.T) {
	var golden struct {
		Cases []struct {
			Name   string            `json:"name"`
			Config json.RawMessage   `json:"config"`
			Files  map[string]string `json:"files"`
			Chats  []*string         `json:"chats"` // without tools, with tools; nil: an error
		} `json:"cases"`
	}
	doc, err := os.ReadFile("tokenizer/testdata/configs.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(doc, &golden); err != nil || len(golden.Cases) < 80 {
		t.Fatalf("%d cases, %v", len(golden.Cases), err)
	}
	rendered := 0
	for _, c := range golden.Cases {
		dir := t.TempDir()
		write(t, dir, "tokenizer_config.json", string(c.Config))
		for name, text := range c.Files {
			write(t, dir, name, text)
		}
		chat, openErr := NewChat(dir, "")
		for i, want := range c.Chats {
			got, err := "", openErr
			if err == nil {
				got, err = chatText(t, chat, i == 1)
			}
			switch {
			case want == nil && err == nil:
				t.Errorf("%s, tools %v: %q, want an error", c.Name, i == 1, got)
			case want != nil && (err != nil || got != *want):
				t.Errorf("%s, tools %v: %q, error %v, want %q", c.Name, i == 1, got, err, *want)
			case want != nil:
				rendered++
			}
		}
	}
	if rendered < 8 {
		t.Errorf("%d templates were rendered", rendered)
	}
}

// chatText renders a question.
func chatText(t *testing.T, c *Chat, tools bool) (string, error) {
	t.Helper()
	in := template.Input{Messages: []template.Value{message(roleUser, "hi")}, Extra: c.config.Tokens}
	if tools {
		tool := template.NewDict(1)
		tool.Set("type", template.String("function"))
		in.Tools = []template.Value{tool}
	}
	source, err := c.config.Source(tools)
	if err != nil {
		return "", err
	}
	out, err := c.sources[source].Render(t.Context(), in)
	return out.Text, err
}
