package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// readEXAONE4 reads EXAONE 4: norms of results, and of each head's query and key. Where some layers see a window, the
// others do not rotate their heads. Source: transformers, configuration_exaone4.py and modeling_exaone4.py.
func readEXAONE4(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.defaultEps(r, 1e-5)
	s.Attention.KVHeads = r.SizeOr("num_key_value_heads", 32)
	s.HeadDim(r)
	s.Rotary(r)
	s.Attention.QKNorm = true
	window := r.SizeOr("sliding_window", unlessNull(r, "sliding_window", 4096))
	every := 4
	if r.Has("layer_types") || window == 0 {
		r.Ignore("sliding_window_pattern") // a name such as "LLLG" for what layer_types says
	} else {
		every = r.SizeOr("sliding_window_pattern", 4)
	}
	s.LayerTypes(r, window, func(l int) bool { return (l+1)%every != 0 })
	s.each(r, nn.Post, func(_ int, a *nn.Attention) {
		if window > 0 && a.Window == 0 {
			a.Rope = nn.RopeFrequencies{}
		}
	})
}
