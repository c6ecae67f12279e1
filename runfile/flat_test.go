package runfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFlat(t *testing.T) {
	got, err := Flat([]byte(`# a comment
model: "a: b"
datasets:
- {path: x.jsonl, type: text}
- {path: y.jsonl, ignore: [label, rejected]}
learning_rate: 1e-5
adam_betas: [0.9, 0.999]
memory: &m
  device: 2GiB
  host: auto
other: *m
groups: []
eval: {}
val_size:
objective:
  weights: [[1], 2]
samples:
  prompts: ["one\ntwo"]
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []FlatValue{{"model", "a: b"}, {"datasets[0].path", "x.jsonl"}, {"datasets[0].type", "text"},
		{"datasets[1].path", "y.jsonl"}, {"datasets[1].ignore", "[label, rejected]"}, {"learning_rate", "1e-5"},
		{"adam_betas", "[0.9, 0.999]"}, {"memory.device", "2GiB"}, {"memory.host", "auto"}, {"other.device", "2GiB"},
		{"other.host", "auto"}, {"groups", "[]"}, {"eval", "{}"}, {"val_size", ""}, {"objective.weights[0]", "[1]"},
		{"objective.weights[1]", "2"}, {"samples.prompts", "[one\ntwo]"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestFlatRefuses(t *testing.T) {
	bomb := "a: &a [{x: 1}, {x: 2}]\n"
	for i := range 20 {
		bomb += fmt.Sprintf("%c: &%[1]c [*%c, *%[2]c]\n", 'b'+i, 'a'+i)
	}
	for doc, want := range map[string]string{
		"- a\n": "not a mapping", "a: [": "check quotes", bomb: "more than 20000 values",
		"a: \x00": "control character", strings.Repeat("#", MaxBytes+1): "not a run file",
	} {
		if _, err := Flat([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", doc, err, want)
		}
	}
	if got, err := Flat(nil); err != nil || got != nil {
		t.Errorf("an empty file: %v, %v", got, err)
	}
}

// The file that a run writes can be flattened, with a text for each key.
func TestFlatOfResolved(t *testing.T) {
	c := Defaults()
	c.Model = "m"
	doc, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	flat, err := Flat(append([]byte(ResolvedHeader), doc...))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, v := range flat {
		all[v.Key] = v.Text
	}
	for key, want := range map[string]string{"model": "m", "learning_rate": "1e-05", "adam_betas": "[0.9, 0.999]",
		"precision.compute": "bf16", "memory.host": "auto", "save.at_end": "true"} {
		if all[key] != want {
			t.Errorf("%s is %q, want %q", key, all[key], want)
		}
	}
}

func TestFlatDifferences(t *testing.T) {
	a := []FlatValue{{"seed", "1"}, {"learning_rate", "1e-5"}, {"memory.host", "auto"}, {"unknown", "x"}}
	b := []FlatValue{{"seed", "1"}, {"learning_rate", "2e-5"}, {"memory.disk", "none"}, {"memory.host", "auto"}}
	text := func(s string) *string { return &s }
	want := []FlatDifference{{"unknown", []*string{text("x"), nil, text("x")}},
		{"learning_rate", []*string{text("1e-5"), text("2e-5"), text("1e-5")}},
		{"memory.disk", []*string{nil, text("none"), nil}}}
	if d := cmp.Diff(want, FlatDifferences([][]FlatValue{a, b, a})); d != "" {
		t.Error(d)
	}
	if got := FlatDifferences([][]FlatValue{a, a}); len(got) != 0 {
		t.Errorf("of equal files: %v", got)
	}
}
