package gguf

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/tokenizer"
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

// tokens is the vocabulary of a GGUF file.
type tokens struct {
	tokens, merges     []string
	types              []int32
	bos, eos, pad, unk *int
	eot, eom           *int // end a turn and a message, and with them a generation
	addBOS, addEOS     bool
	addBOSByDefault    bool // unless the file says otherwise
	longerFirst        bool // of merges with one score (see mergesOf)
	chatTemplate       string
	parts              parts
}

// parts of tokenizer.json differ between kinds of tokenizers. Those that are strings are JSON.
type parts struct {
	normalizer, preTokenizer, decoder string
	postProcessor                     string // before the one that adds tokens; "": none
	byteFallback                      bool   // characters without a token become bytes, or the unknown token
	ignoreMerges                      bool
}

// tokens reads and checks the tokenizer's metadata, for a model with vocab embeddings.
func (g *header) tokens(arch *architecture, vocab int) (*tokens, error) {
	kind, ok, err := g.text("tokenizer.ggml.model")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("metadata tokenizer.ggml.model is missing: the file has no tokenizer")
	}
	read, ok := tokenizerKinds[kind]
	if !ok {
		return nil, fmt.Errorf("metadata tokenizer.ggml.model is %s: supported are %s; "+
			"use the model's Hugging Face directory", terminal.Quote(kind),
			strings.Join(slices.Sorted(maps.Keys(tokenizerKinds)), ", "))
	}
	t := &tokens{longerFirst: arch.longerFirst}
	if t.tokens, err = g.strings("tokenizer.ggml.tokens"); err != nil {
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
	}{{"bos", &t.bos}, {"eos", &t.eos}, {"eot", &t.eot}, {"eom", &t.eom}, {"padding", &t.pad}, {"unknown", &t.unk}} {
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
	if err := read(g, t); err != nil {
		return nil, err
	}
	addsBOS := t.addBOSByDefault && t.bos != nil
	if t.addBOS, err = g.boolean("tokenizer.ggml.add_bos_token", addsBOS); err != nil {
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

// tokenizerKinds reads what each kind of tokenizer has, by tokenizer.ggml.model.
var tokenizerKinds = map[string]func(g *header, t *tokens) error{"gpt2": (*header).byteLevel,
	"llama": (*header).sentencePiece, "gemma4": (*header).mergedPieces}

// byteLevel reads what only a byte-level BPE has.
func (g *header) byteLevel(t *tokens) error {
	name, _, err := g.text("tokenizer.ggml.pre")
	if err != nil {
		return err
	}
	pre, ok := preTokenizers[name]
	if !ok {
		return fmt.Errorf("metadata tokenizer.ggml.pre is %s: supported are %s; use the model's Hugging Face directory",
			terminal.Quote(name), strings.Join(slices.Sorted(maps.Keys(preTokenizers)), ", "))
	}
	if i := slices.Index(t.types, tokenByte); i >= 0 {
		return fmt.Errorf("token %d has type %d, which a byte-level BPE does not have", i, tokenByte)
	}
	const toBytes = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`
	t.parts = parts{normalizer: pre.normalizer, preTokenizer: pre.preTokenizer, decoder: toBytes,
		postProcessor: `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true}`,
		ignoreMerges:  pre.ignoreMerges}
	t.addBOSByDefault = pre.addBOS
	t.merges, err = g.strings("tokenizer.ggml.merges")
	return err
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
		if n < tokenNormal || n > tokenByte {
			return fmt.Errorf("token %d has type %d, which no tokenizer has", i, n)
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
		if len(s) > tokenizer.MaxTokenBytes {
			return fmt.Errorf("token %d has %d bytes, and a tokenizer's have at most %d", i, len(s), tokenizer.MaxTokenBytes)
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

// writeJSON writes tokenizer.json: the same ids for the same text as the file's own tokenizer. It holds one token at a
// time, since a byte of a token can be six in JSON. It ends with ctx, and where the file has more than a reader of it
// takes.
func (t *tokens) writeJSON(ctx context.Context, to io.Writer) error {
	b := &boundedWriter{ctx: ctx, to: bufio.NewWriterSize(to, 1<<16)}
	io.WriteString(b, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [")
	sep := "\n"
	for i, s := range t.tokens {
		if b.err != nil {
			return b.err
		}
		if slices.Contains([]int32{tokenNormal, tokenUnused, tokenByte}, t.types[i]) {
			continue
		}
		special := t.types[i] != tokenUserDefined
		fmt.Fprintf(b, "%s    {\"id\": %d, \"content\": %s, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %v}",
			sep, i, jsonString(s), special)
		sep = ",\n"
	}
	fmt.Fprintf(b, "\n  ],\n  \"normalizer\": %s,\n  \"pre_tokenizer\": %s,\n  \"post_processor\": %s,\n",
		t.parts.normalizer, t.parts.preTokenizer, t.postProcessor())
	unknown := jsonNone
	if t.parts.byteFallback && t.unk != nil {
		unknown = jsonString(t.tokens[*t.unk])
	}
	fmt.Fprintf(b, "  \"decoder\": %s,\n  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": %s, "+
		"\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null,\n    \"fuse_unk\": %v, "+
		"\"byte_fallback\": %v, \"ignore_merges\": %v,\n    \"vocab\": {", t.parts.decoder, unknown,
		t.parts.byteFallback, t.parts.byteFallback, t.parts.ignoreMerges)
	sep = "\n"
	for i, s := range t.tokens {
		if b.err != nil {
			return b.err
		}
		if t.filler(i) {
			continue
		}
		fmt.Fprintf(b, "%s      %s: %d", sep, jsonString(s), i)
		sep = ",\n"
	}
	io.WriteString(b, "\n    },\n    \"merges\": [")
	sep = "\n"
	for _, m := range t.merges {
		if b.err != nil {
			return b.err
		}
		fmt.Fprintf(b, "%s      %s", sep, jsonString(m))
		sep = ",\n"
	}
	io.WriteString(b, "\n    ]\n  }\n}\n")
	return b.end()
}

// boundedWriter writes a file that tokenizers are read from. Its first error stays, and later writes do nothing.
type boundedWriter struct {
	ctx context.Context
	to  *bufio.Writer
	n   int64
	err error
}

func (w *boundedWriter) Write(b []byte) (int, error) {
	if w.n += int64(len(b)); w.err == nil && w.n > tokenizer.MaxFileBytes {
		w.err = fmt.Errorf("tokenizer.json would have more than %d bytes, which is the most that is read: the GGUF file is damaged",
			tokenizer.MaxFileBytes)
	}
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err == nil {
		_, w.err = w.to.Write(b)
	}
	return len(b), w.err
}

// end writes what is left in the buffer.
func (w *boundedWriter) end() error {
	if w.err == nil {
		w.err = w.to.Flush()
	}
	return w.err
}

// postProcessor puts the tokens at the start and end that the tokenizer always adds.
func (t *tokens) postProcessor() string {
	first := t.parts.postProcessor
	switch {
	case t.addBOS || t.addEOS:
	case first == "":
		return jsonNone
	default:
		return first
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
	template := `{"type":"TemplateProcessing","single":[` + single + `],"pair":[` + pair + `],"special_tokens":` +
		string(table) + `}`
	if first == "" {
		return template
	}
	return `{"type":"Sequence","processors":[` + first + `,` + template + `]}`
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
