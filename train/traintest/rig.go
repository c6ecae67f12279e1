// Package traintest has what tests of the rooms of train share: surroundings on the CPU, and small models on disk.
package traintest

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
)

// NewEnv is an environment on the CPU device that keeps nothing and knows no drive's thermometer. It is checked in the
// end that all memory came back.
func NewEnv(t testing.TB) *session.Env {
	t.Helper()
	accounts := hostmem.New()
	t.Cleanup(func() {
		if n, _ := accounts.Total(); n != 0 {
			t.Errorf("%d bytes of host memory are still reserved: %v", n, accounts.Usage())
		}
	})
	return &session.Env{Accounts: accounts, Progress: io.Discard, Open: func(_ string, a *hostmem.Accounts) (
		[]device.Device, device.Device, error,
	) {
		d, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
		return []device.Device{d}, d, err
	}, Tests: session.InTests{SysFS: os.DevNull}}
}

// WrappedEnv is NewEnv with a device that is wrapped.
func WrappedEnv(t *testing.T, wrap func(device.Device) device.Device) *session.Env {
	env := NewEnv(t)
	open := env.Open
	env.Open = func(name string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
		all, _, err := open(name, a)
		if err != nil {
			return nil, nil, err
		}
		d := wrap(all[0])
		return []device.Device{d}, d, nil
	}
	return env
}

// BytesConfig is a llama for the byte tokenizer.
var BytesConfig = map[string]any{"model_type": "llama", "vocab_size": 320, "hidden_size": 48, "intermediate_size": 96,
	"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
	"rms_norm_eps": 1e-5,
	"rope_theta":   10000.0, "tie_word_embeddings": false, "hidden_act": "silu", "initializer_range": 0.08,
	"torch_dtype": "float32"}

// HybridConfig makes it a mixture of experts with gated delta nets, and with gated attention in every second layer.
var HybridConfig = map[string]any{"model_type": "qwen3_5_moe_text", "head_dim": 16, "full_attention_interval": 2,
	"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
	"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}

// RowsConfig makes it a Gemma 4 whose layers add rows of a second embedding.
var RowsConfig = map[string]any{"model_type": "gemma4_text", "rope_theta": nil, "head_dim": 12, "global_head_dim": 24,
	"sliding_window": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320,
	"tie_word_embeddings": true}

// WriteConfig writes config.json alone, with changed keys.
func WriteConfig(t testing.TB, change map[string]any) string {
	t.Helper()
	c := map[string]any{}
	for k, v := range BytesConfig {
		c[k] = v
	}
	for k, v := range change {
		c[k] = v
	}
	doc, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	Write(t, filepath.Join(dir, "config.json"), string(doc))
	return dir
}

// WriteModel writes a random model directory in F32.
func WriteModel(t testing.TB, change map[string]any) string {
	t.Helper()
	dir := WriteConfig(t, change)
	WriteWeights(t, dir, 3)
	return dir
}

// weightFiles has the files that WriteWeights has written, by their directory's config.json and the seed: most tests
// begin with one of a few models, and drawing the numbers took a twentieth of the time of package train's tests.
var weightFiles sync.Map

// WriteWeights writes random weights for the config.json of a directory, in F32.
func WriteWeights(t testing.TB, dir string, seed uint64) {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	path, of := filepath.Join(dir, "model.safetensors"), fmt.Sprint(seed, " ", string(config))
	if file, ok := weightFiles.Load(of); ok {
		Write(t, path, file.(string))
		return
	}
	drawWeights(t, dir, path, seed)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	weightFiles.Store(of, string(file))
}

// drawWeights writes the file of WriteWeights.
func drawWeights(t testing.TB, dir, path string, seed uint64) {
	t.Helper()
	c, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]float32{}
	for _, x := range m.Tensors() {
		values[x.Name], err = m.ReadTensor(x.Name, func(part int) (model.Values, error) {
			v := model.Values{F32: make([]float32, m.Parts[part].Layout.WeightElems)}
			m.InitPart(seed, &m.Parts[part], v)
			return v, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, x := range m.ConstantTensors() {
		values[x.Name] = m.InitialConstants()[i]
	}
	WriteTensors(t, path, m, values)
}

// WriteTensors writes a file of the tensors of a model.
func WriteTensors(t testing.TB, path string, m *model.Model, values map[string][]float32) {
	t.Helper()
	var specs []hf.TensorSpec
	for _, x := range slices.Concat(m.Tensors(), m.ConstantTensors()) {
		specs = append(specs, hf.TensorSpec{Name: x.Name, DType: tensor.F32, Shape: x.Shape})
	}
	w, err := hf.CreateFile(path, specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if err := w.Write(s.Name, hf.BytesOf(values[s.Name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

// Write writes a text file.
func Write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Corpus is text with much to learn in few steps.
func Corpus(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.jsonl")
	var b strings.Builder
	for i := range 120 {
		doc, _ := json.Marshal(map[string]string{"text": strings.Repeat("the wheel turns. ", 1+i%7)})
		b.Write(append(doc, '\n'))
	}
	Write(t, path, b.String())
	return path
}

// Files are the contents of all files below a directory, by path; nil if there is no such directory.
func Files(t testing.TB, dir string) map[string]string {
	t.Helper()
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil
	}
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if err != nil || d.IsDir() {
			all[rel] = "directory"
			return err
		}
		text, err := os.ReadFile(path)
		all[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// ConfigOf reads a run file with this text.
func ConfigOf(t testing.TB, doc string) (*runfile.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.yaml")
	Write(t, path, doc)
	return runfile.Read(path, nil)
}

// Budget is a device budget that makes an engine stream: little above what the smallest placement takes.
func Budget(t testing.TB, size string) runfile.Memory {
	t.Helper()
	b, err := runfile.ParseBytes(size)
	if err != nil {
		t.Fatal(err)
	}
	return runfile.Memory{Device: b}
}

// TurnTemplate writes <role>content</s> and a line break per turn.
const TurnTemplate = `{% for m in messages %}{{ '<' + m.role + '>' + m.content + '</s>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}`
