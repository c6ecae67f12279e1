package train

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/session"
)

// recut is Patchwork with checkpoints that hold its tensors otherwise: q, k and v in one, gate and up alternating in the
// columns of one, and o with heads whose rows alternate.
func recut() model.Family {
	family := modeltest.Patchwork
	family.Names = slices.Clone(family.Names)
	const prefix = "model.language_model.layers.{layer}."
	for i := range family.Names {
		switch n := &family.Names[i]; n.Role {
		case "q.*", "k.*", "v.*":
			n.HF = prefix + "qkv.*"
		case "gate.*", "up.*":
			n.HF, n.CutHF = prefix+"gate_up.*", model.Interleaved|model.Transposed
		case "down.*":
			n.CutHF = model.Transposed
		}
	}
	return family
}

// convert writes the weights of a directory as another family of the same decoder has them.
func convert(t *testing.T, dir string, family model.Family, to string, as model.Family) {
	t.Helper()
	c, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c, family)
	if err != nil {
		t.Fatal(err)
	}
	other, err := model.New(c, as)
	if err != nil {
		t.Fatal(err)
	}
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	values := map[string][]float32{}
	for _, x := range other.Tensors() {
		values[x.Name] = make([]float32, x.Shape.Elems())
		if err := x.Read(values[x.Name], 0, m.Checkpoint().Fields(w)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(to, "config.json"), string(c.Raw()))
	writeTensors(t, filepath.Join(to, "model.safetensors"), other, values)
}

// Training does not depend on how files cut the tensors, and an export is cut as the model was: in each type, from the
// run and from its checkpoint, and the gradients as well.
func TestCutsTrainAndExport(t *testing.T) {
	plain, env, _ := patchworkRun(t)
	start := t.TempDir()
	convert(t, plain.Model, modeltest.Patchwork, start, modeltest.Patchwork) // without the towers
	plain.Model = start
	want, err := Train(context.Background(), plain, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	cut := *plain
	cut.Model, cut.OutputDir = t.TempDir(), filepath.Join(t.TempDir(), "cut")
	convert(t, plain.Model, modeltest.Patchwork, cut.Model, recut())
	cutEnv := newEnv(t)
	cutEnv.Families = []model.Family{recut()}
	got, err := Train(context.Background(), &cut, Options{Env: cutEnv})
	if err != nil {
		t.Fatal(err)
	}
	same := func(what, got, want string) {
		t.Helper()
		back, plainly := t.TempDir(), t.TempDir()
		convert(t, got, recut(), back, modeltest.Patchwork)
		convert(t, want, modeltest.Patchwork, plainly, modeltest.Patchwork)
		sameTensors(t, what, back, tensorsOf(t, plainly))
	}
	same("the run's", got.Model, want.Model)
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		outs := []string{filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "cut")}
		for i, o := range []export.Options{{Checkpoint: lastCheckpoint(t, plain), Model: plain.Model},
			{Checkpoint: lastCheckpoint(t, &cut), Model: cut.Model}} {
			o.Dir, o.DType = outs[i], d
			if _, err := export.HuggingFace(context.Background(), []*session.Env{env, cutEnv}[i], o); err != nil {
				t.Fatal(err)
			}
		}
		same(d.String(), outs[1], outs[0])
	}
}
