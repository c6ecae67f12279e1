package model_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// The halves of each layer, as the golden configurations say.
func TestHybridBlocks(t *testing.T) {
	route := func(k int) device.RouteSpec { return device.RouteSpec{TopK: k, Renormalize: true, Scale: 1} }
	experts := func(inner, shared, number, k int) nn.Experts {
		return nn.Experts{Inner: inner, Shared: shared, SharedGate: true, Number: number, PerPart: number,
			Route: route(k)}
	}
	for variant, want := range map[string]struct {
		mixers string // A: attention
		delta  nn.GatedDelta
		feeds  []nn.FeedForward // in turn
	}{
		"qwen3_5_text": {"DAD", nn.GatedDelta{KeyHeads: 2, Heads: 4, KeyDim: 6, ValueDim: 10},
			[]nn.FeedForward{nn.GLU{Inner: 44}}},
		"qwen3_5": {"DDDA", nn.GatedDelta{KeyHeads: 1, Heads: 3, KeyDim: 8, ValueDim: 6},
			[]nn.FeedForward{nn.GLU{Inner: 40}}},
		"qwen3_5_moe": {"DDA", nn.GatedDelta{KeyHeads: 2, Heads: 2, KeyDim: 10, ValueDim: 8},
			[]nn.FeedForward{experts(10, 14, 6, 2)}},
		"qwen3_5_moe_text": {"AD", nn.GatedDelta{KeyHeads: 1, Heads: 2, KeyDim: 6, ValueDim: 12},
			[]nn.FeedForward{experts(8, 6, 5, 3)}},
		"qwen3_next": {"DDAD", nn.GatedDelta{KeyHeads: 2, Heads: 6, KeyDim: 8, ValueDim: 4},
			[]nn.FeedForward{nn.GLU{Inner: 26}, experts(12, 8, 5, 2)}},
	} {
		m := mustBuild(t, variant, nil)
		if len(m.Blocks) != len(want.mixers) || m.Head.Norm.Offset != 1 {
			t.Fatalf("%s: %d blocks; the head's norm is %+v", variant, len(m.Blocks), m.Head.Norm)
		}
		for l, b := range m.Blocks {
			feed := want.feeds[l%len(want.feeds)]
			if variant == "qwen3_next" && l == 3 {
				feed = want.feeds[0]
			}
			if !reflect.DeepEqual(b.FeedForward, feed) || b.Norm.Offset != 1 {
				t.Errorf("%s: block %d has %+v, norms %+v", variant, l, b.FeedForward, b.Norm)
			}
			if want.mixers[l] == 'D' {
				if b.Mixer != nn.Mixer(want.delta) {
					t.Errorf("%s: the mixer of block %d is %+v", variant, l, b.Mixer)
				}
				continue
			}
			a := attention(m, l)
			if !a.Gated || !a.QKNorm || a.QKVBias != (variant == "qwen3_5_text") || a.Rope.Rotated != a.HeadDim/4 ||
				a.Rope.Theta != 1e5 {
				t.Errorf("%s: the mixer of block %d is %+v", variant, l, a)
			}
		}
	}
}

// What these configurations must not say, and what they may.
func TestHybridConfig(t *testing.T) {
	for _, c := range []struct {
		variant string
		set     map[string]any
		says    string // "" if it is to be read
	}{
		{"qwen3_5", map[string]any{"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
			"attn_output_gate": true, "output_gate_type": "swish", "mamba_ssm_dtype": "float32",
			"full_attention_interval": 4, "mlp_only_layers": []int{}, "partial_rotary_factor": 0.25}, ""},
		{"qwen3_5", map[string]any{"layer_types": absent}, ""},
		{"qwen3_5_moe", map[string]any{"intermediate_size": 44}, ""},
		{"qwen3_5", map[string]any{"intermediate_size": absent}, `intermediate_size" is missing: a positive`},
		{"qwen3_5", map[string]any{"attn_output_gate": false}, `attn_output_gate" is false: supported is true`},
		{"qwen3_5", map[string]any{"output_gate_type": "sigmoid"}, `"text_config.output_gate_type" is "sigmoid"`},
		{"qwen3_5", map[string]any{"mamba_ssm_dtype": "bfloat16"}, `supported is "float32"`},
		{"qwen3_5", map[string]any{"linear_conv_kernel_dim": 3}, `supported is 4`},
		{"qwen3_5", map[string]any{"linear_num_key_heads": 2}, `it does not divide "linear_num_value_heads" (3)`},
		{"qwen3_5", map[string]any{"linear_key_head_dim": 1 << 19}, `keys that are together wider than 262144`},
		{"qwen3_5", map[string]any{"linear_value_head_dim": 1 << 17}, `values that are together wider than 262144`},
		{"qwen3_5", map[string]any{"linear_value_head_dim": 1 << 10, "linear_key_head_dim": 1 << 10},
			`states of more than`},
		{"qwen3_5", map[string]any{"linear_num_value_heads": -1}, `a positive whole number is expected`},
		{"qwen3_5", map[string]any{"layer_types": []string{"full_attention"}}, `it has 1 entries`},
		{"qwen3_5", map[string]any{"layer_types": []string{"full_attention", "linear_attention", "sliding_attention",
			"full_attention"}}, `layer 2 has "sliding_attention"`},
		{"qwen3_5", map[string]any{"vision_tower": 1}, `"text_config.vision_tower" is not supported`},
		{"qwen3_5_moe", map[string]any{"mlp_only_layers": []int{1}}, `every layer has experts`},
		{"qwen3_5_moe", map[string]any{"norm_topk_prob": false}, `supported is true`},
		{"qwen3_5_moe", map[string]any{"shared_expert_intermediate_size": 0}, `a positive whole number is expected`},
		{"qwen3_next", map[string]any{"norm_topk_prob": false}, ""},
	} {
		_, err := build(t, c.variant, c.set)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s with %v: %v", c.variant, c.set, err)
		}
	}
}

