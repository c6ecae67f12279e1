package kernels

import "math"

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

func (a *DeltaGates) check(rows int, numbers ...[]float32) {
	heads := a.ALog.Len
	ok := a.A.has(rows, heads) && a.B.has(rows, heads) && a.DtBias.Len == heads && a.A.DType == a.B.DType &&
		a.ALog.DType == a.A.DType && a.DtBias.DType == a.A.DType
	for _, x := range numbers {
		ok = ok && len(x) >= rows*heads
	}
	check(ok, "DeltaGates: shape or type")
}

// element is element (r, c) of m.
func (m Mat) element(r, c int) float32 { return m.vec(r, c, 1).At(0) }

func softplus(x float32) float32 {
	return max(x, 0) + float32(math.Log1p(float64(Exp(-float32(math.Abs(float64(x)))))))
}

// DeltaGatesForward writes the rows [row0, row1) of Decay and Beta.
func (t *Table) DeltaGatesForward(a *DeltaGates, row0, row1 int) {
	a.check(row1, a.Decay, a.Beta)
	heads := a.ALog.Len
	for h := range heads {
		rate, bias := -Exp(a.ALog.At(h)), a.DtBias.At(h)
		for r := row0; r < row1; r++ {
			a.Decay[r*heads+h] = rate * softplus(a.A.element(r, h)+bias)
			a.Beta[r*heads+h] = sigmoid(a.B.element(r, h))
		}
	}
}

// DeltaGatesBackward writes columns [head0, head1) of DA and DB, and adds to those of DALog and DDt:
//
//	da = ddecay*(rate*sigmoid(x))      dALog += sum of ddecay*decay
//	db = dbeta*(beta*(1 - beta))       dDt   += sum of da
//
// Sums begin at +0, in the order of rows, and take numbers before they are rounded to the type of A.
func (t *Table) DeltaGatesBackward(a *DeltaGates, rows, head0, head1 int) {
	a.check(rows, a.DDecay, a.DBeta)
	heads := a.ALog.Len
	check(a.DA.has(rows, heads) && a.DB.has(rows, heads) && a.DA.DType == a.A.DType && a.DB.DType == a.A.DType &&
		0 <= head0 && head1 <= heads && len(a.DALog) == len(a.DDt), "DeltaGatesBackward: shape or type")
	k := kind(a.A.DType)
	for h := head0; h < head1; h++ {
		rate, bias := -Exp(a.ALog.At(h)), a.DtBias.At(h)
		log, dt := float32(0), float32(0)
		for r := range rows {
			x, d, beta := a.A.element(r, h)+bias, a.DDecay[r*heads+h], sigmoid(a.B.element(r, h))
			da := d * float32(rate*sigmoid(x))
			store(a.DA.at(r, h), k, da)
			store(a.DB.at(r, h), k, a.DBeta[r*heads+h]*float32(beta*(1-beta)))
			log += float32(d * float32(rate*softplus(x)))
			dt += da
		}
		if len(a.DALog) > 0 {
			a.DALog[h] += log
			a.DDt[h] += dt
		}
	}
}
