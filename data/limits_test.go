package data

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
)

// A row that would take more than the budget of memory on its way to tokens is refused before it is held as a whole,
// in every format. Without a budget it is read.
func TestRowsWithinMemory(t *testing.T) {
	const budget = 32 << 20 // which lets a row have a megabyte
	long := strings.Repeat("a", 3<<19)
	for name, c := range map[string]struct {
		text string
		of   Source
		what string
	}{
		"a.jsonl":    {rowOf(long), Source{Type: Text}, ":1: the line"},
		"a.json":     {"[" + rowOf(long) + "]", Source{Type: Text}, ":1: the row"},
		"a.jsonl.gz": {gzipped(t, rowOf(long)), Source{Type: Text}, ":1: the line"},
		"a.txt":      {long, Source{Type: Text}, ": the document"},
		"b.txt":      {long, Source{Type: Text, Glob: "b.txt"}, ": the document"},
	} {
		s := c.of
		s.Path = write(t, t.TempDir(), name, c.text)
		if s.Glob != "" {
			s.Path = filepath.Dir(s.Path)
		}
		uncut := struct{ tokenizer.Tokenizer }{tokenizer.Bytes()}
		_, err := prepare(t, s, Options{MemoryBytes: budget, Tokenizer: uncut})
		want := name + c.what + " is larger than 1 MiB, the most that the memory lets become tokens at a time: " +
			"split it, or raise memory.host"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
		if _, err := prepare(t, s, Options{}); err != nil {
			t.Errorf("%s, without a budget: %v", name, err)
		}
	}
	for memory, units := range map[int64]int{0: aheadUnits + 4*8, budget: 1, 10 * budget: 10, 1 << 40: aheadUnits + 4*8} {
		if n := cap(newAhead(8, limits{memory})); n != units {
			t.Errorf("%d MiB of text may be ahead for %d bytes, want %d", n, memory, units)
		}
	}
}

// dictionaryBomb is a Parquet file of 2,000 rows that are one text of 100,000 letters, made by pyarrow 26:
//
//	text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["a" * 100000])).cast(pa.string())
//	pq.write_table(pa.table({"text": text}), "bomb.parquet", compression="zstd", use_dictionary=True,
//	               write_statistics=False, store_schema=False)
const dictionaryBomb = "UEFSMRUEFciaDBUyTBUCFQASAAAotS/9oKSGAQBtAAAooIYBAGEBAJyGOdACFQAVFhUoLBWgHxUQFQYVBhwAAAAotS/9IAtZAAADAAAAoB8BAaAfABUEGSw1ABgGc2NoZW1hFQIAFQwlAhgEdGV4dCUATBwAAAAWoB8ZHBkcJgAcFQwZNQAGEBkYBHRleHQVDBagHxammwwWogEmWiYIKSwVBBUAFQIAFQAVEBUCADwWgIjevgEZBhkmAKAfAAAAFqabDBagHyYIFqIBACggcGFycXVldC1jcHAtYXJyb3cgdmVyc2lvbiAyNi4wLjEZHBwAAACgAAAAUEFSMQ=="

// A small file that unpacks to far more than text does is refused, unless the number of rows is limited; it leaves
// nothing in the cache.
func TestFilesThatUnpackToTooMuch(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what unpacks tens of megabytes; make test runs it")
	}
	bomb, err := base64.StdEncoding.DecodeString(dictionaryBomb)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"a.jsonl.gz": {gzipped(t, strings.Repeat(rowOf(strings.Repeat("a", 1_000_000)), 50)),
			"it unpacks to more than 256 times its size: set max_samples"},
		"a.parquet": {string(bomb), "which is far more than the file has: split it, or set max_samples"},
	} {
		s := Source{Type: Text, Path: write(t, t.TempDir(), name, c.text)}
		cache := t.TempDir()
		if _, err := prepare(t, s, Options{CacheDir: cache}); err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
		if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) > 0 {
			t.Errorf("%s: left over: %v", name, left)
		}
		s.MaxSamples = 10
		d, err := prepare(t, s, Options{CacheDir: cache})
		if err != nil || d.Len() != 10 {
			t.Errorf("%s, ten rows of it: %v, error %v", name, d, err)
		}
	}
}

// What files may unpack to beyond their proportion is for all files of a source together, so that many small ones come
// to no more than one.
func TestManyFilesThatUnpackToTooMuch(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what unpacks tens of megabytes; make test runs it")
	}
	bomb, err := base64.StdEncoding.DecodeString(dictionaryBomb)
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Repeat(rowOf(strings.Repeat("a", 1_000_000)), 20) // and 20 MB are less than 32 MiB
	for name, content := range map[string]string{
		"a.jsonl.gz": gzipped(t, part), "a.jsonl.zst": string(packing(t, "a.zst", []byte(part))),
	} {
		dir := t.TempDir()
		write(t, dir, "1"+name, content)
		s := Source{Type: Text, Path: dir}
		if name == "a.jsonl.zst" { // the larger ratio
			if _, err := prepare(t, s, Options{CacheDir: t.TempDir()}); err != nil {
				t.Errorf("one %s: %v", name, err)
			}
		}
		write(t, dir, "2"+name, content)
		write(t, dir, "3"+name, content)
		_, err := prepare(t, s, Options{CacheDir: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), "it unpacks to more than 256 times its size") {
			t.Errorf("three %s: %v", name, err)
		}
	}
	// The tables take the same: less than the whole of it is left after 20 MB of lines.
	small := newRowReader(Source{Type: Text}.withDefaults(), limits{}, 0)
	whole := small.parquetLimits(int64(len(bomb))).TotalBytes
	small.spare.left -= 20_000_000
	if rest := small.parquetLimits(int64(len(bomb))).TotalBytes; rest != whole-20_000_000 {
		t.Errorf("a table may unpack to %d bytes after others, and to %d alone", rest, whole)
	}
}

