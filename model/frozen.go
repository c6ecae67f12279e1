package model

import "github.com/millrace/millrace/tensor"

// Frozen is the same model with nothing to train: its parts have weights and no other state, so that it can be evaluated and
// generate in 2 bytes per parameter of bf16, or 4 of fp32.
func (m *Model) Frozen() *Model {
	frozen := *m
	frozen.Parts = append([]Part(nil), m.Parts...)
	layouts := map[*tensor.Layout]*tensor.Layout{} // blocks share theirs
	for i := range frozen.Parts {
		l := frozen.Parts[i].Layout
		if layouts[l] == nil {
			layouts[l] = l.Frozen()
		}
		frozen.Parts[i].Layout = layouts[l]
	}
	return &frozen
}
