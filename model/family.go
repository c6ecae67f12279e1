package model

import (
	"math"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// families are the kinds of models, by the model_type of config.json. A family declares how its config becomes blocks;
// what all of them share, common reads.
var families = []struct {
	modelType string
	read      func(*hf.Config, *hf.ConfigReader, *spec)
}{
	{"llama", readLlama},
	{"mistral", readMistral},
	{"qwen2", readQwen2},
	{"qwen3", readQwen3},
}

// Families are the supported values of model_type.
func Families() []string {
	var names []string
	for _, f := range families {
		names = append(names, f.modelType)
	}
	return names
}

// spec is what a family makes of a config.json.
type spec struct {
	modelType                string
	vocab, layers, positions int
	tied                     bool
	rope                     nn.RopeFrequencies
	initStd                  float64
	block                    nn.Decoder // every block, but for the window
	windows                  []int      // of each block's attention; none: no block has one
}

func (s *spec) window(layer int) int {
	if s.windows == nil {
		return 0
	}
	return s.windows[layer]
}

// Limits that no model comes near and that keep products of sizes far from overflow.
const (
	maxLayers = 1 << 12
	maxWidth  = 1 << 20
	maxVocab  = 1 << 24
)

func readSpec(c *hf.Config) (*spec, error) {
	r := c.Reader()
	if !r.Has("model_type") {
		r.Fail("model_type", "supported are %s", strings.Join(Families(), ", "))
	}
	s := &spec{modelType: r.OneOf("model_type", "", Families()...)}
	for _, f := range families {
		if f.modelType == s.modelType && r.Err() == nil {
			s.common(r)
			f.read(c, r, s)
			s.finish(r)
		}
	}
	return s, r.Finish()
}

// common reads the keys that mean the same in all families. Defaults are those of transformers; the sizes of a model have
// none.
func (s *spec) common(r *hf.ConfigReader) {
	s.vocab = limited(r, "vocab_size", maxVocab)
	s.layers = limited(r, "num_hidden_layers", maxLayers)
	s.positions = r.Size("max_position_embeddings")
	s.tied = r.BoolOr("tie_word_embeddings", false)
	s.initStd = r.FloatOr("initializer_range", 0.02)
	if s.initStd < 0 {
		r.Fail("initializer_range", "a standard deviation is not negative")
	}
	s.block.Hidden = limited(r, "hidden_size", maxWidth)
	s.block.Intermediate = limited(r, "intermediate_size", maxWidth)
	s.block.Heads = limited(r, "num_attention_heads", maxWidth)
	s.block.Eps = float32(r.FloatOr("rms_norm_eps", 1e-6))
	if !(s.block.Eps >= 0 && s.block.Eps < 1) {
		r.Fail("rms_norm_eps", "a small positive number is expected")
	}

	// Features that exist in one form only.
	r.Require("hidden_act", "silu")
	r.Require("attention_dropout", 0.0)
	r.Require("is_encoder_decoder", false)
	r.Require("is_decoder", false)
	r.Require("add_cross_attention", false)
	r.Require("chunk_size_feed_forward", 0)
}

// limited reads a size that must be there and is at most limit.
func limited(r *hf.ConfigReader, key string, limit int) int {
	n := r.Size(key)
	if n > limit {
		r.Fail(key, "more than %d is not supported", limit)
		return 0
	}
	return n
}

// headDim reads the width of a head; if it is absent, the heads share the hidden size.
func (s *spec) headDim(r *hf.ConfigReader) {
	d := &s.block
	if !r.Has("head_dim") && d.Heads > 0 && d.Hidden%d.Heads != 0 {
		r.Fail("num_attention_heads", "it does not divide \"hidden_size\" (%d), and there is no \"head_dim\"", d.Hidden)
	}
	d.HeadDim = r.SizeOr("head_dim", d.Hidden/max(d.Heads, 1))
}

// rotary reads the rotary positions.
func (s *spec) rotary(r *hf.ConfigReader) {
	p := r.Rope(10000)
	kind := map[string]nn.RopeKind{"default": nn.RopeDefault, "linear": nn.RopeLinear, "llama3": nn.RopeLlama3}[p.Type]
	s.rope = nn.RopeFrequencies{HeadDim: s.block.HeadDim, Theta: p.Theta, Kind: kind, Factor: p.Factor,
		LowFreqFactor: p.LowFreqFactor, HighFreqFactor: p.HighFreqFactor, OriginalPositions: p.OriginalPositions}
}

// layerTypes reads which blocks see a window only. Absent, the blocks from number first on do, if window is not 0.
func (s *spec) layerTypes(r *hf.ConfigReader, window, first int) {
	types := r.StringsOr("layer_types", nil)
	if r.Err() != nil {
		return
	}
	s.windows = make([]int, s.layers)
	if types == nil {
		for l := min(first, s.layers); l < s.layers; l++ {
			s.windows[l] = window
		}
		return
	}
	if len(types) != s.layers {
		r.Fail("layer_types", "it has %d entries, \"num_hidden_layers\" is %d", len(types), s.layers)
		return
	}
	for l, t := range types {
		switch {
		case t == "full_attention":
		case t == "sliding_attention" && window > 0:
			s.windows[l] = window
		case t == "sliding_attention":
			r.Fail("layer_types", "a layer has sliding attention, but \"use_sliding_window\" and \"sliding_window\" turn it off")
		default:
			r.Fail("layer_types", "supported are full_attention, sliding_attention; layer %d has %.40q", l, t)
		}
	}
}

// finish checks what concerns several keys.
func (s *spec) finish(r *hf.ConfigReader) {
	d := &s.block
	if r.Err() != nil {
		return
	}
	switch {
	case d.KVHeads > d.Heads || d.Heads%d.KVHeads != 0:
		r.Fail("num_key_value_heads", "it does not divide \"num_attention_heads\" (%d)", d.Heads)
	case d.HeadDim%2 != 0 && r.Has("head_dim"):
		r.Fail("head_dim", "rotary positions need an even one")
	case d.HeadDim%2 != 0:
		r.Fail("num_attention_heads", "heads of width %d are odd, and rotary positions need an even width", d.HeadDim)
	case d.HeadDim > maxWidth || d.Heads > maxWidth/d.HeadDim:
		r.Fail("num_attention_heads", "heads that are together wider than %d are not supported", maxWidth)
	}
	d.Scale = float32(1 / math.Sqrt(float64(d.HeadDim)))
}
