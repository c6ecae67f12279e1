// Package kerneltest runs compiled kernels, for tests: each run launches some of them on matrices with gaps between the
// rows, in the interpreter of PTX or on a GPU, and compares the results with float64 or with the CPU driver's bits.
// [GPU] does all runs on a GPU, and the tests of this package do them in the interpreter.
//
// That the kernels agree with the contract is for devicetest to show, through the launch code. This package is about
// the effect of alignment, strides and orders on compiled code.
package kerneltest
