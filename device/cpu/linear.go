package cpu

import (
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/kernels"
)

// MatMul implements device.LinearOps.
func (s *Stream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	s.operands.MatMul(c, a, b, f)
	s.enqueue(func() {
		s.crew.product.Lock()
		defer s.crew.product.Unlock()
		base, add := f.Base(c)
		if base.Mem != c.Mem {
			s.elementwise(func(v []kernels.Vec) { s.crew.Convert(v[0], v[1]) }, c, base)
		}
		s.crew.engine.Mul(gemm.Op{C: gemmMat(c), A: gemmMat(a), B: gemmMat(b),
			TransA: f.TransA, TransB: f.TransB, Accumulate: add, Of: f.Of})
	})
}

// AddBias implements device.LinearOps.
func (s *Stream) AddBias(y, bias device.Mat) {
	s.operands.AddBias(y, bias)
	s.enqueue(func() {
		ym, b := mat(y), vec(bias)
		s.crew.split(y.Rows, 1, rowBytes(y, y), func(lo, hi int) { s.crew.BiasAdd(ym, b, lo, hi) })
	})
}

// BiasGrad implements device.LinearOps.
func (s *Stream) BiasGrad(db, dy device.Mat) {
	s.operands.BiasGrad(db, dy)
	s.enqueue(func() {
		sums, m := floats(db), mat(dy)
		s.crew.split(dy.Cols, columns, int64(dy.Rows)*dy.DType.Bytes(), func(lo, hi int) { s.crew.BiasGrad(sums, m, lo, hi) })
	})
}

// Add implements device.ElementOps.
func (s *Stream) Add(y, a, b device.Mat) {
	s.operands.Add(y, a, b)
	s.enqueue(func() {
		s.elementwise(func(v []kernels.Vec) { s.crew.Add(v[0], v[1], v[2]) }, y, a, b)
	})
}

// Scale implements device.ElementOps.
func (s *Stream) Scale(y, x device.Mat, by float32) {
	s.operands.Scale(y, x, by)
	s.enqueue(func() {
		s.elementwise(func(v []kernels.Vec) { s.crew.Scale(v[0], v[1], by) }, y, x)
	})
}

// Cast implements device.ElementOps.
func (s *Stream) Cast(dst, src device.Mat) {
	s.operands.Cast(dst, src)
	s.enqueue(func() {
		s.elementwise(func(v []kernels.Vec) { s.crew.Convert(v[0], v[1]) }, dst, src)
	})
}

// columns is the granule of cuts between columns: a cache line of the smallest type, and whole vectors.
const columns = 32

// rowBytes is the memory that one row of the matrices takes together.
func rowBytes(ms ...device.Mat) int64 {
	n := int64(0)
	for _, m := range ms {
		n += int64(m.Cols) * m.DType.Bytes()
	}
	return n
}

// elementwise calls f with corresponding pieces of matrices of one shape, row by row or, where all are dense, in pieces
// that pay no regard to rows.
func (s *Stream) elementwise(f func(v []kernels.Vec), ms ...device.Mat) {
	rows, cols := ms[0].Rows, ms[0].Cols
	dense, elem := true, int64(0)
	var starts [3]unsafe.Pointer
	for i, m := range ms {
		dense = dense && m.Stride == m.Cols
		elem += m.DType.Bytes()
		starts[i] = start(m.Mem)
	}
	piece := func(row, lo, hi int) {
		var v [3]kernels.Vec
		for i, m := range ms {
			v[i] = kernels.Vec{Data: unsafe.Add(starts[i], (row*m.Stride+lo)*int(m.DType.Bytes())), DType: m.DType, Len: hi - lo}
		}
		f(v[:len(ms)])
	}
	if dense {
		s.crew.split(rows*cols, columns, elem, func(lo, hi int) { piece(0, lo, hi) })
		return
	}
	s.crew.split(rows, 1, int64(cols)*elem, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			piece(r, 0, cols)
		}
	})
}
