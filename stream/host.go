package stream

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Operations of the update lane, on the stream of the host.

// updatePart applies the pending update to a part: a piece at a time, so that little of it need be in memory at once. A part
// that is frozen in part has other places in its weights than in its state, and is one piece.
func (r *run) updatePart(s device.Stream, part int) error {
	l := r.Plan.Model.Parts[part].Layout
	piece := r.Plan.PieceElems(part)
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
		lease, err := r.borrow(plan.LaneUpdate, id, id.Kind.Elems(at.first)*t.Bytes(), id.Kind.Elems(at.n)*t.Bytes(), access)
		if err != nil {
			return err
		}
		mem[kind] = r.onHost[lease.Region].Slice(lease.Off, lease.Len)
	}
	r.adamW(s, part, mem, weights, state, r.hostResult(r.Plan.BadAt()))
	return nil
}

// adamW updates the parameters whose state lies in a span; weights is where their weights lie, and mem has both, by kind. Spans and
// runs begin on multiples of tensor.Align, as blocks of moments in 8 bits do, which are updated whole: the padding is zero and stays
// so. How state is cut into spans changes no bit.
func (r *run) adamW(s device.Stream, part int, mem [store.Kinds]device.Mem, weights, state span, bad device.Mem) {
	for _, run := range r.Plan.Model.Parts[part].Layout.Runs() {
		begin, end := max(run.State, state.first), min(run.State+run.Elems, state.first+state.n)
		if begin >= end {
			continue
		}
		n := end - begin
		if r.Plan.Numerics.Moments == optim.Dynamic8 {
			n = (n + tensor.MomentBlock - 1) / tensor.MomentBlock * tensor.MomentBlock
		}
		vec := func(kind store.Kind, first int64) device.Mat {
			t := r.types[kind]
			if t == tensor.Invalid {
				return device.Mat{}
			}
			first, n := kind.Elems(first), kind.Elems(n)
			return device.NewVec(mem[kind].Slice(first*t.Bytes(), n*t.Bytes()), t, int(n))
		}
		at := begin - state.first
		var of [store.Kinds]device.Mat
		for kind := range store.Kind(store.Kinds) {
			of[kind] = vec(kind, at)
		}
		of[store.Weights] = vec(store.Weights, run.First+begin-run.State-weights.first)
		r.adamWOf(s, of, run.Decay, bad)
	}
}

// adamWOf updates parameters that share a rule of decay; of are their vectors.
func (r *run) adamWOf(s device.Stream, of [store.Kinds]device.Mat, decay bool, bad device.Mem) {
	u := r.update
	scalars := u.AdamW.Scalars(u.Step-u.Idle, u.LR, u.clip, decay)
	weights, low, grad, m, v := of[store.Weights], of[store.Low], of[store.Grad], of[store.FirstMoment], of[store.SecondMoment]
	if r.Plan.Numerics.Moments == optim.Dynamic8 {
		s.AdamW8(device.AdamW8Args{Weights: weights, Low: low, Grad: grad, M: m, V: v, MScale: of[store.FirstScale],
			VScale: of[store.SecondScale], AdamWScalars: scalars}, bad)
		return
	}
	s.AdamW(device.AdamWArgs{Weights: weights, Low: low, Grad: grad, M: m, V: v, AdamWScalars: scalars}, bad)
}

// hostResult is where the host's lane writes a scalar of the step.
func (r *run) hostResult(at int64) device.Mem { return r.host.HostResults.Slice(at, 8) }

// gather looks up the rows of the embedding that the step needs, a piece of the table at a time.
func (r *run) gather(s device.Stream) error {
	for _, p := range r.Plan.Model.EmbedTiles {
		id := store.ID{Part: p, Kind: store.Weights}
		for off, n := range r.specs[id].Pieces() {
			l, err := r.borrow(plan.LaneUpdate, id, off, n, store.Read)
			if err != nil {
				return err
			}
			first, rows := r.rowsOf(p, off, n, r.types[id.Kind])
			table := device.NewMat(r.onHost[l.Region].Slice(l.Off, l.Len), r.types[id.Kind], rows, r.Plan.Model.Hidden)
			for m := range r.Plan.Numerics.MicroBatches {
				s.Gather(r.hostInput(m), table, r.hostIDs(m), first)
			}
			if err := s.Sync(); err != nil {
				return err
			}
			r.release(plan.LaneUpdate)
		}
	}
	return nil
}

