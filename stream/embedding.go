package stream

import (
	"fmt"
	"iter"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// The problem. A table with a row for each token, such as the embedding, is as large as several blocks. A step reads
// the rows of its own tokens and, unless a head shares the table, adds gradients to these alone. Yet the gradient that
// is stored has all rows, since the optimizer goes over all of them.
//
// The obvious answer treats the table as a layer: fetch it, look rows up on the device, sum the gradient there. Most of
// that traffic is of rows that no token of the step has.
//
// The answer here: tables stay in host memory or on disk, and the host's lane looks rows up and sums gradients. Only
// rows of the step's tokens pass over the link. Two things are hard then, both since one lane of the host has all this
// work: the first layer waits for rows of a table whose update is pending (lookupAhead), and the norm waits for the
// gradient of the table, whose last rows come when the backward pass is over (scatter).

// lookup looks up the rows of a table that a micro-batch needs, or all of them, a piece of the table at a time.
func (r *execution) lookup(s device.Stream, op *plan.Op) error {
	table, micro := op.Table, max(op.Micro, 0)
	for _, p := range table.Tiles {
		id := store.ID{Part: p, Kind: store.Weights}
		for off, n := range r.specs[id].Pieces() {
			l, err := r.borrow(updates, id, off, n, store.Read)
			if err != nil {
				return err
			}
			first, rows := r.rowsOf(p, off, n, r.forms[id.Kind].Type)
			piece := device.NewMat(r.onHost[l.Region].Slice(l.Off, l.Len), r.forms[id.Kind].Type, rows, table.Cols)
			for i := range op.Writes {
				if n := r.computed(micro + i); n > 0 {
					s.Gather(r.host.Rows(&op.Writes[i]).RowRange(0, n), piece, r.hostIDs(micro+i), first)
				}
			}
			if r.isScarce(id) {
				if err := r.syncAndRelease(s, updates); err != nil {
					return err
				}
			}
		}
	}
	for i := range op.Writes {
		if n := r.computed(micro + i); n > 0 {
			scaleRows(s, table, r.host.Rows(&op.Writes[i]).RowRange(0, n))
		}
	}
	return r.syncAndRelease(s, updates)
}

// scaleRows makes rows of the table what is looked up.
func scaleRows(s device.Stream, table *model.Lookup, y device.Mat) {
	if by := table.Scale(y.DType); by != 1 {
		s.Scale(y, y, by)
	}
}

// lookupAhead looks up the rows of a table that a micro-batch needs, as the pending update will leave them; the table
// is updated later, to the same bits.
//
// The first block needs rows at the very beginning of a step, and an update of the table would take as long as that of
// several blocks. The obvious answer updates just these rows in the table. The update of the rest would then have to
// pass over them, row by row. So copies of the rows are updated instead, each once however often its token occurs, in
// buffers of their own, some rows at a time. An update of the same numbers gives the same bits, so nothing has to
// remember which rows were ahead; the state of the copies is dropped.
func (r *execution) lookupAhead(s device.Stream, op *plan.Op) error {
	table, n := op.Table, r.computed(op.Micro)
	if n == 0 {
		return nil
	}
	tiles := make([][store.Kinds]device.Mem, len(table.Tiles))
	for kind, form := range r.forms {
		k := store.Kind(kind)
		if !form.Kept() {
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
	y, most := r.host.Rows(&op.Writes[0]).RowRange(0, n), r.Plan.AheadRows(table)
	each := 4 * int64(r.Plan.Numerics.Positions())
	of := func(mem device.Mem) device.Mem { return mem.Slice(int64(op.Micro)*each, each) }
	tokens, numbers := of(r.host.Home(plan.AheadTokens, 0)), of(r.host.Home(plan.AheadNumbers, 0))
	for first, n := 0, 0; first < r.aheadTokens[op.Micro]; first += n {
		n = min(most, r.aheadTokens[op.Micro]-first)
		rows := r.updateRows(s, table, tiles, tokens.Slice(4*int64(first), 4*int64(n)), n)
		s.Gather(y, rows, numbers, first)
	}
	scaleRows(s, table, y)
	return s.Sync()
}

// updateRows copies n rows of a table, of all kinds, from its tiles, updates the copies and returns their weights.
func (r *execution) updateRows(s device.Stream, table *model.Lookup, tiles [][store.Kinds]device.Mem, ids device.Mem,
	n int) device.Mat {
	var of [store.Kinds]device.Mat
	var field tensor.Placed
	for kind, form := range r.forms {
		if !form.Kept() {
			continue
		}
		of[kind] = device.NewVec(r.host.Home(plan.Ahead, kind), form.Type, int(form.Elems(int64(n*table.Cols))))
		copies := asRows(of[kind].Mem, n)
		for i, p := range table.Tiles {
			part := &r.Plan.Model.Parts[p]
			rows := part.Layout.Fields[0].Shape[0]
			field = part.Layout.Fields[0]
			from := tiles[i][kind].Slice(0, copies.Len/int64(n)*int64(rows))
			s.Gather(copies, asRows(from, rows), ids, part.FirstRow)
		}
	}
	tally := r.host.Home(plan.AheadTally, 0)
	if r.Plan.Numerics.Master != optim.Split24 {
		// The copies' moments are dropped, so it does not matter how they are rounded.
		r.updateRun(s, of, field.Decay, field.ParamGroup, device.Draw{}, tally)
	} else {
		// Each row has the random words of its own place in its tile.
		for i, token := range hostmem.I32(r.bytes(plan.TokensPurpose, ids)) {
			part, first := r.placeOf(table, int(token))
			r.updateRun(s, rowOf(&of, i, n), field.Decay, field.ParamGroup, r.draw(part, first), tally)
		}
	}
	return device.NewMat(of[store.Weights].Mem, r.forms[store.Weights].Type, n, table.Cols)
}

// placeOf is the tile that has a row of a table, and where the row's state begins there.
func (r *execution) placeOf(table *model.Lookup, row int) (part int, first int64) {
	for _, p := range table.Tiles {
		tile := &r.Plan.Model.Parts[p]
		field := &tile.Layout.Fields[0]
		if at := row - tile.FirstRow; at >= 0 && at < field.Shape[0] {
			return p, field.State + int64(at*table.Cols)
		}
	}
	panic(fmt.Sprintf("stream: a table has no row %d", row))
}

// rowOf is row i of n, of vectors of all kinds.
func rowOf(of *[store.Kinds]device.Mat, i, n int) (row [store.Kinds]device.Mat) {
	for kind, v := range of {
		if v.IsZero() {
			continue
		}
		elems := int64(v.Cols / n)
		bytes := elems * v.DType.Bytes()
		row[kind] = device.NewVec(v.Slice(int64(i)*bytes, bytes), v.DType, int(elems))
	}
	return row
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
	return plan.Batch(r.host.Home(plan.Tokens, 0), m, r.Plan.Numerics.Positions()).IDs
}

// numbersOf are the numbers of a micro-batch's tokens (orderTokens).
func (r *execution) numbersOf(m int) device.Mem {
	each := 4 * int64(r.Plan.Numerics.Positions())
	return r.host.Home(plan.Numbers, 0).Slice(int64(m)*each, each)
}

// prepareScatter clears the stored gradient of a tile of a table, or rounds to it what the head has summed.
func (r *execution) prepareScatter(s device.Stream, op *plan.Op) error {
	id := store.ID{Part: op.Part, Kind: store.Grad}
	stored, err := r.whole(id, store.Write)
	if err != nil {
		return err
	}
	if op.Do == plan.DoClear {
		s.Zero(stored.Mem)
	} else {
		sum, err := r.whole(store.ID{Part: op.Part, Kind: store.GradSum}, store.Read)
		if err != nil {
			return err
		}
		s.Cast(stored, sum)
	}
	if err := r.syncAndRelease(s, updates); err != nil {
		return err
	}
	r.versions.wrote(id) // once more than the step does
	return nil
}

// whole borrows an extent in host memory at once, for the host's lane.
func (r *execution) whole(id store.ID, access store.Access) (device.Mat, error) {
	t, bytes := r.forms[id.Kind].Type, r.specs[id].Bytes
	if id.Kind == store.GradSum {
		t = tensor.F32
	}
	l, err := r.borrow(updates, id, 0, bytes, access)
	if err != nil {
		return device.Mat{}, err
	}
	return device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), t, int(bytes/t.Bytes())), nil
}

// scatter adds the gradient of the embedding's output to a tile of the table, micro-batches of each cohort in order,
// then rounds and squares it. With several hosts it makes the sum of one cohort.
//
// The obvious answer clears a gradient in fp32, adds the rows, and rounds and squares all of it. That takes memory for
// the whole table in fp32 and several passes over it, at the end of a step, when nothing else is left to do. There are
// three ways around it, by what the plan has made ready:
//
//	scatterCohort    with several hosts: the sum of one cohort for the owner of the tile, who adds, rounds and squares
//	scatterPrepared  prepareScatter has cleared all rows, or rounded what the head has summed; rows of tokens follow
//	scatterPieces    nothing is prepared, as for a gradient on disk: a piece of the tile at a time
//
// The last two sum the rows of the step's tokens by themselves where nothing else adds to the tile (sumTouched). The
// way depends on the placement, so all of them add in one order: rows in the order of micro-batches, cohorts in their
// order, one rounding.
func (r *execution) scatter(s device.Stream, op *plan.Op) error {
	p := op.Part
	var err error
	switch {
	case op.Writes[0].What == plan.CohortSum:
		return r.scatterCohort(s, op)
	case op.Do == plan.DoScatterOnto:
		err = r.scatterPrepared(s, op)
	default:
		err = r.scatterPieces(s, op)
	}
	if err != nil {
		return err
	}
	if err := r.syncAndRelease(s, updates); err != nil {
		return err
	}
	if sum := (store.ID{Part: p, Kind: store.GradSum}); r.specs[sum].Bytes > 0 {
		r.versions.wrote(sum)
	}
	if r.versions.counted[p] {
		r.versions.wrote(store.ID{Part: p, Kind: store.Grad})
	}
	return nil
}

// scatterPrepared is scatter where the stored gradient of all but the step's tokens is there already (prepareScatter).
func (r *execution) scatterPrepared(s device.Stream, op *plan.Op) error {
	id := store.ID{Part: op.Part, Kind: store.Grad}
	stored, err := r.whole(id, store.ReadWrite)
	if err != nil {
		return err
	}
	part := &r.Plan.Model.Parts[op.Part]
	tile := tilePiece{elems: int64(stored.Cols), first: part.FirstRow, rows: part.Layout.Fields[0].Shape[0]}
	if r.beginsElsewhere(op.Part) {
		sum, err := r.whole(store.ID{Part: op.Part, Kind: store.GradSum}, store.ReadWrite)
		if err != nil {
			return err
		}
		r.addRows(s, op, sum, tile, op.Reads)
		r.roundTouched(s, op, stored, sum, tile)
	} else {
		r.sumTouched(s, op, stored, tile)
	}
	each := int(r.specs[id].Piece / r.forms[id.Kind].Type.Bytes())
	for i := 0; i*each < stored.Cols; i++ {
		piece := stored.ColRange(i*each, min(each, stored.Cols-i*each))
		s.SumSquares(r.hostResult(r.Plan.SquaresAt(op.Part)+8*int64(i)), piece)
	}
	return nil
}

// scatterPieces is scatter a piece at a time.
func (r *execution) scatterPieces(s device.Stream, op *plan.Op) error {
	p := op.Part
	id := store.ID{Part: p, Kind: store.Grad}
	begun := r.beginsElsewhere(p)
	scarce := r.isScarce(id) || r.isScarce(store.ID{Part: p, Kind: store.GradSum})
	i := int64(0)
	for off, n := range r.specs[id].Pieces() {
		t := r.forms[id.Kind].Type
		piece := tilePiece{at: off / t.Bytes(), elems: n / t.Bytes()}
		piece.first, piece.rows = r.rowsOf(p, off, n, t)
		var sum device.Mat
		var err error
		if begun {
			if sum, err = r.sumOnto(s, op, piece); err != nil {
				return err
			}
		}
		l, err := r.borrow(updates, id, off, n, store.Write)
		if err != nil {
			return err
		}
		stored := device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), t, int(piece.elems))
		switch {
		case begun:
			s.Cast(stored, sum)
		case t != tensor.F32:
			s.Zero(stored.Mem)
			r.sumTouched(s, op, stored, piece)
		default:
			r.sumRows(s, op, stored, piece)
		}
		s.SumSquares(r.hostResult(r.Plan.SquaresAt(p)+8*i), stored)
		i++
		if scarce {
			if err := r.syncAndRelease(s, updates); err != nil {
				return err
			}
		}
	}
	return nil
}

