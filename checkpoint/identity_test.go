package checkpoint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

func parts(t *testing.T, name string, fields ...tensor.Field) []model.Part {
	l, err := tensor.NewLayout(fields...)
	must(t, err)
	p := model.Part{Name: name, Layout: l}
	for i, f := range fields {
		p.Tensors = append(p.Tensors, model.Source{Name: f.Name, Piece: model.Piece{Field: i}})
	}
	return []model.Part{p}
}

// The hash of a model is the one that checkpoints of earlier versions have.
func TestLayoutHashStays(t *testing.T) {
	m, err := model.Read("../model/modeltest/testdata/llama-bias")
	must(t, err)
	if got, want := layoutHash(m.Parts), "0c823f38596d9a0d4488da6a3b15bccadac91384bb29a69b886406964a864945"; got != want {
		t.Errorf("the hash is %s, want %s", got, want)
	}
}

// Whatever moves a number in an extent, or renames it, changes the hash; weight decay is not of the layout.
func TestLayoutHash(t *testing.T) {
	field := func(name string, trainable bool, shape ...int) tensor.Field {
		return tensor.Field{Name: name, Shape: shape, Trainable: trainable}
	}
	base := layoutHash(parts(t, "a", field("x", true, 4, 5), field("y", true, 3)))
	if again := layoutHash(parts(t, "a", field("x", true, 4, 5), field("y", true, 3))); again != base {
		t.Error("the same layout has two hashes")
	}
	decayed := field("x", true, 4, 5)
	decayed.Decay = true
	if layoutHash(parts(t, "a", decayed, field("y", true, 3))) != base {
		t.Error("weight decay moves no number")
	}
	glued := field("y", true, 3)
	glued.Glued = true
	for what, p := range map[string][]model.Part{
		"part":   parts(t, "b", field("x", true, 4, 5), field("y", true, 3)),
		"name":   parts(t, "a", field("z", true, 4, 5), field("y", true, 3)),
		"shape":  parts(t, "a", field("x", true, 5, 4), field("y", true, 3)),
		"order":  parts(t, "a", field("y", true, 3), field("x", true, 4, 5)),
		"frozen": parts(t, "a", field("x", false, 4, 5), field("y", true, 3)),
		"glued":  parts(t, "a", field("x", true, 4, 5), glued),
		"fewer":  parts(t, "a", field("x", true, 4, 5)),
	} {
		if layoutHash(p) == base {
			t.Errorf("%s: the hash is the same", what)
		}
	}
}

// A tensor's name in its part follows the last number; without a number it is the last word.
func TestNameInPart(t *testing.T) {
	for name, want := range map[string]string{"model.layers.3.self_attn.q_proj.weight": "self_attn.q_proj.weight",
		"h.3.experts.12.w1": "w1", "0.mlp.weight": "mlp.weight", "model.norm.weight": "weight", "weight": "weight"} {
		if got := nameInPart(name); got != want {
			t.Errorf("%s is %s in its part, want %s", name, got, want)
		}
	}
}

// Gradients are not state; the rest goes by name.
func TestSpecs(t *testing.T) {
	m := &model.Model{Type: "qwen3", Parts: parts(t, "norm", tensor.Field{Name: "x", Shape: tensor.Shape{7}, Trainable: true})}
	forms := store.Forms{store.Weights: store.Each(tensor.BF16), store.Low: store.Each(tensor.I16),
		store.Grad:        store.Each(tensor.BF16),
		store.FirstMoment: {Type: tensor.U8, Per: 2}, store.SecondMoment: store.Each(tensor.F32),
		store.GradSum: store.Each(tensor.F32)}
	var extents []store.Spec
	var want []Spec
	for i, form := range forms {
		kind := store.Kind(i)
		extents = append(extents, store.Spec{ID: store.ID{Part: 0, Kind: kind}, Bytes: 100 + int64(i), Piece: 40})
		if kind != store.Grad && kind != store.GradSum {
			want = append(want, Spec{ID{"norm", kind}, form.Type, 100 + int64(i), 40})
		}
	}
	if diff := cmp.Diff(want, Specs(m, extents, forms)); diff != "" {
		t.Error(diff)
	}
	id := Identify(m, []byte("{}"), "5a")
	if id.Type != "qwen3" || id.ConfigSHA256 != "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" ||
		id.LayoutSHA256 != layoutHash(m.Parts) ||
		id.CarriedSHA256 != "5a" {
		t.Errorf("%+v", id)
	}
}
