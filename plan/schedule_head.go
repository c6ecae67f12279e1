package plan

import (
	"slices"
)

// head is the visit of the head. With all tiles on the device each micro-batch goes through it before the next one
// comes, so that what the head has of one is room for all; else each tile sees all of them.
func (b *builder) head() {
	norm := b.weights(b.Model.NormPart)
	if b.Placement.HeadAtOnce {
		b.headAtOnce(norm)
	} else {
		b.headByTiles(norm)
	}
	if b.backwards() {
		b.finishGrad(b.Model.NormPart)
	}
}

func (b *builder) headAtOnce(norm resource) {
	tiles := b.Model.HeadTiles
	var weights, grads []resource
	if b.backwards() {
		b.zeroGrad(b.Model.NormPart)
	}
	for _, p := range tiles {
		weights = append(weights, b.weights(p))
		if b.backwards() {
			b.zeroGrad(p)
			grads = append(grads, b.gradResource(p))
		}
	}
	for m := range b.Numerics.MicroBatches {
		b.headNorm(m, norm)
		switch {
		case b.backwards():
			b.headMicro(HeadVisit, m, append(weights, resource{batchTokens, 0, 0}),
				append(grads, b.headState(m), resource{results, 0, m}))
			b.headInput(m, norm)
			continue
		case b.Phase == Logits:
			for i, p := range tiles {
				b.logits(p, m, weights[i])
			}
			continue
		}
		for i, p := range tiles {
			b.headStats(p, m, weights[i])
		}
		b.headLoss(m)
	}
	if !b.backwards() {
		return
	}
	// The tiles are complete all at once. Tiles for which a slot is free are rounded now, less one slot for the norm
	// that follows. Each of the others is rounded after a block, while the gradients before it drain.
	free := b.Placement.Rings.Rounded - 1
	for _, p := range slices.Backward(tiles) {
		if !b.staged() || b.Tied(p) || b.StateResident(p) || free > 0 {
			b.finishGrad(p)
			free--
		} else {
			b.late = append(b.late, p)
		}
	}
}

func (b *builder) headByTiles(norm resource) {
	tiles, micros := b.Model.HeadTiles, b.Numerics.MicroBatches
	for m := range micros {
		b.headNorm(m, norm)
	}
	for _, p := range tiles {
		w := b.weights(p)
		for m := range micros {
			if b.Phase == Logits {
				b.logits(p, m, w)
			} else {
				b.headStats(p, m, w)
			}
		}
	}
	if b.Phase == Logits {
		return
	}
	for m := range micros {
		b.headLoss(m)
	}
	if !b.backwards() {
		return
	}
	for i, p := range slices.Backward(tiles) {
		w := b.weights(p)
		b.zeroGrad(p)
		for m := range micros {
			o := op(LaneCompute, HeadGrad)
			o.Part, o.Micro, o.Slot, o.Grad = p, m, b.slotOf(w), b.gradIndex(p)
			o.First = i == len(tiles)-1
			b.add(o, []resource{w, {batchTokens, 0, 0}}, []resource{b.gradResource(p), b.headState(m), {scratch, 0, 0}})
		}
		b.finishGrad(p)
	}
	b.zeroGrad(b.Model.NormPart)
	for m := range micros {
		b.headInput(m, norm)
	}
}

// headState is what the head has of a micro-batch: its normed input, statistics, the gradient of the input.
func (b *builder) headState(m int) resource { return resource{headState, b.HeadBuffer(m), 0} }

func (b *builder) headMicro(kind Kind, m int, reads, writes []resource) {
	o := op(LaneCompute, kind)
	o.Micro = m
	b.add(o, reads, append(writes, resource{scratch, 0, 0}))
}

func (b *builder) headNorm(m int, norm resource) {
	o, x := op(LaneCompute, HeadNorm), b.input(b.blocks()+1, m)
	o.Micro, o.Input = m, bufferOf(x)
	b.add(o, []resource{norm, x}, []resource{b.headState(m), {scratch, 0, 0}})
}

func (b *builder) headStats(part, m int, w resource) {
	o := op(LaneCompute, HeadStats)
	o.Part, o.Micro, o.Slot = part, m, b.slotOf(w)
	b.add(o, []resource{w, {batchTokens, 0, 0}}, []resource{b.headState(m), {scratch, 0, 0}})
}

func (b *builder) headLoss(m int) {
	b.headMicro(HeadLoss, m, []resource{{batchTokens, 0, 0}}, []resource{b.headState(m), {results, 0, m}})
}

func (b *builder) headInput(m int, norm resource) {
	o, x, dx := op(LaneCompute, HeadInput), b.input(b.blocks()+1, m), b.inputGradient(m)
	o.Micro, o.Input, o.Output = m, bufferOf(x), bufferOf(dx)
	b.add(o, []resource{norm, x, b.headState(m)}, []resource{dx, b.gradResource(b.Model.NormPart), {scratch, 0, 0}})
}

// logits brings the logits of the wanted rows of a micro-batch to the host, a tile's columns and a chunk at a time.
// Where everything is bound they are computed where the host reads them.
func (b *builder) logits(part, m int, w resource) {
	for c := range b.logitChunks() {
		compute := op(LaneCompute, HeadLogits)
		compute.Part, compute.Micro, compute.Slot, compute.Chunk = part, m, b.slotOf(w), c
		reads := []resource{w, b.headState(m)}
		if b.Bound() {
			b.add(compute, reads, []resource{{hostLogits, 0, 0}})
			continue
		}
		b.add(compute, reads, []resource{{logitChunk, 0, 0}})
		drain := op(LaneDrain, DrainLogits)
		drain.Part, drain.Micro, drain.Chunk = part, m, c
		b.add(drain, []resource{{logitChunk, 0, 0}}, []resource{{hostLogits, 0, 0}})
	}
}
