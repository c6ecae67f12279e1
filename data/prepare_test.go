package data

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/vfs"
)

func write(t testing.TB, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// show writes the documents of a dataset as text, the targets after a bar.
func show(d *Dataset) []string {
	tok := tokenizer.Bytes()
	var out []string
	for i := range d.Len() {
		e, err := d.Example(i)
		if err != nil {
			return append(out, err.Error())
		}
		split := 0
		for split < len(e.Labels) && e.Labels[split] == Ignore {
			split++
		}
		out = append(out, tok.Decode(e.InputIDs[:split], false)+"|"+tok.Decode(e.Labels[split:], false))
	}
	return out
}

func prepare(t testing.TB, s Source, o Options) (*Dataset, error) {
	t.Helper()
	if o.Tokenizer == nil {
		o.Tokenizer = tokenizer.Bytes()
	}
	return Prepare(t.Context(), []Source{s}, o)
}

func TestPrepare(t *testing.T) {
	const eos = "<|endoftext|>"
	dir := t.TempDir()
	write(t, dir, "tree/b.go", "package b")
	write(t, dir, "tree/a/z.go", "package z")
	write(t, dir, "tree/a/deep/er/y.go", "package y")
	write(t, dir, "tree/a/notes.txt", "notes")
	write(t, dir, "tree/rows.jsonl", `{"text": "row"}`)
	alpaca := func(input string) string {
		if input == "" {
			return "Below is an instruction that describes a task. Write a response that appropriately completes the request." +
				"\n\n### Instruction:\nadd\n\n### Response:\n"
		}
		return "Below is an instruction that describes a task, paired with an input that provides further context. " +
			"Write a response that appropriately completes the request.\n\n### Instruction:\nadd\n\n### Input:\n" + input + "\n\n### Response:\n"
	}
	for _, c := range []struct {
		name, content string
		source        Source
		options       Options
		want          []string
	}{
		{"lines.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\\u0032\\n\", \"x\": 1}\r\n\n\n", Source{Type: Text}, Options{}, []string{"|one" + eos, "|2\n" + eos}},
		{"last.jsonl", `{"text": "no line break"}`, Source{Type: Text}, Options{}, []string{"|no line break" + eos}},
		{"mark.ndjson", "\uFEFF{\"text\": \"é\"}", Source{Type: Text}, Options{}, []string{"|é" + eos}},
		{"lines.json", "{\"text\": \"one\"}\n{\"text\": \"two\"}", Source{Type: Text}, Options{}, []string{"|one" + eos, "|two" + eos}},
		{"array.json", " \n[{\"t\": \"one\"},\n {\"t\": \"\\ud83d\\ude00 \\\\ud800\"}\n]\n", Source{Type: Text, Field: "t"}, Options{},
			[]string{"|one" + eos, `|😀 \ud800` + eos}},
		{"max.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\nnever read", Source{Type: Text, MaxSamples: 2}, Options{}, []string{"|one" + eos, "|two" + eos}},
		{"plain.txt", "\uFEFFwhole\n\nfile\n", Source{Type: Text}, Options{}, []string{"|whole\n\nfile\n" + eos}},
		{"pair.jsonl", `{"question": "2+2?", "answer": "4"}`, Source{Type: PromptResponse, Prompt: "question", Response: "answer"}, Options{},
			[]string{"2+2?\n|4" + eos}},
		{"all.jsonl", `{"prompt": "2+2?", "response": "4"}`, Source{Type: PromptResponse}, Options{TrainOnPrompt: true}, []string{"|2+2?\n4" + eos}},
		{"alpaca.json", `[{"instruction": "add", "input": "", "output": "4"}, {"instruction": "add", "input": "2 2", "output": "4", "history": []},
			{"instruction": "add", "output": "5"}]`, Source{Type: Alpaca}, Options{},
			[]string{alpaca("") + "|4" + eos, alpaca("2 2") + "|4" + eos, alpaca("") + "|5" + eos}},
		{"tree", "", Source{Type: Text, Glob: "**/*.go"}, Options{}, []string{"|package y" + eos, "|package z" + eos, "|package b" + eos}},
		{"tree", "", Source{Type: Text, Glob: "**/*.go", MaxSamples: 1}, Options{}, []string{"|package y" + eos}},
		{"tree", "", Source{Type: Text, Glob: "*"}, Options{}, []string{"|package b" + eos, "|row" + eos}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.source.Path = filepath.Join(dir, c.name)
			if c.content != "" {
				write(t, dir, c.name, c.content)
			}
			d, err := prepare(t, c.source, c.options)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, show(d)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestBadInput has a row for each fault of a file; the error must name the place and the fault in one line.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct {
		name, content string
		source        Source
		want          string
	}{
		{"a.jsonl", "", Source{Type: Text}, "a.jsonl: the file has no rows"},
		{"a.jsonl", "\n \n", Source{Type: Text}, "a.jsonl: the file has no rows"},
		{"a.jsonl", "{\"text\": \"x\"}\n \n{\"text\": 1}", Source{Type: Text}, `a.jsonl:3: field "text" is not a string`},
		{"a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\", \"score\": NaN}", Source{Type: Text}, "a.jsonl:2: invalid character 'N' looking for beginning of value: NaN, Infinity and None are not JSON: write null"},
		{"a.jsonl", `{"score": [-Infinity], "text": "x"}`, Source{Type: Text}, "a.jsonl:1: invalid character 'I' in numeric literal: NaN, Infinity and None are not JSON"},
		{"a.jsonl", `{"text": "NaN" "Infinity"}`, Source{Type: Text}, "a.jsonl:1: invalid character '\"'"},
		{"a.json", "[{\"text\": \"x\"},\n{\"score\": Infinity}]", Source{Type: Text}, "a.json:2: invalid character 'I' looking for beginning of value: NaN, Infinity"},
		{"a.jsonl", "{\"text\": \"x\"}\n{\"text\": ", Source{Type: Text}, "a.jsonl:2: unexpected end of JSON"},
		{"a.jsonl", "\n{\"text\": \"x\"} {}", Source{Type: Text}, "a.jsonl:2: invalid character"},
		{"a.jsonl", "{\"text\": \"x\"}\n\"y\"", Source{Type: Text}, "a.jsonl:2: the row is not an object"},
		{"a.jsonl", "null", Source{Type: Text}, "a.jsonl:1: the row is not an object"},
		{"a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"\xff\"}", Source{Type: Text}, "a.jsonl:2: byte 0xff is not UTF-8"},
		{"a.jsonl", "{\"text\": \"x\"}\n{\"b\": 1, \"a\": 2}", Source{Type: Text}, `a.jsonl:2: field "text" is missing: the row has a, b`},
		{"a.jsonl", `{"text": 3}`, Source{Type: Text}, `a.jsonl:1: field "text" is not a string`},
		{"a.jsonl", `{"text": null}`, Source{Type: Text}, `a.jsonl:1: field "text" is not a string`},
		{"a.jsonl", `{"text": " \n"}`, Source{Type: Text}, `a.jsonl:1: field "text" is empty`},
		{"a.jsonl", `{"text": "\ud83d x"}`, Source{Type: Text}, "surrogate"},
		{"a.jsonl", `{"text": "\uDE00"}`, Source{Type: Text}, "surrogate"},
		{"a.jsonl", `{"prompt": "", "response": "x"}`, Source{Type: PromptResponse}, `field "prompt" is empty`},
		{"a.jsonl", `{"prompt": "x", "response": ""}`, Source{Type: PromptResponse}, `field "response" is empty`},
		{"a.json", "[\n{\"text\": \"x\"},\n{\"text\": 1}]", Source{Type: Text}, `a.json:3: field "text" is not a string`},
		{"a.json", "[\n{\"text\": \"x\"},\n{\"text\": \"a\",\n\"b\": \"\xff\"}]", Source{Type: Text}, "a.json:4: byte 0xff"},
		{"a.json", "[\n{\"text\": \"x\"},\n", Source{Type: Text}, "a.json:3: the array does not end"},
		{"a.json", "[\n{\"text\": \"x\"},\n{\"text\" 1}]", Source{Type: Text}, "a.json:3: invalid character"},
		{"a.json", "[\n{\"text\": \"x\"}\n]\n[]", Source{Type: Text}, "a.json:4: there is more"},
		{"a.json", "[]", Source{Type: Text}, "a.json: the file has no rows"},
		{"a.json", `[{"instruction": "x", "output": "y", "history": [["a", "b"]]}]`, Source{Type: Alpaca}, `"history" is not supported`},
		{"a.json", `[{"instruction": "x", "output": "y", "system": "z"}]`, Source{Type: Alpaca}, `"system" is not supported`},
		{"a.json", `[{"instruction": "x", "input": 1, "output": "y"}]`, Source{Type: Alpaca}, `"input" is not a string`},
		{"a.json", `[{"instruction": "x", "output": ""}]`, Source{Type: Alpaca}, `"output" is empty`},
		{"a.txt", "", Source{Type: Text}, "a.txt: the document is empty"},
		{"a.txt", "one\ntwo\xfe", Source{Type: Text}, "a.txt:2: byte 0xfe is not UTF-8"},
		{"a.txt", "x", Source{Type: Alpaca}, "a.txt: type alpaca needs a .json"},
		{"a.txt", "x", Source{Type: Text, Glob: "*"}, "glob is for directories"},
		{"d/a.go", "x", Source{Type: Text, Path: "d"}, "the directory has no .json"},
		{"d/a.go", "x", Source{Type: Text, Path: "d/*.txt"}, `no file matches glob "*.txt"`},
		{"d/a.go", "x", Source{Type: Text, Path: "d/*.txt", Glob: "*"}, "glob cannot be one too"},
		{"d/a.txt", "x", Source{Type: Text, Path: "d", Glob: "*.go"}, `no file matches glob "*.go"`},
		{"d/a.txt", "x", Source{Type: Text, Path: "d", Glob: "["}, "syntax error in pattern"},
		{"d/a.txt", "x", Source{Type: Text, Path: "none"}, "none: there is no such file or directory"},
		{"a.jsonl", `{"a\n": 1, "": 2, "` + strings.Repeat("x", 1000) + `": 3}`, Source{Type: Text}, `the row has "", "a\n", "` + strings.Repeat("x", 100) + `"`},
	} {
		sub := filepath.Join(dir, fmt.Sprint(i))
		path := write(t, sub, c.name, c.content)
		if c.source.Path == "" {
			c.source.Path = path
		} else {
			c.source.Path = filepath.Join(sub, c.source.Path)
		}
		for _, cache := range []string{"", filepath.Join(sub, "cache")} {
			_, err := prepare(t, c.source, Options{CacheDir: cache})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: error %v, want one line with %q", c.content, err, c.want)
			}
		}
	}
}

func TestSourceErrors(t *testing.T) {
	for want, s := range map[string]Source{
		"path is missing":            {Type: Text},
		"dataset x: type is missing": {Path: "x"},
		`type "csv" is unknown`:      {Path: "x", Type: "csv"},
		"field is for type text, not alpaca": {Path: "x", Type: Alpaca,
			Field: "f"},
		"prompt is for type prompt-response, alpaca, preference, binary and prompts": {Path: "x", Type: Text,
			Prompt: "f"},
		"system is for type prompt-response, alpaca, sharegpt,": {Path: "x", Type: Text,
			System: "f"},
		"tags are for type sharegpt, preference and binary, not text": {Path: "x", Type: Text,
			Tags: Tags{Role: "r"}},
		"lines is for type text, not alpaca": {Path: "x", Type: Alpaca,
			Lines: true},
		"takes type, keys, tags and files from": {Path: "x", Name: "n",
			Field: "f"},
		`bad_rows is "ignore": use refuse or sk`: {Path: "x", Type: Text,
			BadRows: "ignore"},
		"weight is -1: it must be between 0": {Path: "x", Type: Text,
			Weight: -1},
		"max_samples is -1: it must not be nega": {Path: "x", Type: Text,
			MaxSamples: -1},
		"dataset x: there is no such file or directory; a data set of the hub is named ORG/NAME": {Path: "x", Type: Text},
		"named ORG/NAME, and a subset of it by name":                                             {Path: "a/b/c", Type: Text},
		"dataset a/b/c/d: there is no such file or directory":                                    {Path: "a/b/c/d", Type: Text},
	} {
		if _, err := prepare(t, s, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", s, err, want)
		}
	}
	if _, err := Prepare(t.Context(), nil, Options{Tokenizer: tokenizer.Bytes()}); err == nil {
		t.Error("no sources are accepted")
	}
}

func TestSourceYAML(t *testing.T) {
	var got []Source
	text := "- {path: gsm8k/train.jsonl, type: prompt-response, prompt: question, response: answer}\n" +
		"- {path: src, type: text, glob: '**/*.go', max_samples: 10}\n"
	if err := yaml.UnmarshalWithOptions([]byte(text), &got, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	want := []Source{
		{Path: "gsm8k/train.jsonl", Type: PromptResponse, Prompt: "question", Response: "answer"},
		{Path: "src", Type: Text, Glob: "**/*.go", MaxSamples: 10},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMatchGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"*.go", "a.go", true}, {"*.go", "b/a.go", false}, {"**/*.go", "a.go", true}, {"**/*.go", "b/c/a.go", true},
		{"**", "a/b", true}, {"b/**", "b/x/y", true}, {"b/**", "c/x", false}, {"**/t/**/*.go", "a/t/b/t/c.go", true},
		{"**/t/*.go", "a/t/b/c.go", false}, {"a/**/b/c", "a/b/b/c", true}, {"a/**/b/c", "a/b/b/d", false}, {"a/b", "a", false},
		{"?.go", "é.go", true}, {"[ab]/x", "b/x", true}, {"**/a/**/b", "a/a/a/c", false},
	} {
		if got := matchGlob(strings.Split(c.pattern, "/"), strings.Split(c.path, "/")); got != c.want {
			t.Errorf("%s on %s: %v", c.pattern, c.path, got)
		}
	}
}

// rowsFile writes n rows of uneven length and returns its source.
func rowsFile(t testing.TB, dir string, n int) Source {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"text\": \"row %d %s\"}\n", i, strings.Repeat("x", i*7919%900))
	}
	return Source{Path: write(t, dir, "rows.jsonl", b.String()), Type: Text}
}

