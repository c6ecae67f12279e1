package data

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/surroundings"
)

func TestCompressed(t *testing.T) {
	dir := t.TempDir()
	const rows = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"
	pack := func(name string, w io.WriteCloser, b *bytes.Buffer) string {
		t.Helper()
		io.WriteString(w, rows)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return write(t, dir, name, b.String())
	}
	var gz, zst bytes.Buffer
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"|one<|endoftext|>", "|two<|endoftext|>"}
	for _, path := range []string{pack("a.jsonl.gz", gzip.NewWriter(&gz), &gz), pack("b.JSONL.zst", z, &zst)} {
		for _, most := range []int{0, 1} {
			d, err := prepare(t, Source{Type: Text, Path: path, MaxSamples: most}, Options{CacheDir: filepath.Join(dir, "cache")})
			if err != nil {
				t.Fatal(err)
			}
			n := len(want)
			if most > 0 {
				n = most
			}
			if diff := cmp.Diff(want[:n], show(d)); diff != "" {
				t.Error(path, diff)
			}
		}
		content := readFile(t, path)
		cut := write(t, dir, "cut"+endings(path), string(content[:len(content)-6]))
		if _, err := prepare(t, Source{Type: Text, Path: cut}, Options{}); err == nil || !strings.Contains(err.Error(), filepath.Base(cut)+":") {
			t.Errorf("a cut file: %v", err)
		}
	}
}

func TestFilesOfASource(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.jsonl", "a.json", "c.txt.gz", "d.parquet", "e.md", "dataset_info.json", "sub/f.jsonl", "sub/g.jsonl.zst"} {
		write(t, dir, name, "x")
	}
	for path, want := range map[string][]string{
		"":               {"a.json", "b.jsonl", "c.txt.gz", "d.parquet"},
		"*.json*":        {"a.json", "b.jsonl", "dataset_info.json"},
		"**/*.jsonl*":    {"b.jsonl", "sub/f.jsonl", "sub/g.jsonl.zst"},
		"sub/[fx].jsonl": {"sub/f.jsonl"},
	} {
		got, err := Source{Path: filepath.Join(dir, path)}.files()
		for i := range got {
			got[i], _ = filepath.Rel(dir, got[i])
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v %s", path, err, diff)
		}
	}
}

// parquetFile is one of testdata, which the tests of data/parquet/oracle write.
func parquetFile(t testing.TB, name string) []byte { return readFile(t, "testdata/"+name+".parquet") }