// A new model begins as transformers begins it: norms multiply by 1, and heads forget at rates from 0.01 to 16.
func TestHybridBegins(t *testing.T) {
	m := mustBuild(t, "qwen3_5_moe", nil)
	for i := range m.Parts {
		p := &m.Parts[i]
		v := newValues(p, false)
		m.InitPart(1, p, v)
		for _, f := range p.Layout.Fields {
			if len(f.Shape) == 2 {
				continue
			}
			x := v.F32[f.First:][:f.Elems]
			want := float32(0) // 1 is added
			switch f.Name {
			case "delta.a_log":
				if x[0] == x[1] || slices.Min(x) < float32(math.Log(0.01)) || slices.Max(x) > float32(math.Log(16)) {
					t.Errorf("%s: rates %v", p.Name, x)
				}
				continue
			case "delta.norm.weight", "delta.dt_bias":
				want = 1
			}
			if !slices.Equal(x, slices.Repeat([]float32{want}, len(x))) {
				t.Errorf("%s: %s begins with %v", p.Name, f.Name, x[0])
			}
		}
	}
}

// By hand, where rows of a field are in the tensors of checkpoints.
func TestHybridCuts(t *testing.T) {
	for _, c := range []struct {
		variant, part, field string
		row                  int
		name                 string
		at                   int // a row there
	}{
		// Heads of 8 columns, of which 2 are rotated: 0 of the first half, 2, 3, 4 of the rest, then 1, and 5 to 7. A
		// head of q_proj has 8 rows of the query and 8 of the gate.
		{"qwen3_5", "block.3", "q.weight", 0, "self_attn.q_proj.weight", 0},
		{"qwen3_5", "block.3", "q.weight", 1, "self_attn.q_proj.weight", 2},
		{"qwen3_5", "block.3", "q.weight", 8 + 4, "self_attn.q_proj.weight", 16 + 1},
		{"qwen3_5", "block.3", "q.weight", 3*8 + 7, "self_attn.q_proj.weight", 3*16 + 7},
		{"qwen3_5", "block.3", "q_gate.weight", 0, "self_attn.q_proj.weight", 8},
		{"qwen3_5", "block.3", "q_gate.weight", 2*8 + 5, "self_attn.q_proj.weight", 2*16 + 8 + 5},
		{"qwen3_5", "block.3", "k.weight", 8 + 4, "self_attn.k_proj.weight", 8 + 1},
		{"qwen3_5", "block.3", "q_norm.weight", 1, "self_attn.q_norm.weight", 2},
		{"qwen3_5", "block.0", "delta.k.weight", 3, "linear_attn.in_proj_qkv.weight", 8 + 3},
		{"qwen3_5", "block.0", "delta.v.weight", 17, "linear_attn.in_proj_qkv.weight", 16 + 17},
		{"qwen3_5", "block.0", "delta.b.weight", 2, "linear_attn.in_proj_b.weight", 2},
		{"qwen3_5", "block.0", "delta.conv.weight", 33, "linear_attn.conv1d.weight", 33},
		{"qwen3_5", "block.0", "delta.a_log", 1, "linear_attn.A_log", 1},
		// The biases of the gated attention are cut as its weights: heads of 16, of which 4 are rotated.
		{"qwen3_5_text", "block.1", "q.bias", 16 + 3, "self_attn.q_proj.bias", 32 + 5},
		{"qwen3_5_text", "block.1", "q_gate.bias", 16 + 3, "self_attn.q_proj.bias", 32 + 16 + 3},
		// Two key heads, each with a query and a key of 8, values of 3 heads of 4, and as many columns of z.
		{"qwen3_next", "block.0", "delta.q.weight", 9, "linear_attn.in_proj_qkvz.weight", 40 + 1},
		{"qwen3_next", "block.0", "delta.k.weight", 9, "linear_attn.in_proj_qkvz.weight", 40 + 8 + 1},
		{"qwen3_next", "block.0", "delta.v.weight", 11, "linear_attn.in_proj_qkvz.weight", 16 + 11},
		{"qwen3_next", "block.0", "delta.v.weight", 12, "linear_attn.in_proj_qkvz.weight", 40 + 16},
		{"qwen3_next", "block.0", "delta.z.weight", 23, "linear_attn.in_proj_qkvz.weight", 40 + 28 + 11},
		{"qwen3_next", "block.0", "delta.b.weight", 4, "linear_attn.in_proj_ba.weight", 6 + 1},
		{"qwen3_next", "block.0", "delta.a.weight", 2, "linear_attn.in_proj_ba.weight", 3 + 2},
		// Stacked experts: gate, then up.
		{"qwen3_5_moe", "block.1.group.0", "experts.4.up.weight", 3, "mlp.experts.gate_up_proj", 4*20 + 10 + 3},
		{"qwen3_5_moe", "block.1.group.0", "experts.5.down.weight", 21, "mlp.experts.down_proj", 5*22 + 21},
	} {
		g := modeltest.Load(t, c.variant)
		m, err := model.Read(g.Dir)
		check(t, err)
		w, err := hf.OpenWeights(g.Dir)
		check(t, err)
		p := &m.Parts[slices.IndexFunc(m.Parts, func(p model.Part) bool { return p.Name == c.part })]
		v := newValues(p, false)
		check(t, m.ReadPart(w, p, v))
		f := p.Layout.Fields[slices.IndexFunc(p.Layout.Fields, func(f tensor.Placed) bool { return f.Name == c.field })]
		cols := 1
		if len(f.Shape) == 2 {
			cols = f.Shape[1]
		}
		got, want := make([]float32, cols), make([]float32, cols)
		v.Elems(&f, int64(c.row*cols), got)
		prefix := "model.layers."
		if strings.HasPrefix(m.Tensors()[0].Name, "model.language_model.") {
			prefix = "model.language_model.layers."
		}
		check(t, w.ReadF32(prefix+fmt.Sprint(p.Layer-1)+"."+c.name, want, int64(c.at*cols)))
		check(t, w.Close())
		if !slices.Equal(got, want) {
			t.Errorf("%s: row %d of %s is not row %d of %s", c.variant, c.row, c.field, c.at, c.name)
		}
	}
}

