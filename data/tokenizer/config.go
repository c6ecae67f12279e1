package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/budget"
)

// Config has the keys of a tokenizer_config.json that the program needs. [Load] applies it as transformers (4.57) does
// to a fast tokenizer:
//
//   - Classes of the Llama kind replace the file's template by BOS and EOS, as add_bos_token (default true) and add_eos_token
//     (default false) say: so Llama 2, Gemma and DeepSeek begin with BOS whatever the file has. For other classes, Llama 3
//     and Qwen among them, the two keys mean nothing, and the file decides.
//   - added_tokens_decoder overrides how the file's added tokens are found, and adds tokens.
//   - Special tokens of the configuration that are in the vocabulary are found in text as added tokens are.
//   - Without added_tokens_decoder, special_tokens_map.json overrides the special tokens.
//   - add_prefix_space (default false) overrides that of a ByteLevel step that is the whole pre-tokenizer.
//
// Special tokens that the vocabulary lacks are left out, but BOS and EOS must be there: transformers would give
// them ids for which the model has no rows. The key legacy changes what a Python tokenizer is converted to, not what
// a tokenizer.json means.
type Config struct {
	BOS, EOS, Pad string // spellings; "" without one
	ChatTemplate  string // Jinja; "" without one, or with several
	Class         string // tokenizer_class, without Fast at its end

	keys *configJSON
}

type configJSON struct {
	BOS             *configToken               `json:"bos_token"`
	EOS             *configToken               `json:"eos_token"`
	Unk             *configToken               `json:"unk_token"`
	Pad             *configToken               `json:"pad_token"`
	Sep             *configToken               `json:"sep_token"`
	Cls             *configToken               `json:"cls_token"`
	Mask            *configToken               `json:"mask_token"`
	Additional      []configToken              `json:"additional_special_tokens"`
	Class           string                     `json:"tokenizer_class"`
	ChatTemplate    json.RawMessage            `json:"chat_template"`
	AddBOS          *bool                      `json:"add_bos_token"`
	AddEOS          *bool                      `json:"add_eos_token"`
	AddPrefixSpace  *bool                      `json:"add_prefix_space"`
	SplitSpecial    bool                       `json:"split_special_tokens"`
	AddedTokens     map[string]json.RawMessage `json:"added_tokens_decoder"`
	ExtraSpecial    json.RawMessage            `json:"extra_special_tokens"`
	presentBOS      bool
	presentEOS      bool
	extraSpecial    []configToken
	addedTokensByID []addedJSON
	newTokens       []addedJSON // those of addedTokensByID that tokenizer.json lacks
}

// configToken is "text", {"content": "text", ...} or null.
type configToken struct{ addedJSON }

func (c *configToken) UnmarshalJSON(b []byte) error {
	c.addedJSON = addedJSON{Special: true}
	if len(b) > 0 && b[0] == '{' {
		return json.Unmarshal(b, &c.addedJSON)
	}
	var s *string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	c.Content = orEmpty(s)
	return nil
}

func (c *configToken) text() string {
	if c == nil {
		return ""
	}
	return c.Content
}

// templateClasses build the template from BOS and EOS. The values are their defaults where the file says nothing.
var templateClasses = map[string]struct {
	bos, eos string
	addBOS   bool
}{
	"LlamaTokenizer":     {"<s>", "</s>", true},
	"CodeLlamaTokenizer": {"<s>", "</s>", true},
	"GemmaTokenizer":     {"<bos>", "<eos>", true},
	"CohereTokenizer":    {"<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", true},
	"GPTNeoXTokenizer":   {"<|endoftext|>", "<|endoftext|>", false},
}

// RebuiltClass is the tokenizer_class of a tokenizer whose tokenizer.json transformers 5 replaces by a tokenizer of its own making, or
// "". Of 1,881 strings, Llama 2's had other ids in 92 (white space), Yi's in 1,796 (a blank in front), and DeepSeek-V3's, Command
// R+'s and GPT-4o's in all or many of them (transformers 5.24).
func (t *Pipeline) RebuiltClass() string {
	switch t.class {
	case "LlamaTokenizer", "CohereTokenizer", "GPT2Tokenizer":
		return t.class
	}
	return ""
}

const configName = "tokenizer_config.json"

