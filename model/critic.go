package model

import (
	"slices"

	"github.com/millrace/millrace/tensor"
)

// A critic that shares the blocks of its policy is a row in the part of the final norm: nn.Head.Values. It belongs to a
// run and its checkpoints. No file of a model has it, so a model that is written is one of text as any other, and a run
// that begins from a model begins with a row of zeros, whose values are 0: as in OpenAI's lm-human-preferences.

// WithValues is the same model with such a row, which is trained whatever else is not.
func (m *Model) WithValues() (*Model, error) {
	if m.Head.Values {
		return m, nil
	}
	valued := *m
	valued.Head.Values = true
	fields := valued.Head.Fields()
	for i, f := range m.Parts[m.NormPart].Layout.Fields {
		fields[i] = f.Field // as it is trained
	}
	layout, err := tensor.NewLayout(fields...)
	if err != nil {
		return nil, err
	}
	valued.Parts = slices.Clone(m.Parts)
	valued.Parts[m.NormPart].Layout = layout
	return &valued, nil
}
