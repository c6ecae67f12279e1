// Package kernels is the arithmetic of the CPU device, all but the matrix product: optimizer, sums, casts, norms, rotary
// positions, SwiGLU, cross-entropy, embedding, bias, gates and short convolutions, as serial functions over memory that
// the caller owns.
//
// A [Table] holds the kernels of one instruction-set level; [For] finds it. Vec and Mat say where numbers are; they are
// F32 or BF16, arithmetic is in fp32, and a BF16 result is rounded once, to nearest even, denormals kept
// (tensor.BF16FromF32).
//
// Invariants:
//
//   - Every kernel is defined down to the order of its roundings, and every level gives the same bits (a NaN's payload
//     excepted). The plain-Go twin is the definition that the tests compare the assembly with.
//   - The caller spreads work over goroutines by ranges of rows, columns or elements. No range changes a bit, as long as
//     it is cut at the granule that the function states (one row, one column or one element where it states nothing).
//   - Nothing is allocated, nothing is kept, and no call into assembly runs much longer than 100 microseconds: Go cannot
//     preempt it, and a garbage collection would wait for it.
//   - Outputs may be the same memory as an input of the same shape and type, but may not overlap it in part.
//
// Shapes that do not agree are a bug of the caller and panic.
package kernels

//go:generate go run ../../../workshop/assembly/kernels
