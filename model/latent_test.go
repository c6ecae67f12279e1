package model_test

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// The mixers and feed-forwards of each layer, as the golden configurations say.
func TestLatentBlocks(t *testing.T) {
	stretched := func(all float64) float64 { return 0.1*all*math.Log(8) + 1 }
	for variant, want := range map[string]struct {
		mixer nn.LatentAttention // without its frequencies
		scale float64
	}{
		"deepseek_v3": {nn.LatentAttention{Heads: 3, QueryRank: 11, KeyRank: 14, Plain: 7, Rotated: 6, ValueDim: 5,
			InBias: true, OutBias: true}, stretched(1.3) * stretched(1.3) / math.Sqrt(13)},
		"deepseek_v3-direct": {nn.LatentAttention{Heads: 2, KeyRank: 9, Plain: 5, Rotated: 6, ValueDim: 6, InBias: true,
			OutBias: true}, stretched(1) * stretched(1) / math.Sqrt(11)},
		"glm4_moe_lite": {nn.LatentAttention{Heads: 4, QueryRank: 10, KeyRank: 12, Plain: 6, Rotated: 4, ValueDim: 10},
			1 / math.Sqrt(10)},
		"deepseek_v2-groups": {nn.LatentAttention{Heads: 2, QueryRank: 8, KeyRank: 10, Plain: 4, Rotated: 4,
			ValueDim: 4}, 1 / math.Sqrt(8)},
		"deepseek_v2": {nn.LatentAttention{Heads: 2, KeyRank: 10, Plain: 6, Rotated: 6, ValueDim: 4},
			stretched(0.707) * stretched(0.707) / math.Sqrt(12)},
	} {
		m := mustBuild(t, variant, nil)
		for l, b := range m.Blocks {
			got := b.Mixer.(nn.LatentAttention)
			if got.Rope.HeadDim != got.Rotated || math.Abs(float64(got.Scale)/want.scale-1) > 1e-6 {
				t.Errorf("%s: block %d has scores times %g, want %g, and frequencies %+v", variant, l, got.Scale,
					want.scale, got.Rope)
			}
			got.Rope, got.Scale = nn.RopeFrequencies{}, 0
			want.mixer.Eps = 1e-6
			if got != want.mixer {
				t.Errorf("%s: block %d has %+v, want %+v", variant, l, got, want.mixer)
			}
			_, routed := b.FeedForward.(nn.Experts)
			if routed != (l > 0) {
				t.Errorf("%s: block %d has %T", variant, l, b.FeedForward)
			}
		}
		carries := !strings.HasPrefix(variant, "deepseek_v2")
		if m.Carries() != carries || (len(m.ConstantTensors()) > 0) != carries {
			t.Errorf("%s: carries %v; constants %v", variant, m.Carries(), m.ConstantTensors())
		}
	}
}

