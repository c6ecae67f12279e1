package train

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// towers are tensors that a decoder does not have, of types that nothing computes with.
var towers = []hf.TensorSpec{
	{Name: "model.visual.blocks.0.weight", Shape: tensor.Shape{300, 1000}, Type: "F8_E4M3"},
	{Name: "model.visual.packed_blocks", Shape: tensor.Shape{1, 2, 1, 16}, Type: "U8"}, // MXFP4
	{Name: "model.visual.packed_scales", Shape: tensor.Shape{1, 2, 1}, Type: "U8"},
	{Name: "model.visual.patch", Shape: tensor.Shape{3, 5}, DType: tensor.BF16},
	{Name: "mtp.steps", Shape: tensor.Shape{}, Type: "I64"},
	{Name: "mtp.none", Shape: tensor.Shape{0, 4}, DType: tensor.F32},
}

// writePatchwork writes a model of the made-up family in F32, with random weights, layers of two kinds and the towers.
func writePatchwork(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	keys := map[string]any{}
	for k, v := range bytesConfig {
		keys[k] = v
	}
	keys["num_hidden_layers"] = 3
	write(t, filepath.Join(dir, "config.json"), string(modeltest.PatchworkConfig(keys)))
	c, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c, modeltest.Patchwork)
	if err != nil {
		t.Fatal(err)
	}
	specs := slices.Clone(towers)
	values := map[string][]byte{}
	for i, s := range towers {
		n := s.Shape.Elems() * map[string]int64{"F8_E4M3": 1, "": 2, "I64": 8, "U8": 1}[s.Type]
		for b := range n {
			values[s.Name] = append(values[s.Name], byte(b*7+int64(i)))
		}
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		v := model.Values{F32: make([]float32, p.Layout.WeightElems)}
		m.InitPart(3, p, v)
		for _, src := range p.Tensors {
			f := p.Layout.Fields[src.Field]
			values[src.Name] = append(values[src.Name], hf.BytesOf(v.F32[f.First:f.First+f.Elems])...)
		}
	}
	for _, x := range m.Tensors() {
		specs = append(specs, hf.TensorSpec{Name: x.Name, DType: tensor.F32, Shape: x.Shape})
	}
	w, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if len(values[s.Name]) > 0 {
			if err := w.Write(s.Name, values[s.Name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// patchworkRun is a run of the made-up family, and where it says what it says.
func patchworkRun(t testing.TB) (*runfile.Config, *session.Env, *bytes.Buffer) {
	t.Helper()
	c := smallConfig(t)
	c.Model, c.Tokenizer, c.MaxSteps = writePatchwork(t), "bytes", 4
	env, said := newEnv(t), &bytes.Buffer{}
	env.Progress, env.Families = said, []model.Family{modeltest.Patchwork}
	return c, env, said
}

// tensorsOf are the bytes of a model directory's tensors with their types and shapes, by name.
func tensorsOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	all := map[string]string{}
	for _, tensorName := range w.Names() {
		for _, name := range w.Stored(tensorName) {
			info, _ := w.Info(name)
			b := make([]byte, info.Bytes)
			if err := w.ReadAt(name, b, 0); err != nil {
				t.Fatal(err)
			}
			all[name] = fmt.Sprintf("%s %v %x", info.Type, info.Shape, b)
		}
	}
	return all
}

// sameTensors compares all tensors of two directories.
func sameTensors(t testing.TB, what, dir string, want map[string]string) {
	t.Helper()
	got := tensorsOf(t, dir)
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: %s differs", what, name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d tensors, want %d", what, len(got), len(want))
	}
}

