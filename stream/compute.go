package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// computeLane enqueues an operation of the device's arithmetic.
func (r *run) computeLane(s device.Stream, op *plan.Op) error {
	switch op.Kind {
	case plan.Update:
		r.updateResident(s, op)
		return nil
	case plan.ZeroGrad:
		g, err := r.gradient(op.Part, op.Grad)
		if err == nil {
			g.Clear(s)
		}
		return err
	case plan.Round:
		return r.round(s, op)
	case plan.Forward, plan.Reopen, plan.Backward:
		if len(r.Plan.Model.GroupParts[op.Layer-1]) > 0 {
			return r.visitGroups(s, op)
		}
		return r.visitBlock(s, op)
	}
	return r.computeHead(s, op)
}

// visitBlock enqueues a visit of a block, forward or backward.
func (r *run) visitBlock(s device.Stream, op *plan.Op) error {
	b, m := r.buffers, op.Micro
	i := op.Layer - 1
	block, kept := r.Plan.Model.Blocks[i], b.Kept[i][max(op.Kept, 0)]
	if op.Kept < 0 {
		kept = b.Kept[i][m]
	}
	w, err := r.weights(op.Part, op.Slot)
	if err != nil {
		return err
	}
	x := r.input(op.Input, op.Layer, m)
	if op.Kind == plan.Forward {
		block.Forward(s, w, x, r.input(op.Output, op.Layer+1, m), r.batch(m), &b.Rope, kept, b.ForwardWork[i])
		return nil
	}
	g, err := r.gradient(op.Part, op.Grad)
	if err != nil {
		return err
	}
	g.Fresh = m == 0 // micro-batches come in order
	block.Backward(s, w, g, x, r.inputGrad(op.Output, m), r.batch(m), &b.Rope, kept, b.BackwardWork[i])
	return nil
}

// visitGroups enqueues a visit of a block in groups: of its trunk, or of one of them.
func (r *run) visitGroups(s device.Stream, op *plan.Op) error {
	b, m, i := r.buffers, op.Micro, op.Layer-1
	block, between, batch := r.Plan.Model.Blocks[i], b.Between[m], r.batch(m)
	isGroup := r.Plan.Model.Parts[op.Part].Group > 0
	w, err := r.weights(op.Part, op.Slot)
	if err != nil {
		return err
	}
	if op.Kind == plan.Forward {
		y := r.input(op.Output, op.Layer+1, m)
		if isGroup {
			block.ForwardGroup(s, w, y, batch, b.ForwardWork[i], between)
		} else {
			block.ForwardTrunk(s, w, r.input(op.Input, op.Layer, m), y, batch, &b.Rope, b.Kept[i][m], b.ForwardWork[i], between)
		}
		return nil
	}
	if op.Kind == plan.Reopen {
		block.Reopen(s, w, r.input(op.Input, op.Layer, m), batch, &b.Rope, b.Kept[i][m], b.BackwardWork[i], between)
		return nil
	}
	g, err := r.gradient(op.Part, op.Grad)
	if err != nil {
		return err
	}
	g.Fresh = m == 0 // micro-batches come in order
	dx := r.inputGrad(op.Output, m)
	if isGroup {
		block.BackwardGroup(s, w, g, dx, batch, b.BackwardWork[i], between, op.First)
	} else {
		block.Close(s, w, g, r.input(op.Input, op.Layer, m), dx, batch, &b.Rope, b.Kept[i][m], b.BackwardWork[i], between)
	}
	return nil
}

