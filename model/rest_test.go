package model_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/tensor"
)

// filed is a tensor of a model directory that a test writes.
type filed struct {
	name   string
	shape  tensor.Shape
	dtype  tensor.DType
	values []float32
	shard  int
}

// of are the tensors of a golden variant.
func of(t *testing.T, variant string) (all []filed) {
	t.Helper()
	w, err := hf.OpenWeights(modeltest.Load(t, variant).Dir)
	check(t, err)
	defer w.Close()
	for _, name := range w.Names() {
		info, _ := w.Info(name)
		f := filed{name: name, shape: info.Shape, dtype: info.DType, values: make([]float32, info.Shape.Elems())}
		check(t, w.ReadF32(name, f.values, 0))
		all = append(all, f)
	}
	return all
}

// in opens tensors that are written to shards with an index, which leaves some out.
func in(t *testing.T, all []filed, unlisted ...string) (*hf.Weights, error) {
	t.Helper()
	dir, list, all := t.TempDir(), map[string]string{}, slices.Clone(all)
	for shard := 0; len(all) > 0; shard++ {
		name := fmt.Sprintf("model-%05d.safetensors", shard)
		var specs []hf.TensorSpec
		var here []filed
		all = slices.DeleteFunc(all, func(f filed) bool {
			if f.shard == shard {
				here = append(here, f)
				specs = append(specs, hf.TensorSpec{Name: f.name, Shape: f.shape, DType: f.dtype})
				if !slices.Contains(unlisted, f.name) && list[f.name] == "" {
					list[f.name] = name
				}
			}
			return f.shard == shard
		})
		to, err := hf.CreateFile(filepath.Join(dir, name), specs)
		check(t, err)
		for _, f := range here {
			var body []byte
			for _, x := range f.values {
				switch f.dtype {
				case tensor.F32:
					body = binary.LittleEndian.AppendUint32(body, math.Float32bits(x))
				case tensor.F16:
					body = binary.LittleEndian.AppendUint16(body, tensor.F16FromF32(x))
				default:
					body = binary.LittleEndian.AppendUint16(body, tensor.BF16FromF32(x))
				}
			}
			check(t, to.Write(f.name, body))
		}
		check(t, to.Commit())
	}
	index, err := json.Marshal(map[string]any{"weight_map": list})
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), index, 0o644))
	w, err := hf.OpenWeights(dir)
	if err == nil {
		t.Cleanup(func() { check(t, w.Close()) })
	}
	return w, err
}

// A tied model's head is its embedding in any type and shard, or an error that says what to do: never left out.
func TestTiedHead(t *testing.T) {
	const embedding, head = "model.embed_tokens.weight", "lm_head.weight"
	const differs = `by config.json (tie_word_embeddings) the head is the embedding, and "lm_head.weight" differs from ` +
		`model.embed_tokens.weight: set "tie_word_embeddings" to false in config.json to train both, or remove lm_head.weight`
	last := func(f *filed) { f.values[len(f.values)-1] *= 1 + 1.0/256 }
	first := func(f *filed) { f.values[0] = -f.values[0] }
	half := func(f *filed) { f.dtype = tensor.F16 }
	full := func(f *filed) { f.dtype = tensor.F32 }
	brain := func(f *filed) { f.dtype = tensor.BF16 }
	shard := func(f *filed) { f.shard = 1 }
	coarse := func(f *filed) { // exact in each of the types
		for i := range f.values {
			f.values[i] = float32(i%61) / 64
		}
	}
	for name, c := range map[string]struct {
		both, head []func(*filed)
		unlisted   bool
		want       string // "": it is equal
	}{
		"no difference":                   {},
		"another type, F32":               {[]func(*filed){coarse, brain}, []func(*filed){full}, false, ""},
		"another type, F16":               {[]func(*filed){coarse, brain}, []func(*filed){half}, false, ""},
		"another shard":                   {nil, []func(*filed){shard}, false, ""},
		"not in the index":                {nil, nil, true, ""},
		"the first element":               {nil, []func(*filed){first}, false, differs},
		"the last element":                {nil, []func(*filed){last}, false, differs},
		"the last element, F32 and BF16":  {[]func(*filed){coarse, brain}, []func(*filed){full, last}, false, differs},
		"the last element, another shard": {nil, []func(*filed){last, shard}, false, differs},
		"differs and is not in the index": {nil, []func(*filed){last}, true, differs},
		"rounded":                         {[]func(*filed){full}, []func(*filed){brain}, false, differs},
		"other rows": {nil, []func(*filed){func(f *filed) {
			f.shape, f.values = tensor.Shape{2, 2}, f.values[:4]
		}}, false, differs},
	} {
		for _, variant := range []string{"qwen3", "gemma2"} {
			all := of(t, variant)
			i := slices.IndexFunc(all, func(f filed) bool { return f.name == embedding })
			for _, change := range c.both {
				change(&all[i])
			}
			of := all[i]
			of.name, of.values = head, slices.Clone(of.values)
			for _, change := range c.head {
				change(&of)
			}
			unlisted := []string{}
			if c.unlisted {
				unlisted = append(unlisted, head)
			}
			w, err := in(t, append(all, of), unlisted...)
			check(t, err)
			tied := mustBuild(t, variant, nil)
			err = tied.Check(t.Context(), w)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, %s: %v, want %q", name, variant, err, c.want)
			}
			if strings.Contains(fmt.Sprint(err), "\n") {
				t.Errorf("%s: %q is more than a line", name, err)
			}
			if name == "other rows" {
				continue
			}
			untied := mustBuild(t, variant, map[string]any{"tie_word_embeddings": false})
			if err := untied.Check(t.Context(), w); err != nil {
				t.Errorf("%s, untied: %v", name, err)
			}
		}
	}
}

