package gguf

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// document builds GGUF files, good and bad ones. Metadata and tensors are written in sorted order.
type document struct {
	version uint32
	meta    map[string]any
	tensors map[string]docTensor
	align   int
	mangle  func(file []byte) []byte
}

type docTensor struct {
	typ    ggmlType
	dims   []int // outermost first
	data   []byte
	offset int64 // -1: after the one before
}

// f64 is a number of the type F64; a float64 has the type F32.
type f64 float64

// rawArray is an array whose element type and count may be false.
type rawArray struct {
	elem valueType
	n    uint64
	data []byte
}

func (d *document) bytes() []byte {
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	b := le.AppendUint32([]byte("GGUF"), d.version)
	b = le.AppendUint64(b, uint64(len(d.tensors)))
	b = le.AppendUint64(b, uint64(len(d.meta)))
	for _, k := range slices.Sorted(maps.Keys(d.meta)) {
		b = str(b, k)
		switch v := d.meta[k].(type) {
		case int:
			b = le.AppendUint32(le.AppendUint32(b, uint32(typeU32)), uint32(v))
		case float64:
			b = le.AppendUint32(le.AppendUint32(b, uint32(typeF32)), math.Float32bits(float32(v)))
		case f64:
			b = le.AppendUint64(le.AppendUint32(b, uint32(typeF64)), math.Float64bits(float64(v)))
		case bool:
			b = append(le.AppendUint32(b, uint32(typeBool)), map[bool]byte{true: 1}[v])
		case string:
			b = str(le.AppendUint32(b, uint32(typeString)), v)
		case []string:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, uint32(typeArray)), uint32(typeString)), uint64(len(v)))
			for _, s := range v {
				b = str(b, s)
			}
		case []bool:
			b = le.AppendUint32(le.AppendUint32(b, uint32(typeArray)), uint32(typeBool))
			b = le.AppendUint64(b, uint64(len(v)))
			for _, x := range v {
				b = append(b, map[bool]byte{true: 1}[x])
			}
		case []int32:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, uint32(typeArray)), uint32(typeI32)), uint64(len(v)))
			for _, n := range v {
				b = le.AppendUint32(b, uint32(n))
			}
		case []float32:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, uint32(typeArray)), uint32(typeF32)), uint64(len(v)))
			for _, x := range v {
				b = le.AppendUint32(b, math.Float32bits(x))
			}
		case rawArray:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, uint32(typeArray)), uint32(v.elem)), v.n)
			b = append(b, v.data...)
		case valueType:
			b = le.AppendUint32(b, uint32(v)) // a type without a value
		default:
			panic(fmt.Sprintf("%T", v))
		}
	}
	names := slices.Sorted(maps.Keys(d.tensors))
	var data []byte
	for _, name := range names {
		t := d.tensors[name]
		b = le.AppendUint32(str(b, name), uint32(len(t.dims)))
		for i := range t.dims {
			b = le.AppendUint64(b, uint64(t.dims[len(t.dims)-1-i]))
		}
		for len(data)%d.align != 0 {
			data = append(data, 0)
		}
		offset := int64(len(data))
		if t.offset >= 0 {
			offset = t.offset
		}
		b = le.AppendUint64(le.AppendUint32(b, uint32(t.typ)), uint64(offset))
		data = append(data, t.data...)
	}
	for len(b)%d.align != 0 {
		b = append(b, 0)
	}
	b = append(b, data...)
	if d.mangle != nil {
		b = d.mangle(b)
	}
	return b
}

func f32Tensor(dims ...int) docTensor {
	n := int(tensor.Shape(dims).Elems())
	var data []byte
	for i := range n {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(i%97)/32))
	}
	return docTensor{ggmlF32, dims, data, -1}
}

// small is a model of one layer: hidden 8, 2 heads of 4, 1 key/value head, vocabulary of 6.
func small(arch string) *document {
	d := &document{version: 3, align: 32, meta: map[string]any{
		"general.architecture":                     arch,
		arch + ".block_count":                      1,
		arch + ".context_length":                   128,
		arch + ".embedding_length":                 8,
		arch + ".feed_forward_length":              12,
		arch + ".attention.head_count":             2,
		arch + ".attention.head_count_kv":          1,
		arch + ".attention.layer_norm_rms_epsilon": 1e-6,
		arch + ".rope.freq_base":                   1e6,
		"tokenizer.ggml.model":                     "gpt2",
		"tokenizer.ggml.pre":                       "qwen2",
		"tokenizer.ggml.tokens":                    []string{"a", "b", "ab", "<think>", "<|end|>", "[PAD5]"},
		"tokenizer.ggml.token_type":                []int32{1, 1, 1, 4, 3, 5},
		"tokenizer.ggml.merges":                    []string{"a b"},
		"tokenizer.ggml.eos_token_id":              4,
	}, tensors: map[string]docTensor{
		"token_embd.weight": f32Tensor(6, 8), "output_norm.weight": f32Tensor(8), "output.weight": f32Tensor(6, 8),
		"blk.0.attn_norm.weight": f32Tensor(8), "blk.0.ffn_norm.weight": f32Tensor(8),
		"blk.0.attn_q.weight": f32Tensor(8, 8), "blk.0.attn_k.weight": f32Tensor(4, 8), "blk.0.attn_v.weight": f32Tensor(4, 8),
		"blk.0.attn_output.weight": f32Tensor(8, 8), "blk.0.ffn_gate.weight": f32Tensor(12, 8),
		"blk.0.ffn_up.weight": f32Tensor(12, 8), "blk.0.ffn_down.weight": f32Tensor(8, 12),
	}}
	switch arch {
	case "qwen2":
		d.tensors["blk.0.attn_q.bias"] = f32Tensor(8)
		d.tensors["blk.0.attn_k.bias"] = f32Tensor(4)
		d.tensors["blk.0.attn_v.bias"] = f32Tensor(4)
	case "qwen3", "qwen3moe":
		d.meta[arch+".attention.key_length"] = 4
		d.meta[arch+".attention.value_length"] = 4
		d.tensors["blk.0.attn_q_norm.weight"] = f32Tensor(4)
		d.tensors["blk.0.attn_k_norm.weight"] = f32Tensor(4)
	}
	return d
}