func TestParquet(t *testing.T) {
	b := parquetFile(t, "chats")
	var got []string
	s := Source{Type: Messages}.withDefaults()
	reader := newRowReader(s, limits{}, 0)
	size := int64(len(b))
	if err := reader.readTable(t.Context(), "x", bytes.NewReader(b), size, reader.parquetLimits(size), func(r row) bool {
		got = append(got, fmt.Sprintf("%d %s %v", r.line, r.data, r.err))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`1 {"messages":[{"role":"user","content":"a\u000a\"é\\","tags":["x","y"],"calls":[]},` +
			`{"role":"assistant","content":"b","tags":[],"calls":[{"Name":"f","Arguments":"{}"},{"Name":"g"}]}],"tools":"[]"} <nil>`,
		`2 {"messages":[]} <nil>`,
		`3 {"messages":[{"role":"user","content":"c","tags":[],"calls":[]},{"role":"assistant","content":"d","tags":[],"calls":[]}]} <nil>`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	path := write(t, t.TempDir(), "x.parquet", string(b))
	if _, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chatOf(t, chatML)}); err == nil ||
		!strings.Contains(err.Error(), `x.parquet: row 1: message 0: "tags" is unknown, and has a list`) {
		t.Errorf("a bad row: %v", err)
	}
	d, err := prepare(t, Source{Type: Messages, Path: path, BadRows: SkipBadRows}, Options{Renderer: chatOf(t, chatML), CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := d.Skipped(); n != 2 || d.Len() != 1 || marked(d)[0] != "<user>c</s>\n<assistant>[d</s>]\n" {
		t.Errorf("skipped %d, documents %q", n, marked(d))
	}
	if _, err := prepare(t, Source{Type: Text, Path: path}, Options{}); err == nil || !strings.Contains(err.Error(), `no column "text": the file has id, messages`) {
		t.Errorf("a missing column: %v", err)
	}
	if _, err := prepare(t, Source{Type: Text, Path: write(t, t.TempDir(), "y.parquet", "PAR1")}, Options{}); err == nil || !strings.Contains(err.Error(), "y.parquet: ") {
		t.Errorf("no Parquet: %v", err)
	}
}

// TestParquetOfToolData reads files that datasets writes by itself of rows whose keys differ, with columns of JSON: they are the
// rows of the JSON lines that it read.
func TestParquetOfToolData(t *testing.T) {
	chat := chatOf(t, "{{ tools|default('')|tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.reasoning_content }}{{ m.tool_calls|default('')|tojson }}"+
		"</s>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
	for _, name := range []string{"json_tools", "json_messages"} {
		var both [2][]string
		for i, ending := range []string{".jsonl", ".parquet"} {
			path := write(t, t.TempDir(), "x"+ending, string(readFile(t, "parquet/testdata/"+name+ending)))
			d, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chat})
			if err != nil {
				t.Fatal(err)
			}
			both[i] = marked(d)
		}
		if diff := cmp.Diff(both[0], both[1]); diff != "" || len(both[0]) != 2 {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestParquetDates: a date in the arguments of a call ends the reading, and one that is a label of a message does not.
func TestParquetDates(t *testing.T) {
	for _, name := range []string{"dates_pyarrow", "dates_duckdb"} {
		path := write(t, t.TempDir(), "x.parquet", string(readFile(t, "parquet/testdata/"+name+".parquet")))
		for _, bad := range []string{"", SkipBadRows} {
			if _, err := prepare(t, Source{Type: Messages, Path: path, BadRows: bad}, Options{Renderer: chatOf(t, chatML)}); err == nil ||
				!strings.Contains(err.Error(), "x.parquet: row 1: row group 0: column messages.tool_calls.function.arguments.date has ") {
				t.Errorf("%s, bad_rows %q: %v", name, bad, err)
			}
		}
	}
	if !isLabelColumn("messages.timestamp") || isLabelColumn("timestamp") || isLabelColumn("messages.content") || isLabelColumn("messages.tool_calls.timestamp") {
		t.Error("a label is a key of a message")
	}
}

// FuzzParquet reads bytes as a Parquet file: no panic, and what it makes of a row is JSON or an error.
func FuzzParquet(f *testing.F) {
	f.Add(parquetFile(f, "chats"))
	f.Add([]byte("PAR1PAR1"))
	s := Source{Type: Messages}.withDefaults()
	reader := newRowReader(s, limits{}, 0)
	limits := reader.parquetLimits(0)
	limits.RowBytes, limits.PageBytes, limits.HeldBytes, limits.TotalBytes = 1<<16, 1<<16, 1<<20, 1<<24 // so that no input takes long
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		err := reader.readTable(t.Context(), "x", bytes.NewReader(b), int64(len(b)), limits, func(r row) bool {
			n++
			if r.line != n {
				t.Fatalf("row %d is said to be %d", n, r.line)
			}
			if r.err == nil {
				s.record(r)
			}
			return n < 1000
		})
		if err != nil && !strings.HasPrefix(err.Error(), "x: ") {
			t.Fatalf("error %v does not name the file", err)
		}
	})
}

// FuzzConversation reads bytes as a row of each kind of conversation, and renders what it accepts.
func FuzzConversation(f *testing.F) {
	f.Add(`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}], "tool_calls": [{"function": {"name": "f"}}]}]}`)
	f.Add(`{"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": \"f\"}"}], "tools": "[{}]"}`)
	f.Add(`{"instruction": "a", "output": "b", "history": [["c", "d"]], "system": "e"}`)
	f.Add(`{"messages": [{"role": "user", "content": [{"type": "text", "value": "a"}], "loss_weight": 0}, ` +
		`{"role": "assistant", "content": [{"type": "reasoning", "value": "b"}, ` +
		`{"type": "tool_call", "value": "[{\"name\": \"f\"}]"}]}]}`)
	f.Add(`{"messages": [{"role": "assistant", "content": "a", "reasoning": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "<think>d</think>", "weight": 0}]}`)
	chats := []*Chat{chatOf(f, chatML), chatOf(f, words), chatOf(f, nextEnds), chatOf(f, thinks)}
	for _, chat := range chats {
		chat.All = true
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i, kind := range []Type{Messages, ShareGPT, Alpaca, Messages, Messages, Messages} {
			chat := chats[max(0, i-2)]
			s := Source{Type: kind}.withDefaults()
			r := row{file: "x", line: 1, data: []byte(text)}
			record, err := s.record(r)
			if err != nil {
				if !strings.HasPrefix(err.Error(), "x:") {
					t.Fatalf("error %v does not name the place", err)
				}
				continue
			}
			rendered, err := chat.Render(t.Context(), record)
			if err != nil {
				continue
			}
			e, err := Tokenize(tokenizer.Bytes(), rendered, false)
			if err != nil {
				t.Fatal(err)
			}
			if err := checkExample(e); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// weightedDataset has sources of some documents, whose first token tells the source and the document.
func weightedDataset(t *rapid.T) (*Dataset, []int, []float64) {
	d := &Dataset{accounts: hostmem.New()}
	var sizes []int
	var weights []float64
	for s := range rapid.IntRange(1, 4).Draw(t, "sources") {
		n := rapid.IntRange(1, 20).Draw(t, "documents")
		b := newBuilder()
		for i := range n {
			if err := b.append(Example{InputIDs: []int32{int32(s*100 + i + 1), 1000}, Labels: []int32{Ignore, 1000}}); err != nil {
				t.Fatal(err)
			}
		}
		p, err := b.finishInMemory(d.accounts)
		if err != nil {
			t.Fatal(err)
		}
		w := float64(rapid.IntRange(1, 12).Draw(t, "weight")) / 4
		d.add(p, Text, w)
		sizes, weights = append(sizes, n), append(weights, w)
	}
	if err := d.seal(); err != nil {
		t.Fatal(err)
	}
	return d, sizes, weights
}

// TestWeightLaw: over epochs each document comes as often as its weight says, off by one at most.
func TestWeightLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, sizes, weights := weightedDataset(t)
		const epochs = 4
		l, err := NewLoader(d, LoaderOptions{SequenceLen: 8, BatchTokens: 8, Seed: rapid.Uint64().Draw(t, "seed"), Epochs: epochs})
		if err != nil {
			if !strings.Contains(err.Error(), "the weights leave no target tokens") {
				t.Fatal(err)
			}
			t.Skip("all shares of documents round to nothing: there is no epoch to count in")
		}
		times := map[int32]int{}
		var first Packing
		for {
			epoch := l.Cursor().Epoch
			batches, err := next(l, 1)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, id := range batches[0].IDs {
				if id > 0 && id < 1000 {
					times[id]++
				}
				if epoch == 0 && batches[0].IDs[i] > 0 {
					first.RealTokens++
				}
			}
			if epoch == 0 {
				first.TargetTokens += int64(batches[0].TargetTokens)
			}
		}
		if p := l.Packing(); p.RealTokens != first.RealTokens || p.TargetTokens != first.TargetTokens || p.Documents != int(first.TargetTokens) {
			t.Fatalf("packing %+v, counted %+v", p, first)
		}
		for s, n := range sizes {
			whole, share := wholeWeight(weights[s])
			perEpoch := int(share*float64(n) + 0.5)
			low, high := whole*epochs+epochs*perEpoch/n, whole*epochs+(epochs*perEpoch+n-1)/n
			for i := range n {
				if got := times[int32(s*100+i+1)]; got < low || got > high {
					t.Fatalf("document %d of source %d with %d, weight %v, came %d times in %d epochs, want %d to %d", i, s, n, weights[s], got, epochs, low, high)
				}
			}
		}
	})
}

// TestSplitLaw: both parts together have every document once, in order, and the parts depend on the seed alone.
func TestSplitLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, _, _ := weightedDataset(t)
		size := rapid.SampledFrom([]float64{0.1, 0.5, 1, 2}).Draw(t, "size")
		a, b, err := d.Split(size, 7)
		if err != nil {
			if d.Len() > 3 {
				t.Fatal(err)
			}
			return
		}
		if want := int(size); size >= 1 && b.Len() != want {
			t.Fatalf("%d held out, want %d", b.Len(), want)
		}
		if a.Len()+b.Len() != d.Len() || a.Tokens()+b.Tokens() != d.Tokens() || a.TargetTokens()+b.TargetTokens() != d.TargetTokens() {
			t.Fatalf("%d and %d documents of %d", a.Len(), b.Len(), d.Len())
		}
		i, j := 0, 0
		for k := range d.Len() {
			e := example(t, d, k)
			switch {
			case i < a.Len() && cmp.Equal(example(t, a, i), e):
				i++
			case j < b.Len() && cmp.Equal(example(t, b, j), e):
				j++
			default:
				t.Fatalf("document %d is in no part, or out of order", k)
			}
		}
		again, _, _ := d.Split(size, 7)
		if a.Fingerprint() != again.Fingerprint() || a.Fingerprint() == b.Fingerprint() || a.Fingerprint() == d.Fingerprint() {
			t.Fatal("fingerprints do not tell the parts")
		}
	})
	d, err := NewDataset([]Example{count(3)})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Split(0.5, 1); err == nil {
		t.Error("one document is split")
	}
}

