package gguf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/terminal"
)

// The types of tokens in a GGUF file (llama.cpp: llama_token_type).
const (
	tokenNormal      = 1
	tokenUnknown     = 2
	tokenControl     = 3
	tokenUserDefined = 4
	tokenUnused      = 5
	tokenByte        = 6
)

// preTokenizer has the part of tokenizer.json for a value of tokenizer.ggml.pre: how text is cut before the merges.
type preTokenizer struct {
	normalizer   string // JSON
	preTokenizer string // JSON
	ignoreMerges bool   // a piece that is a token as a whole is not merged
	addBOS       bool   // unless the file says otherwise
}

const byteLevelPlain = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`
const byteLevelGPT2 = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`

// split isolates the matches of a regular expression, then maps bytes to characters.
func split(regex string) string {
	pattern, err := json.Marshal(regex)
	if err != nil {
		panic(err) // the expressions are constants
	}
	return `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + string(pattern) +
		`},"behavior":"Isolated","invert":false},` + byteLevelPlain + `]}`
}

// preTokenizers has the names that llama.cpp gives to the tokenizers of model families (llama-vocab.cpp), each with
// what the tokenizer.json of the original family says.
var preTokenizers = func() map[string]preTokenizer {
	gpt2 := preTokenizer{normalizer: "null", preTokenizer: byteLevelGPT2}
	smollm := preTokenizer{normalizer: "null", preTokenizer: `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},` + byteLevelGPT2 + `]}`}
	llama3 := preTokenizer{normalizer: "null", ignoreMerges: true, addBOS: true,
		preTokenizer: split(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`)}
	qwen2 := preTokenizer{normalizer: `{"type":"NFC"}`,
		preTokenizer: split(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`)}
	glm4 := llama3
	glm4.addBOS = false
	// A word has upper-case letters and then lower-case ones. Source: tiktoken, openai_public.py (o200k_base).
	gpt4o := preTokenizer{normalizer: "null", preTokenizer: split(strings.Join([]string{
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
		`\p{N}{1,3}`, ` ?[^\s\p{L}\p{N}]+[\r\n/]*`, `\s*[\r\n]+`, `\s+(?!\S)`, `\s+`}, "|"))}
	return map[string]preTokenizer{
		"gpt-2": gpt2, "smollm": smollm, "llama-bpe": llama3, "llama3": llama3, "llama-v3": llama3,
		"qwen2": qwen2, "deepseek-r1-qwen": qwen2, "gpt-4o": gpt4o, "glm4": glm4,
	}
}()

// tokens is the vocabulary of a GGUF file.
type tokens struct {
	tokens, merges     []string
	types              []int32
	pre                preTokenizer
	bos, eos, pad, unk *int
	addBOS, addEOS     bool
	chatTemplate       string
}

// tokens reads and checks the tokenizer's metadata, for a model with vocab embeddings.
func (g *header) tokens(vocab int) (*tokens, error) {
	kind, ok, err := g.text("tokenizer.ggml.model")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("metadata tokenizer.ggml.model is missing: the file has no tokenizer")
	}
	if kind != "gpt2" {
		return nil, fmt.Errorf("metadata tokenizer.ggml.model is %s: only a byte-level BPE (gpt2) can be turned into tokenizer.json (llama is SentencePiece); use the model's Hugging Face directory", terminal.Quote(kind))
	}
	name, _, err := g.text("tokenizer.ggml.pre")
	if err != nil {
		return nil, err
	}
	t := &tokens{}
	if t.pre, ok = preTokenizers[name]; !ok {
		return nil, fmt.Errorf("metadata tokenizer.ggml.pre is %s: supported are %s; "+
			"use the model's Hugging Face directory",
			terminal.Quote(name), strings.Join(slices.Sorted(maps.Keys(preTokenizers)), ", "))
	}
	if t.tokens, err = g.strings("tokenizer.ggml.tokens"); err != nil {
		return nil, err
	}
	if t.merges, err = g.strings("tokenizer.ggml.merges"); err != nil {
		return nil, err
	}
	if len(t.tokens) == 0 || len(t.tokens) > vocab {
		return nil, fmt.Errorf("the tokenizer has %d tokens, the embedding %d rows", len(t.tokens), vocab)
	}
	if err := g.tokenTypes(t); err != nil {
		return nil, err
	}
	for _, s := range []struct {
		key string
		to  **int
	}{{"bos", &t.bos}, {"eos", &t.eos}, {"padding", &t.pad}, {"unknown", &t.unk}} {
		key := "tokenizer.ggml." + s.key + "_token_id"
		n, ok, err := g.integer(key)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if n < 0 || n >= int64(len(t.tokens)) {
			return nil, fmt.Errorf("metadata %s is %d, outside of the vocabulary of %d", key, n, len(t.tokens))
		}
		id := int(n)
		*s.to = &id
	}
	if t.addBOS, err = g.boolean("tokenizer.ggml.add_bos_token", t.pre.addBOS && t.bos != nil); err != nil {
		return nil, err
	}
	if t.addEOS, err = g.boolean("tokenizer.ggml.add_eos_token", false); err != nil {
		return nil, err
	}
	if t.addBOS && t.bos == nil || t.addEOS && t.eos == nil {
		return nil, fmt.Errorf("the tokenizer adds a token at the start or end that the metadata does not name")
	}
	if t.chatTemplate, _, err = g.text("tokenizer.chat_template"); err != nil {
		return nil, err
	}
	return t, t.check()
}

func (g *header) tokenTypes(t *tokens) error {
	v, ok := g.meta["tokenizer.ggml.token_type"]
	if !ok || v.typ != typeArray || v.elem != typeI32 && v.elem != typeU32 {
		return fmt.Errorf("metadata tokenizer.ggml.token_type is missing or not a list of 32-bit numbers")
	}
	if v.n != int64(len(t.tokens)) {
		return fmt.Errorf("metadata tokenizer.ggml.token_type has %d entries for %d tokens", v.n, len(t.tokens))
	}
	t.types = make([]int32, v.n)
	for i := range t.types {
		n, _ := scalar(v.elem, v.raw[4*i:])
		if n < tokenNormal || n > tokenUnused {
			return fmt.Errorf("token %d has type %d, which a byte-level BPE does not have", i, n)
		}
		t.types[i] = int32(n)
	}
	return nil
}

// check holds the vocabulary to what a tokenizer.json can say: each text has one id, and each merge joins two tokens
// into a third.
func (t *tokens) check() error {
	ids := make(map[string]int, len(t.tokens))
	for i, s := range t.tokens {
		if t.filler(i) {
			continue
		}
		if s == "" {
			return fmt.Errorf("token %d is empty", i)
		}
		if j, dup := ids[s]; dup {
			return fmt.Errorf("tokens %d and %d are both %s", j, i, terminal.Quote(s))
		}
		ids[s] = i
	}
	for i, m := range t.merges {
		a, b, ok := strings.Cut(m, " ")
		if !ok || a == "" || b == "" || strings.Contains(b, " ") {
			return fmt.Errorf("merge %d is %s, not two tokens", i, terminal.Quote(m))
		}
		for _, s := range []string{a, b, a + b} {
			if _, ok := ids[s]; !ok {
				return fmt.Errorf("merge %d needs %s, which is not in the vocabulary", i, terminal.Quote(s))
			}
		}
	}
	return nil
}

// filler reports whether token i only stands for an embedding row that has no token: llama.cpp's converter invents
// "[PAD<id>]" for it.
func (t *tokens) filler(i int) bool {
	return t.types[i] == tokenUnused && t.tokens[i] == fillerToken(i)
}

// tokenizerJSON is tokenizer.json: the same ids for the same text as the file's own tokenizer.
func (t *tokens) tokenizerJSON() []byte {
	var b bytes.Buffer
	b.WriteString("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [")
	sep := "\n"
	for i, s := range t.tokens {
		if t.types[i] == tokenNormal || t.types[i] == tokenUnused {
			continue
		}
		special := t.types[i] != tokenUserDefined
		fmt.Fprintf(&b, "%s    {\"id\": %d, \"content\": %s, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %v}",
			sep, i, jsonString(s), special)
		sep = ",\n"
	}
	fmt.Fprintf(&b, "\n  ],\n  \"normalizer\": %s,\n  \"pre_tokenizer\": %s,\n  \"post_processor\": %s,\n", t.pre.normalizer, t.pre.preTokenizer, t.postProcessor())
	b.WriteString("  \"decoder\": {\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\n")
	fmt.Fprintf(&b, "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null,\n    \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": %v,\n    \"vocab\": {", t.pre.ignoreMerges)
	sep = "\n"
	for i, s := range t.tokens {
		if t.filler(i) {
			continue
		}
		fmt.Fprintf(&b, "%s      %s: %d", sep, jsonString(s), i)
		sep = ",\n"
	}
	b.WriteString("\n    },\n    \"merges\": [")
	sep = "\n"
	for _, m := range t.merges {
		fmt.Fprintf(&b, "%s      %s", sep, jsonString(m))
		sep = ",\n"
	}
	b.WriteString("\n    ]\n  }\n}\n")
	return b.Bytes()
}

// postProcessor puts the tokens at the start and end that the tokenizer always adds.
func (t *tokens) postProcessor() string {
	const byteLevel = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true}`
	if !t.addBOS && !t.addEOS {
		return byteLevel
	}
	specials := map[string]any{}
	piece := func(id *int, typeID int) string {
		s := t.tokens[*id]
		specials[s] = map[string]any{"id": s, "ids": []int{*id}, "tokens": []string{s}}
		return fmt.Sprintf(`{"SpecialToken":{"id":%s,"type_id":%d}}`, jsonString(s), typeID)
	}
	sequence := func(name string, typeID int) []string {
		var parts []string
		if t.addBOS {
			parts = append(parts, piece(t.bos, typeID))
		}
		parts = append(parts, fmt.Sprintf(`{"Sequence":{"id":%q,"type_id":%d}}`, name, typeID))
		if t.addEOS {
			parts = append(parts, piece(t.eos, typeID))
		}
		return parts
	}
	single := strings.Join(sequence("A", 0), ",")
	pair := single + "," + strings.Join(sequence("B", 1), ",")
	table, err := json.Marshal(specials)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return `{"type":"Sequence","processors":[` + byteLevel + `,{"type":"TemplateProcessing","single":[` + single +
		`],"pair":[` + pair + `],"special_tokens":` + string(table) + `}]}`
}

// tokenizerConfig is tokenizer_config.json. Its class takes tokenizer.json as it is.
func (t *tokens) tokenizerConfig(positions int) ([]byte, error) {
	text := func(id *int) *string {
		if id == nil {
			return nil
		}
		return &t.tokens[*id]
	}
	return marshalIndent(struct {
		AddPrefixSpace bool    `json:"add_prefix_space"`
		BOS            *string `json:"bos_token"`
		ChatTemplate   string  `json:"chat_template,omitempty"`
		CleanUp        bool    `json:"clean_up_tokenization_spaces"`
		EOS            *string `json:"eos_token"`
		// Without it the class returns token_type_ids, which model.generate refuses.
		Inputs    []string `json:"model_input_names"`
		MaxLength int      `json:"model_max_length"`
		PAD       *string  `json:"pad_token"`
		Class     string   `json:"tokenizer_class"`
		UNK       *string  `json:"unk_token"`
	}{false, text(t.bos), t.chatTemplate, false, text(t.eos), []string{"input_ids", "attention_mask"}, positions, text(t.pad), "PreTrainedTokenizerFast", text(t.unk)})
}

// jsonString is s in JSON, with characters as they are.
func jsonString(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // a string always encodes
	}
	return strings.TrimSuffix(b.String(), "\n")
}
