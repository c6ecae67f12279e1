package kernels

import (
	"math"
	"unsafe"
)

// StatLen is the floats of statistics that a head keeps for each row.
const StatLen = 4

// The statistics of one row: running maximum, running sum of exp(logit - maximum), the target's logit, running sum of
// exp(logit - maximum)*(logit - maximum).
const (
	statMax = iota
	statSum
	statTarget
	statBelow
)

// CrossEntropy is token cross-entropy over a vocabulary that is seen tile by tile, so that no row of logits is ever
// whole. For each row: LSEReset, then LSEUpdate for every tile in ascending order, then LSEFinish; the gradient of a
// tile needs its logits once more. A target below 0 does not count: its loss is 0 and its gradient a row of zeros.
type CrossEntropy struct {
	Logits   Mat       // [rows, tile columns], F32
	ColFirst int       // the vocabulary index of the tile's first column
	Stats    []float32 // [rows*StatLen]
	Targets  []int32   // [rows]

	Loss, Entropy, Hit []float32 // [rows], LSEFinish

	DLogits Mat       // [rows, tile columns], F32 or BF16; may be Logits if F32
	Weights []float32 // [rows]: multiply the gradient
	// EntropySlopes are those of what is minimized by the entropy of each row, [rows]; nil: it moves with none.
	EntropySlopes []float32

	SoftCap float32 // SoftCap*tanh(logit/SoftCap) takes the place of a logit; 0: none
}

// LSEReset starts rows [row0, row1).
func (t *Table) LSEReset(a *CrossEntropy, row0, row1 int) {
	for r := row0; r < row1; r++ {
		s := a.Stats[r*StatLen:][:StatLen]
		s[statMax], s[statSum], s[statTarget], s[statBelow] = float32(math.Inf(-1)), 0, 0, 0
	}
}

// LSEUpdate takes one tile into the statistics of rows [row0, row1) (online softmax; Milakov and Gimelshein 2018). With
// m the greater of the old maximum and the tile's:
//
//	below = (below + sum*(old - m))*exp(old - m) + tile sum of exp(logit - m)*(logit - m)
//	sum = sum*exp(old - m) + tile sum of exp(logit - m)
//
// A tile sum has the 16 fp32 lanes of RMSNorm within runs of 16384 columns; the runs are added in order. So tile
// widths set the bits, row ranges do not. With a soft cap runs have 1024 columns, and the maximum is that of the
// logits, capped.
func (t *Table) LSEUpdate(a *CrossEntropy, row0, row1 int) {
	n := a.Logits.Cols
	check(a.Logits.has(row1, n) && kind(a.Logits.DType) == 0 && len(a.Stats) >= row1*StatLen && len(a.Targets) >= row1, "LSEUpdate: shape or type")
	capped := a.capped()
	for r := row0; r < row1; r++ {
		s := a.Stats[r*StatLen:][:StatLen]
		m := s[statMax]
		for c := 0; c < n; c += piece {
			// max ignores a NaN; the sum below does not.
			tile := t.max(a.Logits.at(r, c), min(piece, n-c))
			if capped != nil {
				tile = t.capOne(tile, a.SoftCap)
			}
			if tile > m {
				m = tile
			}
		}
		sum, below := s[statSum], s[statBelow]
		if s[statMax] != m {
			factor := Exp(s[statMax] - m)
			below = float32((below + float32(sum*max(s[statMax]-m, -expClamp))) * factor)
			sum = float32(sum * factor)
		}
		take := func(logits unsafe.Pointer, n int) {
			tileSum, tileBelow := t.sumExp(logits, n, m)
			sum, below = sum+tileSum, below+tileBelow
		}
		if capped == nil {
			for c := 0; c < n; c += piece {
				take(a.Logits.at(r, c), min(piece, n-c))
			}
		} else {
			for c := 0; c < n; c += len(capped) {
				run := capped[:min(len(capped), n-c)]
				t.SoftCap(run, floats(a.Logits.at(r, c), len(run)), 1, a.SoftCap)
				take(unsafe.Pointer(&run[0]), len(run))
			}
		}
		s[statMax], s[statSum], s[statBelow] = m, sum, below
		if c := int(a.Targets[r]) - a.ColFirst; a.Targets[r] >= 0 && c >= 0 && c < n {
			s[statTarget] = *(*float32)(a.Logits.at(r, c))
			if capped != nil {
				s[statTarget] = t.capOne(s[statTarget], a.SoftCap)
			}
		}
	}
}

// LSEFinish writes Loss of rows [row0, row1): maximum + log(sum) - target's logit; Entropy: log(sum) - below/sum, both
// in float64, rounded once; and Hit: 1 where the target's logit is the maximum, else 0.
func (t *Table) LSEFinish(a *CrossEntropy, row0, row1 int) {
	check(len(a.Stats) >= row1*StatLen && len(a.Targets) >= row1 && len(a.Loss) >= row1 && len(a.Entropy) >= row1 &&
		len(a.Hit) >= row1, "LSEFinish: shape")
	for r := row0; r < row1; r++ {
		s := a.Stats[r*StatLen:][:StatLen]
		a.Loss[r], a.Entropy[r], a.Hit[r] = 0, 0, 0
		if a.Targets[r] < 0 {
			continue
		}
		log := math.Log(float64(s[statSum]))
		a.Loss[r] = float32(float64(s[statMax]) - float64(s[statTarget]) + log)
		a.Entropy[r] = float32(log - float64(s[statBelow])/float64(s[statSum]))
		if s[statTarget] >= s[statMax] {
			a.Hit[r] = 1
		}
	}
}

