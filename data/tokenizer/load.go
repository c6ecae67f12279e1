package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/zeebo/xxh3"
	"golang.org/x/text/unicode/norm"
)

// maxID bounds the ids of a vocabulary: tables are allocated by the largest one, and files come from strangers.
const maxID = 1<<20 - 1

// maxAddedBytes bounds the length of an added token, since each occurrence of its first byte is compared with it.
const maxAddedBytes = 4096

// Load reads a tokenizer.json, or that of a model directory. BOS and EOS come from the tokenizer_config.json beside
// it, where there is one. Errors name the file and the feature that is missing or wrong.
func Load(path string) (*BPE, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "tokenizer.json")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tokenizer: %w", err)
	}
	configPath := filepath.Join(filepath.Dir(path), "tokenizer_config.json")
	configData, err := os.ReadFile(configPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read tokenizer: %w", err)
	}
	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	if configData == nil {
		return t, nil
	}
	config, err := ParseConfig(configData)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configPath, err)
	}
	bos, err := t.bound(config.BOS, "bos_token")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configPath, err)
	}
	eos, err := t.bound(config.EOS, "eos_token")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configPath, err)
	}
	return t.WithBounds(bos, eos), nil
}

func (t *BPE) bound(token, key string) (int32, error) {
	if token == "" {
		return None, nil
	}
	id := t.TokenID(token)
	if id == None {
		return None, fmt.Errorf("%s %q is not in the vocabulary", key, token)
	}
	return id, nil
}

func boundsHash(hash string, bos, eos int32) string {
	base, _, _ := strings.Cut(hash, ":")
	return fmt.Sprintf("%s:%d:%d", base, bos, eos)
}

// The parts of a tokenizer.json. Every object is decoded strictly, so that a key this package does not know is an
// error and not a silent difference. Truncation and padding are settings of a call, not of the encoding, and are read
// past, as transformers does.
type fileJSON struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedJSON     `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

type addedJSON struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type modelJSON struct {
	Type                    string           `json:"type"`
	Dropout                 *float64         `json:"dropout"`
	UnkToken                *string          `json:"unk_token"`
	ContinuingSubwordPrefix *string          `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string          `json:"end_of_word_suffix"`
	FuseUnk                 bool             `json:"fuse_unk"`
	ByteFallback            bool             `json:"byte_fallback"`
	IgnoreMerges            bool             `json:"ignore_merges"`
	Vocab                   map[string]int64 `json:"vocab"`
	Merges                  []mergeJSON      `json:"merges"`
}

// mergeJSON is "a b" or ["a", "b"].
type mergeJSON [2]string

func (m *mergeJSON) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		left, right, ok := strings.Cut(s, " ")
		if !ok || strings.Contains(right, " ") {
			return fmt.Errorf("merge %q is not two tokens", s)
		}
		*m = mergeJSON{left, right}
		return nil
	}
	var s []string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if len(s) != 2 {
		return fmt.Errorf("merge %q is not two tokens", s)
	}
	*m = mergeJSON{s[0], s[1]}
	return nil
}

// Parse reads a tokenizer.json. BOS and EOS are None; see [Load] and [BPE.WithBounds].
func Parse(data []byte) (*BPE, error) {
	var file fileJSON
	if err := strict(data, &file); err != nil {
		return nil, err
	}
	if len(file.Model) == 0 || isNull(file.Model) {
		return nil, errors.New("no model: this is not a tokenizer.json")
	}
	t := &BPE{bos: None, eos: None, unk: None}
	t.encoders.New = t.newEncoder
	sum := xxh3.Hash128(data).Bytes()
	t.hash = boundsHash(fmt.Sprintf("bpe-1-%x", sum), None, None)
	if err := t.setModel(file.Model); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err := t.setNormalizer(file.Normalizer); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if err := t.setAdded(file.AddedTokens); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	if err := t.setPreTokenizer(file.PreTokenizer); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if err := t.setPostProcessor(file.PostProcessor); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	if err := checkDecoder(file.Decoder); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	return t, nil
}

