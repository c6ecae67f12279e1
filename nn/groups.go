package nn

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// A block may be too large for a slot of the ring: its weights, or their gradient in fp32. Then its feed-forward is
// cut into groups, each of which is a part of the model by itself: fetched, visited by all micro-batches, drained and
// updated apart from the others. The rest of the block is its trunk: the mixer and the norms. Visits come in this
// order:
//
//	forward:   trunk (all micro-batches), group 0, group 1, ...
//	backward:  trunk again (Reopen), ..., group 1, group 0, trunk (Close)
//
// Between the visits of a block each micro-batch keeps its normed rows, and in backward their gradient, on the device
// ([Between]).

// Grouped is a feed-forward that is cut into groups: [SplitGLU].
type Grouped interface {
	FeedForward
	// count is the number of groups, which are alike.
	count() int
	// groupFields are the tensors of one group.
	groupFields(hidden int) []tensor.Field
	// groupForward adds the group's result to y, of a chunk whose normed rows are p.norm.
	groupForward(p *pass, y device.Mat)
	// groupBackward adds the gradients of the group's parameters, given dy of a chunk, and writes the gradient of the
	// normed rows to dNorm, or adds it if it is not the first.
	groupBackward(p *pass, dy, dNorm device.Mat, first bool)
	// groupAccounts are the arithmetic, operations and element traffic of a visit of one group.
	groupAccounts(hidden, t, chunks int) (forward, backward Account)
}

// Account is what a visit asks of a device: arithmetic, operations, and elements for each position that element-wise
// operations move.
type Account struct {
	FLOPs   int64
	Ops     int
	Traffic int64
}

// Groups is the number of groups of the block's feed-forward; 0: it is not cut.
func (d *Block) Groups() int {
	if g, ok := d.FeedForward.(Grouped); ok {
		return g.count()
	}
	return 0
}

// GroupFields are the tensors of one group.
func (d *Block) GroupFields() []tensor.Field { return d.FeedForward.(Grouped).groupFields(d.Hidden) }

// GroupAccounts are those of a group's visits with one micro-batch of t positions.
func (d *Block) GroupAccounts(t, chunks int) (forward, backward Account) {
	return d.FeedForward.(Grouped).groupAccounts(d.Hidden, t, chunks)
}

// TrunkAccounts are those of the visits of the trunk: forward, the one that opens it again, and the one that closes it.
func (d *Block) TrunkAccounts(t, chunks int, pairs int64, k Keep) (forward, reopen, closing Account) {
	flops, backFLOPs, againFLOPs := d.Mixer.flops(d.Hidden, t, pairs)
	ops, backOps, againOps := d.Mixer.ops(chunks)
	traffic, backTraffic := d.Mixer.elementTraffic(d.Hidden, k)
	norm, normGrad := normTraffic(d.Hidden)
	forward = Account{flops, ops + chunks, int64(traffic + norm)}
	reopen = Account{0, chunks, int64(norm)}
	closing = Account{backFLOPs + againFLOPs[k], backOps + againOps[k] + chunks, int64(backTraffic + normGrad)}
	if k >= KeepAll { // its rows are copied to where groups add to them
		forward.Ops, forward.Traffic = forward.Ops+chunks, forward.Traffic+int64(twice*d.Hidden)
		return forward, reopen, closing
	}
	recompute, output := d.Mixer.againAccounts(d.Hidden, t, chunks, pairs, k)
	for _, a := range []Account{recompute, output} {
		reopen = Account{reopen.FLOPs + a.FLOPs, reopen.Ops + a.Ops, reopen.Traffic + a.Traffic}
	}
	// Closing has no use for the residual stream.
	closing = Account{closing.FLOPs - output.FLOPs, closing.Ops - output.Ops, closing.Traffic - output.Traffic}
	return forward, reopen, closing
}

