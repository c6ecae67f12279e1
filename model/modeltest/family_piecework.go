package modeltest

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// Piecework is Patchwork with feed-forwards that are cut into groups: of every second layer, and of an even number of
// groups of all layers.
var Piecework = model.Family{
	ModelType:  "piecework",
	Read:       readPiecework,
	TextConfig: Patchwork.TextConfig,
	Names: append(model.Names{
		{Role: "part.gate.*", HF: "model.language_model.layers.{layer}.mlp.groups.{part}.gate_proj.*"},
		{Role: "part.up.*", HF: "model.language_model.layers.{layer}.mlp.groups.{part}.up_proj.*"},
		{Role: "part.down.*", HF: "model.language_model.layers.{layer}.mlp.groups.{part}.down_proj.*"},
	}, Patchwork.Names...),
	Carried: Patchwork.Carried,
}

func readPiecework(c *hf.Config, r *hf.ConfigReader, s *model.Spec) {
	Patchwork.Read(c, r, s)
	groups := r.Size("groups")
	for l := range s.Blocks {
		if l%2 == 1 || groups%2 == 0 {
			s.Blocks[l].FeedForward = nn.SplitGLU{Inner: s.GLU.Inner + l%2, Groups: groups - (1 - l%2)}
		}
	}
}
