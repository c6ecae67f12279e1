package demo

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/vfs"
)

//go:embed run.yaml
var runYAML string

var runFile = template.Must(template.New("run.yaml").Parse(runYAML))

// endOfText is the token that ends a text.
const endOfText = "<|end|>"

// marker is a file that marks a directory as one of a demo, and lists what the demo wrote there: the next demo may
// remove that. A demo holds its lock.
const marker = ".millrace-demo"

// Shape is the size of the model and of its steps, with its budgets.
type Shape struct {
	Vocabulary, Hidden, Intermediate, Layers, Heads, KeyValueHeads, HeadDim int
	SequenceLen, BatchTokens                                                int
	// budgets of memory, as a run file has them
	Device, Host string
}

// config returns a config.json as transformers reads it.
func (s Shape) config() map[string]any {
	return map[string]any{
		"architectures": []string{"Qwen3ForCausalLM"}, "model_type": "qwen3", "vocab_size": s.Vocabulary,
		"hidden_size":       s.Hidden,
		"intermediate_size": s.Intermediate, "num_hidden_layers": s.Layers, "num_attention_heads": s.Heads,
		"num_key_value_heads": s.KeyValueHeads, "head_dim": s.HeadDim, "hidden_act": "silu", "attention_bias": false,
		"attention_dropout": 0,
		"initializer_range": 0.04, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000,
		"rope_scaling":        nil,
		"tie_word_embeddings": false, "use_cache": true, "use_sliding_window": false, "sliding_window": nil,
		"max_window_layers": s.Layers,
		"bos_token_id":      nil, "eos_token_id": s.Vocabulary - 1, "torch_dtype": "bfloat16",
	}
}

// claim makes the directory, or removes the files of an earlier demo from it, and holds it until it is closed. A
// directory with anything that is not on the list of that demo is refused, and stays as it is.
func claim(dir string) (io.Closer, error) {
	if err := vfs.CheckDir(vfs.OS{}, dir); err != nil {
		return nil, blame.BadRequest(fmt.Errorf("--dir: %w", err))
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, blame.BadRequest(fmt.Errorf("--dir: %w; name a directory that can be made", err))
	}
	mark := filepath.Join(dir, marker)
	if _, err := os.Lstat(mark); err != nil && len(entries) > 0 {
		return nil, blame.BadRequest(fmt.Errorf("--dir %s: the directory has files that no demo wrote; name another "+
			"directory", dir))
	}
	if err := os.MkdirAll(dir, 0o775); err != nil {
		return nil, fmt.Errorf("--dir: %w; name a directory that can be made", err)
	}
	held, err := vfs.OS{}.Lock(mark)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("--dir %s: another demo is writing there; wait until it has ended, or name another directory",
			dir)
	}
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	if err := removeEarlier(dir); err != nil {
		return nil, errors.Join(err, held.Close())
	}
	return held, nil
}

// wrote lists the files of a demo, in the file that marks its directory: by path, with the means to tell whether it
// is still the one that it wrote.
type wrote map[string]written

// written is a file of a demo. Of a directory it is the zero value.
type written struct {
	Bytes    int64     `json:"bytes,omitempty"`
	Modified time.Time `json:"modified,omitzero"`
}

// filesIn lists all of a directory but its mark. A directory comes before what is in it.
func filesIn(dir string) (paths []string, files wrote, err error) {
	files = wrote{}
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "." || path == marker {
			return err
		}
		w := written{}
		if !e.IsDir() {
			info, err := e.Info()
			if err != nil {
				return err
			}
			w = written{info.Size(), info.ModTime().UTC()}
		}
		paths, files[path] = append(paths, path), w
		return nil
	})
	return paths, files, err
}

// record writes down what is in the directory of a demo, which was empty when the demo began.
func record(dir string) error {
	_, files, err := filesIn(dir)
	if err != nil {
		return err
	}
	list, err := json.Marshal(files)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, marker), list, 0o664) // in place: it is locked
}

// removeEarlier removes what an earlier demo wrote, if nothing else is there.
func removeEarlier(dir string) error {
	paths, files, err := filesIn(dir)
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	doc, err := os.ReadFile(filepath.Join(dir, marker))
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	var list wrote
	_ = json.Unmarshal(doc, &list) // a demo that was killed at its start has left none, and then nothing is on it
	for _, path := range paths {
		was, is := list[path]
		if !is || !was.Modified.Equal(files[path].Modified) || was.Bytes != files[path].Bytes {
			return blame.BadRequest(fmt.Errorf("--dir %s: %s is not on the list of what the demo there wrote, or was changed "+
				"since; move it elsewhere or remove it, or name another directory", dir, path))
		}
	}
	for _, path := range slices.Backward(paths) {
		if err := os.Remove(filepath.Join(dir, path)); err != nil {
			return fmt.Errorf("--dir: an earlier demo cannot be removed: %w", err)
		}
	}
	return nil
}

// text has the text to train on, and the held-out text.
type text struct {
	trainBytes, heldOutBytes int
	trainTokensPerByte       float64
	heldOutTokensPerByte     float64
}

// furnish writes the text, the tokenizer and the model.
func furnish(dir string, s Shape) (t text, err error) {
	train, heldOut := readBook()
	learned, err := learnTokenizer(train, s.Vocabulary)
	if err != nil {
		return t, err
	}
	tokens, err := tokenizer.Parse(learned)
	if err != nil {
		return t, err
	}
	config, err := json.MarshalIndent(s.config(), "", "  ")
	if err != nil {
		return t, err
	}
	perByte := func(text string) float64 { return float64(len(tokens.Encode(text, false))) / float64(len(text)) }
	t = text{len(train), len(heldOut), perByte(train), perByte(heldOut)}
	return t, errors.Join(
		write(filepath.Join(dir, "text", "train.txt"), []byte(train)),
		write(filepath.Join(dir, "text", "held-out.txt"), []byte(heldOut)),
		write(filepath.Join(dir, "model", "config.json"), config),
		write(filepath.Join(dir, "model", "tokenizer.json"), learned),
		write(filepath.Join(dir, "model", "tokenizer_config.json"),
			[]byte(`{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "`+endOfText+`"}`)))
}

// writeRunFile writes run.yaml.
func writeRunFile(dir string, s Shape, steps int) error {
	var doc strings.Builder
	err := runFile.Execute(&doc, struct {
		Shape
		Steps, SaveEvery int
	}{s, steps, steps / parts})
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, "run.yaml"), []byte(doc.String()))
}

func write(path string, doc []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o775); err != nil {
		return err
	}
	return os.WriteFile(path, doc, 0o664)
}

// parameters counts those of a model that is a directory with a configuration.
func parameters(dir string) (int64, error) {
	c, err := hf.ReadConfig(dir)
	if err != nil {
		return 0, err
	}
	m, err := model.New(c)
	if err != nil {
		return 0, err
	}
	all, _ := m.Params()
	return all, nil
}