// scatterCohort makes the sum of a cohort of a tile in a slot, for the owner of the tile: of what visits have summed,
// if they have, and of the cohort's rows; or of rows alone (plan.Operand.OfTokens). One that is exchanged in bf16 is
// made where totals are, and rounded from there.
func (r *execution) scatterCohort(s device.Stream, op *plan.Op) error {
	slot, l, dxs := r.hostSum(op.Writes[0]), op.Table, op.Reads
	t := r.Plan.Numerics.SumType()
	sum := slot
	if t != tensor.F32 {
		sum = r.host.Home(plan.Total, 0).Slice(0, slot.Len/t.Bytes()*tensor.F32.Bytes())
	}
	part := &r.Plan.Model.Parts[op.Part]
	ids, first, rows := r.hostIDs, part.FirstRow, part.Layout.Fields[0].Shape[0]
	if op.Writes[0].OfTokens {
		ids = r.numbersOf
		if first, rows = r.touchedIn(op.Part, op.Writes[0].Cohort); rows == 0 {
			return nil
		}
	}
	if n := len(dxs) - 1; dxs[n].What == plan.Gradient {
		if err := r.copyBegun(s, op.Part, dxs[n].Cohort, sum); err != nil {
			return err
		}
		dxs = dxs[:n]
	} else {
		s.Zero(sum)
	}
	table := device.NewMat(sum, tensor.F32, rows, l.Cols)
	for i := range dxs {
		r.scatterRows(s, op, table, &dxs[i], ids, first)
	}
	if t != tensor.F32 {
		elems := int(slot.Len / t.Bytes())
		s.Cast(device.NewVec(slot, t, elems), device.NewVec(sum, tensor.F32, elems))
	}
	return nil
}

