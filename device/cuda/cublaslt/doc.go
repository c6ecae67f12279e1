// Package cublaslt multiplies matrices on a GPU with NVIDIA's cuBLASLt.
//
// [Load] finds the library, which comes with the CUDA toolkit and with the pip package nvidia-cublas, and [Library.Open] makes
// a [BLAS] for the current context. [BLAS.MatMul] takes row-major matrices, as package device has them; the library thinks in
// columns, so that it is given the transposed product: C' = B'·A', where a row-major matrix read by columns is its transpose.
//
// Invariants:
//
//   - Products are summed in fp32, of fp32 operands without TF32, and rounded once.
//   - One algorithm per shape, types, strides, flags and alignment (256 bytes, or [AlignBytes]), which [BLAS].Tune
//     chose, or the library's heuristic at the first such product; it is kept. It adds partial sums in a fixed order, so results repeat
//     to the bit.
//   - The package allocates no device memory: the caller lends a workspace of [WorkspaceBytes], to one product at a time.
//
// Source: NVIDIA, "cuBLAS", chapter "Using the cuBLASLt API"; numbers of enumerators are those of cublasLt.h of CUDA 12.
//
// With the build tag nogpu, and anywhere but on Linux on amd64 and arm64, Load returns an error that says so.
package cublaslt