// computeHead enqueues an operation of the head.
func (r *run) computeHead(s device.Stream, op *plan.Op) error {
	b, m := r.buffers, op.Micro
	h := r.Plan.HeadBuffer(m)
	switch op.Kind {
	case plan.HeadStats, plan.HeadGrad:
		w, err := r.weights(op.Part, op.Slot)
		if err != nil {
			return err
		}
		first, targets := r.Plan.Model.Parts[op.Part].FirstRow, r.batch(m).Targets
		if op.Kind == plan.HeadStats {
			r.head.Stats(s, w.Mat(0), first, b.Normed[h], b.Stat[h], targets, b.StatsWork)
			return nil
		}
		g, err := r.gradient(op.Part, op.Grad)
		if err != nil {
			return err
		}
		r.head.Grad(s, w.Mat(0), g.Mat(0), first, b.Normed[h], b.Stat[h], b.DNormed[h], op.First, m == 0, targets, r.scale,
			b.StatsWork)
		return nil
	case plan.HeadLogits:
		w, err := r.weights(op.Part, op.Slot)
		if err != nil {
			return err
		}
		r.headLogits(s, op, w.Mat(0))
		return nil
	case plan.HeadVisit:
		return r.visitHead(s, m)
	case plan.HeadLoss:
		r.loss(s, m)
		return nil
	case plan.HeadNorm, plan.HeadInput:
		norm := r.Plan.Model.NormPart
		w, err := r.weights(norm, -1)
		if err != nil {
			return err
		}
		x := r.input(op.Input, len(r.Plan.Model.Blocks)+1, m)
		if op.Kind == plan.HeadNorm {
			r.head.NormForward(s, w.Mat(0), x, b.Normed[h], b.NormRstd[h])
			s.LSEInit(b.Stat[h])
			return nil
		}
		g, err := r.gradient(norm, -1)
		if err != nil {
			return err
		}
		r.head.NormBackward(s, w.Mat(0), g.Mat(0), x, b.NormRstd[h], b.DNormed[h], r.inputGrad(op.Output, m))
		return nil
	}
	panic(unknown(op))
}

func (r *run) visitHead(s device.Stream, m int) error {
	var tiles, grads []device.Mat
	for _, p := range r.Plan.Model.HeadTiles {
		w, err := r.weights(p, -1)
		if err != nil {
			return err
		}
		g, err := r.gradient(p, -1)
		if err != nil {
			return err
		}
		tiles, grads = append(tiles, w.Mat(0)), append(grads, g.Mat(0))
	}
	b, h := r.buffers, r.Plan.HeadBuffer(m)
	r.head.Visit(s, tiles, grads, b.Normed[h], b.Stat[h], b.DNormed[h], m == 0, r.batch(m).Targets, r.scale, b.VisitWork)
	r.loss(s, m)
	return nil
}

// loss writes the token losses of a micro-batch and their sum.
func (r *run) loss(s device.Stream, m int) {
	b, h := r.buffers, r.Plan.HeadBuffer(m)
	s.TokenLoss(b.Loss[h], b.Stat[h], r.batch(m).Targets)
	s.Sum(r.result(r.Plan.LossAt(m)), b.Loss[h])
}

// headLogits computes a tile's logits of a chunk: in their columns on the host where that is bound, else densely in a
// buffer of the device.
func (r *run) headLogits(s device.Stream, op *plan.Op, tile device.Mat) {
	first, n := r.logitChunk(op)
	xn := r.buffers.Normed[r.Plan.HeadBuffer(op.Micro)].RowRange(r.logitRow+first, n)
	to, col := r.logitsTo(op, tile.Rows)
	r.head.Logits(s, tile, col, xn, to)
}

// round brings a complete gradient into its stored type and squares what is stored.
func (r *run) round(s device.Stream, op *plan.Op) error {
	g, err := r.gradient(op.Part, op.Grad)
	if err != nil {
		return err
	}
	elems := int(r.Plan.Model.Parts[op.Part].Layout.StateElems)
	full := device.NewVec(g.Mem, tensor.F32, elems)
	stored := full
	if t := r.types[store.Grad]; t != tensor.F32 {
		mem, err := r.rounded(op.Part, op.Stage)
		if err != nil {
			return err
		}
		stored = device.NewVec(mem, t, elems)
		s.Cast(stored, full)
	}
	s.SumSquares(r.result(r.Plan.SquaresAt(op.Part)), stored)
	return nil
}

// updateResident applies the pending update to a part on the device.
func (r *run) updateResident(s device.Stream, op *plan.Op) {
	l := r.Plan.Model.Parts[op.Part].Layout
	bad := r.result(r.Plan.BadAt())
	if op.First {
		s.Zero(bad)
	}
	r.adamW(s, op.Part, r.stateOf(op), span{0, l.WeightElems}, span{0, l.StateElems}, bad)
}