// A registry comes from elsewhere: its num_samples takes no limit away, and the user's max_samples leaves one of as
// many of the largest rows.
func TestRegistryLiftsNoLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what unpacks tens of megabytes; make test runs it")
	}
	bomb, err := base64.StdEncoding.DecodeString(dictionaryBomb)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"a.jsonl.gz": gzipped(t, strings.Repeat(rowOf(strings.Repeat("a", 1_000_000)), 50)),
		"a.parquet":  string(bomb),
	} {
		dir := t.TempDir()
		write(t, dir, name, content)
		write(t, dir, registryName, `{"x": {"file_name": "`+name+`", "formatting": "alpaca", "columns": {"prompt": "text"},
			"num_samples": 1000000000}}`)
		s := Source{Path: dir, Name: "x"}
		if _, err := prepare(t, s, Options{}); err == nil || !strings.Contains(err.Error(), "set max_samples") {
			t.Errorf("%s: %v", name, err)
		}
		s.MaxSamples = 10
		if d, err := prepare(t, s, Options{}); err != nil || d.Len() != 10 {
			t.Errorf("ten rows of %s: %v", name, err)
		}
	}
	blank := gzipped(t, strings.Repeat("\n", 80<<20)+rowOf("a"))
	s := Source{Type: Text, MaxSamples: 2, Path: write(t, t.TempDir(), "a.jsonl.gz", blank)}
	_, err = prepare(t, s, Options{MemoryBytes: 32 << 20})
	if err == nil || !strings.Contains(err.Error(), "it unpacks to more than 256 times") {
		t.Errorf("blank lines before the two rows that are asked for: %v", err)
	}
}

// The token cache leaves an eighth of the disk's free space; then tokens are held in memory, as far as the budget goes.
func TestCacheLeavesRoom(t *testing.T) {
	s := Source{Type: Text, Path: write(t, t.TempDir(), "a.jsonl",
		strings.Repeat(rowOf(strings.Repeat("a", 100_000)), 60))}
	for memory, want := range map[int64]string{
		0:       "",
		1 << 30: "",
		64 << 20: "its tokens take more than 16 MiB, the most that the memory lets be held: have room for the token cache " +
			"(MILLRACE_CACHE), set max_samples, or raise memory.host",
	} {
		cache, free, note := t.TempDir(), int64(800<<20), ""
		o := Options{CacheDir: cache, MemoryBytes: memory, Note: func(line string) { note += line },
			freeBytes: func(string) (int64, error) {
				free -= 701 << 20
				return free + 701<<20, nil
			}}
		d, err := prepare(t, s, o)
		if want == "" && (err != nil || d.Tokens() != 60*(100_000+1)) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes of memory: error %v, want %q", memory, err, want)
		}
		if want == "" && !strings.Contains(note, "are not kept") || want != "" && note != "" {
			t.Errorf("%d bytes of memory: noted: %q", memory, note) // what cannot be held is not read again
		}
		said := fmt.Sprint(note, err)
		if !strings.Contains(said, "it would leave less than 100 MiB free there") || strings.Contains(said, "\n") {
			t.Errorf("said: %s", said)
		}
		if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

// growing is a tokenizer whose normalizer makes a text 100 times as long.
type growing struct{ tokenizer.Tokenizer }

func (growing) Exceeds(text string, most int) bool { return 100*len(text) > most }

// A text that a normalizer makes too long is refused before it is normalized as a whole.
func TestNormalizerThatGrowsText(t *testing.T) {
	s := Source{Type: Text, Path: write(t, t.TempDir(), "a.jsonl", rowOf("short")+rowOf(strings.Repeat("a", 20_000)))}
	o := Options{Tokenizer: growing{tokenizer.Bytes()}, MemoryBytes: 32 << 20}
	want := fmt.Sprintf("%s:2: the tokenizer's normalizer makes more than 1 MiB of it: split it", s.Path)
	if _, err := prepare(t, s, o); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// Tokens that another user could have put into the cache are not trained on.
func TestCacheThatOthersWrite(t *testing.T) {
	s := Source{Type: Text, Path: write(t, t.TempDir(), "a.jsonl", rowOf("a"))}
	cache := filepath.Join(t.TempDir(), "tokens")
	if _, err := prepare(t, s, Options{CacheDir: cache}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(cache); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o700 {
		t.Errorf("the new cache is %v, error %v", info.Mode(), err)
	}
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes of directories")
	}
	if err := os.Chmod(cache, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(t, s, Options{CacheDir: cache}); err == nil ||
		!strings.Contains(err.Error(), "can be written to by every user") ||
		!strings.Contains(err.Error(), "or set MILLRACE_CACHE") {
		t.Errorf("error %v", err)
	}
}
