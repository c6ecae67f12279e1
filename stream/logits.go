package stream

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// Logits runs the forward pass over a batch and returns, for each micro-batch, the logits of its rows from row first on:
// [Plan.Wants.LogitRows, Vocab], row by row. They are good until the next call. Pending updates are carried out first.
func (e *Engine) Logits(ctx context.Context, batch *Batch, first int) ([][]float32, error) {
	n := e.Plan.Wants.LogitRows
	if n == 0 || first < 0 || first > e.Plan.Numerics.Positions()-n {
		return nil, fmt.Errorf("logits: rows [%d, %d) of %d, and the plan is for %d", first, first+n, e.Plan.Numerics.Positions(), n)
	}
	if err := e.settle(ctx); err != nil {
		return nil, err
	}
	e.logitRow = first
	if _, err := e.run(ctx, plan.Logits, batch, 0); err != nil {
		return nil, err
	}
	all := make([][]float32, len(batch.Micro))
	for m := range all {
		all[m] = hostmem.F32(e.bytes(plan.LogitsPurpose, e.host.Logits[m]))
		e.head.Cap(all[m])
	}
	return all, nil
}

// logitChunk is where a chunk's wanted rows begin among those that are wanted, and how many they are.
func (r *run) logitChunk(op *plan.Op) (first, n int) {
	first = op.Chunk * r.head.ChunkTokens
	return first, min(r.head.ChunkTokens, r.Plan.Wants.LogitRows-first)
}

// hostLogits are the wanted logits of a micro-batch in host memory: F32 [LogitRows, Vocab].
func (r *run) hostLogits(m int) device.Mat {
	rows, vocab := r.Plan.Wants.LogitRows, r.Plan.Model.Vocab
	return device.NewMat(r.pinned.Logits[m], tensor.F32, rows, vocab)
}

// headLogits computes a tile's logits of a chunk: in their columns on the host where that is bound, else densely in a
// buffer of the device.
func (r *run) headLogits(s device.Stream, op *plan.Op, tile device.Mat) {
	first, n := r.logitChunk(op)
	xn := r.buffers.Normed[r.Plan.HeadBuffer(op.Micro)].RowRange(r.logitRow+first, n)
	if r.Plan.Bound() {
		r.head.Logits(s, tile, r.Plan.Model.Parts[op.Part].FirstRow, xn, r.hostLogits(op.Micro).RowRange(first, n))
		return
	}
	r.head.Logits(s, tile, 0, xn, device.NewMat(r.buffers.Logits, tensor.F32, n, tile.Rows))
}

// drainLogits copies the buffer to its columns on the host, row by row.
func (r *run) drainLogits(s device.Stream, op *plan.Op) {
	first, n := r.logitChunk(op)
	part := &r.Plan.Model.Parts[op.Part]
	cols := part.Layout.Fields[0].Shape[0]
	from := device.NewMat(r.buffers.Logits, tensor.F32, n, cols)
	to := r.hostLogits(op.Micro).RowRange(first, n).ColRange(part.FirstRow, cols)
	for i := range n {
		s.Copy(to.RowRange(i, 1).Mem, from.RowRange(i, 1).Mem)
	}
}
