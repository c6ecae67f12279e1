package stream

import (
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// versions are the writes that each extent has seen, by part and kind: weights, low halves and moments change with each
// update, gradients with each step.
type versions struct {
	of      [][store.Kinds]uint64
	trained []bool
}

func newVersions(p *plan.Plan, s store.Store) versions {
	v := versions{make([][store.Kinds]uint64, len(p.Model.Parts)), make([]bool, len(p.Model.Parts))}
	for _, spec := range p.Extents() {
		v.of[spec.Part][spec.Kind] = s.Version(spec.ID)
	}
	for part := range v.trained {
		v.trained[part] = p.Trained(part)
	}
	return v
}

func (v *versions) at(id store.ID) uint64 { return v.of[id.Part][id.Kind] }

// updated counts the writes of an update.
func (v *versions) updated(part int) {
	for kind := range v.of[part] {
		if k := store.Kind(kind); k != store.Grad && k != store.GradSum {
			v.of[part][kind]++
		}
	}
}

// wrote counts one write of an extent.
func (v *versions) wrote(id store.ID) { v.of[id.Part][id.Kind]++ }

// passed counts the gradients that a schedule has written.
func (v *versions) passed(phase plan.Phase) {
	if phase != plan.Prologue && phase != plan.Steady {
		return
	}
	for part, trained := range v.trained {
		if trained {
			v.of[part][store.Grad]++
		}
	}
}
