package stream

import (
	"iter"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// move enqueues a copy between the device and host memory, or the store, or from another device.
func (r *execution) move(s device.Stream, i int) error {
	op := &r.ops[i]
	from, to := &op.Reads[0], &op.Writes[0]
	switch to.What {
	case plan.Weights, plan.State, plan.Stored, plan.Rounded, plan.Gradient:
		return r.movePart(s, i)
	case plan.Results: // all scalars together
		memory := r.ranks[op.Rank].memory
		s.Copy(memory.Home(plan.Results, op.Rank), memory.Here(plan.Results, op.Rank, 0))
		return nil
	case plan.LogitRows:
		r.drainLogits(s, op)
		return nil
	}
	if onDisk(*from) || onDisk(*to) {
		return r.moveInput(s, i)
	}
	memory := r.ranks[op.Rank].memory
	s.Copy(memory.At(to), memory.At(from))
	return nil
}

// movePart copies extents of a part, piece by piece.
func (r *execution) movePart(s device.Stream, i int) error {
	op := &r.ops[i]
	from, to, memory := &op.Reads[0], &op.Writes[0], r.ranks[op.Rank].memory
	var here [store.Kinds]device.Mem // on the device
	kinds, access := []store.Kind{store.Weights}, store.Write
	var err error
	switch to.What {
	case plan.Weights:
		here[store.Weights] = memory.At(to)
		access = store.Read
	case plan.State:
		kinds, here, access = r.Plan.Numerics.Scheme().States(), r.Plan.StateIn(memory.Slot(to), op.Part), store.Read
		if to.Slot >= 0 { // it passes, and comes with its gradient
			kinds = append(kinds, store.Grad)
		}
	case plan.Stored:
		kinds = append(kinds, r.Plan.Numerics.Scheme().States()...)
		here = r.Plan.StateIn(memory.Slot(&op.Reads[1]), op.Part)
		here[store.Weights] = memory.At(from)
	case plan.Rounded:
		kinds = []store.Kind{store.Grad}
		here[store.Grad] = memory.At(from)
	case plan.Gradient:
		kinds = []store.Kind{store.GradSum}
		here[store.GradSum] = memory.At(from)
	}
	for _, kind := range kinds {
		id := store.ID{Part: op.Part, Kind: kind}
		first, bytes := int64(0), r.specs[id].Bytes
		if kind == store.GradSum { // one cohort's
			bytes = r.Plan.TiedSumStride(op.Part)
			first = int64(to.Cohort) * bytes
		}
		if err == nil {
			err = r.pieces(r.indexOf(op), id, first, bytes, access, func(off int64, piece device.Mem) {
				n := min(piece.Len, here[kind].Len-off)
				piece = piece.Slice(0, n)
				if part := here[kind].Slice(off, n); access == store.Read {
					s.Copy(part, piece)
				} else {
					s.Copy(piece, part)
				}
			})
		}
	}
	if err != nil || !r.again[i] && to.What != plan.Stored {
		return err
	}
	// A later operation of this schedule has another use for the extents: it borrows the new version.
	switch to.What {
	case plan.Stored:
		r.versions.updated(op.Part)
	case plan.Rounded:
		r.versions.wrote(store.ID{Part: op.Part, Kind: store.Grad})
	case plan.Gradient:
		if to.Cohort == r.Plan.Numerics.CohortCount()-1 { // each piece is of one cohort: all have been written once
			r.versions.wrote(store.ID{Part: op.Part, Kind: store.GradSum})
		}
	}
	return r.retire(r.indexOf(op), 0)
}

// usesAgain tells of each operation whether a later one writes what it reads in the store, or touches what it writes
// there.
func usesAgain(ops []plan.Op) []bool {
	type memory struct {
		what        plan.What
		index, slot int
	}
	again := make([]bool, len(ops))
	later := map[memory]bool{} // whether any later operation writes it
	touch := func(i int, list []plan.Operand, look bool, writes bool) {
		for _, o := range list {
			if !inStore(o) {
				continue
			}
			at := memory{o.What, o.Index, o.Slot}
			if o.Slot >= 0 {
				at.index = 0 // parts share it
			}
			written, touched := later[at]
			if look {
				again[i] = again[i] || written || writes && touched
			} else {
				later[at] = written || writes
			}
		}
	}
	for i := range slices.Backward(ops) {
		for _, look := range []bool{true, false} {
			touch(i, ops[i].Reads, look, false)
			touch(i, ops[i].Writes, look, true)
		}
	}
	return again
}

// moveInput brings the input of a block from disk to the device, or from there to disk.
func (r *execution) moveInput(s device.Stream, i int) error {
	op := &r.ops[i]
	here, away, access := &op.Writes[0], &op.Reads[0], store.Read
	if onDisk(*here) {
		here, away, access = away, here, store.Write
	}
	id, x := store.ID{Part: r.Plan.Model.BlockParts[away.Index-1], Kind: store.Inputs}, r.ranks[op.Rank].memory.At(here)
	for at, off := range r.inputPieces(away.Index, op.Micro) {
		err := r.piece(r.indexOf(op), id, off, r.specs[id].Piece, access, func(piece device.Mem) {
			n := min(piece.Len, x.Len-at)
			if part, piece := x.Slice(at, n), piece.Slice(0, n); access == store.Read {
				s.Copy(part, piece)
			} else {
				s.Copy(piece, part)
			}
		})
		if err != nil {
			return err
		}
	}
	if access == store.Write {
		return r.retire(r.indexOf(op), 0) // it is loaded in this same schedule
	}
	return nil
}

// inputPieces are the places in the input of a layer, and in its extent, of the pieces for a micro-batch.
func (e *Engine) inputPieces(layer, m int) iter.Seq2[int64, int64] {
	pieces, bytes := e.Plan.InputPieces(layer)
	m = e.Plan.NumberDown(m)
	return func(yield func(at, off int64) bool) {
		for i := range pieces {
			if !yield(int64(i)*bytes, int64(m*pieces+i)*bytes) {
				return
			}
		}
	}
}

// drainLogits copies a chunk's logits of a tile to their columns on the host, row by row.
func (r *execution) drainLogits(s device.Stream, op *plan.Op) {
	from := r.logitsOf(op, &op.Reads[0]).To
	to := op.Writes[0]
	first, n := r.logitChunk(to.Index)
	if n == 0 {
		return
	}
	rows := r.ranks[op.Rank].memory.Logits(to.Micro).RowRange(first, n).ColRange(r.Plan.Model.Parts[op.Part].FirstRow,
		from.Cols)
	for i := range n {
		s.Copy(rows.RowRange(i, 1).Mem, from.RowRange(i, 1).Mem)
	}
}
