package stream

import (
	"iter"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// The operations that only several hosts have. plan/schedule_network.go says which messages pass between hosts, and why
// hosts do not wait for each other in a circle. A message holds its lane until it has been sent or has arrived.
//
// A host whose operation fails sends no more, and what others send it does not come if they wait for what it has not
// sent. So the lanes of a host that has failed give up the messages that they are at (execution.giveUp). The other
// hosts hear of it from Peers.

// transfer sends what an operation reads to another host, or receives what it writes. Weights go piece by piece.
func (r *execution) transfer(op *plan.Op) error {
	what, move, access := op.Reads, r.Peers.Send, store.Read
	if op.Do == plan.DoReceive {
		what, move, access = op.Writes, r.Peers.Receive, store.Write
	}
	switch o := what[0]; o.What {
	case plan.CohortSum:
		b := r.bytes(plan.SumsPurpose, r.hostSum(o))
		if len(b) == 0 { // a tile without tokens of the cohort, as both hosts know
			return nil
		}
		return r.met(move(r.network, op.Host, b))
	case plan.Balance:
		return r.met(move(r.network, op.Host, r.bytes(plan.ResultsPurpose, r.host.At(&o))))
	}
	w, id := r.indexOf(op), store.ID{Part: op.Part, Kind: store.Weights}
	for off, n := range r.specs[id].Pieces() {
		l, err := r.borrow(w, id, off, n, access)
		if err != nil {
			return err
		}
		err = r.met(move(r.network, op.Host, l.Bytes()))
		r.release(w)
		if err != nil {
			return err
		}
	}
	if access == store.Write {
		r.versions.updated(op.Part) // a fetch that waits for this one borrows the new version
	}
	return nil
}

// addToTotal adds the sum of a cohort to those before it. The last one completes the gradient of the part: it is
// rounded to its stored type, squared in the pieces in which one host alone does it, and stored.
func (r *execution) addToTotal(s device.Stream, op *plan.Op) error {
	total := r.wholeTotal(op.Part)
	var spent device.Mem
	if op.Reads[0].OfTokens {
		r.addRowsToTotal(s, op, total)
	} else {
		spent = r.hostSum(op.Reads[0])
		r.addSum(s, total, device.NewVec(spent, r.Plan.Numerics.SumType(), total.Cols), op.First)
	}
	if len(op.Writes) == 1 {
		return nil
	}
	id := store.ID{Part: op.Part, Kind: store.Grad}
	t := r.forms[id.Kind].Type
	squares := r.Plan.SquaresAt(op.Part)
	byPiece := r.Plan.SquaresAt(op.Part+1) > squares+8 || op.Reads[0].OfTokens
	rounded := total
	if !byPiece && t != tensor.F32 {
		rounded = device.NewVec(spent.Slice(0, int64(total.Cols)*t.Bytes()), t, total.Cols)
		s.Cast(rounded, total)
	}
	if !byPiece {
		s.SumSquares(r.hostResult(squares), rounded)
	}
	i := int64(0)
	for off, n := range r.specs[id].Pieces() {
		l, err := r.borrow(updates, id, off, n, store.Write)
		if err != nil {
			return err
		}
		first, elems := int(off/t.Bytes()), int(n/t.Bytes())
		stored := device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), t, elems)
		if of := rounded.ColRange(first, elems); of.DType == t {
			s.Copy(stored.Mem, of.Mem)
		} else {
			s.Cast(stored, of)
		}
		if byPiece {
			s.SumSquares(r.hostResult(squares+8*i), stored)
			i++
		}
		if r.isScarce(id) {
			if err := r.syncAndRelease(s, updates); err != nil {
				return err
			}
		}
	}
	return nil
}

// wholeTotal is the buffer for the total of a part's gradient.
func (r *execution) wholeTotal(part int) device.Mat {
	return device.NewVec(r.host.Home(plan.Total, 0), tensor.F32, int(r.Plan.Model.Parts[part].Layout.StateElems))
}

// addSum adds the sum of a cohort to a total, or overwrites it: one in bf16 some elements at a time.
func (r *execution) addSum(s device.Stream, total, sum device.Mat, overwrite bool) {
	switch {
	case sum.DType == tensor.F32:
		addTo(s, total, sum, overwrite)
	case overwrite:
		s.Cast(total, sum)
	default:
		for first, n := range r.castable(total.Cols, tensor.F32) {
			wide, part := device.NewVec(r.host.Home(plan.Cast, 0), tensor.F32, n), total.ColRange(first, n)
			s.Cast(wide, sum.ColRange(first, n))
			s.Add(part, part, wide)
		}
	}
}

// addRowsToTotal adds the rows of a cohort's tokens to the total of a tile, which begins with zeros.
func (r *execution) addRowsToTotal(s device.Stream, op *plan.Op, total device.Mat) {
	if op.First {
		s.Zero(total.Mem)
	}
	part, from := &r.Plan.Model.Parts[op.Part], op.Reads[0]
	first, n := r.touchedIn(op.Part, from.Cohort)
	if n == 0 {
		return
	}
	table := part.Layout.Fields[0].Shape
	rows := device.NewMat(r.hostSum(from), r.Plan.Numerics.SumType(), n, table[1])
	ids := r.host.Home(plan.Occurring, from.Cohort).Slice(4*int64(first), 4*int64(n))
	s.ScatterAdd(device.NewMat(total.Mem, tensor.F32, table[0], table[1]), rows, ids, part.FirstRow, 1)
}

// touchedIn are the tokens of a cohort of the step that have rows in a tile: the number of the first, and how many.
func (r *execution) touchedIn(part, cohort int) (first, n int) {
	p, tokens := &r.Plan.Model.Parts[part], r.touched[cohort]
	first, _ = slices.BinarySearch(tokens, int32(p.FirstRow))
	end, _ := slices.BinarySearch(tokens, int32(p.FirstRow+p.Layout.Fields[0].Shape[0]))
	return first, end - first
}

// roundToBF16 rounds a sum where it is, some elements at a time.
func (r *execution) roundToBF16(s device.Stream, sum device.Mat) {
	for first, n := range r.castable(sum.Cols, tensor.BF16) {
		part, narrow := sum.ColRange(first, n), device.NewVec(r.host.Home(plan.Cast, 0), tensor.BF16, n)
		s.Cast(narrow, part)
		s.Cast(part, narrow)
	}
}

// castable cuts elements of a vector into ranges for which plan.Cast has room in a type: the first of each, and
// how many.
func (r *execution) castable(elems int, in tensor.DType) iter.Seq2[int, int] {
	most := int(r.host.Home(plan.Cast, 0).Len / in.Bytes())
	return func(yield func(first, n int) bool) {
		for first := 0; first < elems; first += most {
			if !yield(first, min(most, elems-first)) {
				return
			}
		}
	}
}

// hostSum returns the memory of a cohort's sum in its slot of the ring, as the host's lane sees it.
func (r *execution) hostSum(o plan.Operand) device.Mem {
	bytes := r.Plan.SumBytes(o.Index)
	if o.OfTokens {
		_, rows := r.touchedIn(o.Index, o.Cohort)
		bytes = int64(rows*r.Plan.Model.Parts[o.Index].Layout.Fields[0].Shape[1]) * r.Plan.Numerics.SumType().Bytes()
	}
	return r.host.Slot(&o).Slice(0, bytes)
}

// met marks the error of a message: one that was given up after a failure of this host says nothing.
func (r *execution) met(err error) error {
	switch {
	case err == nil:
		return nil
	case r.network.Err() != nil && r.ctx.Err() == nil:
		return carried{err}
	}
	return ofPeers{err}
}
