package model_test

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/tensor"
)

// packedSizes make gpt-oss' golden variant one whose rows are whole blocks.
var packedSizes = map[string]any{"hidden_size": 64, "intermediate_size": 32,
	"quantization_config": map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": []string{"lm_head"}}}

// packed is a small gpt-oss whose experts are random blocks with random scales, and the same numbers in bf16.
func packed(t *testing.T) (m *model.Model, inMXFP4, inBF16 *hf.Weights) {
	t.Helper()
	c, err := hf.ParseConfig("config.json", config(t, "gpt_oss", packedSizes))
	if err != nil {
		t.Fatal(err)
	}
	if m, err = model.New(c); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(7, 7))
	var small []hf.TensorSpec
	data := map[string][]byte{}
	random := func(n int64, of func() byte) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = of()
		}
		return b
	}
	code := func() byte { return byte(r.Uint32()) }
	scale := func() byte { return byte(r.IntN(253)) }
	for _, x := range m.Tensors() {
		if !m.InMXFP4(x.Name) {
			s := hf.TensorSpec{Name: x.Name, DType: tensor.BF16, Shape: x.Shape}
			small = append(small, s)
			data[s.Name] = random(s.Bytes(), func() byte { return byte(r.IntN(64)) })
			continue
		}
		pair, err := hf.MXFP4Specs(x.Name, x.Shape)
		if err != nil {
			t.Fatal(err)
		}
		small = append(small, pair[:]...)
		data[pair[0].Name], data[pair[1].Name] = random(pair[0].Bytes(), code), random(pair[1].Bytes(), scale)
	}
	inMXFP4 = written(t, small, data)
	var large []hf.TensorSpec
	for _, x := range m.Tensors() {
		large = append(large, hf.TensorSpec{Name: x.Name, DType: tensor.BF16, Shape: x.Shape})
		if m.InMXFP4(x.Name) {
			half := make([]uint16, x.Shape.Elems())
			if err := inMXFP4.ReadBF16(x.Name, half, 0); err != nil {
				t.Fatal(err)
			}
			for _, h := range half {
				data[x.Name] = append(data[x.Name], byte(h), byte(h>>8))
			}
		}
	}
	return m, inMXFP4, written(t, large, data)
}

// plainReader hides that files have tensors transposed.
type plainReader struct{ model.TensorReader }

// A model reads the same from experts in MXFP4 as from the same numbers in bf16: whole parts, pieces of them, and
// tensors in both orders.
func TestReadMXFP4(t *testing.T) {
	m, inMXFP4, inBF16 := packed(t)
	for _, w := range []*hf.Weights{inMXFP4, inBF16} {
		if err := m.Check(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		for _, split := range []bool{false, true} {
			want := newValues(p, split)
			if err := m.ReadPart(inBF16, p, want); err != nil {
				t.Fatal(err)
			}
			for name, from := range map[string]model.TensorReader{"by rows": inMXFP4,
				"by ranges": plainReader{inMXFP4}} {
				got := newValues(p, split)
				if err := m.ReadPart(from, p, got); err != nil {
					t.Fatal(err)
				}
				for j := range want.F32 {
					if math.Float32bits(got.F32[j]) != math.Float32bits(want.F32[j]) {
						t.Fatalf("%s %s: element %d is %g, want %g", p.Name, name, j, got.F32[j], want.F32[j])
					}
				}
				if !slices.Equal(got.High, want.High) || !slices.Equal(got.Low, want.Low) {
					t.Fatalf("%s %s: halves differ", p.Name, name)
				}
			}
			if split {
				continue
			}
			for first := int64(0); first < p.Layout.WeightElems; first += 1000 {
				piece := model.Values{F32: make([]float32, min(1000, p.Layout.WeightElems-first)), First: first}
				if err := m.ReadPart(inMXFP4, p, piece); err != nil {
					t.Fatal(err)
				}
				for j, x := range piece.F32 {
					if y := want.F32[first+int64(j)]; math.Float32bits(x) != math.Float32bits(y) {
						t.Fatalf("%s from %d on: element %d is %g, want %g", p.Name, first, j, x, y)
					}
				}
			}
		}
	}
	fields, n := m.Checkpoint().Fields(inMXFP4), 0
	for _, x := range m.Tensors() {
		if !m.InMXFP4(x.Name) {
			continue
		}
		n++
		elems := x.Shape.Elems()
		want, got := make([]float32, elems), make([]float32, elems)
		if err := inMXFP4.ReadTransposedF32(x.Name, want, 0); err != nil {
			t.Fatal(err)
		}
		turned := x.Transposed()
		for at := int64(0); at < elems; at += 777 {
			if err := turned.Read(got[at:min(at+777, elems)], at, fields); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s differs in the order of the file", x.Name)
		}
		if back := turned.Transposed(); !back.Shape.Equal(x.Shape) || !slices.Equal(back.Pieces, x.Pieces) {
			t.Errorf("%s: %+v turned twice is %+v", x.Name, x.Pieces, back.Pieces)
		}
	}
	if want := 2 * len(m.Blocks); n != want {
		t.Errorf("%d tensors are in MXFP4, want %d", n, want)
	}
}

// Only gpt-oss accepts weights in MXFP4, and no other method. Tensors of other shapes are refused.
func TestMXFP4Refused(t *testing.T) {
	for _, c := range []struct {
		variant, method, want string
	}{
		{"gpt_oss", "gptq", `quantized ("gptq"), and only those of the original model`},
		{"gpt_oss", "bitsandbytes", `quantized ("bitsandbytes")`},
		{"qwen3_moe", "mxfp4", `quantized ("mxfp4")`},
		{"llama", "mxfp4", `quantized ("mxfp4")`},
	} {
		doc := config(t, c.variant, map[string]any{"quantization_config": map[string]any{"quant_method": c.method}})
		parsed, err := hf.ParseConfig("config.json", doc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := model.New(parsed); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: %v", c.variant, c.method, err)
		}
	}
	m, inMXFP4, _ := packed(t)
	info, _ := inMXFP4.Info("model.layers.1.mlp.experts.gate_up_proj")
	whole, err := os.ReadFile(info.File)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		`layers.1.mlp.experts.gate_up_proj_scales`: `layers.1.mlp.experts.gate_up_proj_scalez`,
		`layers.1.mlp.experts.gate_up_proj_blocks`: `layers.1.mlp.experts.gate_up_proj_blockz`,
		`"shape":[5,64,2,16]`:                      `"shape":[5,2,64,16]`,
		`"shape":[5,64,2]`:                         `"shape":[5,2,64]`,
	} {
		dir := t.TempDir()
		doc := strings.Replace(string(whole), from, to, 1)
		if doc == string(whole) {
			t.Fatalf("%s is not in the file", from)
		}
		if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
		w, err := hf.OpenWeights(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = m.Check(t.Context(), w)
		w.Close()
		if err == nil || !strings.Contains(err.Error(), `gate_up_proj"`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", to, err)
		}
	}
}
