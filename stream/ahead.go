package stream

import (
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// loan is a piece of an extent on disk that a lane will read.
type loan struct {
	id      store.ID
	off     int64
	updated bool // after this schedule's update of the part, if it has one
}

// loans lists, by lane and in order, what a schedule will read from disk. The order is the one in which the operations
// borrow, so that reading ahead follows the schedule.
func (e *Engine) loans(ops []plan.Op) (all [plan.Lanes][]loan) {
	if len(e.Plan.Disk) == 0 {
		return all
	}
	reads := func(lane plan.Lane, part int, updated bool, kinds ...store.Kind) {
		var ids []store.ID
		for _, kind := range kinds {
			if id := (store.ID{Part: part, Kind: kind}); e.specs[id].Bytes > 0 && e.Plan.OnDisk(id) {
				ids = append(ids, id)
			}
		}
		for piece, more := int64(0), true; more; piece++ { // piece by piece, and in each the kinds
			more = false
			for _, id := range ids {
				if off := piece * e.specs[id].Piece; off < e.specs[id].Bytes {
					all[lane] = append(all[lane], loan{id, off, updated})
					more = true
				}
			}
		}
	}
	var state []store.Kind
	for kind := range store.Kind(store.Kinds) {
		if kind != store.GradSum {
			state = append(state, kind)
		}
	}
	for _, op := range ops {
		switch op.Kind {
		case plan.Update:
			reads(op.Lane, op.Part, false, state...)
		case plan.Fetch:
			reads(op.Lane, op.Part, true, store.Weights)
		case plan.Gather:
			for _, p := range e.Plan.Model.EmbedTiles {
				reads(op.Lane, p, true, store.Weights)
			}
		}
	}
	return all
}

// ahead is how many pieces a lane has the store told of beyond the one that it borrows: two of each of the five kinds that
// the update lane reads. The store reads as many as its staging memory holds.
const ahead = 10

// readAhead hints at the loans that follow the one that the lane takes now.
func (r *run) readAhead(lane plan.Lane, id store.ID, off int64) {
	list := r.disk[lane]
	at := r.taken[lane]
	if at >= len(list) || list[at].id != id || list[at].off != off {
		return // not from disk
	}
	r.taken[lane]++
	for ; r.hinted[lane] < min(r.taken[lane]+ahead, len(list)); r.hinted[lane]++ {
		l := list[r.hinted[lane]]
		version := r.first[l.id.Part][l.id.Kind]
		if l.updated && r.update != nil && r.Plan.Trained(l.id.Part) {
			version++
		}
		r.Store.Prefetch(lane, l.id, l.off, version)
	}
}