const cacheProcess = "MILLRACE_TEST_CACHE_PROCESS"

// TestMain is also the other process of TestCacheProcesses.
func TestMain(m *testing.M) {
	dir := os.Getenv(cacheProcess)
	if dir == "" {
		os.Exit(surroundings.Run(m))
	}
	d, err := Prepare(context.Background(), []Source{{Path: filepath.Join(dir, "rows.jsonl"), Type: Text}},
		Options{Tokenizer: tokenizer.Bytes(), CacheDir: filepath.Join(dir, "cache")})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Print(d.Fingerprint())
}

// TestCacheProcesses: processes that begin together make one file, and all see the same.
func TestCacheProcesses(t *testing.T) {
	dir := t.TempDir()
	rowsFile(t, dir, 3000)
	var all []*exec.Cmd
	var outputs []*bytes.Buffer
	for range 3 {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), cacheProcess+"="+dir)
		out := &bytes.Buffer{}
		c.Stdout, c.Stderr = out, out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		all, outputs = append(all, c), append(outputs, out)
	}
	for i, c := range all {
		if err := c.Wait(); err != nil {
			t.Fatalf("%v: %s", err, outputs[i])
		}
		if outputs[i].String() != outputs[0].String() || outputs[i].Len() != 32 {
			t.Errorf("process %d saw %q, the first %q", i, outputs[i], outputs[0])
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "cache", "*")); len(files) != 1 {
		t.Errorf("files %q", files)
	}
}