// Between is what a micro-batch of t positions has on the device between the visits of a block that is cut into groups.
type Between struct {
	norm, rstd device.Mat // [t, Hidden], F32 [t, 1]: the normed input of the groups
	// [t, Hidden]: the residual stream that was normed, and the gradient of norm; only where there is a backward pass
	h, dNorm device.Mat
}

// NewBetween places it.
func (d *Block) NewBetween(a *device.Arena, dtype tensor.DType, t int, backward bool) *Between {
	b := &Between{norm: a.Mat(dtype, t, d.Hidden), rstd: a.Mat(tensor.F32, t, 1)}
	if backward {
		b.h, b.dNorm = a.Mat(dtype, t, d.Hidden), a.Mat(dtype, t, d.Hidden)
	}
	return b
}

// ForwardTrunk is Forward as far as the groups: it leaves the residual stream in y, to which they add.
func (d *Block) ForwardTrunk(s device.Stream, w Params, x, y device.Mat, b *Batch, r *Rope, kept *Kept, work *Work,
	between *Between) {
	mixer, _ := d.passes(s, w, Params{}, b, r, kept, work)
	d.Mixer.forward(mixer, x)
	for c := range mixer.chunks() {
		y := c.rows(y)
		h := y
		if kept.keep >= KeepAll {
			h = c.rows(kept.h)
		}
		d.Mixer.output(mixer.at(c), c.rows(x), h)
		d.normalizeBetween(s, w, c, h, between)
		if kept.keep >= KeepAll {
			s.Copy(y.Mem, h.Mem)
		}
	}
}

func (d *Block) normalizeBetween(s device.Stream, w Params, c chunk, h device.Mat, between *Between) {
	s.RMSNorm(c.rows(between.norm), c.rows(between.rstd), h, w.named(feedNorm, 1), 1, d.Eps)
}

// ForwardGroup adds a group's result to y. w are the group's weights.
func (d *Block) ForwardGroup(s device.Stream, w Params, y device.Mat, b *Batch, work *Work, between *Between) {
	for c := range chunks(b.T, work.chunk) {
		d.FeedForward.(Grouped).groupForward(d.groupPass(s, w, Params{}, c, work, between), c.rows(y))
	}
}

// Reopen computes again what the groups read in their backward visits.
func (d *Block) Reopen(s device.Stream, w Params, x device.Mat, b *Batch, r *Rope, kept *Kept, work *Work,
	between *Between) {
	mixer, _ := d.passes(s, w, Params{}, b, r, kept, work)
	if kept.keep < KeepAll {
		d.Mixer.recompute(mixer, x)
	}
	for c := range mixer.chunks() {
		h := d.residual(c, kept, between)
		if kept.keep < KeepAll {
			d.Mixer.output(mixer.at(c), c.rows(x), h)
		}
		d.normalizeBetween(s, w, c, h, between)
	}
}

// residual is the residual stream that the groups' norm reads, of a chunk.
func (d *Block) residual(c chunk, kept *Kept, between *Between) device.Mat {
	if kept.keep >= KeepAll {
		return c.rows(kept.h)
	}
	return c.rows(between.h)
}

// BackwardGroup adds the gradients of a group's parameters to g; dx holds the gradient of y. The group that is
// visited first in backward begins the gradient of the normed rows.
func (d *Block) BackwardGroup(s device.Stream, w, g Params, dx device.Mat, b *Batch, work *Work, between *Between,
	first bool) {
	for c := range chunks(b.T, work.chunk) {
		p := d.groupPass(s, w, g.at(c), c, work, between)
		d.FeedForward.(Grouped).groupBackward(p, c.rows(dx), c.rows(between.dNorm), first)
	}
}

