package hf

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
)

// WithKey is the text of a JSON object in which a key has another value, which is JSON. A key that is not there comes
// last. All other text stays as it is.
func WithKey(doc []byte, key, value string) ([]byte, error) {
	obj, err := decodeObject(doc)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("\n  %s: %s", strconv.Quote(key), value)
	i := slices.Index(obj.keys, key)
	from, to := bytes.IndexByte(doc, '{')+1, 0
	switch {
	case i >= 0:
		to = int(obj.values[key].end)
	case len(obj.keys) == 0:
		return splice(doc, from, from, text), nil
	default:
		i, to = len(obj.keys), int(obj.values[obj.keys[len(obj.keys)-1]].end)
	}
	if i > 0 { // with the comma before it
		from, text = int(obj.values[obj.keys[i-1]].end), ","+text
	}
	return splice(doc, from, to, text), nil
}

// WithoutKey is the text of a JSON object without a key; the text itself where that is not there.
func WithoutKey(doc []byte, key string) ([]byte, error) {
	obj, err := decodeObject(doc)
	if err != nil {
		return nil, err
	}
	return without(doc, obj, key), nil
}

func without(doc []byte, obj *object, key string) []byte {
	i := slices.Index(obj.keys, key)
	if i < 0 {
		return doc
	}
	from, to := bytes.IndexByte(doc, '{')+1, int(obj.values[key].end)
	switch {
	case i > 0: // with the comma before it
		from = int(obj.values[obj.keys[i-1]].end)
	case len(obj.keys) > 1: // with the comma after it
		to += bytes.IndexByte(doc[to:], ',') + 1
	}
	return splice(doc, from, to, "")
}
