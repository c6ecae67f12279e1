package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// The memory of what operations name. The plan has given each operand a cell, and laid the cells out; here they are
// looked up as the device of an operation sees them.

// operands are the memories of what an operation reads and writes, as its device sees them: zero of an extent that
// moves piece by piece. Extents that the device uses where the store keeps them are borrowed for the lane.
func (r *execution) operands(op *plan.Op) (reads, writes []device.Mem, err error) {
	all := make([]device.Mem, 0, len(op.Reads)+len(op.Writes))
	for _, list := range [][]plan.Operand{op.Reads, op.Writes} {
		for i := range list {
			o := &list[i]
			mem := r.ranks[op.Rank].memory.At(o)
			id, access, bound := store.ID{Part: o.Index, Kind: store.Grad}, store.Write, false
			switch o.What {
			case plan.Weights:
				id.Kind, access, bound = store.Weights, store.Read, o.At == plan.InPlace
			case plan.Gradient:
				bound = o.At == plan.InPlace
			case plan.Rounded:
				bound = o.At == plan.Host && op.Do == plan.DoRound
			}
			if bound {
				_, bytes := r.Plan.Range(o)
				if mem, err = r.bind(op, id, bytes, access); err != nil {
					return nil, nil, err
				}
			}
			all = append(all, mem)
		}
	}
	return all[:len(op.Reads)], all[len(op.Reads):], nil
}

// onDisk reports whether an operand is in files.
func onDisk(o plan.Operand) bool { return o.At == plan.Disk }

// inStore reports whether an operand is an extent of a part in the store, which lanes borrow.
func inStore(o plan.Operand) bool {
	return o.At == plan.Host && (o.What == plan.Stored || o.What == plan.Rounded || o.What == plan.Gradient)
}

// sides are the rows of a block's sides for a micro-batch: of a sliced one those columns that are the block's.
func (r *execution) sides(op *plan.Op) (all []nn.SideRows) {
	m, memory := r.Plan.Model, r.ranks[op.Rank].memory
	for _, s := range m.Blocks[op.Layer-1].Sides() {
		rows := nn.SideRows{Value: memory.SideRows(plan.Side, op.Rank, s.Number, op.Micro)}
		if op.Visit.To == nn.Backward {
			rows.Grad = memory.SideRows(plan.SideGrad, op.Rank, s.Number, op.Micro)
			rows.Fresh = s.Sliced || op.Layer == m.Sides[s.Number].Last()
		}
		if s.Sliced && !s.Makes {
			rows = rows.Columns((op.Layer-m.ChainOf(op.Layer).First)*s.Cols, s.Cols)
		}
		all = append(all, rows)
	}
	return all
}

// figures has the figures of a micro-batch's positions, which the device writes with the step's results: F32
// [nn.Head.Figures, T].
func (r *execution) figures(rank, m int) device.Mat {
	memory, n := r.ranks[rank].memory, r.Plan.Numerics.Positions()
	to := memory.Here(plan.Results, rank, 0)
	if to.IsZero() { // results are written where the host reads them
		to = memory.Home(plan.HostResults, 0)
	}
	rows := r.Plan.Model.Head.Figures()
	bytes := int64(rows) * int64(n) * tensor.F32.Bytes()
	return device.NewMat(to.Slice(r.Plan.TokenLossesAt(m), bytes), tensor.F32, rows, n)
}

// hostResult is the memory to which the host's lane writes a scalar of the step.
func (r *execution) hostResult(at int64) device.Mem {
	return r.host.Home(plan.HostResults, 0).Slice(at, 8)
}

// drawsOf tells a visit how rows draw tokens, the first of which is that one of the wanted ones, and where to.
func (r *execution) drawsOf(op *plan.Op, w *nn.Wanted, first int) {
	const each, drawn = device.DrawWords * 4, device.DrawnFigures * 4
	memory := r.ranks[op.Rank].memory
	tokens := memory.Here(plan.Tokens, op.Rank, 0)
	if tokens.IsZero() { // the device reads them where they are
		tokens = memory.Home(plan.Tokens, 0)
	}
	w.Vocab, w.Draws = r.drawVocab, tokens.Slice(r.Plan.DrawsAt()+int64(first)*each, int64(w.Rows)*each)
	for i := range op.Writes {
		if o := &op.Writes[i]; o.What == plan.Drawn {
			w.Drawn = device.NewMat(memory.At(o).Slice(int64(first)*drawn, int64(w.Rows)*drawn), tensor.F32, w.Rows,
				device.DrawnFigures)
		}
	}
}

// logitsOf tells a visit where to write the logits of a chunk of a tile: in their columns on the host where the device
// can, else densely in a buffer of the device.
func (r *execution) logitsOf(op *plan.Op, o *plan.Operand) nn.Wanted {
	part, memory := &r.Plan.Model.Parts[op.Part], r.ranks[op.Rank].memory
	first, n := r.logitChunk(o.Index)
	w := nn.Wanted{First: r.logitRow + first, Rows: n}
	if r.Plan.Outputs.Draws {
		r.drawsOf(op, &w, first)
	}
	if o.At == plan.Device {
		w.To = device.NewMat(memory.Here(plan.LogitRows, op.Rank, 0), tensor.F32, n, part.Layout.Fields[0].Shape[0])
	} else {
		w.To, w.FirstColumn = memory.Logits(o.Micro).RowRange(first, n), part.FirstRow
	}
	return w
}
