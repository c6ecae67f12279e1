package nn

import (
	"slices"

	"github.com/millrace/millrace/device"
)

// Micro-batches of a step all have T positions, and some of them have documents in the first few alone: at the end of a
// data set, or where a step must have room for answers of any length. What comes after the last document is padding. No
// document looks at it, it has no loss, and its gradients are zeros. So a visit may leave it out: [Args.First]. Rows by
// themselves do not notice. Sums over rows, which are the gradients of parameters, lose terms that are zeros at their
// ends, and a device that says [device.Info].CutsRows adds up the rest in the same order.
//
// A micro-batch of padding alone is left out as a whole: [Visit.RunEmpty].
//
// Experts see the rows of the whole step in one order, padding among them, and the load-balancing loss counts it. So
// models with such a block compute all rows ([Block.CutsRows]).

// CutsRows reports whether visits of the block may leave out padding.
func (d *Block) CutsRows() bool {
	_, routed := d.FeedForward.(Routed)
	return !routed
}

// RunEmpty is Run for a micro-batch of padding alone. Nothing reads its rows. Matrices that Run would overwrite with
// zeros become zeros, and the figures of positions are written.
func (v *Visit) RunEmpty(s device.Stream, a *Args) {
	for _, g := range a.Gradients {
		g.empty(s)
	}
	if v.Empty != nil {
		v.Empty(s, a)
	}
}

// emptyNorm and emptyLoss are what the head tells of a micro-batch of padding.

func (h *Head) emptyNorm(s device.Stream, a *Args) { h.emptyValues(s, a.Ending, 0) }

func (h *Head) emptyLoss(s device.Stream, a *Args) {
	h.emptyValues(s, a.Ending, 0)
	h.runLoss(s, a)
}

// emptyValues has positions after the first n have the value 0.
func (h *Head) emptyValues(s device.Stream, e *Ending, n int) {
	if left := e.Values.Rows - n; h.Values && left > 0 {
		s.Zero(e.Values.RowRange(n, left).Mem)
	}
}

// First has a visit see the first n rows of the micro-batch alone, and as many of all that has its rows.
func (a *Args) First(n int) {
	a.X, a.Y, a.DX, a.Outcome = first(a.X, n), first(a.Y, n), first(a.DX, n), first(a.Outcome, n)
	a.Sides = slices.Clone(a.Sides)
	for i, r := range a.Sides {
		a.Sides[i] = r.cut(func(m device.Mat) device.Mat { return first(m, n) })
	}
	if a.Batch != nil {
		batch := *a.Batch
		batch.T = n
		a.Batch = &batch
	}
	if w := a.Work; w != nil {
		cut := *w
		cut.chunk, cut.call = min(w.chunk, n), min(w.call, n)
		cut.norm, cut.stat, cut.h, cut.dOut = first(w.norm, n), first(w.stat, n), first(w.h, n), first(w.dOut, n)
		cut.placed = first(w.placed, n)
		for i := range w.out {
			cut.out[i], cut.outStat[i] = first(w.out[i], n), first(w.outStat[i], n)
		}
		cut.mixer, cut.feed = firstOfEach(w.mixer, w.mixerTable, n), firstOfEach(w.feed, w.feedTable, n)
		cut.late = firstOfEach(w.late, w.lateTable, n)
		a.Work = &cut
	}
	if k := a.Kept; k != nil && a.Work != nil {
		cut := *k
		cut.mixer, cut.feed = firstOfEach(k.mixer, a.Work.mixerTable, n), firstOfEach(k.feed, a.Work.feedTable, n)
		cut.h = first(k.h, n)
		a.Kept = &cut
	}
	if a.Held != nil {
		a.Held = a.Held.first(n)
	}
	if e := a.Ending; e != nil {
		cut := *e
		cut.allStat = e.Stat
		cut.Normed, cut.Stats, cut.Stat = first(e.Normed, n), first(e.Stats, n), first(e.Stat, n)
		cut.DNormed = first(e.DNormed, n)
		a.Ending = &cut
	}
}

// first is the first n rows of a matrix that has more.
func first(m device.Mat, n int) device.Mat {
	if m.Rows <= n {
		return m
	}
	return m.RowRange(0, n)
}

// firstOfEach is first of values, except those that have a number of rows of their own.
func firstOfEach(mats []device.Mat, table []Value, n int) []device.Mat {
	mats = slices.Clone(mats)
	for i := range mats {
		mats[i] = first(mats[i], table[i].rows(n))
	}
	return mats
}