// The vision tower and the layer of multi-token prediction are carried, and other tensors are not.
func TestHybridCarries(t *testing.T) {
	g := modeltest.Load(t, "qwen3_5_moe")
	m, err := model.Read(g.Dir)
	check(t, err)
	w, err := hf.OpenWeights(g.Dir)
	check(t, err)
	defer w.Close()
	check(t, m.Check(t.Context(), w))
	count := map[string]int{}
	for _, c := range m.Carried(w) {
		count[c.Pattern] = len(c.Names)
	}
	if want := map[string]int{"model.visual.*": 21, "mtp.*": 2}; !reflect.DeepEqual(count, want) {
		t.Errorf("carried are %v, want %v", count, want)
	}
	dir := t.TempDir()
	f, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"), []hf.TensorSpec{{Name: "model.audio.x",
		DType: tensor.BF16, Shape: tensor.Shape{0}}})
	check(t, err)
	check(t, f.Commit())
	other, err := hf.OpenWeights(dir)
	check(t, err)
	defer other.Close()
	if c := m.Carried(other); len(c) != 0 {
		t.Errorf("carried are %v", c)
	}
}

var packs = flag.Int("packs", 3, "packs of each model in TestPackedDocumentsAreAlone; 200 for a long run")

// A document has the gradients that it has alone, whatever documents are packed with it, within 1e-6: neither the
// convolution nor the state of a delta net goes from one to the next.
func TestPackedDocumentsAreAlone(t *testing.T) {
	for _, variant := range modeltest.DeltaVariants(t) {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			g := modeltest.Load(t, variant)
			r := newReference(t, g.Dir, tensor.F32, isa.Best())
			rnd := rand.New(rand.NewPCG(5, 6))
			var worst, worstTensor float64
			for range *packs {
				var lengths []int
				rows := 0
				for range 2 + rnd.IntN(4) {
					lengths = append(lengths, 2+rnd.IntN([]int{3, 9, 80}[rnd.IntN(3)]))
					rows += lengths[len(lengths)-1]
				}
				pack := batch.New(rows)
				sum := map[string][]float32{}
				var alone []batch.Micro
				for first, i := 0, 0; i < len(lengths); i++ {
					tokens := make([]int32, lengths[i])
					doc := batch.New(len(tokens))
					for j := range tokens {
						tokens[j] = int32(rnd.IntN(g.Vocab))
						doc.Targets[j] = int32(rnd.IntN(g.Vocab))
					}
					copy(pack.Targets[first:], doc.Targets)
					pack.SetDocument(first, tokens)
					doc.SetDocument(0, tokens)
					alone, first = append(alone, doc), first+len(tokens)
				}
				for _, doc := range alone {
					r.run(modeltest.Batch{doc}, nn.KeepInput)
					share := float32(len(doc.IDs)) / float32(rows)
					for _, out := range r.m.Tensors() {
						if sum[out.Name] == nil {
							sum[out.Name] = make([]float32, out.Shape.Elems())
						}
						for i, x := range r.gradient(out) {
							sum[out.Name][i] += share * x
						}
					}
				}
				r.run(modeltest.Batch{pack}, nn.KeepInput)
				// Of A_log and dt_bias it is a sum of numbers that are larger than itself.
				var all, want []float32
				for _, out := range r.m.Tensors() {
					got := r.gradient(out)
					d := modeltest.RelDiff(got, sum[out.Name])
					if worstTensor = max(worstTensor, d); !(d <= 1e-4) {
						t.Errorf("documents of %v: %s: the gradient differs by %.2g of its norm", lengths, out.Name, d)
					}
					all, want = append(all, got...), append(want, sum[out.Name]...)
				}
				d := modeltest.RelDiff(all, want)
				if worst = max(worst, d); !(d <= 1e-6) {
					t.Errorf("documents of %v: the gradient differs by %.2g of its norm", lengths, d)
				}
			}
			t.Logf("gradients within %.2g of their norm, those of one tensor within %.2g", worst, worstTensor)
		})
	}
}

