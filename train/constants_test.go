package train

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/verbs"
)

// glm is a mixture of GLM 4.5's kind for the byte tokenizer, with constants in two of its blocks, biases, norms of
// queries and keys, and heads of which a third is rotated.
var glm = map[string]any{"model_type": "glm4_moe", "num_hidden_layers": 3, "head_dim": 12,
	"partial_rotary_factor": 0.35,
	"attention_bias":        true, "use_qk_norm": true, "moe_intermediate_size": 16, "n_routed_experts": 8,
	"num_experts_per_tok": 2, "n_shared_experts": 1,
	"routed_scaling_factor": 1.5, "num_nextn_predict_layers": 1}

func correctionOf(layer string) string {
	return "model.layers." + layer + ".mlp.gate.e_score_correction_bias"
}

// glmExtra are the tensors of a checkpoint of that model that are not trained.
var glmExtra = []hf.TensorSpec{
	{Name: correctionOf("1"), DType: tensor.F32, Shape: tensor.Shape{8}},
	{Name: correctionOf("2"), DType: tensor.F32, Shape: tensor.Shape{8}},
	{Name: "model.layers.3.eh_proj.weight", DType: tensor.BF16, Shape: tensor.Shape{4, 6}},
	{Name: correctionOf("3"), DType: tensor.F32, Shape: tensor.Shape{8}},
}

