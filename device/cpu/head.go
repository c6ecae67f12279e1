package cpu

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// LSEInit implements device.HeadOps.
func (s *Stream) LSEInit(stat device.Mat) {
	s.operands.LSEInit(stat)
	s.enqueue(func() { s.crew.LSEReset(&kernels.CrossEntropy{Stats: floats(stat)}, 0, stat.Rows) })
}

// LSEUpdate implements device.HeadOps.
func (s *Stream) LSEUpdate(stat, logits device.Mat, targets device.Mem, first int, softCap float32) {
	s.operands.LSEUpdate(stat, logits, targets, first, softCap)
	s.enqueue(func() {
		a := &kernels.CrossEntropy{Logits: mat(logits), ColFirst: first, Stats: floats(stat), Targets: ints(targets, logits.Rows),
			SoftCap: softCap}
		s.crew.split(logits.Rows, 1, rowBytes(logits), func(lo, hi int) { s.crew.LSEUpdate(a, lo, hi) })
	})
}

// TokenLoss implements device.HeadOps.
func (s *Stream) TokenLoss(figures, stat device.Mat, targets device.Mem) {
	s.operands.TokenLoss(figures, stat, targets)
	s.enqueue(func() {
		row := func(i int) []float32 { return floats(figures.RowRange(i, 1)) }
		a := &kernels.CrossEntropy{Stats: floats(stat), Targets: ints(targets, stat.Rows), Loss: row(0), Entropy: row(1),
			Hit: row(2)}
		s.crew.LSEFinish(a, 0, stat.Rows)
	})
}

// CrossEntropyGrad implements device.HeadOps.
func (s *Stream) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights, entropySlopes device.Mem,
	first int, softCap float32) {
	s.operands.CrossEntropyGrad(dlogits, logits, stat, targets, weights, entropySlopes, first, softCap)
	s.enqueue(func() {
		a := &kernels.CrossEntropy{Logits: mat(logits), ColFirst: first, Stats: floats(stat), Targets: ints(targets, logits.Rows),
			DLogits: mat(dlogits), Weights: floats(device.NewVec(weights, tensor.F32, logits.Rows)), SoftCap: softCap}
		if !entropySlopes.IsZero() {
			a.EntropySlopes = floats(device.NewVec(entropySlopes, tensor.F32, logits.Rows))
		}
		s.crew.split(logits.Rows, 1, rowBytes(logits, dlogits), func(lo, hi int) { s.crew.CrossEntropyGrad(a, lo, hi) })
	})
}

// PickLogits implements device.HeadOps.
func (s *Stream) PickLogits(picked, logits device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PickLogits(picked, logits, ids, first, softCap)
	s.enqueue(func() {
		a := &kernels.Picks{Logits: mat(logits), ColFirst: first, N: picked.Cols, IDs: ints(ids, picked.Rows*picked.Cols),
			Values: floats(picked), SoftCap: softCap}
		s.crew.split(logits.Rows, 1, rowBytes(picked), func(lo, hi int) { s.crew.PickLogits(a, lo, hi) })
	})
}

// PutLogitGrads implements device.HeadOps.
func (s *Stream) PutLogitGrads(dlogits, logits, values device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PutLogitGrads(dlogits, logits, values, ids, first, softCap)
	s.enqueue(func() {
		a := &kernels.Picks{Logits: mat(logits), DLogits: mat(dlogits), ColFirst: first, N: values.Cols,
			IDs: ints(ids, values.Rows*values.Cols), Values: floats(values), SoftCap: softCap}
		s.crew.split(logits.Rows, 1, rowBytes(values), func(lo, hi int) { s.crew.PutLogitGrads(a, lo, hi) })
	})
}

// DrawTokens implements device.HeadOps.
func (s *Stream) DrawTokens(drawn, stat, logits device.Mat, draws device.Mem, first, vocab int, softCap float32) {
	s.operands.DrawTokens(drawn, stat, logits, draws, first, vocab, softCap)
	s.enqueue(func() {
		a := &kernels.TokenDraws{Logits: mat(logits), ColFirst: first, Vocab: vocab, Stats: floats(stat),
			Draws: ints(draws, logits.Rows*device.DrawWords), SoftCap: softCap}
		if !drawn.IsZero() {
			a.Drawn = floats(drawn)
		}
		s.crew.split(logits.Rows, 1, rowBytes(logits), func(lo, hi int) { s.crew.DrawTokens(a, lo, hi) })
	})
}

// Sum implements device.HeadOps.
func (s *Stream) Sum(dst device.Mem, x device.Mat) {
	s.operands.Sum(dst, x)
	s.enqueue(func() {
		v := floats(x)
		s.reduce(dst, x, func(sums []float64, lo, hi int) { s.crew.Sum(sums, v[lo:hi]) })
	})
}
