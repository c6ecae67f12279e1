package template

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestReadFilesOfNoConfig: templates next to no tokenizer_config.json are found, with a default one or without.
func TestReadFilesOfNoConfig(t *testing.T) {
	dir := t.TempDir()
	more := filepath.Join(dir, "additional_chat_templates")
	if err := errors.Join(os.Mkdir(more, 0o777), os.WriteFile(filepath.Join(more, "tools.jinja"), []byte("t"),
		0o600)); err != nil {
		t.Fatal(err)
	}
	var c Config
	if err := c.ReadFiles(dir); err != nil || len(c.Templates) != 1 || c.Templates["tools"] != "t" {
		t.Errorf("%v, %v", c.Templates, err)
	}
}
