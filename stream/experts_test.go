package stream_test

import (
	"context"
	"math"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/stream"
)

// mixtures is a family of blocks with experts, in parts of that many, in turn with dense ones.
func mixtures(perPart int) model.Family {
	return model.Family{ModelType: "mixtures", Names: append(model.Names{
		{Role: "router.*", HF: "model.layers.{layer}.mlp.router.*"},
		{Role: "shared.gate.*", HF: "model.layers.{layer}.mlp.shared.gate_proj.*"},
		{Role: "shared.up.*", HF: "model.layers.{layer}.mlp.shared.up_proj.*"},
		{Role: "shared.down.*", HF: "model.layers.{layer}.mlp.shared.down_proj.*"},
		{Role: "expert.gate.weight", HF: "model.layers.{layer}.mlp.experts.gate_up", CutHF: model.Interleaved | model.Transposed | model.Stacked},
		{Role: "expert.up.weight", HF: "model.layers.{layer}.mlp.experts.gate_up", CutHF: model.Interleaved | model.Transposed | model.Stacked},
		{Role: "expert.gate.bias", HF: "model.layers.{layer}.mlp.experts.gate_up_bias", CutHF: model.Interleaved | model.Stacked},
		{Role: "expert.up.bias", HF: "model.layers.{layer}.mlp.experts.gate_up_bias", CutHF: model.Interleaved | model.Stacked},
		{Role: "expert.down.*", HF: "model.layers.{layer}.mlp.experts.{expert}.down_proj.*"},
	}, model.Llama...), Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
		s.Attention.KVHeads = r.Size("num_key_value_heads")
		s.HeadDim(r)
		s.Rotary(r)
		plain := nn.Experts{Inner: 6, Number: 7, PerPart: perPart, Route: device.RouteSpec{TopK: 2, Renormalize: true, Scale: 1}}
		all := nn.Experts{Inner: 5, Number: 5, PerPart: perPart, Shared: 9, Bias: true, RouterBias: true,
			Route: device.RouteSpec{TopK: 3, Sigmoid: true, Scale: 1.5}, Activation: device.GLUSpec{Alpha: 1.7, Limit: 0.5}}
		for l := range s.Layers {
			s.FeedForwards = append(s.FeedForwards, []nn.FeedForward{all, plain, s.GLU}[l%3])
		}
	}}
}

// The law of placements holds for experts.
func TestExperts(t *testing.T) { layersLaw(t, mixtures(2), 4) }

// How many experts a part has changes no weight.
func TestExpertsOfAPart(t *testing.T) {
	const steps = 3
	for _, bf16 := range []bool{false, true} {
		var want map[string][]float32
		for _, perPart := range []int{7, 1, 3} {
			s := tiny
			s.Layers, s.Micro, s.BF16, s.families = 3, 3, bf16, []model.Family{mixtures(perPart)}
			s.Type = s.families[0].ModelType
			sub := s.subject(t, steps)
			r := start(t, sub, setup{change: streamed(2)})
			train(t, r, sub, steps)
			view := stream.Viewer(r.plan, r.store)
			got := map[string][]float32{}
			for _, of := range sub.model.Tensors() {
				var err error
				got[of.Name], err = sub.model.ReadTensor(of.Name, func(part int) (model.Values, error) {
					return view(context.Background(), part)
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			r.close(t)
			if want == nil {
				want = got
			}
			for name, x := range want {
				for i := range x {
					if math.Float32bits(x[i]) != math.Float32bits(got[name][i]) {
						t.Errorf("bf16 %v, parts of %d: element %d of %s is %g, with all experts in a part %g", bf16, perPart, i,
							name, got[name][i], x[i])
						break
					}
				}
			}
		}
	}
}