// strict decodes one JSON value and refuses keys that v does not have.
func strict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.More() {
		return errors.New("data after the JSON value")
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// typeOf returns the "type" of a component.
func typeOf(raw json.RawMessage) (string, error) {
	var c struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", err
	}
	return c.Type, nil
}

func (t *BPE) setModel(raw json.RawMessage) error {
	if kind, err := typeOf(raw); err != nil {
		return err
	} else if kind != "BPE" && kind != "" { // early files have no type
		return fmt.Errorf("type %s is not supported: only byte-level BPE is", kind)
	}
	var m modelJSON
	if err := strict(raw, &m); err != nil {
		return err
	}
	switch {
	case m.ByteFallback:
		return errors.New("byte_fallback is not supported: only byte-level BPE is")
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("dropout is not supported")
	case m.ContinuingSubwordPrefix != nil && *m.ContinuingSubwordPrefix != "":
		return errors.New("continuing_subword_prefix is not supported")
	case m.EndOfWordSuffix != nil && *m.EndOfWordSuffix != "":
		return errors.New("end_of_word_suffix is not supported")
	case len(m.Vocab) == 0:
		return errors.New("vocab is empty")
	}
	t.ids = make(map[string]int32, len(m.Vocab))
	for token, id := range m.Vocab {
		if err := t.setToken(token, id, true); err != nil {
			return err
		}
	}
	for b, symbol := range alphabet {
		t.byteID[b] = t.TokenID(string(symbol))
	}
	if m.UnkToken != nil && *m.UnkToken != "" {
		if t.unk = t.TokenID(*m.UnkToken); t.unk == None {
			return fmt.Errorf("unk_token %q is not in the vocabulary", *m.UnkToken)
		}
	}
	t.fuseUnk, t.ignoreMerges = m.FuseUnk, m.IgnoreMerges
	if t.ignoreMerges {
		t.wordID = make(map[string]int32, len(m.Vocab))
		for token, id := range m.Vocab {
			if raw, ok := rawBytes(token); ok {
				t.wordID[raw] = int32(id)
			}
		}
	}
	t.merges = make(map[pair]merge, len(m.Merges))
	for rank, m := range m.Merges {
		left, right, both := t.TokenID(m[0]), t.TokenID(m[1]), t.TokenID(m[0]+m[1])
		if left == None || right == None || both == None {
			return fmt.Errorf("merge %d (%q %q) has a part or result that is not in the vocabulary", rank, m[0], m[1])
		}
		t.merges[pairOf(left, right)] = merge{rank: int32(rank), id: both} // the last of equal pairs counts
	}
	return nil
}

// setToken enters a token. byteLevel says that its spelling is that of bytes, where possible.
func (t *BPE) setToken(token string, id int64, byteLevel bool) error {
	if token == "" {
		return fmt.Errorf("the token with id %d is empty", id)
	}
	if id < 0 || id > maxID {
		return fmt.Errorf("token %q has id %d, which is not between 0 and %d", token, id, maxID)
	}
	for int(id) >= len(t.tokens) {
		t.tokens = append(t.tokens, "")
		t.raw = append(t.raw, "")
		t.special = append(t.special, false)
	}
	if old := t.tokens[id]; old != "" && old != token {
		return fmt.Errorf("tokens %q and %q both have id %d", min(old, token), max(old, token), id)
	}
	if old, ok := t.ids[token]; ok && old != int32(id) {
		return fmt.Errorf("token %q has ids %d and %d", token, old, id)
	}
	t.ids[token] = int32(id)
	t.tokens[id], t.raw[id] = token, token
	if byteLevel {
		if raw, ok := rawBytes(token); ok {
			t.raw[id] = raw
		}
	}
	return nil
}

