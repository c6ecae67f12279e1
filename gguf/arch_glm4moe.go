package gguf

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/millrace/millrace/hf"
)

// glmSigmoid says that a sigmoid scores the experts (llama.cpp: LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID).
const glmSigmoid = 2

var glmKeys = []string{"expert_count", "expert_used_count", expertInner, "expert_shared_count",
	"leading_dense_block_count", "expert_gating_func", "expert_weights_scale", "expert_weights_norm",
	"expert_group_count", "expert_group_used_count", nextLayers}

// nextLayers is how many layers predict tokens after the next one.
const nextLayers = "nextn_predict_layers"

// glmSpecial are tokens of GLM's chats: llama.cpp stops at the ends of a turn and of a message. Source: its converter
// (conversion/base.py, _set_vocab_glm).
var glmSpecial = []specialToken{{"bos", "[gMASK]"}, {"eot", "<|user|>"}, {"unknown", "<|endoftext|>"},
	{"eom", "<|observation|>"}}

// glm has what only files of glm4moe state.
type glm struct {
	shared, dense      int
	groups, usedGroups int // 0: not stated
	normalize          bool
	scale              float64
	qkNorm             bool
}

// refuseGLM refuses what llama.cpp has not. Source: its src/models/glm4-moe.cpp, where every layer with experts has
// shared ones, and its llama-model.cpp (load_hparams), where groups are fewer than experts and those of a token fewer
// than all.
func refuseGLM(m *decoder, r *hf.ConfigReader) {
	switch x := m.experts; {
	case x == nil:
		r.Fail("first_k_dense_replace", "no layer has experts, and llama.cpp needs them for glm4moe: "+
			"use the Hugging Face directory")
	case x.Shared == 0:
		r.Fail("n_shared_experts", "llama.cpp needs one for glm4moe: use the Hugging Face directory")
	case x.Number <= max(x.Route.Groups, 1):
		r.Fail("n_routed_experts", "llama.cpp needs more experts than groups: use the Hugging Face directory")
	case x.Route.Groups > 1 && x.Route.TopGroups == x.Route.Groups:
		r.Fail("topk_group", "llama.cpp needs it below \"n_group\"; as no group is left out, write 1 for both")
	}
}

func writeGLM(m *decoder, add func(key string, value any)) {
	x := m.experts
	if x.Route.Groups > 0 {
		add("expert_group_count", uint32(x.Route.Groups))
		add("expert_group_used_count", uint32(x.Route.TopGroups))
	}
	writeRotated(m, add)
	writeInner(m, add)
	add("expert_shared_count", uint32(x.Shared/x.Inner))
	add("leading_dense_block_count", uint32(m.dense))
	add("expert_gating_func", uint32(glmSigmoid))
	add("expert_weights_scale", x.Route.Scale)
	add("expert_weights_norm", x.Route.Renormalize)
}

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

// readGLM reads them. Defaults are those of llama.cpp.
func readGLM(g *header, m *stated) error {
	arch := m.arch.name + "."
	for _, s := range []struct {
		key   string
		to    *int
		least int
	}{{"expert_shared_count", &m.glm.shared, 1}, {"leading_dense_block_count", &m.glm.dense, 0},
		{"expert_group_count", &m.glm.groups, 0}, {"expert_group_used_count", &m.glm.usedGroups, 0}} {
		n, _, err := g.integer(arch + s.key)
		if err != nil {
			return err
		}
		if n < int64(s.least) || n > maxSize {
			return fmt.Errorf("metadata %s is %d: %d or more is expected", arch+s.key, n, s.least)
		}
		*s.to = int(n)
	}
	if err := g.nextLayers(m); err != nil {
		return err
	}
	if m.glm.dense >= m.layers {
		return fmt.Errorf("metadata %sleading_dense_block_count is %d, of %d layers", arch, m.glm.dense, m.layers)
	}
	gating, ok, err := g.integer(arch + "expert_gating_func")
	if err != nil {
		return err
	}
	if ok && gating != glmSigmoid {
		return fmt.Errorf("metadata %sexpert_gating_func is %d: %d (sigmoid) is supported", arch, gating, glmSigmoid)
	}
	m.glm.scale, ok, err = g.float(arch + "expert_weights_scale")
	if err != nil {
		return err
	}
	if !ok || m.glm.scale == 0 { // llama.cpp takes 0 for none
		m.glm.scale = 1
	}
	m.glm.qkNorm = g.hasTensor("blk.0.attn_q_norm.weight")
	m.glm.normalize, err = g.boolean(arch+"expert_weights_norm", false)
	return err
}

func configGLM(m *stated) map[string]any {
	keys := map[string]any{"attention_bias": m.attentionBias, "use_qk_norm": m.glm.qkNorm,
		"n_routed_experts": m.experts, "n_shared_experts": m.glm.shared, "moe_intermediate_size": m.expertInner,
		"first_k_dense_replace": m.glm.dense,
		"norm_topk_prob":        m.glm.normalize, "routed_scaling_factor": floatF32(m.glm.scale),
		"num_nextn_predict_layers": 0, "partial_rotary_factor": rotaryFactor(m.rope.Rotated, m.headDim)}
	if m.glm.groups > 0 {
		keys["n_group"], keys["topk_group"] = m.glm.groups, m.glm.usedGroups
	}
	return keys
}

// rotaryFactor is a factor by which readers get the number of columns of a head that are rotated, all for 0: they
// round the product down.
func rotaryFactor(rotated, headDim int) json.Number {
	if rotated == 0 {
		return "1.0"
	}
	factor := float64(rotated) / float64(headDim)
	if int(float64(headDim)*factor) < rotated {
		factor = math.Nextafter(factor, 1)
	}
	return json.Number(strconv.FormatFloat(factor, 'g', -1, 64))
}
