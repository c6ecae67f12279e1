// Package driver is the CUDA driver API as a Go value.
//
// [API] has one function per driver function that the CUDA device calls. [Load] fills it from libcuda.so, which comes
// with NVIDIA's kernel module, so neither the CUDA toolkit nor a C compiler is needed to build or to run; package
// standin fills it with Go, for tests on machines without a GPU. Code that drives a GPU takes an *API and cannot tell
// the two apart.
//
// Types and constants have CUDA's names without the prefix. Functions follow C: they return a [Result], and return
// other values through pointers, which must not be nil. [Result.Err] turns the outcome of a call into an error with a
// name.
//
// Invariants:
//
//   - An API is complete: no field is nil.
//   - Memory that a function is given is used until it returns, and by the asynchronous copies until their stream has passed them.
//   - A call blocks its OS thread, not the Go scheduler's other threads. A context is current for a thread, so a caller
//     of CtxSetCurrent first locks its goroutine to its thread (runtime.LockOSThread).
//
// With the build tag nogpu, and anywhere but on Linux on amd64 and arm64, Load returns an error that says so and the
// binary stays free of dynamic linking.
package driver
