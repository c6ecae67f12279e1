package stream

import (
	"fmt"

	"github.com/millrace/millrace/store"
)

// saveState hands what is kept of a part between steps to the checkpoint.
func (r *execution) saveState(part int) error {
	for kind := range store.Kind(store.Kinds) {
		id := store.ID{Part: part, Kind: kind}
		if kind.Transient() || r.specs[id].Bytes == 0 {
			continue
		}
		if err := r.save(r.ctx, id, r.versions.at(id)); err != nil {
			return fmt.Errorf("save %s: %w", r.Plan.Model.Parts[part].Name, err)
		}
	}
	return nil
}
