package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// drainLane enqueues an operation that takes something to host memory.
func (r *run) drainLane(s device.Stream, op *plan.Op) error {
	switch op.Kind {
	case plan.WriteBack:
		return r.writeBack(s, op)
	case plan.Save:
		return r.moveInput(s, op)
	case plan.SaveKept:
		r.moveKept(s, op)
	case plan.Drain:
		return r.drain(s, op)
	case plan.DrainSum:
		return r.drainSum(s, op)
	case plan.DrainInput:
		s.Copy(r.pinned.Inputs[0][op.Micro], r.inputGrad(op.Input, op.Micro).Mem)
	case plan.DrainLogits:
		r.drainLogits(s, op)
	case plan.Collect:
		s.Copy(r.pinned.DeviceResults, r.buffers.Results)
	default:
		panic(unknown(op))
	}
	return nil
}

func (r *run) drain(s device.Stream, op *plan.Op) error {
	t := r.types[store.Grad]
	bytes := r.Plan.Model.Parts[op.Part].Layout.StateElems * t.Bytes()
	var from device.Mem
	if op.Stage >= 0 {
		from = r.buffers.Stages[op.Stage].Slice(0, bytes)
	} else {
		from = r.gradSlot(op.Part, op.Grad)
	}
	id := store.ID{Part: op.Part, Kind: store.Grad}
	err := r.pieces(op.Lane, id, store.Write, func(off int64, piece device.Mem) {
		s.Copy(piece, from.Slice(off, piece.Len))
	})
	if err == nil && r.Plan.UpdatesInBackward() {
		r.versions.wrote(id)
		err = r.retire(op.Lane, 0) // it is read in this same schedule
	}
	return err
}

// drainSum takes the fp32 gradient of a tied tile to where the embedding adds to it, in this same schedule: all
// pieces are given back.
func (r *run) drainSum(s device.Stream, op *plan.Op) error {
	from := r.gradSlot(op.Part, op.Grad)
	id := store.ID{Part: op.Part, Kind: store.GradSum}
	err := r.pieces(op.Lane, id, store.Write, func(off int64, piece device.Mem) {
		s.Copy(piece, from.Slice(off, piece.Len))
	})
	if err != nil {
		return err
	}
	r.versions.wrote(id)
	return r.retire(op.Lane, 0)
}

// drainLogits copies the buffer to its columns on the host, row by row.
func (r *run) drainLogits(s device.Stream, op *plan.Op) {
	first, n := r.logitChunk(op)
	part := &r.Plan.Model.Parts[op.Part]
	cols := part.Layout.Fields[0].Shape[0]
	from, _ := r.logitsTo(op, cols)
	to := r.hostLogits(op.Micro).RowRange(first, n).ColRange(part.FirstRow, cols)
	for i := range n {
		s.Copy(to.RowRange(i, 1).Mem, from.RowRange(i, 1).Mem)
	}
}

// writeBack writes what is kept of a part to the store. Who reads it there waits for this operation and borrows the
// new version: all pieces are given back.
func (r *run) writeBack(s device.Stream, op *plan.Op) error {
	from := r.stateOf(op)
	for _, kind := range append([]store.Kind{store.Weights}, r.stateKinds()...) {
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