// What these configurations must not say, and what they may, such as what the published ones say.
func TestLatentConfig(t *testing.T) {
	for _, c := range []struct {
		variant string
		set     map[string]any
		says    string // "" if it is to be read
	}{
		{"deepseek_v3", map[string]any{"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
			"aux_loss_alpha": 0.001, "seq_aux": true, "ep_size": 1, "head_dim": absent, "qk_head_dim": absent,
			"rope_interleave": absent}, ""},
		{"deepseek_v3", map[string]any{"rope_parameters": absent, "rope_theta": 10000, "rope_scaling": map[string]any{
			"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
			"original_max_position_embeddings": 4096}}, ""},
		{"deepseek_v3", map[string]any{"pretraining_tp": 1, "torch_dtype": "bfloat16", "tie_word_embeddings": false,
			"auto_map": map[string]any{"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}, ""},
		{"deepseek_v3", map[string]any{"moe_layer_freq": 2}, `moe_layer_freq" is 2: supported is 1`},
		{"deepseek_v3", map[string]any{"scoring_func": "softmax"}, `supported is sigmoid`},
		{"deepseek_v3", map[string]any{"rope_interleave": false}, `supported is true`},
		{"deepseek_v3", map[string]any{"qk_rope_head_dim": 5, "head_dim": 5, "qk_head_dim": 12}, `need an even one`},
		{"deepseek_v3", map[string]any{"qk_head_dim": 14}, `supported is 13`},
		{"deepseek_v3", map[string]any{"v_head_dim": 14}, `values that are wider than keys (13)`},
		{"deepseek_v3", map[string]any{"v_head_dim": 1 << 19}, `heads that are together wider than 524288`},
		{"deepseek_v3", map[string]any{"kv_lora_rank": 1 << 20}, `more than 524288 is not supported`},
		{"deepseek_v3", map[string]any{"q_lora_rank": -1}, `it is from 1 to`},
		{"deepseek_v3", map[string]any{"q_lora_rank": 0}, `it is from 1 to`},
		{"deepseek_v3", map[string]any{"partial_rotary_factor": 0.5}, `supported is 1`},
		{"glm4_moe_lite", map[string]any{"partial_rotary_factor": 0.5}, `supported is 1`},
		{"glm4_moe_lite", map[string]any{"partial_rotary_factor": 1.0}, ""},
		{"deepseek_v3", map[string]any{"rope_parameters": map[string]any{"rope_type": "yarn", "rope_theta": 10000.0,
			"factor": 40.0, "original_max_position_embeddings": 512, "mscale_all_dim": 1e300}}, `the square of`},
		{"deepseek_v3", map[string]any{"rope_parameters": map[string]any{"rope_type": "yarn", "rope_theta": 10000.0,
			"factor": 40.0, "original_max_position_embeddings": 512, "mscale_all_dim": -10}}, `the square of`},
		{"deepseek_v3", map[string]any{"num_attention_heads": 1 << 17, "num_key_value_heads": 1 << 17},
			`more than 65536 in all layers`},
		{"deepseek_v3", map[string]any{"num_key_value_heads": 1}, `supported is 3`},
		{"deepseek_v3", map[string]any{"n_shared_experts": -1}, `it must not be negative`},
		{"glm4_moe_lite", map[string]any{"mlp_layer_types": absent, "first_k_dense_replace": 1}, ""},
		{"glm4_moe_lite", map[string]any{"mlp_layer_types": absent, "first_k_dense_replace": 2}, `supported is 1`},
		{"glm4_moe_lite", map[string]any{"mlp_layer_types": []string{"dense"}}, `it has 1 entries`},
		{"glm4_moe_lite", map[string]any{"mlp_layer_types": []string{"dense", "wide"}}, `layer 1 has "wide"`},
		{"deepseek_v2", map[string]any{"topk_method": "noaux_tc"}, `supported are greedy, group_limited_greedy`},
		{"deepseek_v2", map[string]any{"n_group": 0}, ""}, // which that method does not read
		{"deepseek_v2-groups", map[string]any{"n_group": absent}, `"n_group" is missing`},
		{"deepseek_v2-groups", map[string]any{"n_group": 12, "topk_group": 3}, ""},
		{"deepseek_v2-groups", map[string]any{"n_group": 5}, `12 experts into equal groups of 1 or more`},
		{"deepseek_v2-groups", map[string]any{"n_group": 12}, `2 groups have 2 experts, and each token has 3`},
		{"deepseek_v2", map[string]any{"norm_topk_prob": true}, `supported is false`},
	} {
		_, err := build(t, c.variant, c.set)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s with %v: %v", c.variant, c.set, err)
		}
	}
}

// Without a rank, queries have that of transformers, and null means a product of their own.
func TestAbsentQueryRank(t *testing.T) {
	for variant, want := range map[string]int{"deepseek_v3": 1536, "glm4_moe_lite": 768, "deepseek_v2": 1536} {
		for rank, set := range map[int]any{want: absent, 0: nil} {
			m := mustBuild(t, variant, map[string]any{"q_lora_rank": set})
			if got := m.Blocks[0].Mixer.(nn.LatentAttention).QueryRank; got != rank {
				t.Errorf("%s with q_lora_rank %v: %d, want %d", variant, set, got, rank)
			}
		}
	}
}

// A model reads the same from matrices in FP8 as from the same numbers in bf16. Its layer after the last one is carried
// in FP8, with its scales.
func TestReadFP8(t *testing.T) {
	m := mustBuild(t, "deepseek_v3", map[string]any{"quantization_config": map[string]any{"quant_method": "fp8",
		"fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": []int{128, 128}}})
	var specs, plain []hf.TensorSpec
	data, rounded := map[string][]byte{}, map[string][]byte{}
	add := func(name, typ string, shape tensor.Shape, elem func(i int) byte) {
		s := hf.TensorSpec{Name: name, Type: typ, Shape: shape}
		specs = append(specs, s)
		data[name] = make([]byte, s.Bytes())
		for i := range data[name] {
			data[name][i] = elem(i)
		}
	}
	inFP8 := func(name string, shape tensor.Shape) {
		add(name, "F8_E4M3", shape, func(i int) byte { return byte(i*29+len(name)) &^ 1 })
		add(name+"_scale_inv", "F32", tensor.Shape{1, 1}, func(i int) byte {
			return []byte{7, byte(len(name)), 0x81, 0x3b}[i]
		})
	}
	for _, x := range m.Tensors() {
		if strings.HasSuffix(x.Name, "_proj.weight") {
			inFP8(x.Name, x.Shape)
		} else {
			add(x.Name, "BF16", x.Shape, func(i int) byte { return byte(i*5+3) & 63 })
		}
		plain = append(plain, hf.TensorSpec{Name: x.Name, DType: tensor.BF16, Shape: x.Shape})
	}
	for _, x := range m.ConstantTensors() {
		add(x.Name, "F32", x.Shape, func(int) byte { return 0 })
	}
	next := "model.layers.2.eh_proj.weight"
	inFP8(next, tensor.Shape{3, 5})
	w := written(t, specs, data)
	if err := m.Check(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	carried := map[string]int64{}
	for _, c := range m.Carried(w) {
		for _, name := range c.Names {
			carried[name] = c.Bytes
		}
	}
	if carried[next] != 15+4 || carried[next+"_scale_inv"] != 15+4 {
		t.Errorf("carried are %v", carried)
	}
	for _, s := range plain {
		half := make([]uint16, s.Shape.Elems())
		if err := w.ReadBF16(s.Name, half, 0); err != nil {
			t.Fatal(err)
		}
		for _, h := range half {
			rounded[s.Name] = append(rounded[s.Name], byte(h), byte(h>>8))
		}
	}
	inBF16 := written(t, plain, rounded)
	for i := range m.Parts {
		p := &m.Parts[i]
		got, want := newValues(p, true), newValues(p, true)
		if err := errors.Join(m.ReadPart(w, p, got), m.ReadPart(inBF16, p, want)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.High, want.High) || !slices.Equal(got.Low, want.Low) {
			t.Errorf("%s differs", p.Name)
		}
	}
}

// written are tensors in a file of their own.
func written(t *testing.T, specs []hf.TensorSpec, data map[string][]byte) *hf.Weights {
	t.Helper()
	dir := t.TempDir()
	f, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), specs)
	check(t, err)
	for _, s := range specs {
		check(t, f.Write(s.Name, data[s.Name]))
	}
	check(t, f.Commit())
	w, err := hf.OpenWeights(dir)
	check(t, err)
	t.Cleanup(func() { w.Close() })
	return w
}