// Close is the part of Backward after the groups: it turns dx from the gradient of y into the gradient of x.
func (d *Block) Close(s device.Stream, w, g Params, x, dx device.Mat, b *Batch, r *Rope, kept *Kept, work *Work,
	between *Between) {
	mixer, _ := d.passes(s, w, g, b, r, kept, work)
	for c := range mixer.chunks() {
		dx := c.rows(dx)
		s.RMSNormGrad(dx, g.named(feedNorm, 1), c.rows(between.dNorm), d.residual(c, kept, between), w.named(feedNorm, 1),
			c.rows(between.rstd), dx, 1)
	}
	d.Mixer.recompute(mixer, x)
	d.Mixer.backward(mixer, x, dx)
}

// groupPass is what a group sees of a chunk.
func (d *Block) groupPass(s device.Stream, w, g Params, c chunk, work *Work, between *Between) *pass {
	p := &pass{Stream: s, w: w, g: g, eps: d.Eps, norm: c.rows(between.norm)}
	for _, m := range work.feed {
		p.buf = append(p.buf, m.RowRange(0, c.n))
	}
	return p
}

// SplitGLU is a GLU whose inner columns are cut into groups. It computes what a GLU of Groups*Inner columns does,
// with a rounding of the sum after each group.
type SplitGLU struct {
	Inner  int // columns of gate and of up in a group
	Groups int
}

// The tensors of a group. Gate and up are glued.
const (
	groupGateUp = "gate_proj.weight"
	groupDown   = "down_proj.weight"
)

func (g SplitGLU) count() int                { return g.Groups }
func (g SplitGLU) fields(int) []tensor.Field { return nil }

func (g SplitGLU) groupFields(hidden int) []tensor.Field {
	return []tensor.Field{param(groupGateUp, g.Inner, hidden), glued("up_proj.weight", g.Inner, hidden),
		param(groupDown, hidden, g.Inner)}
}

// buffers are those of a GLU; nothing of them is kept.
func (g SplitGLU) buffers() []buffer {
	return []buffer{gateUp: {cols: 2 * g.Inner, lives: scratch}, act: {cols: g.Inner, lives: scratch}}
}

func (g SplitGLU) groupForward(p *pass, y device.Mat) {
	p.project(p.buf[gateUp], p.norm, groupGateUp, 2)
	p.SwiGLU(p.buf[act], p.buf[gateUp])
	p.MatMul(y, p.buf[act], p.w.named(groupDown, 1), device.MatMulFlags{TransB: true, Accumulate: true})
}

func (g SplitGLU) groupBackward(p *pass, dy, dNorm device.Mat, first bool) {
	p.project(p.buf[gateUp], p.norm, groupGateUp, 2)
	p.projectGrad(p.buf[act], dy, groupDown, 1)
	p.SwiGLUGrad(p.buf[gateUp], p.buf[act], p.buf[act], p.buf[gateUp])
	p.weightGrad(groupDown, 1, dy, p.buf[act])
	p.weightGrad(groupGateUp, 2, p.buf[gateUp], p.norm)
	p.MatMul(dNorm, p.buf[gateUp], p.w.named(groupGateUp, 2), device.MatMulFlags{Accumulate: !first})
}

func (g SplitGLU) groupAccounts(hidden, t, chunks int) (forward, backward Account) {
	product := 2 * int64(t) * int64(hidden) * int64(g.Inner)
	return Account{3 * product, 3 * chunks, int64(3 * g.Inner)}, Account{8 * product, 6 * chunks, int64(6 * g.Inner)}
}

// A trunk has none of a feed-forward's arithmetic.

func (g SplitGLU) flops(int, int, int64) (forward, backward int64, recompute [Keeps]int64) { return }
func (g SplitGLU) ops(int) (forward, backward int, recompute [Keeps]int)                   { return }
func (g SplitGLU) elementTraffic(int, Keep) (forward, backward int)                        { return }

func (g SplitGLU) forward(*pass, device.Mat, device.Mat, device.MatMulFlags) {
	panic("nn: a feed-forward in groups is visited by groups")
}

func (g SplitGLU) backward(*pass, device.Mat, device.Mat) {
	panic("nn: a feed-forward in groups is visited by groups")
}