// writeGLM writes such a model in F32. Rows always choose the lifted experts; bf16 rounds all of the numbers.
// leftOut is the name of a tensor, or "".
func writeGLM(t testing.TB, lifted [2]int, leftOut string) string {
	t.Helper()
	dir := writeConfig(t, glm)
	c, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]byte{}
	for i, s := range glmExtra {
		x := make([]float32, 8)
		for e := range x {
			if x[e] = float32(i+1)*0.00012345 - float32(e)*0.00001; e == lifted[0] || e == lifted[1] {
				x[e] += 1.00001
			}
		}
		values[s.Name] = hf.BytesOf(x)
		if s.DType == tensor.BF16 {
			values[s.Name] = []byte(strings.Repeat("seed", 12))
		}
	}
	specs := glmExtra[:len(glmExtra):len(glmExtra)]
	for _, x := range m.Tensors() {
		specs = append(specs, hf.TensorSpec{Name: x.Name, DType: tensor.F32, Shape: x.Shape})
		v, err := m.ReadTensor(x.Name, func(part int) (model.Values, error) {
			v := model.Values{F32: make([]float32, m.Parts[part].Layout.WeightElems)}
			m.InitPart(3, &m.Parts[part], v)
			return v, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		values[x.Name] = hf.BytesOf(v)
	}
	var written []hf.TensorSpec
	for _, s := range specs {
		if s.Name != leftOut {
			written = append(written, s)
		}
	}
	w, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), written)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range written {
		if err := w.Write(s.Name, values[s.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func glmRun(t testing.TB, dir string) (*runfile.Config, *session.Env, *strings.Builder) {
	t.Helper()
	c := smallConfig(t)
	c.Model, c.MaxSteps = dir, 4
	env, said := newEnv(t), &strings.Builder{}
	env.Progress = said
	return c, env, said
}

func lossOf(t testing.TB, env *session.Env, dir string) float64 {
	t.Helper()
	l, err := verbs.Evaluate(context.Background(), env, verbs.EvalOptions{Model: dir, Data: []data.Source{{Path: corpus(t),
		Type: data.Text}},
		Tokenizer: "bytes", SequenceLen: 64, Compute: "f32"})
	if err != nil {
		t.Fatal(err)
	}
	return l.Loss
}

// Constants choose experts in training, in evaluations and of a checkpoint, and an export has them to the bit, in F32
// also where all else is bf16.
func TestConstants(t *testing.T) {
	c, env, said := glmRun(t, writeGLM(t, [2]int{2, 7}, ""))
	sum, err := Train(context.Background(), c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"2 tensors (80 B) of model.layers.3.* are carried: they are not trained and travel to the export unchanged\n",
		"2 tensors (64 B) of model.layers.*.mlp.gate.e_score_correction_bias are carried: they are not trained and travel to the export unchanged\n",
	} {
		if !strings.Contains(said.String(), line) {
			t.Errorf("%q is not in\n%s", line, said)
		}
	}
	before, after := tensorsOf(t, c.Model), tensorsOf(t, sum.Model)
	for _, s := range glmExtra {
		if after[s.Name] != before[s.Name] {
			t.Errorf("%s was %s and is %s", s.Name, before[s.Name], after[s.Name])
		}
	}
	// Two experts had all rows: no other was trained, but its weights decay.
	other, _, _ := glmRun(t, writeGLM(t, [2]int{1, 3}, ""))
	otherSum, err := Train(context.Background(), other, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if sum.FirstLoss == otherSum.FirstLoss {
		t.Error("the choice of experts makes no difference to a step")
	}
	loss, checkpointLoss := lossOf(t, env, sum.Model), lossOf(t, env, lastCheckpoint(t, c))
	if math.Float64bits(loss) != math.Float64bits(checkpointLoss) {
		t.Errorf("the loss of the model is %v, and %v of its checkpoint", loss, checkpointLoss)
	}
	zeroed := filepath.Join(t.TempDir(), "zeroed")
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Model: sum.Model, Dir: zeroed,
		DType: tensor.F32}); err != nil {
		t.Fatal(err)
	}
	sameTensors(t, "exported again", zeroed, after)
	file := filepath.Join(zeroed, "model.safetensors")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, 8)
	w, err := hf.OpenWeights(zeroed)
	if err == nil {
		err = w.ReadF32(correctionOf("1"), x, 0)
		_ = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, strings.Replace(string(text), string(hf.BytesOf(x)), strings.Repeat("\x00", 32), 1))
	if lossOf(t, env, zeroed) == loss {
		t.Error("the choice of experts makes no difference to an evaluation")
	}

	half := *c
	half.OutputDir, half.Precision = filepath.Join(t.TempDir(), "bf16"), runfile.Defaults().Precision
	if _, err = Train(context.Background(), &half, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Checkpoint: lastCheckpoint(t, &half),
		Model: c.Model,
		Dir:   out,
		DType: tensor.BF16}); err != nil {
		t.Fatal(err)
	}
	after = tensorsOf(t, out)
	for _, s := range glmExtra {
		if after[s.Name] != before[s.Name] {
			t.Errorf("in bf16 %s was %s and is %s", s.Name, before[s.Name], after[s.Name])
		}
	}
	if was := after["model.layers.1.mlp.gate.weight"]; !strings.HasPrefix(was, "BF16") {
		t.Errorf("the router is %.30s", was)
	}

	// A checkpoint whose constants have changed says so where it is run.
	dir := c.Model
	if err := os.Rename(filepath.Join(other.Model, "model.safetensors"), filepath.Join(dir,
		"model.safetensors")); err != nil {
		t.Fatal(err)
	}
	_, err = verbs.Evaluate(context.Background(), env, verbs.EvalOptions{Model: lastCheckpoint(t, c), Data: c.Datasets,
		Tokenizer: "bytes", SequenceLen: 64})
	if err == nil || !strings.Contains(err.Error(), "the tensors that the run carries have changed in "+dir) {
		t.Errorf("of other constants: %v", err)
	}
}

