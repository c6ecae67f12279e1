package attention

import "github.com/millrace/millrace/device/cpu/kernels"

// Product is C = op(A) op(B), or C += op(A) op(B), where op transposes if asked to. A and B have one type, C is F32.
type Product struct {
	C, A, B                kernels.Mat
	TransposeA, TransposeB bool
	Accumulate             bool
}

// Multiplier computes products, one at a time on each worker; gemm.Engine.MulSerial is meant.
type Multiplier interface {
	Multiply(worker int, p Product)
}
