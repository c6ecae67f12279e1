package data

import (
	"strings"
	"testing"
)

// TestAddresses: a path that is an address is answered by what to write instead, before anything is looked for.
func TestAddresses(t *testing.T) {
	for path, want := range map[string]string{
		"s3://b/x.jsonl":                                                    "addresses such as s3:// are not read: copy the files here",
		"https://example.com/x.jsonl":                                       "addresses such as https:// are not read",
		"gs://b/x/*.jsonl":                                                  "addresses such as gs:// are not read",
		"file:///data/x.jsonl":                                              "write the path, /data/x.jsonl",
		"hf://datasets/a/b/data/x.jsonl":                                    "write path: a/b, glob: data/x.jsonl",
		"hf://datasets/a/b@v1/x.jsonl":                                      "write path: a/b, revision: v1, glob: x.jsonl",
		"https://huggingface.co/datasets/a/b":                               "write path: a/b",
		"https://huggingface.co/datasets/a/b/viewer":                        "write path: a/b",
		"https://huggingface.co/datasets/a/b/resolve/main/x.jsonl?download": "write path: a/b, glob: x.jsonl",
		"https://huggingface.co/datasets/a/b/tree/v2/sub":                   "write path: a/b, revision: v2, glob: sub",
		"huggingface.co/datasets/a/b":                                       "write path: a/b",
	} {
		_, err := prepare(t, Source{Path: path, Type: Text}, Options{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
	if err := (Source{Path: `C://data/x.jsonl`, Type: Text}).checkAddress(); err != nil {
		t.Errorf("a drive: %v", err)
	}
}

// TestDirectoriesOfSaveToDisk: a directory that datasets has written is answered by how to write rows, and its own JSON
// files are not read as such.
func TestDirectoriesOfSaveToDisk(t *testing.T) {
	for _, files := range [][]string{
		{"state.json", "dataset_info.json", "data-00000-of-00001.arrow"},
		{"dataset_info.json", "b-train.arrow"},
		{"dataset_dict.json", "train/state.json", "train/data-00000-of-00001.arrow"},
	} {
		dir := t.TempDir()
		for _, name := range files {
			write(t, dir, name, `{"_data_files": []}`)
		}
		_, err := prepare(t, Source{Path: dir, Type: Messages}, Options{Renderer: chatOf(t, chatML)})
		if err == nil || !strings.Contains(err.Error(), "written by save_to_disk of datasets") {
			t.Errorf("%q: %v", files, err)
		}
	}
}
