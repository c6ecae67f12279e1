package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// readEXAONE4 reads EXAONE 4: norms of results, and of each head's query and key. Where some layers see a window, the
// others do not rotate their heads. Source: transformers, configuration_exaone4.py and modeling_exaone4.py.
func readEXAONE4(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Rotary(r)
	s.Attention.QKNorm = true
	window := window(r)
	every := 4
	if r.Has("layer_types") || window == 0 {
		r.Ignore("sliding_window_pattern") // a name such as "LLLG" for what layer_types says
	} else {
		every = r.Size("sliding_window_pattern")
	}
	s.LayerTypes(r, window, func(l int) bool { return (l+1)%every != 0 })
	s.each(r, nn.Post, func(_ int, a *nn.Attention) {
		if window > 0 && a.Window == 0 {
			a.Rope = nn.RopeFrequencies{}
		}
	})
}
