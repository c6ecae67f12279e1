package model_test

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// config is the text of a golden variant's config.json with some keys of the decoder set; a nil value writes
// null, and absent removes.
func config(t testing.TB, variant string, set map[string]any) []byte {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(modeltest.Load(t, variant).Dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(doc, &keys); err != nil {
		t.Fatal(err)
	}
	decoder := keys
	if text, ok := keys["text_config"].(map[string]any); ok {
		decoder = text
	}
	for k, v := range set {
		if v == absent {
			delete(decoder, k)
		} else {
			decoder[k] = v
		}
	}
	doc, err = json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

const absent = "absent"

func build(t testing.TB, variant string, set map[string]any) (*model.Model, error) {
	t.Helper()
	c, err := hf.ParseConfig("config.json", config(t, variant, set))
	if err != nil {
		t.Fatal(err)
	}
	return model.New(c)
}

func mustBuild(t testing.TB, variant string, set map[string]any) *model.Model {
	t.Helper()
	m, err := build(t, variant, set)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestFamilies(t *testing.T) {
	const rsqrt6, rsqrt8, rsqrt10, rsqrt12 = 0.40824829046386301637, 0.35355339059327376220, 0.31622776601683793320, 0.28867513459481288225
	block := func(hidden, inner int, eps float32, a nn.Attention) nn.Block {
		return nn.Block{Hidden: hidden, Mixer: a, FeedForward: nn.GLU{Inner: inner}, Norm: nn.Norm{Eps: eps}}
	}
	llamaBias := block(24, 68, 1e-5, nn.Attention{Heads: 4, KVHeads: 2, HeadDim: 6, Scale: rsqrt6, QKVBias: true,
		OutBias: true})
	llamaBias.FeedForward = nn.GLU{Inner: 68, Bias: true}
	for variant, want := range map[string]nn.Block{
		"llama":                block(36, 76, 1e-5, nn.Attention{Heads: 6, KVHeads: 2, HeadDim: 6, Scale: rsqrt6}),
		"llama-bias":           llamaBias,
		"llama-llama3-headdim": block(30, 52, 1e-5, nn.Attention{Heads: 4, KVHeads: 1, HeadDim: 12, Scale: rsqrt12}),
		"mistral-window":       block(24, 52, 1e-5, nn.Attention{Heads: 4, KVHeads: 2, HeadDim: 6, Scale: rsqrt6, Window: 7}),
		"mistral":              block(36, 58, 1e-5, nn.Attention{Heads: 3, KVHeads: 3, HeadDim: 8, Scale: rsqrt8}),
		"qwen2": block(30, 62, 1e-6, nn.Attention{Heads: 3, KVHeads: 1, HeadDim: 10, Scale: rsqrt10,
			QKVBias: true}),
		"qwen3": block(28, 60, 1e-6, nn.Attention{Heads: 6, KVHeads: 2, HeadDim: 8, Scale: rsqrt8,
			QKNorm: true}),
		"qwen3-bias-untied": block(26, 54, 1e-6, nn.Attention{Heads: 4, KVHeads: 4, HeadDim: 10, Scale: rsqrt10,
			QKNorm: true, QKVBias: true, OutBias: true}),
	} {
		m := mustBuild(t, variant, nil)
		for l, b := range m.Blocks {
			b, a := *b, attention(m, l)
			if a.Rope.HeadDim != a.HeadDim || a.Rope.Theta < 1e4 {
				t.Errorf("%s: the positions of block %d are %+v", variant, l, a.Rope)
			}
			a.Rope = nn.RopeFrequencies{}
			b.Mixer = a
			if diff := cmp.Diff(want, b); diff != "" {
				t.Errorf("%s: block %d (-want +got):\n%s", variant, l, diff)
			}
		}
	}
}

func attention(m *model.Model, layer int) nn.Attention { return m.Blocks[layer].Mixer.(nn.Attention) }

func windows(m *model.Model) []int {
	var w []int
	for _, b := range m.Blocks {
		w = append(w, b.Mixer.(nn.Attention).Window)
	}
	return w
}

// Older files of Qwen2.5-VL have the keys of the text outside of "text_config", and mrope as a kind of rope scaling.
func TestFlatConfig(t *testing.T) {
	nested := mustBuild(t, "qwen2_5_vl", nil)
	var keys map[string]any
	check(t, json.Unmarshal(config(t, "qwen2_5_vl", nil), &keys))
	text := keys["text_config"].(map[string]any)
	delete(keys, "text_config")
	maps.DeleteFunc(text, func(key string, _ any) bool { return key == "model_type" || key == "rope_parameters" })
	maps.Copy(keys, text)
	keys["rope_theta"] = 1000
	keys["rope_scaling"] = map[string]any{"type": "mrope", "mrope_section": []int{1, 2, 2}}
	doc, err := json.Marshal(keys)
	check(t, err)
	c, err := hf.ParseConfig("config.json", doc)
	check(t, err)
	flat, err := model.New(c)
	check(t, err)
	if diff := cmp.Diff(nested.Blocks, flat.Blocks); diff != "" {
		t.Errorf("(-nested +flat):\n%s", diff)
	}
}

// unrotated are the layers whose heads are not rotated.
func unrotated(m *model.Model) any {
	var layers []int
	for l, b := range m.Blocks {
		if b.Rotary() == (nn.RopeFrequencies{}) {
			layers = append(layers, l)
		}
	}
	return layers
}

func TestConfigMeaning(t *testing.T) {
	llama3 := map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}
	for _, c := range []struct {
		name, variant string
		set           map[string]any
		got           func(*model.Model) any
		want          any
	}{
		{"mistral: absent window is transformers' default", "mistral", map[string]any{"sliding_window": absent}, func(m *model.Model) any { return windows(m) }, []int{4096, 4096}},
		{"mistral: null means no window", "mistral", map[string]any{"sliding_window": nil},
			func(m *model.Model) any { return windows(m) }, []int{0, 0}},
		{"qwen2: window is off by default", "qwen2", map[string]any{"sliding_window": 5, "use_sliding_window": absent, "layer_types": absent, "max_window_layers": 0}, func(m *model.Model) any { return windows(m) }, []int{0, 0, 0}},
		{"qwen2: windows from max_window_layers on", "qwen2", map[string]any{"sliding_window": 5, "use_sliding_window": true, "layer_types": absent, "max_window_layers": 2}, func(m *model.Model) any { return windows(m) }, []int{0, 0, 5}},
		{"qwen3: layer_types decide", "qwen3", map[string]any{"sliding_window": 9, "use_sliding_window": true, "layer_types": []string{"sliding_attention", "full_attention", "sliding_attention"}}, func(m *model.Model) any { return windows(m) }, []int{9, 0, 9}},
		{"qwen3: heads are 128 wide by default", "qwen3", map[string]any{"head_dim": absent},
			func(m *model.Model) any { return attention(m, 0).HeadDim }, 128},
		{"llama: kv heads default to heads", "llama", map[string]any{"num_key_value_heads": absent},
			func(m *model.Model) any { return attention(m, 0).KVHeads }, 6},
		{"llama: attention bias without mlp bias", "llama-bias", map[string]any{"mlp_bias": false}, func(m *model.Model) any {
			return []bool{attention(m, 1).OutBias, m.Blocks[1].FeedForward.(nn.GLU).Bias}
		}, []bool{true, false}},
		{"old name of the rope type", "llama", map[string]any{"rope_scaling": map[string]any{"type": "linear", "factor": 2.5}}, func(m *model.Model) any { return m.Blocks[0].Rotary() },
			nn.RopeFrequencies{HeadDim: 6, Theta: 10000, Kind: nn.RopeLinear, Factor: 2.5}},
		{"llama3 scaling", "llama", map[string]any{"rope_scaling": llama3, "rope_theta": 5e5}, func(m *model.Model) any { return m.Blocks[0].Rotary() },
			nn.RopeFrequencies{HeadDim: 6, Theta: 5e5, Kind: nn.RopeLlama3, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 32}},
		{"smollm3: every fourth layer is not rotated", "smollm3", map[string]any{"no_rope_layers": absent,
			"no_rope_layer_interval": absent, "num_hidden_layers": 9, "layer_types": absent}, unrotated, []int{3, 7}},
		{"smollm3: no_rope_layers decide", "smollm3", map[string]any{"no_rope_layers": []int{0, 1, 0, 1}}, unrotated,
			[]int{0, 2}},
		{"exaone4: every fourth layer sees all, and is not rotated", "exaone4", map[string]any{"layer_types": absent,
			"sliding_window_pattern": absent, "num_hidden_layers": 4}, func(m *model.Model) any {
			return [][]int{windows(m), unrotated(m).([]int)}
		}, [][]int{{7, 7, 7, 0}, {3}}},
		{"exaone4: without windows all layers are rotated", "exaone4", map[string]any{"layer_types": absent,
			"sliding_window": nil, "sliding_window_pattern": "LLLG"}, unrotated, []int(nil)},
		{"olmo3: a base outside of rope_parameters is for all layers", "olmo3", map[string]any{"rope_parameters": absent,
			"rope_theta": 3e5}, func(m *model.Model) any {
			return []float64{attention(m, 0).Rope.Theta, attention(m, m.Layers()-3).Rope.Theta}
		}, []float64{3e5, 3e5}}, // see otherwise in defaults_test.go
		{"qwen3_moe: windows are in all layers", "qwen3_moe", map[string]any{"use_sliding_window": true, "sliding_window": 9,
			"max_window_layers": 28}, func(m *model.Model) any { return windows(m) }, []int{9, 9}},
		{"olmo3: every fourth layer sees all", "olmo3", map[string]any{"layer_types": absent},
			func(m *model.Model) any { return windows(m) }, []int{6, 6, 6, 0}},
		{"gemma2: caps are on by default, and null turns them off", "gemma2", map[string]any{
			"attn_logit_softcapping": absent, "final_logit_softcapping": nil, "layer_types": absent},
			func(m *model.Model) any { return []any{attention(m, 1).SoftCap, m.Head.SoftCap, windows(m)} },
			[]any{float32(50), float32(0), []int{7, 0, 7}}},
		{"gemma3: keys that published files leave out", "gemma3", map[string]any{"vocab_size": absent,
			"head_dim": absent, "query_pre_attn_scalar": absent, "max_position_embeddings": absent,
			"rope_parameters": absent, "layer_types": absent, "_sliding_window_pattern": absent, "num_hidden_layers": 7,
			"sliding_window": absent, "hidden_activation": absent, "num_attention_heads": absent,
			"num_key_value_heads": absent, "rms_norm_eps": absent, "tie_word_embeddings": absent,
			"rope_scaling": map[string]any{"rope_type": "linear", "factor": 8}},
			func(m *model.Model) any {
				a := attention(m, 0)
				return []any{m.Vocab, a.Heads, a.KVHeads, a.HeadDim, a.Scale, m.MaxPositions, m.Tied, windows(m),
					a.Rope.Theta, attention(m, 5).Rope.Theta, attention(m, 5).Rope.Factor}
			}, []any{262208, 8, 4, 256, float32(1.0 / 16), 131072, true,
				[]int{4096, 4096, 4096, 4096, 4096, 0, 4096}, 1e4, 1e6, 8.0}},
		{"gemma3_text: the pattern and bases of transformers 4", "gemma3_text", map[string]any{
			"rope_parameters": absent, "layer_types": absent, "_sliding_window_pattern": absent,
			"sliding_window_pattern": 2, "rope_theta": 3e5, "rope_local_base_freq": 3e3,
			"cache_implementation": "hybrid"}, func(m *model.Model) any {
			return []any{windows(m), attention(m, 0).Rope.Theta, attention(m, 1).Rope.Theta}
		}, []any{[]int{6, 0, 6}, 3e3, 3e5}},
		{"gemma3_text: the multiplier is rounded in bf16", "gemma3_text", map[string]any{"hidden_size": 3072},
			func(m *model.Model) any { return []float32{m.EmbedScale(tensor.F32), m.EmbedScale(tensor.BF16)} },
			[]float32{float32(math.Sqrt(3072)), 55.5}},
		{"gemma4: the last layers of a kind share keys and values with the last one before them", "gemma4-shared",
			map[string]any{"num_kv_shared_layers": 1}, func(m *model.Model) any {
				var roles []nn.SharedKV
				var inner []int
				for l, b := range m.Blocks {
					roles = append(roles, attention(m, l).KV)
					inner = append(inner, b.FeedForward.(nn.GLU).Inner)
				}
				return []any{roles, inner}
			}, []any{[]nn.SharedKV{{}, {Role: nn.KVGiven}, {}, {}, {Role: nn.KVTaken}}, []int{6, 6, 6, 6, 12}}},
		{"gemma4: keys that published files leave out", "gemma4-shared", map[string]any{"vocab_size": absent,
			"vocab_size_per_layer_input": absent, "hidden_size_per_layer_input": absent,
			"num_kv_shared_layers": absent},
			func(m *model.Model) any {
				return []any{m.Vocab, m.Lookups[1].Cols, m.Lookups[1].Scale(tensor.BF16), attention(m, 4).KV.Role}
			}, []any{262144, 5 * 256, float32(16), nn.KVAlone}},
		{"gemma4_text: no second embedding", "gemma4_text", map[string]any{"hidden_size_per_layer_input": 0,
			"vocab_size_per_layer_input": 7}, func(m *model.Model) any { return len(m.Lookups) + len(m.Sides) }, 1},
		{"mistral3: the text may be Mistral's", "mistral3", map[string]any{"model_type": "mistral",
			"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 1e9}, "sliding_window": absent},
			func(m *model.Model) any { return windows(m) }, []int{4096, 4096}},
		{"gemma3_text: longrope in all layers", "gemma3_text", map[string]any{"rope_parameters": map[string]any{
			"full_attention": longRope(8, 16), "sliding_attention": longRope(8, 16)}},
			func(m *model.Model) any { return m.Rotary().OriginalPositions }, 16},
		{"smollm3: longrope in all layers that are rotated", "smollm3", map[string]any{
			"rope_parameters": longRope(6, 16)}, func(m *model.Model) any { return m.Rotary().OriginalPositions }, 16},
		{"seed_oss: a null head_dim shares the hidden size", "seed_oss", map[string]any{"head_dim": nil,
			"hidden_size": 24}, func(m *model.Model) any { return attention(m, 0).HeadDim }, 6},
		{"keys of SmolLM2", "llama", map[string]any{"is_llama_config": true, "rope_interleaved": false, "transformers.js_config": map[string]any{"dtype": "q4"}}, func(m *model.Model) any { return m.Type }, "llama"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.got(mustBuild(t, c.variant, c.set))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// longRope are the settings of longrope for heads of a width, and more keys with their values.
func longRope(headDim, original int, more ...any) map[string]any {
	ones := slices.Repeat([]float64{1}, headDim/2)
	keys := map[string]any{"rope_type": "longrope", "short_factor": ones, "long_factor": ones, "rope_theta": 1e4,
		"original_max_position_embeddings": original}
	for i := 0; i < len(more); i += 2 {
		keys[more[i].(string)] = more[i+1]
	}
	return keys
}

// TestConfigErrors has a model that cannot be trained in each row; the message names the key and says why.
func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		variant string
		set     map[string]any
		want    string
	}{
		{"llama", map[string]any{"model_type": "gptj"},
			`"model_type" is "gptj": supported are llama, mistral, qwen2, qwen3`},
		{"llama", map[string]any{"model_type": absent}, `"model_type" is missing`},
		{"qwen3_moe", map[string]any{"num_hidden_layers": 400, "num_local_experts": 4096},
			`"num_hidden_layers" is 400: 400 layers of 4096 experts`},
		{"qwen3_moe", map[string]any{"num_local_experts": 1 << 17}, `"num_local_experts" is 131072: more than 65536`},
		{"qwen3_moe", map[string]any{"num_experts_per_tok": 8},
			`"num_experts_per_tok" is 8: each token has 8 experts, and there are 7`},
		{"qwen3_moe", map[string]any{"mlp_only_layers": []any{0.5}}, `"mlp_only_layers"`},
		{"glm4_moe", map[string]any{"n_group": 2}, `"n_group" is 2: it does not cut 9 experts`},
		{"glm4_moe", map[string]any{"n_group": 9}, `"n_group" is 9: it does not cut 9 experts`},
		{"glm4_moe", map[string]any{"topk_group": 4}, `"topk_group" is 4: each token has 4 groups`},
		{"glm4_moe", map[string]any{"topk_group": 1, "num_experts_per_tok": 4},
			`"topk_group" is 1: 1 groups have 3 experts`},
		{"mixtral", map[string]any{"router_jitter_noise": 0.1}, `"router_jitter_noise" is 0.1`},
		{"gpt_oss", map[string]any{"swiglu_limit": -1}, `"swiglu_limit" is -1`},
		{"llama", map[string]any{"hidden_act": "gelu"}, `"hidden_act" is "gelu": supported is "silu"`},
		{"llama", map[string]any{"attention_dropout": 0.1}, `"attention_dropout" is 0.1`},
		{"llama", map[string]any{"pretraining_tp": 2}, `"pretraining_tp" is 2`},
		{"llama", map[string]any{"partial_rotary_factor": 0.5}, `"partial_rotary_factor" is 0.5`},
		{"llama", map[string]any{"quantization_config": map[string]any{"bits": 4}}, `"quantization_config" is not supported`},
		{"llama", map[string]any{"sliding_window": 128}, `"sliding_window" is not supported`},
		{"llama", map[string]any{"rope_scaling": map[string]any{"rope_type": "proportional", "factor": 4}},
			`"rope_scaling.rope_type" is "proportional": supported are default, linear, llama3, yarn`},
		{"llama", map[string]any{"rope_scaling": map[string]any{"rope_type": "linear"}}, `"rope_scaling.factor" is missing`},
		{"llama", map[string]any{"hidden_size": absent}, `"hidden_size" is missing`},
		{"llama", map[string]any{"hidden_size": 0}, `"hidden_size" is 0`},
		{"llama", map[string]any{"hidden_size": -36}, `"hidden_size" is -36`},
		{"llama", map[string]any{"hidden_size": 1 << 30}, `"hidden_size" is 1073741824: more than 1048576`},
		{"llama", map[string]any{"hidden_size": "36"}, `"hidden_size" is "36": a whole number`},
		{"llama", map[string]any{"num_hidden_layers": 1 << 20}, `"num_hidden_layers" is 1048576: more than 4096`},
		{"llama", map[string]any{"vocab_size": 1 << 30}, `"vocab_size" is 1073741824: more than`},
		{"llama", map[string]any{"num_key_value_heads": 4}, `"num_key_value_heads" is 4: it does not divide "num_attention_heads" (6)`},
		{"llama", map[string]any{"num_key_value_heads": 12}, `"num_key_value_heads" is 12: it does not divide`},
		{"llama", map[string]any{"head_dim": 7}, `"head_dim" is 7: rotary positions need an even one`},
		{"llama", map[string]any{"head_dim": 1 << 20}, `wider than 1048576`},
		{"llama", map[string]any{"head_dim": absent, "num_attention_heads": 4, "num_key_value_heads": 2}, `heads of width 9 are odd`},
		{"llama", map[string]any{"head_dim": absent, "num_attention_heads": 5, "num_key_value_heads": 5}, `"num_attention_heads" is 5: it does not divide "hidden_size" (36)`},
		{"llama", map[string]any{"rms_norm_eps": -1}, `"rms_norm_eps" is -1`},
		{"llama", map[string]any{"rope_theta": 0}, `"rope_theta" is 0: a positive number`},
		{"llama", map[string]any{"initializer_range": -0.1}, `"initializer_range" is -0.1`},
		{"llama", map[string]any{"tie_word_embeddings": "yes"}, `"tie_word_embeddings" is "yes": true or false`},
		{"llama", map[string]any{"final_logit_softcapping": 30}, `"final_logit_softcapping" is not supported`},
		{"mistral", map[string]any{"num_key_value_heads": absent}, `"num_key_value_heads" is missing`},
		{"mistral", map[string]any{"layer_types": []string{"full_attention", "full_attention"}}, `"layer_types" is not supported`},
		{"mistral", map[string]any{"sliding_window": 0}, `"sliding_window" is 0`},
		{"qwen2", map[string]any{"use_mrope": true}, `"use_mrope" is true`},
		{"qwen2", map[string]any{"num_attention_heads": 4}, `"num_attention_heads" is 4: it does not divide "hidden_size" (30)`},
		{"qwen2", map[string]any{"max_window_layers": -1}, `"max_window_layers" is -1`},
		{"qwen3", map[string]any{"layer_types": []string{"full_attention"}}, `it has 1 entries, "num_hidden_layers" is 3`},
		{"qwen3", map[string]any{"layer_types": []string{"full_attention", "full_attention", "sliding_attention"}}, `"layer_types" is ["full_attention", "full_attention", "sliding_attention"]: a layer has sliding attention`},
		{"qwen3", map[string]any{"layer_types": []string{"full_attention", "full_attention", "chunked_attention"}}, `layer 2 has "chunked_attention"`},
		{"qwen3", map[string]any{"num_experts": 8}, `"num_experts" is not supported`},
		{"glm4_moe", map[string]any{"n_group": 4},
			`"n_group" is 4: it does not cut 9 experts into equal groups of 2 or more`},
		{"glm4_moe", map[string]any{"n_group": 9},
			`"n_group" is 9: it does not cut 9 experts into equal groups of 2 or more`},
		{"glm4_moe", map[string]any{"topk_group": 4}, `"topk_group" is 4: each token has 4 groups, and there are 3`},
		{"glm4_moe", map[string]any{"topk_group": 1, "num_experts_per_tok": 4},
			`"topk_group" is 1: 1 groups have 3 experts, and each token has 4`},
		{"glm4_moe", map[string]any{"num_experts_per_tok": 10},
			`"num_experts_per_tok" is 10: each token has 10 experts, and there are 9`},
		{"glm4_moe", map[string]any{"n_shared_experts": -1}, `"n_shared_experts" is -1: it must not be negative`},
		{"glm4_moe", map[string]any{"n_shared_experts": 1 << 20},
			`"n_shared_experts" is 1048576: shared experts that are together wider`},
		{"glm4_moe", map[string]any{"routed_scaling_factor": 0}, `"routed_scaling_factor" is 0`},
		{"glm4_moe", map[string]any{"num_experts": 8}, `"num_experts" is not supported`},
		{"smollm3", map[string]any{"no_rope_layers": []int{1}},
			`"no_rope_layers" is [1]: it has 1 entries, "num_hidden_layers" is 3`},
		{"mistral3", map[string]any{"model_type": "llama"},
			`"text_config.model_type" is "llama": supported are mistral`},
		{"gemma2", map[string]any{"hidden_activation": "gelu"},
			`"hidden_activation" is "gelu": supported is "gelu_pytorch_tanh"`},
		{"gemma2", map[string]any{"use_bidirectional_attention": true}, `"use_bidirectional_attention" is true`},
		{"gemma2", map[string]any{"query_pre_attn_scalar": 0}, `"query_pre_attn_scalar" is 0: a positive number`},
		{"gemma2", map[string]any{"final_logit_softcapping": -3}, `"final_logit_softcapping" is -3: a positive number`},
		{"gemma3_text", map[string]any{"attn_logit_softcapping": 50},
			`"attn_logit_softcapping" is 50: transformers takes no notice of it`},
		{"gemma4-mixture", map[string]any{"top_k_experts": 6},
			`"top_k_experts" is 6: each token has 6 experts, and there are 5`},
		{"gemma4-mixture", map[string]any{"num_experts": absent}, `"num_experts" is missing`},
		{"gemma4-mixture", map[string]any{"hidden_size_per_layer_input": 4},
			`"hidden_size_per_layer_input" is 4: it must be 0 in a model with experts`},
		{"gemma4_unified", map[string]any{"enable_moe_block": true}, `"text_config.enable_moe_block" is true`},
		{"gemma3_text", map[string]any{"head_dim": 7}, `"head_dim" is 7: rotary positions need an even one`},
		{"gemma3_text", map[string]any{"sliding_window_pattern": 0, "layer_types": absent},
			`"sliding_window_pattern" is 0`},
		{"gemma4-shared", map[string]any{"num_kv_shared_layers": -1},
			`"text_config.num_kv_shared_layers" is -1: of 5 layers, 0 to 4 may use keys and values of others`},
		{"gemma4-shared", map[string]any{"num_kv_shared_layers": 5}, `of 5 layers, 0 to 4 may use`},
		{"gemma4-shared", map[string]any{"num_kv_shared_layers": 4},
			`layer 1 needs keys and values of a layer before 1 that sees as much, and there is no such layer`},
		{"gemma4-shared", map[string]any{"intermediate_size": 1<<19 + 1},
			`"text_config.intermediate_size" is 524289: more than 524288 is not supported where`},
		{"gemma4-shared", map[string]any{"vocab_size_per_layer_input": 24},
			`vocab_size_per_layer_input" is 24: the second embedding needs as many rows as "vocab_size" says, 23`},
		{"gemma4-shared", map[string]any{"hidden_size_per_layer_input": 1 << 18},
			`"text_config.hidden_size_per_layer_input" is 262144: 0 to 209715 columns are supported with 5 layers`},
		{"gemma4-shared", map[string]any{"hidden_size_per_layer_input": -1}, `is -1: 0 to 209715 columns`},
		{"gemma4_unified", map[string]any{"hidden_size_per_layer_input": 4},
			`"text_config.hidden_size_per_layer_input" is 4: supported is 0`},
		{"gpt2", map[string]any{"n_embd": absent}, `"n_embd" is missing`},
		{"gpt2", map[string]any{"n_head": 5}, `"n_head" is 5: it does not divide "n_embd" (12)`},
		{"gpt2", map[string]any{"n_positions": 1 << 24}, `"n_positions" is 16777216: more than 1048576`},
		{"gpt2", map[string]any{"n_embd": 1 << 19, "n_head": 1 << 10}, `"n_embd" is 524288: a feed-forward`},
		{"gpt2", map[string]any{"hidden_size": 12}, `"n_embd" is not supported`},
		{"gpt2", map[string]any{"scale_attn_weights": false}, `"scale_attn_weights" is false`},
		{"gpt2", map[string]any{"add_cross_attention": true}, `"add_cross_attention" is true`},
		{"phi3", map[string]any{"resid_pdrop": 0.1}, `"resid_pdrop" is 0.1: supported is 0`},
		{"olmo3", map[string]any{"rope_parameters": absent, "rope_scaling": longRope(8, 16)},
			`"rope_scaling" is {...}: longrope is supported only where all layers that are rotated have it`},
		{"gemma3_text", map[string]any{"rope_parameters": map[string]any{"full_attention": longRope(8, 16),
			"sliding_attention": longRope(8, 32)}}, `"rope_parameters" is {...}: longrope is supported only where`},
		{"mistral3", map[string]any{"rope_parameters": longRope(8, 16, "llama_4_scaling_beta", 0.1)},
			`"text_config.rope_parameters" is {...}: longrope is not supported together with "llama_4_scaling_beta"`},
	} {
		_, err := build(t, c.variant, c.set)
		switch {
		case err == nil:
			t.Errorf("%s with %v is accepted", c.variant, c.set)
		case !strings.Contains(err.Error(), c.want):
			t.Errorf("%s with %v:\n got %v\nwant ...%s...", c.variant, c.set, err, c.want)
		case strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "config.json: "):
			t.Errorf("%s with %v: not one line that names the file: %q", c.variant, c.set, err)
		}
	}
}

// A file that says no more than its kind is an error of one line, but Gemma's, of which each size has a default.
func TestBareConfig(t *testing.T) {
	for _, family := range model.Families() {
		for _, rest := range []string{``, `, "text_config": null`, `, "text_config": {}`, `, "text_config": 3`} {
			c, err := hf.ParseConfig("config.json", []byte(`{"model_type": "`+family+`"`+rest+`}`))
			check(t, err)
			_, err = model.New(c)
			if err == nil && !strings.HasPrefix(family, "gemma") || err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("%s%s: %v", family, rest, err)
			}
		}
	}
}

// A huge vocabulary of tiny rows is not cut into more tiles than a plan and a step can take, each of them whole but
// the last.
func TestTilesAreFew(t *testing.T) {
	for vocab, want := range map[int]int{65536: 1024, 65537: 513, 1_000_000: 977} {
		m := mustBuild(t, "llama", map[string]any{"vocab_size": vocab, "hidden_size": 8, "intermediate_size": 8,
			"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8})
		if n := m.Head.Tiles(); n != want || m.Head.TileRows%64 != 0 {
			t.Errorf("vocabulary %d: %d tiles of %d rows, want %d", vocab, n, m.Head.TileRows, want)
		}
	}
}

// TestParts holds the cut to its rules: every element of the checkpoint is covered once.
func TestParts(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		for _, vocab := range []int{1, 64, 65, 1000} {
			set := map[string]any{"vocab_size": vocab}
			if len(mustBuild(t, variant, nil).Lookups) > 1 {
				set["vocab_size_per_layer_input"] = vocab
			}
			m := mustBuild(t, variant, set)
			var block int64 // the largest
			for _, i := range m.BlockParts {
				n, _ := m.Parts[i].Layout.Params()
				block = max(block, n)
			}
			if m.Head.TileRows%64 != 0 && m.Head.Tiles() != 1 {
				t.Errorf("%s, vocabulary %d: %d tiles of %d rows", variant, vocab, m.Head.Tiles(), m.Head.TileRows)
			}
			covered := map[string][]bool{}
			layer := 0
			for i, p := range m.Parts {
				if p.Index != i || p.Layer < layer || p.Layer >= m.Layers() {
					t.Errorf("%s: part %d is %s, of layer %d", variant, i, p.Name, p.Layer)
				}
				layer = p.Layer
				widest := m.Hidden
				if l := m.LookupOf(i); l != nil {
					widest = l.Cols
				}
				if n, _ := p.Layout.Params(); p.Kind != model.Block && n > block+64*int64(widest) {
					t.Errorf("%s: part %s has %d parameters, a block %d", variant, p.Name, n, block)
				}
				field := -1 // a field may have several sources
				for j, src := range p.Tensors {
					if src.Field != field && src.Field != field+1 {
						t.Errorf("%s: part %s: source %d is of field %d", variant, p.Name, j, src.Field)
					}
					field = src.Field
					if covered[src.Name] == nil {
						covered[src.Name] = make([]bool, src.Shape.Elems())
					}
					for r := range src.Rows {
						for c := range src.Cols {
							at := src.At + int64(r*src.RowStep+c*src.ColStep)
							if covered[src.Name][at] {
								t.Fatalf("%s: part %s: element %d of %s is there twice", variant, p.Name, at, src.Name)
							}
							covered[src.Name][at] = true
						}
					}
				}
				if field != len(p.Layout.Fields)-1 {
					t.Errorf("%s: part %s: %d of %d fields have a source", variant, p.Name, field+1,
						len(p.Layout.Fields))
				}
			}
			tensors := m.Tensors()
			for _, out := range tensors {
				if i := slices.Index(covered[out.Name], false); i >= 0 || covered[out.Name] == nil {
					t.Errorf("%s: element %d of %s is missing", variant, i, out.Name)
				}
			}
			if len(tensors) != len(covered) {
				t.Errorf("%s: %d tensors out, %d in", variant, len(tensors), len(covered))
			}
			if m.Tied != slices.Equal(m.EmbedTiles, m.HeadTiles) {
				t.Errorf("%s: embedding %v, head %v", variant, m.EmbedTiles, m.HeadTiles)
			}
		}
	}
}

// TestNames compares names, shapes and count with a checkpoint that transformers wrote.
func TestNames(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		g := modeltest.Load(t, variant)
		m, err := model.Read(g.Dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		var n int64
		for _, out := range m.Tensors() {
			names = append(names, out.Name)
			n += out.Shape.Elems()
			if n := g.Grads[out.Name].Elems(); int64(n) != out.Shape.Elems() {
				t.Errorf("%s: %s is %v, transformers has %d elements", variant, out.Name, out.Shape, n)
			}
		}
		slices.Sort(names)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(g.Grads)), names); diff != "" {
			t.Errorf("%s (-transformers +ours):\n%s", variant, diff)
		}
		if all, trainable := m.Params(); all != n || trainable != n {
			t.Errorf("%s: Params is %d, %d; tensors have %d", variant, all, trainable, n)
		}
	}
}

func TestTensorOrder(t *testing.T) {
	var got []string
	for _, out := range mustBuild(t, "llama-bias", map[string]any{"num_hidden_layers": 1, "vocab_size": 1000}).Tensors() {
		got = append(got, out.Name)
	}
	// The order of model.state_dict() in transformers.
	want := strings.Fields(`model.embed_tokens.weight
		model.layers.0.self_attn.q_proj.weight model.layers.0.self_attn.q_proj.bias
		model.layers.0.self_attn.k_proj.weight model.layers.0.self_attn.k_proj.bias
		model.layers.0.self_attn.v_proj.weight model.layers.0.self_attn.v_proj.bias
		model.layers.0.self_attn.o_proj.weight model.layers.0.self_attn.o_proj.bias
		model.layers.0.mlp.gate_proj.weight model.layers.0.mlp.gate_proj.bias
		model.layers.0.mlp.up_proj.weight model.layers.0.mlp.up_proj.bias
		model.layers.0.mlp.down_proj.weight model.layers.0.mlp.down_proj.bias
		model.layers.0.input_layernorm.weight model.layers.0.post_attention_layernorm.weight
		model.norm.weight lm_head.weight`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzConfig: whatever the file says, New returns a model that is consistent, or an error of one line.
func FuzzConfig(f *testing.F) {
	for _, variant := range []string{"llama", "llama-bias", "llama-llama3-headdim", "mistral-window", "qwen2", "qwen3",
		"gpt2", "deepseek_v2-groups"} {
		f.Add(config(f, variant, nil))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		c, err := hf.ParseConfig("config.json", doc)
		if err != nil {
			return
		}
		m, err := model.New(c)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("more than one line: %q", err)
			}
			return
		}
		if all, _ := m.Params(); all <= 0 || len(m.Blocks) != len(m.BlockParts) || len(m.Parts) < len(m.Blocks)+2 {
			t.Fatalf("%d parameters, %d blocks, %d parts", all, len(m.Blocks), len(m.Parts))
		}
	})
}
