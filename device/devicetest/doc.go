// Package devicetest is the suite that every driver passes, and two devices for tests: a reference, and one that fails
// on demand.
//
// [Run] holds a driver against the texts of package device. It carries out each operation on the driver and on
// [Reference], a device that computes in float64 by a few plain loops, and compares. Shapes are not round, types are
// F32 and BF16, matrices are dense or strided, and every byte outside of the inputs is poisoned with NaNs: an operation
// that reads what it should not gives NaNs, and one that writes what it should not is found by comparing all bytes.
// Operations that the contract defines to the bit (AdamW, sums, casts, additions) are compared to the bit. The
// reference itself is held against finite differences and against transformers.
//
// [Suite] is the same for drivers that differ: it has their tolerances, their alignment, and a way to make a stream
// fail. [Faulty] wraps a device of any driver, for the tests of code that must survive errors.
package devicetest
