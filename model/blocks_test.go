package model_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// llama are the keys of a small decoder.
var llama = map[string]any{"vocab_size": 700, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
	"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}

func patchwork(t testing.TB, doc []byte) (*model.Model, error) {
	t.Helper()
	c, err := hf.ParseConfig("config.json", doc)
	check(t, err)
	return model.New(c, modeltest.Patchwork)
}

// Layers of two kinds have layouts of their own, which those of one kind share, and tiles are as large as the largest
// one.
func TestBlocksOfTwoKinds(t *testing.T) {
	m, err := patchwork(t, modeltest.PatchworkConfig(llama))
	check(t, err)
	narrow, wide, again := m.Parts[m.BlockParts[0]].Layout, m.Parts[m.BlockParts[1]].Layout,
		m.Parts[m.BlockParts[2]].Layout
	if narrow != again || narrow == wide || *m.Blocks[0] != *m.Blocks[2] || *m.Blocks[0] == *m.Blocks[1] {
		t.Error("layers 0 and 2 are to be alike, and 1 is to differ")
	}
	if all, _ := wide.Params(); m.Head.TileRows != (int(all)/m.Hidden/64+1)*64 || narrow.WeightElems >= wide.WeightElems {
		t.Errorf("tiles have %d rows, the largest block %d parameters", m.Head.TileRows, all)
	}
	var vectors []string
	for _, layout := range []*tensor.Layout{narrow, wide} {
		for i, f := range layout.Fields {
			if matrices := 7; (len(f.Shape) == 2) != (i < matrices) || f.Decay != (i < matrices) {
				t.Errorf("%s is field %d", f.Name, i)
			}
			if len(f.Shape) == 1 {
				vectors = append(vectors, strings.TrimSuffix(f.Name, ".weight"))
			}
		}
	}
	want := strings.Fields(`mixer_norm feed_norm q.bias k.bias v.bias o.bias sinks gate.bias up.bias down.bias
		mixer_norm feed_norm q_norm k_norm`)
	if diff := cmp.Diff(want, vectors); diff != "" {
		t.Errorf("vectors (-want +got):\n%s", diff)
	}
	for _, out := range m.Tensors() {
		if !strings.HasPrefix(out.Name, "model.language_model.") && out.Name != "lm_head.weight" {
			t.Errorf("a tensor is called %s", out.Name)
		}
	}
}

// A feed-forward in parts needs the rule Pre.
func TestRuleOfParts(t *testing.T) {
	family := modeltest.Patchwork
	family.Read = func(c *hf.Config, r *hf.ConfigReader, s *model.Spec) {
		modeltest.Patchwork.Read(c, r, s)
		s.Blocks[1].Rule, s.Blocks[1].FeedForward = nn.Sandwich, nn.SplitGLU{Inner: 4, Groups: 2}
	}
	c, err := hf.ParseConfig("config.json", modeltest.PatchworkConfig(llama))
	check(t, err)
	_, err = model.New(c, family)
	if err == nil || !strings.Contains(err.Error(), "layer 1: a feed-forward in parts needs the rule Pre") {
		t.Errorf("%v", err)
	}
}

// Keys of a nested configuration are as strictly read as others, under their full names.
func TestTextConfig(t *testing.T) {
	with := func(key string, value any) []byte {
		keys := maps.Clone(llama)
		keys[key] = value
		return modeltest.PatchworkConfig(keys)
	}
	plain := string(modeltest.PatchworkConfig(llama))
	for _, c := range []struct {
		name, says string
		doc        []byte
	}{
		{"an inert key", "", with("eos_token_id", 3)},
		{"an unknown key", `"text_config.rope_dance" is not supported`, with("rope_dance", 3)},
		{"a bad key", `"text_config.vocab_size" is "many"`, with("vocab_size", "many")},
		{"an unknown key outside", `"audio_config" is not supported`,
			[]byte(strings.Replace(plain, "{", `{"audio_config":{"depth":2},`, 1))},
		{"none", `"text_config" is missing: an object is expected`, []byte(`{"model_type": "patchwork"}`)},
		{"another family's", `"text_config" is not supported`, []byte(strings.Replace(plain, `"patchwork"`, `"llama", "vocab_size": 3,
			"hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 2`, 1))},
	} {
		_, err := patchwork(t, c.doc)
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// edited are the weights of a golden variant without a tensor, and with more of nine numbers each.
func edited(t *testing.T, variant, leftOut string, more ...string) *hf.Weights {
	from, err := hf.OpenWeights(modeltest.Load(t, variant).Dir)
	check(t, err)
	defer from.Close()
	var specs []hf.TensorSpec
	for _, name := range from.Names() {
		if info, _ := from.Info(name); name != leftOut {
			specs = append(specs, hf.TensorSpec{Name: name, Shape: info.Shape, DType: tensor.F32})
		}
	}
	for _, name := range more {
		specs = append(specs, hf.TensorSpec{Name: name, Shape: tensor.Shape{9}, DType: tensor.F32})
	}
	dir := t.TempDir()
	w, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), specs)
	check(t, err)
	for _, s := range specs {
		all := make([]byte, s.Shape.Elems()*4)
		if !slices.Contains(more, s.Name) {
			check(t, from.ReadAt(s.Name, all, 0))
		}
		check(t, w.Write(s.Name, all))
	}
	check(t, w.Commit())
	weights, err := hf.OpenWeights(dir)
	check(t, err)
	t.Cleanup(func() { check(t, weights.Close()) })
	return weights
}

// Gemma 4 carries keys and values of layers that take those of others, and of no other layer.
func TestCarriedOfTakers(t *testing.T) {
	name := func(layer, tensor string) string {
		return "model.language_model.layers." + layer + ".self_attn." + tensor
	}
	m := mustBuild(t, "gemma4-shared", nil)
	w := edited(t, "gemma4-shared", "", name("2", "k_proj.weight"), name("4", "k_norm.weight"),
		name("4", "v_proj.weight"))
	check(t, m.Check(t.Context(), w))
	want := []model.Carried{
		{Pattern: name("*", "k_proj.weight"), Names: []string{name("2", "k_proj.weight")}, Bytes: 36},
		{Pattern: name("*", "v_proj.weight"), Names: []string{name("4", "v_proj.weight")}, Bytes: 36},
		{Pattern: name("*", "k_norm.weight"), Names: []string{name("4", "k_norm.weight")}, Bytes: 36}}
	if diff := cmp.Diff(want, m.Carried(w)[:3]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, err := range []error{
		m.Check(t.Context(), edited(t, "gemma4-shared", name("1", "k_proj.weight"))),
		m.Check(t.Context(), edited(t, "gemma4-shared", "", name("2", "k_proj.bias"))),
		mustBuild(t, "gemma4", nil).Check(t.Context(), edited(t, "gemma4", "", name("1", "v_proj.weight"))),
	} {
		if err == nil || !strings.Contains(err.Error(), "_proj.") {
			t.Errorf("%v", err)
		}
	}
}

// GLM 4.5 carries its constants, and the layer after its last one; what a later layer had would be of another model.
func TestCarriedByLayer(t *testing.T) {
	m := mustBuild(t, "glm4_moe", nil)
	from, err := hf.OpenWeights(modeltest.Load(t, "glm4_moe").Dir)
	check(t, err)
	defer from.Close()
	correction := func(layer string) string { return "model.layers." + layer + ".mlp.gate.e_score_correction_bias" }
	open := func(leftOut string, more ...string) *hf.Weights { return edited(t, "glm4_moe", leftOut, more...) }
	w := open("", "model.layers.3.eh_proj.weight", correction("3"))
	check(t, m.Check(t.Context(), w))
	want := []model.Carried{{Pattern: "model.layers.3.*", Names: []string{"model.layers.3.eh_proj.weight",
		correction("3")}, Bytes: 72},
		{Pattern: correction("*"), Names: []string{correction("1"), correction("2")}, Bytes: 72}}
	if diff := cmp.Diff(want, m.Carried(w)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	check(t, m.ReadConstants(w))
	for layer, got := range m.Constants {
		if layer == 0 {
			if got != nil {
				t.Errorf("the dense layer has the constants %v", got)
			}
			continue
		}
		want := make([]float32, 9)
		check(t, from.ReadF32(correction(strconv.Itoa(layer)), want, 0))
		if !slices.Equal(got, want) {
			t.Errorf("layer %d: %v, want %v", layer, got, want)
		}
	}
	if err := m.Check(t.Context(), open("", "model.layers.4.eh_proj.weight")); err == nil || !strings.Contains(err.Error(),
		"no place in the glm4_moe") {
		t.Errorf("a tensor of a layer that is not there: %v", err)
	}
	few := open(correction("2"))
	for _, err := range []error{m.Check(t.Context(), few), m.ReadConstants(few)} {
		if err == nil || !strings.Contains(err.Error(), correction("2")) || strings.Contains(err.Error(), "\n") {
			t.Errorf("constants are missing: %v", err)
		}
	}
}

// The tensors that a family carries are found by its patterns, and any other tensor is refused as before.
func TestCarried(t *testing.T) {
	m, err := patchwork(t, modeltest.PatchworkConfig(llama))
	check(t, err)
	open := func(more ...string) *hf.Weights {
		dir := t.TempDir()
		specs := []hf.TensorSpec{}
		for _, out := range m.Tensors() {
			specs = append(specs, hf.TensorSpec{Name: out.Name, DType: tensor.BF16, Shape: out.Shape})
		}
		for _, name := range more {
			specs = append(specs, hf.TensorSpec{Name: name, Shape: tensor.Shape{2, 3}, Type: "I64"})
		}
		w, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), specs)
		check(t, err)
		for _, s := range specs {
			size := int64(2)
			if s.Type != "" {
				size = 8
			}
			check(t, w.Write(s.Name, make([]byte, s.Shape.Elems()*size)))
		}
		check(t, w.Commit())
		weights, err := hf.OpenWeights(dir)
		check(t, err)
		t.Cleanup(func() { check(t, weights.Close()) })
		return weights
	}
	w := open("mtp.b", "model.visual.x.y", "mtp.a")
	check(t, m.Check(t.Context(), w))
	want := []model.Carried{{Pattern: "model.visual.*", Names: []string{"model.visual.x.y"}, Bytes: 48},
		{Pattern: "mtp.*", Names: []string{"mtp.a", "mtp.b"}, Bytes: 96}}
	if diff := cmp.Diff(want, m.Carried(w)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := m.Carried(open()); len(got) != 0 {
		t.Errorf("nothing is carried, and found is %v", got)
	}
	if err := m.Check(t.Context(), open("mtp.a", "visual.x")); err == nil || !strings.Contains(err.Error(), `"visual.x" has no place`) {
		t.Errorf("a tensor of no pattern: %v", err)
	}
	if mustBuild(t, "llama", nil).Carries() {
		t.Error("llama carries something")
	}
}

// The declaration of a family with two kinds of blocks stays below 40 lines.
func TestFamilyIsShort(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("modeltest", "family_patchwork.go"))
	check(t, err)
	if n := strings.Count(string(text), "\n"); n >= 40 {
		t.Errorf("%d lines", n)
	}
	if slices.Contains(model.Families(), "patchwork") {
		t.Error("a made-up family is offered to users")
	}
}