// gatherAhead looks up the rows of the embedding that the step needs and updates them where they land; the table is
// updated later, to the same bits. What else is kept of the rows is copied beside them, for some rows at a time.
func (r *run) gatherAhead(s device.Stream) error {
	most := int(r.Plan.AheadElems()) / r.Plan.Model.Hidden
	tables := make([][store.Kinds]device.Mem, len(r.Plan.Model.EmbedTiles))
	for kind, t := range r.types {
		k := store.Kind(kind)
		if t == tensor.Invalid {
			continue
		}
		for i, p := range r.Plan.Model.EmbedTiles {
			id := store.ID{Part: p, Kind: k}
			l, err := r.borrow(plan.LaneUpdate, id, 0, r.specs[id].Bytes, store.Read)
			if err != nil {
				return err
			}
			tables[i][kind] = r.onHost[l.Region].Slice(l.Off, l.Len)
		}
	}
	for m := range r.Plan.Numerics.MicroBatches {
		y := r.hostInput(m)
		for first := 0; first < y.Rows; first += most {
			n := min(most, y.Rows-first)
			ids, beside := r.hostIDs(m).Slice(4*int64(first), 4*int64(n)), r.host.Ahead
			beside[store.Weights] = y.RowRange(first, n).Mem
			r.updateRows(s, beside, tables, ids, n, r.host.AheadBad)
		}
	}
	return s.Sync()
}

// updateRows copies n rows of the embedding, of all kinds, from its tiles and updates the copies.
func (r *run) updateRows(s device.Stream, to [store.Kinds]device.Mem, tables [][store.Kinds]device.Mem,
	ids device.Mem, n int, bad device.Mem) {
	var of [store.Kinds]device.Mat
	decay := false
	for kind, t := range r.types {
		if t == tensor.Invalid {
			continue
		}
		elems := store.Kind(kind).Elems(int64(n * r.Plan.Model.Hidden))
		of[kind] = device.NewVec(to[kind], t, int(elems))
		copies := asRows(of[kind].Mem, n)
		for i, p := range r.Plan.Model.EmbedTiles {
			part := &r.Plan.Model.Parts[p]
			rows := part.Layout.Fields[0].Shape[0]
			decay = part.Layout.Fields[0].Decay
			table := tables[i][kind].Slice(0, copies.Len/int64(n)*int64(rows))
			s.Gather(copies, asRows(table, rows), ids, part.FirstRow)
		}
	}
	r.adamWOf(s, of, decay, bad)
}

// asRows is memory as rows of numbers of two bytes, whatever they are, for a gather to copy.
func asRows(mem device.Mem, rows int) device.Mat {
	return device.NewMat(mem, tensor.BF16, rows, int(mem.Len/tensor.BF16.Bytes())/rows)
}

// rowsOf are the rows of the vocabulary in the n bytes at off of a tile; pieces end between rows, and padding is less than
// a row.
func (r *run) rowsOf(part int, off, n int64, t tensor.DType) (first, rows int) {
	p, hidden := &r.Plan.Model.Parts[part], int64(r.Plan.Model.Hidden)
	first = int(off / t.Bytes() / hidden)
	rows = min(int(n/t.Bytes()/hidden), p.Layout.Fields[0].Shape[0]-first)
	return p.FirstRow + first, rows
}

// hostInput is where the embedding writes x[1][m], and finds its gradient.
func (r *run) hostInput(m int) device.Mat {
	if r.Plan.Bound() {
		return r.input(-1, 1, m)
	}
	return device.NewMat(r.host.Inputs[0][m], r.Plan.Numerics.Compute, r.Plan.Numerics.Positions(), r.Plan.Model.Hidden)
}

func (r *run) hostIDs(m int) device.Mem {
	return plan.Batch(r.host.Batches, m, r.Plan.Numerics.Positions()).IDs
}

// scatter adds the gradient of the embedding's output to a tile of the table, a piece at a time, micro-batches in order,
// then rounds and squares the piece.
func (r *run) scatter(s device.Stream, p int) error {
	id := store.ID{Part: p, Kind: store.Grad}
	i := int64(0)
	for off, n := range r.specs[id].Pieces() {
		t := r.types[id.Kind]
		l, err := r.borrow(plan.LaneUpdate, id, off, n, store.Write)
		if err != nil {
			return err
		}
		elems := n / t.Bytes()
		stored := device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), t, int(elems))
		first, rows := r.rowsOf(p, off, n, t)
		if r.Plan.SumsTouchedRows() {
			r.sumTouched(s, stored, first, rows)
		} else if err := r.sumRows(s, p, stored, off/t.Bytes(), first, rows); err != nil {
			return err
		}
		s.SumSquares(r.hostResult(r.Plan.SquaresAt(p)+8*i), stored)
		if err := s.Sync(); err != nil {
			return err
		}
		r.release(plan.LaneUpdate)
		i++
	}
	if r.Plan.Tied(p) && !r.Plan.Bound() {
		r.versions.wrote(store.ID{Part: p, Kind: store.GradSum})
	}
	if r.Plan.UpdatesInBackward() {
		r.versions.wrote(id)
	}
	return nil
}