func TestWorkersDoNotMatter(t *testing.T) {
	s := rowsFile(t, t.TempDir(), 2000)
	one, err := prepare(t, s, Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	var last Progress
	calls := 0
	many, err := prepare(t, s, Options{Workers: 7, Progress: func(p Progress) { last = p; calls++ }})
	if err != nil {
		t.Fatal(err)
	}
	if one.Fingerprint() != many.Fingerprint() || one.Len() != 2000 {
		t.Errorf("fingerprints %s and %s of %d documents", one.Fingerprint(), many.Fingerprint(), one.Len())
	}
	want := Progress{Source: s.Path, Documents: 2000, Tokens: many.Tokens(), ReadBytes: last.TotalBytes, TotalBytes: last.TotalBytes, Done: true}
	if last != want || calls < 4 {
		t.Errorf("last of %d reports: %+v, want %+v", calls, last, want)
	}
}

func TestFirstBadRowIsNamed(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	for i := range 3000 {
		if i%1000 == 999 {
			b.WriteString("{}\n")
		}
		fmt.Fprintf(&b, "{\"text\": \"%s\"}\n", strings.Repeat("x", 400))
	}
	defer goleak.VerifyNone(t)
	s := Source{Path: write(t, dir, "rows.jsonl", b.String()), Type: Text}
	for range 2 {
		if _, err := prepare(t, s, Options{Workers: 4}); err == nil || !strings.Contains(err.Error(), "rows.jsonl:1000:") {
			t.Fatalf("error %v", err)
		}
	}
}

func TestPrepareCancelled(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := rowsFile(t, t.TempDir(), 5000)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Prepare(ctx, []Source{s}, Options{Tokenizer: tokenizer.Bytes(), Progress: func(Progress) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestCache(t *testing.T) {
	dir := t.TempDir()
	s := rowsFile(t, dir, 300)
	cache := filepath.Join(dir, "cache")
	var warnings strings.Builder
	cached := false
	o := Options{CacheDir: cache, Note: func(line string) { warnings.WriteString(line) }, Progress: func(p Progress) { cached = p.Cached }}
	get := func(s Source, o Options) string {
		t.Helper()
		d, err := prepare(t, s, o)
		if err != nil {
			t.Fatal(err)
		}
		return d.Fingerprint()
	}
	entries := func() []string {
		names, _ := filepath.Glob(filepath.Join(cache, "*"))
		return names
	}
	first := get(s, o)
	if cached || len(entries()) != 1 {
		t.Fatalf("cached %v, files %v", cached, entries())
	}
	if get(s, o) != first || !cached {
		t.Fatal("the second time is not the first, from the cache")
	}
	// A file that moved is the same; other options are not.
	moved := s
	moved.Path = write(t, dir, "moved.jsonl", string(readFile(t, s.Path)))
	if get(moved, o) != first || !cached {
		t.Error("a copy of the file is not found")
	}
	less := s
	less.MaxSamples = 10
	if get(less, o) == first || cached {
		t.Error("max_samples is not part of the key")
	}
	prompts := o
	prompts.TrainOnPrompt = true
	if get(s, prompts); cached {
		t.Error("train_on_prompt is not part of the key")
	}
	write(t, dir, "rows.jsonl", string(readFile(t, s.Path))+"{\"text\": \"more\"}\n")
	if get(s, o) == first || cached {
		t.Error("the content is not part of the key")
	}
	if warnings.Len() > 0 {
		t.Errorf("warnings: %s", &warnings)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCacheDamage cuts and flips a cache file everywhere: it must never be believed, and always be replaced.
func TestCacheDamage(t *testing.T) {
	dir := t.TempDir()
	s := Source{Path: write(t, dir, "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"), Type: Text}
	cache := filepath.Join(dir, "cache")
	want, err := prepare(t, s, Options{CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(cache, "*.tokens"))
	if len(names) != 1 {
		t.Fatal(names)
	}
	good := readFile(t, names[0])
	check := func(what string, bad []byte) {
		t.Helper()
		if err := os.WriteFile(names[0], bad, 0o644); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		cached := false
		d, err := prepare(t, s, Options{CacheDir: cache, Note: func(line string) { log.WriteString(line) }, Progress: func(p Progress) { cached = p.Cached }})
		if err != nil {
			t.Fatal(err)
		}
		warned := log.Len() > 0
		if cached || !warned || d.Fingerprint() != want.Fingerprint() {
			t.Fatalf("%s: cached %v, warned %v", what, cached, warned)
		}
		if string(readFile(t, names[0])) != string(good) {
			t.Fatalf("%s: the file was not written again", what)
		}
	}
	for n := range len(good) {
		if n%7 == 0 {
			check(fmt.Sprint("cut to ", n), good[:n])
		}
		bad := append([]byte(nil), good...)
		bad[n] ^= 1 << (n % 8)
		check(fmt.Sprint("flip at ", n), bad)
	}
	check("longer", append(append([]byte(nil), good...), 0))
	// Another tokenizer's vocabulary must not be exceeded even if the checksum is right: the key has its hash, so here
	// the reader is asked directly.
	var key [16]byte
	copy(key[:], good[8:24])
	if _, err := parseCache(t.Context(), bytes.NewReader(good), int64(len(good)), uint128(key), 100, hostmem.New()); err == nil || !strings.Contains(err.Error(), "vocabulary") {
		t.Errorf("a token outside the vocabulary: %v", err)
	}
}

func TestCacheShared(t *testing.T) {
	dir := t.TempDir()
	s := rowsFile(t, dir, 200)
	var wg sync.WaitGroup
	prints := make([]string, 6)
	for i := range prints {
		wg.Go(func() {
			d, err := Prepare(t.Context(), []Source{s}, Options{Tokenizer: tokenizer.Bytes(), CacheDir: filepath.Join(dir, "cache")})
			if err != nil {
				t.Error(err)
				return
			}
			prints[i] = d.Fingerprint()
		})
	}
	wg.Wait()
	for _, p := range prints {
		if p != prints[0] {
			t.Errorf("fingerprints %q", prints)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "cache", "*.tmp")); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestCacheUnwritable(t *testing.T) {
	dir := t.TempDir()
	s := rowsFile(t, dir, 5)
	var log strings.Builder
	blocked := write(t, dir, "file", "not a directory")
	if _, err := prepare(t, s, Options{CacheDir: blocked, Note: func(line string) { log.WriteString(line) }}); err != nil {
		t.Errorf("a cache that cannot be written stops the run: %v", err)
	}
	if !strings.Contains(log.String(), "not kept") {
		t.Errorf("log: %s", &log)
	}
}

// slowTokenizer takes its time with a text, until it is let go.
type slowTokenizer struct {
	tokenizer.Tokenizer
	began, letGo chan struct{}
}

func (s slowTokenizer) Encode(text string, addSpecial bool) []int32 {
	s.began <- struct{}{}
	<-s.letGo
	return s.Tokenizer.Encode(text, addSpecial)
}

// Who gives up on tokenizing does not wait for the text that a worker is at; who gives up on a cache that is read
// does not wait for its end.
func TestPrepareEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	s := Source{Path: write(t, dir, "book.jsonl", "{\"text\": \"long\"}\n"), Type: Text}
	slow := slowTokenizer{tokenizer.Bytes(), make(chan struct{}), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-slow.began
		cancel()
	}()
	if _, err := Prepare(ctx, []Source{s}, Options{Tokenizer: slow}); !errors.Is(err, context.Canceled) {
		t.Errorf("tokenizing: %v", err)
	}
	close(slow.letGo)

	o := Options{Tokenizer: tokenizer.Bytes(), CacheDir: filepath.Join(dir, "cache")}
	if _, err := Prepare(t.Context(), []Source{s}, o); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(o.CacheDir, "*.tokens"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	f, err := os.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	var key [16]byte
	copy(key[:], readFile(t, names[0])[8:24])
	if _, err := openCache(ctx, f, uint128(key), 257, hostmem.New()); !errors.Is(err, context.Canceled) {
		t.Errorf("a cache: %v", err)
	}
}

// A cache on a full disk is not used: the tokens are the same, a line says so, and no file is left over.
func TestCacheFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no file that is always full")
	}
	for name, rows := range map[string]int{"when it is finished": 5, "in the middle": 2000} { // 1 MiB is buffered
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := rowsFile(t, dir, rows)
			want, err := prepare(t, s, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			o := Options{CacheDir: filepath.Join(dir, "cache"), Note: func(line string) { said = append(said, line) }}
			o.cacheFile = func(dir, _ string) (*os.File, error) {
				full, err := syscall.Open("/dev/full", os.O_RDWR, 0)
				name := filepath.Join(dir, "new-1.tmp") // which is what is removed in the end
				return os.NewFile(uintptr(full), name), errors.Join(err, os.WriteFile(name, nil, 0o600))
			}
			got, err := prepare(t, s, o)
			if err != nil {
				t.Fatal(err)
			}
			if got.Fingerprint() != want.Fingerprint() {
				t.Error("the tokens differ")
			}
			if len(said) != 1 || !strings.Contains(said[0], "not kept") || !strings.Contains(said[0], syscall.ENOSPC.Error()) {
				t.Errorf("said: %q", said)
			}
			if left, _ := os.ReadDir(o.CacheDir); len(left) > 0 {
				t.Errorf("files are left over: %v", left)
			}
		})
	}
}

// TestTemplate checks what stands around a document, with a tokenizer that has a template.
func TestTemplate(t *testing.T) {
	tok, err := tokenizer.Load(filepath.Join("tokenizer", "testdata", "prefix.json")) // <|bos|> $A <|eos|>
	if err != nil {
		t.Fatal(err)
	}
	record := Record{Type: PromptResponse, Prompt: "hi", Response: "hello"}
	rendered, err := Plain.Render(t.Context(), record)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Tokenize(tok, rendered, false); !errors.Is(err, errNoEOS) {
		t.Errorf("without an EOS: %v", err)
	}
	bos, eos := tok.TokenID("<|bos|>"), tok.TokenID("<|eos|>")
	spec, err := os.ReadFile(filepath.Join("tokenizer", "testdata", "prefix.json"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", string(spec))
	write(t, dir, "tokenizer_config.json", `{"bos_token": "<|bos|>", "eos_token": "<|eos|>"}`)
	if tok, err = tokenizer.Load(dir); err != nil {
		t.Fatal(err)
	}
	e, err := Tokenize(tok, rendered, false)
	if err != nil {
		t.Fatal(err)
	}
	prompt, response := tok.Encode("hi\n", false), tok.Encode("hello", false)
	want := Example{}
	for _, id := range append([]int32{bos}, prompt...) {
		want.InputIDs, want.Labels = append(want.InputIDs, id), append(want.Labels, Ignore)
	}
	for _, id := range append(response, eos) { // the template's <|eos|> is not doubled
		want.InputIDs, want.Labels = append(want.InputIDs, id), append(want.Labels, id)
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Error(diff)
	}
}

// FuzzRows reads bytes as rows of each kind of file: it must not panic, and what it accepts must be text.
func FuzzRows(f *testing.F) {
	for _, s := range []string{"{\"text\": \"a\\ud83d\\ude00\"}\n\n", "[{\"text\": \"a\"},\n{\"text\": 3}]", "\uFEFF[", "{}\n\n{}", "x", "[]x", "\"\\ud800\"",
		"{\"text\": \"\xff\"}", "{\"text\": \"\\u\"}", "{\"instruction\": \"a\", \"output\": \"b\", \"system\": null}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range []string{"a.jsonl", "a.txt"} {
			for _, s := range []Source{{Path: name, Type: Text}, {Path: name, Type: Alpaca}} {
				s = s.withDefaults()
				var rowErr error
				lines := 0
				err := newRowReader(s, limits{}, 0).readRows(name, strings.NewReader(string(b)), func(r row) bool {
					if r.line < 0 || r.line > strings.Count(string(b), "\n")+1 || r.line < lines {
						t.Fatalf("line %d after %d", r.line, lines)
					}
					lines = r.line
					var record Record
					if record, rowErr = s.record(r); rowErr != nil {
						return false
					}
					if blank(record.Text + record.Prompt) {
						t.Fatalf("row %q is empty", r.data)
					}
					return true
				})
				for _, err := range []error{err, rowErr} {
					if err != nil && !strings.HasPrefix(err.Error(), name+":") {
						t.Fatalf("error %v does not name the file", err)
					}
				}
			}
		}
	})
}

// FuzzCache reads bytes as a cache file, and with a header and sums that are right.
func FuzzCache(f *testing.F) {
	key := uint128([16]byte{1, 2, 3})
	w, err := createCache(f.TempDir(), key, Options{cacheFile: os.CreateTemp, freeBytes: vfs.OS{}.FreeBytes})
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range []Example{count(3), count(70)} {
		if err := w.append(e); err != nil {
			f.Fatal(err)
		}
	}
	w.skipped, w.firstBad = 2, "a.jsonl:1: bad"
	if _, err := w.finish(f.Context(), 100, hostmem.New()); err != nil {
		f.Fatal(err)
	}
	for _, file := range [][]byte{readFile(f, cachePath(w.dir, key)), columnsFile(f, key)} {
		f.Add(file, false)
		f.Add(file, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		b = bytes.Clone(b)
		if note := 0; seal && len(b) >= cacheHeaderBytes {
			id := key.Bytes()
			copy(b, cacheMagic)
			copy(b[8:], id[:])
			note = int(b[48])
			if body := b[cacheHeaderBytes:]; note <= len(body) {
				sum := xxh3.Hash128(body[:len(body)-note]).Bytes()
				copy(b[64:], sum[:])
				binary.LittleEndian.PutUint64(b[80:], checkHeader(b[:80], string(body[len(body)-note:])))
			}
		}
		d := &Dataset{accounts: hostmem.New()}
		p, err := parseCache(t.Context(), bytes.NewReader(b), int64(len(b)), key, 100, d.accounts)
		if err == nil {
			d.add(p, Text, 1)
			err = d.seal()
		}
		if err == nil && d.Len() > 0 {
			_, err = d.Example(d.Len() - 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range d.runs[0].numbers {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					t.Fatalf("the number is %v", v)
				}
			}
			for i := range d.runs[0].columns {
				if v := make([]float32, d.runs[0].size); d.runs[0].has&tokenColumn(i) != 0 && d.runs[0].readColumn(i, v, 0) == nil {
					for _, n := range v {
						if n-n != 0 {
							t.Fatalf("column %d has %v", i, v)
						}
					}
				}
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if n, _ := d.accounts.Total(); n != 0 {
			t.Fatalf("%d bytes are still reserved", n)
		}
	})
}

func uint128(b [16]byte) xxh3.Uint128 {
	return xxh3.Uint128{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
}

// TestExamplesAreMadeAtOnce: the arrays of an example do not grow, which would be most of the garbage of tokenizing.
func TestExamplesAreMadeAtOnce(t *testing.T) {
	long := strings.Repeat("a word, ", 1000)
	for _, rendered := range []Rendered{
		{Segments: []Segment{{long, false}, {long, true}, {"c", true}}, Begin: true, End: true},
		{Segments: []Segment{{long, false}, {long, true}}, Joined: true},
	} {
		e, err := Tokenize(tokenizer.Bytes(), rendered, false)
		if err != nil {
			t.Fatal(err)
		}
		if most := len(e.InputIDs) + 16; cap(e.InputIDs) > most || cap(e.Labels) > most {
			t.Errorf("%d tokens in arrays of %d and %d", len(e.InputIDs), cap(e.InputIDs), cap(e.Labels))
		}
	}
}
