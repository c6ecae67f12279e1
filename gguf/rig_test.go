package gguf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
)

func parseConfig(t *testing.T, doc string) *hf.Config {
	t.Helper()
	c, err := hf.ParseConfig("m/config.json", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wantOneLine fails unless err is one line that has all the words.
func wantOneLine(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; expected one with %q", words)
	}
	if strings.ContainsAny(err.Error(), "\n\r") {
		t.Errorf("more than one line: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

// leftovers are the entries of the directory that holds target, target apart.
func leftovers(t *testing.T, target string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(target))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(target) {
			names = append(names, e.Name())
		}
	}
	return names
}
