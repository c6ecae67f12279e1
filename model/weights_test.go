package model_test

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// newValues are values full of rubbish, so that a missing write shows.
func newValues(p *model.Part, split bool) model.Values {
	if !split {
		v := model.Values{F32: make([]float32, p.Layout.WeightElems)}
		for i := range v.F32 {
			v.F32[i] = float32(math.NaN())
		}
		return v
	}
	v := model.Values{High: make([]uint16, p.Layout.WeightElems), Low: make([]int16, p.Layout.StateElems)}
	for i := range v.High {
		v.High[i] = 0x7fc0
	}
	for i := range v.Low {
		v.Low[i] = 77
	}
	return v
}

// checkPadding fails unless all elements that no field covers are zero.
func checkPadding(t *testing.T, p *model.Part, v model.Values) {
	t.Helper()
	weights, state := make([]bool, p.Layout.WeightElems), make([]bool, p.Layout.StateElems)
	for _, f := range p.Layout.Fields {
		for i := range f.Elems {
			weights[f.First+i] = true
			if f.State >= 0 {
				state[f.State+i] = true
			}
		}
	}
	for i, covered := range weights {
		if !covered && (v.F32 != nil && v.F32[i] != 0 || v.High != nil && v.High[i] != 0) {
			t.Fatalf("%s: element %d of the padding is not zero", p.Name, i)
		}
	}
	for i, covered := range state {
		if !covered && v.Low != nil && v.Low[i] != 0 {
			t.Fatalf("%s: low half %d of the padding is not zero", p.Name, i)
		}
	}
}

