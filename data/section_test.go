package data

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
)

// withEnd is a tokenizer whose token 0 ends a text.
type withEnd struct{ *tokenizer.Pipeline }

func (withEnd) EOS() int32 { return 0 }

// A long document is tokenized in sections: it takes no more memory than a short one, and its tokens are those of the
// whole.
func TestLongDocumentInSections(t *testing.T) {
	const budget = 32 << 20 // which lets a megabyte be held
	line := strings.Repeat("some words that are alike, and 12 others; ", 100_000)
	tok, err := tokenizer.Load("tokenizer/testdata/llama3.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, tok := range map[string]tokenizer.Tokenizer{"bytes": tokenizer.Bytes(), "llama3": withEnd{tok}} {
		dir := t.TempDir()
		write(t, dir, "a.txt", "\uFEFF"+line)
		write(t, dir, "b.txt", "short")
		cache := t.TempDir()
		budgetOf := map[string]int64{cache: budget, "": 0}
		for cache := range budgetOf {
			o := Options{Tokenizer: tok, MemoryBytes: budgetOf[cache], CacheDir: cache}
			d, err := prepare(t, Source{Type: Text, Path: dir}, o)
			if err != nil {
				t.Fatal(name, err)
			}
			for i, text := range []string{line, "short"} {
				whole, err := Plain.Render(t.Context(), Record{Type: Text, Text: text})
				if err != nil {
					t.Fatal(err)
				}
				want, err := Tokenize(tok, whole, false)
				if err != nil {
					t.Fatal(err)
				}
				got, err := d.Example(i)
				if err != nil || !slices.Equal(got.InputIDs, want.InputIDs) || !slices.Equal(got.Labels, want.Labels) {
					t.Errorf("%s: document %d has other tokens than the whole, error %v", name, i, err)
				}
			}
			if d.Len() != 2 {
				t.Errorf("%s: %d documents", name, d.Len())
			}
		}
		o := Options{Tokenizer: tok, MemoryBytes: budget, CacheDir: cache}
		d, err := prepare(t, Source{Type: Text, Path: dir, MaxSamples: 1}, o)
		if err != nil || d.Len() != 1 || d.Tokens() < int64(len(line)/10) {
			t.Errorf("%s: the first document alone: %v", name, err)
		}
	}
	dir := t.TempDir()
	bad := write(t, dir, "bad.txt", strings.Repeat(strings.Repeat("a", 99)+"\n", 20_000)+"a\xff")
	_, err = prepare(t, Source{Type: Text, Path: dir}, Options{MemoryBytes: budget})
	if want := fmt.Sprintf("%s:20001: byte 0xff is not UTF-8", bad); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	_, err = prepare(t, Source{Type: Text, Path: dir, BadRows: SkipBadRows}, Options{MemoryBytes: budget})
	if err == nil || !strings.Contains(err.Error(), "the document is larger than 1 MiB") {
		t.Errorf("a document that may be left out is not held as a whole: %v", err)
	}
}
