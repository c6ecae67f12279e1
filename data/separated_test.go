package data

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tableRows reads a file with a reader of rows: what is in each, and what is wrong with one.
func tableRows(t testing.TB, s Source, l limits, name, content string) (rows []string, err error) {
	t.Helper()
	err = newRowReader(s, l, 0).readRows(name, strings.NewReader(content), func(r row) bool {
		if r.err != nil {
			rows = append(rows, "error: "+r.err.Error())
		} else {
			rows = append(rows, strings.TrimSuffix(string(r.data), "\n"))
		}
		return true
	})
	return rows, err
}

// TestSeparated reads tables in text as examples of each type.
func TestSeparated(t *testing.T) {
	pairs := Source{Type: PromptResponse, Prompt: "question", Response: "answer"}
	for name, c := range map[string]struct {
		file, content string
		source        Source
		want          []string
	}{
		"CSV": {"a.csv", "question,answer\nWhy?,Because.\nHow?,So.\n", pairs,
			[]string{`{"answer":"Because.","question":"Why?"}`, `{"answer":"So.","question":"How?"}`}},
		"TSV": {"a.TSV", "answer\tid\tquestion\nYes, it is.\t7\tIs it?\n", pairs,
			[]string{`{"answer":"Yes, it is.","question":"Is it?"}`}},
		"quotes, line breaks, a byte order mark, lines of Windows": {"a.csv",
			"\uFEFFquestion,answer\r\n\"a, \"\"b\"\"\",\"one\r\ntwo\n\nthree\"\r\n\r\nlast,end", pairs,
			[]string{`{"answer":"one\ntwo\n\nthree","question":"a, \"b\""}`, `{"answer":"end","question":"last"}`}},
		"alpaca": {"a.csv", "instruction,input,output,history,system\nDo,it,done,,\nGo,,gone,,Be short.\n", Source{Type: Alpaca},
			[]string{`{"input":"it","instruction":"Do","output":"done"}`, `{"instruction":"Go","output":"gone","system":"Be short."}`}},
		"text": {"a.csv", "n,text\n1,\"<a> & \x01 \u2028\"\n", Source{Type: Text}, []string{`{"text":"<a> & \u0001 \u2028"}`}},
		"bad rows": {"a.csv", "question,answer\na,b,c\na \"b\" c,d\n\"x\ny\" z,d\ne,\xff\nf,g\n", pairs, []string{
			"error: a.csv:2: the row has 3 cells, and the first row 2: put a text with a separator or a line break in quotes",
			`error: a.csv:3: a quotation mark is not where one may be: put a text that has some in quotes, and write "" for each`,
			`error: a.csv:4: a quotation mark is not where one may be: put a text that has some in quotes, and write "" for each`,
			`error: a.csv:6: byte 0xff of column "answer" is not UTF-8: convert the file`, `{"answer":"g","question":"f"}`}},
		"an open quote": {"a.csv", "question,answer\na,b\n\"c,d\ne,f\n", pairs, []string{`{"answer":"b","question":"a"}`,
			`error: a.csv:3: a quotation mark is not where one may be: put a text that has some in quotes, and write "" for each`}},
		"only a header": {"a.csv", "question,answer\n", pairs, nil},
		"nothing":       {"a.csv", "", pairs, nil},
		"picture":       {"a.csv", "question,answer,image\na,b,x.png\n", pairs, []string{`{"answer":"b","image":"x.png","question":"a"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			rows, err := tableRows(t, c.source.withDefaults(), limits{}, c.file, c.content)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, rows); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSeparatedRefuses: what is wrong with a whole file is one line with the file and the line.
func TestSeparatedRefuses(t *testing.T) {
	pairs := Source{Type: PromptResponse, Prompt: "question", Response: "answer"}
	for name, c := range map[string]struct {
		file, content string
		source        Source
		want          string
	}{
		"missing column": {"a.csv", "prompt;answer\n1;2\n", pairs, `a.csv:1: there is no column "question": the first row has prompt;answer`},
		"two alike":      {"a.tsv", "question\tanswer\tquestion\n", pairs, `a.tsv:1: two columns are called "question"`},
		"UTF-16":         {"a.csv", "\xff\xfeq\x00", pairs, "a.csv:1: byte 0xff is not UTF-8: convert the file"},
		"open header":    {"a.csv", "\"question,answer\n", pairs, "a.csv:1: a quotation mark"},
		"an endless row": {"a.csv", "question,answer\na,\"" + strings.Repeat("b,\n", 1<<19), pairs,
			"a.csv:2: the row is larger than 1 MiB, the most that the memory lets become tokens at a time"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tableRows(t, c.source.withDefaults(), limits{memoryBytes: 1}, c.file, c.content)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestSeparatedIsAsJSONLines: a table gives the examples and the order of JSON lines, packed or not, and bad rows are
// skipped where the entry says so.
func TestSeparatedIsAsJSONLines(t *testing.T) {
	dir := t.TempDir()
	table := "prompt,response\n\"Say \"\"a\"\"\",a\nSay b,b\n,empty prompt\nSay c,c\n"
	lines := `{"prompt": "Say \"a\"", "response": "a"}` + "\n" + `{"prompt": "Say b", "response": "b"}` + "\n" +
		`{"prompt": "", "response": "empty prompt"}` + "\n" + `{"prompt": "Say c", "response": "c"}` + "\n"
	want, err := prepare(t, Source{Type: PromptResponse, Path: write(t, dir, "a.jsonl", lines), BadRows: SkipBadRows}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"a.csv": table, "b.csv.gz": gzipped(t, table),
		"c.tsv": strings.NewReplacer(",", "\t").Replace(table)} {
		got, err := prepare(t, Source{Type: PromptResponse, Path: write(t, dir, name, content), BadRows: SkipBadRows}, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(texts(want), texts(got)); diff != "" || len(texts(got)) != 3 {
			t.Errorf("%s: %s", name, diff)
		}
		_, err = prepare(t, Source{Type: PromptResponse, Path: write(t, dir, name, content)}, Options{})
		if err == nil || !strings.Contains(err.Error(), name+`:4: field "prompt" is empty`) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func FuzzSeparated(f *testing.F) {
	for _, seed := range []string{"text\na\n", "text,b\n\"a\n\"\"b\",c\n", "\uFEFFtext\r\n\"\r\n\"\r\n", "text\n\"a", "a,text\n1\n,,\n"} {
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, content string, isCSV bool) {
		name := map[bool]string{true: "a.csv", false: "a.tsv"}[isCSV]
		s := newRowReader(Source{Type: Text}.withDefaults(), limits{memoryBytes: 1}, 0)
		last := 0
		err := s.readRows(name, io.LimitReader(strings.NewReader(content), 1<<20), func(r row) bool {
			if r.line <= last {
				t.Fatalf("a row of line %d follows one of line %d", r.line, last)
			}
			last = r.line
			if r.err == nil {
				if _, err := s.record(r); err != nil && strings.Contains(err.Error(), "invalid character") {
					t.Fatalf("%q: %v", r.data, err)
				}
			}
			return true
		})
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("an error of several lines: %q", err)
		}
	})
}
