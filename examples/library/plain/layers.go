package plain

import (
	"math"

	"github.com/millrace/millrace/device"
)

func (s *stream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	s.operands.MatMul(c, a, b, f)
	s.do(func() {
		x, y := oriented(a, f.TransA), oriented(b, f.TransB)
		inner := a.Cols
		if f.TransA {
			inner = a.Rows
		}
		sum := make([]float64, c.Rows*c.Cols)
		if base, ok := f.Base(c); ok {
			sum = numbers(base)
		}
		for i := range c.Rows {
			row := sum[i*c.Cols:][:c.Cols]
			for k := range inner {
				for j, w := range y[k*c.Cols:][:c.Cols] {
					row[j] += x[i*inner+k] * w
				}
			}
		}
		put(c, sum)
	})
}

// oriented reads a matrix, or its transpose.
func oriented(m device.Mat, transposed bool) []float64 {
	x := numbers(m)
	if !transposed {
		return x
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i%m.Cols*m.Rows+i/m.Cols] = v
	}
	return y
}

func (s *stream) AddBias(y, bias device.Mat) {
	s.operands.AddBias(y, bias)
	s.do(func() { put(y, biased(y, bias)) })
}

// biased is a matrix with a vector added to each row.
func biased(m, bias device.Mat) []float64 {
	x, b := numbers(m), numbers(bias)
	for i := range x {
		x[i] += b[i%m.Cols]
	}
	return x
}

func (s *stream) BiasGrad(db, dy device.Mat) {
	s.operands.BiasGrad(db, dy)
	s.do(func() {
		sum := numbers(db)
		for i, d := range numbers(dy) {
			sum[i%dy.Cols] += d
		}
		put(db, sum)
	})
}

func (s *stream) Add(y, a, b device.Mat) {
	s.operands.Add(y, a, b)
	s.do(func() {
		sum := numbers(a)
		for i, x := range numbers(b) {
			sum[i] += x
		}
		put(y, sum)
	})
}

func (s *stream) Cast(dst, src device.Mat) {
	s.operands.Cast(dst, src)
	s.do(func() { put(dst, numbers(src)) })
}

func (s *stream) RMSNorm(y, rstd, x, w device.Mat, groups int, eps float32) {
	s.operands.RMSNorm(y, rstd, x, w, groups, eps)
	s.do(func() {
		v, weights := numbers(x), numbers(w)
		inverse := make([]float64, x.Rows*groups)
		for g := range inverse {
			sum := 0.0
			group := v[g*w.Cols:][:w.Cols]
			for _, e := range group {
				sum += e * e
			}
			inverse[g] = 1 / math.Sqrt(sum/float64(w.Cols)+float64(eps))
			for i := range group {
				group[i] *= weights[i] * inverse[g]
			}
		}
		put(y, v)
		put(rstd, inverse)
	})
}

func (s *stream) RMSNormGrad(dx, dw, dy, x, w, rstd, resid device.Mat, groups int) {
	s.operands.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, groups)
	s.do(func() {
		v, weights, gradient := numbers(x), numbers(w), numbers(dy)
		sum, weightGradient := make([]float64, len(v)), make([]float64, w.Cols)
		if !resid.IsZero() {
			sum = numbers(resid)
		}
		if !dw.IsZero() {
			weightGradient = numbers(dw)
		}
		for g, inverse := range numbers(rstd) {
			first, mean := g*w.Cols, 0.0
			for i, weight := range weights {
				d, xhat := gradient[first+i], v[first+i]*inverse
				mean += weight * d * xhat / float64(w.Cols)
				weightGradient[i] += d * xhat
			}
			for i, weight := range weights {
				sum[first+i] += inverse * (weight*gradient[first+i] - v[first+i]*inverse*mean)
			}
		}
		put(dx, sum)
		if !dw.IsZero() {
			put(dw, weightGradient)
		}
	})
}

func (s *stream) SwiGLU(y, gateUp device.Mat) {
	s.operands.SwiGLU(y, gateUp)
	s.do(func() { put(y, swiGLU(numbers(gateUp), y.Rows, y.Cols)) })
}

func swiGLU(gateUp []float64, rows, cols int) []float64 {
	y := make([]float64, rows*cols)
	for i := range y {
		at := i/cols*2*cols + i%cols
		y[i] = gateUp[at] * sigmoid(gateUp[at]) * gateUp[at+cols]
	}
	return y
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func (s *stream) SwiGLUGrad(dGateUp, act, dy, gateUp device.Mat) {
	s.operands.SwiGLUGrad(dGateUp, act, dy, gateUp)
	s.do(func() {
		v, cols := numbers(gateUp), dy.Cols
		gradient := make([]float64, len(v))
		for i, d := range numbers(dy) {
			at := i/cols*2*cols + i%cols
			gate, up, share := v[at], v[at+cols], sigmoid(v[at])
			gradient[at] = d * up * share * (1 + gate*(1-share))
			gradient[at+cols] = d * gate * share
		}
		put(act, swiGLU(v, dy.Rows, cols))
		put(dGateUp, gradient)
	})
}

func (s *stream) Gather(y, table device.Mat, ids device.Mem, first int) {
	s.operands.Gather(y, table, ids, first)
	s.do(func() {
		for t, id := range ints(ids, y.Rows) {
			if row := int(id) - first; row >= 0 && row < table.Rows {
				put(y.RowRange(t, 1), numbers(table.RowRange(row, 1)))
			}
		}
	})
}

func (s *stream) ScatterAdd(dtable, dy device.Mat, ids device.Mem, first int) {
	s.operands.ScatterAdd(dtable, dy, ids, first)
	s.do(func() {
		for t, id := range ints(ids, dy.Rows) {
			if row := int(id) - first; row >= 0 && row < dtable.Rows {
				sum := numbers(dtable.RowRange(row, 1))
				for i, d := range numbers(dy.RowRange(t, 1)) {
					sum[i] += d
				}
				put(dtable.RowRange(row, 1), sum)
			}
		}
	})
}
