package main

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/tensor"
)

const someWeight = "model.layers.1.mlp.up_proj.weight"

// header changes the JSON header of model.safetensors, keeping its length right.
func (w *workshop) header(change func(map[string]any)) {
	w.t.Helper()
	file := w.read("model/model.safetensors")
	n := binary.LittleEndian.Uint64([]byte(file[:8]))
	var h map[string]any
	if err := json.Unmarshal([]byte(file[8:8+n]), &h); err != nil {
		w.t.Fatal(err)
	}
	change(h)
	text, err := json.Marshal(h)
	if err != nil {
		w.t.Fatal(err)
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	w.write("model/model.safetensors", string(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))+string(text)+file[8+n:])
}

// change replaces text in a file.
func (w *workshop) change(name, old, new string) {
	w.t.Helper()
	text := w.read(name)
	if !strings.Contains(text, old) {
		w.t.Fatalf("%s has no %q", name, old)
	}
	w.write(name, strings.Replace(text, old, new, 1))
}

// Bad input, end to end: one line on standard error that names the culprit, exit status 2, and nothing written.
func TestBadInput(t *testing.T) {
	type badInput struct {
		spoil func(*workshop)
		set   []string
		want  string // in the error line
	}
	jsonl := func(text string) badInput {
		return badInput{spoil: func(w *workshop) { w.write("data/a.jsonl", text) }, set: []string{"datasets=[{path: DIR/data/a.jsonl, type: text}]"}, want: "a.jsonl"}
	}
	weights := func(want string, change func(spec *hf.TensorSpec, values *[]float32) bool) badInput {
		return badInput{spoil: func(w *workshop) {
			w.writeWeights(func(spec *hf.TensorSpec, values *[]float32) bool {
				return spec.Name != someWeight || change(spec, values)
			})
		}, want: want}
	}
	config := func(old, new, want string) badInput {
		return badInput{spoil: func(w *workshop) { w.change("model/config.json", old, new) }, want: want}
	}
	for name, c := range map[string]badInput{
		"safetensors: truncated": {spoil: func(w *workshop) {
			file := w.read("model/model.safetensors")
			w.write("model/model.safetensors", file[:len(file)-10])
		}, want: "model.safetensors"},
		"safetensors: empty": {spoil: func(w *workshop) { w.write("model/model.safetensors", "") }, want: "model.safetensors"},
		"safetensors: oversized header": {spoil: func(w *workshop) {
			file := w.read("model/model.safetensors")
			w.write("model/model.safetensors", string(binary.LittleEndian.AppendUint64(nil, 1<<60))+file[8:])
		}, want: "model.safetensors"},
		"safetensors: oversized file": {spoil: func(w *workshop) {
			w.write("model/model.safetensors", w.read("model/model.safetensors")+"0123456789")
		}, want: "model.safetensors"},
		"safetensors: overlap": {spoil: func(w *workshop) {
			w.header(func(h map[string]any) {
				h[someWeight].(map[string]any)["data_offsets"] = h["model.layers.0.mlp.up_proj.weight"].(map[string]any)["data_offsets"]
			})
		}, want: "model.safetensors"},
		"safetensors: no JSON": {spoil: func(w *workshop) {
			w.write("model/model.safetensors", "\x08\x00\x00\x00\x00\x00\x00\x00not json")
		}, want: "model.safetensors"},
		"weights: none": {spoil: func(w *workshop) { os.Remove(w.path("model/model.safetensors")) }, want: "safetensors"},
		"weights: missing shard": {spoil: func(w *workshop) {
			os.Remove(w.path("model/model.safetensors"))
			w.write("model/model.safetensors.index.json", `{"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}`)
		}, want: "model-00001-of-00001.safetensors"},
		"weights: missing tensor": weights(someWeight, func(*hf.TensorSpec, *[]float32) bool { return false }),
		"weights: wrong shape": weights(someWeight, func(s *hf.TensorSpec, v *[]float32) bool {
			s.Shape = tensor.Shape{s.Shape[1], s.Shape[0]}
			return true
		}),
		"weights: NaN": weights(someWeight, func(_ *hf.TensorSpec, v *[]float32) bool {
			(*v)[77] = float32(math.NaN())
			return true
		}),
		"weights: infinite": weights(someWeight, func(_ *hf.TensorSpec, v *[]float32) bool {
			(*v)[77] = float32(math.Inf(-1))
			return true
		}),
		"weights: wrong dtype": {spoil: func(w *workshop) {
			w.header(func(h map[string]any) { h[someWeight].(map[string]any)["dtype"] = "I32" })
		}, want: someWeight},

		"config: missing":              {spoil: func(w *workshop) { os.Remove(w.path("model/config.json")) }, want: "config.json"},
		"config: no JSON":              {spoil: func(w *workshop) { w.write("model/config.json", "{") }, want: "config.json"},
		"config: unknown architecture": config(`"qwen3"`, `"mamba2"`, "mamba2"),
		"config: unknown key":          config(`"attention_bias"`, `"attention_sink"`, "attention_sink"),
		"config: unsupported value":    config(`"silu"`, `"gelu"`, "hidden_act"),
		"config: absurd size":          config(`"hidden_size": 24`, `"hidden_size": 999999999999`, "hidden_size"),
		"config: another shape":        config(`"intermediate_size": 40`, `"intermediate_size": 48`, "mlp"),

		"data: missing":         {set: []string{"datasets=[{path: DIR/data/none.txt, type: text}]"}, want: "none.txt"},
		"data: empty":           {spoil: func(w *workshop) { w.write("data/a.txt", "") }, want: "a.txt"},
		"data: not UTF-8":       {spoil: func(w *workshop) { w.write("data/a.txt", "abc\xff\xfe") }, want: "a.txt"},
		"data: no files":        {set: []string{`datasets=[{path: DIR/data, glob: "**/*.md", type: text}]`}, want: "*.md"},
		"data: empty jsonl":     jsonl(""),
		"data: malformed":       jsonl(`{"text": "a"}` + "\n" + `{"text": "b"` + "\n"),
		"data: wrong field":     jsonl(`{"body": "a"}` + "\n"),
		"data: wrong type":      jsonl(`{"text": 7}` + "\n"),
		"data: jsonl not UTF-8": jsonl("{\"text\": \"\xff\"}\n"),

		"tokenizer: too large for the vocabulary": {spoil: func(w *workshop) {
			w.change("model/config.json", `"vocab_size": 257`, `"vocab_size": 200`)
			w.writeWeights(nil)
		}, want: "tokenizer"},
		"tokenizer: none":      {set: []string{"tokenizer=auto"}, want: "tokenizer"},
		"tokenizer: malformed": {spoil: func(w *workshop) { w.write("model/tokenizer.json", `{"model": 3}`) }, set: []string{"tokenizer=auto"}, want: "tokenizer.json"},

		"budget: device": {set: []string{"memory.device=10KiB"}, want: "memory.device"},
		"budget: host":   {set: []string{"memory.host=1MiB"}, want: "memory.host"},
		"device":         {set: []string{"device=cuda:0"}, want: "cuda"},

		"output: below a file":   {spoil: func(w *workshop) { w.write("out", "") }, want: "output_dir"},
		"output: has a run":      {spoil: func(w *workshop) { w.write("out/metrics.jsonl", "") }, want: "output_dir"},
		"output: not a file now": {set: []string{"output_dir=DIR/data/a.txt/out"}, want: "output_dir"},

		"run file: unknown key": {spoil: func(w *workshop) { w.write("run.yaml", w.read("run.yaml")+"lr: 1\n") }, want: "line 9"},
		"run file: not YAML":    {spoil: func(w *workshop) { w.write("run.yaml", "model: [\n") }, want: "run.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkshop(t)
			if c.spoil != nil {
				c.spoil(w)
			}
			before := w.files("out")
			args := []string{"train", w.path("run.yaml")}
			for _, s := range c.set {
				args = append(args, "--set", strings.ReplaceAll(s, "DIR", w.dir))
			}
			r := invoke(t, args...)
			if r.status != exitBadRequest {
				t.Errorf("exit status %d, want %d", r.status, exitBadRequest)
			}
			if line := r.errorLine(); !strings.HasPrefix(line, "millrace: ") || !strings.Contains(line, c.want) {
				t.Errorf("error %q, want one line with %q", line, c.want)
			}
			if n := strings.Count(r.stderr, "millrace: "); n != 1 || r.stdout != "" {
				t.Errorf("standard error %q, standard output %q", r.stderr, r.stdout)
			}
			if after := w.files("out"); len(after) != len(before) {
				t.Errorf("half-written: %v", after)
			}
		})
	}
}

