package nn

import (
	"iter"

	"github.com/millrace/millrace/device"
)

// Letters of shapes in this file: T positions of a micro-batch, c those of a chunk of it, H the hidden width.
//
//	x, y    [T, H], of a chunk [c, H]  input and output of the block, the residual stream before and after it
//	h       [T, H], of a chunk [c, H]  the residual stream between the halves: x plus the mixer's result
//	dx, dy  [T, H], of a chunk [c, H]  gradients of x and y in one matrix: dy on entry, dx at the end
//	norm    [c, H]                     the normed input of a half, in backward then its gradient
//	out     [c, H]                     the result of a half, where the rule alters it: norms or multiplies it
//	dOut    [T, H]                     gradient of that result, or by the parallel rule a copy of dy
//	w, dw   [out, in], F32 [out, in]   a weight, as y = x·w^T, and its gradient

// runForward computes y from x. kept receives what its level keeps. x is not changed; y is not x.
func (d *Block) runForward(s device.Stream, a *Args) {
	mixer, feed, late := d.passes(s, a)
	if d.PerLayer.Layers > 0 {
		late.EachChunk(func(p *Pass, rows func(device.Mat) device.Mat) { d.PerLayer.makeRows(p, rows(a.X)) })
	}
	in := d.placed(mixer, a.X, a.Work.placed)
	d.Mixer.Forward(mixer, in)
	for c := range mixer.chunks() {
		// The residual stream runs in y, but where KeepAll wants the value between the halves for later.
		x, y := c.rows(in), c.rows(a.Y)
		h, last := y, device.MatMulFlags{TransB: true, Accumulate: true}
		if !a.Kept.h.IsZero() {
			h = c.rows(a.Kept.h)
			last = device.MatMulFlags{TransB: true, Onto: h}
		}
		d.mix(mixer.At(c), x, h)
		if d.Rule.isParallel() {
			h = x // and y has the mixer's result
		}
		d.feed(feed.At(c), h, y, last)
		if d.PerLayer.Inner > 0 {
			d.PerLayer.forward(late.At(c), y)
		}
		if d.Scalar {
			s.Scale(y, y, a.Scalar)
		}
	}
}

// runBackward turns dx, which holds the gradient of y on entry, into the gradient of x, and adds the gradients of the
// parameters, or writes those of matrices if they are fresh. x is what forward read and kept what it left; what kept
// lacks is computed again first, all but the last projection, whose result nothing reads. The bits do not depend on
// kept's level.
func (d *Block) runBackward(s device.Stream, a *Args) {
	mixer, feed, late := d.passes(s, a)
	in := d.placed(mixer, a.X, a.Work.placed)
	d.Mixer.Recompute(mixer, in)
	for c := range mixer.chunks() {
		p, f := mixer.At(c), feed.At(c)
		x, dx := c.rows(in), c.rows(a.DX)
		if d.Scalar {
			s.Scale(dx, dx, a.Scalar)
		}
		dy, h := dx, x
		if d.Rule.isParallel() {
			dy = c.rows(a.Work.dOut) // the mixer wants it, too
			s.Copy(dy.Mem, dx.Mem)
		} else {
			if h = a.Work.h; a.Kept.keep >= KeepAll {
				h = a.Kept.h
			}
			h = p.rows(c, h)
			if a.Kept.keep < KeepAll || d.Rule.hasPost() { // the norm's gradient reads the result
				d.mix(p, x, h)
			}
		}
		if d.Rule.hasPost() {
			d.FeedForward.(Dense).Forward(f, h, f.out, device.MatMulFlags{TransB: true})
			f.keep = KeepAll // since forward left all that it computes
			f.altered()
		}
		if d.PerLayer.Inner > 0 {
			l := late.At(c)
			stream := l.buf[plStream]
			s.Add(stream, h, f.norm)
			d.PerLayer.backward(l, stream, dx)
		}
		if d.Rule.alters() {
			dy = c.rows(a.Work.dOut)
			f.alteredGrad(dy, dx)
		}
		d.FeedForward.(Dense).Backward(f, h, dy, dx)
		if d.Rule.alters() {
			p.alteredGrad(c.rows(a.Work.dOut), dx)
		}
	}
	dy := a.DX
	if d.Rule != Pre {
		dy = a.Work.dOut
	}
	d.Mixer.Backward(mixer, in, dy, a.DX)
	d.placedGrad(mixer, a.DX)
	if d.PerLayer.Layers > 0 {
		late.EachChunk(func(p *Pass, rows func(device.Mat) device.Mat) {
			d.PerLayer.makeRowsGrad(p, rows(a.X), rows(a.DX))
		})
	}
}

