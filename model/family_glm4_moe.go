package model

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// glmMoE has the names of Qwen's mixtures, and an expert that all rows use. Heads are rotated in part.
var glmMoE = slices.Concat(qwenMoE.RecutHF(PartlyRotated, glmRotated...).Recut(PartlyRotated, glmRotated...).
	Renamed(normAfterAttention), glmShared)

// glmShared names the expert that all rows use.
var glmShared = Names{
	{Role: "shared.gate.*", HF: "model.layers.{layer}.mlp.shared_experts.gate_proj.*",
		GGUF: "blk.{layer}.ffn_gate_shexp.*"},
	{Role: "shared.up.*", HF: "model.layers.{layer}.mlp.shared_experts.up_proj.*",
		GGUF: "blk.{layer}.ffn_up_shexp.*"},
	{Role: "shared.down.*", HF: "model.layers.{layer}.mlp.shared_experts.down_proj.*",
		GGUF: "blk.{layer}.ffn_down_shexp.*"},
}

var glmRotated = []string{"q.*", "k.*", "q_norm.*", "k_norm.*"}

// glmCorrection has a number for each expert that balances how often experts are chosen.
const (
	glmCorrection       = "model.layers.{layer}.mlp.gate.e_score_correction_bias"
	glmCorrectionInGGUF = "blk.{layer}.exp_probs_b.bias"
)

// glmNextToken are the tensors of a layer after the last one, which predicts tokens after the next one for faster
// generation. transformers does not load it either.
var glmNextToken = []string{"model.layers.{next}.*"}

// maxNextTokens is more than any model has.
const maxNextTokens = 64

// readGLM4MoE reads the mixtures of GLM 4.5: dense layers first, heads that are rotated in part, and experts that are
// chosen from groups by a corrected sigmoid. Source: transformers, configuration_glm4_moe.py and modeling_glm4_moe.py.
func readGLM4MoE(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Attention.Rope = readPartialRope(r, s.Attention.HeadDim)
	s.Attention.QKVBias = r.Bool("attention_bias")
	s.Attention.QKNorm = r.Bool("use_qk_norm")
	s.denseFirst(r.Int("first_k_dense_replace"), s.correctedExperts(r))
}

// correctedExperts reads experts that are chosen from groups by a corrected sigmoid, and shared ones.
func (s *Spec) correctedExperts(r *hf.ConfigReader) nn.Experts {
	experts := s.sharedExperts(r)
	experts.Correction = true
	experts.Route = device.RouteSpec{TopK: r.Size("num_experts_per_tok"), Sigmoid: true,
		Renormalize: r.Bool("norm_topk_prob"), Scale: float32(r.Positive("routed_scaling_factor", 0)),
		Groups: r.Size("n_group"), TopGroups: r.Size("topk_group")}
	return experts
}

// sharedExperts reads experts without their routing, some of which all rows use.
func (s *Spec) sharedExperts(r *hf.ConfigReader) nn.Experts {
	s.nextTokens = r.IntOr(either(r, "num_nextn_predict_layers", "num_mtp_layers"), 0)
	r.Ignore("num_mtp_layers")
	if s.nextTokens < 0 || s.nextTokens > maxNextTokens {
		r.Fail("num_nextn_predict_layers", "0 to %d are supported", maxNextTokens)
	}
	r.Ignore("output_router_logits", "router_aux_loss_coef") // of a loss that a run asks for
	experts := nn.Experts{Inner: limited(r, "moe_intermediate_size", maxWidth),
		Number: limited(r, either(r, "n_routed_experts", "num_local_experts"), maxExperts)}
	shared := r.Int("n_shared_experts")
	switch {
	case r.Err() != nil:
		return experts
	case shared < 0:
		r.Fail("n_shared_experts", "it must not be negative")
	case shared > maxWidth/experts.Inner:
		r.Fail("n_shared_experts", "shared experts that are together wider than %d are not supported", maxWidth)
	}
	experts.Shared = shared * experts.Inner
	return experts
}

// denseFirst has a GLU in as many layers, and experts in those after them.
func (s *Spec) denseFirst(dense int, experts nn.Experts) {
	for l := range s.Layers {
		if l < dense {
			s.FeedForwards = append(s.FeedForwards, s.GLU)
		} else {
			s.FeedForwards = append(s.FeedForwards, experts)
		}
	}
}
