package gguf

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// What files say of gated delta nets. Each layer has one, or attention.
const (
	deltaTaps     = "ssm.conv_kernel"
	deltaWidth    = "ssm.state_size" // of a key, and of a value
	deltaKeyHeads = "ssm.group_count"
	deltaHeads    = "ssm.time_step_rank"
	deltaInner    = "ssm.inner_size" // of all values
	fullInterval  = "full_attention_interval"
	recurrent     = "attention.recurrent_layers"
	sharedInner   = "expert_shared_feed_forward_length"
)

var (
	deltaKeys = []string{deltaTaps, deltaWidth, deltaKeyHeads, deltaHeads, deltaInner, fullInterval, recurrent,
		sections, nextLayers}
	deltaMoEKeys = slices.Concat(deltaKeys, []string{"expert_count", "expert_used_count", expertInner, sharedInner})
)

// deltaArchitectures are Qwen3-Next and Qwen 3.5. The weights of their norms are the model's plus 1 (model.PlusOne),
// and value heads of the latter are in another order (model.Tiled).
var deltaArchitectures = []*architecture{
	{name: "qwen35", dense: "qwen3_5_text", keys: deltaKeys, partlyRotated: true, refuse: refuseDelta,
		write: writeQwen35, read: readDelta, config: configDelta},
	{name: "qwen35moe", mixture: "qwen3_5_moe_text", inner: expertInner, keys: deltaMoEKeys, partlyRotated: true,
		refuse: refuseDelta, write: writeQwen35, read: readDelta, config: configDelta},
	{name: "qwen3next", mixture: "qwen3_next", inner: expertInner, keys: deltaMoEKeys, partlyRotated: true,
		refuse: refuseDelta, write: writeDelta, read: readDelta, config: configDelta},
}

// deltaEps is added to the squares of queries and keys before they are divided by their root; llama.cpp adds the number
// of all norms.
const deltaEps = 1e-6

// delta is the first gated delta net of the model.
func (m *decoder) delta() (d nn.GatedDelta, ok bool) {
	for _, b := range m.Blocks {
		if d, ok = b.Mixer.(nn.GatedDelta); ok {
			return d, true
		}
	}
	return d, false
}

// refuseDelta refuses what llama.cpp has not. Source: its src/models/qwen35.cpp, qwen35moe.cpp and qwen3next.cpp.
func refuseDelta(m *decoder, r *hf.ConfigReader) {
	refuseOtherBiases(m, r)
	switch d, ok := m.delta(); {
	case !ok || m.Heads == 0:
		r.Fail("layer_types", "llama.cpp needs layers of both kinds for %s: use the Hugging Face directory",
			m.arch.name)
	case d.KeyDim != d.ValueDim:
		r.Fail("linear_value_head_dim", "in llama.cpp it is \"linear_key_head_dim\": use the Hugging Face directory")
	case m.Head.Norm.Eps != float32(deltaEps):
		r.Fail("rms_norm_eps", "llama.cpp takes it for queries and keys of linear attention, too, where the model has "+
			"%g: use the Hugging Face directory", deltaEps)
	}
	if m.experts != nil {
		refuseQwen3MoE(m, r)
	}
}

func writeDelta(m *decoder, add func(key string, value any)) {
	d, _ := m.delta()
	add(deltaTaps, uint32(nn.DeltaTaps))
	add(deltaWidth, uint32(d.KeyDim))
	add(deltaKeyHeads, uint32(d.KeyHeads))
	add(deltaHeads, uint32(d.Heads))
	add(deltaInner, uint32(d.Heads*d.ValueDim))
	layers := make([]bool, len(m.Blocks))
	for l, b := range m.Blocks {
		_, layers[l] = b.Mixer.(nn.GatedDelta)
	}
	add(recurrent, layers)
	add(fullInterval, uint32(decoderKeys(m.config).SizeOr("full_attention_interval", defaultInterval)))
	writeRotated(m, add)
	if m.experts != nil {
		writeInner(m, add)
		add(sharedInner, uint32(m.experts.Shared))
	}
}

// defaultInterval: one of n layers has attention, where nothing else is said.
const defaultInterval = 4

func writeQwen35(m *decoder, add func(key string, value any)) {
	writeDelta(m, add)
	writeSections(11, 11, 10)(m, add)
}

func readDelta(g *header, m *stated) error {
	arch := m.arch.name + "."
	all := m.layers
	if err := g.nextLayers(m); err != nil {
		return err
	}
	var d nn.GatedDelta
	var inner, taps int
	for _, s := range []struct {
		key string
		to  *int
	}{{deltaTaps, &taps}, {deltaWidth, &d.KeyDim}, {deltaKeyHeads, &d.KeyHeads}, {deltaHeads, &d.Heads},
		{deltaInner, &inner}} {
		n, err := g.size(arch + s.key)
		if err != nil {
			return err
		}
		*s.to = n
	}
	if int64(d.Heads)*int64(d.KeyDim) != int64(inner) {
		return fmt.Errorf("metadata %s is %d: that many heads of width %d are not %d wide", arch+deltaHeads, d.Heads,
			d.KeyDim, inner)
	}
	types := slices.Repeat([]string{"linear_attention"}, m.layers)
	every, _, err := g.integer(arch + fullInterval)
	if err != nil {
		return err
	}
	if every = cmp.Or(every, defaultInterval); every < 0 {
		return fmt.Errorf("metadata %s is negative", arch+fullInterval)
	}
	isDelta := func(l int) bool { return int64(l+1)%every != 0 }
	if g.has(arch + recurrent) {
		flags, err := g.flags(arch+recurrent, all)
		if err != nil {
			return err
		}
		isDelta = func(l int) bool { return flags[l] }
	}
	for l := range types {
		if !isDelta(l) {
			types[l] = "full_attention"
		}
	}
	for key, value := range map[string]any{"layer_types": types, "linear_conv_kernel_dim": taps,
		"linear_key_head_dim": d.KeyDim, "linear_value_head_dim": d.KeyDim, "linear_num_key_heads": d.KeyHeads,
		"linear_num_value_heads": d.Heads} {
		m.also[key] = value
	}
	if m.arch.mixture == "" {
		return nil
	}
	shared, err := g.size(arch + sharedInner)
	m.also["shared_expert_intermediate_size"] = shared
	return err
}

func configDelta(m *stated) map[string]any {
	keys := map[string]any{"attention_bias": false, "partial_rotary_factor": rotaryFactor(m.rope.Rotated, m.headDim)}
	if m.arch.mixture != "" {
		keys["num_experts"], keys["moe_intermediate_size"] = m.experts, m.expertInner
	}
	if m.arch.mixture == "qwen3_next" {
		keys["norm_topk_prob"], keys["decoder_sparse_step"], keys["mlp_only_layers"] = true, 1, []int{}
	}
	return keys
}