// CrossEntropyGrad writes rows [row0, row1) of DLogits: (softmax - onehot) * weight, from finished statistics.
// It computes exp(logit - max) * (weight/sum), and subtracts the weight at the target before the one rounding. With the
// slope of an entropy the first product is exp(logit - max)/sum * (weight - slope*(logit - max - below/sum)), since
//
//	d entropy/d logit = -softmax * (log softmax + entropy) = -softmax * (logit - max - below/sum)
//
// With a soft cap there follows, also before the rounding, a product with 1 - (capped logit/SoftCap)^2.
func (t *Table) CrossEntropyGrad(a *CrossEntropy, row0, row1 int) {
	n := a.Logits.Cols
	check(a.Logits.has(row1, n) && kind(a.Logits.DType) == 0 && a.DLogits.has(row1, n), "CrossEntropyGrad: shape or type")
	check(len(a.Stats) >= row1*StatLen && len(a.Targets) >= row1 && len(a.Weights) >= row1,
		"CrossEntropyGrad: statistics, targets or weights")
	check(a.EntropySlopes == nil || len(a.EntropySlopes) >= row1, "CrossEntropyGrad: slopes of entropies")
	f := t.expMul[kind(a.DLogits.DType)]
	capped := a.capped()
	var room []float32 // for a run of gradients that are not done with one product
	if capped != nil || a.EntropySlopes != nil {
		room = make([]float32, runLen)
	}
	for r := row0; r < row1; r++ {
		if a.Targets[r] < 0 {
			t.Zero(Vec{a.DLogits.at(r, 0), a.DLogits.DType, n})
			continue
		}
		s := a.Stats[r*StatLen:][:StatLen]
		weight := a.Weights[r]
		factor := weight / s[statSum]
		target := int(a.Targets[r]) - a.ColFirst
		if room != nil {
			for c := 0; c < n; c += runLen {
				p := room[:min(runLen, n-c)]
				run := floats(a.Logits.at(r, c), len(p))
				if capped != nil {
					run = capped[:len(p)]
					t.SoftCap(run, floats(a.Logits.at(r, c), len(p)), 1, a.SoftCap)
				}
				if a.EntropySlopes == nil {
					t.expMul[0](unsafe.Pointer(&p[0]), unsafe.Pointer(&run[0]), len(p), s[statMax], factor)
				} else {
					t.expMul[0](unsafe.Pointer(&p[0]), unsafe.Pointer(&run[0]), len(p), s[statMax], 1/s[statSum])
					mulEntropies(p, run, s[statMax], s[statBelow]/s[statSum], weight, a.EntropySlopes[r])
				}
				if at := target - c; at >= 0 && at < len(p) {
					p[at] -= weight
				}
				if capped != nil {
					SoftCapGrad(p, run, 0, 1, a.SoftCap)
				}
				t.Convert(Vec{a.DLogits.at(r, c), a.DLogits.DType, len(p)}, F32(p))
			}
			continue
		}
		var logit float32 // read first: DLogits may be Logits
		if target >= 0 && target < n {
			logit = *(*float32)(a.Logits.at(r, target))
		}
		for c := 0; c < n; c += piece {
			f(a.DLogits.at(r, c), a.Logits.at(r, c), min(piece, n-c), s[statMax], factor)
		}
		if target >= 0 && target < n {
			p := float32(Exp(logit-s[statMax]) * factor)
			store(a.DLogits.at(r, target), kind(a.DLogits.DType), p-weight)
		}
	}
}

// mulEntropies is p *= weight - slope*(x - most - mean). Where x is far below most p is 0, and the factor stays finite.
func mulEntropies(p, x []float32, most, mean, weight, slope float32) {
	x = x[:len(p)]
	for i, logit := range x {
		below := logit - most
		if below < -expClamp {
			below = -expClamp
		}
		p[i] *= weight - float32(slope*(below-mean))
	}
}

// runLen is the length of runs of a row that are capped, or that entropies move.
const runLen = 1024

// capped is room for a run of capped logits, nil if there is no cap.
func (a *CrossEntropy) capped() []float32 {
	if a.SoftCap == 0 {
		return nil
	}
	return make([]float32, runLen)
}

// capOne is SoftCap of one number.
func (t *Table) capOne(x, softCap float32) float32 {
	y := [1]float32{x}
	t.SoftCap(y[:], y[:], 1, softCap)
	return y[0]
}

func floats(p unsafe.Pointer, n int) []float32 { return unsafe.Slice((*float32)(p), n) }
