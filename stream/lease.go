package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// piecesInFlight bounds the pieces whose copies a lane enqueues before it waits for the first: it wakes late, and a
// piece of plan.DefaultPieceElems passes a fast link in less than 200 us. It is scarcePieces where pieces are in
// memory that others wait for: one moves while the next one is brought.
const (
	piecesInFlight = 8
	scarcePieces   = 2
)

// enqueuedPieces counts the pieces that a lane has enqueued copies of, in all and up to the latest scarce one. It holds
// leases of the last of them.
type enqueuedPieces struct{ enqueued, scarce int }

// room is the number of leases that a lane may keep, of those that it holds, when it borrows one more.
func (f *enqueuedPieces) room(held int, scarce bool) int {
	if scarce || f.scarce > f.enqueued-held { // this one, or one that is held
		return min(held, scarcePieces-1)
	}
	return min(held, piecesInFlight-1)
}

// enqueue counts a piece.
func (f *enqueuedPieces) enqueue(scarce bool) {
	f.enqueued++
	if scarce {
		f.scarce = f.enqueued
	}
}

// isScarce reports whether a lease of the extent keeps others waiting: for staging memory, or for bytes that extents
// share.
func (e *Engine) isScarce(id store.ID) bool {
	_, shared := e.Store.(*store.Aliased)
	return shared || e.Plan.OnDisk(id)
}

// pieces borrows bytes of an extent from `first` on, piece by piece, for copies of a stream, and hands each to copy
// with its first byte in the range.
func (r *execution) pieces(w int, id store.ID, first, bytes int64, access store.Access, copy func(off int64,
	piece device.Mem)) error {
	for off, n := range (store.Spec{Bytes: bytes, Piece: r.specs[id].Piece}).Pieces() {
		if err := r.piece(w, id, first+off, n, access, func(piece device.Mem) { copy(off, piece) }); err != nil {
			return err
		}
	}
	return nil
}

// piece borrows a piece for a copy of a stream. Before, it gives back the oldest ones if there are too many.
func (r *execution) piece(w int, id store.ID, off, n int64, access store.Access, copy func(piece device.Mem)) error {
	f, scarce := &r.at[w].pieces, r.isScarce(id)
	if err := r.retire(w, f.room(len(r.at[w].leases), scarce)); err != nil {
		return err
	}
	l, err := r.borrow(w, id, off, n, access)
	if err != nil {
		return err
	}
	worker := &r.workers[w]
	copy(r.ranks[worker.Rank].registered[l.Region].Slice(l.Off, l.Len))
	worker.stream.Record(worker.moved[f.enqueued%piecesInFlight])
	f.enqueue(scarce)
	return nil
}

// retire gives back the lane's oldest leases until `left` remain, each when its copy is done.
func (r *execution) retire(w, left int) error {
	at := &r.at[w]
	for len(at.leases) > left {
		oldest := at.pieces.enqueued - len(at.leases)
		if err := r.workers[w].moved[oldest%piecesInFlight].Wait(); err != nil {
			return err
		}
		at.leases[0].Release()
		at.leases = at.leases[1:]
	}
	return nil
}

// borrow takes a lease that the lane gives back when its work is done.
func (r *execution) borrow(w int, id store.ID, off, n int64, access store.Access) (*store.Lease, error) {
	if access != store.Write {
		r.readAhead(w, id, off)
	}
	version := r.versions.at(id)
	if id.Kind == store.Inputs && access == store.Read && r.half != plan.ForUpdates {
		version++ // what this schedule has saved
	}
	l, err := r.Store.Borrow(r.ctx, r.workers[w].Worker, id, off, n, access, version)
	if err != nil {
		return nil, err
	}
	r.at[w].leases = append(r.at[w].leases, l)
	return l, nil
}

// bind borrows an extent for the compute lane until the lane's work on this schedule is done.
func (r *execution) bind(op *plan.Op, id store.ID, bytes int64, access store.Access) (device.Mem, error) {
	at := &r.at[r.indexOf(op)]
	if mem, ok := at.bound[id]; ok {
		return mem, nil
	}
	l, err := r.borrow(r.indexOf(op), id, 0, bytes, access)
	if err != nil {
		return device.Mem{}, err
	}
	mem := r.ranks[op.Rank].registered[l.Region].Slice(l.Off, l.Len)
	if at.bound == nil {
		at.bound = map[store.ID]device.Mem{}
	}
	at.bound[id] = mem
	return mem, nil
}