// copyBegun copies the sum of a cohort that visits have begun.
func (r *execution) copyBegun(s device.Stream, p, cohort int, to device.Mem) error {
	first := int64(cohort) * r.Plan.TiedSumStride(p)
	if here := r.host.Home(plan.Gradient, p); !here.IsZero() {
		s.Copy(to, here.Slice(first, to.Len))
		return nil
	}
	id := store.ID{Part: p, Kind: store.GradSum}
	for off := int64(0); off < to.Len; off += r.specs[id].Piece {
		n := min(r.specs[id].Piece, to.Len-off)
		l, err := r.borrow(updates, id, first+off, n, store.Read)
		if err != nil {
			return err
		}
		s.Copy(to.Slice(off, n), r.onHost[l.Region].Slice(l.Off, l.Len))
		if r.isScarce(id) {
			if err := r.syncAndRelease(s, updates); err != nil {
				return err
			}
		}
	}
	return nil
}

// tilePiece is a piece of a tile's gradient: its elements from `at` on, and its rows in the vocabulary.
type tilePiece struct {
	at, elems   int64
	first, rows int
}

// cohorts yields the rows of gradients that an operation reads, those of a cohort at a time.
func (r *execution) cohorts(op *plan.Op) iter.Seq[[]plan.Operand] {
	return slices.Chunk(op.Reads, r.Plan.MicrosDown())
}

