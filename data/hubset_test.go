package data

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/hf/hub/hubtest"
)

// rowOf is a JSONL file of one row.
func rowOf(text string) string { return fmt.Sprintf("{\"text\": %q}\n", text) }

// tableOf is a Parquet file of one row.
func tableOf(t testing.TB, text string) string { return string(parquetFile(t, text)) }

func gzipped(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// startDataset is a hub with one data set, a/b.
func startDataset(t *testing.T, files map[string]string) (*hubtest.Server, Options) {
	s, _ := hubtest.Start(t)
	s.Repos["datasets/a/b"] = &hubtest.Repo{Files: files}
	t.Chdir(t.TempDir()) // so that no path here is a/b
	return s, Options{Hub: hub.FromEnv()}
}

// texts are the documents of type text.
func texts(d *Dataset) []string {
	var all []string
	for _, text := range show(d) {
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(text, "|"), "<|endoftext|>"))
	}
	return all
}

const twoSubsets = `---
license: mit
tags: [unfinished
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test.jsonl
- config_name: socratic
  data_dir: soc
  data_files:
    train: ["t1.jsonl", "*.jsonl"]
language:
- en
---
# A data set
`

func TestHubDatasets(t *testing.T) {
	parquet := string(parquetFile(t, "last_chat"))
	for name, c := range map[string]struct {
		files map[string]string
		entry Source
		want  []string
	}{
		"a file":        {map[string]string{"train.jsonl": rowOf("one"), "README.md": "none", "notes.txt": "x"}, Source{}, []string{"one"}},
		"only test":     {map[string]string{"test.jsonl": rowOf("one")}, Source{}, []string{"one"}},
		"shards":        {map[string]string{"data/train-00000-of-00002.jsonl": rowOf("one"), "data/train-00001-of-00002.jsonl": rowOf("two"), "data/extra-00000-of-00001.jsonl": rowOf("x")}, Source{}, []string{"one", "two"}},
		"another split": {map[string]string{"data/train-00000-of-00001.jsonl": rowOf("one"), "data/extra-00000-of-00001.jsonl": rowOf("x")}, Source{Split: "extra"}, []string{"x"}},
		"directories":   {map[string]string{"dev/1.jsonl": rowOf("v"), "training/1.jsonl.gz": gzipped(t, rowOf("one")), "training/.hidden.jsonl": rowOf("h")}, Source{}, []string{"one"}},
		"no splits":     {map[string]string{"x.jsonl": rowOf("one"), "y.jsonl": rowOf("two"), "config.json": "{}", "z.txt": "z"}, Source{}, []string{"one", "two"}},
		"card":          {map[string]string{"README.md": twoSubsets, "main/train-0.jsonl": rowOf("one"), "main/train-1.jsonl": rowOf("two"), "main/test.jsonl": rowOf("t")}, Source{Name: "main"}, []string{"one", "two"}},
		"card's split":  {map[string]string{"README.md": twoSubsets, "main/train-0.jsonl": rowOf("one"), "main/test.jsonl": rowOf("t")}, Source{Name: "main", Split: "test"}, []string{"t"}},
		"card's order":  {map[string]string{"README.md": twoSubsets, "soc/a.jsonl": rowOf("a"), "soc/t1.jsonl": rowOf("t1")}, Source{Name: "socratic"}, []string{"t1", "a"}},
		"glob":          {map[string]string{"README.md": twoSubsets, "x/y/z.jsonl": rowOf("z"), "x.jsonl": rowOf("x")}, Source{Glob: "x/**/*.jsonl"}, []string{"z"}},
		"Parquet":       {map[string]string{"data/train-00000-of-00001.parquet": parquet}, Source{Type: Messages}, []string{"<user>c</s>\n<assistant>|d</s>\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, o := startDataset(t, c.files)
			o.Renderer = chatOf(t, chatML)
			s := c.entry
			s.Path = "a/b"
			if s.Type == "" {
				s.Type, o.Renderer = Text, nil
			}
			d, err := prepare(t, s, o)
			if err != nil {
				t.Fatal(err)
			}
			got := texts(d)
			if s.Type == Messages {
				got = []string{strings.ReplaceAll(marked(d)[0], "[", "|")}
				got[0] = strings.ReplaceAll(got[0], "]", "")
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The hub's converted files replace files in formats that are not read here, and scripts.
func TestConvertedDatasets(t *testing.T) {
	text := func(s string) string { return tableOf(t, s) }
	for name, c := range map[string]struct {
		files, converted map[string]string
		entry            Source
		want             string // a document, or a part of the error
	}{
		"CSV":      {map[string]string{"train.csv": "a,b"}, map[string]string{"default/train/0000.parquet": text("one"), "default/test/0000.parquet": text("t")}, Source{}, "one"},
		"script":   {map[string]string{"b.py": "import os"}, map[string]string{"plain/train/0000.parquet": text("one")}, Source{}, "one"},
		"split":    {map[string]string{"b.py": "import os"}, map[string]string{"plain/train/0000.parquet": text("one"), "plain/test/0000.parquet": text("t")}, Source{Name: "plain", Split: "test"}, "t"},
		"no split": {map[string]string{"b.py": ""}, map[string]string{"plain/train/0000.parquet": text("one")}, Source{Split: "dev"}, `subset plain has no split "dev"; it has train`},
		"subsets":  {map[string]string{"b.py": ""}, map[string]string{"de/train/0000.parquet": "", "en/train/0000.parquet": ""}, Source{}, "it has the subsets de, en: choose one with name"},
		"partly":   {map[string]string{"train.csv": ""}, map[string]string{"default/partial-train/0000.parquet": ""}, Source{Split: "train"}, "split: partial-train"},
		"only CSV": {map[string]string{"train.csv": "text\none\n"}, nil, Source{}, "one"},
		"not at all": {map[string]string{"train.arrow": ""}, nil, Source{},
			"its files are .arrow, which is not read here, and the hub has not converted it to Parquet"},
		"nothing":           {map[string]string{"b.py": ""}, nil, Source{}, "it has no .parquet, .json, .jsonl or .txt files"},
		"by glob":           {map[string]string{"train.tar": ""}, nil, Source{Glob: "*.tar"}, "train.tar: a file ending in .tar is no text and is not read"},
		"revision":          {map[string]string{"train.arrow": ""}, map[string]string{"default/train/0000.parquet": text("one")}, Source{Revision: hubtest.Commit}, "its files are .arrow"},
		"CSV of a revision": {map[string]string{"train.csv": "text\none\n"}, map[string]string{"default/train/0000.parquet": text("t")}, Source{Revision: hubtest.Commit}, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			server, o := startDataset(t, c.files)
			if c.converted != nil {
				server.Repos["datasets/a/b"].Revisions = map[string]map[string]string{converted: c.converted}
			}
			s := c.entry
			s.Path, s.Type = "a/b", Text
			d, err := prepare(t, s, o)
			if err == nil {
				if got := texts(d); len(got) != 1 || got[0] != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			} else if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "dataset a/b: ") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestHubErrors(t *testing.T) {
	server, o := startDataset(t, map[string]string{"README.md": twoSubsets, "main/train-0.jsonl": rowOf("one"), "main/test.jsonl": ""})
	server.Repos["datasets/c/d"] = &hubtest.Repo{Files: map[string]string{"data/train-00000-of-00002.jsonl": rowOf("one")}}
	write(t, ".", "here.jsonl", rowOf("one"))
	for name, c := range map[string]struct {
		entry Source
		want  string
	}{
		"id":           {Source{Path: "c/b"}, "no such data set: check the name; if it is private, set HF_TOKEN; there is a/b"},
		"subset":       {Source{Path: "a/b"}, "it has the subsets main, socratic: choose one with name"},
		"wrong subset": {Source{Path: "a/b", Name: "x"}, `it has no subset "x"; it has main, socratic`},
		"wrong split":  {Source{Path: "a/b", Name: "main", Split: "dev"}, `subset main has no split "dev"; it has train, test`},
		"no rows":      {Source{Path: "a/b", Name: "socratic"}, "it has no .parquet, .json, .jsonl or .txt files"}, // of the card's
		"shards":       {Source{Path: "c/d"}, "there are 1 of 2 files train-"},
		"revision":     {Source{Path: "a/b", Revision: "v2"}, `no revision "v2"`},
		"bad revision": {Source{Path: "a/b", Revision: "../x"}, `revision is "../x"`},
		"two":          {Source{Path: "a/b@v1", Revision: "v2"}, "both name a revision"},
		"glob":         {Source{Path: "a/b", Glob: "*.parquet"}, `no file matches glob "*.parquet"; it has README.md, main/t`},
		"slice":        {Source{Path: "a/b", Split: "train[:10%]"}, "max_samples"},
		"sum":          {Source{Path: "a/b", Split: "train+test"}, "make an entry of each"},
		"both":         {Source{Path: "a/b", Split: "train", Glob: "x"}, "remove one"},
		"both too":     {Source{Path: "a/b", Name: "main", Glob: "x"}, "remove one"},
		"a local file": {Source{Path: "here.jsonl", Split: "train"}, "for data sets of the hub"},
		"local name":   {Source{Path: "here.jsonl", Name: "x"}, "takes type"},
		"missing":      {Source{Path: "data/train.jsonl"}, "no such file"},
		"missing too":  {Source{Path: "train", Split: "x"}, "no such path, and it is not a hub id"},
		"no type":      {Source{Path: "a/b", Name: "main", Type: "-"}, "there is no such path; if it is a data set of the hub, type is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.entry
			if s.Type != "" {
				s.Type = ""
			} else {
				s.Type = Text
			}
			_, err := prepare(t, s, o)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// A path wins over an id; a data set is read without the server once it is in the cache; the tokens are cached by
// content.
func TestHubOffline(t *testing.T) {
	server, o := startDataset(t, map[string]string{"README.md": "none", "train.jsonl": rowOf("one"), "test.jsonl": rowOf("t")})
	o.CacheDir = t.TempDir()
	var notes []string
	o.Note = func(line string) { notes = append(notes, line) }
	s := Source{Path: "a/b", Type: Text}
	online, err := prepare(t, s, o)
	if err != nil {
		t.Fatal(err)
	}
	if want := "dataset a/b: train.jsonl at commit " + hubtest.Commit; len(notes) != 1 || notes[0] != want {
		t.Errorf("notes %q, want %q", notes, want)
	}
	if got, want := online.Sources(), (Source{Path: "a/b", Type: Text, Revision: hubtest.Commit}); len(got) != 1 || !cmp.Equal(got[0], want) {
		t.Errorf("the entries are %+v", got)
	}
	n := len(server.Requests)
	t.Setenv("HF_HUB_OFFLINE", "1")
	o.Hub = hub.FromEnv()
	d, err := prepare(t, s, o)
	if err != nil || d.Fingerprint() != online.Fingerprint() {
		t.Errorf("offline: %v", err)
	}
	if len(server.Requests) != n {
		t.Errorf("offline, the server was asked for %q", server.Requests[n:])
	}
	s.Split = "test"
	if _, err := prepare(t, s, o); err == nil || !strings.Contains(err.Error(), "1 of 1 files, such as test.jsonl, are not in ") {
		t.Errorf("%v", err)
	}

	write(t, ".", "a/b/x.jsonl", rowOf("local"))
	d, err = prepare(t, Source{Path: "a/b", Type: Text}, o)
	if err != nil || texts(d)[0] != "local" {
		t.Errorf("%v", err)
	}
}

// Offline, a cache that another program has filled is read if it is known to have all of a split, by the listing that
// huggingface_hub stores since version 2 or by the names of its files; otherwise the line says what there is or what
// is missing.
func TestPartialCacheOffline(t *testing.T) {
	const tree = `{"format_version": 1, "files": {"README.md": {"size": 4, "blob_id": "cec6ad6ede50a03d6adbd5d26bb5be6a4c285c36"},
		"train-1.jsonl": {"size": 16, "blob_id": "cec6ad6ede50a03d6adbd5d26bb5be6a4c285c36"},
		"train-2.jsonl": {"size": 7, "blob_id": "cec6ad6ede50a03d6adbd5d26bb5be6a4c285c36", "lfs_sha256": "cd6357efdd966de8c0cb2f876cc89ec74ce35f0968e11743987084bd42fb8944", "lfs_size": 16}}}`
	for name, c := range map[string]struct {
		files []string
		tree  string
		glob  string
		want  string // of the error
	}{
		"some, and the rest unknown": {[]string{"README.md", "train-1.jsonl"}, "", "",
			"of its files the cache has README.md, train-1.jsonl, and whether these are all is not known offline"},
		"some, by the tree": {[]string{"README.md", "train-1.jsonl"}, tree, "",
			"1 of 2 files, such as train-2.jsonl, are not in "},
		"all, by the tree": {[]string{"README.md", "train-1.jsonl", "train-2.jsonl"}, tree, "", ""},
		"a tree of another format": {[]string{"README.md", "train-1.jsonl"}, strings.Replace(tree, ": 1,", ": 2,", 1), "",
			"whether these are all is not known"},
		"named by glob": {[]string{"train-1.jsonl"}, "", "train-1.jsonl", ""},
		"numbered, all": {[]string{"README.md", "data/train-00000-of-00002.jsonl",
			"data/train-00001-of-00002.jsonl"}, "", "", ""},
		"numbered, some": {[]string{"README.md", "data/train-00001-of-00002.jsonl"}, "", "",
			"there are 1 of 2 files train-..."},
		"numbered, and no card": {[]string{"data/train-00000-of-00001.jsonl"}, "", "",
			"whether these are all is not known"},
		"one next to numbered files": {[]string{"README.md", "train/a-00000-of-00001.jsonl", "train/b.jsonl"}, "", "",
			"whether these are all is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			server, o := startDataset(t, nil)
			t.Setenv("HF_HUB_OFFLINE", "1")
			o.Hub = hub.FromEnv()
			root := filepath.Join(o.Hub.Cache, "datasets--a--b")
			write(t, root, "refs/main", hubtest.Commit)
			for _, file := range c.files {
				content := rowOf("one")
				if file == "README.md" {
					content = "none"
				}
				write(t, root, "snapshots/"+hubtest.Commit+"/"+file, content)
			}
			if c.tree != "" {
				write(t, root, "trees/"+hubtest.Commit+".json", c.tree)
			}
			_, err := prepare(t, Source{Path: "a/b", Type: Text, Glob: c.glob}, o)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("error %v, want %q", err, c.want)
			}
			if len(server.Requests) > 0 {
				t.Errorf("the server was asked for %q", server.Requests)
			}
		})
	}
}

// An entry of LLaMA-Factory's registry may be on the hub.
func TestRegistryOnHub(t *testing.T) {
	_, o := startDataset(t, map[string]string{"de/train.json": `[{"q": "p", "output": "r"}]`, "en/train.json": "x", "en/train.csv": "x"})
	write(t, ".", "dataset_info.json", `{"x": {"hf_hub_url": "a/b", "folder": "de", "split": "train", "columns": {"prompt": "q", "response": "output"}},
		"y": {"hf_hub_url": "a/b", "subset": "fr"}}`)
	o.Renderer = Plain
	d, err := prepare(t, Source{Path: ".", Name: "x"}, o)
	if err != nil || d.Len() != 1 || !strings.HasSuffix(show(d)[0], "Response:\n|r<|endoftext|>") {
		t.Errorf("%v, %v", d, err)
	}
	_, err = prepare(t, Source{Path: ".", Name: "y"}, o)
	if err == nil || !strings.Contains(err.Error(), `no subset "fr"; it has default`) {
		t.Errorf("%v", err)
	}
}

func TestReadCard(t *testing.T) {
	for name, c := range map[string]struct{ head, want string }{
		"none":        {"license: mit", "[]"},
		"one file":    {"configs:\n  - config_name: x\n    data_files: a.jsonl", "[{x false  [{train [a.jsonl]}]}]"},
		"files":       {"configs:\n- config_name: x\n  default: true\n  data_files:\n    - a\n    - \"b/*.json\"\nother: 1", "[{x true  [{train [a b/*.json]}]}]"},
		"no files":    {"configs:\n- config_name: x\n  data_dir: ./d/\n  sep: '\\t'", "[{x false d []}]"},
		"no name":     {"configs:\n- data_files: x", "no config_name"},
		"no path":     {"configs:\n- config_name: x\n  data_files: [{split: train}]", "no split and path"},
		"odd":         {"configs:\n- config_name: x\n  data_files: 3", "neither a pattern nor a list"},
		"not YAML":    {"configs: [", "configs"},
		"not a list":  {"configs: 3", "configs"},
		"bomb":        {"configs:\n- &a [x,x]\n- [*a,*a]", "anchors"},
		"deep":        {"configs: " + strings.Repeat("[", 5000), "nested too deep"},
		"deep dashes": {"configs:\n" + strings.Repeat("- ", 5000) + "x", "nested too deep"},
		"flow":        {"configs: [" + strings.Repeat("[],", 1<<18) + "]", "more than 20000 times '['"},
		"tags":        {"configs: " + strings.Repeat("!a ", 1<<18), "more than 20000 times '!'"},
		"keys":        {"configs:\n" + strings.Repeat(" a:\n", 1<<17), "more than 20000 times ':'"},
		"large":       {"configs:\n" + strings.Repeat("# x\n", maxCardBytes/4+1), "more than"},
	} {
		card, err := readCard([]byte("---\r\n" + c.head + "\n---\ntext\n"))
		got := fmt.Sprint(card)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if card, err := readCard([]byte("# no head\nconfigs:\n- config_name: x\n---\n")); card != nil || err != nil {
		t.Errorf("%v, %v", card, err)
	}
}

func FuzzReadCard(f *testing.F) {
	f.Add([]byte(twoSubsets))
	f.Add([]byte("---\nconfigs: !0 0")) // on which the YAML library panics
	f.Add([]byte("---\nconfigs:\n- config_name: x\n  data_files: [{split: a, path: [b, c]}]\n---\n"))
	names := []string{"a.jsonl", "data/train-00000-of-00001.parquet", "x/y/test.json"}
	f.Fuzz(func(t *testing.T, readme []byte) {
		card, err := readCard(readme)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
			return
		}
		subsets, err := subsetsOf(names, card)
		if err != nil {
			return
		}
		for _, name := range allFiles(subsets) {
			if !slices.Contains(names, name) {
				t.Errorf("%q is chosen, which there is not", name)
			}
		}
	})
}

// Splits by name are those of the library datasets, see testdata/splits.py.
func TestSplitsAreThoseOfDatasets(t *testing.T) {
	type found struct {
		Name   string   `json:"name"`
		Files  []string `json:"files"`
		Module string   `json:"module"`
	}
	var cases []struct {
		Files  []string `json:"files"`
		Splits []found  `json:"splits"`
	}
	doc, err := os.ReadFile("testdata/splits.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(doc, &cases); err != nil || len(cases) < 100 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	modules := map[string]string{".jsonl": "json", ".json": "json", ".txt": "text", ".csv": "csv", ".parquet": "parquet", "": ""}
	for _, c := range cases {
		slices.Sort(c.Files)
		got := []found{}
		for _, s := range splitsByName(c.Files) {
			if len(s.files) > 0 {
				_, ending := rowFiles(s.files)
				got = append(got, found{s.name, s.files, modules[ending]})
			}
		}
		if diff := cmp.Diff(c.Splits, got); diff != "" {
			t.Errorf("%q: %s", c.Files, diff)
		}
	}
}

func TestSplitsByName(t *testing.T) {
	for names, want := range map[string]string{
		"train.jsonl dev.jsonl eval.jsonl":                              "train:train.jsonl validation:dev.jsonl test:eval.jsonl",
		"data/train-00000-of-00001.parquet train.jsonl":                 "train:data/train-00000-of-00001.parquet",
		"my-train-data.jsonl constraint.jsonl":                          "train:my-train-data.jsonl",
		"training2/a.jsonl valid_1/a.jsonl test.jsonl":                  "train:training2/a.jsonl validation:valid_1/a.jsonl",
		"trainer/a.jsonl testament.txt":                                 "train:testament.txt,trainer/a.jsonl",
		"en/train/a.json en/test/a.json":                                "train:en/train/a.json test:en/test/a.json",
		"__pycache__/train.json .git/train.json x.json README.md":       "train:x.json",
		"data/b.c-00000-of-00001.json data/validation-00000-of-00001.x": "validation:data/validation-00000-of-00001.x b.c:data/b.c-00000-of-00001.json",
	} {
		list := strings.Fields(names)
		slices.Sort(list)
		var got []string
		for _, s := range splitsByName(list) {
			got = append(got, s.name+":"+strings.Join(s.files, ","))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", names, got, want)
		}
	}
}

func TestRowFiles(t *testing.T) {
	for names, want := range map[string]string{
		"a.jsonl b.jsonl c.csv":            ".jsonl a.jsonl b.jsonl",
		"a.parquet a.csv":                  ".parquet a.parquet",
		"a.csv b.csv a.parquet":            ".csv a.csv b.csv",
		"a.jsonl.gz b.jsonl c.json README": ".jsonl a.jsonl.gz b.jsonl",
		"a.py b.md":                        "",
	} {
		files, ending := rowFiles(strings.Fields(names))
		if got := strings.TrimSpace(ending + " " + strings.Join(files, " ")); got != want {
			t.Errorf("%s: %q, want %q", names, got, want)
		}
	}
}
