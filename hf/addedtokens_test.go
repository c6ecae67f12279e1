package hf

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTokenizerWith adds tokens to files in the forms that exist: lists with a line for each token, in one line, empty
// and absent. The rest of each file stays.
func TestTokenizerWith(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tokenizer.json":          "{\n  \"version\": \"1.0\",\n  \"added_tokens\": [\n    {\n      \"id\": 4,\n      \"content\": \"<e>\"\n    }\n  ],\n  \"model\": {\"vocab\": {\"a\": 0, \"\\u00e9\": 1}}\n}\n",
		"tokenizer_config.json":   `{"additional_special_tokens": ["<e>"], "added_tokens_decoder": {"4": {"content": "<e>"}}, "bos_token": null}`,
		"special_tokens_map.json": "{\n  \"additional_special_tokens\": []\n}",
		"added_tokens.json":       "{\n  \"<e>\": 4\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := TokenizerWith(dir, []AddedToken{{5, "<|im_start|>", true}, {6, "\"é\"", false}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, text := range files {
		got[name] = string(text)
	}
	special := `"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`
	plain := `"single_word":false,"lstrip":false,"rstrip":false,"normalized":true,"special":false}`
	want := map[string]string{
		"tokenizer.json": "{\n  \"version\": \"1.0\",\n  \"added_tokens\": [\n    {\n      \"id\": 4,\n      \"content\": \"<e>\"\n    },\n" +
			`    {"id":5,"content":"<|im_start|>",` + special + ",\n" + `    {"id":6,"content":"\"é\"",` + plain +
			"\n  ],\n  \"model\": {\"vocab\": {\"a\": 0, \"\\u00e9\": 1}}\n}\n",
		"tokenizer_config.json": `{"additional_special_tokens": ["<e>", "<|im_start|>"], "added_tokens_decoder": {"4": {"content": "<e>"}, ` +
			`"5": {"content":"<|im_start|>",` + special + `, "6": {"content":"\"é\"",` + plain + `}, "bos_token": null}`,
		"special_tokens_map.json": "{\n  \"additional_special_tokens\": [\"<|im_start|>\"]\n}",
		"added_tokens.json":       "{\n  \"<e>\": 4,\n  \"<|im_start|>\": 5,\n  \"\\\"é\\\"\": 6\n}\n",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for text, want := range map[string]string{"{": "ends too early", `{"model": {}}`: "it has no added_tokens",
		`{"added_tokens": null}`: "it has no added_tokens", `{"added_tokens": 3}`: `"added_tokens" is a number`} {
		if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := TokenizerWith(dir, []AddedToken{{5, "a", true}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

// FuzzTokenizerWith adds tokens to any file: an error, or a file that has them and is as it was in all else.
func FuzzTokenizerWith(f *testing.F) {
	for _, seed := range []string{`{"added_tokens": []}`, "{\"added_tokens\":[\n 1\n]\t}", `{"added_tokens": [[], {}], "a": {"b": "]"}}`,
		"{\n  \"added_tokens\": [\n    {}\n  ]\n}\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), doc, 0o644); err != nil {
			t.Fatal(err)
		}
		files, err := TokenizerWith(dir, []AddedToken{{5, "a", true}, {6, "b", false}})
		if err != nil {
			return
		}
		var before, after map[string]any
		if err := errors.Join(json.Unmarshal(doc, &before), json.Unmarshal(files["tokenizer.json"], &after)); err != nil {
			t.Fatalf("%s: %v", files["tokenizer.json"], err)
		}
		old, _ := before["added_tokens"].([]any)
		list, _ := after["added_tokens"].([]any)
		if len(list) != len(old)+2 && before["added_tokens"] != nil {
			t.Fatalf("%d tokens became %d: %s", len(old), len(list), files["tokenizer.json"])
		}
		after["added_tokens"] = before["added_tokens"]
		if d := cmp.Diff(before, after); d != "" {
			t.Fatal(d)
		}
	})
}

func TestWithVocabSize(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": 1, "vocab_size": 320, "b": "vocab_size"}`:                   `{"a": 1, "vocab_size": 1000, "b": "vocab_size"}`,
		`{"text_config": {"vocab_size": 9}}`:                               `{"text_config": {"vocab_size": 1000}}`,
		`{"vocab_size":12345,"text_config": {"x": [], "vocab_size": 9 } }`: `{"vocab_size":1000,"text_config": {"x": [], "vocab_size": 1000 } }`,
		`{"text_config": {"vocab_size_per_layer_input": 7, "vocab_size": 8}}`: `{"text_config": ` +
			`{"vocab_size_per_layer_input": 1000, "vocab_size": 1000}}`,
	} {
		c, err := ParseConfig("config.json", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.WithVocabSize(1000); err != nil || string(got) != want {
			t.Errorf("%s, error %v, want %s", got, err, want)
		}
	}
	c, err := ParseConfig("config.json", []byte(`{"vocab_size": "many"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.WithVocabSize(3); err == nil {
		t.Errorf("a text is a size: %s", got)
	}
}
