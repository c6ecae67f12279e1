package data

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// packing compresses as a file's name says.
func packing(t *testing.T, name string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if strings.HasSuffix(name, ".zst") {
		var err error
		if w, err = zstd.NewWriter(&b); err != nil {
			t.Fatal(err)
		}
	}
	w.Write(data)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestDamagedCompression: a compressed file that is cut or damaged is an error of one line with the file, at whatever byte.
func TestDamagedCompression(t *testing.T) {
	var text strings.Builder
	r := rand.New(rand.NewPCG(1, 1))
	for range 40 {
		text.WriteString("{\"text\": \"")
		for range 20 {
			text.WriteByte(byte('a' + r.IntN(26)))
		}
		text.WriteString("\"}\n")
	}
	lines := text.String()
	array := "[" + strings.TrimSuffix(strings.ReplaceAll(lines, "}\n", "},\n"), ",\n") + "]"
	for name, content := range map[string]string{"a.jsonl.gz": lines, "a.json.gz": array, "a.jsonl.zst": lines, "a.json.zst": array, "a.txt.gz": lines} {
		good := packing(t, name, []byte(content))
		read := func(b []byte) (n int, err error) {
			s := Source{Path: name, Type: Text}.withDefaults()
			err = newRowReader(s, limits{}, 0).readRows(name, bytes.NewReader(b), func(row) bool { n++; return true })
			return n, err
		}
		if n, err := read(good); err != nil || n != 40 && name != "a.txt.gz" {
			t.Fatalf("%s: %d rows, %v", name, n, err)
		}
		check := func(what string, at int, err error) {
			if s := ""; err != nil {
				s = err.Error()
				if !strings.HasPrefix(s, name+":") || strings.Contains(s, "\n") {
					t.Fatalf("%s at byte %d: %q", what, at, s)
				}
			}
		}
		for n := range good {
			_, err := read(good[:n])
			if err == nil {
				t.Fatalf("%s: %d of %d bytes are read without an error", name, n, len(good))
			}
			check("cut", n, err)
			if n > 20 && !strings.Contains(err.Error(), "the file is cut off: its ") {
				t.Fatalf("%s: cut at byte %d: %v", name, n, err)
			}
		}
		for i := range good {
			b := bytes.Clone(good)
			b[i] ^= 1 << (i % 8)
			_, err := read(b) // some bits say nothing, such as the time in gzip's header
			check("flipped", i, err)
		}
	}
}

// TestRowOfAnArrayIsBounded: an array's row that does not end is not held.
func TestRowOfAnArrayIsBounded(t *testing.T) {
	endless := strings.NewReader(strings.Repeat("a", 1<<20))
	l := &lineCounter{in: endless, line: 1, most: 1 << 10}
	n, err := io.Copy(io.Discard, struct{ io.Reader }{l})
	if err == nil || !strings.Contains(err.Error(), "the row is larger than") || n > 1<<18 {
		t.Errorf("%d bytes are read, %v", n, err)
	}
	l = &lineCounter{in: strings.NewReader(strings.Repeat("\n", 2*maxRowLines)), line: 1, most: maxRowBytes}
	if n, err := io.Copy(io.Discard, struct{ io.Reader }{l}); err == nil || !strings.Contains(err.Error(), "the row has more than") || n > maxRowLines+1<<17 {
		t.Errorf("%d line breaks are read, %v", n, err)
	}
	l = &lineCounter{in: strings.NewReader(strings.Repeat("a", 1<<20)), line: 1, most: 1 << 10}
	for p := make([]byte, 1000); ; {
		_, err := l.Read(p)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		l.forget(l.read) // rows that are handed out do not count
	}
}

// TestMembersOfGzip: members may follow each other; what else follows is said to be there, and a member that is cut is cut.
func TestMembersOfGzip(t *testing.T) {
	one, two := gzipped(t, rowOf("one")), gzipped(t, rowOf("two"))
	for content, want := range map[string]string{
		one + two:           "",
		one + "more":        "there are bytes after its gzip data that are not gzip: pack",
		one + "\x00\x00":    "there are bytes after its gzip data",
		one + two + "\x1f0": "there are bytes after its gzip data",
		one + two[:1]:       "the file is cut off",
		one + two[:9]:       "the file is cut off",
		one + two[:20]:      "the file is cut off",
		"plain":             "its name ends in .gz, and it is not gzip",
	} {
		path := write(t, t.TempDir(), "a.jsonl.gz", content)
		d, err := prepare(t, Source{Type: Text, Path: path}, Options{})
		switch {
		case want == "" && (err != nil || strings.Join(texts(d), " ") != "one two"):
			t.Errorf("two members: %v", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: error %v, want %q", content, err, want)
		}
	}
}