// scatterRows adds the gradients of a micro-batch's rows, of those that the pass computes, to a sum over rows from the
// first one on; ids numbers the row of each.
func (r *execution) scatterRows(s device.Stream, op *plan.Op, sum device.Mat, of *plan.Operand,
	ids func(micro int) device.Mem, first int) {
	if n := r.computed(of.Micro); n > 0 {
		dx := r.host.Rows(of).RowRange(0, n)
		s.ScatterAdd(sum, dx, ids(of.Micro), first, op.Table.Scale(dx.DType))
	}
}

// addRows adds the gradients of a cohort's rows to a sum over rows of the vocabulary from `first` on. The sum of the
// cohort is then complete, and rounded if it is to be.
func (r *execution) addRows(s device.Stream, op *plan.Op, sum device.Mat, piece tilePiece, dxs []plan.Operand) {
	l := op.Table
	table := device.NewMat(sum.Mem, tensor.F32, piece.rows, l.Cols)
	for i := range dxs {
		r.scatterRows(s, op, table, &dxs[i], r.hostIDs, piece.first)
	}
	if r.Plan.Numerics.NarrowSums() {
		r.roundToBF16(s, sum)
	}
}

// total is the buffer that receives the sums of cohorts of a piece, if there are several.
func (r *execution) total(piece tilePiece) device.Mat {
	return device.NewVec(r.host.Home(plan.Total, 0), tensor.F32, int(piece.elems))
}