// smallMixture is a small model with 3 experts instead of a dense feed-forward, 5 wide unless it is a llama.
func smallMixture(arch string) *document {
	d := small(arch)
	inner := 12
	d.meta[arch+".expert_count"], d.meta[arch+".expert_used_count"] = 3, 2
	if arch != "llama" {
		inner = 5
		d.meta[arch+".expert_feed_forward_length"] = inner
	}
	for _, name := range []string{"gate", "up", "down"} {
		delete(d.tensors, "blk.0.ffn_"+name+".weight")
	}
	d.tensors["blk.0.ffn_gate_inp.weight"] = f32Tensor(3, 8)
	d.tensors["blk.0.ffn_gate_exps.weight"] = f32Tensor(3, inner, 8)
	d.tensors["blk.0.ffn_up_exps.weight"] = f32Tensor(3, inner, 8)
	d.tensors["blk.0.ffn_down_exps.weight"] = f32Tensor(3, 8, inner)
	return d
}

func importDoc(t *testing.T, d *document, opts ImportOptions) (dir string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(file, d.bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "out")
	if err = Import(context.Background(), file, dir, opts); err != nil {
		if _, serr := os.Stat(dir); !os.IsNotExist(serr) {
			t.Errorf("a failed import left %s", dir)
		}
		if left := leftovers(t, dir); len(left) > 0 {
			t.Errorf("a failed import left %v", left)
		}
	}
	return dir, err
}

