package kernels

import "math"

// StatLen is the floats of statistics that a head keeps for each row.
const StatLen = 3

// The statistics of one row: running maximum, running sum of exp(logit - maximum), the target's logit.
const (
	statMax = iota
	statSum
	statTarget
)

// CrossEntropy is token cross-entropy over a vocabulary that is seen tile by tile, so that no row of logits is ever
// whole. For each row: LSEReset, then LSEUpdate for every tile in ascending order, then LSEFinish; the gradient of a
// tile needs its logits once more. A target below 0 does not count: its loss is 0 and its gradient a row of zeros.
type CrossEntropy struct {
	Logits   Mat       // [rows, tile columns], F32
	ColFirst int       // the vocabulary index of the tile's first column
	Stats    []float32 // [rows*StatLen]
	Targets  []int32   // [rows]
	Loss     []float32 // [rows], LSEFinish

	DLogits Mat     // [rows, tile columns], F32 or BF16; may be Logits if F32
	Scale   float32 // multiplies the gradient: 1 / number of targets that count
}

// LSEReset starts rows [row0, row1).
func (t *Table) LSEReset(a *CrossEntropy, row0, row1 int) {
	for r := row0; r < row1; r++ {
		s := a.Stats[r*StatLen:][:StatLen]
		s[statMax], s[statSum], s[statTarget] = float32(math.Inf(-1)), 0, 0
	}
}

// LSEUpdate takes one tile into the statistics of rows [row0, row1) (online softmax; Milakov and Gimelshein 2018). With
// m the greater of the old maximum and the tile's:
//
//	sum = sum*exp(old - m) + tile sum of exp(logit - m)
//
// The tile sum has the 16 fp32 lanes of RMSNorm within runs of 16384 columns; the runs are added in order. So tile
// widths set the bits, row ranges do not.
func (t *Table) LSEUpdate(a *CrossEntropy, row0, row1 int) {
	n := a.Logits.Cols
	check(a.Logits.has(row1, n) && kind(a.Logits.DType) == 0 && len(a.Stats) >= row1*StatLen && len(a.Targets) >= row1, "LSEUpdate: shape or type")
	for r := row0; r < row1; r++ {
		s := a.Stats[r*StatLen:][:StatLen]
		m := s[statMax]
		for c := 0; c < n; c += piece {
			// max ignores a NaN; the sum below does not.
			if tile := t.max(a.Logits.at(r, c), min(piece, n-c)); tile > m {
				m = tile
			}
		}
		sum := s[statSum]
		if s[statMax] != m {
			sum = float32(sum * Exp(s[statMax]-m))
		}
		for c := 0; c < n; c += piece {
			sum += t.sumExp(a.Logits.at(r, c), min(piece, n-c), m)
		}
		s[statMax], s[statSum] = m, sum
		if c := int(a.Targets[r]) - a.ColFirst; a.Targets[r] >= 0 && c >= 0 && c < n {
			s[statTarget] = *(*float32)(a.Logits.at(r, c))
		}
	}
}

// LSEFinish writes Loss of rows [row0, row1): maximum + log(sum) - target's logit, in float64, rounded once.
func (t *Table) LSEFinish(a *CrossEntropy, row0, row1 int) {
	check(len(a.Stats) >= row1*StatLen && len(a.Targets) >= row1 && len(a.Loss) >= row1, "LSEFinish: shape")
	for r := row0; r < row1; r++ {
		s := a.Stats[r*StatLen:][:StatLen]
		a.Loss[r] = 0
		if a.Targets[r] >= 0 {
			a.Loss[r] = float32(float64(s[statMax]) - float64(s[statTarget]) + math.Log(float64(s[statSum])))
		}
	}
}

// CrossEntropyGrad writes rows [row0, row1) of DLogits: (softmax - onehot) * Scale, from finished statistics.
// It computes exp(logit - max) * (Scale/sum), and subtracts Scale at the target before the one rounding.
func (t *Table) CrossEntropyGrad(a *CrossEntropy, row0, row1 int) {
	n := a.Logits.Cols
	check(a.Logits.has(row1, n) && kind(a.Logits.DType) == 0 && a.DLogits.has(row1, n), "CrossEntropyGrad: shape or type")
	check(len(a.Stats) >= row1*StatLen && len(a.Targets) >= row1, "CrossEntropyGrad: statistics or targets")
	f := t.expMul[kind(a.DLogits.DType)]
	for r := row0; r < row1; r++ {
		if a.Targets[r] < 0 {
			t.Zero(Vec{a.DLogits.at(r, 0), a.DLogits.DType, n})
			continue
		}
		s := a.Stats[r*StatLen:][:StatLen]
		factor := a.Scale / s[statSum]
		target := int(a.Targets[r]) - a.ColFirst
		var logit float32 // read first: DLogits may be Logits
		if target >= 0 && target < n {
			logit = *(*float32)(a.Logits.at(r, target))
		}
		for c := 0; c < n; c += piece {
			f(a.DLogits.at(r, c), a.Logits.at(r, c), min(piece, n-c), s[statMax], factor)
		}
		if target >= 0 && target < n {
			p := float32(Exp(logit-s[statMax]) * factor)
			store(a.DLogits.at(r, target), kind(a.DLogits.DType), p-a.Scale)
		}
	}
}
