package cublaslt

import "github.com/millrace/millrace/device/cuda/driver"

// Type is the type of a matrix's elements, as the library numbers it (cudaDataType).
type Type int32

const (
	F32  Type = 0
	BF16 Type = 14
)

// Bytes is the size of an element.
func (t Type) Bytes() int64 {
	if t == BF16 {
		return 2
	}
	return 4
}

// Matrix is a row-major matrix in device memory. Stride is in elements.
type Matrix struct {
	At                 driver.DevicePtr
	Type               Type
	Rows, Cols, Stride int
}

// Product is C = op(A)·op(B), or Base + op(A)·op(B) with Accumulate. Rows and Cols of A and B are those of the
// matrices as they are stored. Base has C's type and shape. It is C itself, or does not overlap C.
type Product struct {
	C, A, B, Base              Matrix
	TransA, TransB, Accumulate bool
}

// Workspace is device memory that a product may write to, [WorkspaceBytes] long and aligned to 256 bytes.
type Workspace = driver.DevicePtr

const (
	// WorkspaceBytes has the size that NVIDIA recommends for Hopper. It takes part in the choice of algorithms, so it
	// is the same on all GPUs.
	WorkspaceBytes = 32 << 20
	// AlignBytes divides the addresses of operands of products.
	AlignBytes = 16
)

// BLAS multiplies matrices on one device. Its methods may be called from any thread on which the device's context is
// current.
type BLAS interface {
	// Name says what it is, for people: "cuBLASLt 12.8.4".
	Name() string
	// MatMul enqueues a product. It reports false, and has done nothing, where it has no algorithm for such operands, or
	// where the library refused all that it offered. No size is 0.
	MatMul(p *Product, w Workspace, s driver.Stream) (bool, error)

	// Tune chooses the fastest algorithm for products of p's shape, unless one is chosen. Without Tune, the library's
	// first choice is the algorithm.
	Tune(p *Product, w Workspace, s driver.Stream, timer Timer) error
	// Algorithms returns the choices of Tune, and those of UseAlgorithms that the library was asked about and offers,
	// sorted, each as a line of text: a shape, a colon, a space, an algorithm. Another BLAS of the same version on the
	// same kind of GPU that uses them computes the same bits.
	Algorithms() []string
	// UseAlgorithms makes choices that Algorithms listed; one that the library does not offer is not used. It comes
	// before the first product. The error names a line that is not a choice.
	UseAlgorithms(lines []string) error
	Close() error
}

// Suits reports whether operands have a form that the library can be asked about: types that it multiplies, addresses
// that are aligned, and a result that it rounds once. It says nothing about the shape.
//
// A bf16 result to which something is added does not suit. On an H100, cuBLASLt 13.1 rounds the product to bf16 and
// then the sum if the sum goes to the matrix that is added, and the sum alone if it goes to another one. Where the
// residual stream is kept decides which of the two a block asks for, so its bits would depend on the memory that there
// is.
func (p *Product) Suits() bool {
	types := p.A.Type == p.B.Type && (p.C.Type == p.A.Type || p.C.Type == F32)
	once := p.C.Type == F32 || !p.Accumulate
	return types && once && (p.A.At|p.B.At|p.C.At|p.Base.At)%AlignBytes == 0
}
