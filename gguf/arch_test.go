package gguf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// describeChanged describes a model whose config.json has other values for some keys.
func describeChanged(t *testing.T, config map[string]any, change string) (*decoder, error) {
	t.Helper()
	keys := maps.Clone(config)
	if err := json.Unmarshal([]byte("{"+change+"}"), &keys); err != nil {
		t.Fatal(change, err)
	}
	doc, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	c := parseConfig(t, string(doc))
	m, err := model.New(c)
	if err != nil {
		return nil, err
	}
	return describe(c, m)
}

// TestGPTOSSRefuses: what llama.cpp computes otherwise, or does not load, is one line.
func TestGPTOSSRefuses(t *testing.T) {
	config := map[string]any{"model_type": "gpt_oss", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3,
		"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 6, "max_position_embeddings": 64,
		"num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 4, "sliding_window": 8,
		"rope_scaling": map[string]any{"rope_type": "default"}}
	const yarn = `"rope_scaling": {"rope_type": "yarn", "factor": 32, "truncate": `
	for change, c := range map[string]struct{ words, notes []string }{
		"":                            {},
		`"tie_word_embeddings": true`: {words: []string{"tie_word_embeddings", "head", "use"}},
		`"attention_bias": false`:     {words: []string{"attention_bias", "gpt-oss", "use"}},
		`"swiglu_limit": 6`:           {words: []string{"swiglu_limit", "always 7", "use"}},
		`"swiglu_alpha": 1.5`:         {words: []string{"swiglu_alpha", "always 1.702", "use"}},
		`"num_local_experts": 1025`:   {words: []string{"1025 experts", "at most 1024"}},
		`"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention"]`: {
			words: []string{"layer_types", "layer 1", "use"}},
		`"layer_types": ["full_attention", "sliding_attention", "full_attention"]`: {
			words: []string{"layer_types", "layer 0", "use"}},
		`"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]`: {},
		yarn + `false}`: {notes: []string{"truncate", "llama.cpp"}},
		yarn + `true}`:  {notes: []string{"truncate", "import"}},
		`"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 16}`: {words: []string{"beta_fast", "use"}},
	} {
		d, err := describeChanged(t, config, change)
		if c.words != nil {
			wantOneLine(t, err, c.words...)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", change, err)
			continue
		}
		if notes := strings.Join(d.notes, ""); len(d.notes) > 1 || (notes == "") != (c.notes == nil) {
			t.Errorf("%s: notes %q", change, d.notes)
		}
		for _, word := range c.notes {
			if !strings.Contains(d.notes[0], word) {
				t.Errorf("%s: the note %q lacks %q", change, d.notes[0], word)
			}
		}
	}
}

