package gguf

import (
	"encoding/json"
	"math"
	"strconv"
)

// glmSpecial are tokens of GLM's chats: llama.cpp stops at the ends of a turn and of a message. Source: its converter
// (conversion/base.py, _set_vocab_glm).
var glmSpecial = []specialToken{{"bos", "[gMASK]"}, {"eot", "<|user|>"}, {"unknown", "<|endoftext|>"},
	{"eom", "<|observation|>"}}

func writeGLM(m *decoder, add func(key string, value any)) {
	writeGroups(m, add)
	writeRotated(m, add)
	writeRouting(m, add)
}

func readGLM(g *header, m *stated) error {
	m.also["use_qk_norm"] = g.hasTensor("blk.0.attn_q_norm.weight")
	if err := g.nextLayers(m); err != nil {
		return err
	}
	return g.routing(m, gatingSigmoid, gatingSigmoid)
}

func configGLM(m *stated) map[string]any {
	keys := m.routingConfig()
	keys["attention_bias"] = m.attentionBias
	keys["partial_rotary_factor"] = rotaryFactor(m.rope.Rotated, m.headDim)
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