// A model of a made-up family whose layers are of two kinds is loaded, trained to the same bits in two placements, and
// exported with all that it carries, by the run, from a checkpoint and as a copy.
func TestPatchworkTrainsAndExports(t *testing.T) {
	c, env, said := patchworkRun(t)
	sum, err := Train(context.Background(), c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if !(sum.LastLoss < sum.FirstLoss-0.5) {
		t.Errorf("%+v", sum)
	}
	for _, line := range []string{
		"4 tensors (293.0 KiB) of model.visual.* are carried: they are not trained and travel to the export unchanged\n",
		"2 tensors (8 B) of mtp.* are carried: they are not trained and travel to the export unchanged\n",
	} {
		if !strings.Contains(said.String(), line) {
			t.Errorf("%q is not in\n%s", line, said)
		}
	}
	before, after := tensorsOf(t, c.Model), tensorsOf(t, sum.Model)
	if len(after) != len(before) {
		t.Errorf("%d tensors became %d", len(before), len(after))
	}
	trained := 0
	for name, was := range before {
		carried := slices.ContainsFunc(towers, func(s hf.TensorSpec) bool { return s.Name == name })
		if carried && after[name] != was {
			t.Errorf("%s is carried and differs", name)
		}
		if !carried && after[name] != was {
			trained++
		}
	}
	if want := len(before) - len(towers); trained != want {
		t.Errorf("%d tensors were trained, want %d", trained, want)
	}

	streamed := *c
	streamed.OutputDir, streamed.Memory = filepath.Join(t.TempDir(), "streamed"), budget(t, "3MiB")
	other, err := Train(context.Background(), &streamed, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if p := said.String(); strings.Count(p, "weights streamed") != 1 {
		t.Errorf("the two runs have one placement:\n%s", p)
	}
	sameTensors(t, "streamed", other.Model, after)

	out := filepath.Join(t.TempDir(), "exported")
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Checkpoint: lastCheckpoint(t, c),
		Model: c.Model,
		Dir:   out}); err != nil {
		t.Fatal(err)
	}
	sameTensors(t, "from the checkpoint", out, after)
	again := filepath.Join(t.TempDir(), "copied")
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Model: out, Dir: again,
		DType: tensor.F32}); err != nil {
		t.Fatal(err)
	}
	sameTensors(t, "copied", again, after)
}

func lastCheckpoint(t testing.TB, c *runfile.Config) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(rundir.CheckpointsDir(c), "step-*"))
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return slices.Max(all)
}

// Carried tensors are in the model's directory alone: a run that continues, or an export, says in a line that they are
// gone or have changed.
func TestCarriedTensorsGoneOrChanged(t *testing.T) {
	c, env, said := patchworkRun(t)
	if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	weights := filepath.Join(c.Model, "model.safetensors")
	whole, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(whole)
	at := bytes.Index(changed, []byte{0, 7, 14, 21, 28, 35}) // the first bytes of the tower
	changed[at+250_000] ^= 1
	more := *c
	more.MaxSteps, more.ResumeWith = 6, []string{"max_steps"}
	from := lastCheckpoint(t, c)
	ways := map[string]func(out string) error{
		"resume": func(string) error {
			_, err := Train(context.Background(), &more, Options{Env: env})
			return err
		},
		"export": func(out string) error {
			_, err := export.HuggingFace(context.Background(), env, export.Options{Checkpoint: from, Model: c.Model, Dir: out})
			return err
		},
	}
	for how, run := range ways {
		for _, bad := range []struct {
			name, says string
			weights    []byte
		}{
			{"changed", "the tensors that the run carries have changed in " + c.Model, changed},
			{"gone", "cannot be read: " + c.Model + " has neither model.safetensors", nil},
		} {
			if err := os.Remove(weights); err != nil {
				t.Fatal(err)
			}
			if bad.weights != nil {
				write(t, weights, string(bad.weights))
			}
			out := filepath.Join(t.TempDir(), "out")
			if err := run(out); err == nil || !strings.Contains(err.Error(), bad.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %s: %v", how, bad.name, err)
			}
			if files(t, out) != nil {
				t.Errorf("%s, %s: something was written", how, bad.name)
			}
			write(t, weights, string(whole))
		}
	}
	if err := ways["resume"](""); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "resuming after step 4") {
		t.Errorf("the run did not continue:\n%s", said)
	}
}

// A run that comes to its end, weeks after its beginning, says the same, and writes no model.
func TestCarriedTensorsChangeDuringARun(t *testing.T) {
	c, env, _ := patchworkRun(t)
	weights := filepath.Join(c.Model, "model.safetensors")
	whole, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	src, err := source.OpenModel(context.Background(), env, c.Model)
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Carry(context.Background(), env); err != nil {
		t.Fatal(err)
	}
	read := func(_ context.Context, part int) (model.Values, error) {
		return model.Values{F32: make([]float32, src.Model.Parts[part].Layout.WeightElems)}, nil
	}
	for _, bad := range []struct {
		says   string
		change func()
	}{
		{"", func() {}},
		{"have changed in " + c.Model, func() {
			whole[bytes.Index(whole, []byte{0, 7, 14, 21, 28, 35})] ^= 1
			write(t, weights, string(whole))
		}},
		{"cannot be read: " + c.Model, func() {
			if err := os.Remove(weights); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		bad.change()
		out := filepath.Join(t.TempDir(), "out")
		err := export.Write(context.Background(), env, src, out, export.Format{DType: tensor.F32}, nil, hf.WriteOptions{},
			read)
		switch written := files(t, out) != nil; {
		case bad.says == "" && (err != nil || !written):
			t.Errorf("nothing has changed: %v", err)
		case bad.says != "" && (err == nil || !strings.Contains(err.Error(), bad.says) || written):
			t.Errorf("%q: %v, written %v", bad.says, err, written)
		}
	}
}
