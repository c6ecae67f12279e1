package hf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// sidecarNames are the files that a model needs in addition to config.json and the weights.
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
