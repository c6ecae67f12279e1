package stream

import (
	"slices"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// versions are the writes that each extent has seen, by part and kind: weights, low halves and moments change with each
// update, gradients and saved layer inputs with each step.
type versions struct {
	of      [][store.Kinds]uint64
	trained []bool
	inputs  []bool // saved layer inputs are an extent
	counted []bool // gradients are counted as they are written, since they are read in the same schedule
}

func newVersions(p *plan.Plan, s store.Store) versions {
	n := len(p.Model.Parts)
	v := versions{make([][store.Kinds]uint64, n), make([]bool, n), make([]bool, n), make([]bool, n)}
	for _, spec := range slices.Concat(p.Extents(), p.InputExtents()) {
		v.of[spec.Part][spec.Kind] = s.Version(spec.ID)
		if spec.Kind == store.Inputs {
			v.inputs[spec.Part] = true
		}
	}
	for part := range v.trained {
		v.trained[part] = p.Model.Parts[part].Trained()
		v.counted[part] = p.UpdatesInBackward() && !p.GradWaits(part)
	}
	return v
}

func (v *versions) at(id store.ID) uint64 { return v.of[id.Part][id.Kind] }

// updated counts the writes of an update.
func (v *versions) updated(part int) {
	for kind := range v.of[part] {
		if !store.Kind(kind).Transient() {
			v.of[part][kind]++
		}
	}
}

// wrote counts one write of an extent.
func (v *versions) wrote(id store.ID) { v.of[id.Part][id.Kind]++ }

// passed counts the gradients and the layer inputs that a schedule has written, except writes that were counted when
// they happened.
func (v *versions) passed(pass plan.Pass) {
	if !pass.Steps() {
		return
	}
	for part, trained := range v.trained {
		if trained && !v.counted[part] && pass.Half != plan.ForUpdates {
			v.of[part][store.Grad]++
		}
		if v.inputs[part] && pass.Half != plan.ForUpdates {
			v.of[part][store.Inputs]++
		}
	}
}