func (t *BPE) setAdded(tokens []addedJSON) error {
	var plain, normalized []addedToken
	for _, a := range tokens {
		if len(a.Content) > maxAddedBytes {
			return fmt.Errorf("token with id %d has %d bytes, more than %d", a.ID, len(a.Content), maxAddedBytes)
		}
		if err := t.setToken(a.Content, a.ID, false); err != nil {
			return err
		}
		t.special[a.ID] = a.Special
		token := addedToken{id: int32(a.ID), content: a.Content, singleWord: a.SingleWord, lstrip: a.LStrip, rstrip: a.RStrip}
		if a.Normalized {
			token.content = t.normalize(a.Content)
			normalized = append(normalized, token)
		} else {
			plain = append(plain, token)
		}
	}
	t.added, t.addedNormalized = newAddedSet(plain), newAddedSet(normalized)
	return nil
}

func (t *BPE) setNormalizer(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	var n struct {
		Type        string            `json:"type"`
		Normalizers []json.RawMessage `json:"normalizers"`
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return err
	}
	forms := map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}
	if form, ok := forms[n.Type]; ok {
		t.normal = append(t.normal, form)
		return nil
	}
	if n.Type != "Sequence" {
		return fmt.Errorf("type %s is not supported: only NFC, NFD, NFKC, NFKD and Sequence are", n.Type)
	}
	for _, raw := range n.Normalizers {
		if err := t.setNormalizer(raw); err != nil {
			return err
		}
	}
	return nil
}

type preTokenizerJSON struct {
	Type             string            `json:"type"`
	PreTokenizers    []json.RawMessage `json:"pretokenizers"`
	Pattern          *patternJSON      `json:"pattern"`
	Behavior         string            `json:"behavior"`
	Invert           bool              `json:"invert"`
	IndividualDigits bool              `json:"individual_digits"`
	AddPrefixSpace   bool              `json:"add_prefix_space"`
	TrimOffsets      bool              `json:"trim_offsets"`
	UseRegex         *bool             `json:"use_regex"`
}

type patternJSON struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

func (t *BPE) setPreTokenizer(raw json.RawMessage) error {
	byteLevel := false
	var add func(raw json.RawMessage) error
	add = func(raw json.RawMessage) error {
		if isNull(raw) {
			return nil
		}
		var p preTokenizerJSON
		kind, err := typeOf(raw)
		if err != nil {
			return err
		}
		switch kind {
		case "Sequence", "Split", "Digits", "ByteLevel":
		default:
			return fmt.Errorf("type %s is not supported: only Sequence, Split, Digits and ByteLevel are", kind)
		}
		if err := strict(raw, &p); err != nil {
			return err
		}
		if kind == "Sequence" {
			for _, raw := range p.PreTokenizers {
				if err := add(raw); err != nil {
					return err
				}
			}
			return nil
		}
		if byteLevel {
			return fmt.Errorf("type %s after ByteLevel is not supported", kind)
		}
		switch kind {
		case "Split":
			s, err := newSplit(p)
			if err != nil {
				return err
			}
			t.splitters = append(t.splitters, s)
		case "Digits":
			t.splitters = append(t.splitters, digits{p.IndividualDigits})
		case "ByteLevel":
			byteLevel = true
			if p.AddPrefixSpace {
				t.splitters = append(t.splitters, prefixSpace{})
			}
			if p.UseRegex == nil || *p.UseRegex {
				t.splitters = append(t.splitters, scanners[gpt2Expr])
			}
		}
		return nil
	}
	if err := add(raw); err != nil {
		return err
	}
	if !byteLevel {
		return errors.New("there is no ByteLevel step: only byte-level BPE is supported")
	}
	return nil
}

func newSplit(p preTokenizerJSON) (splitter, error) {
	var keep keep
	switch p.Behavior {
	case "Isolated":
		keep = keepAll
	case "Removed":
		keep = keepBetween
		if p.Invert {
			keep = keepMatches
		}
	default:
		return nil, fmt.Errorf("behavior %q of a Split is not supported: only Isolated and Removed are", p.Behavior)
	}
	switch {
	case p.Pattern == nil || (p.Pattern.Regex == nil) == (p.Pattern.String == nil):
		return nil, errors.New("a Split needs one pattern, Regex or String")
	case p.Pattern.String != nil && *p.Pattern.String == "":
		return nil, errors.New("the pattern of a Split is empty")
	case p.Pattern.String != nil:
		return literal{text: *p.Pattern.String, keep: keep}, nil
	}
	// A scanner's matches cover the text, so there is nothing between them to keep.
	if s, ok := scanners[*p.Pattern.Regex]; ok && keep != keepBetween {
		return s, nil
	}
	re, err := compileSplit(*p.Pattern.Regex)
	if err != nil {
		return nil, err
	}
	return expression{re: re, keep: keep}, nil
}

