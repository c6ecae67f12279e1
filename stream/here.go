package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Parts whose state lives on the device: it is brought there once, updated there, and taken home for who reads the store.

// updateHere applies the pending update to a part on the device.
func (r *run) updateHere(s device.Stream, op *plan.Op) {
	l := r.Plan.Model.Parts[op.Part].Layout
	mem := r.buffers.State[op.Part]
	mem[store.Weights] = r.buffers.Own[op.Part]
	bad := r.result(r.Plan.BadAt())
	if op.First {
		s.Zero(bad)
	}
	r.adamW(s, op.Part, mem, span{0, l.WeightElems}, span{0, l.StateElems}, bad)
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

// fetchState brings the low halves and moments of a part to their place on the device.
func (r *run) fetchState(s device.Stream, op *plan.Op) error {
	for _, kind := range r.keptKinds() {
		to := r.buffers.State[op.Part][kind]
		err := r.pieces(op.Lane, store.ID{Part: op.Part, Kind: kind}, store.Read, func(off int64, piece device.Mem) {
			s.Copy(to.Slice(off, piece.Len), piece)
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
	take := func(kind store.Kind, from device.Mem) error {
		return r.pieces(op.Lane, store.ID{Part: op.Part, Kind: kind}, store.Write, func(off int64, piece device.Mem) {
			s.Copy(piece, from.Slice(off, piece.Len))
		})
	}
	if err := take(store.Weights, r.buffers.Own[op.Part]); err != nil {
		return err
	}
	for _, kind := range r.keptKinds() {
		if err := take(kind, r.buffers.State[op.Part][kind]); err != nil {
			return err
		}
	}
	r.versions.updated(op.Part)
	return r.retire(op.Lane, 0)
}
