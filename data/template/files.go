package template

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ReadFiles reads the templates next to a tokenizer_config.json: chat_template.jinja, which takes precedence over those
// of the configuration, and additional_chat_templates. read reads a small file.
func (c *Config) ReadFiles(dir string, read func(path string) ([]byte, error)) error {
	doc, err := read(filepath.Join(dir, "chat_template.jinja"))
	if c.Templates == nil {
		c.Templates = map[string]string{}
	}
	if err == nil {
		c.Templates = map[string]string{"default": string(doc)}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	more := filepath.Join(dir, "additional_chat_templates")
	entries, err := os.ReadDir(more)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".jinja")
		if !ok {
			continue
		}
		doc, err := read(filepath.Join(more, e.Name()))
		if err != nil {
			return err
		}
		c.Templates[name] = string(doc)
	}
	return nil
}
