package template

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/below"
)

// Bounds of the files: templates with tools have some 10 kB, and a model a handful of them.
const (
	maxTemplateBytes = 1 << 20
	maxTemplates     = 100
)

// ReadFiles reads the templates next to a tokenizer_config.json: chat_template.jinja, which takes precedence over those
// of the configuration, and additional_chat_templates. Links out of the directory are refused.
func (c *Config) ReadFiles(dir string) error {
	doc, err := below.Read(dir, "chat_template.jinja", maxTemplateBytes)
	if c.Templates == nil {
		c.Templates = map[string]string{}
	}
	if err == nil {
		c.Templates = map[string]string{"default": string(doc)}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	const more = "additional_chat_templates"
	files, err := below.Names(dir, more)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, file := range files {
		name, ok := strings.CutSuffix(file, ".jinja")
		if !ok {
			continue
		}
		if len(c.Templates) > maxTemplates {
			return fmt.Errorf("%s has more than %d templates: remove some", filepath.Join(dir, more), maxTemplates)
		}
		doc, err := below.Read(dir, filepath.Join(more, file), maxTemplateBytes)
		if err != nil {
			return err
		}
		c.Templates[name] = string(doc)
	}
	return nil
}
