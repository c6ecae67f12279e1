package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Parts whose state is on the device when it is updated. It lives there: it is brought there once, and taken home for
// who reads the store. Or it passes: it is brought there for each update, with the gradient, and taken home behind
// it.

// stateOf is the state of the part of an operation on the device, its gradient included, and its weights if the
// operation touches them.
func (r *run) stateOf(op *plan.Op) [store.Kinds]device.Mem {
	part := op.Part
	if op.State < 0 {
		mem := r.buffers.State[part]
		mem[store.Weights] = r.buffers.Own[part]
		return mem
	}
	var mem [store.Kinds]device.Mem
	for _, kind := range append(r.keptKinds(), store.Grad) {
		mem[kind] = r.buffers.StateRing[op.State][kind].Slice(0, r.specs[store.ID{Part: part, Kind: kind}].Bytes)
	}
	if op.Slot >= 0 {
		mem[store.Weights] = r.buffers.Slots[op.Slot]
	}
	return mem
}

// updateHere applies the pending update to a part on the device.
func (r *run) updateHere(s device.Stream, op *plan.Op) {
	l := r.Plan.Model.Parts[op.Part].Layout
	bad := r.result(r.Plan.BadAt())
	if op.First {
		s.Zero(bad)
	}
	r.adamW(s, op.Part, r.stateOf(op), span{0, l.WeightElems}, span{0, l.StateElems}, bad)
}

// keptKinds are the kinds of extents that a part has beside its weights and its gradient.
func (e *Engine) keptKinds() (kinds []store.Kind) {
	for kind, t := range e.types {
		if k := store.Kind(kind); t != tensor.Invalid && k != store.Weights && !k.Transient() {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// fetchState brings the low halves and moments of a part to their place on the device, and the gradient of one whose
// state passes.
func (r *run) fetchState(s device.Stream, op *plan.Op) error {
	kinds, to := r.keptKinds(), r.stateOf(op)
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
	return r.retire(op.Lane, 0) // it may come home in this same schedule
}

// home writes what is kept of a part to the store. Who reads it there waits for this operation and borrows the new version: all pieces
// are given back.
func (r *run) home(s device.Stream, op *plan.Op) error {
	from := r.stateOf(op)
	for _, kind := range append([]store.Kind{store.Weights}, r.keptKinds()...) {
		err := r.pieces(op.Lane, store.ID{Part: op.Part, Kind: kind}, store.Write, func(off int64, piece device.Mem) {
			s.Copy(piece, from[kind].Slice(off, piece.Len))
		})
		if err != nil {
			return err
		}
	}
	r.versions.updated(op.Part)
	return r.retire(op.Lane, 0)
}
