package tokenizer

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// otherForms are files in which models are published that have no tokenizer.json, and what transformers needs to read them.
var otherForms = []struct{ pattern, packages string }{
	{"tokenizer.model", " with the packages sentencepiece and protobuf"},
	{"sentencepiece.bpe.model", " with the packages sentencepiece and protobuf"},
	{"spiece.model", " with the packages sentencepiece and protobuf"},
	{"tiktoken.model", " with the package tiktoken"},
	{"*.tiktoken", " with the package tiktoken"},
	{"tekken.json", " with the package mistral-common"},
	{"vocab.json", ""},
	{"vocab.txt", ""},
}

// missing is an fs.ErrNotExist that says how to make a tokenizer.json.
type missing struct{ error }

func (missing) Is(target error) bool { return target == fs.ErrNotExist }

// errMissing says that there is no tokenizer.json at a path, and how to make one of the file that is there in its place.
func errMissing(path string) error {
	files, _ := os.ReadDir(filepath.Dir(path)) // without any, nothing is in its place
	for _, form := range otherForms {
		for _, f := range files {
			if match, _ := filepath.Match(form.pattern, f.Name()); match {
				return errOtherForm(filepath.Join(filepath.Dir(path), f.Name()), form.packages)
			}
		}
	}
	return missing{fmt.Errorf("tokenizer: there is no %s: name a tokenizer.json or a directory that has one", path)}
}

// errNamed says how to make a tokenizer.json of a file of another form that is named as the tokenizer. It is nil for other files.
func errNamed(path string) error {
	for _, form := range otherForms {
		if match, _ := filepath.Match(form.pattern, filepath.Base(path)); match {
			return errOtherForm(path, form.packages)
		}
	}
	return nil
}

func errOtherForm(path, packages string) error {
	dir := filepath.Dir(path)
	return missing{fmt.Errorf("tokenizer: %s has %s, and a tokenizer.json is needed: take that of another copy of the model, or write one by "+
		"transformers%s: AutoTokenizer.from_pretrained(%q).save_pretrained(%q)", dir, filepath.Base(path), packages, dir, dir)}
}
