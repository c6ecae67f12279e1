package model_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// cuts is a made-up family whose checkpoints hold tensors in every way: q, k and v in one; heads whose rows alternate;
// gate and up alternating in the columns of a transposed matrix; and parts stacked, in rows or transposed.
var cuts = model.Family{ModelType: "cuts", Names: model.Names{
	{Role: "embed_tokens.*", HF: "embed.*", GGUF: "e.*", CutGGUF: model.Transposed},
	{Role: "q.*", HF: "h.{layer}.qkv.*", GGUF: "b.{layer}.q.*", CutGGUF: model.Interleaved},
	{Role: "k.*", HF: "h.{layer}.qkv.*", GGUF: "b.{layer}.k.*", CutGGUF: model.Interleaved | model.Transposed},
	{Role: "v.*", HF: "h.{layer}.qkv.*", GGUF: "b.{layer}.v.*"},
	{Role: "o.*", HF: "h.{layer}.o.*", CutHF: model.Interleaved,
		GGUF: "b.{layer}.o.*", CutGGUF: model.PerHead | model.Transposed},
	{Role: "gate.*", HF: "h.{layer}.up.*", CutHF: model.Interleaved | model.Transposed, GGUF: "b.{layer}.gate.*"},
	{Role: "up.*", HF: "h.{layer}.up.*", CutHF: model.Interleaved | model.Transposed, GGUF: "b.{layer}.up.*"},
	{Role: "down.*", HF: "h.{layer}.down.*", CutHF: model.Transposed, GGUF: "b.{layer}.down.*", CutGGUF: model.Transposed},
	{Role: "part.gate.*", HF: "h.{layer}.experts.up.*", CutHF: model.Stacked, GGUF: "b.{layer}.gates.{part}.*"},
	{Role: "part.up.*", HF: "h.{layer}.experts.up.*", CutHF: model.Stacked, GGUF: "b.{layer}.ups.*", CutGGUF: model.Stacked},
	{Role: "part.down.*", HF: "h.{layer}.experts.down.*", CutHF: model.Stacked | model.Transposed, GGUF: "b.{layer}.downs.*"},
	{Role: "mixer_norm.*", HF: "h.{layer}.norm1.*", GGUF: "b.{layer}.n1.*"},
	{Role: "feed_norm.*", HF: "h.{layer}.norm2.*", GGUF: "b.{layer}.n2.*"},
	{Role: "norm.*", HF: "norm.*", GGUF: "n.*"}, {Role: "lm_head.*", HF: "head.*", GGUF: "out.*"},
}, Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.HeadDim(r)
	s.Rotary(r)
	s.Attention.QKVBias, s.Attention.OutBias, s.GLU.Bias = true, true, true
	feeds := []nn.FeedForward{s.GLU, nn.SplitGLU{Inner: 5, Groups: 3}}
	for l := range s.Layers {
		s.Blocks = append(s.Blocks, nn.Block{Mixer: s.Attention, FeedForward: feeds[l%2]})
	}
}}

const cutsConfig = `{"model_type": "cuts", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 6,
	"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}`

