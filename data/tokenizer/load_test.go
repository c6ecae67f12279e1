package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// small returns a valid tokenizer.json with one value replaced at the given path of keys.
func small(t testing.TB, value any, path ...string) []byte {
	t.Helper()
	var file map[string]any
	if err := json.Unmarshal([]byte(`{
		"version": "1.0", "truncation": null, "padding": null,
		"added_tokens": [{"id": 4, "content": "<e>", "special": true}],
		"normalizer": null,
		"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": null,
		"decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "abab": 3}, "merges": ["a b", ["ab", "ab"]]}
	}`), &file); err != nil {
		t.Fatal(err)
	}
	at := file
	for i, key := range path {
		if i == len(path)-1 {
			at[key] = value
		} else {
			at = at[key].(map[string]any)
		}
	}
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type object = map[string]any

// TestParseErrors has a row for each thing that this package refuses; the error must name it.
func TestParseErrors(t *testing.T) {
	if _, err := Parse(small(t, nil)); err != nil {
		t.Fatalf("the valid file: %v", err)
	}
	split := func(regex string) object {
		return object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "pattern": object{"Regex": regex}, "behavior": "Isolated", "invert": false},
			object{"type": "ByteLevel", "use_regex": false}}}
	}
	doubling := object{"type": "Replace", "pattern": object{"String": "a"}, "content": strings.Repeat("a", 10)}
	added := func(id int, content string) []any { return []any{object{"id": id, "content": content}} }
	for _, c := range []struct {
		want  string
		value any
		path  string
	}{
		{"where '[' should be", "Unigram", "model type"},
		{`type "WordPiece"`, "WordPiece", "model type"},
		{`type "WordLevel"`, "WordLevel", "model type"},
		{"end_of_word_suffix", "</w>", "model end_of_word_suffix"},
		{"dropout", 0.1, "model dropout"},
		{"continuing_subword_prefix", "##", "model continuing_subword_prefix"},
		{"unk_token", "nope", "model unk_token"},
		{"no_such_key", 1, "model no_such_key"},
		{"no_such_key", 1, "no_such_key"},
		{"no model", nil, "model"},
		{"vocab is empty", object{}, "model vocab"},
		{"both have id 0", object{"a": 0, "b": 0}, "model vocab"},
		{"id -1", object{"a": -1}, "model vocab"},
		{"id 4000000000", object{"a": 4000000000}, "model vocab"},
		{"empty", object{"": 0}, "model vocab"},
		{"merge 0", []any{"a c"}, "model merges"},
		{"not two tokens", []any{"ab"}, "model merges"},
		{"not two tokens", []any{[]any{"a"}}, "model merges"},
		{"type Shout", object{"type": "Shout"}, "normalizer"},
		{"type Shout", object{"type": "Sequence", "normalizers": []any{object{"type": "Shout"}}}, "normalizer"},
		{"Replace: it needs one pattern", object{"type": "Replace", "content": "x"}, "normalizer"},
		{"256 times longer", object{"type": "Sequence", "normalizers": []any{doubling, doubling, doubling}}, "normalizer"},
		{"more than 64 steps", object{"type": "Sequence", "normalizers": slices.Repeat([]any{object{"type": "NFC"}}, 65)}, "normalizer"},
		{`type "Precompiled"`, object{"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "normalizer"},
		{`type "BertNormalizer"`, object{"type": "BertNormalizer", "clean_text": true}, "normalizer"},
		{"type Lowercase", object{"type": "Lowercase"}, "normalizer"},
		{"type BertPreTokenizer", object{"type": "BertPreTokenizer"}, "pre_tokenizer"},
		{"not one character", object{"type": "Metaspace"}, "pre_tokenizer"},
		{"prepend_scheme", object{"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}, "pre_tokenizer"},
		{"contradicts", object{"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false}, "pre_tokenizer"},
		{"type UnicodeScripts", object{"type": "UnicodeScripts"}, "pre_tokenizer"},
		{"Sideways", object{"type": "Split", "pattern": object{"String": "x"}, "behavior": "Sideways"}, "pre_tokenizer"},
		{"needs a behavior", object{"type": "Split", "pattern": object{"String": "x"}}, "pre_tokenizer"},
		{"CharDelimiterSplit", object{"type": "CharDelimiterSplit", "delimiter": "-"}, "pre_tokenizer"},
		{"one pattern", object{"type": "Split", "behavior": "Isolated"}, "pre_tokenizer"},
		{"pattern is empty", object{"type": "Split", "pattern": object{"String": ""}, "behavior": "Isolated"}, "pre_tokenizer"},
		{`"(x"`, split("(x"), "pre_tokenizer"},
		{"(?i", split("(?i:x)"), "pre_tokenizer"},
		{"(?>", split("(?>x)"), "pre_tokenizer"},
		{"class by name", split("[[:alpha:]]"), "pre_tokenizer"},
		{"bare ]", split("[]a]"), "pre_tokenizer"},
		{"missing ]", split("[a"), "pre_tokenizer"},
		{"unmatched )", split("a)"), "pre_tokenizer"},
		{"empty text", split("a*"), "pre_tokenizer"},
		{"can be empty", split("(?:a?)*b"), "pre_tokenizer"},
		{"not supported", split(`(a)\1`), "pre_tokenizer"},
		{"p{Klingon}", split(`\p{Klingon}`), "pre_tokenizer"},
		{"lookbehind", split("(?<=ab)c"), "pre_tokenizer"},
		{"looking ahead", split("a(?!b*c)"), "pre_tokenizer"},
		{"quantifier after", split("a{2}{3}"), "pre_tokenizer"},
		{"between 0 and 1000", split("a{2000}"), "pre_tokenizer"},
		{"instructions", split("(?:(?:a{100}){100}){100}"), "pre_tokenizer"},
		{"levels of groups", split(strings.Repeat("(", 500) + "a" + strings.Repeat(")", 500)), "pre_tokenizer"},
		{"levels of classes", split(strings.Repeat("[", 500) + "a" + strings.Repeat("]", 500)), "pre_tokenizer"},
		{"5000 bytes", split(strings.Repeat("a", 5000)), "pre_tokenizer"},
		{"type BertProcessing", object{"type": "BertProcessing", "cls": []any{"a", 0}, "sep": []any{"b", 1}}, "post_processor"},
		{"0 times", object{"type": "TemplateProcessing", "single": []any{}}, "post_processor"},
		{"no ids", object{"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "x"}}}}, "post_processor"},
		{"neither", object{"type": "TemplateProcessing", "single": []any{object{"Sequence": object{"id": "B"}}}}, "post_processor"},
		{"id 99", object{"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "x"}}},
			"special_tokens": object{"x": object{"ids": []any{99}}}}, "post_processor"},
		{"type CTC", object{"type": "CTC"}, "decoder"},
		{"Strip needs", object{"type": "Strip", "content": "ab"}, "decoder"},
		{`type "BPEDecoder"`, object{"type": "BPEDecoder", "suffix": "</w>"}, "decoder"},
		{`type "WordPiece"`, object{"type": "WordPiece", "prefix": "##", "cleanup": true}, "decoder"},
		{"both have id 0", added(0, "z"), "added_tokens"},
		{"has ids", added(7, "a"), "added_tokens"},
		{"empty", added(7, ""), "added_tokens"},
		{"4097 bytes", added(7, strings.Repeat("x", 4097)), "added_tokens"},
	} {
		_, err := Parse(small(t, c.value, strings.Fields(c.path)...))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s = %v: error %v, want one line with %q", c.path, c.value, err, c.want)
		}
	}
	for _, text := range []string{"", "[]", "{", "{}", "{} x", "null", `{"model": 3}`} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestLoadDirectory(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("without a file: %v", err)
	}
	write("tokenizer.json", string(small(t, nil)))
	tok, err := Load(dir)
	if err != nil || tok.EOS() != None {
		t.Fatalf("without a config: %v", err)
	}
	write("tokenizer_config.json", `{"bos_token": null, "eos_token": {"content": "<e>", "lstrip": false}, "chat_template": "x", "pad_token": "p"}`)
	bare := tok.Hash()
	if tok, err = Load(dir); err != nil || tok.EOS() != 4 || tok.BOS() != None {
		t.Fatalf("eos %d, bos %d, %v", tok.EOS(), tok.BOS(), err)
	}
	if tok.Hash() == bare {
		t.Error("an EOS does not change the hash")
	}
	write("tokenizer_config.json", `{"eos_token": "<z>"}`)
	if _, err = Load(dir); err == nil || !strings.Contains(err.Error(), `eos_token "<z>"`) {
		t.Errorf("eos that does not exist: %v", err)
	}
	write("tokenizer_config.json", `{`)
	if _, err = Load(dir); err == nil {
		t.Error("a broken config is accepted")
	}
}

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig([]byte(`{"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": null, "chat_template": "{{ x }}", "other": 1}`))
	c.keys = nil
	if want := (Config{BOS: "<b>", EOS: "<e>", ChatTemplate: "{{ x }}"}); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := ParseConfig([]byte(`{"eos_token": 3}`)); err == nil {
		t.Error("a number as token is accepted")
	}
}

func FuzzParse(f *testing.F) {
	// Short seeds: the fuzzer minimizes what it finds, which takes minutes for a whole vocabulary.
	f.Add(small(f, nil))
	f.Add(small(f, object{"type": "NFC"}, "normalizer"))
	f.Add(small(f, object{"type": "Sequence", "pretokenizers": []any{
		object{"type": "Split", "pattern": object{"Regex": llama3Expr}, "behavior": "Isolated"},
		object{"type": "Split", "pattern": object{"Regex": "[a-z]+|x{2}"}, "behavior": "Removed", "invert": true},
		object{"type": "Digits", "individual_digits": true}, object{"type": "ByteLevel", "add_prefix_space": true}}}, "pre_tokenizer"))
	f.Add(small(f, object{"type": "TemplateProcessing", "single": []any{
		object{"SpecialToken": object{"id": "<e>", "type_id": 0}}, object{"Sequence": object{"id": "A", "type_id": 0}}},
		"special_tokens": object{"<e>": object{"id": "<e>", "ids": []any{4}}}}, "post_processor"))
	f.Add(small(f, []any{object{"id": 9, "content": "\u00e9", "lstrip": true, "rstrip": true, "single_word": true, "normalized": true}}, "added_tokens"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse(data)
		if err != nil {
			return
		}
		ids := tok.Encode(" it's <e>ababab 12 \u00e9\n", true)
		for _, id := range ids {
			if tok.Token(id) == "" {
				t.Fatalf("id %d has no token", id)
			}
		}
		tok.Decode(ids, true)
	})
}