func readJSON(t *testing.T, path string) map[string]any {
	t.Helper()
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(doc, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestImportTinyLlama imports a file that the gguf package wrote, and compares every tensor with what that package
// reads.
func TestImportTinyLlama(t *testing.T) {
	dir := t.TempDir() + "/out"
	var last, total int64
	err := Import(context.Background(), "testdata/tiny_llama.gguf", dir, ImportOptions{DType: tensor.F32, Progress: func(d, n int64) {
		if d <= last || d > n {
			t.Errorf("progress went from %d to %d of %d", last, d, n)
		}
		last, total = d, n
	}})
	if err != nil {
		t.Fatal(err)
	}
	if last != total || total == 0 {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	var golden struct{ Sums map[string]uint64 }
	doc, _ := os.ReadFile("testdata/tiny_llama.json")
	if err := json.Unmarshal(doc, &golden); err != nil {
		t.Fatal(err)
	}
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	names := map[string]string{
		"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
		"blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight", "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
		"blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight", "blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj.weight",
		"blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight", "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
		"blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
		"blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
	}
	if len(w.Names()) != len(names) || len(golden.Sums) != len(names) {
		t.Errorf("%d tensors, want %d", len(w.Names()), len(names))
	}
	for from, to := range names {
		info, ok := w.Info(to)
		if !ok {
			t.Errorf("no tensor %s", to)
			continue
		}
		vals := make([]float32, info.Bytes/4)
		if err := w.ReadF32(to, vals, 0); err != nil {
			t.Fatal(err)
		}
		if sum := bitSum(vals); sum != golden.Sums[from] {
			t.Errorf("%s: checksum %d, want %d", to, sum, golden.Sums[from])
		}
	}
	c := readJSON(t, dir+"/config.json")
	for k, want := range map[string]any{
		"model_type": "llama", "hidden_size": 32.0, "num_attention_heads": 4.0, "num_key_value_heads": 2.0, "head_dim": 8.0,
		"intermediate_size": 64.0, "vocab_size": 8.0, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true,
		"torch_dtype": "float32", "bos_token_id": 0.0, "eos_token_id": 1.0, "max_position_embeddings": 64.0, "num_hidden_layers": 1.0,
	} {
		if c[k] != want {
			t.Errorf("config.json %s is %v, want %v", k, c[k], want)
		}
	}
	tok := readJSON(t, dir+"/tokenizer.json")
	model := tok["model"].(map[string]any)
	if want := map[string]any{"<|endoftext|>": 0.0, "<|im_start|>": 1.0, "a": 2.0, "b": 3.0, "Ġ": 4.0, "ab": 5.0, "Ġa": 6.0}; !reflect.DeepEqual(model["vocab"], want) {
		t.Errorf("vocab %v", model["vocab"])
	}
	if want := []any{"a b", "Ġ a"}; !reflect.DeepEqual(model["merges"], want) {
		t.Errorf("merges %v", model["merges"])
	}
	if n := len(tok["added_tokens"].([]any)); n != 2 {
		t.Errorf("%d added tokens", n)
	}
	if tc := readJSON(t, dir+"/tokenizer_config.json"); tc["chat_template"] != "{{ '<|im_start|>' }}" || tc["eos_token"] != "<|im_start|>" ||
		fmt.Sprint(tc["model_input_names"]) != "[input_ids attention_mask]" {
		t.Errorf("tokenizer_config.json %v", tc)
	}
}

// bitSum is a checksum of numbers and their order: testdata/golden.py.
func bitSum(vals []float32) (sum uint64) {
	for i, x := range vals {
		sum += uint64(math.Float32bits(x)) * uint64(i+1)
	}
	return sum & (1<<53 - 1)
}

// TestImportTinyMixture imports a mixture that the gguf package wrote, with experts in three quantized types, and
// compares every expert with what that package reads.
func TestImportTinyMixture(t *testing.T) {
	dir := t.TempDir() + "/out"
	err := Import(context.Background(), "testdata/tiny_qwen3moe.gguf", dir, ImportOptions{DType: tensor.F32})
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ Sums map[string]uint64 }
	doc, _ := os.ReadFile("testdata/tiny_qwen3moe.json")
	if err := json.Unmarshal(doc, &golden); err != nil {
		t.Fatal(err)
	}
	all := allValues(t, dir)
	if len(all) != len(golden.Sums) || len(all) != 3+2*(9+3*5) {
		t.Errorf("%d tensors, want %d", len(all), len(golden.Sums))
	}
	names := strings.NewReplacer("blk.", "model.layers.", "token_embd", "model.embed_tokens", "output_norm",
		"model.norm",
		"attn_q_norm", "self_attn.q_norm", "attn_k_norm", "self_attn.k_norm", "attn_q", "self_attn.q_proj",
		"attn_k", "self_attn.k_proj", "attn_v", "self_attn.v_proj", "attn_output", "self_attn.o_proj",
		"attn_norm", "input_layernorm", "ffn_norm", "post_attention_layernorm", "ffn_gate_inp", "mlp.gate", "output",
		"lm_head")
	for from, want := range golden.Sums {
		to := names.Replace(from)
		if tensor, expert, ok := strings.Cut(from, "/"); ok {
			layer, matrix, _ := strings.Cut(strings.TrimSuffix(tensor, "_exps.weight"), ".ffn_")
			to = names.Replace(layer) + ".mlp.experts." + expert + "." + matrix + "_proj.weight"
		}
		if sum := bitSum(all[to]); all[to] == nil || sum != want {
			t.Errorf("%s: checksum %d, %s has %d", to, sum, from, want)
		}
	}
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if x := m.Blocks[1].FeedForward.(nn.Experts); m.Type != "qwen3_moe" || x.Number != 5 || x.Inner != 32 ||
		x.Route.TopK != 2 ||
		!x.Route.Renormalize {
		t.Errorf("it is a %s with %+v", m.Type, x)
	}
}

// TestImportFamilies: what each architecture becomes; and only llama's rows change places.
func TestImportFamilies(t *testing.T) {
	for _, arch := range []string{"llama", "qwen2", "qwen3"} {
		d := small(arch)
		if arch == "llama" {
			d.version = 2
		}
		dir, err := importDoc(t, d, ImportOptions{DType: tensor.F32})
		if err != nil {
			t.Fatal(arch, err)
		}
		w, err := hf.OpenWeights(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.Names()) != len(d.tensors) {
			t.Errorf("%s: %d tensors of %d", arch, len(w.Names()), len(d.tensors))
		}
		got := make([]float32, 64)
		if err := w.ReadF32("model.layers.0.self_attn.q_proj.weight", got, 0); err != nil {
			t.Fatal(err)
		}
		w.Close()
		order := []int{0, 1, 2, 3, 4, 5, 6, 7}
		if arch == "llama" {
			order = []int{0, 2, 1, 3, 4, 6, 5, 7}
		}
		for r, from := range order {
			if want := float32((8*from)%97) / 32; got[8*r] != want {
				t.Errorf("%s: row %d begins with %v, want %v", arch, r, got[8*r], want)
			}
		}
		c := readJSON(t, dir+"/config.json")
		if c["model_type"] != arch || c["tie_word_embeddings"] != false || c["rms_norm_eps"] != 1e-6 || c["bos_token_id"] != nil {
			t.Errorf("%s: config %v", arch, c)
		}
		tok := readJSON(t, dir+"/tokenizer.json")
		added := tok["added_tokens"].([]any)
		if len(added) != 2 || added[0].(map[string]any)["special"] != false || added[1].(map[string]any)["special"] != true {
			t.Errorf("%s: added tokens %v", arch, added)
		}
	}
}

// TestImportMixtures: experts have tensors of their own, in order, and config.json says what transformers needs.
func TestImportMixtures(t *testing.T) {
	for arch, c := range map[string]struct {
		names  [3]string // of an expert's gate, up and down
		router string
		inner  int
		config map[string]any
	}{
		"llama": {[3]string{"block_sparse_moe.experts.%d.w1", "block_sparse_moe.experts.%d.w3",
			"block_sparse_moe.experts.%d.w2"},
			"block_sparse_moe.gate", 12, map[string]any{"model_type": "mixtral",
				"architectures":     []any{"MixtralForCausalLM"},
				"num_local_experts": 3.0, "num_experts_per_tok": 2.0, "intermediate_size": 12.0, "num_experts": nil,
				"moe_intermediate_size": nil, "norm_topk_prob": nil, "mlp_only_layers": nil, "attention_bias": nil,
				"mlp_bias": nil}},
		"qwen3moe": {[3]string{"mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj", "mlp.experts.%d.down_proj"},
			"mlp.gate", 5,
			map[string]any{"model_type": "qwen3_moe", "architectures": []any{"Qwen3MoeForCausalLM"}, "num_experts": 3.0,
				"num_experts_per_tok": 2.0, "intermediate_size": 12.0, "moe_intermediate_size": 5.0,
				"norm_topk_prob":      true,
				"decoder_sparse_step": 1.0, "mlp_only_layers": []any{}, "attention_bias": false, "head_dim": 4.0,
				"num_local_experts": nil}},
	} {
		d := smallMixture(arch)
		dir, err := importDoc(t, d, ImportOptions{DType: tensor.F32})
		if err != nil {
			t.Fatal(arch, err)
		}
		all := allValues(t, dir)
		if want := len(d.tensors) + 3*2; len(all) != want {
			t.Errorf("%s: %d tensors, want %d", arch, len(all), want)
		}
		want := map[string][]float32{c.router: {}}
		for e := range 3 {
			for i, name := range c.names {
				data := d.tensors["blk.0.ffn_"+[]string{"gate", "up", "down"}[i]+"_exps.weight"].data
				size := 4 * c.inner * 8
				want[fmt.Sprintf(name, e)] = make([]float32, c.inner*8)
				dequantizeF32(want[fmt.Sprintf(name, e)], data[e*size:(e+1)*size])
			}
		}
		want[c.router] = make([]float32, 3*8)
		dequantizeF32(want[c.router], d.tensors["blk.0.ffn_gate_inp.weight"].data)
		for name, want := range want {
			if got := all["model.layers.0."+name+".weight"]; !slices.Equal(got, want) {
				t.Errorf("%s: %s is %v, want %v", arch, name, got, want)
			}
		}
		doc := readJSON(t, filepath.Join(dir, "config.json"))
		for key, want := range c.config {
			if got := doc[key]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s is %v, want %v", arch, key, got, want)
			}
		}
	}
}

// TestBadMixture: what a hostile file says of its experts costs neither memory nor a panic.
func TestBadMixture(t *testing.T) {
	meta := func(k string, v any) func(*document) { return func(d *document) { d.meta["qwen3moe."+k] = v } }
	tens := func(name string, x docTensor) func(*document) {
		return func(d *document) { d.tensors["blk.0.ffn_"+name] = x }
	}
	for name, c := range map[string]struct {
		change func(*document)
		words  []string
	}{
		"no experts": {meta("expert_count", 0), []string{"expert_count is 0"}},
		"no count": {func(d *document) { delete(d.meta, "qwen3moe.expert_count") },
			[]string{"expert_count is missing"}},
		"no inner size": {func(d *document) { delete(d.meta, "qwen3moe.expert_feed_forward_length") },
			[]string{"expert_feed_forward_length is missing"}},
		"nothing used": {meta("expert_used_count", 0), []string{"expert_used_count is 0"}},
		"more used":    {meta("expert_used_count", 4), []string{"4 experts", "there are 3"}},
		"absurd count": {meta("expert_count", 1<<31-1), []string{"2147483647 experts", "more than models have"}},
		"experts of all layers": {func(d *document) {
			d.meta["qwen3moe.expert_count"], d.meta["qwen3moe.block_count"] = 1024, 65
			for i := range 65 {
				d.tensors[fmt.Sprint("x", i)] = f32Tensor(1)
			}
		}, []string{"65 layers with 1024 experts", "65536 in all"}},
		"many experts": {meta("expert_count", 1025), []string{"1025 experts", "more than models have"}},
		"another count": {meta("expert_count", 1024), []string{`"blk.0.ffn_gate_exps.weight"`, "[3 5 8]",
			"[1024 5 8]"}},
		"count of 32 bits":  {meta("expert_count", 1<<32-1), []string{"expert_count is 4294967295"}},
		"count is text":     {meta("expert_count", "3"), []string{"expert_count", "whole number"}},
		"count by layer":    {meta("expert_used_count", []int32{2}), []string{"expert_used_count", "whole number"}},
		"absurd inner size": {meta("expert_feed_forward_length", 1<<31-1), []string{"ffn_gate_exps", "2147483647"}},
		"many layers":       {meta("block_count", 10), []string{`"blk.1.ffn_gate_exps.weight"`, "missing"}},
		"shared experts": {meta("expert_shared_count", 1), []string{`"qwen3moe.expert_shared_count"`,
			"not supported"}},
		"scale": {meta("expert_weights_scale", 2.5), []string{`"qwen3moe.expert_weights_scale"`,
			"not supported"}},
		"gate of two": {tens("gate_exps.weight", f32Tensor(3*5, 8)), []string{`"blk.0.ffn_gate_exps.weight"`,
			"[15 8]", "[3 5 8]"}},
		"down as up": {tens("down_exps.weight", f32Tensor(3, 5, 8)), []string{`"blk.0.ffn_down_exps.weight"`,
			"[3 5 8]", "[3 8 5]"}},
		"fewer experts": {tens("up_exps.weight", f32Tensor(2, 5, 8)), []string{`"blk.0.ffn_up_exps.weight"`,
			"[2 5 8]", "[3 5 8]"}},
		"router": {tens("gate_inp.weight", f32Tensor(4, 8)), []string{`"blk.0.ffn_gate_inp.weight"`,
			"[4 8]", "[3 8]"}},
		"no router": {func(d *document) { delete(d.tensors, "blk.0.ffn_gate_inp.weight") },
			[]string{`"blk.0.ffn_gate_inp.weight"`, "missing"}},
		"dense, too": {tens("up.weight", f32Tensor(12, 8)), []string{`"blk.0.ffn_up.weight"`,
			"does not belong to a qwen3_moe"}},
		"bias of the router": {tens("gate_inp.bias", f32Tensor(3)), []string{`"blk.0.ffn_gate_inp.bias"`,
			"does not belong"}},
		"bias of experts": {tens("up_exps.bias", f32Tensor(3, 5)), []string{`"blk.0.ffn_up_exps.bias"`,
			"does not belong"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := smallMixture("qwen3moe")
			c.change(d)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := importDoc(t, d, ImportOptions{})
			runtime.ReadMemStats(&after)
			wantOneLine(t, err, append(c.words, "m.gguf")...)
			if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
				t.Errorf("%d bytes of heap", took)
			}
		})
	}

	// Keys of experts that the architecture does not have, and none where it has them.
	d := smallMixture("llama")
	d.meta["llama.expert_feed_forward_length"] = 12
	_, err := importDoc(t, d, ImportOptions{})
	wantOneLine(t, err, `"llama.expert_feed_forward_length"`, "not supported")
	d = smallMixture("qwen3moe")
	delete(d.meta, "qwen3moe.expert_count")
	delete(d.meta, "qwen3moe.expert_used_count")
	_, err = importDoc(t, d, ImportOptions{})
	wantOneLine(t, err, "qwen3moe.expert_count is missing")
	d = small("qwen3")
	d.meta["qwen3.expert_count"] = 8
	_, err = importDoc(t, d, ImportOptions{})
	wantOneLine(t, err, `"qwen3.expert_count"`, "not supported")
}

