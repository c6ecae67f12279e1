package tokenizer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOtherForms: a directory without a tokenizer.json has a line that names the file in its place, and how to convert it.
func TestOtherForms(t *testing.T) {
	for name, want := range map[string]string{
		"tokenizer.model": "sentencepiece and protobuf", "tiktoken.model": "the package tiktoken", "qwen.tiktoken": "the package tiktoken",
		"vocab.json": "transformers: Auto", "tekken.json": "mistral-common",
	} {
		dir := filepath.Join(t.TempDir(), "a [model]")
		file := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(dir, 0o777), os.WriteFile(file, []byte("\x0a\x0e{"), 0o666)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, file, filepath.Join(dir, "tokenizer.json")} {
			_, err := Load(path)
			if err == nil || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir+" has "+name) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %s", path, err, want)
			}
		}
	}
	if _, err := Load(t.TempDir()); err == nil || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "there is no") {
		t.Errorf("an empty directory: %v", err)
	}
}