// TestReadPart reads each tensor through its parts and compares it with the file, exactly, in both forms.
func TestReadPart(t *testing.T) {
	for _, variant := range []string{"llama-bias", "qwen3", "qwen3-bias-untied"} {
		dir := modeltest.Load(t, variant).Dir
		w, err := hf.OpenWeights(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		m, err := model.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Check(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		for _, split := range []bool{false, true} {
			values := make([]model.Values, len(m.Parts))
			for i := range m.Parts {
				p := &m.Parts[i]
				values[i] = newValues(p, split)
				if err := m.ReadPart(w, p, values[i]); err != nil {
					t.Fatal(err)
				}
				checkPadding(t, p, values[i])
			}
			for _, out := range m.Tensors() {
				want := make([]float32, out.Shape.Elems())
				if err := w.ReadF32(out.Name, want, 0); err != nil {
					t.Fatal(err)
				}
				if d := modeltest.MaxDiff(gather(m, values, out), want); d != 0 {
					t.Errorf("%s: %s differs by %g, split %v", variant, out.Name, d, split)
				}
			}
		}
	}
}

// GPT-2 is published without what the names of its tensors begin with, and with masks. It reads as what transformers
// saves of it.
func TestNamesWithoutBase(t *testing.T) {
	dir := modeltest.Load(t, "gpt2").Dir
	m, err := model.Read(dir)
	check(t, err)
	w, err := m.OpenWeights(dir)
	check(t, err)
	defer w.Close()
	const mask = "h.1.attn.bias"
	specs := []hf.TensorSpec{{Name: mask, DType: tensor.F32, Shape: tensor.Shape{1, 1, 2, 2}}}
	for _, of := range m.Tensors() {
		name, cut := strings.CutPrefix(of.Name, "transformer.")
		if !cut {
			t.Errorf("%s has another name in transformers", of.Name)
		}
		specs = append(specs, hf.TensorSpec{Name: name, DType: tensor.F32, Shape: of.Shape})
	}
	short := filepath.Join(t.TempDir(), "published")
	to, err := hf.CreateModel(short, specs, hf.WriteOptions{})
	check(t, err)
	for _, spec := range specs {
		bytes := make([]byte, 4*spec.Shape.Elems())
		if spec.Name != mask {
			check(t, w.ReadAt("transformer."+spec.Name, bytes, 0))
		}
		check(t, to.Write(spec.Name, bytes))
	}
	check(t, to.AddFile("config.json", config(t, "gpt2", nil)))
	check(t, to.Commit())
	published, err := m.OpenWeights(short)
	check(t, err)
	defer published.Close()
	check(t, m.Check(t.Context(), published))
	carried := m.Carried(published)
	if len(carried) != 1 || !slices.Equal(carried[0].Names, []string{"transformer." + mask}) || carried[0].Bytes != 16 {
		t.Errorf("%v is carried, not the mask", carried)
	}
	for i := range m.Parts {
		want, got := newValues(&m.Parts[i], false), newValues(&m.Parts[i], false)
		check(t, m.ReadPart(w, &m.Parts[i], want))
		check(t, m.ReadPart(published, &m.Parts[i], got))
		if modeltest.MaxDiff(got.F32, want.F32) != 0 {
			t.Errorf("%s differs", m.Parts[i].Name)
		}
	}
}

// TestPiecesOfParts fills parts piece by piece, from a checkpoint and at random, and compares them with whole ones.
func TestPiecesOfParts(t *testing.T) {
	dir := filepath.Join("modeltest", "testdata", "qwen3-bias-untied")
	w, err := hf.OpenWeights(dir)
	check(t, err)
	defer w.Close()
	m, err := model.Read(dir)
	check(t, err)
	for how, fill := range map[string]func(*model.Part, model.Values) error{
		"read":      func(p *model.Part, v model.Values) error { return m.ReadPart(w, p, v) },
		"at random": func(p *model.Part, v model.Values) error { m.InitPart(5, p, v); return nil },
	} {
		for _, split := range []bool{false, true} {
			for i := range m.Parts {
				p := &m.Parts[i]
				whole, pieces := newValues(p, split), newValues(p, split)
				check(t, fill(p, whole))
				for _, piece := range []int64{tensor.Align, 7 * tensor.Align} {
					for first := int64(0); first < p.Layout.WeightElems; first += piece {
						v := model.Values{First: first}
						end := min(first+piece, p.Layout.WeightElems)
						if split {
							v.High, v.Low = pieces.High[first:end], pieces.Low[first:end]
						} else {
							v.F32 = pieces.F32[first:end]
						}
						check(t, fill(p, v))
					}
					if !slices.Equal(pieces.F32, whole.F32) || !slices.Equal(pieces.High, whole.High) || !slices.Equal(pieces.Low, whole.Low) {
						t.Fatalf("%s in pieces of %d, split %v: %s differs", how, piece, split, p.Name)
					}
				}
			}
		}
	}
}

// TestReadTiles reads tensors that are cut into tiles and larger than what is converted at once.
func TestReadTiles(t *testing.T) {
	m := mustBuild(t, "llama", map[string]any{"intermediate_size": 2000, "vocab_size": 15000, "num_hidden_layers": 1})
	if len(m.HeadTiles) < 3 {
		t.Fatalf("%d tiles", len(m.HeadTiles))
	}
	w := writeElems(t, specs(m, tensor.F32), func(i int64) float32 { return float32(i) + 0.25 })
	for _, split := range []bool{false, true} {
		values := make([]model.Values, len(m.Parts))
		for i := range m.Parts {
			values[i] = newValues(&m.Parts[i], split)
			check(t, m.ReadPart(w, &m.Parts[i], values[i]))
		}
		for _, out := range m.Tensors() {
			for i, x := range gather(m, values, out) {
				if x != float32(i)+0.25 {
					t.Fatalf("%s: element %d is %v", out.Name, i, x)
				}
			}
		}
	}
}

// gather puts a tensor together from its pieces.
func gather(m *model.Model, values []model.Values, out model.Tensor) []float32 {
	var all []float32
	for _, piece := range out.Pieces {
		f := &m.Parts[piece.Part].Layout.Fields[piece.Field]
		x := make([]float32, f.Elems)
		values[piece.Part].Elems(f, 0, x[:f.Elems/2])
		values[piece.Part].Elems(f, f.Elems/2, x[f.Elems/2:])
		all = append(all, x...)
	}
	return all
}

// TestFrozenPart: a frozen field has no low half and is rounded to nearest even.
func TestFrozenPart(t *testing.T) {
	m := mustBuild(t, "llama", nil)
	w, err := hf.OpenWeights(filepath.Join("modeltest", "testdata", "llama"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p := m.Parts[m.BlockParts[0]]
	var fields []tensor.Field
	for _, f := range p.Layout.Fields {
		f.Trainable = f.Name != "o.weight" && f.Name != "mixer_norm.weight"
		fields = append(fields, f.Field)
	}
	if p.Layout, err = tensor.NewLayout(fields...); err != nil {
		t.Fatal(err)
	}
	v := newValues(&p, true)
	if err := m.ReadPart(w, &p, v); err != nil {
		t.Fatal(err)
	}
	checkPadding(t, &p, v)
	for i := range p.Layout.Fields {
		f := &p.Layout.Fields[i]
		got, want := make([]float32, f.Elems), make([]float32, f.Elems)
		v.Elems(f, 0, got)
		if err := w.ReadF32(p.Tensors[i].Name, want, 0); err != nil {
			t.Fatal(err)
		}
		for j := range want {
			if !f.Trainable {
				want[j] = tensor.F32FromBF16(tensor.BF16FromF32(want[j]))
			}
			if got[j] != want[j] {
				t.Fatalf("%s[%d] is %v, want %v", f.Name, j, got[j], want[j])
			}
		}
	}
}

// writeWeights writes a checkpoint with one value for all elements.
func writeWeights(t *testing.T, specs []hf.TensorSpec, value float32) *hf.Weights {
	t.Helper()
	return writeElems(t, specs, func(int64) float32 { return value })
}

// writeElems writes a checkpoint whose tensors have these elements.
func writeElems(t *testing.T, specs []hf.TensorSpec, elem func(i int64) float32) *hf.Weights {
	t.Helper()
	dir := t.TempDir()
	fw, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		var body []byte
		for i := range s.Shape.Elems() {
			value := elem(i)
			switch s.DType {
			case tensor.F32:
				body = binary.LittleEndian.AppendUint32(body, math.Float32bits(value))
			case tensor.F16:
				body = binary.LittleEndian.AppendUint16(body, tensor.F16FromF32(value))
			case tensor.BF16:
				body = binary.LittleEndian.AppendUint16(body, tensor.BF16FromF32(value))
			}
		}
		if err := fw.Write(s.Name, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := fw.Commit(); err != nil {
		t.Fatal(err)
	}
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func specs(m *model.Model, dtype tensor.DType) []hf.TensorSpec {
	var s []hf.TensorSpec
	for _, out := range m.Tensors() {
		s = append(s, hf.TensorSpec{Name: out.Name, DType: dtype, Shape: out.Shape})
	}
	return s
}

func TestSourceTypes(t *testing.T) {
	m := mustBuild(t, "qwen3", nil)
	p := &m.Parts[m.NormPart]
	f := &p.Layout.Fields[0]
	for _, dtype := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		value := float32(1 + 1.0/1024) // exact in binary16, not in bf16
		if dtype == tensor.BF16 {
			value = 1.5
		}
		v := newValues(p, true)
		if err := m.ReadPart(writeWeights(t, specs(m, dtype), value), p, v); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, f.Elems)
		v.Elems(f, 0, got)
		if got[3] != value {
			t.Errorf("%v: %v became %v", dtype, value, got[3])
		}
		if dtype == tensor.BF16 && v.Low[f.State] != 0 {
			t.Errorf("a bf16 weight has the low half %d", v.Low[f.State])
		}
	}
}

func TestWeightErrors(t *testing.T) {
	m := mustBuild(t, "qwen3", nil)
	read := func(w *hf.Weights) error {
		for i := range m.Parts {
			if err := m.ReadPart(w, &m.Parts[i], newValues(&m.Parts[i], true)); err != nil {
				return err
			}
		}
		return nil
	}
	fails := func(what string, err error, want ...string) {
		t.Helper()
		if err == nil {
			t.Errorf("%s is accepted", what)
			return
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q does not say %q in one line", what, err, part)
			}
		}
	}
	good := specs(m, tensor.F32)
	if err := m.Check(t.Context(), writeWeights(t, good, 1)); err != nil {
		t.Error(err)
	}
	missing := writeWeights(t, good[1:], 1)
	fails("a missing tensor", m.Check(t.Context(), missing), "model.embed_tokens.weight", "no tensor")
	fails("a missing tensor, read", read(missing), "model.embed_tokens.weight", "no tensor")

	wrong := specs(m, tensor.F32)
	wrong[1].Shape = tensor.Shape{3, 4}
	fails("a wrong shape", m.Check(t.Context(), writeWeights(t, wrong, 1)), wrong[1].Name, "[3 4]")
	fails("a wrong shape, read", read(writeWeights(t, wrong, 1)), wrong[1].Name, "[3 4]")

	extra := append(specs(m, tensor.F32), hf.TensorSpec{Name: "model.layers.0.self_attn.q_proj.bias", DType: tensor.F32, Shape: tensor.Shape{48}})
	fails("a tensor too many", m.Check(t.Context(), writeWeights(t, extra, 1)), "q_proj.bias", "no place")

	fails("a NaN", read(writeWeights(t, good, float32(math.NaN()))), "model.embed_tokens.weight", "not a finite")
	fails("a value beyond bf16", read(writeWeights(t, good, math.MaxFloat32)), "model.embed_tokens.weight", "too large for bf16")
}

func TestInitPart(t *testing.T) {
	init := func(m *model.Model, seed uint64, split bool) map[string][]float32 {
		values := make([]model.Values, len(m.Parts))
		for i := range m.Parts {
			values[i] = newValues(&m.Parts[i], split)
			m.InitPart(seed, &m.Parts[i], values[i])
			checkPadding(t, &m.Parts[i], values[i])
		}
		all := map[string][]float32{}
		for _, out := range m.Tensors() {
			all[out.Name] = gather(m, values, out)
		}
		return all
	}
	set := map[string]any{"vocab_size": 2000, "initializer_range": 0.5, "attention_bias": true}
	m := mustBuild(t, "qwen3", set)
	if len(m.EmbedTiles) < 3 {
		t.Fatalf("%d tiles", len(m.EmbedTiles))
	}
	a := init(m, 1, true)
	for name, x := range a {
		var sum, squares float64
		for _, v := range x {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		n := float64(len(x))
		switch {
		case strings.HasSuffix(name, "norm.weight"):
			if sum != n || squares != n {
				t.Errorf("%s is not all ones", name)
			}
		case strings.HasSuffix(name, ".bias"):
			if squares != 0 {
				t.Errorf("%s is not all zeros", name)
			}
		default: // six standard errors
			if math.Abs(sum/n) > 6*0.5/math.Sqrt(n) || math.Abs(squares/n/0.25-1) > 6*math.Sqrt(2/n) {
				t.Errorf("%s has mean %g and mean square %g", name, sum/n, squares/n)
			}
		}
	}
	const embed = "model.embed_tokens.weight"
	if b := init(m, 1, false); modeltest.MaxDiff(a[embed], b[embed]) != 0 {
		t.Error("the two forms differ")
	}
	if b := init(m, 2, true); modeltest.MaxDiff(a[embed], b[embed]) == 0 {
		t.Error("the seed does not matter")
	}
	// Norms that add 1 to their weights begin with zeros.
	for name, x := range init(mustBuild(t, "gemma2", nil), 1, true) {
		if strings.HasSuffix(name, "norm.weight") && slices.ContainsFunc(x, func(v float32) bool { return v != 0 }) {
			t.Errorf("gemma2: %s is not all zeros", name)
		}
	}
	// A model with larger blocks is cut otherwise, and keeps the numbers.
	set["intermediate_size"] = 400
	wide := mustBuild(t, "qwen3", set)
	if b := init(wide, 1, true); wide.Head.TileRows == m.Head.TileRows || modeltest.MaxDiff(a[embed], b[embed]) != 0 {
		t.Error("random weights depend on the cut")
	}
}

// TestTrainFLOPs compares with six times the parameters that products use, plus attention.
func TestTrainFLOPs(t *testing.T) {
	m := mustBuild(t, "llama", nil)
	var n int64
	for _, out := range m.Tensors() {
		if len(out.Shape) == 2 && out.Name != "model.embed_tokens.weight" {
			n += out.Shape.Elems()
		}
	}
	docs := []int{10, 3}
	pairs := int64(10*11/2 + 3*4/2)
	a := m.Blocks[0].Mixer.(nn.Attention)
	want := 6*n*13 + int64(len(m.Blocks))*3*2*2*pairs*int64(a.Heads*a.HeadDim)
	if got := m.TrainFLOPs(docs); got != want {
		t.Errorf("%d, want %d", got, want)
	}
}

// Where embeddings are tied, files may have the head's weight, by the family's own name for it.
func TestNamesOfTiedHeads(t *testing.T) {
	for variant, want := range map[string]string{"llama": "lm_head.weight", "gpt_neox": "embed_out.weight",
		"gemma3": "language_model.lm_head.weight"} {
		m := mustBuild(t, variant, map[string]any{"tie_word_embeddings": true})
		if !m.Tied || m.HeadName() != want {
			t.Errorf("%s: tied: %v, the head is %q, want %q", variant, m.Tied, m.HeadName(), want)
		}
	}
}

// Values of 24 bits are the nearest ones to fp32 numbers, and are read back and copied as they are: whole, and in
// pieces.
func TestValuesOf24Bits(t *testing.T) {
	m, err := model.Read(filepath.Join("modeltest", "testdata", "qwen3-bias-untied"))
	check(t, err)
	for i := range m.Parts {
		p := &m.Parts[i]
		l := p.Layout
		of24 := func() model.Values {
			return model.Values{High: make([]uint16, l.WeightElems), Low8: make([]int8, l.StateElems)}
		}
		whole, exact := of24(), newValues(p, false)
		m.InitPart(5, p, whole)
		m.InitPart(5, p, exact)
		again, pieces := of24(), of24()
		for j := range again.Low8 {
			again.Low8[j], pieces.Low8[j] = 77, 77
		}
		check(t, whole.CopyTo(l, again, l))
		const piece = 3 * tensor.Align
		for first := int64(0); first < l.WeightElems; first += piece {
			end := min(first+piece, l.WeightElems)
			check(t, exact.CopyTo(l, model.Values{First: first, High: pieces.High[first:end], Low8: pieces.Low8[first:end]}, l))
		}
		for _, got := range []model.Values{again, pieces} {
			if !slices.Equal(got.High, whole.High) || !slices.Equal(got.Low8, whole.Low8) {
				t.Fatalf("%s: copies differ", p.Name)
			}
		}
		for j := range l.Fields {
			f := &l.Fields[j]
			want, got := make([]float32, f.Elems), make([]float32, f.Elems)
			exact.Elems(f, 0, want)
			whole.Elems(f, 0, got)
			for k, x := range want {
				high, low := tensor.SplitF24(x, tensor.NearestF24)
				if got[k] != tensor.JoinF24(high, low) {
					t.Fatalf("%s %s: element %d is %v, of %v", p.Name, f.Name, k, got[k], x)
				}
			}
		}
	}
}
