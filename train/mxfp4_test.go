package train

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
)

// ossConfig is a gpt-oss for the byte tokenizer, whose rows are whole blocks of MXFP4.
var ossConfig = map[string]any{"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32, "head_dim": 16,
	"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16, "torch_dtype": "bfloat16",
	"rope_theta":          150000.0,
	"quantization_config": map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": []string{"lm_head"}}}

// writeOSS writes a gpt-oss whose experts are random blocks, with scales of all sizes that a quantizer could choose.
func writeOSS(t testing.TB) string {
	t.Helper()
	plain := maps.Clone(ossConfig)
	delete(plain, "quantization_config")
	dir, from := writeConfig(t, ossConfig), writeModel(t, plain)
	w, err := hf.OpenWeights(from)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var specs []hf.TensorSpec
	for _, x := range m.Tensors() {
		if !m.InMXFP4(x.Name) {
			specs = append(specs, hf.TensorSpec{Name: x.Name, DType: tensor.BF16, Shape: x.Shape})
			continue
		}
		pair, err := hf.MXFP4Specs(x.Name, x.Shape)
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, pair[:]...)
	}
	f, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), specs)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 5))
	for _, s := range specs {
		b := make([]byte, s.Bytes())
		switch {
		case strings.HasSuffix(s.Name, "_scales"):
			for i := range b {
				b[i] = byte(116 + r.IntN(6))
			}
		case strings.HasSuffix(s.Name, "_blocks"):
			for i := range b {
				most := uint32(1 + i/16%7) // of the block's codes
				b[i] = byte(r.Uint32N(most+1) | r.Uint32N(most+1)<<4 | r.Uint32()&0x88)
			}
		default:
			half := make([]uint16, s.Shape.Elems())
			if err := w.ReadBF16(s.Name, half, 0); err != nil {
				t.Fatal(err)
			}
			b = hf.BytesOf(half)
		}
		if err := f.Write(s.Name, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// numbersOf are the numbers of a model directory's tensors in bf16, by name, and the type of each on file.
func numbersOf(t testing.TB, dir string) (values map[string][]uint16, types map[string]string) {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	values, types = map[string][]uint16{}, map[string]string{}
	for _, name := range w.Names() {
		info, _ := w.Info(name)
		half := make([]uint16, info.Shape.Elems())
		if err := w.ReadBF16(name, half, 0); err != nil {
			t.Fatal(err)
		}
		values[name], types[name] = half, info.Type
	}
	return values, types
}

// quantizationOf is the method that a model's config.json states; "" without one.
func quantizationOf(t testing.TB, dir string) string {
	t.Helper()
	var c struct {
		Quantization struct {
			Method string `json:"quant_method"`
		} `json:"quantization_config"`
	}
	if err := json.Unmarshal([]byte(files(t, dir)["config.json"]), &c); err != nil {
		t.Fatal(err)
	}
	return c.Quantization.Method
}

// A model with experts in MXFP4 is trained, and written in bf16. Its checkpoint and that model are exported in MXFP4,
// where experts that were not trained have the numbers that they came with.
func TestMXFP4TrainsAndExports(t *testing.T) {
	for name, trainOnly := range map[string][]string{"all": nil, "no experts": {"lm_head.weight", "*.self_attn.*"}} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.Model, c.MaxSteps, c.WarmupSteps, c.TrainOnly = writeOSS(t), 2, 1, trainOnly
			c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "f32"}
			env, said := newEnv(t), &bytes.Buffer{}
			env.Progress = said
			sum, err := Train(t.Context(), c, Options{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(said.String(),
				"the model has experts in MXFP4: the run reads them as bf16, which is exact, and "+
					"writes its model in bf16; millrace export writes MXFP4 with --dtype mxfp4\n") {
				t.Errorf("it says %s", said)
			}
			before, was := numbersOf(t, c.Model)
			after, is := numbersOf(t, sum.Model)
			if len(before) != len(after) || quantizationOf(t, sum.Model) != "" || quantizationOf(t,
				c.Model) != "mxfp4" {
				t.Errorf("%d tensors became %d, %q", len(before), len(after), quantizationOf(t, sum.Model))
			}
			packs := 0
			for n := range before {
				if is[n] != "BF16" {
					t.Errorf("%s is written in %s", n, is[n])
				}
				expert := was[n] == hf.MXFP4
				if expert {
					packs++
				}
				if same := slices.Equal(before[n], after[n]); expert && same != (trainOnly != nil) {
					t.Errorf("%s is as it was: %v", n, same)
				}
			}
			if packs != 4 {
				t.Errorf("%d tensors were in MXFP4", packs)
			}

			// In MXFP4 again: of the checkpoint, of the run's model, and of the model in MXFP4 itself.
			out := t.TempDir()
			for to, o := range map[string]export.Options{
				"checkpoint": {Checkpoint: lastCheckpoint(t, c), Model: c.Model}, "model": {Model: sum.Model},
				"itself": {Model: c.Model},
			} {
				o.MXFP4, o.Dir = true, filepath.Join(out, to)
				done, err := export.HuggingFace(t.Context(), env, o)
				if err != nil {
					t.Fatal(err)
				}
				if done.DType != "mxfp4" || quantizationOf(t, o.Dir) != "mxfp4" {
					t.Errorf("%+v, %q", done, quantizationOf(t, o.Dir))
				}
				want := after
				if to == "itself" {
					want = before
				}
				got, types := numbersOf(t, o.Dir)
				for n := range want {
					if types[n] != was[n] {
						t.Errorf("%s: %s is in %s", to, n, types[n])
					}
					exact := types[n] != hf.MXFP4 || trainOnly != nil || to == "itself"
					if same := slices.Equal(got[n], want[n]); same != exact {
						t.Errorf("%s: %s has the same numbers: %v", to, n, same)
					}
				}
			}

			// And in other formats from MXFP4: no number changes.
			for _, dtype := range []tensor.DType{tensor.BF16, tensor.F32, tensor.F16} {
				dir := filepath.Join(out, dtype.String())
				if _, err := export.HuggingFace(t.Context(), env, export.Options{Model: c.Model, Dir: dir,
					DType: dtype}); err != nil {
					t.Fatal(err)
				}
				if quantizationOf(t, dir) != "" {
					t.Errorf("%v: its configuration has %q", dtype, quantizationOf(t, dir))
				}
				got, _ := numbersOf(t, dir)
				for n := range before {
					if was[n] == hf.MXFP4 && !slices.Equal(got[n], before[n]) {
						t.Errorf("%v: %s differs", dtype, n)
					}
				}
			}
		})
	}
}

