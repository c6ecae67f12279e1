package cpu

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// stretch are the rows of an expert in a call: its blocks are neighbours in matrices of blocks, since all but the last
// one are full.
type stretch struct {
	expert int // counted from the first one whose weights are there
	row    int // the first, of matrices of blocks
	first  int // the place in the order of its first choice
	n      int // rows
}

// stretches finds those of a call, one for each expert; some have no rows. The next operation overwrites them.
func (s *Stream) stretches(b device.Blocks) []stretch {
	starts := ints(b.Routing.Starts, b.Routing.Experts+1)
	s.ofExperts = s.ofExperts[:0]
	number := -b.From // of the expert's first block, counted from the call's
	for e := range b.Experts {
		first, end := int(starts[b.First+e]), int(starts[b.First+e+1])
		blocks := (end - first + b.Rows - 1) / b.Rows
		lo, hi := max(0, -number), min(blocks, b.Count-number) // of its blocks, those of the call
		of := stretch{expert: e}
		if lo < hi {
			of.row, of.first = (number+lo)*b.Rows, first+lo*b.Rows
			of.n = min(hi*b.Rows, end-first) - lo*b.Rows
		}
		s.ofExperts = append(s.ofExperts, of)
		number += blocks
	}
	return s.ofExperts
}

// eachRow calls f for the rows of blocks, each of which goes through the given bytes: for ranges of an expert's rows,
// their choices, and the place of the first of these in the order.
func (s *Stream) eachRow(b device.Blocks, bytes int64, f func(expert int, choices []int32, lo, hi, place int)) {
	all, order := s.stretches(b), ints(b.Routing.Order, b.Routing.Rows*b.Routing.TopK)
	total := 0
	for _, of := range all {
		total += of.n
	}
	s.crew.split(total, 1, bytes, func(lo, hi int) {
		for _, of := range all {
			if from, to := max(0, lo), min(of.n, hi); from < to {
				f(of.expert, order[of.first+from:of.first+to], of.row+from, of.row+to, of.first+from)
			}
			lo, hi = lo-of.n, hi-of.n
		}
	})
}

// GatherRows implements device.ExpertOps.
func (s *Stream) GatherRows(y, x device.Mat, b device.Blocks) {
	s.operands.GatherRows(y, x, b)
	s.enqueue(func() {
		to, from := mat(y), mat(x)
		s.eachRow(b, rowBytes(y, x), func(_ int, choices []int32, lo, _, _ int) {
			for i, c := range choices {
				s.crew.CopyRow(to, lo+i, from, int(c)/b.Routing.TopK)
			}
		})
	})
}

// ExpertMatMul implements device.ExpertOps. The sum begins with the bias.
func (s *Stream) ExpertMatMul(c, a, w, bias device.Mat, how device.ExpertProduct, b device.Blocks) {
	s.operands.ExpertMatMul(c, a, w, bias, how, b)
	s.enqueue(func() {
		s.crew.product.Lock()
		defer s.crew.product.Unlock()
		s.products = s.products[:0]
		for _, of := range s.stretches(b) {
			if of.n == 0 {
				continue
			}
			to := of.row
			if how.Placed {
				to = of.first
			}
			s.products = append(s.products, gemm.Op{C: gemmMat(c.RowRange(to, of.n)),
				A: gemmMat(a.RowRange(of.row, of.n)), B: gemmMat(stacked(w, of.expert, b)), TransB: how.Transposed,
				Accumulate: !bias.IsZero()})
		}
		if !bias.IsZero() {
			s.eachRow(b, rowBytes(c), func(expert int, _ []int32, lo, hi, place int) {
				if how.Placed {
					lo, hi = place, place+hi-lo
				}
				to, row := mat(c), mat(bias)
				for i := lo; i < hi; i++ {
					s.crew.CopyRow(to, i, row, expert)
				}
			})
		}
		s.crew.engine.MulAll(s.products)
	})
}

// stacked are the rows of an expert in a matrix that has those of all.
func stacked(w device.Mat, expert int, b device.Blocks) device.Mat {
	n := w.Rows / b.Experts
	return w.RowRange(expert*n, n)
}

