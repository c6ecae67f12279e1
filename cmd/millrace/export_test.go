package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/export"
)

// useTokenizer gives the workshop's model a tokenizer.json, and rows for its ids.
func (w *workshop) useTokenizer() {
	w.write("model/config.json", strings.Replace(tinyConfig, `"vocab_size": 257`, `"vocab_size": 576`, 1))
	w.writeWeights(nil)
	text, err := os.ReadFile("../../data/tokenizer/testdata/qwen2.json")
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("model/tokenizer.json", string(text))
	w.write("model/tokenizer_config.json", `{"eos_token": "<|eos|>", "chat_template": "{{ messages }}"}`)
}

// TestExportGGUF writes a model and a checkpoint as GGUF: the file of a checkpoint is that of the model that the same
// checkpoint is exported to.
func TestExportGGUF(t *testing.T) {
	w := newWorkshop(t)
	w.useTokenizer()
	r := invoke(t, "train", w.path("run.yaml"), "--set", "tokenizer=auto", "--json").must(t)
	checkpoint := jsonOf[train.Summary](t, r.stdout).Checkpoint
	for _, dtype := range []string{"f32", "bf16"} {
		dir := w.path(dtype + "/model")
		invoke(t, "export", "--checkpoint", checkpoint, "--model", w.path("model"), "--out", dir, "--dtype", dtype).must(t)
		invoke(t, "export", dir, "--gguf", w.path(dtype+"-a.gguf"), "--dtype", dtype).must(t)
		invoke(t, "export", "--checkpoint", checkpoint, "--model", w.path("model"), "--gguf", w.path(dtype+"-b.gguf"),
			"--dtype", dtype).must(t)
		if a, b := w.read(dtype+"-a.gguf"), w.read(dtype+"-b.gguf"); a != b {
			t.Errorf("%s: the file of the model and that of the checkpoint differ", dtype)
		}
		invoke(t, "import", w.path(dtype+"-a.gguf"), w.path(dtype+"/back"), "--dtype", dtype).must(t)
		if d := cmp.Diff(w.tensors(dtype+"/model"), w.tensors(dtype+"/back")); d != "" {
			t.Errorf("%s: other weights came back: %.2000s", dtype, d)
		}
	}

	// A run stands for the model that it wrote, or for its latest checkpoint.
	invoke(t, "export", w.path("out"), "--gguf", w.path("run.gguf"), "--dtype", "BF16").must(t)
	invoke(t, "import", w.path("run.gguf"), w.path("run-back")).must(t)
	if d := cmp.Diff(w.tensors("bf16/model"), w.tensors("run-back")); d != "" {
		t.Errorf("the run's file is not that of its model: %.2000s", d)
	}
	invoke(t, "export", w.path("out"), w.path("run-f32"), "--dtype", "F32").must(t)
	if err := os.RemoveAll(w.path("out/model")); err != nil {
		t.Fatal(err)
	}
	invoke(t, "export", w.path("out"), "--gguf", w.path("saved.gguf"), "--dtype", "f32").must(t)
	invoke(t, "export", w.path("out"), w.path("saved-f32"), "--dtype", "f32").must(t)
	invoke(t, "import", w.path("saved.gguf"), w.path("saved-back"), "--dtype", "f32").must(t)
	if d := cmp.Diff(w.tensors("f32/model"), w.tensors("saved-back")); d != "" {
		t.Errorf("the run's file is not that of its checkpoint: %.2000s", d)
	}
	if d := cmp.Diff(w.tensors("f32/model"), w.tensors("saved-f32")); d != "" {
		t.Errorf("the run's weights are not those of its checkpoint: %.2000s", d)
	}
	r = invoke(t, "export", w.path("model"), "--gguf", w.path("q.gguf"), "--dtype", "Q4_K_M", "--json").must(t)
	report := jsonOf[gguf.Report](t, r.stdout)
	info, err := os.Stat(w.path("q.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if report.Bytes != info.Size() || report.Type != gguf.Q4 || report.Architecture != "qwen3" ||
		report.PreTokenizer != "qwen2" {
		t.Errorf("%+v of a file of %d bytes", report, info.Size())
	}
	r = invoke(t, "export", w.path("model"), "--gguf", w.path("text.gguf")).must(t)
	if want := "of a qwen3 model in bf16"; !strings.Contains(r.stdout, want) {
		t.Errorf("no %q in %q", want, r.stdout)
	}
}

// tensors are the bytes of a model directory's weights by name.
func (w *workshop) tensors(dir string) map[string][]float32 {
	weights, err := hf.OpenWeights(w.path(dir))
	if err != nil {
		w.t.Fatal(err)
	}
	defer weights.Close()
	all := map[string][]float32{}
	for _, name := range weights.Names() {
		info, _ := weights.Info(name)
		all[name] = make([]float32, info.Shape.Elems())
		if err := weights.ReadF32(name, all[name], 0); err != nil {
			w.t.Fatal(err)
		}
	}
	return all
}

// TestExportShards: --shard-size bounds the files of weights.
func TestExportShards(t *testing.T) {
	w := newWorkshop(t)
	const limit = 8000
	r := invoke(t, "export", w.path("model"), w.path("sharded"), "--dtype", "f32", "--shard-size", "8kB", "--json").must(t)
	done := jsonOf[export.Exported](t, r.stdout)
	files, err := filepath.Glob(w.path("sharded/model-*-of-*.safetensors"))
	if err != nil || len(files) < 3 || len(files) != done.Files {
		t.Fatalf("%d files, %d are reported: %v", len(files), done.Files, err)
	}
	for _, name := range files {
		doc, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		front := 8 + int(doc[0]) + int(doc[1])<<8
		if tensors := bytes.Count(doc[8:front], []byte(`"dtype"`)); len(doc)-front > limit && tensors > 1 {
			t.Errorf("%s has %d bytes in %d tensors", name, len(doc)-front, tensors)
		}
	}
	if d := cmp.Diff(w.tensors("model"), w.tensors("sharded")); d != "" {
		t.Errorf("other weights: %.2000s", d)
	}
	if _, err := os.Stat(w.path("sharded/model.safetensors.index.json")); err != nil {
		t.Error(err)
	}
}

// TestExportMXFP4: a model whose family has no tensors in MXFP4 is refused.
func TestExportMXFP4(t *testing.T) {
	w := newWorkshop(t)
	for flag, want := range map[string]string{
		w.path("out"):           `dtype is "mxfp4", and models of kind qwen3 have no tensors in MXFP4: use bf16, f32 or f16`,
		"--gguf=" + w.path("g"): `dtype`,
	} {
		r := invoke(t, "export", w.path("model"), flag, "--dtype", "MXFP4")
		if r.status != exitBadRequest || !strings.Contains(r.errorLine(), want) {
			t.Errorf("status %d: %s", r.status, r.stderr)
		}
	}
}

// TestExportF16: a directory and a checkpoint are written in float16, rounded from the exact weights; a float16 model
// comes back as it was; and a number that float16 cannot hold is an error that names its tensor.
func TestExportF16(t *testing.T) {
	w := newWorkshop(t)
	rounded := func(of map[string][]float32) map[string][]float32 {
		for _, values := range of {
			for i, x := range values {
				values[i] = tensor.F32FromF16(tensor.F16FromF32(x))
			}
		}
		return of
	}
	invoke(t, "export", w.path("model"), w.path("half"), "--dtype", "f16").must(t)
	if d := cmp.Diff(rounded(w.tensors("model")), w.tensors("half")); d != "" {
		t.Errorf("of a directory: %.2000s", d)
	}
	if config := w.read("half/config.json"); !strings.Contains(config, `"float16"`) {
		t.Errorf("its configuration: %s", config)
	}
	invoke(t, "export", w.path("half"), w.path("again"), "--dtype", "f16").must(t)
	if w.read("again/model.safetensors") != w.read("half/model.safetensors") {
		t.Error("a float16 model came back as another one")
	}

	// A run on it writes bf16, and says so.
	r := invoke(t, "train", w.path("run.yaml"), "--json", "--set", "model="+w.path("half")).must(t)
	if !strings.Contains(r.stderr, "\nthe model is in float16, and the run writes it in bf16, which has 3 bits less") {
		t.Errorf("it says %s", r.stderr)
	}
	from := jsonOf[train.Summary](t, r.stdout).Checkpoint
	for _, dtype := range []string{"f32", "f16"} {
		invoke(t, "export", "--checkpoint", from, "--model", w.path("half"), "--out", w.path("of-"+dtype), "--dtype",
			dtype).must(t)
	}
	if d := cmp.Diff(rounded(w.tensors("of-f32")), w.tensors("of-f16")); d != "" {
		t.Errorf("of a checkpoint: %.2000s", d)
	}
	r = invoke(t, "train", w.path("run.yaml"), "--set", "output_dir="+w.path("other")).must(t)
	if strings.Contains(r.stderr, "float16") {
		t.Errorf("of a model in f32 it says %s", r.stderr)
	}

	w.writeWeights(func(spec *hf.TensorSpec, values *[]float32) bool {
		if spec.Name == someWeight {
			(*values)[3] = -65536
		}
		return true
	})
	r = invoke(t, "export", w.path("model"), w.path("large"), "--dtype", "f16")
	want := "tensor " + someWeight + " has the number -65536, and float16 ends at 65504"
	if r.status != exitBadRequest || !strings.Contains(r.errorLine(), want) {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	if _, err := os.Stat(w.path("large")); err == nil {
		t.Error("a model was written")
	}
}
