package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// updates is the index of the host's worker.
const updates = int(plan.LaneUpdate)

// updatePart applies the pending update to a part: a piece at a time where others wait for the memory of pieces, else
// at once. The workers sleep between pieces: on 16 cores that made an update of pieces of 4Mi parameters a third
// slower. A part that is frozen in part has other places in its weights than in its state, and is one piece.
func (r *execution) updatePart(s device.Stream, part int) error {
	l := r.Plan.Model.Parts[part].Layout
	piece := l.StateElems
	if r.hasScarceState(part) {
		piece = r.Plan.PieceElems(part)
	}
	for first := int64(0); first < l.StateElems; first += piece {
		weights := elemRange{first, min(piece, l.StateElems-first)}
		state := weights
		if l.WeightElems != l.StateElems {
			weights = elemRange{0, l.WeightElems}
		}
		if err := r.updatePiece(s, part, weights, state); err != nil {
			return err
		}
		// The piece goes back before the next one is borrowed.
		if err := r.syncAndRelease(s, updates); err != nil {
			return err
		}
	}
	// An operation that fetches the part waits for this one and then borrows the new version.
	r.versions.updated(part)
	return nil
}

// hasScarceState reports whether an update of the part takes leases that keep others waiting.
func (r *execution) hasScarceState(part int) bool {
	for kind, form := range r.forms {
		if form.Kept() && r.isScarce(store.ID{Part: part, Kind: store.Kind(kind)}) {
			return true
		}
	}
	return false
}

// elemRange is a range of elements of an extent.
type elemRange struct{ first, n int64 }

// updatePiece updates the parameters whose state is in a span; weights is the span of their weights.
func (r *execution) updatePiece(s device.Stream, part int, weights, state elemRange) error {
	var mem [store.Kinds]device.Mem
	for kind, form := range r.forms {
		if !form.Kept() {
			continue
		}
		id, access, at := store.ID{Part: part, Kind: store.Kind(kind)}, store.ReadWrite, state
		switch id.Kind {
		case store.Grad:
			access = store.Read
		case store.Weights:
			at = weights
		}
		lease, err := r.borrow(updates, id, form.Bytes(at.first), form.Bytes(at.n), access)
		if err != nil {
			return err
		}
		mem[kind] = r.onHost[lease.Region].Slice(lease.Off, lease.Len)
	}
	r.updateSpan(s, part, mem, weights, state, r.host.Home(plan.HostResults, 0).Slice(r.Plan.TallyAt(), device.TallyBytes))
	return nil
}

// updateSpan updates the parameters whose state is in a span; weights is the span of their weights, and mem has both, by
// kind. Spans and runs begin on multiples of tensor.Align, as what shares a state does. That is updated whole: the padding
// is zero and stays zero. The cut of state into spans changes no bit.
func (r *execution) updateSpan(s device.Stream, part int, mem [store.Kinds]device.Mem, weights, state elemRange,
	tally device.Mem) {
	for _, run := range r.Plan.Model.Parts[part].Layout.Stretches() {
		begin, end := max(run.State, state.first), min(run.State+run.Elems, state.first+state.n)
		if begin >= end {
			continue
		}
		n := end - begin
		together := r.rule.Together()
		n = (n + together - 1) / together * together
		vec := func(kind store.Kind, first int64) device.Mat {
			form := r.forms[kind]
			if !form.Kept() {
				return device.Mat{}
			}
			return device.NewVec(mem[kind].Slice(form.Bytes(first), form.Bytes(n)), form.Type, int(form.Elems(n)))
		}
		at := begin - state.first
		var of [store.Kinds]device.Mat
		for kind := range store.Kind(store.Kinds) {
			of[kind] = vec(kind, at)
		}
		of[store.Weights] = vec(store.Weights, run.First+begin-run.State-weights.first)
		r.updateRun(s, of, run.Decay, run.ParamGroup, r.draw(part, begin), tally)
	}
}

// draw names the random bits that round the states of a part's parameters, from one on, in the pending update. They
// depend on the number of the update, the part and the place in its state alone: not on where, when and in which pieces
// the update runs.
func (r *execution) draw(part int, first int64) device.Draw {
	key := rng.KeyOf(r.update.Seed, "round states", uint64(r.update.Step-r.update.Idle))
	return device.Draw{Key: key, Part: uint64(part), First: uint64(first)}
}

// updateRun updates parameters of one group that share a rule of decay; of are their vectors.
func (r *execution) updateRun(s device.Stream, of [store.Kinds]device.Mat, decay bool, group int, d device.Draw,
	tally device.Mem) {
	r.rule.Update(s, &of, r.update.Scalars(group, r.update.clip, decay), d, tally)
}

// Scalars are the numbers by which the update changes parameters of a group; clip is the scale of the gradients, and
// decay says whether weight decay applies to them.
func (u *Update) Scalars(group int, clip float64, decay bool) device.AdamWScalars {
	constants, lr := u.AdamW, u.LR
	if group > 0 && group <= len(u.Groups) {
		lr, constants.WeightDecay = u.Groups[group-1].LR, u.Groups[group-1].WeightDecay
	}
	return constants.Scalars(u.Step-u.Idle, lr, clip, decay)
}
