package gguf

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/hf"
)

// How the mixtures of GLM and DeepSeek choose experts. What turns logits into scores is a number (llama.cpp:
// LLAMA_EXPERT_GATING_FUNC_TYPE_...).
const (
	gatingKey     = "expert_gating_func"
	gatingSoftmax = 1
	gatingSigmoid = 2
)

var routingKeys = []string{"expert_count", "expert_used_count", expertInner, "expert_shared_count",
	"leading_dense_block_count", gatingKey, "expert_weights_scale", "expert_weights_norm", "expert_group_count",
	"expert_group_used_count", nextLayers}

// routing holds what a file states of how rows choose experts.
type routing struct {
	shared, dense      int // experts that all rows use; layers without experts, which come first
	groups, usedGroups int // 0: not stated
	gating             int
	normalize          bool
	scale              float64
}

// refuseRouting refuses what llama.cpp has not. Source: its src/models/glm4-moe.cpp and deepseek2.cpp, where every
// layer with experts has shared ones, and its llama-model.cpp (load_hparams), where groups are fewer than experts and
// those of a token fewer than all.
func refuseRouting(m *decoder, r *hf.ConfigReader) {
	switch x := m.experts; {
	case x == nil:
		r.Fail("first_k_dense_replace", "no layer has experts, and llama.cpp needs them for %s: "+
			"use the Hugging Face directory", m.arch.name)
	case x.Shared == 0:
		r.Fail("n_shared_experts", "llama.cpp needs one for %s: use the Hugging Face directory", m.arch.name)
	case x.Number <= max(x.Route.Groups, 1):
		r.Fail("n_routed_experts", "llama.cpp needs more experts than groups: use the Hugging Face directory")
	case x.Route.Groups > 1 && x.Route.TopGroups == x.Route.Groups:
		r.Fail("topk_group", "llama.cpp needs it below \"n_group\"; as no group is left out, write 1 for both")
	}
}

func writeGroups(m *decoder, add func(key string, value any)) {
	if route := m.experts.Route; route.Groups > 0 {
		add("expert_group_count", uint32(route.Groups))
		add("expert_group_used_count", uint32(route.TopGroups))
	}
}

func writeRouting(m *decoder, add func(key string, value any)) {
	writeInner(m, add)
	x := m.experts
	gating := gatingSoftmax
	if x.Route.Sigmoid {
		gating = gatingSigmoid
	}
	add("expert_shared_count", uint32(x.Shared/x.Inner))
	add("leading_dense_block_count", uint32(m.dense))
	add(gatingKey, uint32(gating))
	add("expert_weights_scale", x.Route.Scale)
	add("expert_weights_norm", x.Route.Renormalize)
}

// nextLayers names the key that counts the layers which predict tokens after the next one.
const nextLayers = "nextn_predict_layers"

// nextLayers takes layers that predict tokens after the next one from the number of layers: block_count counts them,
// and transformers does not load them.
func (g *header) nextLayers(m *stated) error {
	key := m.arch.name + "." + nextLayers
	n, _, err := g.integer(key)
	if err == nil && (n < 0 || n >= int64(m.layers)) {
		err = fmt.Errorf("metadata %s is %d, of %d layers", key, n, m.layers)
	}
	m.nextToken = int(n)
	m.layers -= m.nextToken
	return err
}

// routing reads it, after the layers that predict further tokens. Defaults are those of llama.cpp; absent stands for an
// absent function of scores.
func (g *header) routing(m *stated, absent int, supported ...int) error {
	arch, to := m.arch.name+".", &m.routing
	for _, s := range []struct {
		key   string
		to    *int
		least int
	}{{"expert_shared_count", &to.shared, 1}, {"leading_dense_block_count", &to.dense, 0},
		{"expert_group_count", &to.groups, 0}, {"expert_group_used_count", &to.usedGroups, 0}} {
		n, _, err := g.integer(arch + s.key)
		if err != nil {
			return err
		}
		if n < int64(s.least) || n > maxSize {
			return fmt.Errorf("metadata %s is %d: %d or more is expected", arch+s.key, n, s.least)
		}
		*s.to = int(n)
	}
	if to.dense >= m.layers {
		return fmt.Errorf("metadata %sleading_dense_block_count is %d, of %d layers", arch, to.dense, m.layers)
	}
	gating, ok, err := g.integer(arch + gatingKey)
	if err != nil {
		return err
	}
	if !ok {
		gating = int64(absent)
	}
	if to.gating = int(gating); !slices.Contains(supported, to.gating) {
		return fmt.Errorf("metadata %s is %d: %d (softmax) and %d (sigmoid) are known, supported for %s is %v",
			arch+gatingKey, gating, gatingSoftmax, gatingSigmoid, m.arch.name, supported)
	}
	to.scale, ok, err = g.float(arch + "expert_weights_scale")
	if err != nil {
		return err
	}
	if !ok || to.scale == 0 { // llama.cpp takes 0 for none
		to.scale = 1
	}
	to.normalize, err = g.boolean(arch+"expert_weights_norm", false)
	return err
}

func (m *stated) routingConfig() map[string]any {
	keys := map[string]any{"n_routed_experts": m.experts, "n_shared_experts": m.routing.shared,
		"moe_intermediate_size": m.expertInner, "first_k_dense_replace": m.routing.dense,
		"norm_topk_prob": m.routing.normalize, "routed_scaling_factor": floatF32(m.routing.scale),
		"num_nextn_predict_layers": 0}
	if m.routing.groups > 0 {
		keys["n_group"], keys["topk_group"] = m.routing.groups, m.routing.usedGroups
	}
	return keys
}
