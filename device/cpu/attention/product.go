package attention

import (
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// Product is C = op(A) op(B), or C += op(A) op(B), where op transposes if asked to. A and B have one type, C is F32.
type Product struct {
	C, A, B                kernels.Mat
	TransposeA, TransposeB bool
	Accumulate             bool
	Packed                 []float32 // B as PackB wrote it; nil: B is read where it is
}

// Multiplier computes products, one at a time on each worker; those of gemm.Engine are meant.
type Multiplier interface {
	Multiply(worker int, p Product)
	// PackB copies B, transposed or not, to memory of PackedFloats that begins a cache line, in the form that products
	// read.
	PackB(worker int, to []float32, b kernels.Mat, transpose bool)
	// PackedFloats is the length of the memory for PackB where op(B) is [k, n].
	PackedFloats(d tensor.DType, k, n int) int
}
