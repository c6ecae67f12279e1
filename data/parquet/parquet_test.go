package parquet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"pgregory.net/rapid"
)

var testLimits = Limits{RowBytes: 1 << 20, PageBytes: 1 << 20, HeldBytes: 8 << 20, TotalBytes: 1 << 26}

// tester is a test of testing or of rapid.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// readAll decodes every row; columns nil are all.
func readAll(t tester, b []byte, columns []string) []any {
	t.Helper()
	f, err := Open(bytes.NewReader(b), int64(len(b)), testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if columns == nil {
		columns = f.Columns()
	}
	var out []any
	if err := f.Rows(context.Background(), columns, func(object []byte, err error) bool {
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

func decode(t tester, object []byte) (v any) {
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
	if err != nil || len(files) < 11 {
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

// countingReader knows which bytes of a file were read.
type countingReader struct {
	in   io.ReaderAt
	read int
}

func (c *countingReader) ReadAt(p []byte, at int64) (int, error) {
	c.read += len(p)
	return c.in.ReadAt(p, at)
}

// TestProjection: columns that are not asked for are not read.
func TestProjection(t *testing.T) {
	type wide struct {
		Text string `parquet:"text"`
		Blob []byte `parquet:"blob"`
		Tail int64  `parquet:"tail"`
	}
	var b bytes.Buffer
	w := parquet.NewGenericWriter[wide](&b)
	for i := range 100 {
		w.Write([]wide{{fmt.Sprint("row ", i), bytes.Repeat([]byte{byte(i)}, 10_000), 7}})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	in := &countingReader{in: bytes.NewReader(b.Bytes())}
	f, err := Open(in, int64(b.Len()), testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"text", "blob", "tail"}; !slices.Equal(f.Columns(), want) {
		t.Errorf("columns %v, want %v", f.Columns(), want)
	}
	n := 0
	if err := f.Rows(t.Context(), []string{"tail", "text", "none"}, func(object []byte, err error) bool {
		if want := fmt.Sprintf(`{"text":"row %d","tail":7}`, n); string(object) != want || err != nil {
			t.Fatalf("%s, %v, want %s", object, err, want)
		}
		n++
		return true
	}); err != nil || n != 100 {
		t.Fatal(n, err)
	}
	if in.read > 50_000 {
		t.Errorf("%d bytes of %d were read", in.read, b.Len())
	}
}

type call struct {
	Name      string  `parquet:"name" json:"name"`
	Arguments *string `parquet:"arguments,optional" json:"arguments,omitempty"`
}

type message struct {
	Role    string   `parquet:"role,dict" json:"role"`
	Content *string  `parquet:"content,optional" json:"content,omitempty"`
	Tags    []string `parquet:"tags,list" json:"tags"`
	Calls   []call   `parquet:"calls,list" json:"calls"`
	Plain   []int32  `parquet:"plain" json:"plain"` // repeated without a list around it
}

type example struct {
	ID       int64     `parquet:"id,delta" json:"id"`
	Messages []message `parquet:"messages,list" json:"messages"`
	Text     string    `parquet:"text,delta" json:"text"`
	Score    float64   `parquet:"score,split" json:"score"`
	Good     *bool     `parquet:"good,optional" json:"good,omitempty"`
}

// TestRowsLaw: what parquet-go writes, in any layout, comes back.
func TestRowsLaw(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab \"\\\n\x01é水🌊")), 0, 8, -1)
	maybe := rapid.Ptr(text, true)
	messages := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) message {
		return message{rapid.SampledFrom([]string{"user", "assistant"}).Draw(t, "role"), maybe.Draw(t, "content"), rapid.SliceOfN(text, 0, 3).Draw(t, "tags"),
			rapid.SliceOfN(rapid.Custom(func(t *rapid.T) call { return call{text.Draw(t, "name"), maybe.Draw(t, "arguments")} }), 0, 3).Draw(t, "calls"),
			rapid.SliceOfN(rapid.Int32(), 0, 3).Draw(t, "plain")}
	}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		examples := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) example {
			return example{rapid.Int64().Draw(t, "id"), messages.Draw(t, "messages"), text.Draw(t, "text"), rapid.Float64().Draw(t, "score"),
				rapid.Ptr(rapid.Bool(), true).Draw(t, "good")}
		}), 1, 30).Draw(t, "rows")
		codec := rapid.SampledFrom([]compress.Codec{&parquet.Uncompressed, &parquet.Snappy, &parquet.Gzip, &parquet.Zstd, &parquet.Lz4Raw}).Draw(t, "codec")
		var b bytes.Buffer
		w := parquet.NewGenericWriter[example](&b, parquet.Compression(codec), parquet.DataPageVersion(rapid.IntRange(1, 2).Draw(t, "version")),
			parquet.PageBufferSize(rapid.SampledFrom([]int{16, 200, 1 << 16}).Draw(t, "page")), parquet.MaxRowsPerRowGroup(rapid.Int64Range(1, 40).Draw(t, "group")))
		var want []any
		for _, e := range examples {
			if _, err := w.Write([]example{e}); err != nil {
				t.Fatal(err)
			}
			object, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, decode(t, object))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, readAll(t, b.Bytes(), nil), sameNumbers); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRefused(t *testing.T) {
	b, err := os.ReadFile("testdata/refused_brotli.parquet")
	if err != nil {
		t.Fatal(err)
	}
	if err := readFile(b); err == nil || !strings.Contains(err.Error(), `column "text": its compression, Brotli, is not supported`) {
		t.Error(err)
	}
	f, err := Open(bytes.NewReader(b), int64(len(b)), testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Rows(t.Context(), []string{"none"}, nil); err == nil || !strings.Contains(err.Error(), "none of the columns") {
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
	if err := open(testLimits).Rows(t.Context(), []string{"id"}, func([]byte, error) bool { n++; return n < 5 }); err != nil || n != 5 {
		t.Errorf("%d rows, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := open(testLimits).Rows(ctx, []string{"id"}, func([]byte, error) bool { cancel(); return true }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	small := testLimits
	small.RowBytes = 300
	rows, large := 0, 0
	if err := open(small).Rows(t.Context(), []string{"id", "messages"}, func(object []byte, err error) bool {
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
	if err := open(small).Rows(t.Context(), []string{"messages"}, func([]byte, error) bool { return true }); err == nil || !strings.Contains(err.Error(), "more than 1000 bytes of memory") {
		t.Error(err)
	}
}

// BenchmarkRows reads conversations: bytes are of JSON.
func BenchmarkRows(b *testing.B) {
	var file bytes.Buffer
	w := parquet.NewGenericWriter[example](&file, parquet.Compression(&parquet.Snappy))
	answer := strings.Repeat("The wheel turns. ", 40)
	for range 1000 {
		w.Write([]example{{Messages: []message{{Role: "user", Content: &answer}, {Role: "assistant", Content: &answer}}}})
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		f, err := Open(bytes.NewReader(file.Bytes()), int64(file.Len()), testLimits)
		if err != nil {
			b.Fatal(err)
		}
		size := 0
		if err := f.Rows(b.Context(), []string{"messages"}, func(object []byte, err error) bool {
			size += len(object)
			return err == nil
		}); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(size))
	}
}
