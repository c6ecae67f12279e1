package model

import (
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// readOLMo2 reads OLMo 2: norms of results, and norms over the queries and the keys of all heads.
// Source: transformers, configuration_olmo2.py and modeling_olmo2.py.
func readOLMo2(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	readOLMo(r, s)
	s.Rotary(r)
	s.each(r, nn.Post, nil)
}

// readOLMo3 reads OLMo 3: OLMo 2's block, of which three in four see a window. Rope scaling is for the others.
// Source: transformers, configuration_olmo3.py and modeling_olmo3.py.
func readOLMo3(_ *hf.Config, r *hf.ConfigReader, s *Spec) {
	readOLMo(r, s)
	full, sliding := readRopeByType(r, s.Attention.HeadDim, "")
	s.LayerTypes(r, window(r), func(l int) bool {
		return (l+1)%4 != 0
	})
	s.each(r, nn.Post, func(_ int, a *nn.Attention) {
		if a.Rope = full; a.Window > 0 {
			a.Rope = sliding
		}
	})
}

// readOLMo reads what both have.
func readOLMo(r *hf.ConfigReader, s *Spec) {
	s.Heads(r)
	s.Biases(r)
	s.Attention.QKNorm, s.Attention.QKWide = true, true
}