// TestEmptyFilesAreNoFault: files without rows are read as such, and only a source without any row is an error.
func TestEmptyFilesAreNoFault(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"pyarrow":     {"a.parquet": string(readFile(t, "parquet/testdata/empty_pyarrow.parquet")), "b.parquet": tableOf(t, "one")},
		"pyarrow, v2": {"a.parquet": string(readFile(t, "parquet/testdata/empty_pyarrow_v2.parquet")), "b.parquet": tableOf(t, "one")},
		"Polars":      {"a.parquet": tableOf(t, "one"), "b.parquet": string(readFile(t, "parquet/testdata/empty_polars.parquet"))},
		"lines":       {"a.jsonl": "", "b.jsonl": rowOf("one"), "c.jsonl": "\n \n"},
		"array":       {"a.json": " [ ]\n", "b.jsonl": rowOf("one")},
		"packed":      {"a.jsonl.gz": gzipped(t, ""), "b.jsonl": rowOf("one")},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range files {
				write(t, dir, file, content)
			}
			d, err := prepare(t, Source{Type: Text, Path: dir}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"one"}, texts(d)); diff != "" {
				t.Error(diff)
			}
			for file, content := range files {
				if content == rowOf("one") || content == tableOf(t, "one") {
					if err := os.Remove(filepath.Join(dir, file)); err != nil {
						t.Fatal(err)
					}
				}
			}
			_, err = prepare(t, Source{Type: Text, Path: dir}, Options{})
			if err == nil || !strings.Contains(err.Error(), "the file has no rows") && !strings.Contains(err.Error(), "none of its 2 files has a row") {
				t.Errorf("without a row: %v", err)
			}
		})
	}
}

