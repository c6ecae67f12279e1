package stream

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Tables with a row for each token, such as the embedding, are looked up and summed on the host: rows of the step's
// tokens are less traffic than the table.

// lookup looks up the rows of a table that the step needs, a piece of it at a time.
func (r *execution) lookup(s device.Stream, op *plan.Op) error {
	table := r.Plan.LookupOf(op)
	for _, p := range table.Tiles {
		id := store.ID{Part: p, Kind: store.Weights}
		for off, n := range r.specs[id].Pieces() {
			l, err := r.borrow(updates, id, off, n, store.Read)
			if err != nil {
				return err
			}
			first, rows := r.rowsOf(p, off, n, r.types[id.Kind])
			piece := device.NewMat(r.onHost[l.Region].Slice(l.Off, l.Len), r.types[id.Kind], rows, table.Cols)
			for m, x := range op.Writes {
				s.Gather(r.hostRows(x).RowRange(0, r.passRows), piece, r.hostIDs(m), first)
			}
			if r.isScarce(id) {
				if err := r.settle(s, updates); err != nil {
					return err
				}
			}
		}
	}
	for _, x := range op.Writes {
		scaleRows(s, table, r.hostRows(x).RowRange(0, r.passRows))
	}
	return r.settle(s, updates)
}

// scaleRows makes rows of the table what is looked up.
func scaleRows(s device.Stream, table *model.Lookup, y device.Mat) {
	if by := table.Scale(y.DType); by != 1 {
		s.Scale(y, y, by)
	}
}

// lookupAhead looks up the rows of the embedding that the step needs and updates them where they land; the table is
// updated later, to the same bits. The other state of the rows is copied to buffers of its own, for some rows at a
// time.
func (r *execution) lookupAhead(s device.Stream, op *plan.Op) error {
	table := r.Plan.LookupOf(op)
	most := r.Plan.AheadRows(table)
	tiles := make([][store.Kinds]device.Mem, len(table.Tiles))
	for kind, t := range r.types {
		k := store.Kind(kind)
		if t == tensor.Invalid {
			continue
		}
		for i, p := range table.Tiles {
			id := store.ID{Part: p, Kind: k}
			l, err := r.borrow(updates, id, 0, r.specs[id].Bytes, store.Read)
			if err != nil {
				return err
			}
			tiles[i][kind] = r.onHost[l.Region].Slice(l.Off, l.Len)
		}
	}
	for m, x := range op.Writes {
		y := r.hostRows(x)
		for first := 0; first < y.Rows; first += most {
			n := min(most, y.Rows-first)
			ids, to := r.hostIDs(m).Slice(4*int64(first), 4*int64(n)), r.host.Ahead
			to[store.Weights] = y.RowRange(first, n).Mem
			r.updateRows(s, table, to, tiles, ids, n)
			scaleRows(s, table, y.RowRange(first, n))
		}
	}
	return s.Sync()
}

// updateRows copies n rows of a table, of all kinds, from its tiles and updates the copies.
func (r *execution) updateRows(s device.Stream, table *model.Lookup, to [store.Kinds]device.Mem,
	tiles [][store.Kinds]device.Mem, ids device.Mem, n int) {
	var of [store.Kinds]device.Mat
	var field tensor.Placed
	for kind, t := range r.types {
		if t == tensor.Invalid {
			continue
		}
		elems := store.Kind(kind).Elems(int64(n * table.Cols))
		of[kind] = device.NewVec(to[kind], t, int(elems))
		copies := asRows(of[kind].Mem, n)
		for i, p := range table.Tiles {
			part := &r.Plan.Model.Parts[p]
			rows := part.Layout.Fields[0].Shape[0]
			field = part.Layout.Fields[0]
			from := tiles[i][kind].Slice(0, copies.Len/int64(n)*int64(rows))
			s.Gather(copies, asRows(from, rows), ids, part.FirstRow)
		}
	}
	r.updateRun(s, of, field.Decay, field.ParamGroup, r.host.AheadBad)
}

// asRows is memory as rows of numbers of two bytes, whatever they are, for a gather to copy.
func asRows(mem device.Mem, rows int) device.Mat {
	return device.NewMat(mem, tensor.BF16, rows, int(mem.Len/tensor.BF16.Bytes())/rows)
}

// rowsOf are the rows of the vocabulary in the n bytes at off of a tile; pieces end between rows, and padding is less
// than a row.
func (r *execution) rowsOf(part int, off, n int64, t tensor.DType) (first, rows int) {
	p := &r.Plan.Model.Parts[part]
	table := p.Layout.Fields[0].Shape
	row := int64(table[1]) * t.Bytes()
	first = int(off / row)
	rows = min(int(n/row), table[0]-first)
	return p.FirstRow + first, rows
}