// TestGLMRefuses: the same of glm4_moe.
func TestGLMRefuses(t *testing.T) {
	config := map[string]any{"model_type": "glm4_moe", "hidden_size": 8, "intermediate_size": 12,
		"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 6,
		"max_position_embeddings": 64, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 4}
	for change, words := range map[string][]string{
		"":                           nil,
		`"n_group": 3`:               nil,
		`"norm_topk_prob": false`:    nil,
		`"first_k_dense_replace": 0`: nil,
		`"first_k_dense_replace": 3`: {"first_k_dense_replace", "no layer has experts", "use"},
		`"n_shared_experts": 0`:      {"n_shared_experts", "use"},
		`"n_routed_experts": 1, "num_experts_per_tok": 1`:    {"n_routed_experts", "more experts", "use"},
		`"n_group": 3, "topk_group": 3`:                      {"topk_group", "n_group", "write 1"},
		`"rope_scaling": {"rope_type": "yarn", "factor": 2}`: nil,
		`"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
			"original_max_position_embeddings": 64}`: {"llama3", "use"},
	} {
		if change == `"n_group": 3` {
			change += `, "topk_group": 1, "num_experts_per_tok": 2`
		}
		_, err := describeChanged(t, config, change)
		if words != nil {
			wantOneLine(t, err, words...)
		} else if err != nil {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// TestLatentRefuses: the same of latent attention.
func TestLatentRefuses(t *testing.T) {
	config := randomConfig()
	maps.Copy(config, latentConfig(nil))
	const yarn = `"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 512`
	for change, words := range map[string][]string{
		"":                              nil,
		`"attention_bias": true`:        {"attention_bias", "deepseek2", "use"},
		`"n_shared_experts": 0`:         {"n_shared_experts", "deepseek2", "use"},
		`"first_k_dense_replace": 3`:    {"first_k_dense_replace", "no layer has experts", "use"},
		`"q_lora_rank": null`:           {"q_lora_rank", "needs one", "3 layers", "use"},
		`"num_hidden_layers": 27`:       {"q_lora_rank", "has none", "27 layers", "use"},
		yarn + `}`:                      {"rope_scaling", "mscale_all_dim", "use"},
		yarn + `, "mscale": 1.0}`:       {"rope_scaling", "mscale_all_dim", "use"},
		yarn + `, "mscale_all_dim": 1}`: {"rope_scaling", "mscale_all_dim", "use"},
		yarn + `, "mscale": 2, "mscale_all_dim": 1}`:                  {"rope_scaling", "an equal", "use"},
		yarn + `, "mscale": 2, "mscale_all_dim": 2}`:                  nil,
		yarn + `, "mscale": 1, "mscale_all_dim": 1, "beta_fast": 16}`: {"beta_fast", "always 32", "use"},
		`"rope_scaling": {"rope_type": "linear", "factor": 4}`:        {"rope_scaling", "linear", "use"},
		`"model_type": "deepseek_v2", "norm_topk_prob": false`:        nil,
		`"model_type": "deepseek_v2", "norm_topk_prob": false, "topk_method": "group_limited_greedy"`: {
			"topk_method", "two best", "use"},
		`"model_type": "glm4_moe_lite"`: nil,
		`"model_type": "glm4_moe_lite", "mlp_layer_types": ["sparse", "dense", "sparse"]`: {
			"mlp_layer_types", "come first", "use"},
	} {
		_, err := describeChanged(t, config, change)
		if words != nil {
			wantOneLine(t, err, words...)
		} else if err != nil {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// TestExportOfArchitectures: what files of gpt-oss, glm4moe and deepseek2 say.
func TestExportOfArchitectures(t *testing.T) {
	for name, want := range map[string]map[string]any{
		"gpt_oss": {"general.architecture": "gpt-oss", "general.size_label": "5x820K",
			"gpt-oss.expert_count": int64(5), "gpt-oss.expert_used_count": int64(2),
			"gpt-oss.expert_feed_forward_length": int64(96), "gpt-oss.feed_forward_length": int64(96),
			"gpt-oss.attention.sliding_window": int64(16), "gpt-oss.attention.key_length": int64(32),
			"gpt-oss.rope.scaling.type": "yarn", "gpt-oss.rope.scaling.original_context_length": int64(512)},
		"glm4_moe": {"general.architecture": "glm4moe", "glm4moe.block_count": int64(3),
			"glm4moe.expert_count": int64(6), "glm4moe.expert_used_count": int64(3),
			"glm4moe.expert_shared_count": int64(1), "glm4moe.leading_dense_block_count": int64(1),
			"glm4moe.expert_group_count": int64(3), "glm4moe.expert_group_used_count": int64(2),
			"glm4moe.expert_gating_func": int64(2), "glm4moe.expert_weights_norm": true,
			"glm4moe.rope.dimension_count": int64(32), "glm4moe.nextn_predict_layers": nil},
		"deepseek_v3": {"general.architecture": "deepseek2", "deepseek2.attention.head_count": int64(4),
			"deepseek2.attention.head_count_kv": int64(1), "deepseek2.attention.key_length": int64(80),
			"deepseek2.attention.value_length": int64(64), "deepseek2.attention.key_length_mla": int64(48),
			"deepseek2.attention.value_length_mla": int64(24), "deepseek2.attention.q_lora_rank": int64(96),
			"deepseek2.attention.kv_lora_rank": int64(64), "deepseek2.rope.dimension_count": int64(16),
			"deepseek2.expert_gating_func": int64(2), "deepseek2.leading_dense_block_count": int64(1)},
	} {
		i := slices.IndexFunc(exportFamilies, func(f exportFamily) bool { return f.name == name })
		f := exportFamilies[i]
		file, _, err := export(t, writeRandomModel(t, f.config, f.tokenizer), ExportOptions{Type: Q8})
		if err != nil {
			t.Fatal(err)
		}
		meta := metaOf(t, file)
		for key, want := range want {
			if got := meta(key); got != want {
				t.Errorf("%s: %s is %v, want %v", name, key, got, want)
			}
		}
		g := openFile(t, file)
		for tensorName, typ := range map[string]ggmlType{"blk.1.ffn_gate_exps.bias": ggmlF32,
			"blk.1.exp_probs_b.bias": ggmlF32, "blk.1.attn_sinks.weight": ggmlF32,
			"blk.1.ffn_gate_inp.weight": ggmlF32, "blk.1.attn_q.bias": ggmlF32,
			"blk.1.ffn_up_exps.weight": ggmlQ8_0, "blk.1.post_attention_norm.weight": ggmlF32,
			"blk.1.ffn_down_shexp.weight": ggmlQ8_0} {
			if x, ok := g.tensors[tensorName]; ok && x.typ != typ {
				t.Errorf("%s: %s has the type %v, want %v", name, tensorName, x.typ, typ)
			}
		}
	}
	// The bytes of MXFP4 are those of experts, and no others.
	f := exportFamilies[slices.IndexFunc(exportFamilies, func(f exportFamily) bool { return f.name == "gpt_oss" })]
	file, report, err := export(t, writeRandomModel(t, f.config, f.tokenizer), ExportOptions{Type: MXFP4})
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range openFile(t, file).tensors {
		if isExpert := strings.HasSuffix(name, "_exps.weight"); isExpert != (x.typ == ggmlMXFP4) {
			t.Errorf("%s has the type %v", name, x.typ)
		}
	}
	if report.Tensors["MXFP4"] != 9 || metaOf(t, file)("general.file_type") != int64(38) {
		t.Errorf("%+v", report)
	}
	// A model without experts has no such form.
	dense := exportFamilies[0]
	_, _, err = export(t, writeRandomModel(t, dense.config, dense.tokenizer), ExportOptions{Type: MXFP4})
	wantOneLine(t, err, "mxfp4", "llama", "mixtures")
}

// TestExportLeavesOutNextToken: layers that predict tokens after the next one are not written.
func TestExportLeavesOutNextToken(t *testing.T) {
	f := exportFamilies[slices.IndexFunc(exportFamilies, func(f exportFamily) bool { return f.name == "glm4_moe" })]
	dir := writeRandomModel(t, f.config, f.tokenizer)
	more := filepath.Join(t.TempDir(), "more")
	w, err := hf.CreateModel(more, []hf.TensorSpec{{Name: "model.layers.3.eh_proj.weight", DType: tensor.F32,
		Shape: tensor.Shape{4, 8}}}, hf.WriteOptions{})
	if err == nil {
		if err = w.Write("model.layers.3.eh_proj.weight", make([]byte, 128)); err == nil {
			err = w.AddFile("config.json", []byte("{}"))
		}
	}
	if err == nil {
		err = w.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	before, _, err := export(t, dir, ExportOptions{Type: BF16})
	if err != nil {
		t.Fatal(err)
	}
	extra := filepath.Join(more, "model.safetensors")
	if err := os.Rename(extra, filepath.Join(dir, "model-2.safetensors")); err != nil {
		t.Fatal(err)
	}
	after, _, err := export(t, dir, ExportOptions{Type: BF16})
	if err != nil {
		t.Fatal(err)
	}
	a, err := os.ReadFile(before)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(after)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("the file differs: %v", err)
	}
}

// TestSpecialTokensOfGLM: the file names the tokens at which llama.cpp stops, if the tokenizer has them.
func TestSpecialTokensOfGLM(t *testing.T) {
	f := exportFamilies[slices.IndexFunc(exportFamilies, func(f exportFamily) bool { return f.name == "glm4_moe" })]
	dir := writeRandomModel(t, f.config, f.tokenizer)
	path := filepath.Join(dir, "tokenizer.json")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	doc = bytes.ReplaceAll(bytes.ReplaceAll(doc, []byte(`"<|bos|>"`), []byte(`"[gMASK]"`)), []byte(`"<|eos|>"`),
		[]byte(`"<|user|>"`))
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	file, _, err := export(t, dir, ExportOptions{Type: BF16})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	meta := metaOf(t, file)
	for key, want := range map[string]any{"bos": int64(tok.TokenID("[gMASK]")), "eot": int64(tok.TokenID("<|user|>")),
		"eom": nil, "unknown": nil} {
		if got := meta("tokenizer.ggml." + key + "_token_id"); got != want {
			t.Errorf("%s is token %v, want %v", key, got, want)
		}
	}
}

// TestPreOfGPTOSS: a tokenizer that cuts text as that of gpt-oss is found by its rules.
func TestPreOfGPTOSS(t *testing.T) {
	dir := writeRandomModel(t, exportFamilies[0].config, "qwen2")
	path := filepath.Join(dir, "tokenizer.json")
	var doc map[string]json.RawMessage
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err == nil {
		doc["pre_tokenizer"], doc["normalizer"] = json.RawMessage(preTokenizers["gpt-4o"].preTokenizer),
			json.RawMessage("null")
		text, err = json.Marshal(doc)
	}
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, report, err := export(t, dir, ExportOptions{Type: BF16})
	if err != nil || report.PreTokenizer != "gpt-4o" {
		t.Errorf("%+v, %v", report, err)
	}
}

// smallGPTOSS is a small gpt-oss with 3 experts, 5 wide.
func smallGPTOSS() *document {
	d := smallMixture("gpt-oss")
	d.meta["gpt-oss.attention.sliding_window"] = 16
	maps.Copy(d.meta, map[string]any{"gpt-oss.rope.scaling.type": "yarn", "gpt-oss.rope.scaling.factor": 32.0,
		"gpt-oss.rope.scaling.original_context_length": 4, "gpt-oss.rope.scaling.yarn_beta_fast": 32.0,
		"gpt-oss.rope.scaling.yarn_beta_slow": 1.0})
	maps.Copy(d.tensors, map[string]docTensor{"blk.0.attn_q.bias": f32Tensor(8), "blk.0.attn_k.bias": f32Tensor(4),
		"blk.0.attn_v.bias": f32Tensor(4), "blk.0.attn_output.bias": f32Tensor(8),
		"blk.0.attn_sinks.weight": f32Tensor(2), "blk.0.ffn_gate_inp.bias": f32Tensor(3),
		"blk.0.ffn_gate_exps.bias": f32Tensor(3, 5),
		"blk.0.ffn_up_exps.bias":   f32Tensor(3, 5), "blk.0.ffn_down_exps.bias": f32Tensor(3, 8),
		"blk.0.post_attention_norm.weight": f32Tensor(8)})
	delete(d.tensors, "blk.0.ffn_norm.weight")
	return d
}

// denseFirst is a small mixture of a dense layer, and one with 3 experts and a shared one.
func denseFirst(arch string) *document {
	d := smallMixture(arch)
	for name, x := range maps.Clone(d.tensors) {
		if rest, ok := strings.CutPrefix(name, "blk.0."); ok {
			d.tensors["blk.1."+rest] = x
			if strings.Contains(rest, "_inp") || strings.Contains(rest, "_exps") {
				delete(d.tensors, name)
			}
		}
	}
	maps.Copy(d.tensors, map[string]docTensor{"blk.0.ffn_gate.weight": f32Tensor(12, 8),
		"blk.0.ffn_up.weight": f32Tensor(12, 8), "blk.0.ffn_down.weight": f32Tensor(8, 12),
		"blk.1.ffn_gate_shexp.weight": f32Tensor(5, 8), "blk.1.ffn_up_shexp.weight": f32Tensor(5, 8),
		"blk.1.ffn_down_shexp.weight": f32Tensor(8, 5), "blk.1.exp_probs_b.bias": f32Tensor(3)})
	maps.Copy(d.meta, map[string]any{arch + ".block_count": 2, arch + ".expert_shared_count": 1,
		arch + ".leading_dense_block_count": 1, arch + ".expert_gating_func": 2, arch + ".expert_weights_scale": 2.5,
		arch + ".expert_weights_norm": true, arch + ".rope.dimension_count": 2})
	return d
}

// smallGLM is a small glm4moe, with a layer that predicts the token after the next.
func smallGLM() *document {
	d := denseFirst("glm4moe")
	for l := range 2 {
		p := fmt.Sprintf("blk.%d.", l)
		d.tensors[p+"post_attention_norm.weight"] = d.tensors[p+"ffn_norm.weight"]
		delete(d.tensors, p+"ffn_norm.weight")
	}
	d.meta["glm4moe.block_count"], d.meta["glm4moe.nextn_predict_layers"] = 3, 1
	d.tensors["blk.2.nextn.eh_proj.weight"], d.tensors["blk.2.attn_q.weight"] = f32Tensor(8, 16), f32Tensor(1)
	return d
}

// smallDeepSeek is a small deepseek2: ranks of 6 and 4, heads of 3 columns and 2 that are rotated, and values of 3.
func smallDeepSeek() *document {
	d := denseFirst("deepseek2")
	maps.Copy(d.meta, map[string]any{"deepseek2.attention.head_count_kv": 1, "deepseek2.attention.q_lora_rank": 6,
		"deepseek2.attention.kv_lora_rank": 4, "deepseek2.attention.key_length": 6,
		"deepseek2.attention.value_length": 4, "deepseek2.attention.key_length_mla": 5,
		"deepseek2.attention.value_length_mla": 3})
	for l := range 2 {
		p := fmt.Sprintf("blk.%d.", l)
		for _, name := range []string{"q", "k", "v"} {
			delete(d.tensors, p+"attn_"+name+".weight")
		}
		maps.Copy(d.tensors, map[string]docTensor{p + "attn_q_a.weight": f32Tensor(6, 8),
			p + "attn_q_a_norm.weight": f32Tensor(6), p + "attn_q_b.weight": f32Tensor(10, 6),
			p + "attn_kv_a_mqa.weight": f32Tensor(6, 8), p + "attn_kv_a_norm.weight": f32Tensor(4),
			p + "attn_k_b.weight": f32Tensor(2, 4, 3), p + "attn_v_b.weight": f32Tensor(2, 3, 4),
			p + "attn_output.weight": f32Tensor(8, 6)})
	}
	return d
}

// smallGemma4 is a small gemma4: a layer with a window and heads of 2, and one that sees all with heads of 4, whose
// keys are its values.
func smallGemma4() *document { return gemma4OfPairs(1) }

// gemma4OfPairs has such layers in turns.
func gemma4OfPairs(pairs int) *document {
	d := small("gemma4")
	maps.Copy(d.meta, map[string]any{"gemma4.block_count": 2 * pairs, "gemma4.attention.key_length": 4,
		"gemma4.attention.value_length": 4, "gemma4.attention.key_length_swa": 2,
		"gemma4.attention.value_length_swa": 2, "gemma4.rope.dimension_count": 4,
		"gemma4.rope.dimension_count_swa": 2, "gemma4.rope.freq_base_swa": 1e4,
		"gemma4.attention.sliding_window":         3,
		"gemma4.attention.sliding_window_pattern": slices.Repeat([]bool{true, false}, pairs),
		"gemma4.attention.shared_kv_layers":       0, "gemma4.embedding_length_per_layer_input": 0})
	for l, width := range slices.Repeat([]int{2, 4}, pairs) {
		p := fmt.Sprintf("blk.%d.", l)
		for _, name := range []string{"ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm"} {
			d.tensors[p+name+".weight"] = d.tensors["blk.0."+name+".weight"]
		}
		maps.Copy(d.tensors, map[string]docTensor{p + "attn_q.weight": f32Tensor(2*width, 8),
			p + "attn_k.weight": f32Tensor(width, 8), p + "attn_output.weight": f32Tensor(8, 2*width),
			p + "attn_q_norm.weight": f32Tensor(width), p + "attn_k_norm.weight": f32Tensor(width),
			p + "post_attention_norm.weight": f32Tensor(8), p + "post_ffw_norm.weight": f32Tensor(8),
			p + "layer_output_scale.weight": f32Tensor(1)})
		if width == 2 {
			d.tensors[p+"attn_v.weight"] = f32Tensor(2, 8)
		}
	}
	d.tensors["rope_freqs.weight"] = f32Values(1, 1e30)
	return d
}

// sharedGemma4 has four layers, of which the last two use keys and values of the first two, and rows of 3 columns that
// each layer adds.
func sharedGemma4() *document {
	d := gemma4OfPairs(2)
	d.meta["gemma4."+sharedKeys], d.meta["gemma4."+layerRows] = 2, 3
	d.meta["gemma4."+feedForward] = []int32{12, 12, 24, 24}
	maps.Copy(d.tensors, map[string]docTensor{"per_layer_token_embd.weight": f32Tensor(6, 12),
		"per_layer_model_proj.weight": f32Tensor(12, 8), "per_layer_proj_norm.weight": f32Tensor(3)})
	for l := range 4 {
		p := fmt.Sprintf("blk.%d.", l)
		maps.Copy(d.tensors, map[string]docTensor{p + "inp_gate.weight": f32Tensor(3, 8),
			p + "proj.weight": f32Tensor(8, 3), p + "post_norm.weight": f32Tensor(8)})
		if l < 2 {
			continue
		}
		for _, name := range []string{"attn_k", "attn_k_norm", "attn_v"} {
			delete(d.tensors, p+name+".weight")
		}
		maps.Copy(d.tensors, map[string]docTensor{p + "ffn_gate.weight": f32Tensor(24, 8),
			p + "ffn_up.weight": f32Tensor(24, 8), p + "ffn_down.weight": f32Tensor(8, 24)})
	}
	return d
}

// mixtureGemma4 is the same with 3 experts of 5 next to each dense feed-forward.
func mixtureGemma4() *document {
	d := smallGemma4()
	d.meta["gemma4.expert_count"], d.meta["gemma4.expert_used_count"] = 3, 2
	d.meta["gemma4."+expertInner] = 5
	for l := range 2 {
		p := fmt.Sprintf("blk.%d.", l)
		maps.Copy(d.tensors, map[string]docTensor{p + "ffn_gate_inp.weight": f32Tensor(3, 8),
			p + "ffn_gate_inp.scale": f32Tensor(8), p + "ffn_down_exps.scale": f32Tensor(3),
			p + "ffn_gate_up_exps.weight": f32Tensor(3, 10, 8), p + "ffn_down_exps.weight": f32Tensor(3, 8, 5),
			p + "pre_ffw_norm_2.weight": f32Tensor(8), p + "post_ffw_norm_1.weight": f32Tensor(8),
			p + "post_ffw_norm_2.weight": f32Tensor(8)})
	}
	return d
}

func f32Values(values ...float32) docTensor {
	data := make([]byte, 4*len(values))
	quantizeF32(data, values)
	return docTensor{ggmlF32, []int{len(values)}, data, -1}
}

// withYaRN has yarn of a factor of 4, and what else the metadata say of it.
func withYaRN(d *document, more map[string]any) {
	maps.Copy(d.meta, map[string]any{"deepseek2.rope.scaling.type": "yarn", "deepseek2.rope.scaling.factor": 4.0})
	for key, value := range more {
		d.meta["deepseek2.rope.scaling."+key] = value
	}
}

// TestImportGemma4Limit: a gemma4 without a limit of logits has the one that llama.cpp takes, and 0 stands for no
// limit.
func TestImportGemma4Limit(t *testing.T) {
	for _, c := range []struct{ said, want any }{{nil, 30.0}, {0.0, nil}, {7.5, 7.5}} {
		d := smallGemma4()
		if c.said != nil {
			d.meta["gemma4."+logitCap] = c.said
		}
		dir, err := importDoc(t, d, ImportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := readJSON(t, filepath.Join(dir, "config.json"))[logitCap]; got != c.want {
			t.Errorf("a limit of %v became %v, want %v", c.said, got, c.want)
		}
	}
}

// TestImportUnusedKeys: tensors that make keys and values of layers which use those of others are left out, as
// transformers leaves them out.
func TestImportUnusedKeys(t *testing.T) {
	d := sharedGemma4()
	dir, err := importDoc(t, d, ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := allValues(t, dir)
	for _, p := range []string{"blk.2.attn_k", "blk.2.attn_v", "blk.3.attn_k"} {
		d.tensors[p+".weight"] = f32Tensor(7, 8)
	}
	d.tensors["blk.2.attn_k_norm.weight"] = f32Tensor(2)
	if dir, err = importDoc(t, d, ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := allValues(t, dir); !reflect.DeepEqual(got, want) {
		t.Errorf("%d tensors came in, want %d", len(got), len(want))
	}
	d.tensors["blk.2.attn_q.bias"] = f32Tensor(4)
	_, err = importDoc(t, d, ImportOptions{})
	wantOneLine(t, err, `"blk.2.attn_q.bias"`, "does not belong")
}

// TestImportGPTOSS: experts become stacked and transposed matrices with alternating columns, config.json says the rest.
func TestImportGPTOSS(t *testing.T) {
	dir, err := importDoc(t, smallGPTOSS(), ImportOptions{DType: tensor.F32})
	if err != nil {
		t.Fatal(err)
	}
	all := allValues(t, dir)
	gateUp := all["model.layers.0.mlp.experts.gate_up_proj"] // [3, 8, 2*5]
	down := all["model.layers.0.mlp.experts.down_proj"]      // [3, 5, 8]
	if len(gateUp) != 240 || len(down) != 120 {
		t.Fatalf("%d and %d numbers", len(gateUp), len(down))
	}
	value := func(i int) float32 { return float32(i%97) / 32 } // of f32Tensor
	for e := range 3 {
		for in := range 8 {
			for out := range 5 {
				want := value(e*40 + out*8 + in)
				if a, b := gateUp[e*80+in*10+2*out], gateUp[e*80+in*10+2*out+1]; a != want || b != want {
					t.Fatalf("gate and up of expert %d, row %d, column %d are %v, %v, want %v", e, out, in, a, b,
						want)
				}
				if got, want := down[e*40+out*8+in], value(e*40+in*5+out); got != want {
					t.Fatalf("down of expert %d, row %d, column %d is %v, want %v", e, in, out, got, want)
				}
			}
		}
	}
	for key, want := range map[string]any{"model_type": "gpt_oss", "architectures": []any{"GptOssForCausalLM"},
		"num_local_experts": 3.0, "num_experts_per_tok": 2.0, "intermediate_size": 5.0, "sliding_window": 16.0,
		"layer_types": []any{"sliding_attention"}, "swiglu_limit": 7.0, "attention_bias": true,
		"rope_scaling": map[string]any{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4.0,
			"beta_fast": 32.0, "beta_slow": 1.0, "truncate": false}} {
		if got := readJSON(t, filepath.Join(dir, "config.json"))[key]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
}

// TestImportGLM: a layer that predicts the token after the next is left out, and the corrections are there.
func TestImportGLM(t *testing.T) {
	dir, err := importDoc(t, smallGLM(), ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const correction = "model.layers.1.mlp.gate.e_score_correction_bias"
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if info, _ := w.Info(correction); info.Type != "F32" {
		t.Errorf("the corrections have the type %q", info.Type)
	}
	all := allValues(t, dir)
	if want := []float32{0, 1. / 32, 2. / 32}; !slices.Equal(all[correction], want) {
		t.Errorf("the corrections are %v, want %v", all[correction], want)
	}
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(t.Context(), w); err != nil {
		t.Error(err)
	}
	x := m.Blocks[1].FeedForward.(nn.Experts)
	a := m.Blocks[1].Mixer.(nn.Attention)
	if len(m.Blocks) != 2 || x.Shared != 5 || x.Route.Scale != 2.5 || !x.Route.Sigmoid || !x.Route.Renormalize ||
		!x.Correction || a.Rope.Rotated != 2 || a.QKNorm || a.QKVBias {
		t.Errorf("%d blocks, %+v, %+v", len(m.Blocks), x, a)
	}
	if _, isDense := m.Blocks[0].FeedForward.(nn.GLU); !isDense {
		t.Error("the first layer is not dense")
	}
}

// TestRotaryFactor: readers, which round down, get the number of columns back.
func TestRotaryFactor(t *testing.T) {
	for headDim := 2; headDim <= 512; headDim += 2 {
		for rotated := 2; rotated <= headDim; rotated += 2 {
			factor, err := rotaryFactor(rotated%headDim, headDim).Float64()
			if got := int(float64(headDim) * factor); err != nil || got != rotated || factor > 1 {
				t.Fatalf("%d of %d become %g and so %d, %v", rotated, headDim, factor, got, err)
			}
		}
	}
}

// TestBadArchitectures: what a hostile file says of what only some architectures have is one line.
func TestBadArchitectures(t *testing.T) {
	set := func(key string, value any) func(*document) {
		return func(d *document) { d.meta[key] = value }
	}
	for name, c := range map[string]struct {
		of     func() *document
		change func(d *document)
		words  []string
	}{
		"queries of positions without yarn": {func() *document { return small("mistral3") }, func(d *document) {
			d.meta["mistral3.attention.temperature_scale"] = 0.1
		}, []string{"temperature_scale", "with yarn only"}},
		"no window": {smallGPTOSS, func(d *document) { delete(d.meta, "gpt-oss.attention.sliding_window") },
			[]string{"sliding_window is missing"}},
		"no sinks": {smallGPTOSS, func(d *document) { delete(d.tensors, "blk.0.attn_sinks.weight") },
			[]string{`"blk.0.attn_sinks.weight"`, "missing"}},
		"three sinks": {smallGPTOSS, func(d *document) { d.tensors["blk.0.attn_sinks.weight"] = f32Tensor(3) },
			[]string{`"blk.0.attn_sinks.weight"`, "[3]", "[2]"}},
		"biases of experts": {smallGPTOSS, func(d *document) { d.tensors["blk.0.ffn_up_exps.bias"] = f32Tensor(5, 3) },
			[]string{`"blk.0.ffn_up_exps.bias"`, "[5 3]", "[3 5]"}},
		"partly rotated": {smallGPTOSS, func(d *document) { d.meta["gpt-oss.rope.dimension_count"] = 2 },
			[]string{"dimension_count is 2"}},
		"a shared expert": {smallGPTOSS, func(d *document) { d.meta["gpt-oss.expert_shared_count"] = 1 },
			[]string{"expert_shared_count", "not supported"}},
		"yarn without a factor": {smallGPTOSS, func(d *document) { delete(d.meta, "gpt-oss.rope.scaling.factor") },
			[]string{"rope.scaling.factor is missing"}},
		"yarn of scores without end": {smallGPTOSS, func(d *document) {
			d.meta["gpt-oss.rope.scaling.attn_factor"] = 3.3e38
		}, []string{"attn_factor", "finite in fp32"}},
		"yarn of betas": {smallGPTOSS, func(d *document) { d.meta["gpt-oss.rope.scaling.yarn_beta_fast"] = 0.5 },
			[]string{"beta_fast"}},
		"two scalings of scores": {smallGPTOSS, func(d *document) {
			d.meta["gpt-oss.rope.scaling.yarn_attn_factor"] = 1.5
			d.meta["gpt-oss.rope.scaling.attn_factor"] = 1.5
		}, []string{"yarn_attn_factor is 1.5", "attn_factor is 1.5"}},
		"divisors, too": {smallGPTOSS, func(d *document) { d.tensors["rope_freqs.weight"] = f32Tensor(2) },
			[]string{"yarn", "rope_freqs.weight"}},
		"no corrections": {smallGLM, func(d *document) { delete(d.tensors, "blk.1.exp_probs_b.bias") },
			[]string{`"blk.1.exp_probs_b.bias"`, "missing"}},
		"corrections of more": {smallGLM, func(d *document) { d.tensors["blk.1.exp_probs_b.bias"] = f32Tensor(4) },
			[]string{`"blk.1.exp_probs_b.bias"`, "[4]", "[3]"}},
		"corrections that are no numbers": {smallGLM, func(d *document) {
			d.tensors["blk.1.exp_probs_b.bias"] = docTensor{ggmlF32, []int{3}, bytes.Repeat([]byte{0xff}, 12), -1}
		}, []string{`"blk.1.exp_probs_b.bias"`, "not finite"}},
		"no shared expert": {smallGLM, func(d *document) { d.meta["glm4moe.expert_shared_count"] = 0 },
			[]string{"expert_shared_count is 0"}},
		"many shared experts": {smallGLM, func(d *document) { d.meta["glm4moe.expert_shared_count"] = 1<<31 - 1 },
			[]string{"shared"}},
		"dense layers only": {smallGLM, func(d *document) { d.meta["glm4moe.leading_dense_block_count"] = 2 },
			[]string{"leading_dense_block_count is 2", "2 layers"}},
		"a softmax": {smallGLM, func(d *document) { d.meta["glm4moe.expert_gating_func"] = 1 },
			[]string{"expert_gating_func is 1", "sigmoid"}},
		"next-token layers only": {smallGLM, func(d *document) { d.meta["glm4moe.nextn_predict_layers"] = 3 },
			[]string{"nextn_predict_layers is 3", "3 layers"}},
		"no number of them": {smallGLM, func(d *document) { d.meta["glm4moe.nextn_predict_layers"] = 1<<32 - 1 },
			[]string{"nextn_predict_layers is 4294967295"}},
		"a layer after them": {smallGLM, func(d *document) { d.tensors["blk.3.attn_q.weight"] = f32Tensor(1) },
			[]string{`"blk.3.attn_q.weight"`, "does not belong"}},
		"groups that do not cut": {smallGLM, func(d *document) { d.meta["glm4moe.expert_group_count"] = 2 },
			[]string{"group"}},
		"an odd part that is rotated": {smallGLM, func(d *document) { d.meta["glm4moe.rope.dimension_count"] = 3 },
			[]string{"dimension_count is 3"}},
		"more than a head": {smallGLM, func(d *document) { d.meta["glm4moe.rope.dimension_count"] = 6 },
			[]string{"dimension_count is 6"}},
		"no rule of sums": {smallNeoX, func(d *document) { delete(d.meta, "gptneox.use_parallel_residual") },
			[]string{"use_parallel_residual is missing"}},
		"a number for the rule": {smallNeoX, func(d *document) { d.meta["gptneox.use_parallel_residual"] = 1 },
			[]string{"use_parallel_residual", "not a boolean"}},
		"shared keys": {smallNeoX, func(d *document) {
			d.meta["gptneox.attention.head_count_kv"] = 1
			d.tensors["blk.0.attn_qkv.weight"] = f32Tensor(16, 8)
		}, []string{`"blk.0.attn_qkv.weight"`, "[16 8]", "[24 8]"}},
		"wide heads": {smallNeoX, func(d *document) { d.meta["gptneox.attention.key_length"] = 1 << 30 },
			[]string{"too large"}},
		"a norm without a bias": {smallNeoX, func(d *document) { delete(d.tensors, "blk.0.ffn_norm.bias") },
			[]string{`"blk.0.ffn_norm.bias"`, "missing"}},
		"nothing wrong with a deepseek2": {smallDeepSeek, func(*document) {}, nil},
		"nothing wrong with its yarn": {smallDeepSeek, func(d *document) {
			withYaRN(d, map[string]any{"yarn_log_multiplier": 0.1, "attn_factor": 1.0})
		}, nil},
		"no multiple of yarn": {smallDeepSeek, func(d *document) { withYaRN(d, nil) },
			[]string{"yarn_log_multiplier is missing"}},
		"a multiple without end": {smallDeepSeek, func(d *document) {
			withYaRN(d, map[string]any{"yarn_log_multiplier": 1e30})
		}, []string{"mscale_all_dim"}},
		"a multiple that is not finite": {smallDeepSeek, func(d *document) {
			withYaRN(d, map[string]any{"yarn_log_multiplier": f64(1e300)})
		}, []string{"yarn_log_multiplier", "1e+300", "finite in fp32"}},
		"a multiple of which a tenth is finite": {smallDeepSeek, func(d *document) {
			withYaRN(d, map[string]any{"yarn_log_multiplier": 3e38})
		}, []string{"yarn_log_multiplier", "3e+39", "finite in fp32"}},
		"yarn of sines": {smallDeepSeek, func(d *document) {
			withYaRN(d, map[string]any{"yarn_log_multiplier": 0.1, "attn_factor": 2.0})
		}, []string{"attn_factor is 2", "latent"}},
		"linear scaling": {smallDeepSeek, func(d *document) {
			withYaRN(d, map[string]any{"type": "linear"})
		}, []string{"linear", "deepseek2"}},
		"keys of each head": {smallDeepSeek, set("deepseek2.attention.head_count_kv", 2),
			[]string{"head_count_kv is 2", "convert"}},
		"no rank": {smallDeepSeek, func(d *document) { delete(d.meta, "deepseek2.attention.kv_lora_rank") },
			[]string{"kv_lora_rank is missing"}},
		"a rank without end": {smallDeepSeek, func(d *document) {
			d.meta["deepseek2.attention.kv_lora_rank"], d.meta["deepseek2.attention.value_length"] = 1<<31-1, 1<<31-1
		}, []string{"key_length is 6"}},
		"a rank that is not the width": {smallDeepSeek, set("deepseek2.attention.value_length", 5),
			[]string{"value_length is 5", "it is 4"}},
		"heads that are rotated all": {smallDeepSeek, set("deepseek2.attention.key_length_mla", 2),
			[]string{"key_length_mla is 2"}},
		"heads without end": {smallDeepSeek, set("deepseek2.attention.key_length_mla", 1<<31-1),
			[]string{"qk_nope_head_dim"}},
		"values without end": {smallDeepSeek, set("deepseek2.attention.value_length_mla", 1<<31-1),
			[]string{"v_head_dim"}},
		"keys that are not turned": {smallDeepSeek, func(d *document) {
			d.tensors["blk.1.attn_k_b.weight"] = f32Tensor(2, 3, 4)
		}, []string{`"blk.1.attn_k_b.weight"`, "[2 3 4]", "[2 4 3]"}},
		"a softmax with corrections": {smallDeepSeek, func(d *document) {
			d.meta["deepseek2.expert_gating_func"], d.meta["deepseek2.expert_weights_norm"] = 1, false
		}, []string{`"blk.1.exp_probs_b.bias"`, "deepseek_v2"}},
		"a softmax of groups": {smallDeepSeek, func(d *document) {
			d.meta["deepseek2.expert_gating_func"], d.meta["deepseek2.expert_group_count"] = 1, 3
		}, []string{"expert_group_count is 3"}},
		"nothing wrong with a gemma4":  {smallGemma4, func(*document) {}, nil},
		"nothing wrong with its heads": {smallGemma4, set("gemma4.attention.head_count_kv", []int32{1, 1}), nil},
		"no divisors": {smallGemma4, func(d *document) { delete(d.tensors, "rope_freqs.weight") },
			[]string{`"rope_freqs.weight"`, "missing"}},
		"other divisors": {smallGemma4, func(d *document) { d.tensors["rope_freqs.weight"] = f32Values(1, 2) },
			[]string{"rope_freqs.weight", "1e+30"}},
		"no number divides": {smallGemma4, func(d *document) { d.tensors["rope_freqs.weight"] = f32Values(0, 0) },
			[]string{"rope_freqs.weight", "1e+30"}},
		"a window at the end": {smallGemma4, set("gemma4.attention.sliding_window_pattern", []bool{false, true}),
			[]string{"last layer"}},
		"no windows": {smallGemma4, set("gemma4.attention.sliding_window_pattern", []bool{false, false}),
			[]string{"no layer with a window"}},
		"no list of windows": {smallGemma4, set("gemma4.attention.sliding_window_pattern", 2),
			[]string{"2 booleans"}},
		"heads of one layer": {smallGemma4, set("gemma4.attention.head_count_kv", []int32{1}),
			[]string{"head_count_kv", "2 numbers"}},
		"a layer without heads": {smallGemma4, set("gemma4.attention.head_count_kv", []int32{1, 0}),
			[]string{"head_count_kv", "layer 1"}},
		"more heads than there are": {smallGemma4, set("gemma4.attention.head_count_kv", []int32{1, 2}),
			[]string{`"blk.1.attn_k.weight"`, "[4 8]", "[8 8]"}},
		"nothing wrong with its shared keys": {sharedGemma4, func(*document) {}, nil},
		"keys of one layer": {smallGemma4, set("gemma4.attention.shared_kv_layers", 1),
			[]string{"shared_kv_layers is 1, of 2", "2 layers or more"}},
		"keys of other layers without end": {smallGemma4, set("gemma4.attention.shared_kv_layers", 1<<31-1),
			[]string{"shared_kv_layers is 2147483647, of 2", "2 layers or more"}},
		"keys of a layer that sees all": {sharedGemma4, set("gemma4.attention.sliding_window_pattern",
			[]bool{false, false, true, false}), []string{"layer 2", "layer 0", "transformers"}},
		"keys of a layer with a window": {sharedGemma4, set("gemma4.attention.sliding_window_pattern",
			[]bool{false, true, true, false}), []string{"layer 2", "layer 0", "transformers"}},
		"keys that are not shared": {sharedGemma4, set("gemma4.attention.shared_kv_layers", 0),
			[]string{"feed_forward_length", "layer 2"}},
		"widths of three layers": {sharedGemma4, set("gemma4.feed_forward_length", []int32{12, 12, 24}),
			[]string{"feed_forward_length", "4 numbers"}},
		"widths that differ in shared layers": {sharedGemma4, set("gemma4.feed_forward_length",
			[]int32{12, 12, 24, 12}), []string{"feed_forward_length", "layer 3"}},
		"widths of three times": {sharedGemma4, set("gemma4.feed_forward_length", []int32{12, 12, 36, 36}),
			[]string{"feed_forward_length is 36", "12 or twice"}},
		"widths of a llama that differ": {func() *document { return smallWindows("olmo2") },
			set("olmo2.feed_forward_length", []int32{12, 12, 12, 12, 13}), []string{"feed_forward_length", "olmo2"}},
		"no rows of layers": {smallGemma4, set("gemma4.embedding_length_per_layer_input", 4),
			[]string{`"per_layer_token_embd.weight"`, "missing"}},
		"rows of layers that are not said": {sharedGemma4, set("gemma4.embedding_length_per_layer_input", 0),
			[]string{"does not belong to a gemma4_text"}},
		"rows of layers without end": {sharedGemma4, set("gemma4.embedding_length_per_layer_input", 1<<31-1),
			[]string{"hidden_size_per_layer_input"}},
		"other values": {smallGemma4, set("gemma4.attention.value_length_swa", 4), []string{"the same"}},
		"narrow heads without end": {smallGemma4, func(d *document) {
			for _, key := range []string{narrowKey, narrowValue, narrowRotated} {
				d.meta["gemma4."+key] = 1<<31 - 2
			}
		}, []string{"num_attention_heads"}},
		"two scalars": {smallGemma4, func(d *document) { d.tensors["blk.1.layer_output_scale.weight"] = f32Tensor(2) },
			[]string{`"blk.1.layer_output_scale.weight"`, "[2]", "[1]"}},
		"a limit that is no number": {smallGemma4, set("gemma4.final_logit_softcapping", "30"),
			[]string{"final_logit_softcapping"}},
		"nothing wrong with its mixture": {mixtureGemma4, func(*document) {}, nil},
		"gates apart from what they multiply": {mixtureGemma4, func(d *document) {
			delete(d.tensors, "blk.1.ffn_gate_up_exps.weight")
			d.tensors["blk.1.ffn_gate_exps.weight"] = f32Tensor(3, 5, 8)
			d.tensors["blk.1.ffn_up_exps.weight"] = f32Tensor(3, 5, 8)
		}, []string{`"blk.1.ffn_gate_up_exps.weight"`, "missing"}},
		"gates alone": {mixtureGemma4, func(d *document) {
			d.tensors["blk.1.ffn_gate_up_exps.weight"] = f32Tensor(3, 5, 8)
		}, []string{`"blk.1.ffn_gate_up_exps.weight"`, "[3 5 8]", "[3 10 8]"}},
		"experts without end": {mixtureGemma4, set("gemma4.expert_count", 1<<31-1), []string{"experts"}},
		"wide experts without end": {mixtureGemma4, set("gemma4."+expertInner, 1<<31-1),
			[]string{`"blk.0.ffn_gate_up_exps.weight"`, "[3 10 8]"}},
		"more choices than experts": {mixtureGemma4, set("gemma4.expert_used_count", 4), []string{"top_k_experts"}},
		"no factors of experts": {mixtureGemma4, func(d *document) { delete(d.tensors, "blk.1.ffn_down_exps.scale") },
			[]string{`"blk.1.ffn_down_exps.scale"`, "missing"}},
		"rows of layers of a mixture": {mixtureGemma4, set("gemma4.embedding_length_per_layer_input", 3),
			[]string{"hidden_size_per_layer_input", "experts"}},
		"experts that are not said": {mixtureGemma4, func(d *document) {
			delete(d.meta, "gemma4.expert_count")
			delete(d.meta, "gemma4.expert_used_count")
		}, []string{"does not belong to a gemma4_text"}},
		"nothing wrong with a gpt2": {smallGPT2, func(*document) {}, nil},
		"no positions": {smallGPT2, func(d *document) { delete(d.tensors, "position_embd.weight") },
			[]string{`"position_embd.weight"`, "missing"}},
		"more positions than rows": {smallGPT2, func(d *document) { d.meta["gpt2.context_length"] = 129 },
			[]string{`"position_embd.weight"`, "[128 8]", "[129 8]"}},
		"positions without end": {smallGPT2, func(d *document) { d.meta["gpt2.context_length"] = 1<<31 - 1 },
			[]string{"n_positions"}},
		"heads that do not divide": {smallGPT2, func(d *document) { d.meta["gpt2.attention.head_count"] = 3 },
			[]string{"3 heads"}},
		"nothing wrong with a gptneox": {smallNeoX, func(*document) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.of()
			c.change(d)
			_, err := importDoc(t, d, ImportOptions{})
			if c.words == nil && err == nil {
				return
			}
			wantOneLine(t, err, append(c.words, "m.gguf")...)
		})
	}
}

func smallNeoX() *document { return smallGPT("gptneox") }

func smallGPT2() *document { return smallGPT("gpt2") }

// smallGPT is a small model with layer norms that have biases, and a feed-forward without a gate.
func smallGPT(arch string) *document {
	d := small(arch)
	d.meta[arch+".attention.layer_norm_epsilon"] = 1e-5
	for _, key := range []string{".attention.layer_norm_rms_epsilon", ".attention.head_count_kv"} {
		delete(d.meta, arch+key)
	}
	for _, name := range []string{"attn_q", "attn_k", "attn_v", "ffn_gate"} {
		delete(d.tensors, "blk.0."+name+".weight")
	}
	maps.Copy(d.tensors, map[string]docTensor{"output_norm.bias": f32Tensor(8), "blk.0.attn_norm.bias": f32Tensor(8),
		"blk.0.ffn_norm.bias": f32Tensor(8), "blk.0.attn_qkv.weight": f32Tensor(24, 8),
		"blk.0.attn_qkv.bias": f32Tensor(24), "blk.0.attn_output.bias": f32Tensor(8),
		"blk.0.ffn_up.bias": f32Tensor(12), "blk.0.ffn_down.bias": f32Tensor(8)})
	switch arch {
	case "gptneox":
		d.meta[arch+".use_parallel_residual"], d.meta[arch+".rope.dimension_count"] = true, 2
	case "gpt2":
		delete(d.meta, "gpt2.rope.freq_base")
		d.tensors["position_embd.weight"] = f32Tensor(128, 8)
	}
	return d
}

// unstacked is a small mixtral as files had it before experts were stacked.
func unstacked() *document {
	d := smallMixture("llama")
	for _, name := range []string{"gate", "up", "down"} {
		stacked := d.tensors["blk.0.ffn_"+name+"_exps.weight"]
		delete(d.tensors, "blk.0.ffn_"+name+"_exps.weight")
		size := len(stacked.data) / 3
		for e := range 3 {
			d.tensors[fmt.Sprintf("blk.0.ffn_%s.%d.weight", name, e)] = docTensor{ggmlF32, stacked.dims[1:],
				stacked.data[e*size:][:size], -1}
		}
	}
	return d
}

// TestImportUnstacked: it is the same model as with stacked experts.
func TestImportUnstacked(t *testing.T) {
	old, err := importDoc(t, unstacked(), ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stacked, err := importDoc(t, smallMixture("llama"), ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := allValues(t, old), allValues(t, stacked); !reflect.DeepEqual(a, b) || len(a) == 0 {
		t.Errorf("%v,\nstacked it is %v", a, b)
	}
	d := unstacked()
	delete(d.tensors, "blk.0.ffn_up.2.weight")
	_, err = importDoc(t, d, ImportOptions{})
	wantOneLine(t, err, `"blk.0.ffn_up.2.weight"`, "missing")
	d = unstacked()
	d.tensors["blk.0.ffn_up.3.weight"] = f32Tensor(12, 8)
	_, err = importDoc(t, d, ImportOptions{})
	wantOneLine(t, err, `"blk.0.ffn_up.3.weight"`, "does not belong")
	d = unstacked()
	d.tensors["blk.0.ffn_up.1.weight"] = f32Tensor(8, 12)
	_, err = importDoc(t, d, ImportOptions{})
	wantOneLine(t, err, `"blk.0.ffn_up.1.weight"`, "[8 12]", "[12 8]")
	d = unstacked()
	d.meta["llama.expert_count"] = 1024
	_, err = importDoc(t, d, ImportOptions{})
	wantOneLine(t, err, `.3.weight"`, "missing")
}

const (
	gemmaKeysOfTest  = `"head_dim": 4, "query_pre_attn_scalar": 4, "attention_bias": false`
	neoxKeysOfTest   = `"model_type": "gpt_neox", "rotary_pct": 0.5, "num_key_value_heads": null`
	gemma4KeysOfTest = `"model_type": "gemma4_text", "head_dim": 4, "global_head_dim": 8,
		"hidden_size_per_layer_input": 0`
	gpt2KeysOfTest = `"model_type": "gpt2", "num_key_value_heads": null`
)

// TestDenseRefuses: what llama.cpp computes otherwise, or does not load, of dense families.
func TestDenseRefuses(t *testing.T) {
	config := map[string]any{"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 4,
		"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 6, "max_position_embeddings": 64}
	for change, words := range map[string][]string{
		`"model_type": "smollm3"`:                              nil,
		`"model_type": "smollm3", "no_rope_layer_interval": 2`: {"no_rope_layers", "layer 1", "use"},
		`"model_type": "smollm3", "attention_bias": true`:      {"attention_bias", "smollm3", "use"},
		`"model_type": "smollm3", "mlp_bias": true`:            {"mlp_bias", "smollm3", "use"},
		`"model_type": "seed_oss"`:                             nil,
		`"model_type": "seed_oss", "attention_out_bias": true`: {"attention_out_bias", "seed_oss", "use"},
		`"model_type": "glm4"`:                                 nil,
		`"model_type": "phi3"`:                                 nil,
		`"model_type": "phi3", "head_dim": 6`:                  {"head_dim", "phi3", "use"},
		`"model_type": "olmo2"`:                                nil,
		`"model_type": "olmo2", "tie_word_embeddings": true`:   {"tie_word_embeddings", "olmo2", "use"},
		`"model_type": "olmo2", "head_dim": 6`:                 {"head_dim", "olmo2", "use"},
		`"model_type": "olmo2", "attention_bias": true`:        {"attention_bias", "olmo2", "use"},
		`"model_type": "olmo3", "sliding_window": 16`:          nil,
		`"model_type": "olmo3", "sliding_window": 16, "rope_parameters": {"full_attention": {"rope_theta": 1e6},
			"sliding_attention": {"rope_theta": 1e4}}`: {"rope_parameters", "olmo2 with a window", "use"},
		`"model_type": "exaone4", "sliding_window": null`: nil,
		`"model_type": "exaone4", "sliding_window": 16`: {
			"sliding_window", "64 layers", "use"},
		`"model_type": "exaone4", "num_hidden_layers": 64, "sliding_window": null`: {
			"sliding_window", "64 layers", "use"},
		`"model_type": "exaone4", "head_dim": 6, "sliding_window": null`: {
			"head_dim", "exaone4", "use"},
		`"model_type": "granite"`: nil,
		`"model_type": "granite", "residual_multiplier": 1e-60`: {
			"residual_multiplier", "small", "use"},
		`"model_type": "granite", "attention_multiplier": 1e-60`: {
			"attention_multiplier", "small", "use"},
		`"model_type": "gemma2", ` + gemmaKeysOfTest: nil,
		`"model_type": "gemma2", "query_pre_attn_scalar": 8, "head_dim": 4`: {
			"query_pre_attn_scalar", "is 4", "use"},
		`"model_type": "gemma2", "head_dim": 4, "query_pre_attn_scalar": 4, "attention_bias": true`: {
			"attention_bias", "gemma2", "use"},
		`"model_type": "gemma2", "attn_logit_softcapping": null, ` + gemmaKeysOfTest: {
			"attn_logit_softcapping", "needs it", "use"},
		`"model_type": "gemma2", "final_logit_softcapping": null, ` + gemmaKeysOfTest: {
			"final_logit_softcapping", "needs it", "use"},
		`"model_type": "gemma2", "tie_word_embeddings": false, ` + gemmaKeysOfTest: {
			"tie_word_embeddings", "gemma2", "use"},
		`"model_type": "gemma2", "sliding_window": null, ` + gemmaKeysOfTest: {"layer_types", "layer 0", "use"},
		`"model_type": "gemma2", "rope_scaling": {"rope_type": "yarn", "factor": 2}, ` + gemmaKeysOfTest: {
			"rope_scaling", "linear", "use"},
		`"model_type": "gemma3_text", ` + gemmaKeysOfTest:                         nil,
		`"model_type": "gemma3_text", "sliding_window": null, ` + gemmaKeysOfTest: nil,
		`"model_type": "gemma3_text", "sliding_window_pattern": 3, ` + gemmaKeysOfTest: {
			"layer_types", "layer 2", "use"},
		`"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"rope_type": "linear",
			"factor": 2}}, ` + gemmaKeysOfTest: {"rope_parameters", "gemma3 with a window", "use"},
		// The largest of Gemma 3 has the scalar of a share of the hidden size.
		`"model_type": "gemma3_text", "num_hidden_layers": 62, ` + gemmaKeysOfTest: nil,
		`"model_type": "gemma3_text", "num_hidden_layers": 62, "head_dim": 6, "query_pre_attn_scalar": 6`: {
			"query_pre_attn_scalar", "is 4", "use"},
		`"model_type": "cohere"`:                               nil,
		`"model_type": "cohere", "tie_word_embeddings": false`: {"tie_word_embeddings", "command-r", "use"},
		`"model_type": "cohere", "attention_bias": true`:       {"attention_bias", "command-r", "use"},
		`"model_type": "cohere", "head_dim": 6`:                {"head_dim", "command-r", "use"},
		`"model_type": "cohere", "num_hidden_layers": 64`:      {"num_hidden_layers", "64 layers", "use"},
		`"model_type": "cohere2", "num_hidden_layers": 64`:     nil,
		`"model_type": "cohere2", "sliding_window": null`:      {"sliding_window", "cohere2", "use"},
		neoxKeysOfTest: nil,
		neoxKeysOfTest + `, "tie_word_embeddings": true`: {"tie_word_embeddings", "gptneox", "use"},
		neoxKeysOfTest + `, "attention_bias": false`:     {"attention_bias", "gptneox", "use"},
		neoxKeysOfTest + `, "head_dim": 8`:               {"head_dim", "gptneox", "use"},
		gemma4KeysOfTest:                                 nil,
		gemma4KeysOfTest + `, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 6`: nil,
		gemma4KeysOfTest + `, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention",
			"sliding_attention", "full_attention"]`: nil,
		gemma4KeysOfTest + `, "num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "sliding_attention",
			"full_attention", "full_attention"]`: nil,
		gemma4KeysOfTest + `, "num_kv_shared_layers": 1, "layer_types": ["full_attention", "full_attention",
			"sliding_attention", "full_attention"]`: {"num_kv_shared_layers", "layer 3", "layer 2", "use"},
		gemma4KeysOfTest + `, "num_kv_shared_layers": 2, "layer_types": ["full_attention", "sliding_attention",
			"sliding_attention", "full_attention"]`: {"num_kv_shared_layers", "layer 2", "layer 0", "use"},
		gemma4KeysOfTest + `, "num_kv_shared_layers": 3, "layer_types": ["full_attention", "full_attention",
			"full_attention", "full_attention"]`: {"num_kv_shared_layers", "2 layers or more", "use"},
		gemma4KeysOfTest + `, "enable_moe_block": true, "num_experts": 4, "top_k_experts": 2,
			"moe_intermediate_size": 4`: nil,
		gemma4KeysOfTest + `, "enable_moe_block": true, "num_experts": 1025, "top_k_experts": 2,
			"moe_intermediate_size": 4`: {"1025 experts", "at most 1024", "use"},
		gemma4KeysOfTest + `, "attention_bias": true`: {"attention_bias", "gemma4", "use"},
		gemma4KeysOfTest + `, "layer_types": ["full_attention", "full_attention", "full_attention",
			"full_attention"]`: {
			"sliding_window", "needs windows", "use"},
		gemma4KeysOfTest + `, "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}`: {
			"rope_parameters", "gemma4", "use"},
		gpt2KeysOfTest: nil,
		gpt2KeysOfTest + `, "scale_attn_by_inverse_layer_idx": true`: {"inverse_layer", "false", "use"},
		`"model_type": "ministral3", "rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1,
			"original_max_position_embeddings": 64}`: {"rope_parameters", "with yarn only", "use"},
	} {
		_, err := describeChanged(t, config, change)
		if words != nil {
			wantOneLine(t, err, words...)
		} else if err != nil {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// TestNestedRefuses: errors of a decoder whose keys are nested name their place.
func TestNestedRefuses(t *testing.T) {
	_, err := describeChanged(t, nested("qwen3_vl", map[string]any{}), `"model_type": "qwen3_vl"`)
	if err != nil {
		t.Error(err)
	}
	_, err = describeChanged(t, nested("qwen3_vl", map[string]any{"attention_bias": true}), `"model_type": "qwen3_vl"`)
	wantOneLine(t, err, "text_config.attention_bias", "qwen3vl", "use")
}

// TestWindowsInFiles: a file lists the layers that have a window; without a list they are those of llama.cpp.
func TestWindowsInFiles(t *testing.T) {
	for name, c := range map[string]struct {
		arch   string
		change func(d *document)
		want   string // a letter of each layer; "": an error
		words  []string
	}{
		"olmo 2": {"olmo2", func(*document) {}, "FFFFF", nil},
		"olmo 3": {"olmo2", func(d *document) { d.meta["olmo2.attention.sliding_window"] = 3 }, "SSSFS", nil},
		"a number": {"olmo2", func(d *document) {
			d.meta["olmo2.attention.sliding_window"] = 3
			d.meta["olmo2.attention.sliding_window_pattern"] = 2
		}, "SFSFS", nil},
		"all": {"olmo2", func(d *document) {
			d.meta["olmo2.attention.sliding_window"] = 3
			d.meta["olmo2.attention.sliding_window_pattern"] = 0
		}, "SSSSS", nil},
		"a list": {"olmo2", func(d *document) {
			d.meta["olmo2.attention.sliding_window"] = 3
			d.meta["olmo2.attention.sliding_window_pattern"] = []bool{false, true, true, false, true}
		}, "FSSFS", nil},
		"a short list": {"olmo2", func(d *document) {
			d.meta["olmo2.attention.sliding_window"] = 3
			d.meta["olmo2.attention.sliding_window_pattern"] = []bool{true}
		}, "", []string{"sliding_window_pattern", "5 booleans"}},
		"numbers": {"olmo2", func(d *document) {
			d.meta["olmo2.attention.sliding_window"] = 3
			d.meta["olmo2.attention.sliding_window_pattern"] = []int32{1, 1, 1, 1, 1}
		}, "", []string{"sliding_window_pattern", "5 booleans"}},
		"a window without end": {"olmo2", func(d *document) {
			d.meta["olmo2.attention.sliding_window"] = 1<<32 - 1
		}, "", []string{"sliding_window is 4294967295"}},
		"gemma 2": {"gemma2", func(*document) {}, "SFSFS", nil},
		"gemma 3": {
			"gemma3", func(d *document) { d.meta["gemma3.attention.sliding_window"] = 3 }, "SSSSS", nil},
		"gemma 3, all full": {"gemma3", func(*document) {}, "FFFFF", nil},
		"gemma 3, base": {"gemma3", func(d *document) { d.meta["gemma3.rope.freq_base_swa"] = -1.0 }, "",
			[]string{"freq_base_swa", "not positive"}},
		"gemma 2, no cap": {"gemma2", func(d *document) { d.meta["gemma2.attn_logit_softcapping"] = 0.0 }, "",
			[]string{"attn_logit_softcapping", "not positive"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := smallWindows(c.arch)
			c.change(d)
			dir, err := importDoc(t, d, ImportOptions{})
			if c.want == "" {
				wantOneLine(t, err, c.words...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			m, err := model.Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, b := range m.Blocks {
				got += map[bool]string{true: "S", false: "F"}[b.Mixer.(nn.Attention).Window > 0]
			}
			if got != c.want {
				t.Errorf("layers have the windows %s, want %s", got, c.want)
			}
		})
	}
}

// smallWindows is a small model of five layers, of an architecture whose norms are of results.
func smallWindows(arch string) *document {
	d := small(arch)
	d.meta[arch+".block_count"] = 5
	for name, x := range maps.Clone(d.tensors) {
		rest, ok := strings.CutPrefix(name, "blk.0.")
		for l := 1; ok && l < 5; l++ {
			d.tensors[fmt.Sprintf("blk.%d.%s", l, rest)] = x
		}
	}
	for l := range 5 {
		p := fmt.Sprintf("blk.%d.", l)
		d.tensors[p+"post_attention_norm.weight"], d.tensors[p+"post_ffw_norm.weight"] = f32Tensor(8), f32Tensor(8)
		switch arch {
		case "olmo2":
			delete(d.tensors, p+"attn_norm.weight")
			delete(d.tensors, p+"ffn_norm.weight")
			d.tensors[p+"attn_q_norm.weight"], d.tensors[p+"attn_k_norm.weight"] = f32Tensor(8), f32Tensor(4)
		case "gemma3":
			d.tensors[p+"attn_q_norm.weight"], d.tensors[p+"attn_k_norm.weight"] = f32Tensor(4), f32Tensor(4)
		}
	}
	if arch == "gemma2" {
		delete(d.tensors, "output.weight")
	}
	return d
}

// TestDeltaRefuses: what llama.cpp computes otherwise, or does not load, of gated delta nets.
func TestDeltaRefuses(t *testing.T) {
	config := randomConfig()
	maps.Copy(config, deltaConfig(map[string]any{"model_type": "qwen3_next", "num_experts": 3, "num_experts_per_tok": 2,
		"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}))
	for change, words := range map[string][]string{
		"":                             nil,
		`"linear_value_head_dim": 32`:  {"linear_value_head_dim", "linear_key_head_dim", "use"},
		`"rms_norm_eps": 1e-5`:         {"rms_norm_eps", "1e-06", "use"},
		`"attention_bias": true`:       {"attention_bias", "qwen3next", "use"},
		`"norm_topk_prob": false`:      {"norm_topk_prob", "add up to 1", "use"},
		`"mlp_only_layers": [1]`:       {"mlp_only_layers", "every layer", "use"},
		`"full_attention_interval": 1`: {"layer_types", "both kinds", "use"},
		`"full_attention_interval": 3`: {"layer_types", "both kinds", "use"},
	} {
		_, err := describeChanged(t, config, change)
		if words != nil {
			wantOneLine(t, err, words...)
		} else if err != nil {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// smallDelta is a small qwen35: a gated delta net, attention, and a layer that predicts the token after the next.
func smallDelta() *document {
	d := small("qwen35")
	maps.Copy(d.meta, map[string]any{"qwen35.block_count": 3, "qwen35.nextn_predict_layers": 1,
		"qwen35.ssm.conv_kernel": 4, "qwen35.ssm.state_size": 2, "qwen35.ssm.group_count": 1,
		"qwen35.ssm.time_step_rank": 2, "qwen35.ssm.inner_size": 4, "qwen35.full_attention_interval": 2,
		"qwen35.rope.dimension_count": 2, "qwen35.rope.dimension_sections": []int32{1, 0, 0, 0}})
	for name, x := range maps.Clone(d.tensors) {
		if rest, ok := strings.CutPrefix(name, "blk.0."); ok {
			d.tensors["blk.1."+rest] = x
			if strings.HasPrefix(rest, "attn_") && rest != "attn_norm.weight" {
				delete(d.tensors, name)
			}
		}
	}
	for l := range 2 {
		p := fmt.Sprintf("blk.%d.", l)
		d.tensors[p+"post_attention_norm.weight"] = d.tensors[p+"ffn_norm.weight"]
		delete(d.tensors, p+"ffn_norm.weight")
	}
	maps.Copy(d.tensors, map[string]docTensor{"blk.1.attn_q.weight": f32Tensor(16, 8),
		"blk.1.attn_q_norm.weight": f32Tensor(4), "blk.1.attn_k_norm.weight": f32Tensor(4),
		"blk.0.attn_qkv.weight": f32Tensor(8, 8), "blk.0.attn_gate.weight": f32Tensor(4, 8),
		"blk.0.ssm_beta.weight": f32Tensor(2, 8), "blk.0.ssm_alpha.weight": f32Tensor(2, 8),
		"blk.0.ssm_conv1d.weight": f32Tensor(8, 4), "blk.0.ssm_dt.bias": f32Tensor(2), "blk.0.ssm_a": negative(2),
		"blk.0.ssm_norm.weight": f32Tensor(2), "blk.0.ssm_out.weight": f32Tensor(8, 4),
		"blk.2.nextn.eh_proj.weight": f32Tensor(8, 16)})
	return d
}

// TestOneRow: a matrix of one row may be a vector in a file.
func TestOneRow(t *testing.T) {
	g := &header{tensors: map[string]tensorEntry{"row": {dims: tensor.Shape{1, 4}}, "vector": {dims: tensor.Shape{4}},
		"column": {dims: tensor.Shape{4, 1}}}}
	for name, isRight := range map[string]bool{"row": true, "vector": true, "column": false} {
		if err := g.checkTensor(name, tensor.Shape{1, 4}); (err == nil) != isRight {
			t.Errorf("a %s as a matrix of one row: %v", name, err)
		}
	}
	if g.checkTensor("row", tensor.Shape{4}) == nil {
		t.Error("a matrix of one row is taken for a vector")
	}
}

// negative is a tensor of -1.
func negative(n int) docTensor {
	return docTensor{ggmlF32, []int{n}, bytes.Repeat([]byte{0, 0, 0x80, 0xbf}, n), -1}
}

// TestImportDelta: what a file of a gated delta net says comes back, and what is wrong with it is one line.
func TestImportDelta(t *testing.T) {
	for name, c := range map[string]struct {
		change func(d *document)
		words  []string
	}{
		"good": {func(*document) {}, nil},
		"a list": {func(d *document) { d.meta["qwen35.attention.recurrent_layers"] = []bool{true, false, false} },
			nil},
		"a short list": {func(d *document) { d.meta["qwen35.attention.recurrent_layers"] = []bool{true} },
			[]string{"3 booleans"}},
		"other values": {func(d *document) { d.meta["qwen35.ssm.inner_size"] = 6 },
			[]string{"time_step_rank", "6 wide"}},
		"three taps": {func(d *document) { d.meta["qwen35.ssm.conv_kernel"] = 3 },
			[]string{"linear_conv_kernel_dim"}},
		"no key heads": {func(d *document) { delete(d.meta, "qwen35.ssm.group_count") },
			[]string{"group_count is missing"}},
		"many heads": {func(d *document) { d.meta["qwen35.ssm.group_count"] = 3 },
			[]string{"linear_num_key_heads"}},
		"a growth": {func(d *document) { d.tensors["blk.0.ssm_a"] = f32Tensor(2) },
			[]string{"blk.0.ssm_a", "not finite"}},
		"no such layer": {func(d *document) { d.meta["qwen35.nextn_predict_layers"] = 3 },
			[]string{"3 layers"}},
		"an interval": {func(d *document) { d.meta["qwen35.full_attention_interval"] = 9 },
			[]string{"blk.1.ssm_a"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := smallDelta()
			c.change(d)
			dir, err := importDoc(t, d, ImportOptions{})
			if c.words != nil {
				wantOneLine(t, err, c.words...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			all := allValues(t, dir)
			if got := all["model.layers.0.linear_attn.A_log"]; !slices.Equal(got, []float32{0, 0}) {
				t.Errorf("logarithms of decays are %v", got)
			}
			if got := all["model.layers.0.input_layernorm.weight"]; got[0] != -1 {
				t.Errorf("the norm has %v", got)
			}
			if got := all["model.layers.0.linear_attn.norm.weight"]; got[0] != 0 {
				t.Errorf("the norm of a delta net has %v", got)
			}
		})
	}
}