// Pass is a block's visit as one of its halves sees it: of a whole micro-batch, or of a chunk of it. It is the stream
// that the half asks for operations.
type Pass struct {
	device.Stream
	w, g      Params
	b         *MicroBatch
	r         *Rope
	keep      Keep
	normed    Norm
	norms     norms   // of the half
	residual  float32 // by the rule Scaled
	chunk     int     // rows
	of        int     // rows of the micro-batch, or of this chunk, with padding that is left out; 0: none is
	ofChunk   int     // rows of a chunk, the same
	call      int     // rows of a call of experts
	positions device.Mem

	norm     device.Mat   // [c, Hidden]: the normed input of the half, then the gradient of it
	stat     device.Mat   // F32 [c, Norm.stats]: of that norm
	out      device.Mat   // [c, Hidden]: the half's result, where the rule alters it
	outStat  device.Mat   // F32 [c, Norm.stats]: of the norm of the result, where the rule norms it
	cache    *Cache       // of a pass that continues sequences; else nil
	buf      []device.Mat // the half's values: what is kept from kept, the rest from work
	sides    []SideRows   // the half's
	held     *Held        // of a routed feed-forward
	loads    device.Mem   // where it tells of its experts
	balance  device.Mat   // Args.Balance
	stepRows int          // Args.StepRows
	outcome  device.Mat   // Args.Outcome

	constants device.Mat // F32 [1, Block.FeedConstants]
}

// passes are the views of the halves, and of what adds the layer's rows.
func (d *Block) passes(s device.Stream, a *Args) (mixer, feed, late *Pass) {
	p := Pass{Stream: s, w: a.Weights[0], b: a.Batch, r: a.Rope, keep: a.Kept.keep, normed: d.Norm,
		residual: d.Residual, chunk: a.Work.chunk, of: a.Work.whole, ofChunk: a.Work.wholeChunk, cache: a.Cache,
		positions: a.Batch.Docs.Positions, norm: a.Work.norm, stat: a.Work.stat}
	if len(a.Gradients) > 0 {
		p.g = a.Gradients[0]
	}
	sides := a.Sides
	half := func(h Half, norms norms, out, outStat device.Mat, kept, work []device.Mat) *Pass {
		p := p
		n := len(sidesOf(h))
		p.sides, sides = sides[:n], sides[n:]
		p.norms, p.out, p.outStat = norms, out, outStat
		p.buf = make([]device.Mat, len(work))
		for i := range p.buf {
			if p.buf[i] = work[i]; i < len(kept) && !kept[i].IsZero() {
				p.buf[i] = kept[i]
			}
		}
		return &p
	}
	first, second := d.Rule.norms()
	w := a.Work
	mixer = half(d.Mixer, first, w.out[0], w.outStat[0], a.Kept.mixer, w.mixer)
	feed = half(d.FeedForward, second, w.out[1], w.outStat[1], a.Kept.feed, w.feed)
	return mixer, feed, half(d.PerLayer, norms{}, device.Mat{}, device.Mat{}, nil, w.late)
}

// Value is one of the half's Values, by its index.
func (p *Pass) Value(i int) device.Mat { return p.buf[i] }

// Held is one of the values that a routed feed-forward holds, by its index.
func (p *Pass) Held(i int) device.Mat { return p.held.own[i] }

