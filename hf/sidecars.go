package hf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// sidecarNames are the files beside config.json and the weights that a model needs to be used.
var sidecarNames = []string{
	"generation_config.json",
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
	"vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
}

// Sidecars names the files of a model directory, config.json and weights apart, that are carried through unchanged when
// a trained model is written: the generation config and the tokenizer's files.
func Sidecars(dir string) ([]string, error) {
	var names []string
	for _, name := range sidecarNames {
		st, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !st.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is not a plain file", filepath.Join(dir, name))
		}
		names = append(names, name)
	}
	return names, nil
}

// CopySidecars copies the sidecar files of model directory src into the existing directory dst. Each appears whole.
func CopySidecars(src, dst string) error {
	names, err := Sidecars(src)
	if err != nil {
		return err
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return err
		}
		if err := writeFileWhole(filepath.Join(dst, name), data); err != nil {
			return err
		}
	}
	return syncDir(dst)
}

// writeFileWhole writes a temporary file beside path, syncs it and renames it into place.
func writeFileWhole(path string, data []byte) error {
	f, err := createBeside(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