// TestValueHeadsInGGUF: llama.cpp has the first value head of each key head, then the second of each, and so on, in all
// tensors of a gated delta net; and no other order of queries and keys.
func TestValueHeadsInGGUF(t *testing.T) {
	c, err := hf.ParseConfig("config.json", []byte(`{"model_type": "qwen3_5_text", "hidden_size": 8,
		"intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
		"vocab_size": 5, "max_position_embeddings": 16, "head_dim": 8, "layer_types": ["linear_attention"],
		"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 2, "linear_value_head_dim": 2}`))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	form, err := m.GGUF()
	if err != nil {
		t.Fatal(err)
	}
	heads := []int{0, 3, 1, 4, 2, 5}
	var rows, channels []int // of values, and of what the convolution sees
	for i := range 8 {
		channels = append(channels, i)
	}
	for _, h := range heads {
		rows = append(rows, 2*h, 2*h+1)
		channels = append(channels, 8+2*h, 8+2*h+1)
	}
	for name, want := range map[string]struct {
		shape tensor.Shape
		order []int // the rows of the field, or with columns its columns
	}{
		"ssm_alpha.weight": {tensor.Shape{6, 8}, heads}, "ssm_beta.weight": {tensor.Shape{6, 8}, heads},
		"ssm_dt.bias": {tensor.Shape{6}, heads}, "attn_gate.weight": {tensor.Shape{12, 8}, rows},
		"ssm_conv1d.weight": {tensor.Shape{20, 4}, channels}, "ssm_out.weight": {tensor.Shape{8, 12}, rows},
	} {
		i := slices.IndexFunc(form.Tensors, func(x model.Tensor) bool { return x.Name == "blk.0."+name })
		if i < 0 || !form.Tensors[i].Shape.Equal(want.shape) {
			t.Fatalf("%s is %+v", name, form.Tensors)
		}
		got := make([]float32, want.shape.Elems())
		err := form.Tensors[i].Read(got, 0, func(_, _ int, dst []float32, first int64) error {
			for i := range dst {
				dst[i] = float32(first) + float32(i)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		cols := 1
		if len(want.shape) == 2 {
			cols = want.shape[1]
		}
		for i, x := range got {
			expected := want.order[i/cols%len(want.order)]*cols + i%cols
			if name == "ssm_out.weight" {
				expected = i/cols*cols + want.order[i%cols]
			}
			if x != float32(expected) {
				t.Fatalf("%s: element %d is element %v of the field, want %d", name, i, x, expected)
			}
		}
	}
}
