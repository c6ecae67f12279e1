package tokenizer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/budget"
)

// Bounds of what a file may hold, because files come from strangers and tables are allocated by what they say.
const (
	maxFileBytes   = MaxFileBytes
	maxConfigBytes = 1 << 25   // of each file next to it; the largest public ones have 1 MB
	addedBytes     = 64        // of the file, at least, for an added token, which is the kind of object that it has many of
	memoryPerByte  = 8         // of the file, until the tables are made; with garbage 15 were measured of pairs in lists
	maxID          = 1<<20 - 1 // tables of tokens are allocated by the largest one
	maxAddedBytes  = 4096      // of one added token
	maxTokenBytes  = MaxTokenBytes
	maxSteps       = 64  // of the normalizer, the pre-tokenizer or the decoder
	maxGrowth      = 256 // how many times longer a normalizer may make a text
)

// MaxFileBytes bounds a tokenizer.json, for those who write one, too.
const MaxFileBytes = 1 << 28

// MaxTokenBytes bounds the text of one token, for those who write a tokenizer.json, too.
const MaxTokenBytes = 1 << 16

// Load reads a tokenizer.json, or that of a model directory. It applies the tokenizer_config.json of the same directory
// as transformers does when it loads a fast tokenizer: see [Config]. A file that is named may be a link; in its
// directory links are not followed out of it. Errors name the file and the feature that is missing or wrong.
func Load(path string) (*Pipeline, error) {
	t, _, err := loadFile(path)
	return t, err
}

// loadFile returns the file, too, with what its configuration changed.
func loadFile(path string) (*Pipeline, *fileJSON, error) {
	var data []byte
	info, err := os.Stat(path)
	isDir := err == nil && info.IsDir()
	if isDir {
		info, err = os.Stat(filepath.Join(path, "tokenizer.json"))
	}
	var use budget.Use
	defer use.End()
	if err == nil && info.Mode().IsRegular() && info.Size() <= maxFileBytes {
		if err := use.Take(context.Background(), info.Size()*memoryPerByte); err != nil {
			return nil, nil, fmt.Errorf("tokenizer %s: %d bytes: %w", path, info.Size(), err)
		}
	}
	if isDir {
		data, err = below.Read(path, "tokenizer.json", maxFileBytes)
		path = filepath.Join(path, "tokenizer.json")
	} else {
		data, err = below.ReadFile(path, maxFileBytes)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, errMissing(path)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read tokenizer: %w", err)
	}
	dir := filepath.Dir(path)
	configPath := filepath.Join(dir, configName)
	configData, err := ReadConfig(dir)
	hasConfig := !errors.Is(err, fs.ErrNotExist)
	if err != nil && hasConfig {
		return nil, nil, fmt.Errorf("read tokenizer: %w", err)
	}
	var config Config
	if hasConfig {
		if config, err = ParseConfig(configData); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", configPath, err)
		}
	}
	file, err := parseFile(data)
	if err != nil {
		if other := errNamed(path); other != nil {
			return nil, nil, other
		}
		return nil, nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	if hasConfig {
		if len(config.keys.AddedTokens) == 0 {
			if err := checkAddedTokens(dir, file); err != nil {
				return nil, nil, err
			}
		}
		if err := config.change(file); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", configPath, err)
		}
	}
	t, err := file.build(data)
	if err != nil {
		return nil, nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	if hasConfig {
		t.class = config.Class
		if err := config.finish(t); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", configPath, err)
		}
	}
	return t, file, nil
}

// Parse reads a tokenizer.json. It sets BOS and EOS to None, as only a tokenizer_config.json names them; see [Load].
func Parse(data []byte) (*Pipeline, error) {
	file, err := parseFile(data)
	if err != nil {
		return nil, err
	}
	return file.build(data)
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
	Model         *modelJSON      `json:"model"`

	// From tokenizer_config.json: tokens to find in text if the vocabulary has them, and what it changed, for the hash.
	special []addedJSON
	changes string
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

func parseFile(data []byte) (*fileJSON, error) {
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(data), maxFileBytes)
	}
	if err := budget.CheckJSON(data, addedBytes); err != nil {
		return nil, err
	}
	var file fileJSON
	if err := strict(data, &file); err != nil {
		return nil, err
	}
	if file.Model == nil {
		return nil, errors.New("no model: this is not a tokenizer.json")
	}
	return &file, nil
}