func TestImportRopeScaling(t *testing.T) {
	const pairs = 4
	rotated := func(p nn.RopeFrequencies) *document {
		d := small("llama")
		d.meta["llama.attention.key_length"] = 2 * pairs
		d.meta["llama.rope.freq_base"] = p.Theta
		d.tensors["blk.0.attn_q.weight"], d.tensors["blk.0.attn_output.weight"] = f32Tensor(16, 8), f32Tensor(8, 16)
		d.tensors["blk.0.attn_k.weight"], d.tensors["blk.0.attn_v.weight"] = f32Tensor(8, 8), f32Tensor(8, 8)
		var data []byte
		for _, x := range p.Divisors() {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
		}
		d.tensors["rope_freqs.weight"] = docTensor{ggmlF32, []int{pairs}, data, -1}
		return d
	}
	read := func(dir string) nn.RopeFrequencies {
		m, err := model.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		return m.Blocks[0].Rotary()
	}
	llama3 := nn.RopeFrequencies{HeadDim: 2 * pairs, Theta: 5e5, Kind: nn.RopeLlama3, Factor: 32, LowFreqFactor: 1,
		HighFreqFactor: 4, OriginalPositions: 8192}
	less, other := llama3, llama3
	less.Factor, other.HighFreqFactor = 8, 3
	for _, p := range []nn.RopeFrequencies{llama3, less, {HeadDim: 2 * pairs, Theta: 5e5}} {
		dir, err := importDoc(t, rotated(p), ImportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := read(dir); got != p {
			t.Errorf("%+v became %+v", p, got)
		}
	}
	_, err := importDoc(t, rotated(other), ImportOptions{})
	wantOneLine(t, err, "rope_freqs.weight", "Hugging Face directory")

	d := small("llama")
	d.meta["llama.rope.scaling.type"], d.meta["llama.rope.scaling.factor"] = "linear", 4.0
	dir, err := importDoc(t, d, ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read(dir), (nn.RopeFrequencies{HeadDim: pairs, Theta: 1e6, Kind: nn.RopeLinear, Factor: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}

	// Of yarn the defaults are those of llama.cpp; a factor of scores has two keys.
	usual := nn.RopeFrequencies{HeadDim: pairs, Theta: 1e6, Kind: nn.RopeYaRN, Factor: 4, OriginalPositions: 128,
		BetaFast: 32, BetaSlow: 1, Magnitude: 0.1*math.Log(4) + 1, Whole: true}
	for _, c := range []struct {
		keys   map[string]any
		change func(*nn.RopeFrequencies)
	}{
		{nil, func(*nn.RopeFrequencies) {}},
		{map[string]any{"original_context_length": 32}, func(p *nn.RopeFrequencies) { p.OriginalPositions = 32 }},
		{map[string]any{"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
			func(p *nn.RopeFrequencies) { p.BetaFast, p.BetaSlow = 16, 2 }},
		{map[string]any{"yarn_attn_factor": 0.5}, func(p *nn.RopeFrequencies) { p.Magnitude = 0.5 }},
		{map[string]any{"attn_factor": 0.5}, func(p *nn.RopeFrequencies) { p.Magnitude *= 0.5 }},
	} {
		d := small("llama")
		d.meta["llama.rope.scaling.type"], d.meta["llama.rope.scaling.factor"] = "yarn", 4.0
		for key, value := range c.keys {
			d.meta["llama.rope.scaling."+key] = value
		}
		dir, err := importDoc(t, d, ImportOptions{})
		if err != nil {
			t.Fatal(c.keys, err)
		}
		got, want := read(dir), usual
		c.change(&want)
		if math.Abs(got.Magnitude-want.Magnitude) < 1e-7 {
			got.Magnitude = want.Magnitude
		}
		if got != want {
			t.Errorf("%v: %+v, want %+v", c.keys, got, want)
		}
	}
}

func TestImportAddsBOS(t *testing.T) {
	d := small("llama")
	d.meta["tokenizer.ggml.pre"], d.meta["tokenizer.ggml.bos_token_id"] = "llama-bpe", 4
	dir, err := importDoc(t, d, ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tok := readJSON(t, dir+"/tokenizer.json")
	post, _ := json.Marshal(tok["post_processor"])
	want := `{"id":"\u003c|end|\u003e","type_id":0}},{"Sequence":{"id":"A","type_id":0}}`
	if !bytes.Contains(post, []byte(want)) {
		t.Errorf("post_processor %s lacks %s", post, want)
	}
	if tok["model"].(map[string]any)["ignore_merges"] != true {
		t.Error("ignore_merges is not set")
	}
}

func TestBadFile(t *testing.T) {
	le := binary.LittleEndian
	meta := func(k string, v any) func(*document) { return func(d *document) { d.meta[k] = v } }
	file := func(f func(b []byte) []byte) func(*document) { return func(d *document) { d.mangle = f } }
	tens := func(name string, x docTensor) func(*document) { return func(d *document) { d.tensors[name] = x } }
	for name, c := range map[string]struct {
		change func(*document)
		words  []string
	}{
		"empty":           {file(func(b []byte) []byte { return nil }), []string{"not a GGUF"}},
		"magic":           {file(func(b []byte) []byte { b[0] = 'g'; return b }), []string{"not a GGUF"}},
		"version":         {func(d *document) { d.version = 1 }, []string{"version 1"}},
		"big endian":      {func(d *document) { d.version = 3 << 24 }, []string{"version", "little-endian"}},
		"many tensors":    {file(func(b []byte) []byte { le.PutUint64(b[8:], 1<<40); return b }), []string{"damaged"}},
		"many entries":    {file(func(b []byte) []byte { le.PutUint64(b[16:], 1<<63); return b }), []string{"damaged"}},
		"more entries":    {file(func(b []byte) []byte { le.PutUint64(b[16:], 1000); return b }), []string{"m.gguf"}},
		"cut in metadata": {file(func(b []byte) []byte { return b[:100] }), []string{"truncated"}},
		"cut in tensors":  {file(func(b []byte) []byte { return b[:len(b)-1] }), []string{"truncated", "token_embd"}},
		"long string":     {file(func(b []byte) []byte { le.PutUint64(b[24:], 1<<62); return b }), []string{"truncated", "string"}},
		"long array":      {meta("x", rawArray{typeF64, 1 << 61, nil}), []string{`"x"`, "truncated", "array"}},
		"nested array":    {meta("x", rawArray{typeArray, 1, make([]byte, 12)}), []string{`"x"`, "not supported"}},
		"value type":      {meta("zz", valueType(77)), []string{`"zz"`, "unknown value type 77"}},
		"not utf-8":       {meta("x", "\xff"), []string{`"x"`, "UTF-8"}},
		"alignment":       {meta("general.alignment", 48), []string{"general.alignment is 48"}},
		"alignment zero":  {meta("general.alignment", 0), []string{"general.alignment is 0"}},
		"offset":          {tens("output.weight", docTensor{ggmlF32, []int{6, 8}, nil, 8}), []string{"output.weight", "multiple of 32"}},
		"overlap":         {tens("output.weight", docTensor{ggmlF32, []int{6, 8}, nil, 32}), []string{"overlaps"}},
		"far offset":      {tens("output.weight", docTensor{ggmlF32, []int{6, 8}, nil, math.MaxInt64 - 31}), []string{"output.weight", "absurd"}},
		"past end":        {tens("output.weight", docTensor{ggmlF32, []int{6, 8}, nil, 1 << 40}), []string{"output.weight", "truncated"}},
		"no dimensions":   {tens("output.weight", docTensor{ggmlF32, nil, nil, -1}), []string{"0 dimensions"}},
		"zero dimension":  {tens("output.weight", docTensor{ggmlF32, []int{0, 8}, nil, -1}), []string{"dimension of 0"}},
		"overflow":        {tens("output.weight", docTensor{ggmlF32, []int{1 << 40, 1 << 40}, nil, -1}), []string{"too large"}},
		"type": {tens("output.weight", docTensor{11, []int{6, 8}, nil, -1}), []string{"output.weight",
			"Q3_K", "Q6_K"}},
		"unknown type":    {tens("output.weight", docTensor{1000, []int{6, 8}, nil, -1}), []string{"output.weight", "1000"}},
		"part of a block": {tens("output.weight", docTensor{ggmlQ8_0, []int{6, 8}, nil, -1}), []string{"output.weight", "blocks of 32"}},

		"architecture": {meta("general.architecture", "gemma"), []string{`"gemma"`,
			"llama, qwen2, qwen3, qwen3moe"}},
		"unknown key":  {meta("llama.attention.sliding_window", 4096), []string{`"llama.attention.sliding_window"`}},
		"experts":      {meta("llama.expert_count", 8), []string{"llama.expert_used_count is missing"}},
		"used experts": {meta("llama.expert_used_count", 2), []string{"llama.expert_count is missing"}},
		"no layers":    {meta("llama.block_count", 0), []string{"block_count is 0"}},
		"many layers":  {meta("llama.block_count", 1<<30), []string{"layers"}},
		"two layers":   {meta("llama.block_count", 2), []string{`"blk.1.attn_q.weight"`, "missing"}},
		"no size": {func(d *document) { delete(d.meta, "llama.embedding_length") },
			[]string{"llama.embedding_length is missing"}},
		"size is text":   {meta("llama.embedding_length", "8"), []string{"llama.embedding_length", "whole number"}},
		"heads":          {meta("llama.attention.head_count_kv", 3), []string{"heads"}},
		"head dimension": {meta("llama.attention.head_count", 3), []string{"multiple"}},
		"rope dimension": {meta("llama.rope.dimension_count", 2), []string{"llama.rope.dimension_count is 2"}},
		"eps":            {meta("llama.attention.layer_norm_rms_epsilon", math.NaN()), []string{"epsilon", "finite"}},
		"theta":          {meta("llama.rope.freq_base", -1.0), []string{"freq_base"}},
		"large theta": {meta("llama.rope.freq_base", f64(1e300)), []string{"freq_base", "1e+300",
			"finite in fp32"}},
		"no finite theta": {meta("llama.rope.freq_base", f64(math.Inf(1))), []string{"freq_base", "finite in fp32"}},
		"small eps": {meta("llama.attention.layer_norm_rms_epsilon", f64(1e-60)), []string{"epsilon",
			"not positive"}},
		"yarn":             {meta("llama.rope.scaling.type", "longrope"), []string{`"longrope"`, "linear and yarn"}},
		"missing tensor":   {func(d *document) { delete(d.tensors, "blk.0.ffn_up.weight") }, []string{`"blk.0.ffn_up.weight"`, "missing"}},
		"no embedding":     {func(d *document) { delete(d.tensors, "token_embd.weight") }, []string{"token_embd.weight"}},
		"shape":            {tens("blk.0.ffn_up.weight", f32Tensor(12, 9)), []string{`"blk.0.ffn_up.weight"`, "[12 9]", "[12 8]"}},
		"foreign tensor":   {tens("blk.0.ffn_gate_inp.weight", f32Tensor(4, 8)), []string{`"blk.0.ffn_gate_inp.weight"`, "does not belong"}},
		"not a number":     {tens("output.weight", docTensor{ggmlF32, []int{6, 8}, bytes.Repeat([]byte{0xff}, 192), -1}), []string{`"output.weight"`, "finite"}},
		"tokenizer":        {meta("tokenizer.ggml.model", "t5"), []string{`"t5"`, "gpt2, llama", "Hugging Face"}},
		"pre-tokenizer":    {meta("tokenizer.ggml.pre", "superbpe"), []string{`"superbpe"`, "smollm"}},
		"no tokens":        {meta("tokenizer.ggml.tokens", []string{}), []string{"0 tokens"}},
		"too many tokens":  {meta("tokenizer.ggml.tokens", make([]string, 7)), []string{"7 tokens", "6 rows"}},
		"token types":      {meta("tokenizer.ggml.token_type", []int32{1}), []string{"1 entries for 6"}},
		"byte token":       {meta("tokenizer.ggml.token_type", []int32{1, 1, 1, 4, 3, 6}), []string{"token 5", "type 6"}},
		"same token twice": {meta("tokenizer.ggml.tokens", []string{"a", "b", "ab", "a", "x", "y"}), []string{"tokens 0 and 3"}},
		"merge":            {meta("tokenizer.ggml.merges", []string{"a b", "ab a"}), []string{"merge 1", `"aba"`}},
		"merge of three":   {meta("tokenizer.ggml.merges", []string{"a b ab"}), []string{"merge 0", "two tokens"}},
		"eos":              {meta("tokenizer.ggml.eos_token_id", 6), []string{"eos_token_id is 6"}},
		"bos":              {meta("tokenizer.ggml.add_bos_token", true), []string{"start or end"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := small("llama")
			c.change(d)
			_, err := importDoc(t, d, ImportOptions{})
			wantOneLine(t, err, append(c.words, "m.gguf")...)
		})
	}
}

func TestImportCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir() + "/out"
	err := Import(ctx, "testdata/tiny_llama.gguf", dir, ImportOptions{Progress: func(done, total int64) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	err = Import(context.Background(), "testdata/tiny_llama.gguf", dir, ImportOptions{DType: tensor.F16})
	wantOneLine(t, err, "f16")
	err = Import(context.Background(), t.TempDir(), dir, ImportOptions{})
	wantOneLine(t, err, "regular file")
}

func FuzzImport(f *testing.F) {
	for _, arch := range []string{"llama", "qwen2", "qwen3"} {
		f.Add(small(arch).bytes())
	}
	for _, d := range []*document{smallMixture("llama"), smallMixture("qwen3moe"), smallGPTOSS(), smallGLM(),
		unstacked(), smallPieces(), smallNeoX(), smallGPT2(), smallDeepSeek(), smallGemma4(), mixtureGemma4(),
		sharedGemma4()} {
		f.Add(d.bytes())
	}
	large := small("llama")
	large.meta["llama.rope.freq_base"] = f64(1e300)
	f.Add(large.bytes())
	f.Fuzz(func(t *testing.T, doc []byte) {
		g, err := parse(bytes.NewReader(doc), int64(len(doc)))
		if err == nil {
			for name, x := range g.tensors {
				if x.begin < 0 || x.end > int64(len(doc)) || x.begin >= x.end {
					t.Errorf("tensor %q is at %d to %d of %d", name, x.begin, x.end, len(doc))
				}
			}
			var imp *importer
			if imp, err = g.prepare(bytes.NewReader(doc), tensor.BF16); err == nil {
				for _, side := range imp.files {
					if !json.Valid(side.data) {
						t.Errorf("%s is not JSON", side.name)
					}
				}
				var text bytes.Buffer
				if err := imp.tokens.writeJSON(t.Context(), &text); err == nil && !json.Valid(text.Bytes()) {
					t.Error("tokenizer.json is not JSON")
				}
			}
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("more than one line: %q", err)
		}
	})
}

// tokenizerOf is the tokenizer that an import of a file writes, read by the program's own reader.
func tokenizerOf(t *testing.T, d *document) *tokenizer.Pipeline {
	t.Helper()
	doc := d.bytes()
	g, err := parse(bytes.NewReader(doc), int64(len(doc)))
	if err != nil {
		t.Fatal(err)
	}
	imp, err := g.prepare(bytes.NewReader(doc), tensor.BF16)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := imp.tokens.writeJSON(t.Context(), &text); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(text.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestImportedTokenizerLoads: what the import writes is what the program's own tokenizer reads.
func TestImportedTokenizerLoads(t *testing.T) {
	for _, pre := range slices.Sorted(maps.Keys(preTokenizers)) {
		t.Run(pre, func(t *testing.T) {
			d := small("llama")
			d.meta["tokenizer.ggml.pre"], d.meta["tokenizer.ggml.bos_token_id"] = pre, 4
			tok := tokenizerOf(t, d)
			if got, want := tok.Encode("abb<think>a<|end|>", false), []int32{2, 1, 3, 0, 4}; !slices.Equal(got, want) {
				t.Errorf("ids %v, want %v", got, want)
			}
			got := tok.Encode("ab", true)
			want := []int32{2}
			if preTokenizers[pre].addBOS {
				want = []int32{4, 2}
			}
			if !slices.Equal(got, want) {
				t.Errorf("ids with special tokens %v, want %v", got, want)
			}
		})
	}
}

// TestImportKnowsPre: an import reads each name of how text is cut that an export finds.
func TestImportKnowsPre(t *testing.T) {
	for _, name := range slices.Concat(slices.Collect(maps.Values(preNames)), preByRules) {
		if _, ok := preTokenizers[name]; !ok {
			t.Errorf("export writes %q, which import refuses", name)
		}
	}
}

// A file with holes can be as long as it likes, and takes no memory for that.
func TestGGUFHoles(t *testing.T) {
	le := binary.LittleEndian
	front := func(typ valueType, more ...uint64) []byte {
		b := le.AppendUint64(le.AppendUint64(le.AppendUint32([]byte("GGUF"), 3), 0), 1<<16)
		b = append(le.AppendUint64(b, 1), 'a')
		b = le.AppendUint32(b, uint32(typ))
		for i, n := range more {
			if i == 0 && typ == typeArray {
				b = le.AppendUint32(b, uint32(n))
				continue
			}
			b = le.AppendUint64(b, n)
		}
		return b
	}
	for name, b := range map[string][]byte{
		"a string":         front(typeString, 190<<30),
		"an array":         front(typeArray, uint64(typeU8), 190<<30),
		"an array of text": front(typeArray, uint64(typeString), 20<<30),
	} {
		path := filepath.Join(t.TempDir(), "a.gguf")
		if err := errors.Join(os.WriteFile(path, b, 0o600), os.Truncate(path, 200<<30)); err != nil {
			t.Skip("the file system has no sparse files of this length: ", err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := open(path)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "the file is damaged") {
			t.Errorf("%s: %v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%s: %d bytes of heap", name, took)
		}
	}
}
