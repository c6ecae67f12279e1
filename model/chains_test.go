package model_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
)

// towered is a modeltest.Towered of two layers, whose spec a test may change before it is built.
func towered(t *testing.T, change func(*model.Spec)) (*model.Model, error) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"model_type": "towered", "vocab_size": 100, "hidden_size": 16,
		"intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
		"head_dim": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
		"tie_word_embeddings": false, "hidden_act": "silu"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := hf.ParseConfig("config.json", text)
	if err != nil {
		t.Fatal(err)
	}
	family := modeltest.Towered
	family.Read = func(c *hf.Config, r *hf.ConfigReader, s *model.Spec) {
		modeltest.Towered.Read(c, r, s)
		change(s)
	}
	return model.New(c, family)
}

// All chains have one numbering; names count layers in their chain.
func TestChains(t *testing.T) {
	m, err := towered(t, func(*model.Spec) {})
	if err != nil {
		t.Fatal(err)
	}
	var begin, end []int
	for layer := range m.Layers() {
		if m.Begins(layer) {
			begin = append(begin, layer)
		}
		if m.Ends(layer) {
			end = append(end, layer)
		}
		if want := map[bool]int{true: 8, false: 16}[layer >= 1 && layer <= 3]; m.Width(layer) != want {
			t.Errorf("layer %d is %d wide, want %d", layer, m.Width(layer), want)
		}
	}
	if !slices.Equal(begin, []int{1, 4}) || !slices.Equal(end, []int{3}) {
		t.Errorf("chains begin at %v and end in sides at %v", begin, end)
	}
	for _, layer := range begin {
		if table := m.TableOf(layer); table == nil || m.FirstOf(table) != layer || table.Cols != m.Width(layer) {
			t.Errorf("layer %d begins with rows of %+v", layer, table)
		}
	}
	if m.TableOf(2) != nil {
		t.Error("layer 2 begins with rows of a table")
	}
	side := m.Sides[0]
	if side.Cols != 8 || !slices.Equal(side.Layers, []int{3, 4}) || !slices.Equal(side.Readers, []int{4}) {
		t.Errorf("the side between the chains: %+v", side)
	}
	var names []string
	for i := range m.Parts {
		names = append(names, m.Parts[i].Name)
	}
	if got, want := strings.Join(names, " "), "embed.0 tower.embed.0 tower.block.0 tower.block.1 tower.block.1.group.0 "+
		"tower.block.1.group.1 tower.block.2 block.0 block.1 norm head.0"; got != want {
		t.Errorf("parts %s\nwant %s", got, want)
	}
	known := map[string]bool{}
	for _, tensor := range m.Tensors() {
		known[tensor.Name] = true
	}
	for _, name := range []string{"tower.model.embed_tokens.weight", "tower.model.layers.2.self_attn.k_proj.weight",
		"model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"} {
		if !known[name] {
			t.Errorf("no tensor %s", name)
		}
	}
	if known["model.layers.0.self_attn.k_proj.weight"] { // the tower's rows are its keys
		t.Error("the text's first layer has keys of its own")
	}
}

// Chains that do not fit are refused.
func TestChainsThatDoNotFit(t *testing.T) {
	for want, change := range map[string]func(*model.Spec){
		`chain "" has no name`:             func(s *model.Spec) { s.Chains[0].Name = "" },
		`chain "tower" has no name, no bl`: func(s *model.Spec) { s.Chains[0].Blocks = nil },
		"no columns":                       func(s *model.Spec) { s.Chains[0].Hidden = 0 },
		"has 8 columns of side 0":          func(s *model.Spec) { s.Chains[0].Hidden = 12 },
		"no layer reads side":              func(s *model.Spec) { s.Chains[0].Side = 1; s.Blocks[0].Mixer = s.Attention },
		"reads side 0, which no layer":     func(s *model.Spec) { s.Chains[0].Side = 1 },
		"makes side 0 again": func(s *model.Spec) {
			second := s.Chains[0]
			second.Name = "second"
			second.Blocks = slices.Clone(second.Blocks)
			s.Chains = append(s.Chains, second)
		},
		"tower.layer 1: ": func(s *model.Spec) { s.Chains[0].Blocks[1].Rule = nn.Scaled; s.Chains[0].Blocks[1].Residual = 0 },
	} {
		if _, err := towered(t, change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
