package stream

import (
	"iter"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// What waits outside of the device between the two visits of a block: its input, and what it keeps.

// moveInput brings x[layer][m] to the device, or from it to where it is saved.
func (r *run) moveInput(s device.Stream, op *plan.Op) error {
	x := r.input(op.Input, op.Layer, op.Micro).Mem
	if !r.Plan.SavedOnDisk(op.Layer - 1) {
		saved := r.pinned.Inputs[op.Layer-1][op.Micro]
		if op.Kind == plan.Save {
			s.Copy(saved, x)
		} else {
			s.Copy(x, saved)
		}
		return nil
	}
	id := store.ID{Part: r.Plan.Model.BlockParts[op.Layer-1], Kind: store.Inputs}
	access := store.Read
	if op.Kind == plan.Save {
		access = store.Write
	}
	for at, off := range r.inputPieces(op.Micro) {
		err := r.piece(op.Lane, id, off, r.specs[id].Piece, access, func(piece device.Mem) {
			n := min(piece.Len, x.Len-at)
			if op.Kind == plan.Save {
				s.Copy(piece.Slice(0, n), x.Slice(at, n))
			} else {
				s.Copy(x.Slice(at, n), piece.Slice(0, n))
			}
		})
		if err != nil {
			return err
		}
	}
	if op.Kind == plan.Save {
		return r.retire(op.Lane, 0) // it is loaded in this same schedule
	}
	return nil
}

// moveKept brings what a block keeps of a micro-batch to host memory, or from there.
func (r *run) moveKept(s device.Stream, op *plan.Op) {
	onHost := r.pinned.Activations[op.Layer-1][op.Micro]
	onDevice := r.buffers.KeptRing[op.Kept].Slice(0, onHost.Len)
	if op.Kind == plan.SaveKept {
		s.Copy(onHost, onDevice)
	} else {
		s.Copy(onDevice, onHost)
	}
}

// inputPieces are the places in the input of a block, and in its extent, of the pieces for a micro-batch.
func (e *Engine) inputPieces(m int) iter.Seq2[int64, int64] {
	pieces, bytes := e.Plan.InputPieces()
	return func(yield func(at, off int64) bool) {
		for i := range pieces {
			if !yield(int64(i)*bytes, int64(m*pieces+i)*bytes) {
				return
			}
		}
	}
}
