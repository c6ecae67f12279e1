package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// The memory of what operations name. The plan has decided where each operand is; the buffers are laid out once for the
// plan, and this file alone looks up which of them an operand has. A new kind of place is a case here and none elsewhere.

// mem is the memory of an operand as the device of the operation sees it, except of extents that are moved piece by
// piece.
func (r *execution) mem(op *plan.Op, o plan.Operand) (device.Mem, error) {
	b, pinned, part := r.ranks[op.Rank].buffers, r.ranks[op.Rank].pinned, o.Index
	inPlace := o.At == plan.InPlace
	switch o.What {
	case plan.Weights:
		bytes := r.Plan.Model.Parts[part].Layout.WeightElems * r.types[store.Weights].Bytes()
		switch {
		case inPlace:
			return r.bind(op, store.ID{Part: part, Kind: store.Weights}, bytes, store.Read)
		case o.Slot >= 0:
			return b.Slots[o.Slot].Slice(0, bytes), nil
		}
		return b.Own[part], nil
	case plan.Gradient:
		switch {
		case inPlace:
			return r.bind(op, store.ID{Part: part, Kind: store.Grad}, r.gradBytes(part), store.Write)
		case o.At == plan.Host:
			return pinned.Sums[part].Slice(int64(o.Cohort)*r.gradBytes(part), r.gradBytes(part)), nil
		case o.Slot >= 0:
			return b.Grads[o.Slot].Slice(0, r.gradBytes(part)), nil
		}
		return b.OwnG[part], nil
	case plan.CohortSum:
		if o.At == plan.Host {
			return pinned.CohortSums[o.Slot].Slice(0, r.Plan.SumBytes(part)), nil
		}
		return b.CohortSums[part], nil
	case plan.Narrowed:
		return b.Narrowed.Slice(0, r.Plan.SumBytes(part)), nil
	case plan.Rounded:
		switch id := (store.ID{Part: part, Kind: store.Grad}); {
		case o.At == plan.Host:
			return r.bind(op, id, r.specs[id].Bytes, store.Write)
		case o.Slot >= 0:
			return b.Stages[o.Slot], nil
		}
		return b.State[part][store.Grad], nil
	case plan.Tokens:
		if o.At == plan.Device {
			return b.Batches, nil
		}
		return pinned.Batches, nil
	case plan.Input, plan.InputGrad:
		switch {
		case o.At == plan.Host && o.Slot >= 0:
			return pinned.Passing[o.Slot], nil
		case o.At == plan.Host:
			return pinned.Inputs[o.Index-1][o.Micro], nil
		}
		return r.rows(o).Mem, nil
	case plan.Side, plan.SideGrad:
		if o.At == plan.Host {
			return sideRows(pinned, o), nil
		}
		return r.rows(o).Mem, nil
	case plan.Kept:
		onHost := pinned.Activations[o.Index-1][o.Micro]
		if o.At == plan.Host {
			return onHost, nil
		}
		return b.KeptRing[o.Slot].Slice(0, onHost.Len), nil
	case plan.HeadUp, plan.HeadDown:
		if o.At == plan.Host {
			return pinned.HeadPassing[o.Slot], nil
		}
		ending := r.ranks[o.Rank].buffers.Ending[r.Plan.HeadBuffer(o.Micro)]
		if o.What == plan.HeadUp {
			return ending.Up(), nil
		}
		return ending.Down(), nil
	case plan.Outcome:
		if o.At == plan.Host {
			return pinned.Outcomes[o.Index-1][o.Micro], nil
		}
		return b.Outcomes[o.Index-1][o.Micro].Mem, nil
	case plan.Cache:
		onHost := pinned.Caches[o.Index-1]
		if o.At == plan.Host {
			return onHost, nil
		}
		return b.CacheRing[o.Slot].Slice(0, onHost.Len), nil
	case plan.Balance:
		if o.At == plan.Host {
			return r.balance(pinned.Balance, o), nil
		}
		return r.balance(b.Balance.Mem, o), nil
	case plan.LossSum:
		return r.result(op, o, r.Plan.LossAt(o.Micro), 8), nil
	case plan.Loads:
		return r.result(op, o, r.Plan.LoadsAt(o.Index-1, o.Cohort), r.Plan.Model.Blocks[o.Index-1].LoadBytes()), nil
	case plan.Squares:
		return r.result(op, o, r.Plan.SquaresAt(part), 8), nil
	case plan.Tally:
		return r.result(op, o, r.Plan.TallyAt(), device.TallyBytes), nil
	}
	panic("stream: an operand without memory: " + r.Plan.Model.Parts[max(part, 0)].Name)
}

// balance is the memory of a Balance, of the memory that all of them have.
func (r *execution) balance(all device.Mem, o plan.Operand) device.Mem {
	first, rows := r.Plan.BalanceRows(o)
	row := int64(r.ranks[0].buffers.Balance.Cols) * tensor.F32.Bytes()
	return all.Slice(int64(first)*row, int64(rows)*row)
}

// onDisk reports whether an operand is in files.
func onDisk(o plan.Operand) bool { return o.At == plan.Disk }

// inStore reports whether an operand is an extent of a part in the store, which lanes borrow.
func inStore(o plan.Operand) bool {
	return o.At == plan.Host && (o.What == plan.Stored || o.What == plan.Rounded || o.What == plan.Gradient)
}

// rows is x or dx of a micro-batch on the device, [T, Hidden], or rows of a side, or of its gradient.
func (r *execution) rows(o plan.Operand) device.Mat {
	b := r.ranks[o.Rank].buffers
	switch {
	case o.What == plan.Side:
		return b.Sides[o.Index][o.Micro]
	case o.What == plan.SideGrad:
		return b.SideGrads[o.Index][o.Micro]
	case o.Slot >= 0:
		return b.Shared[o.Slot]
	case o.What == plan.InputGrad:
		return b.DX[o.Micro]
	case o.Index <= len(b.Saved) && b.Saved[o.Index-1] != nil:
		return b.Saved[o.Index-1][o.Micro]
	}
	return b.Working[o.Index%2][o.Micro]
}

