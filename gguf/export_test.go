package gguf

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// exportFamily is a model that can be written as GGUF, with keys of its config.json and the tokenizer that it has.
type exportFamily struct {
	name      string
	arch, pre string // what the GGUF file is to say
	tokenizer string
	config    map[string]any
	notes     int // how many the report has
}

// types lists the types in which the family is written: few for dense families whose tensors have the types of a
// llama's.
func (f exportFamily) types() []Type {
	if slices.ContainsFunc(slices.Concat(denseArchitectures, cohereArchitectures, gptArchitectures, gemmaArchitectures,
		vlArchitectures, deltaArchitectures),
		func(a *architecture) bool { return a.name == f.arch }) {
		return []Type{BF16, Q4}
	}
	if f.arch == "deepseek2" && f.name != "deepseek_v3" {
		return []Type{BF16, Q4}
	}
	for _, a := range architectures {
		if f.arch == a.name && a.mixture == f.config["model_type"] {
			return Types
		}
	}
	return slices.DeleteFunc(slices.Clone(Types), func(t Type) bool { return t == MXFP4 })
}

func yarn(more map[string]any) map[string]any {
	keys := map[string]any{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 512}
	maps.Copy(keys, more)
	return keys
}

var exportFamilies = []exportFamily{
	{"llama", "llama", "llama-bpe", "llama3", map[string]any{"model_type": "llama", "attention_bias": true,
		"mlp_bias": true}, 0},
	{"llama 3.1", "llama", "llama-bpe", "llama3", map[string]any{"model_type": "llama", "rope_theta": 500000,
		"rope_scaling": map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
			"original_max_position_embeddings": 256}}, 0},
	{"linear rope", "llama", "smollm", "smollm2", map[string]any{"model_type": "llama", "tie_word_embeddings": true,
		"rope_scaling": map[string]any{"rope_type": "linear", "factor": 2}}, 0},
	{"mistral", "llama", "gpt-2", "gpt2", map[string]any{"model_type": "mistral", "head_dim": 32}, 0},
	{"qwen2", "qwen2", "qwen2", "qwen2", map[string]any{"model_type": "qwen2"}, 0},
	{"qwen3", "qwen3", "qwen2", "qwen2", map[string]any{"model_type": "qwen3", "head_dim": 32,
		"tie_word_embeddings": true}, 0},
	{"qwen3_moe", "qwen3moe", "qwen2", "qwen2", map[string]any{"model_type": "qwen3_moe", "head_dim": 32,
		"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "norm_topk_prob": true}, 0},
	{"mixtral", "llama", "gpt-2", "gpt2", map[string]any{"model_type": "mixtral", "num_local_experts": 8,
		"num_hidden_layers": 2, "intermediate_size": 256, "tie_word_embeddings": true}, 0},
	{"narrow mixtral", "llama", "gpt-2", "gpt2", map[string]any{"model_type": "mixtral", "num_local_experts": 8,
		"num_hidden_layers": 2, "intermediate_size": 32, "head_dim": 24}, 0},
	{"llama yarn", "llama", "smollm", "smollm2", map[string]any{"model_type": "llama",
		"rope_scaling": yarn(map[string]any{"attention_factor": 0.75})}, 0},
	{"qwen2 yarn", "qwen2", "qwen2", "qwen2", map[string]any{"model_type": "qwen2",
		"rope_scaling": yarn(nil)}, 0},
	{"qwen3_moe yarn", "qwen3moe", "qwen2", "qwen2", map[string]any{"model_type": "qwen3_moe", "head_dim": 32,
		"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true,
		"num_hidden_layers": 1, "rope_scaling": yarn(map[string]any{"beta_fast": 32.0, "beta_slow": 1.0})}, 0},
	{"gpt_oss", "gpt-oss", "qwen2", "qwen2", map[string]any{"model_type": "gpt_oss", "num_local_experts": 5,
		"num_experts_per_tok": 2, "intermediate_size": 96, "head_dim": 32, "sliding_window": 16,
		"rope_scaling": yarn(map[string]any{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": false})}, 1},
	{"glm4_moe", "glm4moe", "llama-bpe", "llama3", map[string]any{"model_type": "glm4_moe", "n_routed_experts": 6,
		"n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 96, "first_k_dense_replace": 1,
		"n_group": 3, "topk_group": 2, "attention_bias": true, "use_qk_norm": true, "routed_scaling_factor": 2.5,
		"norm_topk_prob": true}, 0},
	{"narrow glm4_moe", "glm4moe", "qwen2", "qwen2", map[string]any{"model_type": "glm4_moe", "n_routed_experts": 8,
		"n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 2,
		"head_dim": 26, "partial_rotary_factor": 0.4, "norm_topk_prob": false, "tie_word_embeddings": true,
		"rope_scaling": yarn(nil)}, 0},
	{"smollm3", "smollm3", "smollm", "smollm2", map[string]any{"model_type": "smollm3", "num_hidden_layers": 5}, 0},
	{"seed_oss", "seed_oss", "qwen2", "qwen2", map[string]any{"model_type": "seed_oss", "head_dim": 48}, 0},
	{"glm4", "glm4", "llama-bpe", "llama3", map[string]any{"model_type": "glm4", "head_dim": 32,
		"partial_rotary_factor": 0.25}, 0},
	{"phi3", "phi3", "smollm", "smollm2", map[string]any{"model_type": "phi3", "sliding_window": 2048}, 0},
	{"phi3 longrope", "phi3", "llama-bpe", "llama3", map[string]any{"model_type": "phi3", "sliding_window": 512,
		"partial_rotary_factor": 0.0625, "original_max_position_embeddings": 512, "num_hidden_layers": 2,
		"rope_scaling": map[string]any{"type": "longrope", "short_factor": []float64{1, 1.25},
			"long_factor": []float64{1.5, 30.5}}}, 2},
	{"olmo2", "olmo2", "gpt-2", "gpt2", map[string]any{"model_type": "olmo2", "rope_scaling": yarn(nil)}, 0},
	{"olmo3", "olmo2", "gpt-2", "gpt2", map[string]any{"model_type": "olmo3", "rope_scaling": yarn(nil),
		"sliding_window": 16, "layer_types": []string{"full_attention", "sliding_attention", "sliding_attention"}}, 0},
	{"exaone4", "exaone4", "qwen2", "qwen2", map[string]any{"model_type": "exaone4", "sliding_window": nil,
		"rope_scaling": llama3Keys, "tie_word_embeddings": true}, 0},
	{"exaone4 windows", "exaone4", "qwen2", "qwen2", map[string]any{"model_type": "exaone4", "sliding_window": 16,
		"num_hidden_layers": 64, "hidden_size": 32, "intermediate_size": 32, "sliding_window_pattern": 4}, 0},
	{"granite", "granite", "gpt-2", "gpt2", map[string]any{"model_type": "granite", "attention_bias": true,
		"mlp_bias": true, "embedding_multiplier": 12, "attention_multiplier": 0.015625, "residual_multiplier": 0.22,
		"logits_scaling": 8, "rope_scaling": llama3Keys}, 0},
	{"gemma2", "gemma2", "default", "gemma", map[string]any{"model_type": "gemma2", "head_dim": 32,
		"query_pre_attn_scalar": 32, "sliding_window": 16, "attn_logit_softcapping": 40}, 0},
	{"gemma3", "gemma3", "qwen2", "qwen2", map[string]any{"model_type": "gemma3_text", "head_dim": 32,
		"num_hidden_layers": 6, "query_pre_attn_scalar": 32, "sliding_window": 16, "final_logit_softcapping": 7.5,
		"rope_scaling": map[string]any{"rope_type": "linear", "factor": 8}, "rope_theta": 1e6,
		"rope_local_base_freq": 20000, "tie_word_embeddings": false}, 0},
	{"gemma3 images", "gemma3", "qwen2", "qwen2", nested("gemma3", map[string]any{"model_type": "gemma3_text",
		"head_dim": 32, "query_pre_attn_scalar": 32, "layer_types": slices.Repeat([]string{"full_attention"}, 3)}), 0},
	{"mistral3", "mistral3", "gpt-2", "gpt2", nested("mistral3", map[string]any{"model_type": "mistral",
		"head_dim": 32, "sliding_window": nil, "rope_scaling": yarn(map[string]any{"attention_factor": 0.75})}), 0},
	{"ministral3", "mistral3", "llama-bpe", "llama3", map[string]any{"model_type": "ministral3", "head_dim": 32,
		"rope_parameters": yarn(map[string]any{"rope_theta": 10000, "mscale": 1.0, "mscale_all_dim": 1.0,
			"beta_fast": 16.0, "llama_4_scaling_beta": 0.1})}, 0},
	{"qwen2_5_vl", "qwen2vl", "qwen2", "qwen2", nested("qwen2_5_vl", map[string]any{}), 0},
	{"qwen3_vl", "qwen3vl", "qwen2", "qwen2", nested("qwen3_vl", map[string]any{"head_dim": 32,
		"rope_scaling": map[string]any{"rope_type": "default", "mrope_section": []int{6, 5, 5}}}), 0},
	{"qwen3_vl_moe", "qwen3vlmoe", "qwen2", "qwen2", nested("qwen3_vl_moe", map[string]any{"head_dim": 32,
		"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_hidden_layers": 1}), 0},
	{"qwen3_5", "qwen35", "qwen2", "qwen2", nested("qwen3_5", deltaConfig(nil)), 0},
	{"qwen3_5_moe", "qwen35moe", "qwen2", "qwen2", nested("qwen3_5_moe", deltaConfig(map[string]any{"num_experts": 3,
		"num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
		"layer_types": []string{"full_attention", "linear_attention"}})), 0},
	{"qwen3_next", "qwen3next", "qwen2", "qwen2", deltaConfig(map[string]any{"model_type": "qwen3_next",
		"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
		"linear_num_value_heads": 6}), 0},
	{"cohere", "command-r", "smollm", "smollm2", map[string]any{"model_type": "cohere", "logit_scale": 0.25,
		"layer_norm_eps": 2e-5, "num_hidden_layers": 2}, 0},
	{"cohere2", "cohere2", "gpt-2", "gpt2", map[string]any{"model_type": "cohere2", "sliding_window": 16,
		"layer_norm_eps": 1e-5, "num_hidden_layers": 4, "hidden_size": 128}, 0},
	{"cohere2 pattern", "cohere2", "gpt-2", "gpt2", map[string]any{"model_type": "cohere2", "sliding_window": 16,
		"num_hidden_layers": 2, "layer_norm_eps": 1e-5, "hidden_size": 128,
		"layer_types": []string{"full_attention", "sliding_attention"}}, 0},
	{"gpt_neox", "gptneox", "gpt-2", "gpt2", map[string]any{"model_type": "gpt_neox", "layer_norm_eps": 2e-5,
		"num_hidden_layers": 2, "rotary_emb_base": 20000, "num_key_value_heads": nil}, 1},
	{"gpt_neox sequential", "gptneox", "gpt-2", "gpt2", map[string]any{"model_type": "gpt_neox", "layer_norm_eps": 1e-5,
		"num_hidden_layers": 1, "rotary_pct": 1.0, "use_parallel_residual": false, "num_key_value_heads": nil}, 1},
	{"gpt2", "gpt2", "gpt-2", "gpt2", map[string]any{"model_type": "gpt2", "rms_norm_eps": nil,
		"num_hidden_layers": 2, "num_key_value_heads": nil, "rope_theta": nil}, 0},
	{"gpt2 head", "gpt2", "gpt-2", "gpt2", map[string]any{"model_type": "gpt2", "rms_norm_eps": nil,
		"num_hidden_layers": 1, "num_key_value_heads": nil, "rope_theta": nil, "layer_norm_epsilon": 2e-5,
		"hidden_size": 96, "tie_word_embeddings": false}, 0},
	{"deepseek_v3", "deepseek2", "qwen2", "qwen2", latentConfig(map[string]any{"rms_norm_eps": 1e-6,
		"rope_scaling": yarn(map[string]any{"mscale": 0.707, "mscale_all_dim": 0.707})}), 0},
	{"deepseek_v3 direct", "deepseek2", "gpt-2", "gpt2", latentConfig(map[string]any{"num_hidden_layers": 27,
		"q_lora_rank": nil, "hidden_size": 32, "intermediate_size": 32, "n_group": 1, "topk_group": 1,
		"norm_topk_prob": false, "rope_scaling": yarn(map[string]any{"mscale": 1.0, "mscale_all_dim": 1.0,
			"beta_fast": 32.0, "beta_slow": 1.0})}), 1},
	{"deepseek_v2", "deepseek2", "gpt-2", "gpt2", latentConfig(map[string]any{"model_type": "deepseek_v2",
		"n_group": nil, "topk_group": nil, "norm_topk_prob": false, "rms_norm_eps": 1e-6, "num_hidden_layers": 2}), 0},
	{"glm4_moe_lite", "deepseek2", "llama-bpe", "llama3", latentConfig(map[string]any{"model_type": "glm4_moe_lite",
		"tie_word_embeddings": true, "n_shared_experts": 2, "num_hidden_layers": 2}), 1},
	{"gemma4", "gemma4", "default", "gemma", gemma4Config(map[string]any{"attention_k_eq_v": true,
		"num_global_key_value_heads": 1, "num_hidden_layers": 6}), 0},
	{"gemma4 images", "gemma4", "qwen2", "qwen2", nested("gemma4", gemma4Config(map[string]any{
		"final_logit_softcapping": 7.5, "num_hidden_layers": 3, "layer_types": []string{"full_attention",
			"sliding_attention", "full_attention"}, "rope_parameters": map[string]any{"full_attention": map[string]any{
			"rope_type": "proportional", "rope_theta": 20000, "partial_rotary_factor": 0.5, "factor": 4}}})), 0},
	{"gemma4 experts", "gemma4", "qwen2", "qwen2", nested("gemma4", gemma4Config(map[string]any{"num_hidden_layers": 6,
		"hidden_size": 128, "intermediate_size": 96, "enable_moe_block": true, "num_experts": 3, "top_k_experts": 2,
		"moe_intermediate_size": 32, "attention_k_eq_v": true, "num_global_key_value_heads": 1})), 0},
	{"gemma4 shared keys", "gemma4", "qwen2", "qwen2", nested("gemma4", gemma4Config(map[string]any{
		"num_hidden_layers": 8, "hidden_size": 64, "intermediate_size": 96, "num_kv_shared_layers": 3,
		"use_double_wide_mlp": true, "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 576,
		"layer_types": []string{"sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
			"full_attention", "sliding_attention", "full_attention", "full_attention"}})), 0},
	{"llama SentencePiece", "llama", "default", "llama2", map[string]any{"model_type": "llama",
		"num_hidden_layers": 1}, 0},
}

// latentConfig has the keys of models with latent attention.
func latentConfig(more map[string]any) map[string]any {
	keys := map[string]any{"model_type": "deepseek_v3", "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64,
		"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 6, "n_shared_experts": 1,
		"num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 3,
		"topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5}
	maps.Copy(keys, more)
	return keys
}

// gemma4Config has the keys of Gemma 4.
func gemma4Config(more map[string]any) map[string]any {
	keys := map[string]any{"model_type": "gemma4_text", "head_dim": 32, "global_head_dim": 64, "sliding_window": 16,
		"hidden_size_per_layer_input": 0, "rope_theta": nil}
	maps.Copy(keys, more)
	return keys
}

// deltaConfig has the keys of models with gated delta nets.
func deltaConfig(more map[string]any) map[string]any {
	keys := map[string]any{"rms_norm_eps": 1e-6, "num_hidden_layers": 2, "full_attention_interval": 2, "head_dim": 32,
		"partial_rotary_factor": 0.25, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
		"linear_key_head_dim": 16, "linear_value_head_dim": 16}
	maps.Copy(keys, more)
	return keys
}

// returns names the family that comes back where a GGUF file does not tell two families apart.
var returns = map[string]string{"gemma3": "gemma3_text", "mistral3": "mistral", "qwen2_5_vl": "qwen2",
	"qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe", "mistral": "llama", "qwen3_5": "qwen3_5_text",
	"qwen3_5_moe": "qwen3_5_moe_text", "glm4_moe_lite": "deepseek_v3",
	"gemma4": "gemma4_text"}

var llama3Keys = map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
	"original_max_position_embeddings": 256}

// randomConfig has the keys that all models of these tests share.
func randomConfig() map[string]any {
	return map[string]any{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
		"num_attention_heads": 4,
		"num_key_value_heads": 2, "vocab_size": 576, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
		"rope_theta":  10000,
		"torch_dtype": "bfloat16"}
}

// nested is the configuration of a model that sees images.
func nested(modelType string, decoder map[string]any) map[string]any {
	keys := randomConfig()
	maps.Copy(keys, decoder)
	return map[string]any{"model_type": modelType, "text_config": keys,
		"vision_config": map[string]any{"deepstack_visual_indexes": []int{1, 2}}}
}

// writeRandomModel writes a directory of a model with random weights in bf16.
func writeRandomModel(t *testing.T, keys map[string]any, tokens string) (dir string) {
	t.Helper()
	config := randomConfig()
	if keys["text_config"] != nil {
		config = map[string]any{}
	}
	maps.Copy(config, keys)
	if config["layer_norm_eps"] != nil {
		delete(config, "rms_norm_eps")
	}
	doc, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(parseConfig(t, string(doc)))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(7, 11))
	var specs []hf.TensorSpec
	data := map[string][]byte{}
	for _, n := range m.Tensors() {
		specs = append(specs, hf.TensorSpec{Name: n.Name, DType: tensor.BF16, Shape: n.Shape})
		var b []byte
		for range n.Shape.Elems() {
			b = binary.LittleEndian.AppendUint16(b, tensor.BF16FromF32(float32(random.NormFloat64()*0.02)))
		}
		data[n.Name] = b
	}
	for _, n := range m.ConstantTensors() {
		specs = append(specs, hf.TensorSpec{Name: n.Name, DType: tensor.F32, Shape: n.Shape})
		for range n.Shape.Elems() {
			bits := math.Float32bits(float32(random.NormFloat64()))
			data[n.Name] = binary.LittleEndian.AppendUint32(data[n.Name], bits)
		}
	}
	dir = filepath.Join(t.TempDir(), "m")
	w, err := hf.CreateModel(dir, specs, hf.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if err := w.Write(s.Name, data[s.Name]); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("../data/tokenizer/testdata/" + tokens + ".json")
	if err != nil {
		t.Fatal(err)
	}
	for name, doc := range map[string][]byte{"config.json": doc, "tokenizer.json": text} {
		if err := w.AddFile(name, doc); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// export writes a model directory as GGUF.
func export(t *testing.T, dir string, opts ExportOptions) (file string, report *Report, err error) {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file = filepath.Join(t.TempDir(), "m.gguf")
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ReadConstants(w); err != nil {
		t.Fatal(err)
	}
	report, err = Export(context.Background(), file, dir, m, m.Checkpoint().Fields(w), opts)
	if err != nil {
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "*")); len(left) > 0 {
			t.Errorf("a failed export left %v", left)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) > 0 {
			t.Errorf("a failed export left %v", left)
		}
	}
	return file, report, err
}

// reimport reads a GGUF file into a directory, in F32.
func reimport(t *testing.T, file string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "back")
	if err := Import(context.Background(), file, dir, ImportOptions{DType: tensor.F32}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func allValues(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	all := map[string][]float32{}
	for _, name := range w.Names() {
		info, _ := w.Info(name)
		all[name] = make([]float32, info.Shape.Elems())
		if err := w.ReadF32(name, all[name], 0); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// fieldsOf are the elements of the fields of a model's parts, and its constants. Norms to whose weights the model adds
// 1 have what is left of them in such a sum.
func fieldsOf(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	m, err := model.Read(dir)
	if err == nil {
		err = m.ReadConstants(w)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]float32{}
	read := m.Checkpoint().Fields(w)
	for i, p := range m.Parts {
		for j, f := range p.Layout.Fields {
			values := make([]float32, f.Elems)
			if err := read(i, j, values, 0); err != nil {
				t.Fatal(err)
			}
			if m.Head.Norm.Offset == 1 && (p.Kind == model.Norm || nn.NormHasOffset(f.Name)) {
				for k := range values {
					values[k] = (values[k] + 1) - 1
				}
			}
			all[p.Name+"/"+f.Name] = values
		}
	}
	for i, values := range m.Constants {
		if len(values) > 0 {
			all[fmt.Sprintf("constants.%d", i)] = values
		}
	}
	return all
}

// exportSums has a line for each model and type: the xxh3 of the GGUF file, of the weights and of config.json that it
// becomes. They stay what they were.
const exportSums = "testdata/exports.txt"

// sumsOf is the line of an export and of what it is read back as.
func sumsOf(t *testing.T, name string, typ Type, file, back string) string {
	t.Helper()
	line := fmt.Sprintf("%s %s", strings.ReplaceAll(name, " ", "-"), typ)
	for _, path := range []string{file, filepath.Join(back, "model.safetensors"), filepath.Join(back, "config.json")} {
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		line += fmt.Sprintf(" %016x", xxh3.Hash(doc))
	}
	return line
}

// TestExport writes each family in each form, and reads the file back with the program's own reader: the weights,
// the configuration, the ids of many texts, and the bytes.
func TestExport(t *testing.T) {
	doc, err := os.ReadFile("../data/tokenizer/testdata/texts.json")
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	if err := json.Unmarshal(doc, &texts); err != nil || len(texts) < 100 {
		t.Fatal(err, len(texts))
	}
	lines, err := os.ReadFile(exportSums)
	if err != nil {
		t.Fatal(err)
	}
	sums := strings.Split(strings.TrimSuffix(string(lines), "\n"), "\n")
	models := 0
	// The root mean square of what is lost, as a share of the numbers'.
	lost := map[Type]float64{F16: 0.0003, Q8: 0.007, Q4: 0.08, MXFP4: 0.13}
	for _, f := range exportFamilies {
		dir := writeRandomModel(t, f.config, f.tokenizer)
		before := fieldsOf(t, dir)
		tok, err := tokenizer.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, typ := range f.types() {
			models++
			t.Run(f.name+" "+string(typ), func(t *testing.T) {
				var last, total int64
				file, report, err := export(t, dir, ExportOptions{Type: typ, Name: "random", Progress: func(d, n int64) {
					if d <= last || d > n {
						t.Errorf("progress went from %d to %d of %d", last, d, n)
					}
					last, total = d, n
				}})
				if err != nil {
					t.Fatal(err)
				}
				info, err := os.Stat(file)
				if err != nil {
					t.Fatal(err)
				}
				if info.Size() != report.Bytes || total != report.Bytes || report.Architecture != f.arch ||
					report.PreTokenizer != f.pre ||
					report.Type != typ || len(report.Notes) != f.notes {
					t.Errorf("report %+v of a file of %d bytes", report, info.Size())
				}
				back := reimport(t, file)
				if line := sumsOf(t, f.name, typ, file, back); !slices.Contains(sums, line) {
					t.Errorf("%s lacks the line\n%s", exportSums, line)
				}
				after := fieldsOf(t, back)
				if len(after) != len(before) {
					t.Errorf("%d tensors became %d", len(before), len(after))
				}
				for name, want := range before {
					got := after[name]
					if len(got) != len(want) {
						t.Fatalf("%s: %d numbers became %d", name, len(want), len(got))
					}
					var diff, all float64
					for i, x := range want {
						diff += float64(got[i]-x) * float64(got[i]-x)
						all += float64(x) * float64(x)
					}
					isExact := strings.HasSuffix(name, "norm.weight") || strings.HasSuffix(name, "bias") ||
						strings.HasSuffix(name, "router.weight") || strings.HasSuffix(name, "sinks") ||
						strings.HasSuffix(name, "conv.weight") || strings.HasSuffix(name, "positions.weight") ||
						strings.HasPrefix(name, "norm") || strings.HasPrefix(name, "constants")
					limit := lost[typ]
					if strings.HasSuffix(name, nn.DeltaALog) { // a file has their exponentials
						limit = 1e-5
					}
					if share := math.Sqrt(diff / all); isExact && share != 0 || share > limit {
						t.Errorf("%s: %.5f of it is lost", name, share)
					}
				}
				sameModel(t, dir, back, f.config["model_type"].(string))
				if typ != F32 {
					return // it has the same tokenizer
				}
				again, err := tokenizer.Load(back)
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range append(texts, "<|bos|>a<|eos|> b", "[PAD575]") {
					for _, special := range []bool{false, true} {
						if got, want := again.Encode(text, special), tok.Encode(text, special); !slices.Equal(got, want) {
							t.Fatalf("%q has the ids %v, it had %v", text, got, want)
						}
					}
				}
			})
		}
	}
	if len(sums) != models {
		t.Errorf("%s has %d lines for %d files", exportSums, len(sums), models)
	}
}

// sameModel compares what two directories say that a model is. A mistral comes back as the llama that it is in a GGUF
// file.
func sameModel(t *testing.T, dir, back, modelType string) {
	t.Helper()
	var said []string
	for _, d := range []string{dir, back} {
		m, err := model.Read(d)
		if err != nil {
			t.Fatal(err)
		}
		if wants := returns[modelType]; d == back && wants != "" && m.Type != wants {
			t.Errorf("the %s model came back as a %s, want %s", modelType, m.Type, wants)
		} else if wants == "" && m.Type != modelType {
			t.Errorf("the %s model came back as a %s", modelType, m.Type)
		}
		text := fmt.Sprint(m.Hidden, m.Vocab, m.MaxPositions, m.Tied, m.Head)
		for _, b := range m.Blocks {
			if a, ok := b.Mixer.(nn.Attention); ok && modelType == "mistral" {
				a.Window = 0 // a file cannot say it
				b.Mixer = a
			}
			text += fmt.Sprintf("\n%+v %+v %v %v %v %v", b.Mixer, b.FeedForward, b.Norm, b.Rule, b.Residual, b.PerLayer)
		}
		said = append(said, text)
	}
	if a, b := said[0], said[1]; a != b {
		t.Errorf("the %s model\n%s\ncame back as\n%s", modelType, a, b)
	}
}

// TestExportChat: special tokens and templates come back.
func TestExportChat(t *testing.T) {
	dir := writeRandomModel(t, exportFamilies[4].config, "qwen2")
	config := `{"eos_token": "<|eos|>", "pad_token": "<both>", "chat_template": [
		{"name": "default", "template": "plain {{ x }}"},
		{"name": "tool_use", "template": "tools"}]}`
	if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	file, _, err := export(t, dir, ExportOptions{Type: Q8})
	if err != nil {
		t.Fatal(err)
	}
	meta := metaOf(t, file)
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"tokenizer.chat_template": "plain {{ x }}", "tokenizer.chat_template.tool_use": "tools",
		"tokenizer.ggml.eos_token_id":     int64(tok.TokenID("<|eos|>")),
		"tokenizer.ggml.padding_token_id": int64(tok.TokenID("<both>")),
		"tokenizer.ggml.add_bos_token":    false, "general.file_type": int64(7), "general.name": "model",
		"general.size_label":   "2.1M",
		"qwen2.context_length": int64(2048), "qwen2.attention.head_count_kv": int64(2),
	} {
		if got := meta(key); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	c := readJSON(t, filepath.Join(reimport(t, file), "tokenizer_config.json"))
	if c["chat_template"] != "plain {{ x }}" || c["eos_token"] != "<|eos|>" {
		t.Errorf("tokenizer_config.json came back as %v", c)
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("of the file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if file, _, err = export(t, dir, ExportOptions{Type: BF16}); err != nil {
		t.Fatal(err)
	}
	if got := metaOf(t, file)("tokenizer.chat_template"); got != "of the file" {
		t.Errorf("chat template %q", got)
	}
}

// metaOf reads scalars of a file's metadata: int64, bool or string; nil for what is absent.
func metaOf(t *testing.T, file string) func(key string) any {
	t.Helper()
	g := openFile(t, file)
	return func(key string) any {
		v, ok := g.meta[key]
		switch {
		case !ok:
			return nil
		case v.typ == typeString:
			s, _, err := g.text(key)
			if err != nil {
				t.Fatal(err)
			}
			return s
		case v.typ == typeBool:
			b, err := g.boolean(key, false)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		n, _, err := g.integer(key)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// TestExportSentencePiece: a BPE with byte_fallback is written as llama.cpp has SentencePiece's, whose merges are
// scores.
func TestExportSentencePiece(t *testing.T) {
	for name, prefixed := range map[string]bool{"llama2": true, "gemma": false} {
		dir := writeRandomModel(t, exportFamilies[0].config, name)
		file, report, err := export(t, dir, ExportOptions{Type: BF16})
		if err != nil {
			t.Fatal(err)
		}
		meta := metaOf(t, file)
		if meta("tokenizer.ggml.model") != "llama" || meta("tokenizer.ggml.add_space_prefix") != prefixed ||
			report.PreTokenizer != "default" ||
			meta("tokenizer.ggml.add_bos_token") != true {
			t.Errorf("%s: tokenizer %v, prefix %v", name, meta("tokenizer.ggml.model"), meta("tokenizer.ggml.add_space_prefix"))
		}
		_, parts, err := tokenizer.LoadVocabulary(dir)
		if err != nil {
			t.Fatal(err)
		}
		g := openFile(t, file)
		tokens, err := g.strings("tokenizer.ggml.tokens")
		if err != nil {
			t.Fatal(err)
		}
		scores, types := g.meta["tokenizer.ggml.scores"], g.meta["tokenizer.ggml.token_type"]
		if scores.elem != typeF32 || int(scores.n) != len(tokens) || int(types.n) != len(tokens) {
			t.Fatalf("%s: %d scores for %d tokens", name, scores.n, len(tokens))
		}
		score := map[string]float32{}
		typeOf := map[string]uint32{}
		for i, token := range tokens {
			score[token] = math.Float32frombits(binary.LittleEndian.Uint32(scores.raw[4*i:]))
			typeOf[token] = binary.LittleEndian.Uint32(types.raw[4*i:])
		}
		for i, m := range parts.Merges[1:] {
			if before := parts.Merges[i]; score[m[0]+m[1]] > score[before[0]+before[1]] {
				t.Errorf("%s: merge %v has a score above that of %v", name, m, before)
			}
		}
		if typeOf["<0x0A>"] != tokenByte || typeOf["<|bos|>"] != tokenControl || typeOf["▁"] != tokenNormal {
			t.Errorf("%s: the types of <0x0A>, <|bos|> and ▁ are %d, %d and %d", name, typeOf["<0x0A>"], typeOf["<|bos|>"],
				typeOf["▁"])
		}
	}
}

// TestExportMergesOfGemma4: its tokenizer is written with its merges, where llama.cpp reads line ends as it does.
func TestExportMergesOfGemma4(t *testing.T) {
	i := slices.IndexFunc(exportFamilies, func(f exportFamily) bool { return f.name == "gemma4" })
	dir := writeRandomModel(t, exportFamilies[i].config, "gemma")
	path := filepath.Join(dir, "tokenizer.json")
	doc := readJSON(t, path)
	bpe := doc["model"].(map[string]any)
	bpe["merges"] = slices.DeleteFunc(bpe["merges"].([]any), func(m any) bool {
		both := fmt.Sprint(m.([]any)...)
		return strings.Contains(both, "\n") && strings.Trim(both, "\n") != ""
	})
	vocab := bpe["vocab"].(map[string]any)
	id := len(vocab)
	vocab["<|tool_call>"] = id
	doc["added_tokens"] = append(doc["added_tokens"].([]any), map[string]any{"id": id, "content": "<|tool_call>",
		"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	text, err := json.Marshal(doc)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, report, err := export(t, dir, ExportOptions{Type: BF16})
	if err != nil {
		t.Fatal(err)
	}
	if kind := metaOf(t, file)("tokenizer.ggml.model"); kind != "gemma4" || report.PreTokenizer != "" {
		t.Errorf("the tokenizer is %v, cut as %q", kind, report.PreTokenizer)
	}
	if typ := openFile(t, file).meta["tokenizer.ggml.token_type"].raw[4*id]; typ != tokenUserDefined {
		t.Errorf("a token of chats has the type %d", typ)
	}
	back := readJSON(t, filepath.Join(reimport(t, file), "tokenizer.json"))["model"].(map[string]any)["merges"].([]any)
	if len(back) == 0 || len(back) != len(bpe["merges"].([]any)) {
		t.Fatalf("%d merges came back of %d", len(back), len(bpe["merges"].([]any)))
	}
	for i, m := range bpe["merges"].([]any) {
		if want := fmt.Sprint(m.([]any)[0], " ", m.([]any)[1]); back[i] != want {
			t.Fatalf("merge %d is %q, want %q", i, back[i], want)
		}
	}
}

// TestExportRefuses: what cannot be written is one line, and nothing is left.
func TestExportRefuses(t *testing.T) {
	llama := func() string { return writeRandomModel(t, exportFamilies[3].config, "gpt2") }
	change := func(dir string, keys map[string]any) string {
		c := readJSON(t, filepath.Join(dir, "config.json"))
		for k, v := range keys {
			c[k] = v
		}
		doc, err := json.Marshal(c)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), doc, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	without := func(dir, name string) string {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	full := ExportOptions{Type: F32, Room: func(bytes int64) error {
		if bytes < 1<<20 {
			t.Errorf("room for %d bytes is asked for", bytes)
		}
		return fmt.Errorf("the drive: %w", syscall.ENOSPC)
	}}
	bf16 := ExportOptions{Type: BF16}
	for name, c := range map[string]struct {
		dir  string
		opts ExportOptions
		want []string
	}{
		"biases of qwen3": {change(llama(), map[string]any{"model_type": "qwen3", "attention_bias": true}), bf16,
			[]string{"attention_bias", "qwen3"}},
		"llama3 rope": {change(llama(), map[string]any{"model_type": "qwen2",
			"rope_scaling": exportFamilies[1].config["rope_scaling"]}), bf16, []string{"llama3", "use"}},
		"a Unigram":    {writeRandomModel(t, exportFamilies[0].config, "unigram"), bf16, []string{"Unigram", "BPE"}},
		"no tokenizer": {without(llama(), "tokenizer.json"), bf16, []string{"tokenizer.json"}},
		"an unknown split": {writeRandomModel(t, exportFamilies[0].config, "prefix"), bf16, []string{"pre_tokenizer",
			"--pre"}},
		"too many tokens":   {change(llama(), map[string]any{"vocab_size": 300}), bf16, []string{"561 ids", "300 rows"}},
		"a full drive":      {llama(), full, []string{"no space left"}},
		"too large for f16": {tooLarge(t), ExportOptions{Type: F16}, []string{"not finite", "F16", "bf16"}},
	} {
		_, _, err := export(t, c.dir, c.opts)
		if err == nil {
			t.Errorf("%s: written", name)
			continue
		}
		wantOneLine(t, err, c.want...)
	}

	dir := llama()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	fields := m.Checkpoint().Fields(w)
	another := *m
	another.Architecture = ""
	_, err = Export(context.Background(), filepath.Join(t.TempDir(), "x.gguf"), dir, &another, fields, bf16)
	wantOneLine(t, err, "model_type", "llama, mistral, qwen2, qwen3, qwen3_moe, qwen3_5,",
		"gpt_neox, gpt2, glm4_moe, glm4_moe_lite, deepseek_v3 and deepseek_v2", "use")
	there := filepath.Join(t.TempDir(), "there.gguf")
	if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Export(context.Background(), there, dir, m, fields, bf16)
	if doc, _ := os.ReadFile(there); err == nil || string(doc) != "mine" {
		t.Errorf("a file that exists holds %q after %v", doc, err)
	} else {
		wantOneLine(t, err, "there.gguf", "exists")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	gone := filepath.Join(t.TempDir(), "x.gguf")
	if _, err = Export(ctx, gone, dir, m, fields, bf16); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled export returns %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(gone)); len(left) > 0 {
		t.Errorf("a cancelled export left %v", left)
	}
	for typ, name := range map[Type]string{F32: "F32", BF16: "BF16", Q8: "Q8_0"} {
		_, err := Export(context.Background(), gone, dir, m, diverged, ExportOptions{Type: typ})
		wantOneLine(t, err, "not finite", name, "diverged")
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		if _, err = Export(context.Background(), "/dev/full", dir, m, fields, bf16); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a full device gives %v", err)
		}
	}
}

// diverged returns weights that are no numbers.
func diverged(_, _ int, dst []float32, _ int64) error {
	for i := range dst {
		dst[i] = float32(math.NaN())
	}
	return nil
}

// oneBad has numbers near 1, and a bad one among them.
type oneBad struct {
	at  int64
	bad float32
}

func (o oneBad) fields(_, _ int, dst []float32, first int64) error {
	for i := range dst {
		dst[i] = 1 + float32(i%7)/8
		if first+int64(i) == o.at {
			dst[i] = o.bad
		}
	}
	return nil
}

// TestExportNotFinite: one NaN or infinity among good numbers is found for each type, wherever it is in a block.
func TestExportNotFinite(t *testing.T) {
	const elems = 2 * blockK
	for _, q := range quants {
		if q.quantize == nil {
			continue
		}
		for _, bad := range []float64{0.5, math.NaN(), math.Inf(1), math.Inf(-1)} {
			for _, at := range []int64{0, 1, 31, 100, blockK, elems - 1} {
				w, err := create(filepath.Join(t.TempDir(), "a.gguf"), nil,
					[]tensorSpec{{"a", tensor.Shape{elems}, q.typ}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				e := &exporter{to: w, from: oneBad{at, float32(bad)}.fields}
				whole := &model.Tensor{Name: "a", Shape: tensor.Shape{elems},
					Pieces: []model.Piece{{Rows: elems, Cols: 1, RowStep: 1, ColStep: 1}}}
				err = e.copySlab(context.Background(), model.Slab{Elems: elems}, whole, "a")
				w.abort()
				if bad == 0.5 {
					if err != nil {
						t.Fatalf("%s of good numbers: %v", q.name, err)
					}
					continue
				}
				if err == nil {
					t.Errorf("%s: %v at %d is written", q.name, bad, at)
					continue
				}
				wantOneLine(t, err, `"a"`, "not finite", q.name, "diverged")
			}
		}
	}
}

// TestExportKeepsLateFile: a file that comes while the export is under way stays, too.
func TestExportKeepsLateFile(t *testing.T) {
	dir := writeRandomModel(t, exportFamilies[0].config, exportFamilies[0].tokenizer)
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "a.gguf")
	fields := m.Checkpoint().Fields(w)
	late := func(part, field int, dst []float32, first int64) error {
		if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
			return err
		}
		return fields(part, field, dst, first)
	}
	_, err = Export(context.Background(), file, dir, m, late, ExportOptions{Type: BF16})
	if doc, _ := os.ReadFile(file); err == nil || string(doc) != "mine" {
		t.Fatalf("the file holds %.20q after %v", doc, err)
	}
	wantOneLine(t, err, "a.gguf", "exists")
	if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 1 {
		t.Errorf("there are %v", left)
	}
}

// tooLarge is a model with a number above the range of binary16.
func tooLarge(t *testing.T) string {
	t.Helper()
	dir := writeRandomModel(t, exportFamilies[3].config, "gpt2")
	path := filepath.Join(dir, "model.safetensors")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint16(doc[len(doc)-2:], tensor.BF16FromF32(1e6))
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestExportPre: a name for how text is cut that the user gives is taken.
func TestExportPre(t *testing.T) {
	dir := writeRandomModel(t, exportFamilies[0].config, "prefix")
	_, report, err := export(t, dir, ExportOptions{Type: BF16, Pre: "command-r"})
	if err != nil || report.PreTokenizer != "command-r" {
		t.Errorf("%+v, %v", report, err)
	}
	dir = writeRandomModel(t, exportFamilies[0].config, "llama2")
	_, _, err = export(t, dir, ExportOptions{Type: BF16, Pre: "command-r"})
	wantOneLine(t, err, "--pre", "SentencePiece", "leave it out")
}

// TestExportMixture: what a file says of a mixture.
func TestExportMixture(t *testing.T) {
	for i, want := range map[int]map[string]any{
		6: {"general.architecture": "qwen3moe", "general.size_label": "5x817K",
			"qwen3moe.feed_forward_length":        int64(512),
			"qwen3moe.expert_feed_forward_length": int64(96), "qwen3moe.expert_count": int64(5),
			"qwen3moe.expert_used_count": int64(2), "qwen3moe.attention.key_length": int64(32),
			"qwen3moe.vocab_size": nil},
		7: {"general.architecture": "llama", "general.size_label": "8x939K", "llama.feed_forward_length": int64(256),
			"llama.expert_feed_forward_length": nil, "llama.expert_count": int64(8),
			"llama.expert_used_count": int64(2),
			"llama.vocab_size":        int64(576)},
	} {
		f := exportFamilies[i]
		file, _, err := export(t, writeRandomModel(t, f.config, f.tokenizer), ExportOptions{Type: BF16})
		if err != nil {
			t.Fatal(err)
		}
		meta := metaOf(t, file)
		for key, want := range want {
			if got := meta(key); got != want {
				t.Errorf("%s: %s is %v, want %v", f.name, key, got, want)
			}
		}
		g := openFile(t, file)
		experts, inner := g.meta[f.arch+".expert_count"].i, f.config["moe_intermediate_size"]
		if inner == nil {
			inner = f.config["intermediate_size"]
		}
		for name, shape := range map[string]tensor.Shape{"gate": {int(experts), inner.(int), 256},
			"up": {int(experts), inner.(int), 256}, "down": {int(experts), 256, inner.(int)}} {
			if x := g.tensors["blk.1.ffn_"+name+"_exps.weight"]; !x.dims.Equal(shape) || x.typ != ggmlBF16 {
				t.Errorf("%s: %s is %v of %v, want %v", f.name, name, x.dims, x.typ, shape)
			}
		}
		if x := g.tensors["blk.1.ffn_gate_inp.weight"]; !x.dims.Equal(tensor.Shape{int(experts), 256}) ||
			x.typ != ggmlF32 {
			t.Errorf("%s: the router is %v of %v", f.name, x.dims, x.typ)
		}
	}
}

// TestExportParts: how many experts a part has changes no byte of a file, though a stacked tensor then comes from many
// parts, and each part is read once.
func TestExportParts(t *testing.T) {
	f := exportFamilies[6]
	dir := writeRandomModel(t, f.config, f.tokenizer)
	file, _, err := export(t, dir, ExportOptions{Type: Q4, Name: "random"})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	names := model.Llama.Recut(model.Rows, "q.*", "k.*")
	names = append(names, model.Name{Role: "router.*", HF: "model.layers.{layer}.mlp.gate.*",
		GGUF: "blk.{layer}.ffn_gate_inp.*"})
	for _, x := range []string{"gate", "up", "down"} {
		names = append(names, model.Name{Role: "expert." + x + ".*",
			HF:   "model.layers.{layer}.mlp.experts.{expert}." + x + "_proj.*",
			GGUF: "blk.{layer}.ffn_" + x + "_exps.*", CutGGUF: model.Stacked})
	}
	doc, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config := parseConfig(t, strings.Replace(string(doc), "qwen3_moe", "parts", 1))
	for _, perPart := range []int{1, 2, 5} {
		m, err := model.New(config, model.Family{ModelType: "parts", Architecture: "qwen3moe", Names: names,
			Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
				s.Attention.KVHeads, s.Attention.QKNorm = r.Size("num_key_value_heads"), true
				s.HeadDim(r)
				s.Rotary(r)
				x := nn.Experts{Inner: r.Size("moe_intermediate_size"), Number: r.Size("num_experts"), PerPart: perPart,
					Route: device.RouteSpec{TopK: r.Size("num_experts_per_tok"),
						Renormalize: r.BoolOr("norm_topk_prob", false), Scale: 1}}
				s.FeedForwards = slices.Repeat([]nn.FeedForward{x}, s.Layers)
			}})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(m.GroupParts[0]), (4+perPart)/perPart; got != want {
			t.Fatalf("%d parts of experts, want %d", got, want)
		}
		file := filepath.Join(t.TempDir(), "m.gguf")
		reads := make([]int, len(m.Parts))
		fields := m.FieldsOf(func(part int) (model.Values, error) {
			reads[part]++
			v := model.Values{F32: make([]float32, m.Parts[part].Layout.WeightElems)}
			return v, m.ReadPart(w, &m.Parts[part], v)
		})
		if _, err := Export(context.Background(), file, dir, m, fields, ExportOptions{Type: Q4,
			Name: "random"}); err != nil {
			t.Fatal(err)
		}
		if slices.Min(reads) != 1 || slices.Max(reads) != 1 {
			t.Errorf("%d experts in a part: parts were read %v times", perPart, reads)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d experts in a part: another file", perPart)
		}
	}
}

// TestMixtureRefuses: a mixture that llama.cpp would compute otherwise, or not load, is one line.
func TestMixtureRefuses(t *testing.T) {
	const config = `{"model_type": "qwen3_moe", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 4,
		"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 6, "max_position_embeddings": 64, "num_experts": 3,
		"num_experts_per_tok": 2, "moe_intermediate_size": 4, "norm_topk_prob": true}`
	for change, words := range map[string][]string{
		"":                                nil,
		`"norm_topk_prob": false`:         {"norm_topk_prob", "add up to 1", "use"},
		`"mlp_only_layers": [2]`:          {"mlp_only_layers", "every layer of qwen3moe", "use"},
		`"mlp_only_layers": [0, 1, 2, 3]`: {"mlp_only_layers", "use"},
		`"decoder_sparse_step": 2`:        {"decoder_sparse_step", "every layer of qwen3moe", "use"},
		`"num_experts": 1025`:             {"1025 experts", "at most 1024", "use"},
		`"num_experts": 1024`:             nil,
		`"attention_bias": true`:          {"attention_bias", "qwen3moe", "use"},
		`"num_experts": 1`:                {"num_experts_per_tok"},
		`"num_experts_per_tok": 3`:        nil,
		`"rope_scaling": {"rope_type": "yarn", "factor": 2}`:                  nil,
		`"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 16}`: {"yarn", "beta_fast", "32", "use"},
		`"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_slow": 2}`:  {"yarn", "beta_slow", "32", "use"},
	} {
		doc := config
		if key, _, ok := strings.Cut(change, ":"); ok {
			var keys map[string]json.RawMessage
			if err := errors.Join(json.Unmarshal([]byte(config), &keys), json.Unmarshal([]byte("{"+change+"}"),
				&keys)); err != nil {
				t.Fatal(key, err)
			}
			b, err := json.Marshal(keys)
			if err != nil {
				t.Fatal(err)
			}
			doc = string(b)
		}
		c := parseConfig(t, doc)
		m, err := model.New(c)
		if err == nil {
			_, err = describe(c, m)
		}
		if words != nil {
			wantOneLine(t, err, words...)
		} else if err != nil {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// TestTypesOfTensors: Q4_K_M gives each tensor of SmolLM2-135M, of a 7B and of mixtures the type that llama.cpp gives
// it.
func TestTypesOfTensors(t *testing.T) {
	count := func(m *decoder) map[string]int {
		n := map[string]int{}
		for _, x := range m.form.Tensors {
			n[m.typeOf(Q4, x).String()]++
		}
		return n
	}
	for name, c := range map[string]struct {
		config string
		want   map[string]int
	}{
		// Rows of 576 are no whole blocks of 256: what a quantized SmolLM2 of llama.cpp has.
		"SmolLM2-135M": {`{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
			"num_hidden_layers": 30, "num_attention_heads": 9,
			"num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": true}`,
			map[string]int{"Q5_0": 166, "Q4_K": 16, "Q8_0": 15, "Q6_K": 14, "F32": 61}},
		// As published files of Llama 2 7B in Q4_K_M have them.
		"Llama 2 7B": {`{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
			"num_hidden_layers": 32, "num_attention_heads": 32,
			"vocab_size": 32000, "max_position_embeddings": 4096}`, map[string]int{"Q4_K": 193, "Q6_K": 33, "F32": 65}},
		// As published files of these two have them.
		"Mixtral 8x7B": {`{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
			"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
			"vocab_size": 32000, "max_position_embeddings": 32768}`,
			map[string]int{"Q4_K": 113, "Q5_K": 32, "Q6_K": 17, "Q8_0": 64, "F32": 97}},
		"Qwen3 30B-A3B": {`{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
			"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128,
			"num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,
			"vocab_size": 151936, "max_position_embeddings": 40960}`, map[string]int{"Q4_K": 289, "Q6_K": 49, "F32": 241}},
		// A llama of 80 layers would have Q5_K.
		"80 layers": {`{"model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 80,
			"num_attention_heads": 8, "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2,
			"moe_intermediate_size": 256, "norm_topk_prob": true, "vocab_size": 512, "max_position_embeddings": 64}`,
			map[string]int{"Q4_K": 481, "Q6_K": 81, "F32": 401}},
	} {
		config := parseConfig(t, c.config)
		of, err := model.New(config)
		if err != nil {
			t.Fatal(err)
		}
		m, err := describe(config, of)
		if err != nil {
			t.Fatal(err)
		}
		if got := count(m); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestSizeLabel(t *testing.T) {
	for n, want := range map[int64]string{134515008: "135M", 1235814400: "1.2B", 70_553_706_496: "71B",
		494_032_768: "494M", 12_000: "12K", 900: "0.9K"} {
		if got := SizeLabel(n); got != want {
			t.Errorf("%d parameters are %s, want %s", n, got, want)
		}
	}
}

// openFile reads the front of a file.
func openFile(t *testing.T, file string) *header {
	t.Helper()
	g, f, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return g
}

// The tokens at which a generation ends, beyond the end of text and those that llama.cpp knows by name, have the two places
// of a file, an import finds them there, and a note says which have no place.
func TestEndsOfAGeneration(t *testing.T) {
	dir := writeRandomModel(t, exportFamilies[0].config, "qwen2")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("tokenizer_config.json", `{"eos_token": "!"}`)
	for ends, want := range map[string]struct {
		eot, eom any
		imported string
		notes    int
	}{
		`0`:              {nil, nil, `"eos_token_id": 0`, 0},
		`null`:           {nil, nil, `"eos_token_id": 0`, 0},
		`[0, 3]`:         {int64(3), nil, "[\n    0,\n    3\n  ]", 0},
		`[3, 5, 0]`:      {int64(3), int64(5), "[\n    0,\n    3,\n    5\n  ]", 0},
		`[3, 5, 7, 7]`:   {int64(3), int64(5), "[\n    0,\n    3,\n    5\n  ]", 2},
		`[-1, 99999, 3]`: {int64(3), nil, "[\n    0,\n    3\n  ]", 0},
	} {
		put("generation_config.json", `{"eos_token_id": `+ends+`}`)
		file, report, err := export(t, dir, ExportOptions{Type: F32})
		if err != nil {
			t.Fatal(err)
		}
		meta := metaOf(t, file)
		if got := meta("tokenizer.ggml.eos_token_id"); got != int64(0) {
			t.Errorf("%s: eos is %v", ends, got)
		}
		eot, eom := meta("tokenizer.ggml.eot_token_id"), meta("tokenizer.ggml.eom_token_id")
		notes := strings.Count(strings.Join(report.Notes, "\n"), "a generation ends at")
		if eot != want.eot || eom != want.eom || notes != want.notes {
			t.Errorf("%s: eot %v, eom %v, notes %v", ends, eot, eom, report.Notes)
		}
		out := filepath.Join(t.TempDir(), "back")
		if err := Import(t.Context(), file, out, ImportOptions{DType: tensor.F32}); err != nil {
			t.Fatal(err)
		}
		doc, err := os.ReadFile(filepath.Join(out, "generation_config.json"))
		if err != nil || !strings.Contains(string(doc), want.imported) {
			t.Errorf("%s: imported %s, %v, want %s", ends, doc, err, want.imported)
		}
	}
	put("generation_config.json", `{"eos_token_id": "x"}`)
	if _, _, err := export(t, dir, ExportOptions{Type: F32}); err == nil || !strings.Contains(err.Error(), "eos_token_id") {
		t.Error(err)
	}
}