type postProcessorJSON struct {
	Type       string            `json:"type"`
	Processors []json.RawMessage `json:"processors"`
	Single     []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		} `json:"SpecialToken"`
		Sequence *struct {
			ID string `json:"id"`
		} `json:"Sequence"`
	} `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
}

func (t *BPE) setPostProcessor(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	var p postProcessorJSON
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	switch p.Type {
	case "ByteLevel": // adjusts offsets only
		return nil
	case "Sequence":
		for _, raw := range p.Processors {
			if err := t.setPostProcessor(raw); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
	default:
		return fmt.Errorf("type %s is not supported: only Sequence, ByteLevel and TemplateProcessing are", p.Type)
	}
	if t.before != nil || t.after != nil {
		return errors.New("more than one TemplateProcessing is not supported")
	}
	sequences := 0
	for _, piece := range p.Single {
		switch {
		case piece.Sequence != nil && piece.Sequence.ID == "A" && piece.SpecialToken == nil:
			sequences++
		case piece.SpecialToken != nil && piece.Sequence == nil:
			special, ok := p.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("template token %q has no ids", piece.SpecialToken.ID)
			}
			for _, id := range special.IDs {
				if id < 0 || id >= int64(len(t.tokens)) || t.tokens[id] == "" {
					return fmt.Errorf("template token %q has id %d, which is not in the vocabulary", piece.SpecialToken.ID, id)
				}
				if sequences == 0 {
					t.before = append(t.before, int32(id))
				} else {
					t.after = append(t.after, int32(id))
				}
			}
		default:
			return errors.New("a piece of the template is neither a SpecialToken nor Sequence A")
		}
	}
	if sequences != 1 {
		return fmt.Errorf("the template holds the text %d times, not once", sequences)
	}
	return nil
}

func checkDecoder(raw json.RawMessage) error {
	if isNull(raw) {
		return errors.New("there is none: only ByteLevel is supported")
	}
	var d struct {
		Type     string            `json:"type"`
		Decoders []json.RawMessage `json:"decoders"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return err
	}
	if d.Type == "Sequence" && len(d.Decoders) == 1 {
		return checkDecoder(d.Decoders[0])
	}
	if d.Type != "ByteLevel" {
		return fmt.Errorf("type %s is not supported: only ByteLevel is", d.Type)
	}
	return nil
}

// Config is what the program needs of a tokenizer_config.json.
type Config struct {
	BOS, EOS, Pad string // spellings; "" where there is none
	ChatTemplate  string // Jinja; "" where there is none or where there are several
}

// ParseConfig reads a tokenizer_config.json. Keys that Config does not show are ignored: they steer Python classes.
func ParseConfig(data []byte) (Config, error) {
	var file struct {
		BOS          configToken     `json:"bos_token"`
		EOS          configToken     `json:"eos_token"`
		Pad          configToken     `json:"pad_token"`
		ChatTemplate json.RawMessage `json:"chat_template"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return Config{}, fmt.Errorf("tokenizer config: %w", err)
	}
	c := Config{BOS: string(file.BOS), EOS: string(file.EOS), Pad: string(file.Pad)}
	if len(file.ChatTemplate) > 0 && file.ChatTemplate[0] == '"' {
		if err := json.Unmarshal(file.ChatTemplate, &c.ChatTemplate); err != nil {
			return Config{}, fmt.Errorf("tokenizer config: chat_template: %w", err)
		}
	}
	return c, nil
}

// configToken is "text", {"content": "text"} or null.
type configToken string

func (c *configToken) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var object struct {
			Content string `json:"content"`
		}
		err := json.Unmarshal(b, &object)
		*c = configToken(object.Content)
		return err
	}
	var s *string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s != nil {
		*c = configToken(*s)
	}
	return nil
}