// hostRows is x or dx of a micro-batch, or rows of a side or of its gradient, where the operand has them: as the host's
// lane sees them.
func (r *execution) hostRows(o plan.Operand) device.Mat {
	if o.At != plan.Host {
		return r.rows(o)
	}
	n := &r.Plan.Numerics
	if o.What == plan.Side || o.What == plan.SideGrad {
		return device.NewMat(sideRows(r.host, o), n.Compute, n.Positions(), r.Plan.Model.Sides[o.Index].Cols)
	}
	return device.NewMat(r.host.Inputs[o.Index-1][o.Micro], n.Compute, n.Positions(), r.Plan.Model.Hidden)
}

// sideRows are rows of a side, or of its gradient, in host memory.
func sideRows(host *plan.HostBuffers, o plan.Operand) device.Mem {
	if o.What == plan.SideGrad {
		return host.SideGrads[o.Index][o.Micro]
	}
	return host.Sides[o.Index][o.Micro]
}

// sides are the rows of a block's sides for a micro-batch: of a sliced one those columns that are the block's.
func (r *execution) sides(op *plan.Op) (all []nn.SideRows) {
	m, here := r.Plan.Model, r.ranks[op.Rank].buffers
	for _, s := range m.Blocks[op.Layer-1].Sides() {
		rows := nn.SideRows{Value: here.Sides[s.Number][op.Micro]}
		if op.Visit.To == nn.Backward {
			rows.Grad = here.SideGrads[s.Number][op.Micro]
			rows.Fresh = s.Sliced || op.Layer == m.Sides[s.Number].Last()
		}
		if s.Sliced && !s.Makes {
			rows = rows.Columns((op.Layer-1)*s.Cols, s.Cols)
		}
		all = append(all, rows)
	}
	return all
}

// result is the memory to which the device writes a result of the step.
func (r *execution) result(op *plan.Op, o plan.Operand, at, bytes int64) device.Mem {
	here := &r.ranks[op.Rank]
	if o.At == plan.InPlace {
		return here.pinned.HostResults.Slice(at, bytes)
	}
	return here.buffers.Results.Slice(at, bytes)
}

// tokenLosses are the losses of a micro-batch by position, which the device writes with the step's results: F32 [1, T].
func (r *execution) tokenLosses(rank, m int) device.Mat {
	to, n := r.ranks[rank].buffers.Results, r.Plan.Numerics.Positions()
	if to.IsZero() { // results are written where the host reads them
		to = r.ranks[rank].pinned.HostResults
	}
	return device.NewMat(to.Slice(r.Plan.TokenLossesAt(m), int64(n)*tensor.F32.Bytes()), tensor.F32, 1, n)
}

// hostResult is the memory to which the host's lane writes a scalar of the step.
func (r *execution) hostResult(at int64) device.Mem { return r.host.HostResults.Slice(at, 8) }

// state has the part's state on the device by kind, its gradient in the stored type included: of a part whose state
// is there when it is updated.
func (r *execution) state(o plan.Operand) [store.Kinds]device.Mem {
	if o.Slot < 0 {
		return r.ranks[o.Rank].buffers.State[o.Index]
	}
	var mem [store.Kinds]device.Mem
	for _, kind := range append(r.Plan.Numerics.Scheme().States(), store.Grad) {
		bytes := r.specs[store.ID{Part: o.Index, Kind: kind}].Bytes
		mem[kind] = r.ranks[o.Rank].buffers.StateRing[o.Slot][kind].Slice(0, bytes)
	}
	return mem
}

func (e *Engine) gradBytes(part int) int64 { return e.Plan.Model.Parts[part].Layout.StateElems * 4 }

// params are the weights of a part where an operand has them.
func (r *execution) params(op *plan.Op, o plan.Operand) (nn.Params, error) {
	mem, err := r.mem(op, o)
	return nn.Weights(mem, r.Plan.Model.Parts[o.Index].Layout, r.types[store.Weights]), err
}

// gradients are the fp32 gradients of a part where an operand has them.
func (r *execution) gradients(op *plan.Op, o plan.Operand) (nn.Params, error) {
	mem, err := r.mem(op, o)
	return nn.Gradients(mem, r.Plan.Model.Parts[o.Index].Layout), err
}

// hostLogits are the wanted logits of a micro-batch in host memory: F32 [LogitRows, Vocab].
func (r *execution) hostLogits(rank, m int) device.Mat {
	rows, vocab := r.Plan.Outputs.LogitRows, r.Plan.Model.Vocab
	return device.NewMat(r.ranks[rank].pinned.Logits[m], tensor.F32, rows, vocab)
}

// logitsOf tells a visit where to write the logits of a chunk of a tile: in their columns on the host where the device
// can, else densely in a buffer of the device.
func (r *execution) logitsOf(op *plan.Op, o plan.Operand) nn.Wanted {
	part := &r.Plan.Model.Parts[op.Part]
	first, n := r.logitChunk(o.Index)
	w := nn.Wanted{First: r.logitRow + first, Rows: n}
	if o.At == plan.Device {
		w.To = device.NewMat(r.ranks[op.Rank].buffers.Logits, tensor.F32, n, part.Layout.Fields[0].Shape[0])
	} else {
		w.To, w.FirstColumn = r.hostLogits(op.Rank, o.Micro).RowRange(first, n), part.FirstRow
	}
	return w
}
