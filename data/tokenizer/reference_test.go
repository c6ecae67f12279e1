package tokenizer

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReference compares with what the `tokenizers` package made of many strings with the vocabularies of real models:
// reference.sh fetches those, writes the strings and their ids, and sets the variable.
func TestReference(t *testing.T) {
	dir := os.Getenv("MILLRACE_TOKENIZER_REFERENCE")
	if dir == "" {
		t.Skip("MILLRACE_TOKENIZER_REFERENCE is not set: run reference.sh")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.ref"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no *.ref in %s: %v", dir, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".ref")
		t.Run(name, func(t *testing.T) {
			spec, err := os.ReadFile(filepath.Join(dir, name, "tokenizer.json"))
			if err != nil {
				t.Fatal(err)
			}
			tok, err := Parse(spec)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			compareWithReference(t, tok, referenceReader{data})
		})
	}
}

func compareWithReference(t *testing.T, tok *Pipeline, r referenceReader) {
	records := r.number()
	wrong := 0
	report := func(format string, args ...any) {
		if wrong++; wrong <= 5 {
			t.Errorf(format, args...)
		}
	}
	for range records {
		text, ids, special := string(r.bytes()), r.ids(), r.ids()
		bare, full := string(r.bytes()), string(r.bytes())
		got := tok.Encode(text, false)
		if !slices.Equal(got, ids) {
			report("%.200q\n got %.300s\nwant %.300s", text, spell(tok, got), spell(tok, ids))
		}
		if before, after := tok.Template(); !slices.Equal(special, slices.Concat(before, ids, after)) {
			report("%.200q with special tokens: want %v", text, special)
		}
		if s := tok.Decode(ids, true); s != bare {
			report("%.200q decoded without special tokens\n got %.300q\nwant %.300q", text, s, bare)
		}
		if s := tok.Decode(ids, false); s != full {
			report("%.200q decoded\n got %.300q\nwant %.300q", text, s, full)
		}
	}
	t.Logf("%d of %d strings are equal", records-wrong, records)
}

// referenceReader reads what reference.py writes.
type referenceReader struct{ data []byte }

func (r *referenceReader) number() int {
	n := binary.LittleEndian.Uint32(r.data)
	r.data = r.data[4:]
	return int(n)
}

func (r *referenceReader) bytes() []byte {
	n := r.number()
	b := r.data[:n]
	r.data = r.data[n:]
	return b
}

func (r *referenceReader) ids() []int32 {
	ids := make([]int32, r.number())
	for i := range ids {
		ids[i] = int32(r.number())
	}
	return ids
}