func (r *execution) hostIDs(m int) device.Mem {
	return plan.Batch(r.host.Batches, m, r.Plan.Numerics.Positions()).IDs
}

// scatter adds the gradient of the embedding's output to a tile of the table, a piece at a time, micro-batches in
// order, then rounds and squares the piece.
func (r *execution) scatter(s device.Stream, op *plan.Op) error {
	p := op.Part
	id := store.ID{Part: p, Kind: store.Grad}
	scarce := r.isScarce(id) || r.isScarce(store.ID{Part: p, Kind: store.GradSum})
	i := int64(0)
	for off, n := range r.specs[id].Pieces() {
		t := r.types[id.Kind]
		l, err := r.borrow(updates, id, off, n, store.Write)
		if err != nil {
			return err
		}
		elems := n / t.Bytes()
		stored := device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), t, int(elems))
		first, rows := r.rowsOf(p, off, n, t)
		if r.Plan.SumsTouchedRows(p) {
			r.sumTouched(s, op, stored, first, rows)
		} else if err := r.sumRows(s, op, stored, off/t.Bytes(), first, rows); err != nil {
			return err
		}
		s.SumSquares(r.hostResult(r.Plan.SquaresAt(p)+8*i), stored)
		i++
		if scarce {
			if err := r.settle(s, updates); err != nil {
				return err
			}
		}
	}
	if err := r.settle(s, updates); err != nil {
		return err
	}
	if sum := (store.ID{Part: p, Kind: store.GradSum}); r.specs[sum].Bytes > 0 {
		r.versions.wrote(sum)
	}
	if r.Plan.UpdatesInBackward() {
		r.versions.wrote(id)
	}
	return nil
}

// sumRows writes the gradient of a piece of a tile: rows of the vocabulary from first on.
func (r *execution) sumRows(s device.Stream, op *plan.Op, stored device.Mat, at int64, first, rows int) error {
	sum, err := r.sumPiece(s, op.Part, stored, at, int64(stored.Cols))
	if err != nil {
		return err
	}
	l := r.Plan.LookupOf(op)
	table := device.NewMat(sum.Mem, tensor.F32, rows, l.Cols)
	for m, dx := range op.Reads {
		dx := r.hostRows(dx)
		s.ScatterAdd(table, dx, r.hostIDs(m), first, l.Scale(dx.DType))
	}
	if sum.Mem != stored.Mem {
		s.Cast(stored, sum)
	}
	return nil
}

// sumTouched does the same by way of the rows of the step's tokens alone: they are summed and rounded, as many at a
// time as there is room for, to the same bits, and put in their places among zeros.
func (r *execution) sumTouched(s device.Stream, op *plan.Op, stored device.Mat, first, rows int) {
	l, perMicro := r.Plan.LookupOf(op), 4*int64(r.Plan.Numerics.Positions())
	numbers, room := r.host.Numbers, r.host.Touched
	ofTokens := r.host.OfTokens.Slice(4*int64(first), 4*int64(rows))
	most := int(room.Len) / l.Cols / 6
	table := device.NewMat(stored.Mem, tensor.BF16, rows, l.Cols)
	s.Zero(stored.Mem)
	from, _ := slices.BinarySearch(r.touched, int32(first))
	end, _ := slices.BinarySearch(r.touched, int32(first+rows))
	for ; from < end; from += most {
		n := min(most, end-from)
		sum := device.NewMat(room, tensor.F32, n, l.Cols)
		rounded := device.NewMat(room.Slice(sum.Len, 2*int64(n*l.Cols)), tensor.BF16, n, l.Cols)
		s.Zero(sum.Mem)
		for m, dx := range op.Reads {
			dx := r.hostRows(dx)
			s.ScatterAdd(sum, dx, numbers.Slice(int64(m)*perMicro, perMicro), from, l.Scale(dx.DType))
		}
		s.Cast(rounded, sum)
		s.Gather(table, rounded, ofTokens, from)
	}
}

// sumPiece returns the fp32 memory in which a piece of the embedding's gradient is summed, with its sum so far: the
// head's share where the two are tied, else zeros, and then it is summed where it is stored.
func (r *execution) sumPiece(s device.Stream, p int, stored device.Mat, first, elems int64) (device.Mat, error) {
	at, bytes := first*tensor.F32.Bytes(), elems*tensor.F32.Bytes()
	sum := store.ID{Part: p, Kind: store.GradSum}
	switch here := r.host.Sums[p]; {
	case !here.IsZero():
		return device.NewVec(here.Slice(at, bytes), tensor.F32, int(elems)), nil
	case r.specs[sum].Bytes > 0:
		l, err := r.borrow(updates, sum, at, bytes, store.ReadWrite)
		if err != nil {
			return device.Mat{}, err
		}
		return device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), tensor.F32, int(elems)), nil
	}
	s.Zero(stored.Mem)
	return stored, nil
}
