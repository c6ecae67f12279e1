package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Operations of the update lane, on the stream of the host.

// updatePart applies the pending update to a part: a piece at a time, so that little of it need be in memory at once. A part
// that is frozen in part has other places in its weights than in its state, and is one piece.
func (r *run) updatePart(s device.Stream, part int) error {
	l := r.Plan.Model.Parts[part].Layout
	piece := int64(store.PieceElems)
	if l.WeightElems != l.StateElems {
		piece = l.StateElems
	}
	for first := int64(0); first < l.StateElems; first += piece {
		weights := span{first, min(piece, l.StateElems-first)}
		state := weights
		if l.WeightElems != l.StateElems {
			weights = span{0, l.WeightElems}
		}
		if err := r.updatePiece(s, part, weights, state); err != nil {
			return err
		}
		// The piece goes back before the next one is borrowed.
		if err := s.Sync(); err != nil {
			return err
		}
		r.release(plan.LaneUpdate)
	}
	// Whoever fetches the part waits for this operation and then borrows the new version.
	r.versions.updated(part)
	return nil
}

// span is a range of elements of an extent.
type span struct{ first, n int64 }

// updatePiece updates the parameters whose state lies in a span; weights is where their weights lie.
func (r *run) updatePiece(s device.Stream, part int, weights, state span) error {
	var mem [store.Kinds]device.Mem
	for kind, t := range r.types {
		if t == tensor.Invalid {
			continue
		}
		id, access, at := store.ID{Part: part, Kind: store.Kind(kind)}, store.Change, state
		switch id.Kind {
		case store.Grad:
			access = store.Read
		case store.Weights:
			at = weights
		}
		lease, err := r.borrow(plan.LaneUpdate, id, at.first*t.Bytes(), at.n*t.Bytes(), access)
		if err != nil {
			return err
		}
		mem[kind] = r.onHost[lease.Region].Slice(lease.Off, lease.Len)
	}
	u := r.update
	for _, run := range r.Plan.Model.Parts[part].Layout.Runs() {
		begin, end := max(run.State, state.first), min(run.State+run.Elems, state.first+state.n)
		if begin >= end {
			continue
		}
		vec := func(kind store.Kind, first int64) device.Mat {
			t := r.types[kind]
			if t == tensor.Invalid {
				return device.Mat{}
			}
			return device.NewVec(mem[kind].Slice(first*t.Bytes(), (end-begin)*t.Bytes()), t, int(end-begin))
		}
		at := begin - state.first
		s.AdamW(device.AdamWArgs{Weights: vec(store.Weights, run.First+begin-run.State-weights.first),
			Low: vec(store.Low, at), Grad: vec(store.Grad, at), M: vec(store.FirstMoment, at), V: vec(store.SecondMoment, at),
			AdamWScalars: u.AdamW.Scalars(u.Step, u.LR, u.clip, run.Decay)}, r.hostResult(r.Plan.BadAt()))
	}
	return nil
}

// hostResult is where the host's lane writes a scalar of the step.
func (r *run) hostResult(at int64) device.Mem { return r.onHost[r.results].Slice(at, 8) }

// gather looks up the rows of the embedding that a micro-batch needs. A tile is borrowed whole, since a row may lie in two
// pieces: the plan keeps the embedding in memory.
func (r *run) gather(s device.Stream, m int) error {
	x := r.hostInput(m)
	for _, p := range r.Plan.Model.EmbedTiles {
		part := &r.Plan.Model.Parts[p]
		t := r.types[store.Weights]
		l, err := r.borrow(plan.LaneUpdate, store.ID{Part: p, Kind: store.Weights}, 0, part.Layout.WeightElems*t.Bytes(), store.Read)
		if err != nil {
			return err
		}
		rows := part.Layout.Fields[0].Shape[0]
		table := device.NewMat(r.onHost[l.Region].Slice(l.Off, l.Len), t, rows, r.Plan.Model.Hidden)
		s.Gather(x, table, r.hostIDs(m), part.FirstRow)
	}
	return nil
}

// hostInput is where the embedding writes x[1][m], and finds its gradient.
func (r *run) hostInput(m int) device.Mat {
	if r.Plan.Placement.Bind {
		return r.input(1, m)
	}
	return device.NewMat(r.savedInput(r.onHost, 1, m), r.Plan.Numerics.Compute, r.Plan.Numerics.Positions(), r.Plan.Model.Hidden)
}

func (r *run) hostIDs(m int) device.Mem {
	return plan.Batch(r.onHost[r.tokens], m, r.Plan.Numerics.Positions()).IDs
}

// scatter adds the gradient of the embedding's output to a tile of the table, micro-batches in order, then rounds and
// squares it. A tied tile starts from what the head left.
func (r *run) scatter(s device.Stream, p int) error {
	part := &r.Plan.Model.Parts[p]
	elems := part.Layout.StateElems
	t := r.types[store.Grad]
	l, err := r.borrow(plan.LaneUpdate, store.ID{Part: p, Kind: store.Grad}, 0, elems*t.Bytes(), store.Write)
	if err != nil {
		return err
	}
	stored := device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), t, int(elems))
	sum := stored
	if r.Plan.Tied(p) || t != tensor.F32 {
		sum = device.NewVec(r.sumMem(r.onHost, p), tensor.F32, int(elems))
	}
	if !r.Plan.Tied(p) {
		s.Zero(sum.Mem)
	}
	table := device.NewMat(sum.Mem, tensor.F32, part.Layout.Fields[0].Shape[0], r.Plan.Model.Hidden)
	for m := range r.Plan.Numerics.MicroBatches {
		dx := r.hostInput(m)
		if r.Plan.Placement.Bind {
			dx = r.buffers.DX[m]
		}
		s.ScatterAdd(table, dx, r.hostIDs(m), part.FirstRow)
	}
	if sum.Mem != stored.Mem {
		s.Cast(stored, sum)
	}
	s.SumSquares(r.hostResult(r.Plan.SquaresAt(p)), stored)
	return nil
}