// TestBlankLines: a blank line is no row, wherever it stands, as pyarrow and datasets read it.
func TestBlankLines(t *testing.T) {
	path := write(t, t.TempDir(), "a.jsonl", "\n"+rowOf("one")+"\n \r\n"+rowOf("two")+"\n")
	d, err := prepare(t, Source{Type: Text, Path: path}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one", "two"}, texts(d)); diff != "" {
		t.Error(diff)
	}
}

// TestFilesThatAreNoText: tables, archives and pictures are not taken for one long text, whether they are named or
// found, packed or not.
func TestFilesThatAreNoText(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{
		"a.orc":        "a file ending in .orc is no text and is not read: convert it to JSON lines, CSV or Parquet",
		"a.XLSX.gz":    "a file ending in .xlsx is no text",
		"a.zip":        "a file ending in .zip is no text and is not read: unpack it",
		"a.jsonl.xz":   "a file ending in .xz is no text",
		"a.jl":         "rename it to .jsonl",
		"a.pdf":        "extract its text",
		"a.docx":       "extract its text",
		"a.PNG":        "extract its text",
		"a.tar.gz":     "a file ending in .tar is no text and is not read: unpack it",
		"a.gguf":       "name the files with text by a glob",
		"a.parquet.gz": "unpack it: pages of Parquet files are packed already",
		"a.xml":        "",
		"a.go":         "",
		"noending":     "",
	} {
		content := "one"
		if strings.HasSuffix(name, ".gz") {
			content = gzipped(t, content)
		}
		write(t, dir, name, content)
		for _, s := range []Source{{Type: Text, Path: filepath.Join(dir, name)}, {Type: Text, Path: dir, Glob: name}} {
			_, err := prepare(t, s, Options{})
			switch {
			case want == "" && err != nil:
				t.Errorf("%s: %v", name, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("%s: error %v, want %q", name, err, want)
			}
		}
	}
}

// TestOneObject: a file that is one object of several lines, as with the rows in a key, says what is read.
func TestOneObject(t *testing.T) {
	path := write(t, t.TempDir(), "a.json", "{\n  \"version\": \"1\",\n  \"data\": [{\"text\": \"one\"}]\n}\n")
	_, err := prepare(t, Source{Type: Text, Path: path}, Options{})
	if err == nil || !strings.Contains(err.Error(), "a.json:1: unexpected end of JSON input: each line must") {
		t.Errorf("error %v", err)
	}
	path = write(t, t.TempDir(), "a.json", `{"version": "1", "data": [{"text": "one"}]}`)
	_, err = prepare(t, Source{Type: Text, Path: path}, Options{})
	if err == nil || !strings.Contains(err.Error(), `a.json:1: field "text" is missing: the row has data, version`) {
		t.Errorf("error %v", err)
	}
}