// The other verbs that write leave no half-written files either.
func TestNothingHalfWritten(t *testing.T) {
	w := newWorkshop(t)
	file := w.read("model/model.safetensors")
	w.write("model/model.safetensors", file[:len(file)-10])
	w.write("tokens.json", `{"input_ids": [[1, 2]], "labels": [[1, 2]]}`)
	w.write("bad.json", `{"input_ids": [[1, 2]], "labels": [[1]]}`)
	w.write("far.json", `{"input_ids": [[1, 999]], "labels": [[1, 2]]}`)
	w.write("model.gguf", "GGUF\x03\x00\x00\x00")
	for _, args := range [][]string{
		{"grad", "--model", "DIR/model", "--tokens", "DIR/tokens.json", "--out", "DIR/out/grads.safetensors"},
		{"grad", "--model", "DIR/model", "--tokens", "DIR/bad.json", "--out", "DIR/out/grads.safetensors"},
		{"grad", "--model", "DIR/model", "--tokens", "DIR/far.json", "--out", "DIR/out/grads.safetensors"},
		{"export", "DIR/model", "DIR/out/model"},
		{"import", "DIR/model.gguf", "DIR/out/model"},
		{"eval", "--model", "DIR/model", "--data", "DIR/data/a.txt", "--tokenizer", "bytes"},
		{"generate", "--model", "DIR/model", "--prompt", "x", "--tokenizer", "bytes"},
	} {
		t.Run(args[0]+" "+args[4%len(args)], func(t *testing.T) {
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "DIR", w.dir)
			}
			os.Mkdir(w.path("out"), 0o755)
			r := invoke(t, args...)
			if r.status != exitBadRequest || strings.Count(r.stderr, "millrace: ") != 1 || r.stdout != "" {
				t.Errorf("exit status %d, standard error %q, standard output %q", r.status, r.stderr, r.stdout)
			}
			if left := w.files("out"); len(left) != 1 {
				t.Errorf("half-written: %v", left)
			}
		})
	}
}
