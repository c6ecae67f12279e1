package nn

import (
	"cmp"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Value is a matrix that a half of a block computes with. Which ones share memory follows from how long they live.
type Value struct {
	Cols  int          // 0: this half has none
	DType tensor.DType // Invalid: that of activations
	Rows  int          // 0: one for each position
	Every int          // a row is for that many positions, and the last one for what is left; 0: see Rows
	Level Keep         // forward leaves it for backward from this level on; KeepInput: never
	Lives Lifetime
	Whole bool // of a value that is held (Routed): micro-batches have it together
	Away  Away // of a value that is held: from which level on it waits in host memory; AllHere: never
}

// rows is the number of rows that it has of that many positions.
func (v Value) rows(positions int) int {
	if v.Every > 0 {
		return (positions + v.Every - 1) / v.Every
	}
	return cmp.Or(v.Rows, positions)
}

// Lifetime says how long a half needs a value that is not kept.
type Lifetime uint8

// The lifetimes.
const (
	Result   Lifetime = iota // of the mixer: until the block's output, or its input's gradient, is there
	Operand                  // of the mixer: in forward until there is a result, in backward to the end
	Gradient                 // of the mixer: from when the feed-forward's gradients are there
	Scratch                  // of the feed-forward: while a chunk is in it, and with as many rows
	Call                     // as Scratch, with the rows of a call of experts, or those of a chunk if these are more
)

// Kept has the values that a block's forward leaves for its backward. Backward may overwrite it: it serves once. A
// matrix that the level does not keep is the zero Mat.
type Kept struct {
	keep        Keep
	mixer, feed []device.Mat // by the half's values
	h           device.Mat   // [t, Hidden]: the residual stream between the halves, at KeepAll
}

// NewKept places what one micro-batch of t positions keeps.
func (d *Block) NewKept(a *device.Arena, dtype tensor.DType, t int, k Keep) *Kept {
	kept := &Kept{keep: k}
	if k == KeepInput {
		return kept
	}
	mixer, feed := d.Mixer.Values(d.Hidden), d.FeedForward.Values(d.Hidden)
	kept.mixer, kept.feed = make([]device.Mat, len(mixer)), make([]device.Mat, len(feed))
	for level := KeepAttention; level <= k; level++ {
		of := func(v Value) bool { return v.Level == level }
		take(a, dtype, t, kept.mixer, mixer, of)
		take(a, dtype, t, kept.feed, feed, of)
	}
	if k >= KeepAll && !d.Rule.isParallel() {
		kept.h = a.Mat(dtype, t, d.Hidden)
	}
	return kept
}

// take places those values of a table that are asked for.
func take(a *device.Arena, dtype tensor.DType, rows int, mats []device.Mat, table []Value, of func(Value) bool) {
	for i, v := range table {
		if v.Cols > 0 && of(v) {
			mats[i] = a.Mat(cmp.Or(v.DType, dtype), v.rows(rows), v.Cols)
		}
	}
}

// Work is scratch of Forward or of Backward; nothing in it lives from one call to the next. Which buffers share memory
// is written where they are placed, in NewForwardWork and NewBackwardWork.
//
// Only mixers look from one position at another. All else of a block goes through the micro-batch in chunks of rows,
// one after the other, so that what mixers neither read nor write takes a chunk's memory: c rows, where t are all.
// Rows do not depend on how they are cut; gradients of parameters are sums over chunks, so the cut sets their last
// bits. A device may choose the way of an operation by how operands are aligned, so a chunk should begin at a
// multiple of 16 bytes of every matrix: then it does not matter what is kept.
type Work struct {
	chunk, call int // rows

	// The rows of a chunk and of a micro-batch, also where a visit leaves out padding (Args.First).
	wholeChunk, whole int

	norm, stat  device.Mat   // of a half's norm, see pass
	mixer, feed []device.Mat // by the half's values, except those that Kept has
	late        []device.Mat // by the values of PerLayer
	h           device.Mat   // [c, Hidden]: the residual stream between the halves, where Kept has none

	out     [2]device.Mat // [c, Hidden]: the results of the mixer and of the feed-forward, by rules that alter them
	outStat [2]device.Mat // F32 [c, Norm.stats]: of their norms, by rules that norm them
	dOut    device.Mat    // [t, Hidden]: the gradient of results, by all rules but Pre
	placed  device.Mat    // [t, Hidden]: the input and the rows of its positions, where the block has learned ones

	mixerTable, feedTable, lateTable []Value // of mixer, feed and late
}

// worker places a Work.
type worker struct {
	*Work
	a     *device.Arena
	dtype tensor.DType
	t     int
	keep  Keep
}

// Cut says how many rows of a step some operations take at once.
type Cut struct {
	Chunk int // of a micro-batch, by all but mixers; 0: all
	// Call is of the rows of the step, by experts; 0: those of a chunk. Its size changes no bit.
	Call int
}

// newWork returns the scratch for micro-batches of t positions. The memory that it takes first is in use all the time.
func (d *Block) newWork(a *device.Arena, dtype tensor.DType, t int, cut Cut, k Keep) *worker {
	rows := cut.Chunk
	if rows <= 0 || rows > t {
		rows = t
	}
	mixer, feed, late := d.Mixer.Values(d.Hidden), d.FeedForward.Values(d.Hidden), d.PerLayer.Values(d.Hidden)
	w := &Work{chunk: rows, call: max(rows, cut.Call), wholeChunk: rows, whole: t,
		norm: a.Mat(dtype, rows, d.Hidden), stat: a.Mat(tensor.F32, rows, d.Norm.stats()),
		mixer: make([]device.Mat, len(mixer)), feed: make([]device.Mat, len(feed)), late: make([]device.Mat, len(late)),
		mixerTable: mixer, feedTable: feed, lateTable: late}
	if d.Positions > 0 {
		w.placed = a.Mat(dtype, t, d.Hidden)
	}
	halves := 2 // whose results the rule alters
	if d.Rule == Branches {
		halves = 1
	}
	for i := range halves {
		if d.Rule.alters() {
			w.out[i] = a.Mat(dtype, rows, d.Hidden)
		}
		if d.Rule.hasPost() {
			w.outStat[i] = a.Mat(tensor.F32, rows, d.Norm.stats())
		}
	}
	return &worker{w, a, dtype, t, k}
}

// take places the values with a lifetime. Those that Kept has are not taken again.
func (w *worker) take(l Lifetime) {
	of := func(v Value) bool { return v.Lives == l && (v.Level == KeepInput || v.Level > w.keep) }
	take(w.a, w.dtype, w.t, w.mixer, w.mixerTable, of)
	take(w.a, w.dtype, w.chunk, w.feed, w.feedTable, of)
	take(w.a, w.dtype, w.chunk, w.late, w.lateTable, of)
	if l == Scratch {
		take(w.a, w.dtype, w.call, w.feed, w.feedTable, func(v Value) bool { return v.Lives == Call })
	}
}

// or places two alternatives in the same memory. The next buffer starts after the longer one.
func (w *worker) or(one, other func()) {
	mark := w.a.Mark()
	one()
	end := w.a.Mark()
	w.a.Release(mark)
	if other(); end > w.a.Mark() {
		w.a.Release(end)
	}
}

// NewForwardWork places the scratch of Forward for micro-batches of t positions, where the level k is kept. Norms,
// projections and the feed-forward take the rows of a chunk at once. The mixer is done when the feed-forward
// begins (its output is in y, the residual stream), so the two share memory, all but the mixer's result:
//
//	norm stat | result | operand
//	                   | scratch
//
// That is, for attention and a GLU:
//
//	norm stat | att lse | qkv qk qRstd kRstd
//	                    | gateUp act
func (d *Block) NewForwardWork(a *device.Arena, dtype tensor.DType, t int, cut Cut, k Keep) *Work {
	w := d.newWork(a, dtype, t, cut, k)
	w.take(Result)
	w.or(func() { w.take(Operand) }, func() { w.take(Scratch) })
	return w.Work
}

// NewBackwardWork places the scratch of Backward, with the arguments of NewForwardWork. The results that the mixer
// computed again have to outlive the feed-forward, whose gradient comes first; the feed-forward's own buffers are free
// by the time the mixer's gradients are formed:
//
//	norm stat | result operand | h scratch
//	                           | gradient
func (d *Block) NewBackwardWork(a *device.Arena, dtype tensor.DType, t int, cut Cut, k Keep) *Work {
	w := d.newWork(a, dtype, t, cut, k)
	if d.Rule != Pre {
		w.dOut = a.Mat(dtype, t, d.Hidden)
	}
	w.take(Result)
	w.take(Operand)
	w.or(func() {
		if k < KeepAll && !d.Rule.isParallel() {
			w.h = a.Mat(dtype, w.chunk, d.Hidden)
		}
		w.take(Scratch)
	}, func() { w.take(Gradient) })
	return w.Work
}