// Norm is the normed input of the half, and while it goes backward the place for its gradient.
func (p *Pass) Norm() device.Mat { return p.norm }

// Batch is the tokens of the micro-batch.
func (p *Pass) Batch() *MicroBatch { return p.b }

// Keeps reports whether what a level keeps was kept.
func (p *Pass) Keeps(level Keep) bool { return p.keep >= level }

// Weight is a tensor of the visit's part, or n glued ones from the named one on, as one matrix. WeightGradient is its
// fp32 gradient; the zero Mat if it is frozen.
func (p *Pass) Weight(name string, n int) device.Mat { return p.w.named(name, n) }

// WeightGradient is the fp32 gradient of Weight; the zero Mat if that is frozen.
func (p *Pass) WeightGradient(name string, n int) device.Mat { return p.g.named(name, n) }

// EachChunk calls do for each chunk of the micro-batch: with what the half sees of it, and with those of its rows.
func (p *Pass) EachChunk(do func(part *Pass, rows func(device.Mat) device.Mat)) {
	for c := range p.chunks() {
		do(p.At(c), c.rows)
	}
}

// chunks lists the chunks of the micro-batch.
func (p *Pass) chunks() iter.Seq[chunk] { return chunks(p.b.T, p.chunk) }

// At has the view of a chunk: its rows of what has all of them, kept buffers included, and as many of what is
// scratch of one chunk after the other.
func (p *Pass) At(c chunk) *Pass {
	part := *p
	part.g, part.of = p.g.at(c), min(p.ofChunk, p.of-c.first)
	part.positions = c.ids(p.positions)
	part.norm, part.stat = p.rows(c, p.norm), p.rows(c, p.stat)
	part.out, part.outStat = p.rows(c, p.out), p.rows(c, p.outStat)
	part.buf = make([]device.Mat, len(p.buf))
	for i, m := range p.buf {
		part.buf[i] = p.rows(c, m)
	}
	part.sides = make([]SideRows, len(p.sides))
	for i, r := range p.sides {
		part.sides[i] = r.cut(c.rows)
	}
	return &part
}

// rows returns the rows of a chunk in a matrix that has all rows, or only as many as a chunk.
func (p *Pass) rows(c chunk, m device.Mat) device.Mat {
	switch {
	case m.IsZero():
		return m
	case m.Rows == p.b.T:
		return c.rows(m)
	case m.Rows < c.n: // rows are for more than one position: none belongs to a chunk alone
		return m
	}
	return m.RowRange(0, c.n)
}

// Project is y = x·w^T for n glued matrices from the named one on.
func (p *Pass) Project(y, x device.Mat, name string, n int) {
	p.MatMul(y, x, p.w.named(name, n), device.MatMulFlags{TransB: true})
}

// ProjectGrad is dx = dy·w, the gradient of the input of Project.
func (p *Pass) ProjectGrad(dx, dy device.Mat, name string, n int) {
	p.MatMul(dx, dy, p.w.named(name, n), device.MatMulFlags{})
}

// WeightGrad is dw += dy^T·x for y = x·w^T, or dw = if the gradient is fresh, unless w is frozen.
func (p *Pass) WeightGrad(name string, n int, dy, x device.Mat) {
	weightGrad(p, p.g.named(name, n), dy, x, p.of, p.g.Fresh)
}

// BiasGradient is db += the sum of dy's rows, unless the bias is frozen.
func (p *Pass) BiasGradient(name string, n int, dy device.Mat) {
	if db := p.g.named(name, n); !db.IsZero() {
		p.BiasGrad(db, dy)
	}
}

// weightGrad is dw += dy^T·x for y = x·w^T, or dw = if that is fresh, unless w is frozen. With padding that is left
// out there are `of` rows, if that is more.
func weightGrad(s device.Stream, dw, dy, x device.Mat, of int, fresh bool) {
	if dw.IsZero() {
		return
	}
	if of <= dy.Rows {
		of = 0
	}
	s.MatMul(dw, dy, x, device.MatMulFlags{TransA: true, Accumulate: !fresh, Of: of})
}
