package model_test

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// A critic's row is in the final norm's part and in no file, begins at 0 in any form of the weights, and leaves the
// model that it was added to alone.
func TestWithValues(t *testing.T) {
	c, err := hf.ParseConfig("config.json", []byte(`{"model_type": "llama", "vocab_size": 50, "hidden_size": 16,
		"intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}`))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	norm := m.Parts[m.NormPart].Layout
	valued, err := m.WithValues()
	if err != nil {
		t.Fatal(err)
	}
	p := &valued.Parts[m.NormPart]
	row, ok := p.Layout.Field(nn.ValueRow)
	if !ok || !slices.Equal(row.Shape, []int{1, 16}) || !row.Trainable || m.Parts[m.NormPart].Layout != norm ||
		len(norm.Fields) != 1 {
		t.Fatalf("fields %+v, and the model had %+v", p.Layout.Fields, norm.Fields)
	}
	before, _ := m.Params()
	if after, _ := valued.Params(); after != before+16 {
		t.Errorf("%d parameters, and the model has %d", after, before)
	}
	if again, err := valued.WithValues(); err != nil || again != valued {
		t.Errorf("a second row: %v", err)
	}
	for what, form := range map[string]func(*model.Model) (*model.Form, error){"GGUF": (*model.Model).GGUF,
		"checkpoint": func(m *model.Model) (*model.Form, error) { return m.Checkpoint(), nil }} {
		was, errWas := form(m)
		is, err := form(valued)
		if errWas != nil || err != nil || len(was.Tensors) != len(is.Tensors) {
			t.Errorf("%s: %v, %v", what, errWas, err)
		}
	}
	n := p.Layout.WeightElems
	for what, v := range map[string]model.Values{"f32": {F32: make([]float32, n)},
		"split": {High: make([]uint16, n), Low: make([]int16, p.Layout.StateElems)}} {
		for i := range v.F32 {
			v.F32[i] = 7
		}
		for i := range v.High {
			v.High[i] = 7
		}
		for i := range v.Low {
			v.Low[i] = 7
		}
		valued.InitPart(3, p, v)
		got := make([]float32, 16)
		if v.Elems(&row, 0, got); slices.ContainsFunc(got, func(x float32) bool { return x != 0 }) {
			t.Errorf("%s: a new critic is %v", what, got)
		}
	}
}