// An export of a checkpoint in MXFP4 rounds the exact weights and not those of bf16, which other tensors have.
func TestMXFP4RoundsMasters(t *testing.T) {
	keys := maps.Clone(ossConfig)
	delete(keys, "quantization_config")
	keys["torch_dtype"] = "float32"
	c := smallConfig(t)
	c.Model, c.MaxSteps, c.WarmupSteps = writeModel(t, keys), 2, 1
	c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "f32"}
	env := newEnv(t)
	if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	exportTo := func(name string, o export.Options) map[string]string {
		o.Dir = filepath.Join(out, name)
		if o.Model == "" {
			o.Model, o.Checkpoint = c.Model, lastCheckpoint(t, c)
		}
		if _, err := export.HuggingFace(t.Context(), env, o); err != nil {
			t.Fatal(name, err)
		}
		return tensorsOf(t, o.Dir)
	}
	got := exportTo("mxfp4", export.Options{MXFP4: true})
	exportTo("f32", export.Options{DType: tensor.F32})
	used := exportTo("bf16", export.Options{DType: tensor.BF16})
	exact := exportTo("f32-mxfp4", export.Options{Model: filepath.Join(out, "f32"), MXFP4: true})
	rounded := exportTo("bf16-mxfp4", export.Options{Model: filepath.Join(out, "bf16"), MXFP4: true})
	differ, packs := 0, 0
	for name := range got {
		want := used[name]
		if strings.HasSuffix(name, "_blocks") || strings.HasSuffix(name, "_scales") {
			packs++
			want = exact[name]
			if rounded[name] != want {
				differ++
			}
		}
		if want == "" || got[name] != want {
			t.Errorf("%s is not that of the exact weights, or of bf16", name)
		}
	}
	if packs != 8 || differ == 0 {
		t.Errorf("of %d tensors in MXFP4, %d differ if bf16 is rounded", packs, differ)
	}
}

// What has no form in MXFP4 is refused before anything is written.
func TestMXFP4ExportRefused(t *testing.T) {
	narrow := maps.Clone(ossConfig)
	delete(narrow, "quantization_config")
	narrow["hidden_size"] = 48
	for want, dir := range map[string]string{
		"models of kind llama have no tensors in MXFP4": writeModel(t, nil),
		"it needs experts, a multiple of 32 inputs":     writeModel(t, narrow),
	} {
		out := filepath.Join(t.TempDir(), "out")
		_, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Model: dir, Dir: out, MXFP4: true})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
		if files(t, out) != nil {
			t.Error("something is written")
		}
	}
}
