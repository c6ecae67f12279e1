package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Operations of the update lane, on the stream of the host.

// updatePart applies the pending update to a part.
func (r *run) updatePart(s device.Stream, part int) error {
	l := r.Plan.Model.Parts[part].Layout
	var mem [store.Kinds]device.Mem
	for kind, t := range r.types {
		id := store.ID{Part: part, Kind: store.Kind(kind)}
		elems, access := l.StateElems, store.Write
		switch {
		case t == tensor.Invalid:
			continue
		case id.Kind == store.Grad:
			access = store.Read
		case id.Kind == store.Weights:
			elems = l.WeightElems
		}
		lease, err := r.borrow(plan.LaneUpdate, id, elems*t.Bytes(), access)
		if err != nil {
			return err
		}
		mem[kind] = r.onHost[lease.Region].Slice(lease.Off, lease.Len)
	}
	vec := func(kind store.Kind, first, n int64) device.Mat {
		t := r.types[kind]
		if t == tensor.Invalid {
			return device.Mat{}
		}
		return device.NewVec(mem[kind].Slice(first*t.Bytes(), n*t.Bytes()), t, int(n))
	}
	u := r.update
	for _, run := range l.Runs() {
		s.AdamW(device.AdamWArgs{
			Weights:      vec(store.Weights, run.First, run.Elems),
			Low:          vec(store.Low, run.State, run.Elems),
			Grad:         vec(store.Grad, run.State, run.Elems),
			M:            vec(store.FirstMoment, run.State, run.Elems),
			V:            vec(store.SecondMoment, run.State, run.Elems),
			AdamWScalars: u.AdamW.Scalars(u.Step, u.LR, u.clip, run.Decay),
		}, r.hostResult(r.Plan.BadAt()))
	}
	// Whoever fetches the part waits for this operation and then borrows the new version.
	r.versions.updated(part)
	return nil
}

// hostResult is where the host's lane writes a scalar of the step.
func (r *run) hostResult(at int64) device.Mem { return r.onHost[r.results].Slice(at, 8) }

// gather looks up the rows of the embedding that a micro-batch needs.
func (r *run) gather(s device.Stream, m int) error {
	x := r.hostInput(m)
	for _, p := range r.Plan.Model.EmbedTiles {
		part := &r.Plan.Model.Parts[p]
		t := r.types[store.Weights]
		l, err := r.borrow(plan.LaneUpdate, store.ID{Part: p, Kind: store.Weights}, part.Layout.WeightElems*t.Bytes(), store.Read)
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
	l, err := r.borrow(plan.LaneUpdate, store.ID{Part: p, Kind: store.Grad}, elems*t.Bytes(), store.Write)
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