// A GGUF file has the constants that the run carries, of its model and of its checkpoint.
func TestConstantsInGGUF(t *testing.T) {
	c, env, _ := glmRun(t, writeGLM(t, [2]int{2, 7}, ""))
	write(t, filepath.Join(c.Model, "tokenizer.json"), `{"added_tokens": [], "normalizer": null, "post_processor": null,
		"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
		"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}`)
	sum, err := Train(context.Background(), c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for name, o := range map[string]export.GGUFOptions{"model": {Model: sum.Model},
		"checkpoint": {Model: c.Model, Checkpoint: lastCheckpoint(t, c)}, "run": {Model: c.OutputDir}} {
		o.File, o.Type = filepath.Join(t.TempDir(), name+".gguf"), gguf.F32
		if _, err := export.GGUF(context.Background(), env, o); err != nil {
			t.Fatal(name, err)
		}
		back := filepath.Join(t.TempDir(), name)
		if err := gguf.Import(context.Background(), o.File, back, gguf.ImportOptions{DType: tensor.F32}); err != nil {
			t.Fatal(name, err)
		}
		want, got := tensorsOf(t, sum.Model), tensorsOf(t, back)
		for l := 1; l < 3; l++ {
			if key := correctionOf(fmt.Sprint(l)); got[key] == "" || got[key] != want[key] {
				t.Errorf("%s: %s was %.30q and is %.30q", name, key, want[key], got[key])
			}
		}
		files = append(files, o.File)
	}
	other := writeGLM(t, [2]int{1, 3}, "")
	const weights = "model.safetensors"
	if err := os.Rename(filepath.Join(other, weights), filepath.Join(c.Model, weights)); err != nil {
		t.Fatal(err)
	}
	_, err = export.GGUF(context.Background(), env, export.GGUFOptions{Model: c.Model, Checkpoint: lastCheckpoint(t, c),
		File: files[0] + ".other"})
	if err == nil || !strings.Contains(err.Error(), "the tensors that the run carries have changed in "+c.Model) {
		t.Errorf("of other constants: %v", err)
	}
}

// Constants are the same streamed and in a run that continues.
func TestConstantsMove(t *testing.T) {
	c, env, said := glmRun(t, writeGLM(t, [2]int{2, 7}, ""))
	c.MaxSteps, c.LRScheduler = 6, "constant"
	run := func(c runfile.Config, steps int, name string) string {
		c.OutputDir, c.MaxSteps, c.ResumeWith = filepath.Join(filepath.Dir(c.OutputDir), name), steps,
			[]string{"max_steps"}
		sum, err := Train(context.Background(), &c, Options{Env: env})
		if err != nil {
			t.Fatal(err)
		}
		return sum.Model
	}
	want := tensorsOf(t, run(*c, 6, "whole"))
	run(*c, 3, "stopped")
	sameTensors(t, "resumed", run(*c, 6, "stopped"), want)
	if !strings.Contains(said.String(), "resuming after step 3") {
		t.Errorf("the run did not continue:\n%s", said)
	}
	c.Memory = budget(t, "3MiB")
	sameTensors(t, "streamed", run(*c, 6, "streamed"), want)
	if !strings.Contains(said.String(), "weights streamed") {
		t.Errorf("no run was streamed:\n%s", said)
	}
}

// A checkpoint without constants that its model needs is refused in a line that names one.
func TestMissingConstants(t *testing.T) {
	c, env, _ := glmRun(t, writeGLM(t, [2]int{}, correctionOf("2")))
	_, trains := Train(context.Background(), c, Options{Env: env})
	_, evaluates := verbs.Evaluate(context.Background(), env, verbs.EvalOptions{Model: c.Model, Data: c.Datasets,
		Tokenizer: "bytes", SequenceLen: 64})
	for _, err := range []error{trains, evaluates} {
		if err == nil || !strings.Contains(err.Error(), correctionOf("2")) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v", err)
		}
	}
	if files(t, c.OutputDir) != nil {
		t.Error("something was written")
	}
}

// A model that begins at random has zeros for constants, and its export has them, so that it can be read.
func TestConstantsOfARandomModel(t *testing.T) {
	c, env, _ := glmRun(t, writeConfig(t, glm))
	c.Init = "random"
	sum, err := Train(context.Background(), c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	all := tensorsOf(t, sum.Model)
	for _, name := range []string{correctionOf("1"), correctionOf("2")} {
		if want := "F32 [8] " + strings.Repeat("00", 32); all[name] != want {
			t.Errorf("%s is %q, want %q", name, all[name], want)
		}
	}
	if loss, saved := lossOf(t, env, sum.Model), lossOf(t, env, lastCheckpoint(t, c)); loss != saved {
		t.Errorf("the loss of the model is %v, and %v of its checkpoint", loss, saved)
	}
}
