package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A tokenizer_config.json changes the same as in transformers, see testdata/configs.py; or it is refused.
func TestConfigsAreAppliedAsInTransformers(t *testing.T) {
	var golden struct {
		Texts []string `json:"texts"`
		Cases []struct {
			Name      string            `json:"name"`
			Tokenizer string            `json:"tokenizer"`
			Config    json.RawMessage   `json:"config"`
			Files     map[string]string `json:"files"`
			BOS       *int32            `json:"bos"`
			EOS       *int32            `json:"eos"`
			IDs       [][]int32         `json:"ids"`
			Bare      [][]int32         `json:"bare"`
		} `json:"cases"`
	}
	doc, err := os.ReadFile("testdata/configs.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(doc, &golden); err != nil || len(golden.Cases) < 80 {
		t.Fatalf("%d cases, %v", len(golden.Cases), err)
	}
	// transformers gives tokens that are nowhere new ids, which no model has rows for.
	refused := map[string]string{
		"eos that is nowhere":  `eos_token "<end>" is not in the vocabulary`,
		"added_tokens.json":    `token "<new>" is not in tokenizer.json`,
		"split special tokens": "split_special_tokens is not supported",
	}
	for _, c := range golden.Cases {
		t.Run(c.Name, func(t *testing.T) {
			dir := t.TempDir()
			spec, err := os.ReadFile(filepath.Join("testdata", c.Tokenizer+".json"))
			if err != nil {
				t.Fatal(err)
			}
			files := map[string]string{"tokenizer.json": string(spec), "tokenizer_config.json": string(c.Config)}
			for name, text := range c.Files {
				files[name] = text
			}
			for name, text := range files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			tok, err := Load(dir)
			if want := refused[c.Name]; want != "" {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if tok.BOS() != idOrNone(c.BOS) || tok.EOS() != idOrNone(c.EOS) {
				t.Errorf("bos %d, eos %d, want %d and %d", tok.BOS(), tok.EOS(), idOrNone(c.BOS), idOrNone(c.EOS))
			}
			for i, text := range golden.Texts {
				if c.Name == "pad that is nowhere" && strings.Contains(text, "[PAD]") {
					continue // left out: no text of training data is to be padding
				}
				before, after := tok.Template()
				bare := tok.Encode(text, false)
				if !slices.Equal(bare, c.Bare[i]) {
					t.Errorf("%q\n got %v\nwant %v", text, spell(tok, bare), spell(tok, c.Bare[i]))
				}
				if got := slices.Concat(before, bare, after); !slices.Equal(got, c.IDs[i]) || !slices.Equal(tok.Encode(text, true), c.IDs[i]) {
					t.Errorf("%q with what the template adds\n got %v\nwant %v", text, spell(tok, got), spell(tok, c.IDs[i]))
				}
			}
		})
	}
}

// TestReadConfig: what is not an object has one line with its path, and null is as good as nothing.
func TestReadConfig(t *testing.T) {
	for _, c := range []struct{ config, special, want, fail string }{
		{`null`, `{"eos_token": "end"}`, `{"eos_token":"end"}`, ""},
		{`{"a": 1}`, `null`, `{"a":1}`, ""},
		{`[]`, `{}`, "", configName},
		{`{}`, `[]`, "", specialName},
		{`{}`, `{"additional_special_tokens": 1}`, "", specialName + ": additional_special_tokens"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{configName: c.config, specialName: c.special} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadConfig(dir)
		if c.fail == "" && (err != nil || string(got) != c.want) {
			t.Errorf("%s and %s: %s, %v", c.config, c.special, got, err)
		}
		if c.fail != "" && (err == nil || !strings.HasPrefix(err.Error(), filepath.Join(dir, c.fail)+": ")) {
			t.Errorf("%s and %s: error %v", c.config, c.special, err)
		}
	}
}

func idOrNone(id *int32) int32 {
	if id == nil {
		return None
	}
	return *id
}
