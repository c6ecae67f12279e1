package gguf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
)

// vocabulary has a tokenizer as a GGUF file stores it. The source of what is written is llama.cpp's converter
// (conversion/base.py: _set_vocab_gpt2, _set_vocab_llama_hf; gguf-py: vocab.py).
type vocabulary struct {
	meta    []metaEntry
	notes   []string // what the file cannot say
	visible []string // special tokens that are written as others
}

func (v *vocabulary) add(key string, value any) {
	v.meta = append(v.meta, metaEntry{"tokenizer." + key, value})
}

// set is add for a key that may be there already.
func (v *vocabulary) set(key string, value any) {
	for i := range v.meta {
		if v.meta[i].key == "tokenizer."+key {
			v.meta[i].value = value
			return
		}
	}
	v.add(key, value)
}

// readVocab reads the tokenizer and the chat templates of a model directory, for a model of a type with that many rows
// of embeddings. pre is the name of how text is cut; "" finds it.
func readVocab(c *hf.Config, dir, modelType string, rows int, pre string) (*vocabulary, error) {
	t, parts, err := tokenizer.LoadVocabulary(dir)
	if err != nil {
		return nil, err
	}
	if len(parts.Tokens) > rows {
		return nil, fmt.Errorf("%s: the tokenizer has %d ids, the model %d rows: it is of another model", dir,
			len(parts.Tokens), rows)
	}
	v := &vocabulary{}
	ofGemma4 := strings.HasPrefix(modelType, "gemma4")
	if ofGemma4 {
		v.visible = gemma4Visible
	}
	switch {
	case parts.ByteLevel:
		if pre == "" {
			if pre, err = preNameOf(t, parts); err != nil {
				return nil, fmt.Errorf("%s: %w", dir, err)
			}
		}
		v.add("ggml.model", "gpt2")
		v.add("ggml.pre", pre)
		v.addTokens(parts, rows)
		v.addMerges(parts)
	case parts.ByteFallback && pre != "":
		return nil, fmt.Errorf("%s: --pre is for byte-level tokenizers, and this one is of SentencePiece's kind, which has "+
			"no such names: leave it out", dir)
	case parts.ByteFallback && ofGemma4 && pre == "" && keepsMerges(t, parts):
		v.add("ggml.model", "gemma4")
		v.addTokens(parts, rows)
		v.addMerges(parts)
		v.add("ggml.add_space_prefix", false)
	case parts.ByteFallback:
		v.add("ggml.model", "llama")
		v.add("ggml.pre", "default")
		v.addTokens(parts, rows)
		v.add("ggml.scores", sentencePieceScores(parts, rows))
		v.add("ggml.add_space_prefix", prefixesSpace(t))
	default:
		return nil, fmt.Errorf("%s: llama.cpp has no BPE on characters without byte_fallback; "+
			"use the Hugging Face directory", dir)
	}
	chat, err := readTemplates(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	special := func(name string) string {
		text, _ := chat.Tokens[name].(template.String)
		return string(text)
	}
	v.addSpecial(c, t, parts, special)
	for _, s := range specialTokens[modelType] {
		if n := t.TokenID(s.token); n != tokenizer.None {
			v.set("ggml."+s.key+"_token_id", uint32(n))
		}
	}
	ends, err := generationEnds(dir)
	if err != nil {
		return nil, err
	}
	v.addEnds(ends, parts)
	v.addTemplates(chat.Templates)
	return v, nil
}

// endsByName are tokens that llama.cpp takes for ends of a generation by their text (llama-vocab.cpp, special_eog_ids).
var endsByName = strings.Fields("<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <end_of_turn> <|endoftext|> " +
	"<|eom_id|> <EOT> _<EOT> <|end_of_text|> <end_of_utterance>")

// addEnds writes the tokens at which a generation ends besides the end of text, as far as llama.cpp does not know them by
// name. A file has places for two of them.
func (v *vocabulary) addEnds(ends []int32, parts *tokenizer.Vocabulary) {
	var free []string
	taken := map[int32]bool{}
	for _, name := range []string{"eos", "eot", "eom"} {
		key := "ggml." + name + "_token_id"
		if id, ok := v.get(key).(uint32); ok {
			taken[int32(id)] = true
		} else {
			free = append(free, key)
		}
	}
	for _, id := range ends {
		if taken[id] || id < 0 || int(id) >= len(parts.Tokens) || slices.Contains(endsByName, parts.Tokens[id]) {
			continue
		}
		if len(free) == 0 {
			v.notes = append(v.notes, fmt.Sprintf("a generation ends at %s as well, for which a GGUF file has no place left: "+
				"give it to llama.cpp as a stop text", terminal.Quote(parts.Tokens[id])))
			continue
		}
		v.add(free[0], uint32(id))
		taken[id], free = true, free[1:]
	}
}

// get is the value of a key; nil without one.
func (v *vocabulary) get(key string) any {
	for _, entry := range v.meta {
		if entry.key == "tokenizer."+key {
			return entry.value
		}
	}
	return nil
}

// generationEnds are the eos_token_id of a directory's generation_config.json; none without such a file.
func generationEnds(dir string) ([]int32, error) {
	const name = "generation_config.json"
	doc, err := below.Read(dir, name, 1<<24)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var config struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err == nil {
		err = budget.Unmarshal(doc, &config)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	var one *int32
	var all []int32
	switch {
	case len(config.EOS) == 0:
	case json.Unmarshal(config.EOS, &one) == nil:
		if one != nil {
			all = []int32{*one}
		}
	default:
		err = json.Unmarshal(config.EOS, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: eos_token_id: %w", filepath.Join(dir, name), err)
	}
	return all, nil
}

// readTemplates reads a directory's chat templates and the names of its special tokens.
func readTemplates(dir string) (template.Config, error) {
	chat := template.Config{Templates: map[string]string{}}
	doc, err := tokenizer.ReadConfig(dir)
	if err == nil {
		chat, err = template.ReadConfig(doc)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return chat, err
	}
	return chat, chat.ReadFiles(dir)
}

// prefixesSpace reports whether the tokenizer puts a space before a text.
func prefixesSpace(t *tokenizer.Pipeline) bool {
	ids := t.Encode("x", false)
	return len(ids) > 0 && strings.HasPrefix(t.Token(ids[0]), metaspace)
}

// keepsMerges reports whether llama.cpp's tokenizer of Gemma 4 gives the same ids: it puts no space before a text, and
// runs of line ends are apart from other text. Files of others have scores instead.
func keepsMerges(t *tokenizer.Pipeline, parts *tokenizer.Vocabulary) bool {
	return !prefixesSpace(t) && !slices.ContainsFunc(parts.Merges, func(m [2]string) bool {
		both := m[0] + m[1]
		return strings.Contains(both, "\n") && strings.Trim(both, "\n") != ""
	})
}

// addTokens writes the texts and types of tokens; rows that have none are fillers.
func (v *vocabulary) addTokens(parts *tokenizer.Vocabulary, rows int) {
	tokens, types := make([]string, rows), make([]int32, rows)
	for id := range rows {
		token := ""
		if id < len(parts.Tokens) {
			token = parts.Tokens[id]
		}
		special, added := parts.Added[int32(id)]
		switch {
		case token == "":
			token, types[id] = fillerToken(id), tokenUnused
		case !parts.ByteLevel && token == parts.Unknown:
			types[id] = tokenUnknown
		case added && (special || looksSpecial(token)) && !slices.Contains(v.visible, token):
			types[id] = tokenControl
		case added:
			types[id] = tokenUserDefined
			token = strings.ReplaceAll(token, metaspace, " ")
		case !parts.ByteLevel && isByteToken(token):
			types[id] = tokenByte
		default:
			types[id] = tokenNormal
		}
		tokens[id] = token
	}
	v.add("ggml.tokens", tokens)
	v.add("ggml.token_type", types)
}

func (v *vocabulary) addMerges(parts *tokenizer.Vocabulary) {
	merges := make([]string, len(parts.Merges))
	for i, m := range parts.Merges {
		merges[i] = m[0] + " " + m[1]
	}
	v.add("ggml.merges", merges)
}

// fillerToken stands for a row of the embedding that has no token.
func fillerToken(id int) string { return fmt.Sprintf("[PAD%d]", id) }

// looksSpecial reports whether a token is taken for a control token although its tokenizer calls it plain, as some
// models need. Source: convert_hf_to_gguf.py, does_token_look_special.
func looksSpecial(token string) bool {
	enclosed := func(open, end string) bool { return strings.HasPrefix(token, open) && strings.HasSuffix(token, end) }
	return slices.Contains([]string{"<pad>", "<mask>", "<2mass>", "[@BOS@]"}, token) || enclosed("<|", "|>") ||
		enclosed("<｜", "｜>") ||
		enclosed("<unused", ">")
}

// addSpecial writes the ids of special tokens, and which of them stand around every text. special has the spellings by
// the keys of tokenizer_config.json.
func (v *vocabulary) addSpecial(c *hf.Config, t *tokenizer.Pipeline, parts *tokenizer.Vocabulary,
	special func(key string) string) {
	id := func(token string, key string) (int, bool) {
		if n := t.TokenID(token); token != "" && n != tokenizer.None {
			return int(n), true
		}
		n, ok := c.TokenID(key)
		return n, ok && n < len(parts.Tokens)
	}
	before, after := t.Template()
	bos, hasBOS := id(t.Token(t.BOS()), "bos_token_id")
	eos, hasEOS := id(t.Token(t.EOS()), "eos_token_id")
	if !hasBOS && len(before) == 1 { // named by the template alone
		bos, hasBOS = int(before[0]), true
	}
	if !hasEOS && len(after) == 1 {
		eos, hasEOS = int(after[0]), true
	}
	for _, s := range []struct {
		key string
		id  int
		has bool
	}{{"bos", bos, hasBOS}, {"eos", eos, hasEOS}} {
		if s.has {
			v.add("ggml."+s.key+"_token_id", uint32(s.id))
		}
	}
	for _, s := range []struct{ key, name, config string }{{"unknown", "unk_token", "unk_token_id"}, {"padding",
		"pad_token", "pad_token_id"}} {
		text := special(s.name)
		if s.key == "unknown" && text == "" {
			text = parts.Unknown
		}
		if n, ok := id(text, s.config); ok {
			v.add("ggml."+s.key+"_token_id", uint32(n))
		}
	}
	addsBOS, addsEOS := len(before) > 0, len(after) > 0
	if addsBOS && (!hasBOS || !slices.Equal(before, []int32{int32(bos)})) || addsEOS && (!hasEOS || !slices.Equal(after,
		[]int32{int32(eos)})) {
		v.notes = append(v.notes,
			"the tokenizer puts other tokens around a text than a GGUF file can say: give llama.cpp the whole prompt")
		addsBOS, addsEOS = addsBOS && hasBOS && before[0] == int32(bos), addsEOS && hasEOS &&
			after[len(after)-1] == int32(eos)
	}
	v.add("ggml.add_bos_token", addsBOS)
	v.add("ggml.add_eos_token", addsEOS)
}

// addTemplates writes the chat templates.
func (v *vocabulary) addTemplates(templates map[string]string) {
	var others []string
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		if name == "default" {
			v.add("chat_template", templates[name])
			continue
		}
		others = append(others, name)
		v.add("chat_template."+name, templates[name])
	}
	if len(others) > 0 {
		v.add("chat_templates", others)
	}
}