// ExpertWeightGrad implements device.ExpertOps. One product has all blocks of an expert if it can sum each of them by
// itself.
func (s *Stream) ExpertWeightGrad(dw, dy, x device.Mat, b device.Blocks) {
	s.operands.ExpertWeightGrad(dw, dy, x, b)
	s.enqueue(func() {
		s.crew.product.Lock()
		defer s.crew.product.Unlock()
		atOnce, block := b.Rows, 0
		if gemm.IsBlock(b.Rows) {
			atOnce, block = b.Count*b.Rows, b.Rows
		}
		for _, of := range s.stretches(b) {
			for first := 0; first < of.n; first += atOnce {
				row, n := of.row+first, min(atOnce, of.n-first)
				s.crew.engine.Mul(gemm.Op{C: gemmMat(stacked(dw, of.expert, b)), A: gemmMat(dy.RowRange(row, n)),
					B: gemmMat(x.RowRange(row, n)), TransA: true, Accumulate: true, Block: block})
			}
		}
	})
}

// ExpertBiasGrad implements device.ExpertOps. The gradients of weights have a row each; those of biases are sums over
// rows, and so cut between columns.
func (s *Stream) ExpertBiasGrad(db, dweights, dy, bias, weights device.Mat, b device.Blocks) {
	s.operands.ExpertBiasGrad(db, dweights, dy, bias, weights, b)
	s.enqueue(func() {
		var w, dw []float32
		if !weights.IsZero() {
			w, dw = floats(weights), floats(dweights)
			s.eachRow(b, rowBytes(dy, dy), func(expert int, choices []int32, lo, _, _ int) {
				for i, c := range choices {
					dw[c] += s.crew.Dot(vec(dy.RowRange(lo+i, 1)), vec(bias.RowRange(expert, 1)))
				}
			})
		}
		if db.IsZero() {
			return
		}
		all, order, rows := s.stretches(b), ints(b.Routing.Order, b.Routing.Rows*b.Routing.TopK), mat(dy)
		to := mat(db)
		s.crew.split(dy.Cols, columns, int64(dy.Rows)*dy.DType.Bytes(), func(lo, hi int) {
			for _, of := range all {
				for i := range of.n {
					weight := float32(1)
					if w != nil {
						weight = w[order[of.first+i]]
					}
					s.crew.AddRow(to, of.expert, rows, of.row+i, lo, hi-lo, weight)
				}
			}
		})
	})
}

// ExpertGLU implements device.ExpertOps.
func (s *Stream) ExpertGLU(y, gateUp device.Mat, spec device.GLUSpec, b device.Blocks) {
	s.operands.ExpertGLU(y, gateUp, spec, b)
	s.enqueue(func() {
		a := &kernels.GLU{GateUp: mat(gateUp), H: mat(y), GLUSpec: spec}
		s.eachRow(b, rowBytes(y, gateUp), func(_ int, _ []int32, lo, hi, _ int) { s.crew.GLUForward(a, lo, hi) })
	})
}

// ExpertGLUGrad implements device.ExpertOps.
func (s *Stream) ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights device.Mat, spec device.GLUSpec,
	b device.Blocks) {
	s.operands.ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights, spec, b)
	s.enqueue(func() {
		a := &kernels.GLU{GateUp: mat(gateUp), H: mat(act), DH: mat(dy), DGateUp: mat(dGateUp), GLUSpec: spec}
		w, dw := floats(weights), floats(dweights)
		s.eachRow(b, rowBytes(dGateUp, act, dy, gateUp), func(_ int, choices []int32, lo, _, _ int) {
			s.crew.WeightedGLUBackward(a, lo, choices, w, dw)
		})
	})
}

// CombineRows implements device.ExpertOps.
func (s *Stream) CombineRows(y, x, from, weights device.Mat, places device.Mem, topK int) {
	s.operands.CombineRows(y, x, from, weights, places, topK)
	s.enqueue(func() {
		all, to, rows, begin := ints(places, y.Rows*topK), mat(y), mat(x), mat(from)
		var w []float32
		if !weights.IsZero() {
			w = floats(weights)
		}
		perRow := rowBytes(y, from) + int64(topK)*int64(y.Cols)*x.DType.Bytes()
		s.crew.split(y.Rows, 1, perRow, func(lo, hi int) {
			for t := lo; t < hi; t++ {
				var mine []float32
				if w != nil {
					mine = w[t*topK : (t+1)*topK]
				}
				s.crew.SumRows(to, begin, t, rows, all[t*topK:(t+1)*topK], mine)
			}
		})
	})
}
