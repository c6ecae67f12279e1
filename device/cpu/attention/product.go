package attention

import (
	"unsafe"

	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// Product is C = op(A) op(B), or C += op(A) op(B), where op transposes if asked to. A and B have one type, C is F32.
type Product struct {
	C, A, B                kernels.Mat
	TransposeA, TransposeB bool
	Accumulate             bool
}

// Multiplier computes products, one at a time on each worker.
type Multiplier interface {
	Multiply(worker int, p Product)
}

// Plain multiplies in plain Go, row by row: the reference.
type Plain struct{}

// Multiply implements Multiplier.
func (Plain) Multiply(_ int, p Product) {
	inner := p.A.Cols
	if p.TransposeA {
		inner = p.A.Rows
	}
	for i := range p.C.Rows {
		for j := range p.C.Cols {
			c := (*float32)(unsafe.Add(p.C.Data, 4*(i*p.C.Stride+j)))
			var sum float32
			for l := range inner {
				sum += float32(element(p.A, i, l, p.TransposeA) * element(p.B, l, j, p.TransposeB))
			}
			if p.Accumulate {
				sum += *c
			}
			*c = sum
		}
	}
}

func element(m kernels.Mat, r, c int, transpose bool) float32 {
	if transpose {
		r, c = c, r
	}
	at := r*m.Stride + c
	if m.DType == tensor.F32 {
		return *(*float32)(unsafe.Add(m.Data, 4*at))
	}
	return tensor.F32FromBF16(*(*uint16)(unsafe.Add(m.Data, 2*at)))
}
