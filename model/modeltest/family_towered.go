package modeltest

import (
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// Towered is a family with a second chain before the text: a tower of three blocks, the second with groups, of another
// width and with a table of its own. The attention of every second block of the text has its rows for keys and values.
var Towered = model.Family{ModelType: "towered", Names: WithTower(append(model.Names{
	{Role: "part.gate.*", HF: "model.layers.{layer}.groups.{part}.gate_proj.*"},
	{Role: "part.up.*", HF: "model.layers.{layer}.groups.{part}.up_proj.*"},
	{Role: "part.down.*", HF: "model.layers.{layer}.groups.{part}.down_proj.*"},
}, model.Llama...)), Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Attention.QKNorm = true
	tower := nn.Block{Mixer: s.Attention, FeedForward: s.GLU}
	grouped := nn.Block{Mixer: s.Attention, FeedForward: nn.SplitGLU{Inner: s.GLU.Inner, Groups: 2}}
	s.Chains = []model.ChainSpec{{Name: "tower", Hidden: 2 * s.Attention.KVHeads * s.Attention.HeadDim,
		Blocks: []nn.Block{tower, grouped, tower}, Scale: model.Multiplier{By: 1}}}
	for l := range s.Layers {
		block := nn.Block{Mixer: s.Attention, FeedForward: s.GLU}
		if taken := s.Attention; l%2 == 0 {
			taken.KV.Role = nn.KVTaken
			block.Mixer = taken
		}
		s.Blocks = append(s.Blocks, block)
	}
}}

// WithTower adds to the names of a text the same of a chain "tower".
func WithTower(text model.Names) model.Names {
	all := slices.Clone(text)
	for _, n := range text {
		all = append(all, model.Name{Role: "tower." + n.Role, HF: "tower." + n.HF})
	}
	return all
}
