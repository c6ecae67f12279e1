package kernels

import (
	"math"
	"unsafe"
)

// DeltaGates are the decays and betas of a gated delta net, for rows and heads:
//
//	decay = rate*softplus(x) with rate = -exp(aLog), x = a + dtBias      beta = 1/(1 + exp(-b))
//
// softplus(x) = max(x, 0) + log(1 + exp(-|x|)); exp is that of [Exp], the logarithm is math.Log1p, rounded.
type DeltaGates struct {
	A, B         Mat // [rows, heads], of one type, as ALog and DtBias
	ALog, DtBias Vec // [heads]

	Decay, Beta []float32 // [rows*heads], written by forward

	// Backward only.
	DDecay, DBeta []float32 // [rows*heads]
	DA, DB        Mat
	DALog, DDt    []float32 // [heads], added to; none: nil
}

// gatesBlock has some heads in fp32.
type gatesBlock struct {
	*Table
	*DeltaGates
	head, n              int
	rate, bias, ones     [64]float32
	x, softplus, s, b, t [64]float32 // of a row; s is a sigmoid
	log, dt              [64]float32
}

// begin takes the heads from head on, and returns the next one.
func (g *gatesBlock) begin(t *Table, a *DeltaGates, head, head1 int) (next int) {
	*g = gatesBlock{Table: t, DeltaGates: a, head: head, n: min(len(g.x), head1-head)}
	t.Convert(F32(g.rate[:g.n]), a.ALog.Slice(head, head+g.n))
	t.Convert(F32(g.bias[:g.n]), a.DtBias.Slice(head, head+g.n))
	t.Exp(g.rate[:g.n])
	for i := range g.n {
		g.rate[i], g.ones[i] = -g.rate[i], 1
	}
	return head + g.n
}

// read computes x, softplus(x) and b of a row.
func (g *gatesBlock) read(row int) {
	x, e := g.x[:g.n], g.t[:g.n]
	g.Convert(F32(x), g.A.vec(row, g.head, g.n))
	g.Add(F32(x), F32(x), F32(g.bias[:g.n]))
	for i, v := range x {
		e[i] = -float32(math.Abs(float64(v)))
	}
	g.Exp(e)
	for i, v := range x {
		g.softplus[i] = max(v, 0) + float32(math.Log1p(float64(e[i])))
	}
	g.Convert(F32(g.b[:g.n]), g.B.vec(row, g.head, g.n))
}

// sigmoid writes that of x to s.
func (g *gatesBlock) sigmoid(s, x []float32) {
	g.gate[0](unsafe.Pointer(&s[0]), unsafe.Pointer(&g.ones), unsafe.Pointer(&x[0]), g.n)
}

func (a *DeltaGates) check(rows int, numbers ...[]float32) {
	heads := a.ALog.Len
	ok := a.A.has(rows, heads) && a.B.has(rows, heads) && a.DtBias.Len == heads && a.A.DType == a.B.DType &&
		a.ALog.DType == a.A.DType && a.DtBias.DType == a.A.DType
	for _, x := range numbers {
		ok = ok && len(x) >= rows*heads
	}
	check(ok, "DeltaGates: shape or type")
}

// DeltaGatesForward writes the rows [row0, row1) of Decay and Beta.
func (t *Table) DeltaGatesForward(a *DeltaGates, row0, row1 int) {
	a.check(row1, a.Decay, a.Beta)
	heads := a.ALog.Len
	var g gatesBlock
	for head := 0; head < heads; {
		next := g.begin(t, a, head, heads)
		for r := row0; r < row1; r++ {
			g.read(r)
			for i, y := range g.softplus[:g.n] {
				a.Decay[r*heads+head+i] = g.rate[i] * y
			}
			g.sigmoid(a.Beta[r*heads+head:], g.b[:])
		}
		head = next
	}
}

// DeltaGatesBackward writes columns [head0, head1) of DA and DB, and adds to those of DALog and DDt:
//
//	da = ddecay*(rate*sigmoid(x))      DALog += sum of ddecay*decay
//	db = dbeta*(beta*(1 - beta))       dDt   += sum of da
//
// Sums begin at +0, in the order of rows, and take numbers before they are rounded to the type of A.
func (t *Table) DeltaGatesBackward(a *DeltaGates, rows, head0, head1 int) {
	a.check(rows, a.DDecay, a.DBeta)
	heads := a.ALog.Len
	check(a.DA.has(rows, heads) && a.DB.has(rows, heads) && a.DA.DType == a.A.DType && a.DB.DType == a.A.DType &&
		0 <= head0 && head1 <= heads && len(a.DALog) == len(a.DDt), "DeltaGatesBackward: shape or type")
	var g gatesBlock
	for head := head0; head < head1; {
		next := g.begin(t, a, head, head1)
		for r := range rows {
			g.read(r)
			d, dbeta := a.DDecay[r*heads+head:][:g.n], a.DBeta[r*heads+head:][:g.n]
			g.sigmoid(g.s[:], g.x[:])
			for i, s := range g.s[:g.n] {
				g.x[i] = d[i] * float32(g.rate[i]*s)
				g.dt[i] += g.x[i]
				g.log[i] += float32(d[i] * float32(g.rate[i]*g.softplus[i]))
			}
			t.Convert(a.DA.vec(r, head, g.n), F32(g.x[:g.n]))
			g.sigmoid(g.s[:], g.b[:])
			for i, s := range g.s[:g.n] {
				g.x[i] = dbeta[i] * float32(s*(1-s))
			}
			t.Convert(a.DB.vec(r, head, g.n), F32(g.x[:g.n]))
		}
		if len(a.DALog) > 0 {
			t.AddTo(a.DALog[head:next], F32(g.log[:g.n]))
			t.AddTo(a.DDt[head:next], F32(g.dt[:g.n]))
		}
		head = next
	}
}
