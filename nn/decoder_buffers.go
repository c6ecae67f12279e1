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
type Work struct {
	norm device.Mat // [t, Hidden]: the normed input of one half, then the gradient of it
	rstd device.Mat // F32 [t, 1]: of that norm

	qkv          device.Mat // [t, qkvCols]
	qk           device.Mat // [t, qCols+kvCols]: normed and rotated queries and keys, with QKNorm only
	qRstd, kRstd device.Mat // F32 [t, Heads], [t, KVHeads], with QKNorm only
	att          device.Mat // [t, qCols]
	lse          device.Mat // F32 [t, Heads]

	h   device.Mat // [t, Hidden]
	gu  device.Mat // [t, 2*Intermediate]: gate and up, then the gradient of both
	act device.Mat // [t, Intermediate]: silu(gate)*up, then the gradient of it

	dAtt  device.Mat // [t, qCols]
	dQKV  device.Mat // [t, qkvCols]
	delta device.Mat // F32 [t, Heads]
}

// NewForwardWork places the scratch of Forward. The attention half is over when the MLP half begins (its result is in y,
// the residual stream), so the two share memory:
//
//	norm rstd | qkv qk qRstd kRstd att lse
//	          | gu act
func (d *Decoder) NewForwardWork(a *device.Arena, dtype tensor.DType, t int) *Work {
	w := &Work{}
	d.takeNorm(w, a, dtype, t)
	halves := a.Mark()
	d.takeAttention(w, a, dtype, t)
	end := a.Mark()
	a.Release(halves)
	d.takeMLP(w, a, dtype, t)
	takeTo(a, end)
	return w
}

// NewBackwardWork places the scratch of Backward, for every Keep. What the attention half computed again has to outlive the
// MLP half, whose gradient comes first; the MLP half's own buffers are free by the time attention's gradients are formed:
//
//	norm rstd qkv qk qRstd kRstd att lse | h gu act
//	                                     | dAtt dQKV delta
func (d *Decoder) NewBackwardWork(a *device.Arena, dtype tensor.DType, t int) *Work {
	w := &Work{}
	d.takeNorm(w, a, dtype, t)
	d.takeAttention(w, a, dtype, t)
	halves := a.Mark()
	w.h = a.Mat(dtype, t, d.Hidden)
	d.takeMLP(w, a, dtype, t)
	end := a.Mark()
	a.Release(halves)
	w.dAtt = a.Mat(dtype, t, d.qCols())
	w.dQKV = a.Mat(dtype, t, d.qkvCols())
	w.delta = a.Mat(tensor.F32, t, d.Heads)
	takeTo(a, end)
	return w
}

func (d *Decoder) takeNorm(w *Work, a *device.Arena, dtype tensor.DType, t int) {
	w.norm = a.Mat(dtype, t, d.Hidden)
	w.rstd = a.Mat(tensor.F32, t, 1)
}

func (d *Decoder) takeAttention(w *Work, a *device.Arena, dtype tensor.DType, t int) {
	w.qkv = a.Mat(dtype, t, d.qkvCols())
	if d.QKNorm {
		w.qk = a.Mat(dtype, t, d.qCols()+d.kvCols())
		w.qRstd = a.Mat(tensor.F32, t, d.Heads)
		w.kRstd = a.Mat(tensor.F32, t, d.KVHeads)
	}
	w.att = a.Mat(dtype, t, d.qCols())
	w.lse = a.Mat(tensor.F32, t, d.Heads)
}

func (d *Decoder) takeMLP(w *Work, a *device.Arena, dtype tensor.DType, t int) {
	w.gu = a.Mat(dtype, t, 2*d.Intermediate)
	w.act = a.Mat(dtype, t, d.Intermediate)
}

// takeTo moves the arena's end up to where the longer of two alternatives ended, so that what is taken next lies behind
// both.
func takeTo(a *device.Arena, end int64) {
	if end > a.Mark() {
		a.Release(end)
	}
}
