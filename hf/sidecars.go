package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/terminal"
)

// sidecarNames are the files that a model needs in addition to config.json and the weights.
var sidecarNames = []string{
	"generation_config.json",
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
	"vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
}

// IsModelFile reports whether a file of a model directory, by its name with slashes, belongs to the model: its
// configuration, weights, tokenizer, templates, card and license. Other files may be anything of the user's.
func IsModelFile(name string) bool {
	if strings.Contains(name, "/") {
		return name == templatesDir+"/" || isTemplateFile(name)
	}
	switch name {
	case configName, CardName, "preprocessor_config.json", "processor_config.json":
		return true
	}
	stem := strings.TrimSuffix(strings.TrimSuffix(name, ".txt"), ".md")
	return IsSidecar(name) || strings.HasSuffix(name, ".safetensors") ||
		strings.HasSuffix(name, ".safetensors.index.json") || strings.HasSuffix(name, ".gguf") ||
		stem == "LICENSE" || stem == "NOTICE"
}

// maxSidecarBytes is the limit that the tokenizer has for its files, which are the largest ones.
const maxSidecarBytes = 1 << 28

// templatesDir has chat templates by name, besides the one of chat_template.jinja.
const templatesDir = "additional_chat_templates"

// TemplateFile returns the path, with slashes, of the chat template of a name in a model directory. A name that no file
// has is an error.
func TemplateFile(name string) (string, error) {
	if name == "default" {
		return "chat_template.jinja", nil
	}
	file := templatesDir + "/" + name + ".jinja"
	if !isTemplateFile(file) || !filepath.IsLocal(file) || strings.ContainsAny(name, "\\:\x00") {
		return "", fmt.Errorf("the chat template %s cannot be a file of that name: give it another", terminal.Quote(name))
	}
	return file, nil
}

// isTemplateFile reports whether a file, by its name with slashes, is one of templatesDir.
func isTemplateFile(name string) bool {
	dir, file, deep := strings.Cut(name, "/")
	return deep && dir == templatesDir && path.Ext(file) == ".jinja" && !strings.Contains(file, "/")
}

// IsSidecar reports whether a file of a model directory, by its name with slashes, is one of those that Sidecars may
// name.
func IsSidecar(name string) bool { return slices.Contains(sidecarNames, name) || isTemplateFile(name) }

// maxTemplates bounds the files of templatesDir; models have a handful.
const maxTemplates = 100

// Sidecars names the files of a model directory, config.json and weights apart, that are carried through when a model
// is written: the generation config, the tokenizer's files and chat templates, with slashes in their names. It refuses one that is a link out of the
// directory, one that is too long, and one whose name ends in .json and that is no JSON object.
func Sidecars(dir string) ([]string, error) {
	templates, err := below.Names(dir, templatesDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, file := range templates {
		if name := templatesDir + "/" + file; isTemplateFile(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > maxTemplates {
		return nil, fmt.Errorf("%s has more than %d templates: remove some", filepath.Join(dir, templatesDir), maxTemplates)
	}
	for _, name := range append(slices.Clone(sidecarNames), names...) {
		f, err := openSidecar(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		f.Close()
		names = append(names, name)
	}
	return names, nil
}

// openSidecar opens and checks one of the files.
func openSidecar(dir, name string) (*os.File, error) {
	f, err := below.Open(dir, name)
	if err != nil {
		return nil, err
	}
	if err := checkSidecar(f, name); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w; put the right file there, or remove it", filepath.Join(dir, name), err)
	}
	return f, nil
}

func checkSidecar(f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > maxSidecarBytes {
		return fmt.Errorf("it has %d bytes, more than the limit of %d", info.Size(), maxSidecarBytes)
	}
	if filepath.Ext(name) != ".json" {
		return nil
	}
	if err := checkJSONObject(io.LimitReader(f, maxSidecarBytes)); err != nil {
		return err
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// checkJSONObject reads a JSON object and nothing else, a token at a time: some tokenizers have 30 MB, and memory is
// planned.
func checkJSONObject(r io.Reader) error {
	d := json.NewDecoder(r)
	for depth := 0; ; {
		t, err := d.Token()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		switch {
		case depth == 1 && t == json.Delim('['), depth == 0 && t != json.Delim('}'):
			return errors.New("it is not a JSON object")
		case depth > maxJSONDepth:
			return fmt.Errorf("it is nested more than %d levels deep", maxJSONDepth)
		}
		if depth == 0 {
			break
		}
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more in it than one JSON object")
	}
	return nil
}
