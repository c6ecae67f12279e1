package nn

import (
	"errors"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// A block may be too large for a slot of the ring: its weights, or their gradient in fp32. Then its feed-forward has
// parts of its own, each of which is fetched, visited, drained and updated apart from the others. The rest of the block
// is its trunk, part 0: the mixer, the norms, and what the feed-forward wants of it, such as a router. Visits come in
// this order:
//
//	forward:   trunk, part 1, part 2, ..., "combine" (Routed)
//	backward:  trunk again ("reopen"), ..., part 2, part 1 (Routed: part 1, part 2, ...), trunk ("backward")
//
// Between the visits of a direction each micro-batch keeps its normed rows, in backward also their gradient,
// and what the feed-forward holds ([Held]).

// Letters of shapes in this file: T positions of a micro-batch, m micro-batches in a step, c positions of a chunk, H the
// hidden width, I the inner columns of a part.
//
//	norm, stat      [m*T, H], F32 [m*T, n]  held: the normed input of the parts
//	h, dNorm        [m*T, H]                held for backward: what was normed, and the gradient of norm
//	y, dy           [c, H]                  output of the block, to which a part adds, and its gradient
//	gateUp, act     [c, 2*I], [c, I]        of a part
//	gate, up; down  [2*I, H]; [H, I]        weights of a part

// InParts has the methods that all feed-forwards with parts of their own share.
type InParts interface {
	FeedForward
	// Count is the number of parts, and PartFields are the tensors of one, from 0.
	Count() int
	PartFields(hidden, part int) []tensor.Field
}

// Parted is a feed-forward in parts that each see all rows of a micro-batch, a chunk at a time: [SplitGLU].
type Parted interface {
	InParts
	// ForwardPart adds the part's result to y, of a chunk whose normed rows are p.Norm.
	ForwardPart(p *Pass, part int, y device.Mat)
	// BackwardPart adds the gradients of the part's parameters, given dy of a chunk, and writes the gradient of the
	// normed rows to dNorm, or adds it if the part is not the first to be visited.
	BackwardPart(p *Pass, part int, dy, dNorm device.Mat, first bool)
}

// Routed is a feed-forward whose parts see the rows of the whole step at once, and decide which of them are theirs. What
// it needs of a micro-batch it holds: x, y and dx are not there when its parts are visited.
type Routed interface {
	InParts
	// HeldValues lists the values between visits, a row for each position of the step or a number of rows of their
	// own: [Pass.Held] has them by their index here. Their Level and Lives have no meaning. Those that are Whole are
	// not cut into micro-batches.
	HeldValues(hidden int) []Value
	// Open fills the held values of a micro-batch whose normed rows are p.Norm, forward and again before backward. h is
	// the residual stream that was normed.
	Open(p *Pass, h device.Mat)
	// OpenForward adds to y what all rows have of the half's own Fields, of a micro-batch.
	OpenForward(p *Pass, y device.Mat)
	// ForwardPart computes a part for all rows of the step.
	ForwardPart(p *Pass, part int)
	// Combine adds the result of all parts to y, of a micro-batch.
	Combine(p *Pass, y device.Mat)
	// OpenBackward takes what the parts need of dy, of a micro-batch. dy is a copy in dNorm, which it may change.
	OpenBackward(p *Pass, dy device.Mat)
	// BackwardPart adds the gradients of a part's parameters, for all rows of the step.
	BackwardPart(p *Pass, part int)
	// CloseBackward writes the gradient of a micro-batch's normed rows to dNorm, where OpenBackward left dy, and adds
	// those of the half's own Fields. dx has the gradient of y; it adds to it that of h by other ways than the normed
	// rows.
	CloseBackward(p *Pass, h, dx, dNorm device.Mat)
}

// Summed is a routed feed-forward whose backward reads the sum that its parts made of each row: its outcome. A part
// comes once on the way down and computes its gradient then, for which the feed-forward needs the outcome first. So
// forward leaves it for backward, whatever else is kept. The other way, a visit more of each part, moves the weights of
// all experts once more: for Gemma 4 26B-A4B these are 46 GB a step in bf16, and outcomes of 32,768 positions are 5.5
// GB down and as much up again.
type Summed interface {
	Routed
	// LeavesOutcome reports whether it is such a feed-forward.
	LeavesOutcome() bool
}

// LeavesOutcome reports whether forward leaves Args.Outcome for backward.
func (d *Block) LeavesOutcome() bool {
	f, ok := d.FeedForward.(Summed)
	return ok && f.LeavesOutcome()
}

// Loaded is a feed-forward that tells how many rows of a step chose each of its experts.
type Loaded interface {
	// Loads is the number of experts. The first part's forward visit writes as many numbers (F32): how many rows chose
	// each.
	Loads() int
	// Balanced is the weight of the load-balancing loss of all blocks; 0: there is no such loss. With it, the visit
	// also writes the sums of each expert's probabilities (F32 [experts]).
	Balanced() float32
}

// Loads is the number of the feed-forward's Loads; 0 if it tells none.
func (d *Block) Loads() int {
	if f, ok := d.FeedForward.(Loaded); ok {
		return f.Loads()
	}
	return 0
}

// Balanced is the weight of the load-balancing loss that the block takes part in.
func (d *Block) Balanced() float32 {
	if f, ok := d.FeedForward.(Loaded); ok {
		return f.Balanced()
	}
	return 0
}

// Fixed is a feed-forward that reads numbers which are of a model and are not trained. They are F32 whatever a run
// computes in, and are on the device for as long as the run is.
type Fixed interface {
	Constants() int // how many
}

// FeedConstants is the number of the feed-forward's constants; 0 for most.
func (d *Block) FeedConstants() int {
	if f, ok := d.FeedForward.(Fixed); ok {
		return f.Constants()
	}
	return 0
}

// Constants is the number of the block's constants: those of its feed-forward, or the one that its output is multiplied
// by. Checkpoints have them as one tensor.
func (d *Block) Constants() int { return d.FeedConstants() + when(d.Scalar, 1) }

// InitialConstant returns the value of each of them in a model without weights, which changes nothing.
func (d *Block) InitialConstant() float32 {
	if d.Scalar {
		return 1
	}
	return 0
}

// LoadBytes is the length of what the block tells of its experts.
func (d *Block) LoadBytes() int64 {
	n := d.Loads()
	if d.Balanced() != 0 {
		n *= 2
	}
	return int64(n) * tensor.F32.Bytes()
}

// Parts is the number of parts of the block's feed-forward, besides the trunk.
func (d *Block) Parts() int {
	if f, ok := d.FeedForward.(InParts); ok {
		return f.Count()
	}
	return 0
}

// PartFields are the tensors of a part of the block's feed-forward, from 0.
func (d *Block) PartFields(part int) []tensor.Field {
	return d.FeedForward.(InParts).PartFields(d.Hidden, part)
}

// Held keeps the micro-batches of a step between the visits of a block: the rows of all of them, or those of one
// ([Held.Micro]). They are on the device, or some of them in host memory ([Away]).
type Held struct {
	t          int        // positions of a micro-batch
	norm, stat device.Mat // [rows, Hidden], F32 [rows, Norm.stats]: the normed input of the parts
	dNorm      device.Mat // [rows, Hidden]: the gradient of norm; only where there is a backward pass
	// [apart·micro-batches, Hidden]: the residual stream that was normed; only where there is a backward pass. The
	// rows of a micro-batch begin where an arena would place them alone, as those in Kept or in y do: a device may
	// choose the way of a product by where its result begins, and what is computed again must have the bits of the
	// first time.
	h     device.Mat
	apart int          // rows of h for a micro-batch, some of them unused
	own   []device.Mat // the feed-forward's
	whole []bool       // of own: the micro-batches have it together
}

// NewHeld places it on a device for a step of micro-batches of t positions; nil for a block without parts.
func (d *Block) NewHeld(a *device.Arena, dtype tensor.DType, t, micros int, backward bool) *Held {
	return d.NewHeldIn(HeldMemory{Here: a}, dtype, t, micros, backward)
}

// NewHeldIn is NewHeld with some of it in host memory.
func (d *Block) NewHeldIn(m HeldMemory, dtype tensor.DType, t, micros int, backward bool) *Held {
	if d.Parts() == 0 {
		return nil
	}
	rows := t * micros
	held := &Held{t: t, norm: m.at(NormAway).Mat(dtype, rows, d.Hidden),
		stat: m.Here.Mat(tensor.F32, rows, d.Norm.stats())}
	if backward {
		held.apart = alignedRows(t, int64(d.Hidden)*dtype.Bytes())
		held.h = m.at(ResidualAway).Mat(dtype, held.apart*micros, d.Hidden)
		held.dNorm = m.at(GradientAway).Mat(dtype, rows, d.Hidden)
	}
	if r, ok := d.FeedForward.(Routed); ok {
		values := r.HeldValues(d.Hidden)
		held.own = make([]device.Mat, len(values))
		for away := range aways {
			take(m.at(away), dtype, rows, held.own, values, func(v Value) bool { return v.Away == away })
		}
		for _, v := range values {
			held.whole = append(held.whole, v.Whole)
		}
	}
	return held
}

// alignedRows is the least number of rows, n or more, after which a matrix with rows of rowBytes is aligned as at its
// begin.
func alignedRows(n int, rowBytes int64) int {
	step := device.ArenaAlign
	for step > 1 && rowBytes%2 == 0 {
		step, rowBytes = step/2, rowBytes/2
	}
	return (n + step - 1) / step * step
}

// Micro returns the share of a micro-batch.
func (b *Held) Micro(m int) *Held {
	rows := func(x device.Mat) device.Mat {
		if x.IsZero() {
			return x
		}
		return x.RowRange(m*b.t, b.t)
	}
	of := &Held{t: b.t, whole: b.whole, norm: rows(b.norm), stat: rows(b.stat), dNorm: rows(b.dNorm)}
	if !b.h.IsZero() {
		of.h = b.h.RowRange(m*b.apart, b.t)
	}
	for i, x := range b.own {
		if !b.whole[i] {
			x = rows(x)
		}
		of.own = append(of.own, x)
	}
	return of
}

// first is the share of the first n rows.
func (b *Held) first(n int) *Held {
	cut := *b
	cut.t = min(b.t, n)
	cut.norm, cut.stat, cut.h, cut.dNorm = first(b.norm, n), first(b.stat, n), first(b.h, n), first(b.dNorm, n)
	cut.own = slices.Clone(b.own)
	for i := range cut.own {
		if !b.whole[i] {
			cut.own[i] = first(b.own[i], n)
		}
	}
	return &cut
}

// partForward is the visit of a part on the way up.
func (d *Block) partForward(part int) Visit {
	v := Visit{Name: "forward", Parts: []int{1 + part}, Reads: HeldRows}
	if r, ok := d.FeedForward.(Routed); ok {
		v.Over, v.Writes = WholeStep, HeldRows
		if part == 0 && d.Loads() > 0 {
			v.Writes |= Loads
		}
		if part == 0 && d.Balanced() != 0 {
			v.Writes |= Balancing
		}
		v.Run = func(s device.Stream, a *Args) { r.ForwardPart(d.held(s, a), part) }
		return v
	}
	v.Writes = Y
	v.Run = func(s device.Stream, a *Args) {
		for c := range chunks(a.Y.Rows, a.Work.chunk) {
			d.FeedForward.(Parted).ForwardPart(d.partPass(s, a, c), part, c.rows(a.Y))
		}
	}
	return v
}

// partBackward is the visit of a part on the way down; first says that no part was visited before.
func (d *Block) partBackward(part int, first bool) Visit {
	v := Visit{Name: "backward", Parts: []int{1 + part}, Reads: DX, Writes: HeldRows | Grads, First: first}
	if r, ok := d.FeedForward.(Routed); ok {
		v.Over, v.Reads = WholeStep, 0
		if first && d.Balanced() != 0 {
			v.Reads |= Balancing
		}
		v.Run = func(s device.Stream, a *Args) { r.BackwardPart(d.held(s, a), part) }
		return v
	}
	v.Run = func(s device.Stream, a *Args) {
		for c := range chunks(a.DX.Rows, a.Work.chunk) {
			d.FeedForward.(Parted).BackwardPart(d.partPass(s, a, c), part, c.rows(a.DX), c.rows(a.Held.dNorm), first)
		}
	}
	return v
}

// held is the view of a routed feed-forward of a micro-batch, or of the step. Its values have the rows of a chunk.
func (d *Block) held(s device.Stream, a *Args) *Pass {
	p := &Pass{Stream: s, normed: d.Norm, b: a.Batch, held: a.Held, norm: a.Held.norm, stat: a.Held.stat,
		chunk: a.Work.chunk, call: a.Work.call, buf: a.Work.feed, loads: a.Loads, balance: a.Balance,
		stepRows: a.StepRows, constants: a.Constants, outcome: a.Outcome}
	if len(a.Weights) > 0 {
		p.w = a.Weights[0]
	}
	if len(a.Gradients) > 0 {
		p.g = a.Gradients[0]
	}
	return p
}

// partPass is the view that a part has of a chunk of a micro-batch.
func (d *Block) partPass(s device.Stream, a *Args, c chunk) *Pass {
	p := &Pass{Stream: s, w: a.Weights[0], normed: d.Norm, norm: c.rows(a.Held.norm)}
	if len(a.Gradients) > 0 {
		p.g = a.Gradients[0].at(c)
	}
	p.of = min(a.Work.wholeChunk, a.Work.whole-c.first)
	for _, m := range a.Work.feed {
		p.buf = append(p.buf, m.RowRange(0, c.n))
	}
	return p
}

// runOpen is the trunk's visit on the way up: a whole block's as far as the parts. It leaves the residual stream in y,
// to which they add.
func (d *Block) runOpen(s device.Stream, a *Args) {
	mixer, _, _ := d.passes(s, a)
	d.Mixer.Forward(mixer, a.X)
	for c := range mixer.chunks() {
		y := c.rows(a.Y)
		h := y
		if a.Kept.keep >= KeepAll {
			h = c.rows(a.Kept.h)
		}
		d.mix(mixer.At(c), c.rows(a.X), h)
		d.normalizeHeld(s, a, c, h)
		if a.Kept.keep >= KeepAll {
			s.Copy(y.Mem, h.Mem)
		}
	}
	if r, ok := d.FeedForward.(Routed); ok {
		p := d.held(s, a)
		r.Open(p, a.Y)
		r.OpenForward(p, a.Y)
	}
}

// partsNorm is the weight of the norm of what parts read.
func (d *Block) partsNorm() string {
	_, feed := d.Rule.norms()
	return feed.in
}

func (d *Block) normalizeHeld(s device.Stream, a *Args, c chunk, h device.Mat) {
	d.Norm.apply(s, c.rows(a.Held.norm), c.rows(a.Held.stat), h, a.Weights[0], d.partsNorm())
}

// runReopen computes again what the parts read in their visits on the way down.
func (d *Block) runReopen(s device.Stream, a *Args) {
	mixer, _, _ := d.passes(s, a)
	if a.Kept.keep < KeepAll {
		d.Mixer.Recompute(mixer, a.X)
	}
	for c := range mixer.chunks() {
		h := c.rows(a.residual())
		if a.Kept.keep < KeepAll {
			d.mix(mixer.At(c), c.rows(a.X), h)
		}
		d.normalizeHeld(s, a, c, h)
	}
	if r, ok := d.FeedForward.(Routed); ok {
		p, dy := d.held(s, a), a.Held.dNorm
		r.Open(p, a.residual())
		if d.Scalar {
			s.Scale(dy, a.DX, a.Scalar)
		} else {
			s.Copy(dy.Mem, a.DX.Mem)
		}
		r.OpenBackward(p, dy)
	}
}

// residual is the residual stream that the parts' norm reads: [T, Hidden].
func (a *Args) residual() device.Mat {
	if a.Kept.keep >= KeepAll {
		return a.Kept.h
	}
	return a.Held.h
}

// runClose is the trunk's visit after the parts on the way down: it turns dx from the gradient of y into that of x.
func (d *Block) runClose(s device.Stream, a *Args) {
	mixer, _, _ := d.passes(s, a)
	h, dNorm, dy := a.residual(), a.Held.dNorm, a.DX
	if r, ok := d.FeedForward.(Routed); ok {
		if d.Scalar {
			s.Scale(a.DX, a.DX, a.Scalar)
		}
		r.CloseBackward(d.held(s, a), h, a.DX, dNorm)
	}
	w, g := a.Weights[0], a.Gradients[0]
	for c := range mixer.chunks() {
		dx := c.rows(a.DX)
		d.Norm.grad(s, dx, c.rows(dNorm), c.rows(h), c.rows(a.Held.stat), dx, w, g, d.partsNorm())
	}
	d.Mixer.Recompute(mixer, a.X)
	if d.Rule.hasPost() {
		dy = a.Work.dOut
		for c := range mixer.chunks() {
			p := mixer.At(c)
			d.Mixer.Output(p, device.Mat{}, p.out)
			p.altered() // the norm's gradient reads its statistics
			p.alteredGrad(c.rows(dy), c.rows(a.DX))
		}
	}
	d.Mixer.Backward(mixer, a.X, dy, a.DX)
}

// Check says why the block's halves, rule and scalar do not go together; nil if they do.
func (d *Block) Check() error {
	_, routed := d.FeedForward.(Routed)
	_, withDense := d.FeedForward.(WithDense)
	switch {
	case withDense != (d.Rule == Branches):
		return errors.New("the rule Branches and a dense feed-forward next to experts need each other")
	case withDense && d.Norm.Layer:
		return errors.New("a dense feed-forward next to experts needs root-mean-square norms")
	case d.Parts() > 0 && d.Rule != Pre && !withDense:
		return errors.New("a feed-forward in parts needs the rule Pre")
	case d.Parts() > 0 && d.Scalar && !routed:
		return errors.New("a feed-forward in parts that has no router needs a block without a scalar")
	case d.Parts() > 0 && d.Positions > 0:
		return errors.New("a feed-forward in parts needs a block without learned positions")
	case d.PerLayer.Inner > 0 && (d.Rule != Sandwich || d.Norm.Layer):
		return errors.New("rows of the layer's own need the rule Sandwich and root-mean-square norms")
	}
	return nil
}

// SplitGLU is a GLU, with silu, whose inner columns are cut into parts. It computes what a GLU of Groups*Inner columns
// does, with a rounding of the sum after each part.
type SplitGLU struct {
	Inner  int // columns of gate and of up in a part
	Groups int
}

// The tensors of a part. Gate and up are glued.
const (
	groupGateUp = "gate.weight"
	groupDown   = "down.weight"
)

// Count implements InParts.
func (g SplitGLU) Count() int { return g.Groups }

// Fields implements Half: the trunk has none of it.
func (g SplitGLU) Fields(int) []tensor.Field { return nil }

// PartFields implements InParts.
func (g SplitGLU) PartFields(hidden, _ int) []tensor.Field {
	return []tensor.Field{param(groupGateUp, g.Inner, hidden), glued("up.weight", g.Inner, hidden),
		param(groupDown, hidden, g.Inner)}
}

// Values lists the values of a GLU; nothing of them is kept.
func (g SplitGLU) Values(int) []Value {
	return []Value{gateUp: {Cols: 2 * g.Inner, Lives: Scratch}, act: {Cols: g.Inner, Lives: Scratch}}
}

// ForwardPart implements Parted.
func (g SplitGLU) ForwardPart(p *Pass, _ int, y device.Mat) {
	p.Project(p.buf[gateUp], p.norm, groupGateUp, 2)
	p.GLU(p.buf[act], p.buf[gateUp], device.GLUSpec{})
	p.MatMul(y, p.buf[act], p.w.named(groupDown, 1), device.MatMulFlags{TransB: true, Accumulate: true})
}

// BackwardPart implements Parted.
func (g SplitGLU) BackwardPart(p *Pass, _ int, dy, dNorm device.Mat, first bool) {
	p.Project(p.buf[gateUp], p.norm, groupGateUp, 2)
	p.ProjectGrad(p.buf[act], dy, groupDown, 1)
	p.GLUGrad(p.buf[gateUp], p.buf[act], p.buf[act], p.buf[gateUp], device.GLUSpec{})
	p.WeightGrad(groupDown, 1, dy, p.buf[act])
	p.WeightGrad(groupGateUp, 2, p.buf[gateUp], p.norm)
	p.MatMul(dNorm, p.buf[gateUp], p.w.named(groupGateUp, 2), device.MatMulFlags{Accumulate: !first})
}