// Shapes, and by hand where element (r, c) of a field is in its tensor.
func TestCuts(t *testing.T) {
	c, err := hf.ParseConfig("config.json", []byte(cutsConfig))
	check(t, err)
	m, err := model.New(c, cuts)
	check(t, err)
	dir := t.TempDir()
	var specs []hf.TensorSpec
	shapes := map[string]tensor.Shape{}
	files := map[string][]float32{}
	for i, x := range m.Tensors() {
		specs = append(specs, hf.TensorSpec{Name: x.Name, DType: tensor.F32, Shape: x.Shape})
		shapes[x.Name] = x.Shape
		for e := range x.Shape.Elems() {
			files[x.Name] = append(files[x.Name], float32(i)+float32(e)/8192)
		}
	}
	for name, want := range map[string]tensor.Shape{"h.0.qkv.weight": {32, 16}, "h.0.qkv.bias": {32},
		"h.0.o.weight": {16, 16}, "h.0.up.weight": {16, 12}, "h.0.up.bias": {12}, "h.0.down.weight": {6, 16},
		"h.1.experts.up.weight": {3, 10, 16}, "h.1.experts.down.weight": {3, 5, 16}, "embed.weight": {300, 16}} {
		if !shapes[name].Equal(want) {
			t.Errorf("%s has shape %v, want %v", name, shapes[name], want)
		}
	}
	f, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), specs)
	check(t, err)
	for _, s := range specs {
		var bytes []byte
		for _, x := range files[s.Name] {
			b := math.Float32bits(x)
			bytes = append(bytes, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
		}
		check(t, f.Write(s.Name, bytes))
	}
	check(t, f.Commit())
	w, err := hf.OpenWeights(dir)
	check(t, err)
	defer w.Close()
	check(t, m.Check(t.Context(), w))

	for _, split := range []bool{false, true} {
		values := make([]model.Values, len(m.Parts))
		for i := range m.Parts {
			l := m.Parts[i].Layout
			values[i] = model.Values{F32: make([]float32, l.WeightElems)}
			if split {
				values[i] = model.Values{High: make([]uint16, l.WeightElems), Low: make([]int16, l.StateElems)}
			}
			check(t, m.ReadPart(w, &m.Parts[i], values[i]))
		}
		at := func(part, role string, r, c int) float32 {
			i := slices.IndexFunc(m.Parts, func(p model.Part) bool { return p.Name == part })
			for j := range m.Parts[i].Layout.Fields {
				f := &m.Parts[i].Layout.Fields[j]
				if f.Name == role {
					x := make([]float32, 1)
					cols := 1
					if len(f.Shape) == 2 {
						cols = f.Shape[1]
					}
					values[i].Elems(f, int64(r*cols+c), x)
					return x[0]
				}
			}
			panic(part + role)
		}
		for _, c := range []struct {
			part, role string
			r, c       int
			name       string
			elem       int
		}{
			{"block.0", "k.weight", 3, 5, "h.0.qkv.weight", (16+3)*16 + 5},
			{"block.0", "v.bias", 2, 0, "h.0.qkv.bias", 16 + 8 + 2},
			{"block.0", "o.weight", 8 + 2, 7, "h.0.o.weight", (8+2*2)*16 + 7}, // first half of head 1
			{"block.0", "o.weight", 4 + 1, 7, "h.0.o.weight", (2*1+1)*16 + 7}, // second half of head 0
			{"block.0", "o.bias", 4 + 3, 0, "h.0.o.bias", 2*3 + 1},            // and of a bias
			{"block.0", "gate.weight", 2, 9, "h.0.up.weight", 9*12 + 2*2},     // even columns
			{"block.0", "up.weight", 2, 9, "h.0.up.weight", 9*12 + 2*2 + 1},   // odd columns
			{"block.0", "up.bias", 5, 0, "h.0.up.bias", 11},                   // of a vector
			{"block.0", "down.weight", 3, 4, "h.0.down.weight", 4*16 + 3},     // transposed
			{"block.1.group.2", "up.weight", 1, 4, "h.1.experts.up.weight", (2*10+5+1)*16 + 4},
			{"block.1.group.1", "down.weight", 7, 2, "h.1.experts.down.weight", (1*5+2)*16 + 7},
		} {
			if got, want := at(c.part, c.role, c.r, c.c), files[c.name][c.elem]; got != want {
				t.Errorf("split %v: %s of %s at (%d, %d) is %v, want %v", split, c.role, c.part, c.r, c.c, got, want)
			}
		}
		// An export is what was imported, whichever ranges are asked for; and pieces of parts are those of the whole.
		fields := m.FieldsOf(func(part int) (model.Values, error) { return values[part], nil })
		rapid.Check(t, func(rt *rapid.T) {
			x := rapid.SampledFrom(m.Tensors()).Draw(rt, "tensor")
			n := int(x.Shape.Elems())
			first := rapid.IntRange(0, n-1).Draw(rt, "first")
			got := make([]float32, rapid.IntRange(1, n-first).Draw(rt, "n"))
			check(t, x.Read(got, int64(first), fields))
			if want := files[x.Name][first : first+len(got)]; !slices.Equal(got, want) {
				rt.Fatalf("%s[%d:] is %v, want %v", x.Name, first, got, want)
			}
			whole, err := m.ReadTensor(x.Name, func(part int) (model.Values, error) { return values[part], nil })
			if err != nil || !slices.Equal(whole, files[x.Name]) {
				rt.Fatalf("%s differs: %v", x.Name, err)
			}
			part := rapid.IntRange(0, len(m.Parts)-1).Draw(rt, "part")
			l := m.Parts[part].Layout
			from := int64(rapid.IntRange(0, int(l.WeightElems)-1).Draw(rt, "from"))
			piece := model.Values{F32: make([]float32, rapid.Int64Range(1, l.WeightElems-from).Draw(rt, "elems")), First: from}
			check(t, m.ReadPart(w, &m.Parts[part], piece))
			for i := range l.Fields {
				f := &l.Fields[i]
				for e := max(from, f.First); e < min(from+int64(len(piece.F32)), f.First+f.Elems); e++ {
					one := make([]float32, 1)
					values[part].Elems(f, e-f.First, one)
					if piece.F32[e-from] != one[0] {
						rt.Fatalf("%s: element %d of %s in a piece is %v, want %v", m.Parts[part].Name, e, f.Name, piece.F32[e-from], one[0])
					}
				}
			}
		})
	}
}

