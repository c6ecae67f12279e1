package gemm

import (
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// Reference is the product in float64, written to C by one rounding to fp32, and a second one if C is bf16. It takes
// 2MNK simple operations and is the oracle of the tests.
func Reference(op Op) {
	m, n, k := op.Shape()
	a, b := newSource(&op.A, op.TransA, 1), newSource(&op.B, !op.TransB, 1)
	for i := range m {
		for j := range n {
			sum := 0.0
			if op.Accumulate {
				sum = float64(op.C.At(i, j))
			}
			for l := range k {
				sum += float64(a.load(i, l)) * float64(b.load(j, l))
			}
			op.C.Set(i, j, float32(sum))
		}
	}
}

// At is element (i, j).
func (x *Mat) At(i, j int) float32 {
	p := x.address(i, j)
	if x.DType == tensor.BF16 {
		return tensor.F32FromBF16(*(*uint16)(p))
	}
	return *(*float32)(p)
}

// Set stores element (i, j), rounded to nearest even if the matrix is bf16.
func (x *Mat) Set(i, j int, v float32) {
	p := x.address(i, j)
	if x.DType == tensor.BF16 {
		*(*uint16)(p) = tensor.BF16FromF32(v)
		return
	}
	*(*float32)(p) = v
}

func (x *Mat) address(i, j int) unsafe.Pointer {
	return unsafe.Add(x.Data, (i*x.Stride+j)*int(x.DType.Bytes()))
}
