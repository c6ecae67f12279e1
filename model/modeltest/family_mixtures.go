package modeltest

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// Mixtures is a made-up family of blocks with experts, in parts of that many, in turn with dense ones. Every third
// block has a gated delta net.
func Mixtures(perPart int) model.Family {
	return model.Family{ModelType: "mixtures", Constants: "model.layers.{layer}.mlp.correction",
		Names: append(model.Names{
			{Role: "router.*", HF: "model.layers.{layer}.mlp.router.*"},
			{Role: "shared.gate.*", HF: "model.layers.{layer}.mlp.shared.gate_proj.*"},
			{Role: "shared.up.*", HF: "model.layers.{layer}.mlp.shared.up_proj.*"},
			{Role: "shared.down.*", HF: "model.layers.{layer}.mlp.shared.down_proj.*"},
			{Role: "shared_gate.*", HF: "model.layers.{layer}.mlp.shared_gate.*"},
			{Role: "delta.q.*", HF: "model.layers.{layer}.delta.qkvz.*", CutHF: model.ByHead},
			{Role: "delta.k.*", HF: "model.layers.{layer}.delta.qkvz.*", CutHF: model.ByHead},
			{Role: "delta.v.*", HF: "model.layers.{layer}.delta.qkvz.*", CutHF: model.ByHead},
			{Role: "delta.z.*", HF: "model.layers.{layer}.delta.qkvz.*", CutHF: model.ByHead},
			{Role: "delta.b.*", HF: "model.layers.{layer}.delta.b.*"},
			{Role: "delta.a.*", HF: "model.layers.{layer}.delta.a.*"},
			{Role: "delta.conv.*", HF: "model.layers.{layer}.delta.conv.*", CutHF: model.Filters},
			{Role: "delta.out.*", HF: "model.layers.{layer}.delta.out.*"},
			{Role: "delta.norm.*", HF: "model.layers.{layer}.delta.norm.*"},
			{Role: "delta.a_log", HF: "model.layers.{layer}.delta.A_log"},
			{Role: "delta.dt_bias", HF: "model.layers.{layer}.delta.dt_bias"},
			{Role: "expert.gate.weight", HF: "model.layers.{layer}.mlp.experts.gate_up",
				CutHF: model.Interleaved | model.Transposed | model.Stacked},
			{Role: "expert.up.weight", HF: "model.layers.{layer}.mlp.experts.gate_up",
				CutHF: model.Interleaved | model.Transposed | model.Stacked},
			{Role: "expert.gate.bias", HF: "model.layers.{layer}.mlp.experts.gate_up_bias",
				CutHF: model.Interleaved | model.Stacked},
			{Role: "expert.up.bias", HF: "model.layers.{layer}.mlp.experts.gate_up_bias",
				CutHF: model.Interleaved | model.Stacked},
			{Role: "expert.down.*", HF: "model.layers.{layer}.mlp.experts.{expert}.down_proj.*"},
		}, model.Llama...), Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
			s.Attention.KVHeads = r.Size("num_key_value_heads")
			s.HeadDim(r)
			s.Rotary(r)
			plain := nn.Experts{Inner: 6, Number: 7, PerPart: perPart,
				Route: device.RouteSpec{TopK: 2, Renormalize: true, Scale: 1}}
			s.Attention.Rope.Rotated = s.Attention.HeadDim / 4 * 2
			all := nn.Experts{Inner: 5, Number: 5, PerPart: perPart, Shared: 9, SharedGate: true, Bias: true,
				RouterBias: true, Correction: true,
				Route: device.RouteSpec{TopK: 3, Sigmoid: true, Scale: 1.5}, Activation: device.GLUSpec{Alpha: 1.7,
					Limit: 0.5}}
			for l := range s.Layers {
				s.FeedForwards = append(s.FeedForwards, []nn.FeedForward{all, plain, s.GLU}[l%3])
				s.Mixers = append(s.Mixers, []nn.Mixer{s.Attention, nn.GatedDelta{KeyHeads: 1, Heads: 2, KeyDim: 3,
					ValueDim: 5}, s.Attention}[l%3])
			}
		}}
}

// Balanced is a family of mixtures with a load-balancing loss. Their blocks with experts have seven each.
func Balanced(f model.Family) model.Family {
	f.ModelType = "balanced " + f.ModelType
	read := f.Read
	f.Read = func(c *hf.Config, r *hf.ConfigReader, s *model.Spec) {
		read(c, r, s)
		blocks := 0
		for _, feed := range s.FeedForwards {
			if _, ok := feed.(nn.Experts); ok {
				blocks++
			}
		}
		for l, feed := range s.FeedForwards {
			if x, ok := feed.(nn.Experts); ok {
				x.Number, x.Balance = 7, nn.Balance{Weight: 0.3, Blocks: blocks}
				s.FeedForwards[l] = x
			}
		}
	}
	return f
}

// WithDense is a made-up family with experts next to a dense feed-forward in two layers of three, and attention with a
// GLU in the others.
func WithDense(perPart int) model.Family {
	f := Mixtures(perPart)
	f.ModelType, f.Constants = "with dense", "model.layers.{layer}.scalar"
	for _, role := range []string{"router.scale", "router.factors", "shared_post_norm.*", "routed_norm.*",
		"routed_post_norm.*", "mixer_post_norm.*", "feed_post_norm.*"} {
		f.Names = append(f.Names, model.Name{Role: role, HF: "model.layers.{layer}.mlp." + role})
	}
	f.Read = func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
		s.Attention.KVHeads = r.Size("num_key_value_heads")
		s.HeadDim(r)
		s.Rotary(r)
		x := nn.WithDense{Experts: nn.Experts{Inner: 6, Number: 7, PerPart: perPart, Shared: 9,
			Route: device.RouteSpec{TopK: 2, Renormalize: true, Scale: 1}}}
		for l := range s.Layers {
			b := nn.Block{Rule: nn.Branches, Mixer: s.Attention, FeedForward: x, Scalar: true}
			if l%3 == 1 {
				b.Rule, b.FeedForward = nn.Sandwich, s.GLU
			}
			s.Blocks = append(s.Blocks, b)
		}
	}
	return f
}