// sumRows writes the gradient of a piece of a tile: rows of the vocabulary from first on.
func (r *run) sumRows(s device.Stream, p int, stored device.Mat, at int64, first, rows int) error {
	sum, err := r.sumPiece(s, p, stored, at, int64(stored.Cols))
	if err != nil {
		return err
	}
	table := device.NewMat(sum.Mem, tensor.F32, rows, r.Plan.Model.Hidden)
	for m := range r.Plan.Numerics.MicroBatches {
		s.ScatterAdd(table, r.embeddingGrad(m), r.hostIDs(m), first)
	}
	if sum.Mem != stored.Mem {
		s.Cast(stored, sum)
	}
	return nil
}

// sumTouched does the same by way of the rows of the step's tokens alone: they are summed and rounded, as many at a
// time as there is room for, to the same bits, and put in their places among zeros.
func (r *run) sumTouched(s device.Stream, stored device.Mat, first, rows int) {
	hidden, perMicro := r.Plan.Model.Hidden, 4*int64(r.Plan.Numerics.Positions())
	numbers, room := r.host.Numbers, r.host.Touched
	ofTokens := r.host.OfTokens.Slice(4*int64(first), 4*int64(rows))
	most := int(room.Len) / hidden / 6
	table := device.NewMat(stored.Mem, tensor.BF16, rows, hidden)
	s.Zero(stored.Mem)
	from, _ := slices.BinarySearch(r.touched, int32(first))
	end, _ := slices.BinarySearch(r.touched, int32(first+rows))
	for ; from < end; from += most {
		n := min(most, end-from)
		sum := device.NewMat(room, tensor.F32, n, hidden)
		rounded := device.NewMat(room.Slice(sum.Len, 2*int64(n*hidden)), tensor.BF16, n, hidden)
		s.Zero(sum.Mem)
		for m := range r.Plan.Numerics.MicroBatches {
			s.ScatterAdd(sum, r.embeddingGrad(m), numbers.Slice(int64(m)*perMicro, perMicro), from)
		}
		s.Cast(rounded, sum)
		s.Gather(table, rounded, ofTokens, from)
	}
}

// embeddingGrad is the gradient of x[1][m].
func (r *run) embeddingGrad(m int) device.Mat {
	if r.Plan.Bound() {
		return r.buffers.DX[m]
	}
	return r.hostInput(m)
}

// sumPiece is where a piece of the embedding's gradient is summed in fp32, with what is in it so far: the head's share for a
// tied tile, else zeros, and then it is summed where it is stored.
func (r *run) sumPiece(s device.Stream, p int, stored device.Mat, first, elems int64) (device.Mat, error) {
	bytes := elems * tensor.F32.Bytes()
	at := first * tensor.F32.Bytes()
	switch {
	case r.Plan.Tied(p) && r.Plan.Bound():
		return device.NewVec(r.host.Sums[p].Slice(at, bytes), tensor.F32, int(elems)), nil
	case r.Plan.Tied(p):
		l, err := r.borrow(plan.LaneUpdate, store.ID{Part: p, Kind: store.GradSum}, at, bytes, store.Change)
		if err != nil {
			return device.Mat{}, err
		}
		return device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), tensor.F32, int(elems)), nil
	}
	s.Zero(stored.Mem)
	return stored, nil
}

// saveState hands what is kept of a part between steps to the checkpoint.
func (r *run) saveState(part int) error {
	for kind := range store.Kind(store.Kinds) {
		id := store.ID{Part: part, Kind: kind}
		if kind.Transient() || r.specs[id].Bytes == 0 {
			continue
		}
		if err := r.save(r.ctx, id, r.versions.at(id)); err != nil {
			return fmt.Errorf("save %s: %w", r.Plan.Model.Parts[part].Name, err)
		}
	}
	return nil
}
