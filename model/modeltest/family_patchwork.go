package modeltest

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// Patchwork is a made-up family whose layers are of two kinds, in a checkpoint that has more than the decoder.
var Patchwork = model.Family{
	ModelType:  "patchwork",
	Read:       readPatchwork,
	TextConfig: true,
	Names:      model.Llama.Under("model.language_model."),
	Carried:    []string{"model.visual.*", "mtp.*"},
}

// readPatchwork reads layers with a window, sinks, biases and a narrow MLP, and in turn with them ones with norms of
// queries and keys, a soft cap and a wide MLP.
func readPatchwork(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
	s.Outer.Ignore("vision_config")
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.HeadDim(r)
	s.Rotary(r)
	local, global := s.Attention, s.Attention
	local.Window, local.Sinks, local.QKVBias, local.OutBias = r.Size("sliding_window"), true, true, true
	global.QKNorm, global.SoftCap = true, 5
	wide := nn.GLU{Inner: r.Size("wide_intermediate_size")}
	for l := range s.Layers {
		if l%2 == 0 {
			s.Blocks = append(s.Blocks, nn.Block{Mixer: local, FeedForward: nn.GLU{Inner: s.GLU.Inner, Bias: true}})
		} else {
			s.Blocks = append(s.Blocks, nn.Block{Mixer: global, FeedForward: wide})
		}
	}
}