// build makes the tokenizer of a file; data is only hashed.
func (file *fileJSON) build(data []byte) (*Pipeline, error) {
	t := &Pipeline{bos: None, eos: None}
	t.encoders = &sync.Pool{New: t.newEncoder}
	sum := xxh3.Hash128(append(data[:len(data):len(data)], file.changes...)).Bytes()
	t.hash = fmt.Sprintf("hf-2-%x", sum)
	steps, err := readNormalizer(file.Normalizer)
	if err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	t.normalizers, t.growth = steps.list, steps.growth
	pre := &preTokenizer{afterRemoval: steps.removesStart}
	if err := pre.read(file.PreTokenizer); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	t.splitters = pre.steps
	if err := t.setModel(file.Model, pre); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	t.cuts = t.seams()
	added := file.AddedTokens
	for _, a := range file.special {
		if id, ok := t.ids[a.Content]; ok {
			a.ID = int64(id)
			added = append(added, a)
		}
	}
	if err := t.setAdded(added); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	if err := t.setPostProcessor(file.PostProcessor); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	if err := t.setDecoder(file.Decoder); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	t.setHash()
	return t, nil
}

// setHash adds BOS and EOS, which a tokenizer_config.json sets when the rest is made, to the hash of the files.
func (t *Pipeline) setHash() {
	base, _, _ := strings.Cut(t.hash, ":")
	t.hash = fmt.Sprintf("%s:%d:%d", base, t.bos, t.eos)
}

// strict decodes one JSON value and refuses keys that v does not have.
func strict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		// A step of another kind has keys of its own.
		_, key, isUnknown := strings.Cut(err.Error(), "unknown field ")
		if kind, typeErr := typeOf(data); isUnknown && typeErr == nil && kind != "" {
			return fmt.Errorf("type %.100q with the key %.100s is not supported", kind, key)
		}
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

// setToken enters a token.
func (t *Pipeline) setToken(token string, id int64) error {
	if token == "" {
		return fmt.Errorf("the token with id %d is empty", id)
	}
	if len(token) > maxTokenBytes {
		return fmt.Errorf("the token with id %d has %d bytes, more than %d", id, len(token), maxTokenBytes)
	}
	if id < 0 || id > maxID {
		return fmt.Errorf("token %q has id %d, which is not between 0 and %d", token, id, maxID)
	}
	if n := int(id) + 1; n > len(t.tokens) {
		t.tokens = slices.Grow(t.tokens, n-len(t.tokens))[:n]
	}
	if old := t.tokens[id]; old != "" && old != token {
		return fmt.Errorf("tokens %q and %q both have id %d", min(old, token), max(old, token), id)
	}
	if old, ok := t.ids[token]; ok && old != int32(id) {
		return fmt.Errorf("token %q has ids %d and %d", token, old, id)
	}
	t.ids[token] = int32(id)
	t.tokens[id] = token
	return nil
}

// setAdded enters the added tokens. One whose id the vocabulary gives to something else is an error; the library
// would move it.
func (t *Pipeline) setAdded(tokens []addedJSON) error {
	var plain, normalized []addedToken
	for _, a := range tokens {
		if len(a.Content) > maxAddedBytes {
			return fmt.Errorf("token with id %d has %d bytes, more than %d", a.ID, len(a.Content), maxAddedBytes)
		}
		if err := t.setToken(a.Content, a.ID); err != nil {
			return err
		}
		token := addedToken{id: int32(a.ID), content: a.Content, singleWord: a.SingleWord, lstrip: a.LStrip, rstrip: a.RStrip}
		if !a.Normalized {
			plain = append(plain, token)
			continue
		}
		if token.content = t.normalize(a.Content); token.content == "" {
			return fmt.Errorf("the normalizer leaves nothing of token %q", a.Content)
		}
		normalized = append(normalized, token)
	}
	t.special = make([]bool, len(t.tokens))
	for _, a := range tokens {
		t.special[a.ID] = a.Special
	}
	t.added, t.addedNormalized = newAddedSet(plain), newAddedSet(normalized)
	return nil
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

func (t *Pipeline) setPostProcessor(raw json.RawMessage) error {
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
	sequences := 0
	var before, after []int32
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
					before = append(before, int32(id))
				} else {
					after = append(after, int32(id))
				}
			}
		default:
			return errors.New("a piece of the template is neither a SpecialToken nor Sequence A")
		}
	}
	if sequences != 1 {
		return fmt.Errorf("the template holds the text %d times, not once", sequences)
	}
	t.addToTemplate(before, after)
	return nil
}

