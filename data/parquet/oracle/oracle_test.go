// Package oracle compares data/parquet with github.com/parquet-go/parquet-go, and makes the Parquet files of the tests
// of package data with it. It is a module of its own, so that a build of Millrace does not need the dependencies of
// this comparison.
package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/millrace/millrace/data/parquet"
	writer "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"pgregory.net/rapid"
)

var limits = parquet.Limits{RowBytes: 1 << 20, PageBytes: 1 << 20, HeldBytes: 8 << 20, TotalBytes: 1 << 26}

// tester is a test of testing or of rapid.
type tester interface {
	Helper()
	Fatal(...any)
}

// fileOf writes rows with parquet-go.
func fileOf[Row any](t tester, rows []Row, options ...writer.WriterOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w := writer.NewGenericWriter[Row](&b, options...)
	for i := range rows {
		if _, err := w.Write(rows[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type call struct {
	Name      string  `parquet:"name" json:"name"`
	Arguments *string `parquet:"arguments,optional" json:"arguments"`
}

type message struct {
	Role    string   `parquet:"role,dict" json:"role"`
	Content *string  `parquet:"content,optional" json:"content"`
	Tags    []string `parquet:"tags,list" json:"tags"`
	Calls   []call   `parquet:"calls,list" json:"calls"`
	Plain   []int32  `parquet:"plain" json:"plain"` // repeated without a list around it
}

type example struct {
	ID       int64     `parquet:"id,delta" json:"id"`
	Messages []message `parquet:"messages,list" json:"messages"`
	Text     string    `parquet:"text,delta" json:"text"`
	Score    float64   `parquet:"score,split" json:"score"`
	Good     *bool     `parquet:"good,optional" json:"good"`
}

// TestRowsLaw: what parquet-go writes, in any layout, comes back.
func TestRowsLaw(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab \"\\\n\x01é水🌊")), 0, 8, -1)
	maybe := rapid.Ptr(text, true)
	messages := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) message {
		return message{rapid.SampledFrom([]string{"user", "assistant"}).Draw(t, "role"), maybe.Draw(t, "content"),
			rapid.SliceOfN(text, 0, 3).Draw(t, "tags"),
			rapid.SliceOfN(rapid.Custom(func(t *rapid.T) call {
				return call{text.Draw(t, "name"), maybe.Draw(t, "arguments")}
			}), 0, 3).Draw(t, "calls"),
			rapid.SliceOfN(rapid.Int32(), 0, 3).Draw(t, "plain")}
	}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) example {
			return example{rapid.Int64().Draw(t, "id"), messages.Draw(t, "messages"), text.Draw(t, "text"),
				rapid.Float64().Draw(t, "score"), rapid.Ptr(rapid.Bool(), true).Draw(t, "good")}
		}), 1, 30).Draw(t, "rows")
		codec := rapid.SampledFrom([]compress.Codec{&writer.Uncompressed, &writer.Snappy, &writer.Gzip, &writer.Zstd,
			&writer.Lz4Raw}).Draw(t, "codec")
		b := fileOf(t, want, writer.Compression(codec), writer.DataPageVersion(rapid.IntRange(1, 2).Draw(t, "version")),
			writer.PageBufferSize(rapid.SampledFrom([]int{16, 200, 1 << 16}).Draw(t, "page")),
			writer.MaxRowsPerRowGroup(rapid.Int64Range(1, 40).Draw(t, "group")))
		f, err := parquet.Open(bytes.NewReader(b), int64(len(b)), limits)
		if err != nil {
			t.Fatal(err)
		}
		var got []example
		if err := f.Rows(context.Background(), f.Columns(), nil, func(object []byte, err error) bool {
			var e example
			d := json.NewDecoder(bytes.NewReader(object))
			d.DisallowUnknownFields()
			if err != nil || d.Decode(&e) != nil {
				t.Fatalf("%s: %v", object, err)
			}
			got = append(got, e)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

// countingReader knows how many bytes of a file were read.
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
	rows := make([]wide, 100)
	for i := range rows {
		rows[i] = wide{fmt.Sprint("row ", i), bytes.Repeat([]byte{byte(i)}, 10_000), 7}
	}
	b := fileOf(t, rows)
	in := &countingReader{in: bytes.NewReader(b)}
	f, err := parquet.Open(in, int64(len(b)), limits)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"text", "blob", "tail"}; !slices.Equal(f.Columns(), want) {
		t.Errorf("columns %v, want %v", f.Columns(), want)
	}
	n := 0
	if err := f.Rows(t.Context(), []string{"tail", "text", "none"}, nil, func(object []byte, err error) bool {
		if want := fmt.Sprintf(`{"text":"row %d","tail":7}`, n); string(object) != want || err != nil {
			t.Fatalf("%s, %v, want %s", object, err, want)
		}
		n++
		return true
	}); err != nil || n != 100 {
		t.Fatal(n, err)
	}
	if in.read > 50_000 {
		t.Errorf("%d bytes of %d were read", in.read, len(b))
	}
}

