package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
)

// source is a model directory and what was read from it.
type source struct {
	dir    string
	config *hf.Config
	model  *model.Model
}

// openModel reads the model that a path or a hub id names.
func openModel(ctx context.Context, env *Env, name string) (*source, error) {
	dir, err := resolveModel(ctx, env, name)
	if err != nil {
		return nil, Request(err)
	}
	c, err := hf.ReadConfig(dir)
	if err != nil {
		return nil, Request(err)
	}
	m, err := model.New(c)
	if err != nil {
		return nil, Request(err)
	}
	return &source{dir: dir, config: c, model: m}, nil
}

// resolveModel finds the directory of a path or a hub id; what the hub has and this machine has not is downloaded into the
// hub's cache, where HF_HOME and its relatives say.
func resolveModel(ctx context.Context, env *Env, name string) (string, error) {
	if name == "" {
		return "", errors.New("model is missing: name a Hugging Face directory, or a hub id")
	}
	if st, err := os.Stat(name); err == nil && !st.IsDir() {
		return "", fmt.Errorf("model %s: not a directory; name one with config.json and safetensors files", name)
	}
	bars := map[string]*bar{}
	dir, err := hf.ResolveModel(ctx, name, func(file string, done, total int64) {
		if bars[file] == nil {
			bars[file] = env.bar("downloading " + file)
		}
		bars[file].set(done, total)
		if done == total {
			bars[file].end()
		}
	})
	return dir, err
}

// openTokenizer opens what the key tokenizer names, and checks it against the vocabulary.
func (s *source) openTokenizer(name string) (tokenizer.Tokenizer, error) {
	var t tokenizer.Tokenizer
	switch name {
	case "bytes":
		t = tokenizer.Bytes()
	case "auto", "":
		name = s.dir
		if _, err := os.Stat(filepath.Join(s.dir, "tokenizer.json")); errors.Is(err, fs.ErrNotExist) {
			return nil, Request(fmt.Errorf("tokenizer: %s has no tokenizer.json; set tokenizer to a path, or to bytes", s.dir))
		}
		fallthrough
	default:
		bpe, err := tokenizer.Load(name)
		if err != nil {
			return nil, Request(err)
		}
		t = bpe
	}
	if n := t.VocabSize(); n > s.model.Vocab {
		return nil, Request(fmt.Errorf("tokenizer: it has %d tokens and the model's vocabulary %d: they do not belong together; set tokenizer to the model's own", n, s.model.Vocab))
	}
	return t, nil
}

// prepare reads and tokenizes data sets, with progress.
func (e *Env) prepare(ctx context.Context, what string, sources []data.Source, tok tokenizer.Tokenizer, trainOnPrompt bool) (*data.Dataset, error) {
	bar := e.bar("tokenizing " + what)
	o := data.Options{Tokenizer: tok, TrainOnPrompt: trainOnPrompt, Progress: func(p data.Progress) {
		bar.set(p.ReadBytes, p.TotalBytes)
	}}
	if e.CacheDir != "" {
		o.CacheDir = filepath.Join(e.CacheDir, "tokens")
	}
	d, err := data.Prepare(ctx, sources, o)
	bar.end()
	if err != nil {
		return nil, Request(err)
	}
	return d, nil
}
