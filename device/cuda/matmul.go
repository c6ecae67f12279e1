package cuda

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/tensor"
)

// MatMul implements device.LinearOps.
func (s *Stream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	s.operands.MatMul(c, a, b, f)
	s.enqueue(func() error {
		inner := a.Cols
		if f.TransA {
			inner = a.Rows
		}
		switch {
		case empty(c) || inner == 0 && f.Accumulate && f.Onto.IsZero():
			return nil
		case s.device.blas != nil && inner > 0:
			if done, err := s.libraryProduct(c, a, b, f); done || err != nil {
				return err
			}
		}
		return s.ownProduct(c, a, b, inner, f)
	})
}

// libraryProduct has the library multiply, if it can.
func (s *Stream) libraryProduct(c, a, b device.Mat, f device.MatMulFlags) (bool, error) {
	p := &s.product
	*p = blasProduct(c, a, b, f)
	if !p.Suits() {
		return false, nil
	}
	var done bool
	err := s.device.workspace.lend(s, func(w driver.DevicePtr) (err error) {
		done, err = s.device.blas.MatMul(p, w, s.handle)
		return err
	})
	return done, err
}

func blasProduct(c, a, b device.Mat, f device.MatMulFlags) cublaslt.Product {
	base, add := f.Base(c)
	return cublaslt.Product{C: blasMatrix(c), A: blasMatrix(a), B: blasMatrix(b), Base: blasMatrix(base), TransA: f.TransA, TransB: f.TransB,
		Accumulate: add}
}

func blasMatrix(m device.Mat) cublaslt.Matrix {
	t := cublaslt.F32
	if m.DType == tensor.BF16 {
		t = cublaslt.BF16
	}
	return cublaslt.Matrix{At: address(m.Mem), Type: t, Rows: m.Rows, Cols: m.Cols, Stride: m.Stride}
}

// largeTile is the least number of rows and columns for the kernels with large tiles.
const largeTile = 64

// ownProduct multiplies with a kernel of our own.
func (s *Stream) ownProduct(c, a, b device.Mat, inner int, f device.MatMulFlags) error {
	base, add := f.Base(c)
	args := append(s.args[:0], ptr(c.Mem), ptr(base.Mem), ptr(a.Mem), ptr(b.Mem), i32(c.Rows), i32(c.Cols), i32(inner),
		i32(c.Stride), i32(base.Stride), i32(a.Stride), i32(b.Stride))
	operands, result := typeName(a.DType), typeName(c.DType)
	if form := productForm(f); form != "" && c.Rows >= largeTile && c.Cols >= largeTile {
		if done, err := s.launchIf(named("matmul", operands, result, form), append(args, flag(add))...); done || err != nil {
			return err
		}
	}
	return s.launch(named("matmul", operands, result), append(args, flag(f.TransA), flag(f.TransB), flag(add))...)
}

// productForm names in a kernel's name the operands that are transposed.
func productForm(f device.MatMulFlags) string {
	switch [2]bool{f.TransA, f.TransB} {
	case [2]bool{false, false}:
		return "nn"
	case [2]bool{false, true}:
		return "nt"
	case [2]bool{true, false}:
		return "tn"
	}
	return "" // no layer multiplies two transposed matrices
}