// sumRows writes the gradient of a piece of a tile, which is stored in fp32 and has nothing of the head's. A cohort is
// summed where the gradient is stored. The total begins with zeros, as on several hosts, where cohorts have rows of
// their own tokens alone: so that it does not matter to the sign of a zero which cohorts have a row.
func (r *execution) sumRows(s device.Stream, op *plan.Op, stored device.Mat, piece tilePiece) {
	apart := r.Plan.Numerics.CohortCount() > 1
	if apart {
		s.Zero(r.total(piece).Mem)
	}
	for dxs := range r.cohorts(op) {
		s.Zero(stored.Mem)
		r.addRows(s, op, stored, piece, dxs)
		if apart {
			addTo(s, r.total(piece), stored, false)
		}
	}
	if apart {
		s.Copy(stored.Mem, r.total(piece).Mem)
	}
}

// addTo adds to a total, or overwrites it.
func addTo(s device.Stream, total, sum device.Mat, overwrite bool) {
	if overwrite {
		s.Copy(total.Mem, sum.Mem)
		return
	}
	s.Add(total, total, sum)
}

// sumOnto returns the gradient of a piece of a tile whose sums have begun elsewhere: each cohort's rows are added to
// the sum of the cohort.
func (r *execution) sumOnto(s device.Stream, op *plan.Op, piece tilePiece) (device.Mat, error) {
	scarce := r.isScarce(store.ID{Part: op.Part, Kind: store.GradSum})
	cohort := 0
	for dxs := range r.cohorts(op) {
		sum, err := r.begunSum(op.Part, cohort, piece)
		if err != nil {
			return device.Mat{}, err
		}
		r.addRows(s, op, sum, piece, dxs)
		if r.Plan.Numerics.CohortCount() == 1 {
			return sum, nil
		}
		addTo(s, r.total(piece), sum, cohort == 0)
		cohort++
		if scarce { // staging memory is for one piece
			if err := r.syncAndRelease(s, updates); err != nil {
				return device.Mat{}, err
			}
		}
	}
	return r.total(piece), nil
}

// beginsElsewhere reports whether visits have summed a share of a tile's gradient, as those of the head do where it
// shares the tile.
func (r *execution) beginsElsewhere(p int) bool {
	return !r.host.Home(plan.Gradient, p).IsZero() || r.specs[store.ID{Part: p, Kind: store.GradSum}].Bytes > 0
}