// A head that is compared does not keep a program that is interrupted.
func TestTiedHeadInterrupted(t *testing.T) {
	all := of(t, "qwen3")
	i := slices.IndexFunc(all, func(f filed) bool { return f.name == "model.embed_tokens.weight" })
	head := all[i]
	head.name = "lm_head.weight"
	w, err := in(t, append(all, head))
	check(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := mustBuild(t, "qwen3", nil).Check(ctx, w); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Each further tensor is carried, harmless, or an error that says what to do about it.
func TestRest(t *testing.T) {
	renamed := func(to func(name string) string) func([]filed) []filed {
		return func(all []filed) []filed {
			for i := range all {
				all[i].name = to(all[i].name)
			}
			return all
		}
	}
	prefix := func(p string) func([]filed) []filed { return renamed(func(name string) string { return p + name }) }
	with := func(names ...string) func([]filed) []filed {
		return func(all []filed) []filed {
			for _, name := range names {
				all = append(all, filed{name: name, shape: tensor.Shape{2}, dtype: tensor.F32, values: []float32{1, 2}})
			}
			return all
		}
	}
	put := func(word, before string) func([]filed) []filed {
		return renamed(func(name string) string { return strings.Replace(name, before, word+before, 1) })
	}
	for _, c := range []struct {
		variant string
		change  func([]filed) []filed
		want    string // "": it is accepted
	}{
		{"llama", with("model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq",
			"model.rotary_emb.full_attention_inv_freq", "model.layers.1.self_attn.rotary_emb.cos_cached"), ""},
		{"llama", with("model.layers.0.self_attn.q_proj.bias"), `"model.layers.0.self_attn.q_proj.bias" has no place`},
		{"llama", with("model.layers.0.inv_freq"), `"model.layers.0.inv_freq" has no place`},
		{"llama", with("model.layers.99.input_layernorm.weight"), "has no place"},
		{"llama", with("score.weight"), `"score.weight" has no place in the llama`},
		{"llama", with("model.layers.0.self_attn.q_proj.weight_scale_inv"), "has no place"},
		{"llama", with("lm_head.bias"), "has no place"},
		{"qwen3", with("lm_head.bias"), "has no place"},
		{"llama", with("model.layers.0.self_attn.q_proj.lora_A.weight"), "is of an adapter: merge the adapter into the model"},
		{"llama", with("base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight"), "is of an adapter"},
		{"llama", prefix("_orig_mod."), `with "_orig_mod." in its name: the model was saved from a wrapper`},
		{"llama", prefix("module."), `remove "module." from the names of all tensors`},
		{"llama", prefix("base_model.model."), `remove "base_model.model." from`},
		{"llama", prefix("module._orig_mod."), `remove "_orig_mod." and "module." from`},
		{"llama", prefix("policy."), `remove "policy." from`},
		{"qwen3", prefix("_orig_mod."), `remove "_orig_mod." from`},
		{"llama", put("_checkpoint_wrapped_module.", "self_attn."), `remove "_checkpoint_wrapped_module." from`},
		{"llama", put("_orig_mod.", "mlp."), `remove "_orig_mod." from`},
		{"llama", renamed(func(name string) string {
			return strings.Replace(name, "q_proj.", "q_proj.base_layer.", 1)
		}), `remove "base_layer." from`},
		{"gpt2", prefix("module."), `remove "module." from`},
		{"qwen3_5", prefix("module."), `remove "module." from`},
		{"glm4_moe", with("model.layers.3.eh_proj.weight", "model.layers.3.self_attn.q_proj.weight"), ""},
		{"glm4_moe", with("model.layers.3.self_attn.q_proj.weight"), "is num_hidden_layers right?"},
		{"glm4_moe", with("model.layers.4.eh_proj.weight"), "has no place"},
		{"deepseek_v3", with("model.layers.2.eh_proj.weight", "model.layers.2.shared_head.head.weight"), ""},
		{"deepseek_v3", with("model.layers.2.input_layernorm.weight"), "is num_hidden_layers right?"},
		{"gpt_neox", with("gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.masked_bias",
			"gpt_neox.layers.1.attention.rotary_emb.inv_freq"), ""},
	} {
		w, err := in(t, c.change(of(t, c.variant)))
		check(t, err)
		m := mustBuild(t, c.variant, nil)
		if c.variant == "gpt2" {
			w.Under("", "")
		}
		err = m.Check(t.Context(), w)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) ||
			strings.Contains(fmt.Sprint(err), "\n") {
			t.Errorf("%s: %v, want %q", c.variant, err, c.want)
		}
	}
	several := mustBuild(t, "glm4_moe", map[string]any{"num_nextn_predict_layers": 2})
	w, err := in(t, with("model.layers.3.eh_proj.weight", "model.layers.4.eh_proj.weight")(of(t, "glm4_moe")))
	check(t, err)
	check(t, several.Check(t.Context(), w))
	if n := len(several.Carried(w)); n != 3 {
		t.Errorf("%d patterns are carried, and the two layers and the constants are", n)
	}
}

// Shards have what their index names, and no tensor twice; what it does not name is the model's all the same.
func TestShards(t *testing.T) {
	all := of(t, "llama")
	all[0].shard, all[2].shard = 1, 1
	if w, err := in(t, slices.Clone(all), all[0].name, all[3].name); err != nil ||
		mustBuild(t, "llama", nil).Check(t.Context(), w) != nil {
		t.Errorf("tensors that the index leaves out: %v", err)
	}
	twice := all[1]
	twice.shard = 1
	_, err := in(t, append(slices.Clone(all), twice))
	if err == nil || !strings.Contains(err.Error(), "is in model-00000.safetensors, too: remove one of the two") {
		t.Errorf("a tensor that two shards have: %v", err)
	}
}
