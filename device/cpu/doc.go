// Package cpu is the device that computes on the host. It is the reference for the contract and the device of machines
// without a GPU. Next to a GPU, one of its streams updates extents in host memory.
//
// A [Device] hands out memory from hostmem and is unified: registered host memory is bound in place. A [Stream] is a
// goroutine with a queue of closures. An operation checks its operands when it is enqueued (device.Operands) and is
// later cut into tasks that the crew works on: the pool of workers with the scratch of the kernels. The arithmetic is
// in the packages kernels, gemm and attention; this one binds memory, cuts work, and keeps order.
//
// Invariants:
//
//   - The cut of the work never changes a bit: every kernel defines its sums independently of the ranges that it is
//     called with.
//   - Streams share the crew and wait for each other at tasks, never for each other's operations. A long
//     operation next to a compute stream (AdamW, sums) gives the crew back every millisecond or so.
//   - An error in an operation, panics included, sticks to the stream with the operation's name.
//   - Under the race detector a stream reports every range that its operations read and write, matrices row by row, and
//     no two streams share a lock, a worker or scratch: the only order between streams that the detector sees is that of
//     events, so that it finds every wait that is missing.
package cpu
