package nn

import (
	"cmp"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Account counts what a visit asks of a device.
type Account struct {
	// Work has the FLOPs or the bytes of each class. FLOPs are 2MNK for each matrix product; for attention two products
	// for each pair of query and key that a head scores, and five for its gradient, which forms the scores again; for a
	// gated delta net what device.DeltaSpec.FLOPs says. Bytes are those that operations read and write, each operand once
	// for each time that it is read or written: what a GPU moves. Vectors of weights, statistics and the tables of the
	// rotation are small and left out. So is attention, except the sum of dout*out, which is a pass of its own. The
	// operands of a class in FLOPs count with it.
	Work [Classes]int64
	Ops  int
	// Up and Down are the bytes of host memory that operations read and write over the link (Away): each operand once.
	Up, Down int64
	// CacheBytes are those of keys and values that attention over caches reads: each row its own, and rows of a text
	// that are computed together those of the caches once.
	CacheBytes int64
	// Widest is the widest attention whose gradient is asked for.
	Widest AttentionShape
	// HeadDim is the most columns of a head of an attention; 0: nothing asks for one.
	HeadDim int
	// DeltaDim is the most columns of queries, keys and values of a head of a gated delta net; 0: nothing asks for one.
	DeltaDim int
	// DeltaHeads is the most heads of a gated delta net.
	DeltaHeads int
	// ExpertRows is the most rows of a step that an expert has, if each is chosen equally often; 0: no expert is asked.
	ExpertRows int
}

// AttentionShape is the number of query heads and their width.
type AttentionShape struct{ Heads, HeadDim int }

// cols is the width of all queries.
func (a AttentionShape) cols() int { return a.Heads * a.HeadDim }

// FLOPs is the arithmetic of products, attention and gated delta nets.
func (a Account) FLOPs() (n int64) { return a.sum(true) }

// Bytes counts the bytes that all other operations read and write.
func (a Account) Bytes() (n int64) { return a.sum(false) }

func (a Account) sum(flops bool) (n int64) {
	for class, work := range a.Work {
		if Class(class).IsFLOPs() == flops {
			n += work
		}
	}
	return n
}

// Plus is the sum of two accounts.
func (a Account) Plus(b Account) Account {
	for class, work := range b.Work {
		a.Work[class] += work
	}
	if a.Widest.cols() < b.Widest.cols() {
		a.Widest = b.Widest
	}
	a.Ops, a.Up, a.Down = a.Ops+b.Ops, a.Up+b.Up, a.Down+b.Down
	a.CacheBytes += b.CacheBytes
	a.HeadDim, a.DeltaDim = max(a.HeadDim, b.HeadDim), max(a.DeltaDim, b.DeltaDim)
	a.DeltaHeads, a.ExpertRows = max(a.DeltaHeads, b.DeltaHeads), max(a.ExpertRows, b.ExpertRows)
	return a
}

// Shape is of the micro-batch that visits are measured with.
type Shape struct {
	Docs  []int // lengths of its documents, in positions
	DType tensor.DType
	// Micros is the number of micro-batches in a step, which visits over the whole step see at once; 0: one.
	Micros int
	// Wanted is how many rows' logits a visit computes at once; 0: of a chunk of the head.
	Wanted int
	// Caches are those of visits that continue sequences.
	Caches Caches
	Cut    Cut
	Level  Keep // what the block keeps
	Away   Away // what it holds in host memory
}

func (m Shape) positions() (t int) {
	for _, n := range m.Docs {
		t += n
	}
	return t
}

// counted is memory without bytes and without an end.
var counted = device.Mem{Len: 1 << 62}

// Measure implements Layer.
func (d *Block) Measure(v Visit, m Shape, layouts ...*tensor.Layout) Account {
	t, x := m.positions(), device.Mat{}
	a := device.NewArena(device.Mem{})
	mat := func() device.Mat { return a.Mat(m.DType, t, d.Hidden) }
	args := measured(v, m, t, layouts)
	args.X, args.Y, args.DX, x = mat(), mat(), mat(), mat()
	if (v.Reads | v.Writes).Has(Outcomes) {
		args.Outcome = mat()
	}
	args.Rope = &Rope{Cos: x, Sin: x}
	args.Kept = d.NewKept(a, m.DType, t, m.Level)
	if v.To == Backward {
		args.Work = d.NewBackwardWork(a, m.DType, t, m.Cut, m.Level)
	} else {
		args.Work = d.NewForwardWork(a, m.DType, t, m.Cut, m.Level)
	}
	if v.To == Continue && d.CanContinue() {
		args.Cache = d.NewCache(a, m.DType, m.Caches)
	}
	for _, side := range d.Sides() {
		rows := func() device.Mat { return a.Mat(m.DType, t, side.Cols) }
		args.Sides = append(args.Sides, SideRows{Value: rows(), Grad: rows()})
	}
	args.Constants = a.Mat(tensor.F32, 1, d.FeedConstants())
	args.Loads = device.Mem{Len: d.LoadBytes()}
	if experts := d.Loads(); d.Balanced() != 0 {
		args.Balance = a.Mat(tensor.F32, 1, experts)
	}
	memory := HeldMemory{a, device.NewArena(device.Mem{Buf: overLink{}, Len: counted.Len}), m.Away}
	if held := d.NewHeldIn(memory, m.DType, t, max(m.Micros, 1), true); held != nil {
		if args.Held = held; v.Over == EachMicro {
			args.Held = held.Micro(0)
		}
	}
	c := &counter{docs: m.Docs}
	v.Run(c, args)
	return c.Account
}

// Measure implements Layer.
func (h *Head) Measure(v Visit, m Shape, layouts ...*tensor.Layout) Account {
	if v.OnHost {
		return Account{}
	}
	t := m.positions()
	a := device.NewArena(device.Mem{})
	args := measured(v, m, t, layouts)
	args.X, args.DX = a.Mat(m.DType, t, h.Hidden), a.Mat(m.DType, t, h.Hidden)
	args.Ending = h.NewEnding(a, m.DType, t, true)
	args.Ending.ByTile, args.Ending.AtOnce = h.NewStatsWork(a, m.DType, t), h.NewVisitWork(a, m.DType, t)
	if h.KeepLogits && len(v.Parts) > 0 && v.Parts[0] > 0 {
		args.Ending.ByTile = h.NewKept(a, args.Ending.ByTile, v.Parts[0]-1, t)
	}
	wanted := min(t, cmp.Or(m.Wanted, h.ChunkTokens))
	args.Picked = Picked{IDs: counted, Values: a.Mat(tensor.F32, t, h.Picks)}
	args.Wanted = Wanted{Rows: wanted, To: a.Mat(tensor.F32, wanted, h.Vocab), Draws: counted, Vocab: h.Vocab}
	args.ValueSlopes = counted
	if h.Entropies {
		args.EntropySlopes = counted
	}
	c := &counter{docs: m.Docs}
	v.Run(c, args)
	return c.Account
}

// measured are the arguments that all layers share.
func measured(v Visit, m Shape, t int, layouts []*tensor.Layout) *Args {
	args := &Args{Loss: counted, Batch: &MicroBatch{T: t, IDs: counted, Targets: counted, Weights: counted,
		Docs: device.Docs{Positions: counted, Start: counted, End: counted}, Places: counted}}
	for _, l := range layouts {
		args.Weights = append(args.Weights, Weights(counted, l, m.DType))
		g := Params{}
		if v.Writes.Has(Grads) && l.StateElems > 0 {
			g = Gradients(counted, l)
		}
		args.Gradients = append(args.Gradients, g)
	}
	return args
}

// pairs is the number of pairs of query and key that one head scores in documents of these lengths; a query sees the
// latest keys of a window only, if that is not 0.
func pairs(docs []int, window int) (n int64) {
	for _, l := range docs {
		m := int64(l)
		n += m * (m + 1) / 2
		if w := int64(window); w > 0 && m > w {
			n -= (m - w) * (m - w + 1) / 2
		}
	}
	return n
}

// counter is a stream that does nothing and keeps an account. Operations that no visit of a layer asks for are those of
// the nil Stream.
type counter struct {
	device.Stream
	Account
	docs []int
}

// adds counts an operation of a class, of which it is so much.
func (c *counter) adds(class Class, work int64) {
	c.Ops++
	c.Work[class] += work
}

// passes counts an element-wise operation that reads or writes these, each as often as it is named; none is nothing.
func (c *counter) passes(mats ...device.Mat) { c.passesIn(OfElements, mats...) }

// moves counts a copy or a cast.
func (c *counter) moves(mats ...device.Mat) { c.passesIn(OfMoves, mats...) }

// passesIn counts such an operation of a class.
func (c *counter) passesIn(class Class, mats ...device.Mat) {
	var bytes int64
	for _, x := range mats {
		bytes += int64(x.Rows) * int64(x.Cols) * x.DType.Bytes()
	}
	c.adds(class, bytes)
}

func (c *counter) MatMul(to, a, b device.Mat, f device.MatMulFlags) {
	c.turns(to, a, b, f.Onto)
	if f.Accumulate {
		c.reads(int64(to.Rows), to)
	}
	inner := a.Cols
	if f.TransA {
		inner = a.Rows
	}
	c.adds(OfProducts, 2*int64(to.Rows)*int64(to.Cols)*int64(inner))
}

// attends counts an attention of one of two classes: without a soft cap, and with one.
func (c *counter) attends(plain, capped Class, flops int64, s device.AttentionSpec) {
	if s.SoftCap > 0 {
		plain = capped
	}
	c.adds(plain, flops)
	c.HeadDim = max(c.HeadDim, s.HeadDim)
}

func (c *counter) Attention(_, _, _, _, _ device.Mat, s device.AttentionSpec) {
	c.attends(OfAttention, OfCappedAttention, 2*2*pairs(c.docs, s.Window)*int64(s.Heads*s.HeadDim), s)
}

func (c *counter) AttendCache(_, q, k, v device.Mat, s device.AttentionSpec) {
	each := int64(k.Cols)*k.DType.Bytes() + int64(v.Cols)*v.DType.Bytes()
	c.CacheBytes += min(int64(q.Rows)*int64(s.SeenRows(k.Rows)), int64(k.Rows)) * each
	c.attends(OfCacheAttention, OfCacheAttention, s.CacheFLOPs(q.Rows, k.Rows), s)
}

func (c *counter) AttentionGrad(_, _, _, dout, _, _, _, out, _, _ device.Mat, s device.AttentionSpec) {
	c.attends(OfAttentionGrad, OfCappedAttentionGrad, 5*2*pairs(c.docs, s.Window)*int64(s.Heads*s.HeadDim), s)
	c.Work[OfElements] += int64(dout.Rows) * int64(dout.Cols+out.Cols) * out.DType.Bytes()
	if shape := (AttentionShape{s.Heads, s.HeadDim}); c.Widest.cols() < shape.cols() {
		c.Widest = shape
	}
}

func (c *counter) Copy(dst, src device.Mem) {
	c.adds(OfMoves, dst.Len+src.Len)
	c.turns(device.NewMat(dst, tensor.U8, 1, int(dst.Len)), device.NewMat(src, tensor.U8, 1, int(src.Len)))
}

func (c *counter) Zero(dst device.Mem) {
	c.adds(OfMoves, dst.Len)
	c.turns(device.NewMat(dst, tensor.U8, 1, int(dst.Len)))
}

func (c *counter) Cast(dst, src device.Mat)                   { c.moves(dst, src) }
func (c *counter) SinkGrad(_, _, _, _ device.Mat)             { c.passes() }
func (c *counter) GLU(y, gateUp device.Mat, _ device.GLUSpec) { c.passes(y, gateUp) }

func (c *counter) Add(y, a, b device.Mat) {
	c.passes(y, a, b)
	c.turns(y, a, b)
}

func (c *counter) Scale(y, x device.Mat, _ float32) {
	c.passes(y, x)
	c.turns(y, x)
}

func (c *counter) AddBias(y, _ device.Mat) {
	c.passes(y, y)
	c.turns(y, y)
}

func (c *counter) BiasGrad(_, dy device.Mat) {
	c.passes(dy)
	c.reads(int64(dy.Rows), dy)
}

func (c *counter) RMSNorm(y, _, x, _ device.Mat, _ device.NormSpec) {
	c.passes(y, x)
	c.turns(y, x)
}

func (c *counter) JoinHeads(y, a, b device.Mat, _ int)  { c.moves(y, a, b) }
func (c *counter) SplitHeads(a, b, y device.Mat, _ int) { c.moves(a, b, y) }

func (c *counter) RoPE(y, x, _ device.Mat, _ int, _, _ device.Mat, _ device.Mem, _ bool) {
	c.passes(y, x)
}

func (c *counter) RMSNormGrad(dx, _, dy, x, _, _, resid device.Mat, _ device.NormSpec) {
	c.passesIn(OfNormGrads, dx, dy, x, resid)
	c.turns(dx, dy, x, resid)
}

func (c *counter) LayerNorm(y, _, x, _, _ device.Mat, _ float32) {
	c.passes(y, x)
	c.turns(y, x)
}

func (c *counter) LayerNormGrad(dx, _, dy, x, _, _, resid device.Mat) {
	c.passesIn(OfNormGrads, dx, dy, x, resid)
	c.turns(dx, dy, x, resid)
}

func (c *counter) GLUGrad(dGateUp, act, dy, gateUp device.Mat, _ device.GLUSpec) {
	c.passesIn(OfUnitGrads, dGateUp, act, dy, gateUp)
}

func (c *counter) Gather(y, _ device.Mat, _ device.Mem, _ int)                 { c.moves(y, y) }
func (c *counter) Put(_, x device.Mat, _ device.Mem)                           { c.moves(x, x) }
func (c *counter) ScatterAdd(_, dy device.Mat, _ device.Mem, _ int, _ float32) { c.passes(dy, dy, dy) }

// routed counts an element-wise operation on the rows of blocks that reads or writes these matrices of blocks, if each
// expert is chosen equally often.
func (c *counter) routed(b device.Blocks, mats ...device.Mat) { c.routedIn(OfElements, b, mats...) }

// routedIn counts such an operation of a class.
func (c *counter) routedIn(class Class, b device.Blocks, mats ...device.Mat) {
	var bytes int64
	for _, x := range mats {
		bytes += b.Balanced() * int64(x.Cols) * x.DType.Bytes()
	}
	c.adds(class, bytes)
}

// multiplies counts products of rows of blocks with experts' weights of that size, or the gradients of these.
func (c *counter) multiplies(class Class, b device.Blocks, cols, rows int) {
	c.adds(class, 2*b.Balanced()*int64(cols)*int64(rows))
	if r := b.Routing; r.Experts > 0 {
		c.ExpertRows = max(c.ExpertRows, r.Rows*r.TopK/r.Experts, 1)
	}
}

func (c *counter) Route(_ device.Mem, _, logits, _ device.Mat, _ device.RouteSpec) { c.passes(logits) }

func (c *counter) RouteGrad(dlogits, _, logits device.Mat, _ device.Mem, _ device.RouteSpec) {
	c.passes(dlogits, logits)
}

func (c *counter) CountChoices(device.Mat, device.Routing, float32) { c.passes() }
func (c *counter) SortChoices(device.Routing)                       { c.passes() }

func (c *counter) ScaleChoices(y, x, _ device.Mat, _ device.Mem)      { c.passes(y, x) }
func (c *counter) ScaleChoicesGrad(_, dy, x device.Mat, _ device.Mem) { c.passes(dy, x) }

func (c *counter) GatherRows(y, x device.Mat, b device.Blocks) {
	c.routedIn(OfMoves, b, y, x)
	c.reads(b.Balanced(), x)
}

func (c *counter) ExpertMatMul(to, a, _, _ device.Mat, _ device.ExpertProduct, b device.Blocks) {
	c.writes(b.Balanced(), to)
	c.multiplies(OfExperts, b, a.Cols, to.Cols)
}

func (c *counter) ExpertWeightGrad(_, dy, x device.Mat, b device.Blocks) {
	c.multiplies(OfExpertGrads, b, dy.Cols, x.Cols)
}

func (c *counter) ExpertBiasGrad(_, _, dy, _, _ device.Mat, b device.Blocks) { c.routed(b, dy) }

func (c *counter) ExpertGLU(y, gateUp device.Mat, _ device.GLUSpec, b device.Blocks) {
	c.routed(b, y, gateUp)
}

func (c *counter) ExpertGLUGrad(dGateUp, act, _, dy, gateUp, _ device.Mat, _ device.GLUSpec, b device.Blocks) {
	c.routedIn(OfUnitGrads, b, dGateUp, act, dy, gateUp)
}

func (c *counter) CombineRows(y, x, from, _ device.Mat, _ device.Mem, topK int) {
	c.passes(y, from)
	c.turns(y, from)
	c.reads(int64(topK)*int64(y.Rows), x)
	c.Work[OfElements] += int64(topK) * int64(y.Rows) * int64(y.Cols) * x.DType.Bytes()
}

func (c *counter) CausalConv(y, x, _ device.Mat, _ device.Docs) { c.passesIn(OfConv, y, x) }

func (c *counter) CausalConvGrad(dx, _, dy, x, _ device.Mat, _ device.Docs) {
	c.passesIn(OfConvGrad, dx, dy, x)
}

func (c *counter) Gate(y, x, gate device.Mat, _ device.GateKind) { c.passes(y, x, gate) }

func (c *counter) GateGrad(dx, dgate, dy, x, gate device.Mat, _ device.GateKind) {
	c.passes(dx, dgate, dy, x, gate)
}

func (c *counter) DeltaGates(decay, beta, a, b, _, _ device.Mat) { c.passes(decay, beta, a, b) }

func (c *counter) DeltaGatesGrad(da, db, _, _, ddecay, dbeta, a, b, _, _ device.Mat) {
	c.passes(da, db, ddecay, dbeta, a, b)
}

func (c *counter) GatedDelta(_, _, qkv, _, _ device.Mat, s device.DeltaSpec) {
	c.DeltaDim, c.DeltaHeads = max(c.DeltaDim, s.KeyDim, s.ValueDim), max(c.DeltaHeads, s.Heads)
	forward, _ := s.FLOPs(qkv.Rows)
	c.adds(OfDelta, forward)
}

func (c *counter) GatedDeltaGrad(_, _, _, _, _, qkv, _, _, _ device.Mat, s device.DeltaSpec) {
	c.DeltaDim = max(c.DeltaDim, s.KeyDim, s.ValueDim)
	_, backward := s.FLOPs(qkv.Rows)
	c.adds(OfDeltaGrad, backward)
}

func (c *counter) ContinueConv(y, _, x, _ device.Mat, _ device.Continued) { c.passesIn(OfConv, y, x) }

func (c *counter) ContinueDelta(_, _, qkv, _, _ device.Mat, s device.DeltaSpec, _ int) {
	c.DeltaDim = max(c.DeltaDim, s.KeyDim, s.ValueDim)
	c.adds(OfDeltaSteps, s.StepFLOPs(qkv.Rows))
}

func (c *counter) LSEInit(device.Mat)                                        { c.passes() }
func (c *counter) LSEUpdate(_, l device.Mat, _ device.Mem, _ int, _ float32) { c.passesIn(OfLoss, l) }
func (c *counter) TokenLoss(_, _ device.Mat, _ device.Mem)                   { c.passes() }
func (c *counter) CrossEntropyGrad(d, l, _ device.Mat, _, _, _ device.Mem, _ int, _ float32) {
	c.passesIn(OfLoss, d, l)
}
func (c *counter) PickLogits(p, _ device.Mat, _ device.Mem, _ int, _ float32) {
	c.passesIn(OfLoss, p, p) // ids and values
}
func (c *counter) PutLogitGrads(_, _, v device.Mat, _ device.Mem, _ int, _ float32) {
	c.passesIn(OfLoss, v, v)
}
func (c *counter) DrawTokens(_, _, l device.Mat, _ device.Mem, _, _ int, _ float32) {
	c.passesIn(OfLoss, l)
}
func (c *counter) Sum(device.Mem, device.Mat) { c.passes() }
