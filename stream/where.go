package stream

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// The answers to "where is it?", for all lanes: weights, gradients, state, inputs, tokens, scalars and logits as a
// device.Mem. The plan's table has decided; this file alone looks at places, so that a new kind of place is a case
// here and none elsewhere. Parts whose state is on the device when it is updated have it there for good
// (Buffers.State), or while it passes (Buffers.StateRing).

// weights returns a part on the device: in its slot, or bound where it is stored.
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

// gradSlot is a slot of the ring of fp32 gradients, or the part's own.
func (r *run) gradSlot(part, slot int) device.Mem {
	if slot >= 0 {
		return r.buffers.Grads[slot].Slice(0, r.gradBytes(part))
	}
	return r.buffers.OwnG[part]
}

// rounded is where the gradient of a part goes in the type that is stored.
func (r *run) rounded(part, stage int) (device.Mem, error) {
	switch {
	case r.Plan.Bound():
		id := store.ID{Part: part, Kind: store.Grad}
		return r.bind(id, r.specs[id].Bytes, store.Write)
	case r.Plan.StateResident(part):
		return r.buffers.State[part][store.Grad], nil
	}
	return r.buffers.Stages[stage], nil
}

func (e *Engine) gradBytes(part int) int64 { return e.Plan.Model.Parts[part].Layout.StateElems * 4 }

// stateOf is the state of the part of an operation on the device, its gradient included, and its weights if the
// operation touches them.
func (r *run) stateOf(op *plan.Op) [store.Kinds]device.Mem {
	part := op.Part
	if op.State < 0 {
		mem := r.buffers.State[part]
		mem[store.Weights] = r.buffers.Own[part]
		return mem
	}
	var mem [store.Kinds]device.Mem
	for _, kind := range append(r.stateKinds(), store.Grad) {
		mem[kind] = r.buffers.StateRing[op.State][kind].Slice(0, r.specs[store.ID{Part: part, Kind: kind}].Bytes)
	}
	if op.Slot >= 0 {
		mem[store.Weights] = r.buffers.Slots[op.Slot]
	}
	return mem
}

// stateKinds returns the kinds of extents that a part has, except its weights and its gradient.
func (e *Engine) stateKinds() (kinds []store.Kind) {
	for kind, t := range e.types {
		if k := store.Kind(kind); t != tensor.Invalid && k != store.Weights && !k.Transient() {
			kinds = append(kinds, k)
		}
	}
	return kinds
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

// hostInput is where the embedding writes x[1][m], and finds its gradient.
func (r *run) hostInput(m int) device.Mat {
	if r.Plan.Bound() {
		return r.input(-1, 1, m)
	}
	return device.NewMat(r.host.Inputs[0][m], r.Plan.Numerics.Compute, r.Plan.Numerics.Positions(), r.Plan.Model.Hidden)
}

// embeddingGrad is the gradient of x[1][m].
func (r *run) embeddingGrad(m int) device.Mat {
	if r.Plan.Bound() {
		return r.buffers.DX[m]
	}
	return r.hostInput(m)
}

// sumPiece is where a piece of the embedding's gradient is summed in fp32, with what is in it so far: the head's
// share for a tied tile, else zeros, and then it is summed where it is stored.
func (r *run) sumPiece(s device.Stream, p int, stored device.Mat, first, elems int64) (device.Mat, error) {
	bytes := elems * tensor.F32.Bytes()
	at := first * tensor.F32.Bytes()
	switch {
	case r.Plan.Tied(p) && r.Plan.Bound():
		return device.NewVec(r.host.Sums[p].Slice(at, bytes), tensor.F32, int(elems)), nil
	case r.Plan.Tied(p):
		l, err := r.borrow(plan.LaneUpdate, store.ID{Part: p, Kind: store.GradSum}, at, bytes, store.ReadWrite)
		if err != nil {
			return device.Mat{}, err
		}
		return device.NewVec(r.onHost[l.Region].Slice(l.Off, l.Len), tensor.F32, int(elems)), nil
	}
	s.Zero(stored.Mem)
	return stored, nil
}

// batch is the tokens of a micro-batch as the device sees them.
func (r *run) batch(m int) *nn.Batch {
	mem := r.buffers.Batches
	if r.Plan.Bound() {
		mem = r.pinned.Batches
	}
	return plan.Batch(mem, m, r.Plan.Numerics.Positions())
}

// result is where the device writes a scalar of the step.
func (r *run) result(at int64) device.Mem {
	if r.Plan.Bound() {
		return r.pinned.HostResults.Slice(at, 8)
	}
	return r.buffers.Results.Slice(at, 8)
}

// hostResult is where the host's lane writes a scalar of the step.
func (r *run) hostResult(at int64) device.Mem { return r.host.HostResults.Slice(at, 8) }

// hostLogits are the wanted logits of a micro-batch in host memory: F32 [LogitRows, Vocab].
func (r *run) hostLogits(m int) device.Mat {
	rows, vocab := r.Plan.Outputs.LogitRows, r.Plan.Model.Vocab
	return device.NewMat(r.pinned.Logits[m], tensor.F32, rows, vocab)
}

// logitsTo is where the device writes a tile's logits of a chunk, and their first column there.
func (r *run) logitsTo(op *plan.Op, cols int) (to device.Mat, col int) {
	first, n := r.logitChunk(op)
	if r.Plan.Bound() {
		return r.hostLogits(op.Micro).RowRange(first, n), r.Plan.Model.Parts[op.Part].FirstRow
	}
	return device.NewMat(r.buffers.Logits, tensor.F32, n, cols), 0
}
