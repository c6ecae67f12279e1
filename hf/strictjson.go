package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
)

// maxJSONDepth is far more than any config or safetensors header nests, and small enough that recursion is harmless.
const maxJSONDepth = 64

// object is a JSON object that keeps the order of its keys.
type object struct {
	keys   []string
	values map[string]value
}

// value is a decoded JSON value: nil, bool, json.Number, string, []value or *object, and where its text ends.
type value struct {
	v   any
	end int64 // offset just after the value in the document
}

// decodeObject decodes a document that is one JSON object. Unlike encoding/json it refuses duplicate keys, on which
// parsers differ, and text that is not UTF-8.
func decodeObject(doc []byte) (*object, error) {
	if !utf8.Valid(doc) {
		return nil, errors.New("not UTF-8 text")
	}
	if err := budget.CheckJSON(doc, budget.ObjectBytes); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("the JSON text ends too early")
		}
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	obj, ok := v.v.(*object)
	if !ok {
		return nil, fmt.Errorf("a JSON object is expected, not %s", jsonKind(v.v))
	}
	if rest := bytes.TrimLeft(doc[v.end:], " \t\r\n"); len(rest) > 0 {
		return nil, fmt.Errorf("text after the JSON object, at byte %d", len(doc)-len(rest))
	}
	return obj, nil
}

func decodeValue(dec *json.Decoder, depth int) (value, error) {
	if depth > maxJSONDepth {
		return value{}, fmt.Errorf("nested more than %d deep", maxJSONDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return value{}, err
	}
	switch tok {
	case json.Delim('{'):
		obj := &object{values: map[string]value{}}
		for dec.More() {
			tok, err := dec.Token()
			if err != nil {
				return value{}, err
			}
			key, ok := tok.(string)
			if !ok {
				return value{}, fmt.Errorf("object key at byte %d is not a string", dec.InputOffset())
			}
			if _, dup := obj.values[key]; dup {
				return value{}, fmt.Errorf("key %s appears twice", terminal.Quote(key))
			}
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return value{}, err
			}
			obj.keys = append(obj.keys, key)
			obj.values[key] = v
		}
		if _, err := dec.Token(); err != nil {
			return value{}, err
		}
		return value{obj, dec.InputOffset()}, nil
	case json.Delim('['):
		list := []value{}
		for dec.More() {
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return value{}, err
			}
			list = append(list, v)
		}
		if _, err := dec.Token(); err != nil {
			return value{}, err
		}
		return value{list, dec.InputOffset()}, nil
	}
	return value{tok, dec.InputOffset()}, nil
}

// jsonKind names a decoded value's JSON type for messages.
func jsonKind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []value:
		return "a list"
	}
	return "an object"
}

// show is a value as it looks in JSON, cut short for a message.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return terminal.Quote(v)
	case []value:
		parts := make([]string, len(v))
		for i, e := range v {
			if i == 4 {
				return "[" + strings.Join(parts[:i], ", ") + ", ...]"
			}
			parts[i] = show(e.v)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case *object:
		return "{...}"
	}
	return fmt.Sprint(v)
}
