// Package devicetest is the suite that every driver passes, and a device that fails on demand.
//
// [Run] holds a driver against the texts of package device. Each operation is compared with a reference in float64 that is
// a few plain loops (reference.go; its gradients are themselves held against finite differences), on shapes that are not
// round, in F32 and BF16, dense and strided, with every byte outside of the inputs poisoned with NaNs: an operation that
// reads what it should not gives NaNs, and one that writes what it should not is found by comparing all bytes.
// What the contract defines to the bit (AdamW, sums, casts, additions) is compared to the bit.
//
// [Suite] is the same with what differs between drivers: tolerances, alignment, how to make a stream fail.
// [Faulty] wraps a device of any driver for the tests of those who must survive errors.
package devicetest
