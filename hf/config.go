package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/tensor"
)

const (
	configName  = "config.json"
	adapterName = "adapter_config.json" // of PEFT
)

// maxConfigBytes bounds config.json; real ones have a few kilobytes.
const maxConfigBytes = 16 << 20

// Config is a model directory's config.json. Its text is kept, so that it can be carried through to an export.
type Config struct {
	path string
	raw  []byte
	obj  *object
}

// ReadConfig reads config.json of a model directory.
func ReadConfig(dir string) (*Config, error) {
	path := filepath.Join(dir, configName)
	doc, err := below.Read(dir, configName, maxConfigBytes)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, adapterName)); err == nil {
			return nil, fmt.Errorf("%s has an adapter, not a model: merge it into its model (merge_and_unload of PEFT), save "+
				"that, and name its directory", dir)
		}
		return nil, fmt.Errorf("%s is missing: name a model directory", path)
	}
	if err != nil {
		return nil, err
	}
	return ParseConfig(path, doc)
}

// ParseConfig decodes the text of a config.json. The path is for messages.
func ParseConfig(path string, doc []byte) (*Config, error) {
	obj, err := decodeObject(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (if it should be good, download it again)", path, err)
	}
	return &Config{path, doc, obj}, nil
}

// Raw is the file's text, unchanged. The caller must not modify it.
func (c *Config) Raw() []byte { return c.raw }

// Path is the file's path.
func (c *Config) Path() string { return c.path }

// Reader starts a reading of the whole object.
func (c *Config) Reader() *ConfigReader {
	return &ConfigReader{path: c.path, config: true, obj: c.obj, read: map[string]bool{}, err: new(error)}
}

// dtypeNames are the names that PyTorch and config.json use.
var dtypeNames = map[string]tensor.DType{"float32": tensor.F32, "float16": tensor.F16, "bfloat16": tensor.BF16}

// DType is the element type that the config states ("torch_dtype" in transformers 4, "dtype" in 5) or else that its
// "text_config" states, and Invalid if neither does or it is another one. It is advice: the weights have types of
// their own.
func (c *Config) DType() tensor.DType {
	for _, s := range c.stated() {
		if name, ok := s.v.(string); ok {
			return dtypeNames[name]
		}
	}
	return tensor.Invalid
}

// DTypeName is PyTorch's name of an element type of models; "" for other types.
func DTypeName(d tensor.DType) string {
	for name, t := range dtypeNames {
		if t == d {
			return name
		}
	}
	return ""
}

// TokenID reads a token id; ok is false for a list of them, and without the key.
func (c *Config) TokenID(key string) (id int, ok bool) {
	n, isNumber := c.obj.values[key].v.(json.Number)
	if !isNumber {
		return 0, false
	}
	v, err := n.Int64()
	return int(v), err == nil && v >= 0 && v < maxSize
}

// statedDType is an element type in the text of a config.
type statedDType struct {
	key string
	value
}

// stated are the element types that the config states, and those that its "text_config" does.
func (c *Config) stated() (all []statedDType) {
	in := func(prefix string, obj *object) {
		for _, key := range []string{"dtype", "torch_dtype"} {
			if v, ok := obj.values[key]; ok {
				all = append(all, statedDType{prefix + key, v})
			}
		}
	}
	in("", c.obj)
	if text, ok := c.obj.values["text_config"].v.(*object); ok {
		in("text_config.", text)
	}
	return all
}

// WithDType is the text with the stated element types changed and everything else as it is, except that no weights are
// quantized. A config that states none gets a "torch_dtype", which both generations of transformers read.
func (c *Config) WithDType(d tensor.DType) ([]byte, error) {
	name := DTypeName(d)
	if name == "" {
		return nil, fmt.Errorf("%s: %v cannot be stated as the type of a model", c.path, d)
	}
	if c.obj.values[quantizationKey].v != nil {
		plain, err := ParseConfig(c.path, without(c.raw, c.obj, quantizationKey))
		if err != nil {
			return nil, err
		}
		return plain.WithDType(d)
	}
	quoted := strconv.Quote(name)
	stated := c.stated()
	if len(stated) == 0 {
		return c.with("torch_dtype", quoted), nil
	}
	out := c.raw
	// From the end, so that earlier offsets stay true.
	slices.SortFunc(stated, func(a, b statedDType) int { return cmp.Compare(b.end, a.end) })
	for _, v := range stated {
		start := int(v.end)
		switch v.v.(type) {
		case nil:
			start -= len("null")
		case string:
			// The text may have escapes, so its opening quote is searched, not computed.
			for start -= 2; c.raw[start] != '"' || escaped(c.raw, start); start-- {
			}
		default:
			return nil, fmt.Errorf("%s: %q is %s, not a string", c.path, v.key, show(v.v))
		}
		out = splice(out, start, int(v.end), quoted)
	}
	return out, nil
}

// mxfp4Config says which modules are not in MXFP4, as in the published models.
const mxfp4Config = `{
    "modules_to_not_convert": [
      "model.layers.*.self_attn",
      "model.layers.*.mlp.router",
      "model.embed_tokens",
      "lm_head"
    ],
    "quant_method": "mxfp4"
  }`

// WithMXFP4 is the text for weights of which experts are in MXFP4 and all others in bf16.
func (c *Config) WithMXFP4() ([]byte, error) {
	text := c.raw
	if _, ok := c.obj.values[quantizationKey]; ok {
		text = without(c.raw, c.obj, quantizationKey)
	}
	plain, err := ParseConfig(c.path, text)
	if err != nil {
		return nil, err
	}
	if text, err = plain.WithDType(tensor.BF16); err != nil {
		return nil, err
	}
	if plain, err = ParseConfig(c.path, text); err != nil {
		return nil, err
	}
	return plain.with(quantizationKey, mxfp4Config), nil
}

// with is the text with a further first key.
func (c *Config) with(key, value string) []byte {
	insert := "\n  " + strconv.Quote(key) + ": " + value
	if len(c.obj.keys) > 0 {
		insert += ","
	}
	at := c.open()
	return splice(c.raw, at, at, insert)
}

// open is the offset after the opening brace, which is the first byte that is not white space.
func (c *Config) open() int { return bytes.IndexByte(c.raw, '{') + 1 }

// escaped reports whether the byte at i has an odd number of backslashes before it.
func escaped(doc []byte, i int) bool {
	n := 0
	for i-n-1 >= 0 && doc[i-n-1] == '\\' {
		n++
	}
	return n%2 == 1
}

func splice(doc []byte, from, to int, text string) []byte {
	out := make([]byte, 0, len(doc)+len(text))
	out = append(out, doc[:from]...)
	out = append(out, text...)
	return append(out, doc[to:]...)
}
