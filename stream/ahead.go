package stream

import (
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// loan is a piece of an extent on disk that a lane will read.
type loan struct {
	id      store.ID
	off     int64
	updated bool // after this schedule's update of the part, if it has one before
}

// loans lists, by worker and kind and in order, what a schedule will read from disk. The order is the one in which the
// operations borrow, so that reading ahead follows the schedule.
func (e *Engine) loans(ops []plan.Op) [][store.Kinds][]loan {
	all := make([][store.Kinds][]loan, len(e.workers))
	reads := func(worker, part int, updated bool, kinds ...store.Kind) {
		for _, kind := range kinds {
			id := store.ID{Part: part, Kind: kind}
			if !e.Plan.OnDisk(id) {
				continue
			}
			for off := range e.specs[id].Pieces() {
				all[worker][kind] = append(all[worker][kind], loan{id, off, updated})
			}
		}
	}
	updated := !e.Plan.UpdatesInBackward() // then updates come after everything that reads the weights
	state := []store.Kind{store.Grad}
	for kind := range store.Kind(store.Kinds) {
		if !kind.Transient() {
			state = append(state, kind)
		}
	}
	for _, op := range ops {
		switch {
		case op.Do == plan.DoUpdate:
			reads(e.indexOf(&op), op.Part, false, state...)
		case op.Do == plan.DoLookup:
			for _, table := range op.Reads {
				reads(e.indexOf(&op), table.Index, updated, store.Weights)
			}
		case op.Do == plan.DoMove && op.Writes[0].What == plan.Weights,
			op.Do == plan.DoSend && op.Reads[0].What == plan.Stored:
			reads(e.indexOf(&op), op.Part, updated, store.Weights)
		case op.Do == plan.DoMove && onDisk(op.Reads[0]):
			id := store.ID{Part: e.Plan.Model.BlockParts[op.Layer-1], Kind: store.Inputs}
			for _, off := range e.inputPieces(op.Layer, op.Micro) {
				of := &all[e.indexOf(&op)][id.Kind]
				*of = append(*of, loan{id: id, off: off})
			}
		}
	}
	return all
}

// readAhead hints at the loans that follow the one that the lane takes now.
func (r *execution) readAhead(w int, id store.ID, off int64) {
	list, taken := r.disk[w][id.Kind], &r.at[w].taken[id.Kind]
	if *taken >= len(list) || list[*taken].id != id || list[*taken].off != off {
		return // not from disk
	}
	*taken++
	r.hint(w, id.Kind)
}

// hint tells the store of what the lane will read of a kind, as far ahead as keeps all drives busy. The store reads as
// much as its staging memory holds.
func (r *execution) hint(w int, kind store.Kind) {
	list, hinted := r.disk[w][kind], &r.at[w].hinted[kind]
	for ; *hinted < min(r.at[w].taken[kind]+r.Plan.DiskRequests(), len(list)); *hinted++ {
		l := list[*hinted]
		version := r.first[l.id.Part][kind]
		updated := l.updated && r.update != nil && r.Plan.Model.Parts[l.id.Part].Trained()
		if updated || kind == store.Inputs && r.half != plan.ForUpdates {
			version++
		}
		r.Store.Prefetch(r.workers[w].Worker, l.id, l.off, version)
	}
}