type decoderJSON struct {
	Type          string            `json:"type"`
	Decoders      []json.RawMessage `json:"decoders"`
	Pattern       *patternJSON      `json:"pattern"`
	Content       string            `json:"content"`
	Start         int               `json:"start"`
	Stop          int               `json:"stop"`
	Replacement   string            `json:"replacement"`
	PrependScheme string            `json:"prepend_scheme"`

	AddPrefixSpace *bool           `json:"add_prefix_space"`
	Split          *bool           `json:"split"`
	TrimOffsets    json.RawMessage `json:"trim_offsets"`
	UseRegex       json.RawMessage `json:"use_regex"`
	StrRep         json.RawMessage `json:"str_rep"`
}

func (t *Pipeline) setDecoder(raw json.RawMessage) error {
	if isNull(raw) {
		t.decoders = []decoder{joinSpaces{}}
	} else if err := t.addDecoder(raw); err != nil {
		return err
	}
	t.raw = make([]string, len(t.tokens))
	for id, token := range t.tokens {
		t.raw[id] = aloneBytes(t.decoders, token)
	}
	if t.isByteLevel() {
		// The library reads the letters of an added token as bytes when it decodes; here they are letters.
		for _, set := range []*addedSet{t.added, t.addedNormalized} {
			for _, a := range set.tokens {
				t.raw[a.id] = t.tokens[a.id]
			}
		}
	}
	return nil
}

func (t *Pipeline) addDecoder(raw json.RawMessage) error {
	var d decoderJSON
	if err := strict(raw, &d); err != nil {
		return err
	}
	var step decoder
	switch d.Type {
	case "Sequence":
		for _, raw := range d.Decoders {
			if err := t.addDecoder(raw); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		step = decodeByteLevel{}
	case "ByteFallback":
		step = decodeFallback{}
	case "Fuse":
		step = decodeFuse{}
	case "Strip":
		if len([]rune(d.Content)) != 1 || d.Start < 0 || d.Stop < 0 || d.Start > maxTokenBytes || d.Stop > maxTokenBytes {
			return fmt.Errorf("Strip needs one character and counts between 0 and %d", maxTokenBytes)
		}
		step = decodeStrip{d.Content, d.Start, d.Stop}
	case "Replace":
		m, err := d.Pattern.matcher()
		if err != nil {
			return fmt.Errorf("Replace: %w", err)
		}
		if len(d.Content) > maxGrowth {
			return fmt.Errorf("Replace: content has %d bytes, more than %d", len(d.Content), maxGrowth)
		}
		step = decodeReplace{replace{m, d.Content}}
	case "Metaspace":
		scheme, err := metaspaceScheme(d.PrependScheme, d.AddPrefixSpace)
		if err != nil {
			return err
		}
		if len([]rune(d.Replacement)) != 1 {
			return fmt.Errorf("the replacement of Metaspace is %q, not one character", d.Replacement)
		}
		step = decodeMetaspace{d.Replacement, scheme != prependNever}
	default:
		return fmt.Errorf("type %s is not supported: only Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace and "+
			"Metaspace are", d.Type)
	}
	if len(t.decoders) >= maxSteps {
		return fmt.Errorf("more than %d steps", maxSteps)
	}
	t.decoders = append(t.decoders, step)
	return nil
}
