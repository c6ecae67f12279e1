package parquet

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fuzzLimits keep each input quick.
var fuzzLimits = Limits{RowBytes: 1 << 16, PageBytes: 1 << 16, HeldBytes: 1 << 20, TotalBytes: 1 << 24}

// FuzzRows reads bytes as a Parquet file: no panic, no more memory than the limits, and each row is JSON, except for
// bytes that are not UTF-8.
func FuzzRows(f *testing.F) {
	files, err := filepath.Glob("testdata/*.parquet")
	if err != nil || len(files) == 0 {
		f.Fatal("no testdata/*.parquet", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("PAR1PAR1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Open(bytes.NewReader(b), int64(len(b)), fuzzLimits)
		if err != nil {
			checkLine(t, err)
			return
		}
		n := 0
		err = file.Rows(t.Context(), file.Columns(), nil, func(object []byte, err error) bool {
			n++
			if err != nil {
				if !errors.Is(err, ErrRowTooLarge) {
					t.Fatal(err)
				}
				return n < 100
			}
			if len(object) > fuzzLimits.RowBytes {
				t.Fatalf("a row of %d bytes", len(object))
			}
			if !json.Valid(object) {
				t.Fatalf("%q is not JSON", object)
			}
			return n < 100
		})
		if err != nil {
			checkLine(t, err)
		}
		if file.held > fuzzLimits.HeldBytes {
			t.Fatalf("%d bytes are held", file.held)
		}
	})
}

func checkLine(t *testing.T, err error) {
	t.Helper()
	if s := err.Error(); strings.ContainsAny(s, "\n\r") || len(s) > 1000 {
		t.Fatalf("the error is not a short line: %q", s)
	}
}