// begunSum is a piece of the sum of a cohort that visits have begun: in fp32, and to be added to.
func (r *execution) begunSum(p, cohort int, piece tilePiece) (device.Mat, error) {
	at := int64(cohort)*r.Plan.TiedSumStride(p) + piece.at*tensor.F32.Bytes()
	bytes := piece.elems * tensor.F32.Bytes()
	if here := r.host.Home(plan.Gradient, p); !here.IsZero() {
		return device.NewVec(here.Slice(at, bytes), tensor.F32, int(piece.elems)), nil
	}
	id := store.ID{Part: p, Kind: store.GradSum}
	whole := min(r.specs[id].Piece, r.specs[id].Bytes-at) // with what fills the last one of a cohort
	l, err := r.borrow(updates, id, at, whole, store.ReadWrite)
	if err != nil {
		return device.Mat{}, err
	}
	return device.NewVec(r.onHost[l.Region].Slice(l.Off, bytes), tensor.F32, int(piece.elems)), nil
}

// touchedRows calls do for the rows of a piece of a tile that the step's tokens have: n of them from the
// number `from` on, and at most `most` at a time.
func (r *execution) touchedRows(piece tilePiece, most int, do func(from, n int)) {
	touched := r.touched[0]
	from, _ := slices.BinarySearch(touched, int32(piece.first))
	end, _ := slices.BinarySearch(touched, int32(piece.first+piece.rows))
	for ; from < end; from += most {
		do(from, min(most, end-from))
	}
}

// putTouched puts rows in their places in a piece of a tile, those of the tokens from a number on.
func (r *execution) putTouched(s device.Stream, stored, rows device.Mat, piece tilePiece, from int) {
	ofTokens := r.host.Home(plan.OfTokens, 0).Slice(4*int64(piece.first), 4*int64(piece.rows))
	s.Gather(device.NewMat(stored.Mem, tensor.BF16, piece.rows, rows.Cols), rows, ofTokens, from)
}

// sumTouched writes the gradient of a piece of a tile that is stored rounded, and has been cleared, by way of the rows
// of the step's tokens alone: they are summed and rounded, and put in their places among zeros.
func (r *execution) sumTouched(s device.Stream, op *plan.Op, stored device.Mat, piece tilePiece) {
	l, room := op.Table, r.host.Home(plan.Touched, 0)
	perElem, apart := r.Plan.TouchedBytesPerElem(), r.Plan.Numerics.CohortCount() > 1
	r.touchedRows(piece, int(room.Len/(int64(l.Cols)*perElem)), func(from, n int) {
		elems := int64(n * l.Cols)
		total := device.NewMat(room, tensor.F32, n, l.Cols)
		rounded := device.NewMat(room.Slice(elems*(perElem-2), 2*elems), tensor.BF16, n, l.Cols)
		s.Zero(total.Mem)
		for dxs := range r.cohorts(op) {
			sum := total
			if apart {
				sum = device.NewMat(room.Slice(4*elems, 4*elems), tensor.F32, n, l.Cols)
				s.Zero(sum.Mem)
			}
			for i := range dxs {
				r.scatterRows(s, op, sum, &dxs[i], r.numbersOf, from)
			}
			if r.Plan.Numerics.NarrowSums() { // by way of what is free until the total is complete
				s.Cast(rounded, sum)
				s.Cast(sum, rounded)
			}
			if apart {
				s.Add(total, total, sum)
			}
		}
		s.Cast(rounded, total)
		r.putTouched(s, stored, rounded, piece, from)
	})
}

// roundTouched rounds the rows of the step's tokens of a tile's sum to the gradient that is stored.
func (r *execution) roundTouched(s device.Stream, op *plan.Op, stored, sum device.Mat, tile tilePiece) {
	cols, room := op.Table.Cols, r.host.Home(plan.Touched, 0)
	table := device.NewMat(sum.Mem, tensor.F32, tile.rows, cols)
	perElem := r.Plan.TouchedBytesPerElem()
	r.touchedRows(tile, int(room.Len/(int64(cols)*perElem)), func(from, n int) {
		elems := int64(n * cols)
		rows := device.NewMat(room, tensor.F32, n, cols)
		rounded := device.NewMat(room.Slice(4*elems, 2*elems), tensor.BF16, n, cols)
		s.Gather(rows, table, r.host.Home(plan.Occurring, 0).Slice(4*int64(from), 4*int64(n)), tile.first)
		s.Cast(rounded, rows)
		r.putTouched(s, stored, rounded, tile, from)
	})
}
