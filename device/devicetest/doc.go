// Package devicetest is the suite that every driver passes, and a device that fails on demand.
//
// [Run] holds a driver against the texts of package device. Each operation is compared with a reference in float64 that
// is a few plain loops (reference.go; its gradients are themselves held against finite differences), on shapes that are
// not round, in F32 and BF16, dense and strided, with every byte outside of the inputs poisoned with NaNs: an operation
// that reads what it should not gives NaNs, and one that writes what it should not is found by comparing all bytes.
// Operations that the contract defines to the bit (AdamW, sums, casts, additions) are compared to the bit.
//
// [Suite] is the same for drivers that differ: it has their tolerances, their alignment, and a way to make a stream
// fail. [Faulty] wraps a device of any driver, for the tests of code that must survive errors.
package devicetest
