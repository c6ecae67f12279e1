package stream

import (
	"fmt"
	"iter"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// exec enqueues one operation on its lane's stream.
func (r *run) exec(op *plan.Op) error {
	s, b := r.streams[op.Lane], r.buffers
	switch op.Kind {
	case plan.Update:
		if op.Lane == plan.LaneCompute {
			r.updateHere(s, op)
			return nil
		}
		return r.updatePart(s, op.Part)
	case plan.SaveState:
		return r.saveState(op.Part)
	case plan.Gather:
		return r.gather(s)
	case plan.GatherAhead:
		return r.gatherAhead(s)
	case plan.Scatter:
		return r.scatter(s, op.Part)
	case plan.Upload:
		s.Copy(b.Batches, r.pinned.Batches)
	case plan.Fetch:
		return r.fetch(s, op)
	case plan.FetchState:
		return r.fetchState(s, op)
	case plan.Home:
		return r.home(s, op)
	case plan.Load, plan.Save:
		return r.moveInput(s, op)
	case plan.SaveKept, plan.LoadKept:
		r.moveKept(s, op)
	case plan.Drain:
		return r.drain(s, op)
	case plan.DrainSum:
		return r.drainSum(s, op)
	case plan.DrainInput:
		s.Copy(r.pinned.Inputs[0][op.Micro], r.inputGrad(op.Input, op.Micro).Mem)
	case plan.Collect:
		s.Copy(r.pinned.DeviceResults, b.Results)
	case plan.ZeroGrad:
		g, err := r.gradient(op.Part, op.Grad)
		if err != nil {
			return err
		}
		g.Clear(s)
	case plan.Round:
		return r.round(s, op)
	case plan.DrainLogits:
		r.drainLogits(s, op)
	default:
		return r.compute(s, op)
	}
	return nil
}

// compute enqueues the operations that run layers.
func (r *run) compute(s device.Stream, op *plan.Op) error {
	b, m := r.buffers, op.Micro
	h := r.Plan.HeadBuffer(m)
	switch op.Kind {
	case plan.Forward, plan.Backward:
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
		r.head.Grad(s, w.Mat(0), g.Mat(0), first, b.Normed[h], b.Stat[h], b.DNormed[h], op.First, m == 0, targets, r.scale, b.StatsWork)
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
	panic(fmt.Sprintf("stream: no way to do %v", op))
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

// result is where the device writes a scalar of the step.
func (r *run) result(at int64) device.Mem {
	if r.Plan.Bound() {
		return r.pinned.HostResults.Slice(at, 8)
	}
	return r.buffers.Results.Slice(at, 8)
}

// batch is the tokens of a micro-batch as the device sees them.
func (r *run) batch(m int) *nn.Batch {
	mem := r.buffers.Batches
	if r.Plan.Bound() {
		mem = r.pinned.Batches
	}
	return plan.Batch(mem, m, r.Plan.Numerics.Positions())
}

// input is x[layer][m] on the device: in a shared buffer, if that is not -1.
func (r *run) input(shared, layer, m int) device.Mat {
	if shared >= 0 {
		return r.buffers.Shared[shared]
	}
	if layer <= len(r.buffers.Saved) {
		if saved := r.buffers.Saved[layer-1]; saved != nil {
			return saved[m]
		}
	}
	return r.buffers.Working[layer%2][m]
}

// inputGrad is dx[m] on the device: in a shared buffer, if that is not -1.
func (r *run) inputGrad(shared, m int) device.Mat {
	if shared >= 0 {
		return r.buffers.Shared[shared]
	}
	return r.buffers.DX[m]
}

// weights is a part on the device: in its slot, or bound where it lies.
func (r *run) weights(part, slot int) (nn.Params, error) {
	l := r.Plan.Model.Parts[part].Layout
	bytes := l.WeightElems * r.types[store.Weights].Bytes()
	switch {
	case r.Plan.Bound():
		mem, err := r.bind(store.ID{Part: part, Kind: store.Weights}, bytes, store.Read)
		return nn.Weights(mem, l, r.types[store.Weights]), err
	case slot >= 0:
		return nn.Weights(r.buffers.Slots[slot].Slice(0, bytes), l, r.types[store.Weights]), nil
	}
	return nn.Weights(r.buffers.Own[part], l, r.types[store.Weights]), nil
}

// gradient is the fp32 gradient of a part, wherever the plan puts it; the zero Params for a frozen part.
func (r *run) gradient(part, slot int) (nn.Params, error) {
	l := r.Plan.Model.Parts[part].Layout
	switch {
	case !r.Plan.Trained(part):
		return nn.Params{}, nil
	case r.Plan.GradInExtent(part) && r.Plan.Tied(part):
		return nn.Gradients(r.pinned.Sums[part], l), nil
	case r.Plan.GradInExtent(part):
		mem, err := r.bind(store.ID{Part: part, Kind: store.Grad}, r.gradBytes(part), store.Write)
		return nn.Gradients(mem, l), err
	}
	return nn.Gradients(r.gradSlot(part, slot), l), nil
}

func (r *run) gradSlot(part, slot int) device.Mem {
	if slot >= 0 {
		return r.buffers.Grads[slot].Slice(0, r.gradBytes(part))
	}
	return r.buffers.OwnG[part]
}

func (e *Engine) gradBytes(part int) int64 { return e.Plan.Model.Parts[part].Layout.StateElems * 4 }

// bind borrows an extent for the compute lane until the lane's work on this schedule is done.
func (r *run) bind(id store.ID, bytes int64, access store.Access) (device.Mem, error) {
	if mem, ok := r.bound[id]; ok {
		return mem, nil
	}
	l, err := r.borrow(plan.LaneCompute, id, 0, bytes, access)
	if err != nil {
		return device.Mem{}, err
	}
	mem := r.registered[l.Region].Slice(l.Off, l.Len)
	r.bound[id] = mem
	return mem, nil
}

// borrow takes a lease that the lane gives back when its work is done.
func (r *run) borrow(lane plan.Lane, id store.ID, off, n int64, access store.Access) (*store.Lease, error) {
	if access != store.Write {
		r.readAhead(lane, id, off)
	}
	version := r.versions.at(id)
	if id.Kind == store.Inputs && access == store.Read {
		version++ // what this schedule has saved
	}
	l, err := r.Store.Borrow(r.ctx, lane, id, off, n, access, version)
	if err != nil {
		return nil, err
	}
	r.leases[lane] = append(r.leases[lane], l)
	return l, nil
}

func (r *run) fetch(s device.Stream, op *plan.Op) error {
	w, err := r.weights(op.Part, op.Slot)
	if err != nil {
		return err
	}
	id := store.ID{Part: op.Part, Kind: store.Weights}
	err = r.pieces(op.Lane, id, store.Read, func(off int64, piece device.Mem) {
		s.Copy(w.Mem.Slice(off, piece.Len), piece)
	})
	if err == nil && (r.Plan.UpdatesInBackward() || r.Plan.StateResident(op.Part) || r.Plan.StatePasses(op.Part)) {
		err = r.retire(op.Lane, 0) // it is updated in this same schedule, or comes home
	}
	return err
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
		var mem device.Mem
		if r.Plan.Bound() {
			mem, err = r.bind(store.ID{Part: op.Part, Kind: store.Grad}, int64(elems)*t.Bytes(), store.Write)
			if err != nil {
				return err
			}
		} else if r.Plan.StateResident(op.Part) {
			mem = r.buffers.State[op.Part][store.Grad]
		} else {
			mem = r.buffers.Stages[op.Stage]
		}
		stored = device.NewVec(mem, t, elems)
		s.Cast(stored, full)
	}
	s.SumSquares(r.result(r.Plan.SquaresAt(op.Part)), stored)
	return nil
}

func (r *run) drain(s device.Stream, op *plan.Op) error {
	t := r.types[store.Grad]
	bytes := r.Plan.Model.Parts[op.Part].Layout.StateElems * t.Bytes()
	var from device.Mem
	if op.Stage >= 0 {
		from = r.buffers.Stages[op.Stage].Slice(0, bytes)
	} else {
		from = r.gradSlot(op.Part, op.Grad)
	}
	id := store.ID{Part: op.Part, Kind: store.Grad}
	err := r.pieces(op.Lane, id, store.Write, func(off int64, piece device.Mem) {
		s.Copy(piece, from.Slice(off, piece.Len))
	})
	if err == nil && r.Plan.UpdatesInBackward() {
		r.versions.wrote(id)
		err = r.retire(op.Lane, 0) // it is read in this same schedule
	}
	return err
}

// drainSum takes the fp32 gradient of a tied tile to where the embedding adds to it, in this same schedule: all pieces are
// given back.
func (r *run) drainSum(s device.Stream, op *plan.Op) error {
	from := r.gradSlot(op.Part, op.Grad)
	id := store.ID{Part: op.Part, Kind: store.GradSum}
	err := r.pieces(op.Lane, id, store.Write, func(off int64, piece device.Mem) {
		s.Copy(piece, from.Slice(off, piece.Len))
	})
	if err != nil {
		return err
	}
	r.versions.wrote(id)
	return r.retire(op.Lane, 0)
}

// moveInput brings x[layer][m] to the device, or from it to where it is saved.
func (r *run) moveInput(s device.Stream, op *plan.Op) error {
	x := r.input(op.Input, op.Layer, op.Micro).Mem
	if !r.Plan.SavedOnDisk(op.Layer - 1) {
		saved := r.pinned.Inputs[op.Layer-1][op.Micro]
		if op.Kind == plan.Save {
			s.Copy(saved, x)
		} else {
			s.Copy(x, saved)
		}
		return nil
	}
	id := store.ID{Part: r.Plan.Model.BlockParts[op.Layer-1], Kind: store.Inputs}
	access := store.Read
	if op.Kind == plan.Save {
		access = store.Write
	}
	for at, off := range r.inputPieces(op.Micro) {
		err := r.piece(op.Lane, id, off, r.specs[id].Piece, access, func(piece device.Mem) {
			n := min(piece.Len, x.Len-at)
			if op.Kind == plan.Save {
				s.Copy(piece.Slice(0, n), x.Slice(at, n))
			} else {
				s.Copy(x.Slice(at, n), piece.Slice(0, n))
			}
		})
		if err != nil {
			return err
		}
	}
	if op.Kind == plan.Save {
		return r.retire(op.Lane, 0) // it is loaded in this same schedule
	}
	return nil
}

// moveKept brings what a block keeps of a micro-batch to host memory, or from there.
func (r *run) moveKept(s device.Stream, op *plan.Op) {
	there := r.pinned.Activations[op.Layer-1][op.Micro]
	here := r.buffers.KeptRing[op.Kept].Slice(0, there.Len)
	if op.Kind == plan.SaveKept {
		here, there = there, here
	}
	s.Copy(here, there)
}

// inputPieces are the places in the input of a block, and in its extent, of the pieces for a micro-batch.
func (e *Engine) inputPieces(m int) iter.Seq2[int64, int64] {
	pieces, bytes := e.Plan.InputPieces()
	return func(yield func(at, off int64) bool) {
		for i := range pieces {
			if !yield(int64(i)*bytes, int64(m*pieces+i)*bytes) {
				return
			}
		}
	}
}
