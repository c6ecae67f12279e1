package stream

import (
	"cmp"
	"iter"

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
		return r.met(move(r.network, op.Host, r.bytes(plan.SumsPurpose, r.hostSum(o))))
	case plan.Balance:
		return r.met(move(r.network, op.Host, r.bytes(plan.ResultsPurpose, r.balance(r.host.Balance, o))))
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
	elems := r.Plan.Model.Parts[op.Part].Layout.StateElems
	sum := device.NewVec(r.hostSum(op.Reads[0]), r.sumType(), int(elems))
	total := r.wholeTotal(op.Part)
	switch {
	case sum.DType == tensor.F32:
		addTo(s, total, sum, op.First)
	case op.First:
		s.Cast(total, sum)
	default:
		r.addWidened(s, total, sum)
	}
	if len(op.Writes) == 1 {
		return nil
	}
	id := store.ID{Part: op.Part, Kind: store.Grad}
	t := r.types[id.Kind]
	rounded := total.Mem
	if t != tensor.F32 {
		rounded = sum.Mem.Slice(0, elems*t.Bytes()) // the sum has been added
		s.Cast(device.NewVec(rounded, t, int(elems)), total)
	}
	squares, i := r.Plan.SquaresAt(op.Part), int64(0)
	square := func(off, n int64) {
		s.SumSquares(r.hostResult(squares+8*i), device.NewVec(rounded.Slice(off, n), t, int(n/t.Bytes())))
		i++
	}
	byPiece := r.Plan.SquaresAt(op.Part+1) > squares+8
	if !byPiece {
		square(0, rounded.Len)
	}
	for off, n := range r.specs[id].Pieces() {
		if byPiece {
			square(off, n)
		}
		l, err := r.borrow(updates, id, off, n, store.Write)
		if err != nil {
			return err
		}
		s.Copy(r.onHost[l.Region].Slice(l.Off, l.Len), rounded.Slice(off, n))
		if r.isScarce(id) {
			if err := r.settle(s, updates); err != nil {
				return err
			}
		}
	}
	return nil
}

// sumType is the type in which hosts exchange the sums of cohorts.
func (r *execution) sumType() tensor.DType { return cmp.Or(r.Plan.Numerics.Exchange, tensor.F32) }

// wholeTotal is the buffer for the total of a part's gradient.
func (r *execution) wholeTotal(part int) device.Mat {
	elems := r.Plan.Model.Parts[part].Layout.StateElems
	return device.NewVec(r.host.Total.Slice(0, r.gradBytes(part)), tensor.F32, int(elems))
}

// addWidened adds a sum in bf16 to a total, some elements at a time.
func (r *execution) addWidened(s device.Stream, total, sum device.Mat) {
	for first, n := range r.castable(total.Cols, tensor.F32) {
		wide := device.NewVec(r.host.Cast, tensor.F32, n)
		s.Cast(wide, sum.ColRange(first, n))
		part := total.ColRange(first, n)
		s.Add(part, part, wide)
	}
}

// roundToBF16 rounds a sum where it is, some elements at a time.
func (r *execution) roundToBF16(s device.Stream, sum device.Mat) {
	for first, n := range r.castable(sum.Cols, tensor.BF16) {
		part, narrow := sum.ColRange(first, n), device.NewVec(r.host.Cast, tensor.BF16, n)
		s.Cast(narrow, part)
		s.Cast(part, narrow)
	}
}

// castable cuts elements of a vector into ranges for which HostBuffers.Cast has room in a type: the first of each, and
// how many.
func (r *execution) castable(elems int, in tensor.DType) iter.Seq2[int, int] {
	most := int(r.host.Cast.Len / in.Bytes())
	return func(yield func(first, n int) bool) {
		for first := 0; first < elems; first += most {
			if !yield(first, min(most, elems-first)) {
				return
			}
		}
	}
}

// hostSum is a slot of the ring for sums of cohorts, as the host's lane sees it.
func (r *execution) hostSum(o plan.Operand) device.Mem {
	return r.host.CohortSums[o.Slot].Slice(0, r.Plan.SumBytes(o.Index))
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
