package train

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/session"
)

// exported writes a model, or the checkpoint of a run of that model, in a type.
func exported(t *testing.T, env *session.Env, model, checkpoint string, as tensor.DType) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	if _, err := export.HuggingFace(t.Context(), env, export.Options{Model: model, Checkpoint: checkpoint, Dir: out,
		DType: as}); err != nil {
		t.Fatal(err)
	}
	return out
}

// inBF16 are tensors that a directory in F32 has, as a run has them that computes in bf16.
func inBF16(t *testing.T, dir string) map[string]string {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	all := map[string]string{}
	for _, name := range w.Names() {
		info, _ := w.Info(name)
		values, b := make([]float32, info.Shape.Elems()), []byte(nil)
		if err := w.ReadF32(name, values, 0); err != nil {
			t.Fatal(err)
		}
		for _, x := range values {
			high, _ := tensor.SplitF32(x)
			b = binary.LittleEndian.AppendUint16(b, high)
		}
		all[name] = fmt.Sprintf("BF16 %v %x", info.Shape, b)
	}
	return all
}

// Each tensor of an export is trained, or it is the number of the model that the run began with: in the type of that
// model its very bytes, in another one rounded once. So it is for each type of the model, of the computation and of the
// export, for tensors that are frozen and for those that are carried.
func TestFrozenTensorsAreThoseOfTheBase(t *testing.T) {
	first := writeGLM(t, [2]int{0, 1}, "")
	carried := map[string]bool{}
	for _, s := range glmExtra {
		carried[s.Name] = true
	}
	freezes := []struct {
		set      func(*runfile.Config)
		isFrozen func(name string) bool
	}{
		{func(c *runfile.Config) { c.TrainOnly = []string{"*layers.1.*"} },
			func(name string) bool { return !strings.Contains(name, "layers.1.") }},
		{func(c *runfile.Config) {
			c.Groups = []optim.Group{{Match: "*embed*", Freeze: true}, {Match: "*experts*", Freeze: true}}
		},
			func(name string) bool { return strings.Contains(name, "embed") || strings.Contains(name, "experts") }},
	}
	types := []tensor.DType{tensor.F32, tensor.F16, tensor.BF16}
	for _, stored := range types {
		base := exported(t, newEnv(t), first, "", stored)
		want := map[tensor.DType]map[string]string{}
		for _, as := range types {
			want[as] = tensorsOf(t, exported(t, newEnv(t), base, "", as))
		}
		halves := inBF16(t, exported(t, newEnv(t), base, "", tensor.F32))
		for _, compute := range []string{"bf16", "f32"} {
			for i, freeze := range freezes {
				c := smallConfig(t)
				c.Model, c.MaxSteps, c.WarmupSteps = base, 2, 0
				c.Precision = runfile.Precision{Compute: compute, Master: map[string]string{"bf16": "split", "f32": "f32"}[compute],
					Moments: "f32"}
				c.Save = runfile.Save{AtEnd: true}
				freeze.set(c)
				sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
				if err != nil {
					t.Fatal(err)
				}
				outs := map[string]tensor.DType{sum.Model: map[bool]tensor.DType{true: tensor.F32, false: tensor.BF16}[stored == tensor.F32]}
				for _, as := range types {
					outs[exported(t, newEnv(t), base, sum.Checkpoint, as)] = as
				}
				for out, as := range outs {
					got, kept := tensorsOf(t, out), 0
					for name, b := range got {
						right := want[as][name]
						if as == tensor.BF16 && compute == "bf16" && !carried[name] {
							right = halves[name]
						}
						switch {
						case carried[name] || freeze.isFrozen(name):
							if kept++; b != right {
								t.Errorf("base %v, compute %s, freeze %d, %v: %s has changed", stored, compute, i, as, name)
							}
						case b == right && strings.Contains(name, "self_attn.q_proj.weight"):
							t.Errorf("base %v, compute %s, freeze %d, %v: %s was not trained", stored, compute, i, as, name)
						}
					}
					if kept < len(carried)+4 {
						t.Errorf("%d tensors are to be those of the base", kept)
					}
				}
			}
		}
	}
}

// Where the model that the run began with is gone, or is another one, frozen tensors are exported as the run computed
// with them, and a warning and the card say so.
func TestFrozenTensorsWithoutTheBase(t *testing.T) {
	for name, change := range map[string]func(weights string) error{
		"gone": os.Remove,
		"another": func(weights string) error {
			b, err := os.ReadFile(weights)
			if err == nil {
				at := len(b) - 400
				x := math.Float32frombits(binary.LittleEndian.Uint32(b[at:]))
				binary.LittleEndian.PutUint32(b[at:], math.Float32bits(-2*x))
				err = os.WriteFile(weights, b, 0o666)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.MaxSteps, c.WarmupSteps, c.Precision = 2, 0, runfile.Defaults().Precision
			c.TrainOnly, c.Save = []string{"*layers.1.*"}, runfile.Save{AtEnd: true}
			sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			halves := readFile(t, filepath.Join(exported(t, newEnv(t), c.Model, "", tensor.F32), "model.safetensors"))
			if err := change(filepath.Join(c.Model, "model.safetensors")); err != nil {
				t.Fatal(err)
			}
			env := newEnv(t)
			var said strings.Builder
			env.Progress = &said
			out := exported(t, env, c.Model, sum.Checkpoint, tensor.F32)
			if !strings.Contains(said.String(), "warning: frozen tensors are exported as the run computed with them, in bf16") {
				t.Errorf("it says %s", said.String())
			}
			card := readAll(t, filepath.Join(out, hf.CardName))
			if !strings.Contains(string(card), "of its parameters at full precision, and the others frozen and rounded to bf16.") {
				t.Errorf("the card: %s", card)
			}
			got, embedding := readFile(t, filepath.Join(out, "model.safetensors")), "model.embed_tokens.weight"
			for i, x := range halves[embedding] {
				if high, _ := tensor.SplitF32(x); got[embedding][i] != tensor.F32FromBF16(high) {
					t.Fatalf("element %d of the embedding is %v, was %v", i, got[embedding][i], x)
				}
			}
		})
	}
}

// A GGUF file of a checkpoint has frozen tensors from the numbers of the model that the run began with, too.
func TestFrozenTensorsInGGUF(t *testing.T) {
	c, env, _ := glmRun(t, writeGLM(t, [2]int{2, 7}, ""))
	write(t, filepath.Join(c.Model, "tokenizer.json"), `{"added_tokens": [], "normalizer": null, "post_processor": null,
		"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
		"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}`)
	c.Precision, c.TrainOnly = runfile.Defaults().Precision, []string{"*layers.1.*"}
	if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	file, back := filepath.Join(t.TempDir(), "a.gguf"), filepath.Join(t.TempDir(), "back")
	if _, err := export.GGUF(t.Context(), env, export.GGUFOptions{Model: c.Model, Checkpoint: lastCheckpoint(t, c),
		File: file,
		Type: gguf.F32}); err != nil {
		t.Fatal(err)
	}
	if err := gguf.Import(t.Context(), file, back, gguf.ImportOptions{DType: tensor.F32}); err != nil {
		t.Fatal(err)
	}
	want, got := tensorsOf(t, c.Model), tensorsOf(t, back)
	for name, b := range got {
		if isFrozen := !strings.Contains(name, "layers.1."); isFrozen && b != want[name] {
			t.Errorf("%s has changed", name)
		}
	}
}