// inMemory are tensors by name.
type inMemory map[string][]float32

func (m inMemory) ReadF32(name string, dst []float32, first int64) error {
	copy(dst, m[name][first:first+int64(len(dst))])
	return nil
}

// From one form to another that cuts the fields otherwise, and back, some elements at a time.
func TestFormsOfCuts(t *testing.T) {
	c, err := hf.ParseConfig("config.json", []byte(cutsConfig))
	check(t, err)
	m, err := model.New(c, cuts)
	check(t, err)
	other, err := m.GGUF()
	check(t, err)
	convert := func(tensors []model.Tensor, from model.Fields) inMemory {
		to := inMemory{}
		for _, x := range tensors {
			all := make([]float32, x.Shape.Elems())
			for at := 0; at < len(all); at += 37 {
				check(t, x.Read(all[at:min(at+37, len(all))], int64(at), from))
			}
			to[x.Name] = all
		}
		return to
	}
	files := inMemory{}
	for i, x := range m.Tensors() {
		for e := range x.Shape.Elems() {
			files[x.Name] = append(files[x.Name], float32(i)+float32(e)/8192)
		}
	}
	others := convert(other.Tensors, m.Checkpoint().Fields(files))
	// Row 8+2 of q is the third of the first half of head 1, and element 5 of it is in qkv's row 10.
	if got, want := others["b.0.q.weight"][(8+2*2)*16+5], files["h.0.qkv.weight"][10*16+5]; got != want {
		t.Errorf("an element of q is %v, want %v", got, want)
	}
	// Row 8+2 of o is row 2 of head 1, and element 5 of it is in o's row 8+2*2 of a checkpoint, whose rows alternate.
	if got, want := others["b.0.o.weight"][1*16*8+5*8+2], files["h.0.o.weight"][(8+2*2)*16+5]; got != want {
		t.Errorf("an element of o is %v, want %v", got, want)
	}
	i := slices.IndexFunc(other.Tensors, func(x model.Tensor) bool { return x.Name == "b.0.o.weight" })
	if got, want := other.Tensors[i].Shape, (tensor.Shape{2, 16, 8}); !got.Equal(want) {
		t.Errorf("o has the shape %v, want %v", got, want)
	}
	if diff := cmp.Diff(files, convert(m.Tensors(), other.Fields(others))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Heads that are rotated in part have their rows in another order, by hand: of heads of 12 rows 6 are rotated, so a
// head's are 0 to 2, 6 to 8, 3 to 5, and 9 to 11. Where all are rotated, rows are in order.
func TestPartlyRotatedCut(t *testing.T) {
	places := []int{0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11}
	for _, partly := range []bool{true, false} {
		factor := 0.5
		if !partly {
			factor = 1
		}
		m := mustBuild(t, "glm4_moe", map[string]any{"rope_parameters": map[string]any{"rope_type": "default",
			"partial_rotary_factor": factor}})
		p := &m.Parts[m.BlockParts[1]]
		for _, f := range p.Layout.Fields {
			cols := 1
			if len(f.Shape) == 2 {
				cols = f.Shape[1]
			}
			name := strings.NewReplacer("q.", "q_proj.", "k.", "k_proj.", "v.", "v_proj.").Replace(f.Name)
			tensor, err := m.Tensor("model.layers.1.self_attn." + name)
			if err != nil {
				continue
			}
			turned := partly && !strings.HasPrefix(f.Name, "v.") && !strings.HasPrefix(f.Name, "o.")
			got := make([]float32, tensor.Shape.Elems())
			check(t, tensor.Read(got, 0, func(_, _ int, dst []float32, first int64) error {
				for i := range dst {
					dst[i] = float32(first + int64(i)) // the element of the field
				}
				return nil
			}))
			for place := range got[:len(got)/cols] {
				row := place
				if turned {
					row = place/12*12 + places[place%12]
				}
				for c := range cols {
					if want := float32(place*cols + c); got[row*cols+c] != want {
						t.Fatalf("partly %v: element (%d, %d) of %s is %v of its field, want %v", partly, row, c,
							tensor.Name, got[row*cols+c], want)
					}
				}
			}
			if tensor.InOrder() == turned {
				t.Errorf("partly %v: %s is in order: %v", partly, tensor.Name, !turned)
			}
		}
	}
}

// Random weights do not depend on the cut: no two rows of a model are alike.
func TestInitOfCuts(t *testing.T) {
	c, err := hf.ParseConfig("config.json", []byte(cutsConfig))
	check(t, err)
	m, err := model.New(c, cuts)
	check(t, err)
	seen := map[string]string{}
	for i := range m.Parts {
		p := &m.Parts[i]
		v := model.Values{F32: make([]float32, p.Layout.WeightElems)}
		m.InitPart(1, p, v)
		for _, f := range p.Layout.Fields {
			if len(f.Shape) != 2 {
				continue
			}
			for r := range f.Shape[0] {
				row := fmt.Sprint(v.F32[f.First+int64(r*f.Shape[1]):][:3])
				name := fmt.Sprint(p.Name, f.Name, r)
				if other := seen[row]; other != "" {
					t.Fatalf("rows %s and %s are alike", name, other)
				}
				seen[row] = name
			}
		}
	}
}

// A role without a name, and shares that do not make a tensor, are errors of one line.
func TestBadNames(t *testing.T) {
	c, err := hf.ParseConfig("config.json", []byte(cutsConfig))
	check(t, err)
	for says, change := range map[string]func(*model.Name){
		`no line for the tensor "o.weight"`: func(n *model.Name) {
			if n.Role == "o.*" {
				n.Role = "out.*"
			}
		},
		"h.0.up.weight has shares of different forms": func(n *model.Name) {
			if n.Role == "up.*" {
				n.CutHF = model.Rows
			}
		},
		"h.0.qkv.weight: 3 shares are no heads of 8 rows": func(n *model.Name) {
			if n.Role == "q.*" || n.Role == "k.*" || n.Role == "v.*" {
				n.CutHF = model.PerHead
			}
		},
		"no halves": func(n *model.Name) {
			n.CutHF = model.Rows
			if n.Role == "part.down.*" || n.Role == "part.gate.*" || n.Role == "part.up.*" {
				n.CutHF = model.Interleaved
			}
		},
	} {
		family := cuts
		family.Names = slices.Clone(cuts.Names)
		for i := range family.Names {
			change(&family.Names[i])
		}
		if _, err := model.New(c, family); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	family := cuts
	family.Names = slices.Clone(cuts.Names)
	family.Names[0].GGUF = ""
	m, err := model.New(c, family)
	check(t, err)
	if _, err := m.GGUF(); err == nil || !strings.Contains(err.Error(), `"embed_tokens.weight" of cuts`) {
		t.Errorf("a GGUF form without names: %v", err)
	}
}
