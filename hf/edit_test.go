package hf

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestKeysOfAnObjectChange(t *testing.T) {
	for _, c := range []struct{ doc, key, with, without string }{
		{`{}`, "k", "{\n  \"k\": 7}", `{}`},
		{`{"k": 1}`, "k", "{\n  \"k\": 7}", `{}`},
		{`{"k": [1, {"k": 2}], "a": "k"}`, "k", "{\n  \"k\": 7, \"a\": \"k\"}", `{ "a": "k"}`},
		{`{"a": "x,}", "k": null , "b": {}}`, "k", "{\"a\": \"x,}\",\n  \"k\": 7 , \"b\": {}}", `{"a": "x,}" , "b": {}}`},
		{"{\n  \"a\": 1\n}\n", "k", "{\n  \"a\": 1,\n  \"k\": 7\n}\n", "{\n  \"a\": 1\n}\n"},
		{`{"a": 1, "k": 2}`, "k", "{\"a\": 1,\n  \"k\": 7}", `{"a": 1}`},
	} {
		with, err := WithKey([]byte(c.doc), c.key, "7")
		if err != nil || string(with) != c.with {
			t.Errorf("%s: with %q, %v, want %q", c.doc, with, err, c.with)
		}
		without, err := WithoutKey([]byte(c.doc), c.key)
		if err != nil || string(without) != c.without {
			t.Errorf("%s: without %q, %v, want %q", c.doc, without, err, c.without)
		}
		want := map[string]any{}
		_ = json.Unmarshal([]byte(c.doc), &want)
		for value, doc := range map[any][]byte{7.0: with, nil: without} {
			got := map[string]any{}
			if err := json.Unmarshal(doc, &got); err != nil {
				t.Fatal(err)
			}
			if delete(want, c.key); value != nil {
				want[c.key] = value
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, want %v", doc, got, want)
			}
		}
	}
	for _, doc := range []string{``, `[]`, `{"a": 1, "a": 2}`, `{} {}`, "{\"\xff\": 1}"} {
		if _, err := WithKey([]byte(doc), "k", "7"); err == nil {
			t.Errorf("%q is accepted", doc)
		}
		if _, err := WithoutKey([]byte(doc), "k"); err == nil {
			t.Errorf("%q is accepted", doc)
		}
	}
}
