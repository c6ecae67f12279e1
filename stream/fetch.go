package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// fetchLane enqueues an operation that brings something to the device.
func (r *run) fetchLane(s device.Stream, op *plan.Op) error {
	switch op.Kind {
	case plan.Upload:
		s.Copy(r.buffers.Batches, r.pinned.Batches)
		return nil
	case plan.Fetch:
		return r.fetch(s, op)
	case plan.FetchState:
		return r.fetchState(s, op)
	case plan.Load:
		return r.moveInput(s, op)
	case plan.LoadKept:
		r.moveKept(s, op)
		return nil
	}
	panic(unknown(op))
}

func (r *run) fetch(s device.Stream, op *plan.Op) error {
	w, err := r.weights(op.Part, op.Slot)
	if err != nil {
		return err
	}
	id := store.ID{Part: op.Part, Kind: store.Weights}
	err = r.pieces(op.Lane, id, store.Read, func(off int64, piece device.Mem) {
		s.Copy(w.Mem.Slice(off, piece.Len), piece)
	})
	if err == nil && (r.Plan.UpdatesInBackward() || r.Plan.StateResident(op.Part) || r.Plan.StatePasses(op.Part)) {
		err = r.retire(op.Lane, 0) // it is updated in this same schedule, or written back
	}
	return err
}

// fetchState brings the low halves and moments of a part to their place on the device, and the gradient of one whose
// state passes.
func (r *run) fetchState(s device.Stream, op *plan.Op) error {
	kinds, to := r.stateKinds(), r.stateOf(op)
	if op.State >= 0 {
		kinds = append(kinds, store.Grad)
	}
	for _, kind := range kinds {
		err := r.pieces(op.Lane, store.ID{Part: op.Part, Kind: kind}, store.Read, func(off int64, piece device.Mem) {
			s.Copy(to[kind].Slice(off, piece.Len), piece)
		})
		if err != nil {
			return err
		}
	}
	return r.retire(op.Lane, 0) // it may be written back in this same schedule
}
