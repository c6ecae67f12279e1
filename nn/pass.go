package nn

import (
	"iter"

	"github.com/millrace/millrace/device"
)

// Forward computes y from x, both [b.T, Hidden]. kept receives what its level keeps. x is not changed; y is not x.
func (d *Block) Forward(s device.Stream, w Params, x, y device.Mat, b *Batch, r *Rope, kept *Kept, work *Work) {
	mixer, feed := d.passes(s, w, Params{}, b, r, kept, work)
	d.Mixer.forward(mixer, x)
	for c := range mixer.chunks() {
		// The residual stream runs in y, but where KeepAll wants the value between the halves for later.
		y := c.rows(y)
		h, last := y, device.MatMulFlags{TransB: true, Accumulate: true}
		if kept.keep >= KeepAll {
			h = c.rows(kept.h)
			last = device.MatMulFlags{TransB: true, Onto: h}
		}
		d.Mixer.output(mixer.at(c), c.rows(x), h)
		d.FeedForward.forward(feed.at(c), h, y, last)
	}
}

// Backward turns dx, which holds the gradient of y on entry, into the gradient of x, and adds the gradients of the
// parameters to g, or writes those of matrices if g is fresh. x is what Forward read and kept what it left; what kept
// lacks is computed again first, all but the last projection, whose result nothing reads. The bits do not depend on
// kept's level.
func (d *Block) Backward(s device.Stream, w, g Params, x, dx device.Mat, b *Batch, r *Rope, kept *Kept, work *Work) {
	mixer, feed := d.passes(s, w, g, b, r, kept, work)
	d.Mixer.recompute(mixer, x)
	for c := range mixer.chunks() {
		var h device.Mat
		if kept.keep >= KeepAll {
			h = c.rows(kept.h)
		} else {
			h = work.h.RowRange(0, c.n)
			d.Mixer.output(mixer.at(c), c.rows(x), h)
		}
		d.FeedForward.backward(feed.at(c), h, c.rows(dx))
	}
	d.Mixer.backward(mixer, x, dx)
}

// pass is a block's Forward or Backward as one of its halves sees it: of a whole micro-batch, or of a chunk of it.
type pass struct {
	device.Stream
	w, g      Params
	b         *Batch
	r         *Rope
	keep      Keep
	eps       float32
	normName  string // of the half's norm
	chunk     int    // rows
	positions device.Mem

	norm device.Mat   // [c, Hidden]: the normed input of the half, then the gradient of it
	rstd device.Mat   // F32 [c, 1]: of that norm
	buf  []device.Mat // the half's buffers: what is kept from kept, the rest from work
}

func (d *Block) passes(s device.Stream, w, g Params, b *Batch, r *Rope, kept *Kept, work *Work) (mixer, feed *pass) {
	p := pass{Stream: s, w: w, g: g, b: b, r: r, keep: kept.keep, eps: d.Eps, chunk: work.chunk,
		positions: b.Docs.Positions, norm: work.norm, rstd: work.rstd}
	half := func(norm string, kept, work []device.Mat) *pass {
		p := p
		p.normName = norm
		p.buf = make([]device.Mat, len(work))
		for i := range p.buf {
			if p.buf[i] = work[i]; i < len(kept) && !kept[i].IsZero() {
				p.buf[i] = kept[i]
			}
		}
		return &p
	}
	return half(mixerNorm, kept.mixer, work.mixer), half(feedNorm, kept.feed, work.feed)
}

// chunks are those of the micro-batch.
func (p *pass) chunks() iter.Seq[chunk] { return chunks(p.b.T, p.chunk) }

// at is what the work on a chunk sees: its rows of what has all of them, kept buffers included, and as many of what is
// scratch of one chunk after the other.
func (p *pass) at(c chunk) *pass {
	part := *p
	rows := func(m device.Mat) device.Mat {
		switch {
		case m.IsZero():
			return m
		case m.Rows == p.b.T:
			return c.rows(m)
		}
		return m.RowRange(0, c.n)
	}
	part.g = p.g.at(c)
	part.positions = c.ids(p.positions)
	part.norm, part.rstd = rows(p.norm), rows(p.rstd)
	part.buf = make([]device.Mat, len(p.buf))
	for i, m := range p.buf {
		part.buf[i] = rows(m)
	}
	return &part
}

// normalize writes the normed rows of x to p.norm.
func (p *pass) normalize(x device.Mat) {
	p.RMSNorm(p.norm, p.rstd, x, p.w.named(p.normName, 1), 1, p.eps)
}

// normalizeGrad adds what comes through the norm, whose output's gradient is in p.norm, to dx, the residual stream's.
func (p *pass) normalizeGrad(x, dx device.Mat) {
	weight := p.w.named(p.normName, 1)
	p.RMSNormGrad(dx, p.g.named(p.normName, 1), p.norm, x, weight, p.rstd, dx, 1)
}

// project is y = x·w^T for n glued matrices from the named one on.
func (p *pass) project(y, x device.Mat, name string, n int) {
	p.MatMul(y, x, p.w.named(name, n), device.MatMulFlags{TransB: true})
}

// projectGrad is dx = dy·w, the gradient of project's input.
func (p *pass) projectGrad(dx, dy device.Mat, name string, n int) {
	p.MatMul(dx, dy, p.w.named(name, n), device.MatMulFlags{})
}

func (p *pass) weightGrad(name string, n int, dy, x device.Mat) {
	weightGrad(p, p.g.named(name, n), dy, x, p.g.Fresh)
}

// biasGrad is db += the sum of dy's rows, unless the bias is frozen.
func (p *pass) biasGrad(name string, n int, dy device.Mat) {
	if db := p.g.named(name, n); !db.IsZero() {
		p.BiasGrad(db, dy)
	}
}

// weightGrad is dw += dy^T·x for y = x·w^T, or dw = if that is fresh, unless w is frozen.
func weightGrad(s device.Stream, dw, dy, x device.Mat, fresh bool) {
	if !dw.IsZero() {
		s.MatMul(dw, dy, x, device.MatMulFlags{TransA: true, Accumulate: !fresh})
	}
}