var update = flag.Bool("update", false, "write the files of ../../testdata")

// TestFiles: parquet-go writes the Parquet files of the tests of package data.
func TestFiles(t *testing.T) {
	type text struct {
		Text string `parquet:"text"`
	}
	type turnCall struct {
		Name      string
		Arguments *string
	}
	type turn struct {
		Role    string     `parquet:"role"`
		Content *string    `parquet:"content,optional"`
		Tags    []string   `parquet:"tags,list"`
		Calls   []turnCall `parquet:"calls,list"`
	}
	type chat struct {
		ID       int64   `parquet:"id"`
		Messages []turn  `parquet:"messages,list"`
		Tools    *string `parquet:"tools,optional"`
		Score    float64 `parquet:"score"`
		Good     bool    `parquet:"good"`
	}
	type picture struct {
		Bytes []byte `parquet:"bytes"`
	}
	type pictures struct {
		Prompt   string    `parquet:"prompt"`
		Response string    `parquet:"response"`
		Images   []picture `parquet:"images,list"`
	}
	ptr := func(s string) *string { return &s }
	chats := []chat{
		{1, []turn{{"user", ptr("a\n\"é\\"), []string{"x", "y"}, nil},
			{"assistant", ptr("b"), nil, []turnCall{{"f", ptr("{}")}, {"g", nil}}}}, ptr("[]"), 0.5, true},
		{2, nil, nil, 0, false},
		{3, []turn{{"user", ptr("c"), nil, nil}, {"assistant", ptr("d"), nil, nil}}, nil, 0, false},
	}
	options := []writer.WriterOption{writer.MaxRowsPerRowGroup(2), writer.Compression(&writer.Zstd)}
	for name, want := range map[string][]byte{
		"one":       fileOf(t, []text{{"one"}}, options...),
		"t":         fileOf(t, []text{{"t"}}, options...),
		"chats":     fileOf(t, chats, options...),
		"last_chat": fileOf(t, chats[2:], options...),
		"pictures":  fileOf(t, []pictures{{"a", "b", nil}, {"c", "d", []picture{{[]byte("\x89PNG\xff")}}}}, options...),
	} {
		path := filepath.Join("../../testdata", name+".parquet")
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: it is not what parquet-go writes (%v): run go test -update here", path, err)
		}
	}
}

// BenchmarkRows reads conversations: bytes are of JSON.
func BenchmarkRows(b *testing.B) {
	answer := strings.Repeat("The wheel turns. ", 40)
	chat := []message{{Role: "user", Content: &answer}, {Role: "assistant", Content: &answer}}
	rows := slices.Repeat([]example{{Messages: chat}}, 1000)
	file := fileOf(b, rows, writer.Compression(&writer.Snappy))
	b.ReportAllocs()
	for b.Loop() {
		f, err := parquet.Open(bytes.NewReader(file), int64(len(file)), limits)
		if err != nil {
			b.Fatal(err)
		}
		size := 0
		if err := f.Rows(b.Context(), []string{"messages"}, nil, func(object []byte, err error) bool {
			size += len(object)
			return err == nil
		}); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(size))
	}
}
