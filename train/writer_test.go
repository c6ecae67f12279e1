package train

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/source"
)

// inParts is a family with the names of gpt-oss, and that many experts in a part.
func inParts(perPart int) model.Family {
	const experts, transposed = "model.layers.{layer}.mlp.experts.", model.Transposed | model.Stacked
	names := append(slices.Clone(model.Llama), model.Names{
		{Role: "router.*", HF: "model.layers.{layer}.mlp.router.*", GGUF: "blk.{layer}.ffn_gate_inp.*"},
		{Role: "expert.gate.weight", HF: experts + "gate_up_proj", CutHF: model.Interleaved | transposed,
			GGUF: "blk.{layer}.ffn_gate_exps.weight", CutGGUF: model.Stacked},
		{Role: "expert.up.weight", HF: experts + "gate_up_proj", CutHF: model.Interleaved | transposed,
			GGUF: "blk.{layer}.ffn_up_exps.weight", CutGGUF: model.Stacked},
		{Role: "expert.gate.bias", HF: experts + "gate_up_proj_bias", CutHF: model.Interleaved | model.Stacked,
			GGUF: "blk.{layer}.ffn_gate_exps.bias", CutGGUF: model.Stacked},
		{Role: "expert.up.bias", HF: experts + "gate_up_proj_bias", CutHF: model.Interleaved | model.Stacked,
			GGUF: "blk.{layer}.ffn_up_exps.bias", CutGGUF: model.Stacked},
		{Role: "expert.down.weight", HF: experts + "down_proj", CutHF: transposed,
			GGUF: "blk.{layer}.ffn_down_exps.weight", CutGGUF: model.Stacked},
		{Role: "expert.down.bias", HF: experts + "down_proj_bias", CutHF: model.Stacked,
			GGUF: "blk.{layer}.ffn_down_exps.bias", CutGGUF: model.Stacked},
	}...)
	return model.Family{ModelType: "in_parts", Names: names, Architecture: "llama",
		MXFP4: []string{"model.layers.*.mlp.experts.gate_up_proj", "model.layers.*.mlp.experts.down_proj"},
		Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
			s.Attention.KVHeads = r.Size("num_key_value_heads")
			s.HeadDim(r)
			s.Rotary(r)
			x := nn.Experts{Inner: s.GLU.Inner, Number: 5, PerPart: perPart, Bias: true, RouterBias: true,
				Route: device.RouteSpec{TopK: 2, Renormalize: true, Scale: 1}}
			s.FeedForwards = slices.Repeat([]nn.FeedForward{x}, s.Layers)
		}}
}

// TestExportReadsPartsOnce: each part is read once, though stacked experts come from many parts, and how many of them a
// part has changes no byte, with tensors in one file or in many.
func TestExportReadsPartsOnce(t *testing.T) {
	keys := maps.Clone(ossConfig)
	delete(keys, "quantization_config")
	keys["model_type"], keys["num_local_experts"] = "in_parts", nil
	for _, key := range []string{"num_local_experts", "num_experts_per_tok", "sliding_window"} {
		delete(keys, key)
	}
	dir := writeConfig(t, keys)
	config, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	first := map[string]map[string]string{}
	for _, perPart := range []int{5, 2, 1} {
		m, err := model.New(config, inParts(perPart))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(m.GroupParts[0]), (4+perPart)/perPart; got != want {
			t.Fatalf("%d parts of experts, want %d", got, want)
		}
		env, src := newEnv(t), &source.Source{Dir: dir, Config: config, Model: m}
		reads := map[int]int{}
		read := func(_ context.Context, part int) (v model.Values, err error) {
			reads[part]++
			p := &m.Parts[part]
			v.F32 = make([]float32, p.Layout.WeightElems)
			m.InitPart(3, p, v)
			return v, nil
		}
		for _, as := range []export.Format{{DType: tensor.F32}, {DType: tensor.BF16}, {DType: tensor.BF16, MXFP4: true}} {
			for _, shard := range []int64{0, 1 << 10} {
				clear(reads)
				out := filepath.Join(t.TempDir(), "out")
				o := hf.WriteOptions{ShardBytes: shard}
				if err := export.Write(t.Context(), env, src, out, as, nil, o, read); err != nil {
					t.Fatal(err)
				}
				name := fmt.Sprintf("%v %v", as, shard)
				for part := range m.Parts {
					if reads[part] != 1 {
						t.Errorf("%s, %d in a part: part %s was read %d times", name, perPart, m.Parts[part].Name,
							reads[part])
					}
				}
				if got := tensorsOf(t, out); first[name] == nil {
					first[name] = got
				} else if !maps.Equal(got, first[name]) {
					t.Errorf("%s: %d experts in a part give other tensors", name, perPart)
				}
			}
		}
	}
}
