package parquet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var testLimits = Limits{RowBytes: 1 << 20, PageBytes: 1 << 20, HeldBytes: 8 << 20, TotalBytes: 1 << 26}

// readAll decodes every row; columns nil are all.
func readAll(t *testing.T, b []byte, columns []string) []any {
	t.Helper()
	f, err := Open(bytes.NewReader(b), int64(len(b)), testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if columns == nil {
		columns = f.Columns()
	}
	var out []any
	if err := f.Rows(context.Background(), columns, nil, func(object []byte, err error) bool {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, decode(t, object))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func decode(t *testing.T, object []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", object, err)
	}
	return v
}

// sameNumbers compares integers by their digits and others by their value.
var sameNumbers = cmp.Comparer(func(a, b json.Number) bool {
	x, _ := strconv.ParseFloat(string(a), 64)
	y, _ := strconv.ParseFloat(string(b), 64)
	return a == b || x == y && strings.ContainsAny(string(a+b), ".e")
})

// TestWriters reads files of pyarrow, Polars, DuckDB and fastparquet (testdata/make.py).
func TestWriters(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) < 12 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".jsonl"), func(t *testing.T) {
			lines, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var want []any
			for line := range bytes.Lines(lines) {
				want = append(want, decode(t, line))
			}
			b, err := os.ReadFile(strings.TrimSuffix(name, ".jsonl") + ".parquet")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, readAll(t, b, nil), sameNumbers); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNoColumn(t *testing.T) {
	b, err := os.ReadFile("testdata/flat_brotli.parquet")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(bytes.NewReader(b), int64(len(b)), testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Rows(t.Context(), []string{"none"}, nil, nil); err == nil || !strings.Contains(err.Error(), "none of the columns") {
		t.Error(err)
	}
}

func TestRowsStop(t *testing.T) {
	b, err := os.ReadFile("testdata/chat_snappy.parquet")
	if err != nil {
		t.Fatal(err)
	}
	open := func(limits Limits) *File {
		f, err := Open(bytes.NewReader(b), int64(len(b)), limits)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	n := 0
	if err := open(testLimits).Rows(t.Context(), []string{"id"}, nil, func([]byte, error) bool { n++; return n < 5 }); err != nil || n != 5 {
		t.Errorf("%d rows, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := open(testLimits).Rows(ctx, []string{"id"}, nil, func([]byte, error) bool { cancel(); return true }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	small := testLimits
	small.RowBytes = 300
	rows, large := 0, 0
	if err := open(small).Rows(t.Context(), []string{"id", "messages"}, nil, func(object []byte, err error) bool {
		rows++
		switch {
		case err == ErrRowTooLarge:
			large++
		case err != nil || len(object) > 300 || !json.Valid(object):
			t.Fatal(len(object), err)
		}
		return true
	}); err != nil || rows != 18 || large == 0 || large == rows {
		t.Errorf("%d rows, %d too large, %v", rows, large, err)
	}
	small = testLimits
	small.HeldBytes = 1000
	if err := open(small).Rows(t.Context(), []string{"messages"}, nil, func([]byte, error) bool { return true }); err == nil || !strings.Contains(err.Error(), "more than 1000 bytes of memory") {
		t.Error(err)
	}
}