// ReadConfig reads the tokenizer_config.json of a directory, as [ParseConfig] takes it. Where that has no
// added_tokens_decoder, as before transformers 4.34, the keys of special_tokens_map.json take the place of its own.
// Links out of the directory are refused. Without either file the error is an fs.ErrNotExist.
func ReadConfig(dir string) ([]byte, error) {
	configPath, specialPath := filepath.Join(dir, configName), filepath.Join(dir, specialName)
	config, err := below.Read(dir, configName, maxConfigBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	special, mapErr := below.Read(dir, specialName, maxConfigBytes)
	if errors.Is(mapErr, fs.ErrNotExist) {
		return config, err
	}
	if mapErr != nil {
		return nil, mapErr
	}
	keys := map[string]json.RawMessage{}
	if err == nil {
		if err := budget.Unmarshal(config, &keys); err != nil {
			return nil, fmt.Errorf("%s: %w", configPath, err)
		}
	}
	if keys == nil { // the file says null
		keys = map[string]json.RawMessage{}
	}
	if _, ok := keys["added_tokens_decoder"]; ok {
		return config, nil
	}
	var more map[string]json.RawMessage
	if err := budget.Unmarshal(special, &more); err != nil {
		return nil, fmt.Errorf("%s: %w", specialPath, err)
	}
	for name, value := range more {
		if name == "additional_special_tokens" {
			var old, added []json.RawMessage
			json.Unmarshal(keys[name], &old) // what is no list is not kept
			if err := json.Unmarshal(value, &added); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", specialPath, name, err)
			}
			if value, err = json.Marshal(append(old, added...)); err != nil {
				return nil, err
			}
		}
		keys[name] = value
	}
	return json.Marshal(keys)
}

const specialName = "special_tokens_map.json"

// checkAddedTokens refuses an added_tokens.json of a directory, as it was written before added_tokens_decoder, that has
// tokens which tokenizer.json lacks.
func checkAddedTokens(dir string, file *fileJSON) error {
	const name = "added_tokens.json"
	path := filepath.Join(dir, name)
	doc, err := below.Read(dir, name, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read tokenizer: %w", err)
	}
	var ids map[string]int64
	if err := budget.Unmarshal(doc, &ids); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	known := map[string]bool{}
	for _, a := range file.AddedTokens {
		known[a.Content] = true
	}
	for _, token := range slices.Sorted(maps.Keys(ids)) {
		if !known[token] {
			return fmt.Errorf("%s: token %q is not in tokenizer.json: save the tokenizer again with transformers", path, token)
		}
	}
	return nil
}

// ParseConfig reads a tokenizer_config.json. Keys that do not change ids are ignored.
func ParseConfig(data []byte) (Config, error) {
	var file configJSON
	if err := budget.Unmarshal(data, &file); err != nil {
		return Config{}, fmt.Errorf("tokenizer config: %w", err)
	}
	var present map[string]json.RawMessage
	if err := budget.Unmarshal(data, &present); err != nil {
		return Config{}, fmt.Errorf("tokenizer config: %w", err)
	}
	_, file.presentBOS = present["bos_token"]
	_, file.presentEOS = present["eos_token"]
	for _, key := range slices.SortedFunc(maps.Keys(file.AddedTokens), func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	}) {
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil {
			return Config{}, fmt.Errorf("tokenizer config: added_tokens_decoder has %q where an id should be", key)
		}
		a := addedJSON{Normalized: true}
		if err := json.Unmarshal(file.AddedTokens[key], &a); err != nil {
			return Config{}, fmt.Errorf("tokenizer config: added_tokens_decoder: %s: %w", key, err)
		}
		a.ID = int64(id)
		file.addedTokensByID = append(file.addedTokensByID, a)
	}
	// {"image_token": "<image>"}, or in early files a list.
	var extra map[string]configToken
	if json.Unmarshal(file.ExtraSpecial, &extra) == nil {
		for _, key := range slices.Sorted(maps.Keys(extra)) {
			file.extraSpecial = append(file.extraSpecial, extra[key])
		}
	}
	c := Config{BOS: file.BOS.text(), EOS: file.EOS.text(), Pad: file.Pad.text(), Class: strings.TrimSuffix(file.Class, "Fast"), keys: &file}
	if len(file.ChatTemplate) > 0 && file.ChatTemplate[0] == '"' {
		if err := json.Unmarshal(file.ChatTemplate, &c.ChatTemplate); err != nil {
			return Config{}, fmt.Errorf("tokenizer config: chat_template: %w", err)
		}
	}
	return c, nil
}

