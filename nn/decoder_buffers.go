package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Kept is what a block's forward leaves for its backward. Backward may overwrite it: it serves once. A matrix that the
// level does not keep is the zero Mat.
type Kept struct {
	keep Keep
	att  device.Mat // [t, Heads*HeadDim]
	lse  device.Mat // F32 [t, Heads]
	gu   device.Mat // [t, 2*Intermediate]
	qkv  device.Mat // [t, (Heads+2*KVHeads)*HeadDim]; rotated, unless QK norms need the products as they were
	h    device.Mat // [t, Hidden]: the residual stream between attention and MLP
}

// NewKept places what one micro-batch of t positions keeps.
func (d *Decoder) NewKept(a *device.Arena, dtype tensor.DType, t int, k Keep) *Kept {
	kept := &Kept{keep: k}
	if k >= KeepAttention {
		kept.att = a.Mat(dtype, t, d.qCols())
		kept.lse = a.Mat(tensor.F32, t, d.Heads)
	}
	if k >= KeepGateUp {
		kept.gu = a.Mat(dtype, t, 2*d.Intermediate)
	}
	if k >= KeepAll {
		kept.qkv = a.Mat(dtype, t, d.qkvCols())
		kept.h = a.Mat(dtype, t, d.Hidden)
	}
	return kept
}

// Work is scratch of Forward or of Backward; nothing in it lives from one call to the next. Which buffers share memory
// is written where they are placed, in NewForwardWork and NewBackwardWork.
//
// Only attention looks from one position at another. All else of a block goes through the micro-batch in chunks of rows, one after
// the other, so that what attention neither reads nor writes takes a chunk's memory: the c rows below, where t are all.
// Rows do not depend on how they are cut; gradients of parameters are sums over chunks, so the cut sets their last bits. A device may
// choose the way of an operation by how operands are aligned, so a chunk should begin at a multiple of 16 bytes of every matrix: then
// it does not matter what is kept.
type Work struct {
	t, chunk int

	norm device.Mat // [c, Hidden]: the normed input of one half, then the gradient of it
	rstd device.Mat // F32 [c, 1]: of that norm

	qkv          device.Mat // [t, qkvCols]
	qk           device.Mat // [t, qCols+kvCols]: normed and rotated queries and keys, with QKNorm only
	qRstd, kRstd device.Mat // F32 [t, Heads], [t, KVHeads], with QKNorm only
	att          device.Mat // [t, qCols]
	lse          device.Mat // F32 [t, Heads]

	h   device.Mat // [c, Hidden]
	gu  device.Mat // [c, 2*Intermediate]: gate and up, then the gradient of both
	act device.Mat // [c, Intermediate]: silu(gate)*up; in Backward the gradient of it first

	dAtt  device.Mat // [t, qCols]
	dQKV  device.Mat // [t, qkvCols]
	delta device.Mat // F32 [t, Heads]
}

// at is what the work on a chunk sees of w: its rows of what has all of them, kept buffers included, and as many of what is
// scratch of one chunk after the other.
func (w *Work) at(c chunk) Work {
	part := *w
	for _, m := range [...]*device.Mat{&part.norm, &part.rstd, &part.qkv, &part.qk, &part.qRstd, &part.kRstd, &part.att, &part.lse,
		&part.h, &part.gu, &part.act, &part.dAtt, &part.dQKV, &part.delta} {
		switch {
		case m.IsZero():
		case m.Rows == w.t:
			*m = c.rows(*m)
		default:
			*m = m.RowRange(0, c.n)
		}
	}
	return part
}

// newWork is the scratch for micro-batches of t positions in chunks of so many rows, 0 for all of them. What it takes first is
// in use all the time.
func (d *Decoder) newWork(a *device.Arena, dtype tensor.DType, t, rows int) *Work {
	if rows <= 0 || rows > t {
		rows = t
	}
	return &Work{t: t, chunk: rows, norm: a.Mat(dtype, rows, d.Hidden), rstd: a.Mat(tensor.F32, rows, 1)}
}

// NewForwardWork places the scratch of Forward for micro-batches of t positions, of which norms, projections and MLP take so
// many rows at once (0: all), where the level k is kept. The attention half is over when the MLP half begins (its result is
// in y, the residual stream), so the two share memory, all but what attention leaves:
//
//	norm rstd | att lse qkv qk qRstd kRstd
//	          | att lse gu act
func (d *Decoder) NewForwardWork(a *device.Arena, dtype tensor.DType, t, rows int, k Keep) *Work {
	w := d.newWork(a, dtype, t, rows)
	d.takeAttended(w, a, dtype, k)
	halves := a.Mark()
	d.takeProjected(w, a, dtype, k)
	end := a.Mark()
	a.Release(halves)
	d.takeMLP(w, a, dtype, k)
	takeTo(a, end)
	return w
}

// NewBackwardWork places the scratch of Backward, with the arguments of NewForwardWork. What the attention half computed again
// has to outlive the MLP half, whose gradient comes first; the MLP half's own buffers are free by the time attention's
// gradients are formed:
//
//	norm rstd att lse qkv qk qRstd kRstd | h gu act
//	                                     | dAtt dQKV delta
func (d *Decoder) NewBackwardWork(a *device.Arena, dtype tensor.DType, t, rows int, k Keep) *Work {
	w := d.newWork(a, dtype, t, rows)
	d.takeAttended(w, a, dtype, k)
	d.takeProjected(w, a, dtype, k)
	halves := a.Mark()
	if k < KeepAll {
		w.h = a.Mat(dtype, w.chunk, d.Hidden)
	}
	d.takeMLP(w, a, dtype, k)
	end := a.Mark()
	a.Release(halves)
	w.dAtt = a.Mat(dtype, t, d.qCols())
	w.dQKV = a.Mat(dtype, t, d.qkvCols())
	w.delta = a.Mat(tensor.F32, t, d.Heads)
	takeTo(a, end)
	return w
}

// The buffers that Kept has at a level are not taken again.

func (d *Decoder) takeAttended(w *Work, a *device.Arena, dtype tensor.DType, k Keep) {
	if k < KeepAttention {
		w.att = a.Mat(dtype, w.t, d.qCols())
		w.lse = a.Mat(tensor.F32, w.t, d.Heads)
	}
}

func (d *Decoder) takeProjected(w *Work, a *device.Arena, dtype tensor.DType, k Keep) {
	if k < KeepAll {
		w.qkv = a.Mat(dtype, w.t, d.qkvCols())
	}
	if d.QKNorm {
		w.qk = a.Mat(dtype, w.t, d.qCols()+d.kvCols())
		w.qRstd = a.Mat(tensor.F32, w.t, d.Heads)
		w.kRstd = a.Mat(tensor.F32, w.t, d.KVHeads)
	}
}

func (d *Decoder) takeMLP(w *Work, a *device.Arena, dtype tensor.DType, k Keep) {
	if k < KeepGateUp {
		w.gu = a.Mat(dtype, w.chunk, 2*d.Intermediate)
	}
	w.act = a.Mat(dtype, w.chunk, d.Intermediate)
}

// takeTo moves the arena's end up to where the longer of two alternatives ended, so that what is taken next lies behind
// both.
func takeTo(a *device.Arena, end int64) {
	if end > a.Mark() {
		a.Release(end)
	}
}
