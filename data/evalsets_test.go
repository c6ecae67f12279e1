package data

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hostmem"
)

// Sets have the documents of the sources with their label, in order, whether sources have documents twice or not, and
// give their memory back.
func TestSets(t *testing.T) {
	dir := t.TempDir()
	source := func(set string, texts ...string) Source {
		name := strings.Join(texts, "") + ".jsonl"
		write(t, dir, name, `{"text": "`+strings.Join(texts, `"}`+"\n"+`{"text": "`)+`"}`)
		return Source{Path: dir + "/" + name, Type: Text, EvalSet: set}
	}
	accounts := hostmem.New()
	open := func(sources ...Source) (d *Dataset, got map[string][]string) {
		t.Helper()
		d, err := Prepare(t.Context(), sources, Options{Tokenizer: tokenizer.Bytes(), Accounts: accounts})
		if err != nil {
			t.Fatal(err)
		}
		sets, err := d.Sets()
		if err != nil {
			t.Fatal(err)
		}
		got = map[string][]string{}
		fingerprints := map[string]bool{d.Fingerprint(): true}
		for _, of := range sets {
			for _, text := range show(of.Dataset) {
				text, _, _ = strings.Cut(strings.TrimPrefix(text, "|"), "<")
				got[of.Label] = append(got[of.Label], text)
			}
			if of.Dataset != d {
				if fingerprints[of.Fingerprint()] {
					t.Errorf("%s has the fingerprint of another set", of.Label)
				}
				fingerprints[of.Fingerprint()] = true
			}
		}
		if err := d.CloseSets(sets); err != nil {
			t.Fatal(err)
		}
		if labels := SetLabels(sources); labels != nil && len(labels) != len(got) ||
			labels != nil && !slices.IsSortedFunc(sets, func(a, b EvalSet) int {
				return slices.Index(labels, a.Label) - slices.Index(labels, b.Label)
			}) {
			t.Errorf("labels %v, sets %v", labels, got)
		}
		return d, got
	}
	for name, c := range map[string]struct {
		sources []Source
		want    map[string][]string
	}{
		"no label": {[]Source{source("", "a"), source("", "b", "c")}, map[string][]string{"": {"a", "b", "c"}}},
		"one":      {[]Source{source("x", "d"), source("x", "e")}, map[string][]string{"x": {"d", "e"}}},
		"three": {[]Source{source("x", "f", "g"), source("", "h"), source("y", "i"), source("x", "j"),
			source("default", "k")},
			map[string][]string{"x": {"f", "g", "j"}, "default": {"h", "k"}, "y": {"i"}}},
	} {
		d, got := open(c.sources...)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if n, _ := accounts.Total(); n != 0 {
		t.Errorf("%d bytes are still reserved: %v", n, accounts.Usage())
	}
}

func TestSetLabels(t *testing.T) {
	for label, want := range map[string]string{"task-1.a_B": "", "": "", strings.Repeat("x", 40): "",
		strings.Repeat("x", 41): "41 characters", "a/b": "letters from a to z", "tâche": "letters", "a b": "letters"} {
		err := Source{Path: "p", Type: Text, EvalSet: label}.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", label, err, want)
		}
	}
}
