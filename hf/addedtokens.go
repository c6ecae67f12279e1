package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/below"
)

// AddedToken is a token that a tokenizer finds in text before it cuts that into words.
type AddedToken struct {
	ID      int
	Content string
	Special bool // decoding leaves it out where special tokens are to be left out
}

// addedJSON is a token in tokenizer.json and, without its id, in tokenizer_config.json, as transformers writes it.
type addedJSON struct {
	ID         *int   `json:"id,omitempty"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// TokenizerWith returns the files of a directory's tokenizer that change when tokens are added to it, by name, with
// everything else in them as it is: tokenizer.json, and the lists of tokens that tokenizer_config.json,
// special_tokens_map.json and added_tokens.json have. The tokens have the properties that transformers' AddedToken
// gives them.
func TokenizerWith(dir string, tokens []AddedToken) (files map[string][]byte, err error) {
	var full, special []string
	var byID, byContent []member
	for _, t := range tokens {
		j := addedJSON{Content: t.Content, Normalized: !t.Special, Special: t.Special}
		byID = append(byID, member{strconv.Itoa(t.ID), compact(j)})
		byContent = append(byContent, member{t.Content, strconv.Itoa(t.ID)})
		j.ID = &t.ID
		full = append(full, compact(j))
		if t.Special {
			special = append(special, compact(t.Content))
		}
	}
	files = map[string][]byte{}
	for name, add := range map[string]func(*growing) error{
		"tokenizer.json": func(g *growing) error {
			if g.obj.values["added_tokens"].v == nil {
				return errors.New("it has no added_tokens: save it with a newer version of transformers")
			}
			return g.list("added_tokens", full)
		},
		"tokenizer_config.json": func(g *growing) error {
			return cmp.Or(g.object("added_tokens_decoder", byID), g.list("additional_special_tokens", special))
		},
		"special_tokens_map.json": func(g *growing) error { return g.list("additional_special_tokens", special) },
		"added_tokens.json": func(g *growing) error {
			g.members(g.obj, int64(len(bytes.TrimRight(g.doc, " \t\r\n"))), byContent)
			return nil
		},
	} {
		doc, err := below.Read(dir, name, maxSidecarBytes)
		if errors.Is(err, fs.ErrNotExist) && name != "tokenizer.json" {
			continue
		}
		if err != nil {
			return nil, err
		}
		g := &growing{doc: doc}
		if g.obj, err = decodeObject(doc); err == nil {
			err = add(g)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
		if len(g.inserts) > 0 {
			files[name] = g.text()
		}
	}
	return files, nil
}

// compact is a value as JSON in one line, without escapes that JSON does not need.
func compact(v any) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // texts, numbers and truth values can be encoded
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// member is a key and the JSON of its value.
type member struct{ key, value string }

// growing is a JSON object whose lists and objects get more members.
type growing struct {
	doc     []byte
	obj     *object
	inserts []insert
}

// insert is a text that takes the place of the next bytes of a document.
type insert struct {
	at    int
	text  string
	skips int // bytes
}

// list appends to a list of the object; nothing where the object has none under that key.
func (g *growing) list(key string, items []string) error {
	v, ok := g.obj.values[key]
	if !ok || v.v == nil || len(items) == 0 {
		return nil
	}
	list, ok := v.v.([]value)
	if !ok {
		return fmt.Errorf("%q is %s, not a list", key, jsonKind(v.v))
	}
	last := int64(0)
	if len(list) > 0 {
		last = list[len(list)-1].end
	}
	g.insert(v.end, last, items)
	return nil
}

// object appends to an object in the object; nothing where that key has no object.
func (g *growing) object(key string, items []member) error {
	v, ok := g.obj.values[key]
	if !ok || v.v == nil {
		return nil
	}
	obj, ok := v.v.(*object)
	if !ok {
		return fmt.Errorf("%q is %s, not an object", key, jsonKind(v.v))
	}
	g.members(obj, v.end, items)
	return nil
}

func (g *growing) members(obj *object, end int64, items []member) {
	last := int64(0)
	for _, v := range obj.values {
		last = max(last, v.end)
	}
	var texts []string
	for _, m := range items {
		texts = append(texts, compact(m.key)+": "+m.value)
	}
	g.insert(end, last, texts)
}

// insert puts items into the list or object that ends at end, and whose last member does at last; 0: it has no member.
// They stand in lines of their own if the closing bracket does.
func (g *growing) insert(end, last int64, items []string) {
	if last == 0 {
		g.inserts = append(g.inserts, insert{at: int(end) - 1, text: strings.Join(items, ", ")})
		return
	}
	between, space := ", ", string(g.doc[last:end-1])
	if at := strings.LastIndexByte(space, '\n'); at >= 0 {
		between = "," + space[at:] + "  "
	}
	g.inserts = append(g.inserts, insert{at: int(last), text: between + strings.Join(items, between)})
}

// text is the document with what was inserted.
func (g *growing) text() []byte {
	slices.SortFunc(g.inserts, func(a, b insert) int { return cmp.Compare(b.at, a.at) })
	out := g.doc
	for _, i := range g.inserts {
		out = splice(out, i.at, i.at+i.skips, i.text)
	}
	return out
}

// vocabKeys are the keys of config.json for the rows of embeddings; the second one is that of rows of layers.
var vocabKeys = []string{"vocab_size", "vocab_size_per_layer_input"}

// WithVocabSize is the text of config.json with another size of the vocabulary, in "text_config" as well. Keys that are
// not there stay away.
func (c *Config) WithVocabSize(n int) ([]byte, error) {
	objects := []*object{c.obj}
	if text, ok := c.obj.values["text_config"].v.(*object); ok {
		objects = append(objects, text)
	}
	g := &growing{doc: c.raw}
	for _, obj := range objects {
		for _, key := range vocabKeys {
			v, ok := obj.values[key]
			if !ok {
				continue
			}
			old, ok := v.v.(json.Number)
			if !ok {
				return nil, fmt.Errorf("%s: %q is %s, not a number", c.path, key, show(v.v))
			}
			g.inserts = append(g.inserts, insert{at: int(v.end) - len(old), skips: len(old), text: strconv.Itoa(n)})
		}
	}
	return g.text(), nil
}