// change applies to the file what must be known before the tokenizer is made.
func (c Config) change(file *fileJSON) error {
	k := c.keys
	if k.SplitSpecial {
		return errors.New("split_special_tokens is not supported: special tokens in text are found as such")
	}
	at := map[string]int{}
	for i, a := range file.AddedTokens {
		at[a.Content] = i
	}
	for _, a := range k.addedTokensByID {
		i, ok := at[a.Content]
		if !ok {
			at[a.Content] = len(file.AddedTokens)
			file.AddedTokens = append(file.AddedTokens, a)
			k.newTokens = append(k.newTokens, a)
			continue
		}
		old := &file.AddedTokens[i]
		if !old.Special && old.Normalized != a.Normalized {
			if !isNull(file.Normalizer) {
				return fmt.Errorf("added token %q is normalized in one file and not in the other, which is not supported", a.Content)
			}
			old.Normalized = false
		}
		old.SingleWord, old.LStrip, old.RStrip, old.Special = a.SingleWord, a.LStrip, a.RStrip, a.Special || old.Special
	}
	var special []configToken
	for _, t := range []*configToken{k.BOS, k.EOS, k.Unk, k.Sep, k.Pad, k.Cls, k.Mask} {
		if t != nil {
			special = append(special, *t)
		}
	}
	for _, t := range slices.Concat(special, k.Additional, k.extraSpecial) {
		if _, ok := at[t.Content]; ok || t.Content == "" {
			continue // it is found as the file says
		}
		t.Special = true
		at[t.Content] = -1
		file.special = append(file.special, t.addedJSON)
	}
	if err := c.changePrefixSpace(file); err != nil {
		return err
	}
	class := templateClasses[c.Class]
	file.changes = fmt.Sprintf("%+v %+v %s %s %v %v", file.AddedTokens, file.special, file.PreTokenizer, class.bos, value(k.AddBOS, class.addBOS), value(k.AddEOS, false))
	return nil
}

func value(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}

func (c Config) changePrefixSpace(file *fileJSON) error {
	kind, err := typeOf(file.PreTokenizer)
	isLlama := c.Class == "LlamaTokenizer"
	if isLlama && !value(c.keys.AddPrefixSpace, true) && prepends(file) {
		return errors.New("add_prefix_space is false, but tokenizer.json puts a space in front: set it to null or export the tokenizer again")
	}
	if err != nil || kind != "ByteLevel" || isLlama {
		return nil // a broken pre_tokenizer is reported with the file
	}
	var step map[string]json.RawMessage
	if err := json.Unmarshal(file.PreTokenizer, &step); err != nil {
		return nil
	}
	step["add_prefix_space"] = json.RawMessage(strconv.FormatBool(value(c.keys.AddPrefixSpace, false)))
	file.PreTokenizer, err = json.Marshal(step)
	return err
}

// prepends says that the file puts something in front of a text.
func prepends(file *fileJSON) bool {
	if steps, err := readNormalizer(file.Normalizer); err == nil {
		for _, n := range steps.list {
			if _, ok := n.(prependText); ok {
				return true
			}
		}
	}
	pre := &preTokenizer{}
	if pre.read(file.PreTokenizer) == nil {
		for _, s := range pre.steps {
			if m, ok := s.(metaspace); ok && m.scheme != prependNever {
				return true
			}
		}
	}
	return false
}

// finish applies what needs ids.
func (c Config) finish(t *Pipeline) error {
	class, hasTemplate := templateClasses[c.Class]
	bos, eos := c.BOS, c.EOS
	if hasTemplate && !c.keys.presentBOS && t.TokenID(class.bos) != None {
		bos = class.bos
	}
	if hasTemplate && !c.keys.presentEOS && t.TokenID(class.eos) != None {
		eos = class.eos
	}
	var err error
	if t.bos, err = t.bound(bos, "bos_token"); err != nil {
		return err
	}
	if t.eos, err = t.bound(eos, "eos_token"); err != nil {
		return err
	}
	if hasTemplate {
		t.before, t.after = nil, nil
		if value(c.keys.AddBOS, class.addBOS) {
			if t.bos == None {
				return errors.New("add_bos_token is true, but there is no bos_token")
			}
			t.before = []int32{t.bos}
		}
		if value(c.keys.AddEOS, false) {
			if t.eos == None {
				return errors.New("add_eos_token is true, but there is no eos_token")
			}
			t.after = []int32{t.eos}
		}
	}
	for _, a := range c.keys.newTokens {
		if a.ID > 0 && t.Token(int32(a.ID)) == a.Content && t.tokens[a.ID-1] == "" {
			return fmt.Errorf("added token %q has id %d, but the one before it is free", a.Content, a.ID)
		}
	}
	t.setHash()
	return nil
}

func (t *Pipeline) bound(token, key string) (int32, error) {
	if token == "" {
		return None, nil
	}
	id := t.TokenID(token)
	if id == None {
		return None, fmt.Errorf("%s %q is not in the vocabulary", key, token)
	}
	return id, nil
}
