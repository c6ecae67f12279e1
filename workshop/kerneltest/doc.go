// Package kerneltest runs compiled kernels, for tests: each run launches some of them on matrices with gaps between the
// rows, in the interpreter of PTX or on a GPU. [GPU] does all runs on a GPU, and the tests of this package do them in
// the interpreter.
//
// Kernels are held against the reference that devicetest holds drivers against: a bench copies its matrices, has the
// reference carry out the operation on the copies (bench.of), and compares. So a formula is written once. Sums in a
// defined order are compared with the CPU driver's bits, variants of a kernel with each other, and products that are
// too large for the reference in samples.
//
// That the kernels agree with the contract is for devicetest to show, through the launch code. This package is about
// the effect of alignment, strides and orders on compiled code.
package kerneltest
