package model_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
)

func TestGrouped(t *testing.T) {
	m, err := model.Read(modeltest.Load(t, "qwen3").Dir)
	if err != nil {
		t.Fatal(err)
	}
	first := func(name string) bool { return strings.HasPrefix(name, "model.layers.0.") }
	g, err := m.Grouped(func(name string) (int, bool) {
		if strings.Contains(name, "norm") {
			return 2, !first(name)
		}
		return 0, !first(name)
	})
	if err != nil {
		t.Fatal(err)
	}
	var frozen []string
	for _, tensor := range m.Tensors() {
		if first(tensor.Name) {
			frozen = append(frozen, tensor.Name)
		}
	}
	got := g.Untrained()
	slices.Sort(got)
	slices.Sort(frozen)
	if len(frozen) == 0 || !slices.Equal(got, frozen) {
		t.Errorf("not trained are %v, want %v", got, frozen)
	}
	if len(m.Untrained()) > 0 || len(m.Frozen().Untrained()) != len(m.Tensors()) {
		t.Error("the model itself has changed")
	}
	if l := g.Parts[g.BlockParts[0]].Layout; l.StateElems != 0 || l.WeightElems != m.Parts[m.BlockParts[0]].Layout.WeightElems {
		t.Errorf("block 0: %d elements of weights, %d of state", l.WeightElems, l.StateElems)
	}
	norms := 0
	for _, part := range g.BlockParts[1:] {
		for _, f := range g.Parts[part].Layout.Fields {
			if isNorm := strings.Contains(f.Name, "norm"); isNorm != (f.ParamGroup == 2) || !f.Trainable {
				t.Errorf("%s: group %d, trained %v", f.Name, f.ParamGroup, f.Trainable)
			}
		}
		for _, run := range g.Parts[part].Layout.Stretches() {
			norms += run.ParamGroup / 2
		}
	}
	if norms == 0 {
		t.Error("the optimizer sees no stretch of group 2")
	}
	if len(g.BlockParts) > 2 && g.Parts[g.BlockParts[1]].Layout != g.Parts[g.BlockParts[2]].Layout {
		t.Error("blocks that are trained alike do not share a layout")
	}
}

func TestGroupedRefuses(t *testing.T) {
	m, err := model.Read(modeltest.Load(t, "qwen3").Dir)
	if err != nil {
		t.Fatal(err)
	}
	const want = "model.layers.0.self_attn.q_proj.weight and model.layers.0.self_attn.k_proj.weight are one matrix"
	isQuery := func(name string) bool { return strings.Contains(name, "q_proj") }
	for what, of := range map[string]func(string) (int, bool){
		"frozen": func(name string) (int, bool) { return 0, !isQuery(name) },
		"group": func(name string) (int, bool) {
			if isQuery(name) {
				return 1, true
			}
			return 0, true
		},
	} {
		if _, err := m.Grouped(of); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := m.Grouped(func(string) (int, bool) { return 0, false }); err == nil || !strings.Contains(err.Error(), "nothing to train") {
		t.Errorf("nothing trained: %v", err)
	}
}
