package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/tensor"
)

// Grouped returns the same model with each tensor in the group, and trained or not, as of says by its name in a
// checkpoint. Tensors that form one matrix in training, such as q, k and v, need the same answer: else the error names
// two of them.
func (m *Model) Grouped(of func(name string) (group int, trained bool)) (*Model, error) {
	grouped := *m
	grouped.Parts = slices.Clone(m.Parts)
	known := map[string]*tensor.Layout{} // blocks share theirs
	trains := false
	for i := range grouped.Parts {
		p := &grouped.Parts[i]
		fields := make([]tensor.Field, len(p.Layout.Fields))
		for f, placed := range p.Layout.Fields {
			fields[f] = placed.Field
		}
		names := make([]string, len(fields))
		for _, source := range p.Tensors {
			f := &fields[source.Field]
			f.ParamGroup, f.Trainable = of(source.Name)
			trains, names[source.Field] = trains || f.Trainable, source.Name
		}
		for f := 1; f < len(fields); f++ {
			above := &fields[f-1]
			if fields[f].Glued && (above.ParamGroup != fields[f].ParamGroup || above.Trainable != fields[f].Trainable) {
				return nil, fmt.Errorf("groups and train_only: %s and %s are one matrix in training: match both, or none",
					names[f-1], names[f])
			}
		}
		layout, err := layoutOf(fields, known)
		if err != nil {
			return nil, err
		}
		p.Layout = layout
	}
	if !trains {
		return nil, errors.New("groups and train_only leave nothing to train: freeze less")
	}
	return &grouped, nil
}

// Untrained are the names of the tensors that are not trained, in the order of the parts, each once.
func (m *Model) Untrained() (names []string) {
	seen := map[string]bool{}
	for i := range m.Parts {
		for _, source := range m.Parts[i].Tensors {
			if !m.Parts[i].Layout.Fields[source.Field].Trainable && !seen[source.Name] {
				seen[source.Name] = true
				names = append(names, source.Name)
			}
		}
	}
	return names
}
