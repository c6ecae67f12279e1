package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/tensor"
)

// result holds the status and the output of a run of the program.
type result struct {
	status         int
	stdout, stderr string
}

// errorLine is the last line of standard error, where the error is.
func (r result) errorLine() string {
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	return lines[len(lines)-1]
}

// invoke runs the program in this process, with a cache of its own.
func invoke(t testing.TB, args ...string) result {
	t.Helper()
	return invokeWith(t, "", nil, args...)
}

func invokeWith(t testing.TB, stdin string, signals <-chan os.Signal, args ...string) result {
	t.Helper()
	if os.Getenv("MILLRACE_CACHE") == "" {
		t.Fatal("the test would use the user's cache: call useCache")
	}
	var stdout, stderr bytes.Buffer
	status := run(args, strings.NewReader(stdin), &stdout, &stderr, signals)
	return result{status, stdout.String(), stderr.String()}
}

func useCache(t *testing.T) { t.Setenv("MILLRACE_CACHE", t.TempDir()) }

// must fails the test unless the program did what it was asked to.
func (r result) must(t testing.TB) result {
	t.Helper()
	if r.status != exitDone {
		t.Fatalf("exit status %d: %s", r.status, r.stderr)
	}
	return r
}

// tinyConfig is a Qwen3 of two blocks that the byte tokenizer fits.
const tinyConfig = `{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 257, "hidden_size": 24,
 "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8,
 "hidden_act": "silu", "attention_bias": false, "max_position_embeddings": 128, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "torch_dtype": "bfloat16"}`

const tinyText = "the wheel turns while the water runs; the water runs while the sluice is open\n"

// workshop is a directory with a model, data and a run file.
type workshop struct {
	t   testing.TB
	dir string
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	useCache(t)
	return furnish(t, t.TempDir())
}

func furnish(t testing.TB, dir string) *workshop {
	t.Helper()
	w := &workshop{t, dir}
	w.write("model/config.json", tinyConfig)
	w.writeWeights(nil)
	w.write("data/a.txt", strings.Repeat(tinyText, 20))
	w.write("data/b.txt", tinyText)
	w.write("run.yaml", "model: "+w.path("model")+"\ntokenizer: bytes\ndatasets: [{path: "+w.path("data/a.txt")+
		", type: text}]\nsequence_len: 32\nbatch_tokens: 128\nmax_steps: 3\nlearning_rate: 1e-3\noutput_dir: "+w.path("out")+"\n")
	return w
}

func (w *workshop) path(name string) string { return filepath.Join(w.dir, filepath.FromSlash(name)) }

func (w *workshop) write(name, text string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(w.path(name)), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.path(name), []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workshop) read(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(w.path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// writeWeights fills model/ with random weights; change may alter what is written, or drop a tensor by returning false.
func (w *workshop) writeWeights(change func(spec *hf.TensorSpec, values *[]float32) bool) {
	w.t.Helper()
	c, err := hf.ReadConfig(w.path("model"))
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	var specs []hf.TensorSpec
	var all [][]float32
	for i, tensorOf := range m.Tensors() {
		spec := hf.TensorSpec{Name: tensorOf.Name, DType: tensor.F32, Shape: tensorOf.Shape}
		values := make([]float32, spec.Shape.Elems())
		random := rng.New(7, "test weights", 0, uint64(i))
		for j := range values {
			values[j] = 0.1 * random.NormFloat32()
		}
		if change == nil || change(&spec, &values) {
			specs, all = append(specs, spec), append(all, values)
		}
	}
	os.Remove(w.path("model/model.safetensors"))
	f, err := hf.CreateFile(w.path("model/model.safetensors"), specs)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, s := range specs {
		if err := f.Write(s.Name, encode(s.DType, all[i])); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := f.Commit(); err != nil {
		w.t.Fatal(err)
	}
}

func encode(d tensor.DType, values []float32) (b []byte) {
	for _, v := range values {
		if d == tensor.F32 {
			u := math.Float32bits(v)
			b = append(b, byte(u), byte(u>>8), byte(u>>16), byte(u>>24))
		} else {
			u := tensor.BF16FromF32(v)
			b = append(b, byte(u), byte(u>>8))
		}
	}
	return b
}

// files lists all there is below a directory.
func (w *workshop) files(name string) (found []string) {
	filepath.WalkDir(w.path(name), func(path string, e os.DirEntry, err error) error {
		if err == nil {
			rel, _ := filepath.Rel(w.dir, path)
			found = append(found, rel)
		}
		return nil
	})
	return found
}

// jsonOf decodes one object and refuses keys that T lacks.
func jsonOf[T any](t testing.TB, text string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if d.More() {
		t.Fatalf("more than one object in %q", text)
	}
	return v
}
