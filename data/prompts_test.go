package data

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A file of prompts has a text or a list of messages in each line, and each is read again from what JSON it becomes.
func TestReadPrompts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prompts.jsonl")
	file := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	file("{\"prompt\": \"a\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"[b]\"}]}\n{\"prompt\": \"[c]\"}")
	got, err := ReadPrompts(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Prompt{{Text: "a"}, {Messages: []Message{{User, "[b]"}}}, {Text: "[c]"}}, got); d != "" {
		t.Error(d)
	}
	doc, err := json.Marshal(got)
	var again []Prompt
	if err := json.Unmarshal(doc, &again); err != nil || cmp.Diff(got, again) != "" {
		t.Errorf("%s: %v, %v", doc, again, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                                      "is empty; write",
		"{\"prompt\": \"a\"}\n{}":               "line 2 of ",
		"{\"prompt\": 3}":                       "line 1 of ",
		"[1]":                                   "line 1 of ",
		"{\"prompt\": \"a\", \"messages\": []}": "line 1 of ",
	} {
		file(text)
		if all, err := ReadPrompts(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, error %v, want %s", text, all, err, want)
		}
	}
}
