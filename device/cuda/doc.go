// Package cuda is the device that computes on an NVIDIA GPU.
//
// It uses three packages: driver is the CUDA driver API as a Go value, kernels has the operations as compiled PTX, and
// cublaslt multiplies matrices where NVIDIA's library is installed; where it is not, the products of package kernels
// do. Neither building nor running needs CUDA's toolkit. Package standin puts a driver in Go below the same code, for
// tests without a GPU.
//
// A [Device] is the primary context of one GPU. Memory for operands comes from [Device.Alloc]; host memory is pinned
// where hostmem mapped it ([Device.Register]), once for all GPUs. It is copied, and where the driver has kernels see it
// at the host's address (device.Info.ReachesHost) operations work on it, too, over the link; else they are refused. A
// [Stream] is a CUDA stream; each operation checks its operands (device.Operands), picks a kernel and launches it.
// Shapes, types and alignment alone decide which kernel runs, so results repeat to the bit.
//
// Invariants:
//
//   - Every driver call's status is checked, and the error names the device, the operation, the stream and the call.
//   - A context is current for an OS thread, and goroutines wander. So a caller of the driver enters first: it locks
//     its goroutine to the thread and makes the context current, which is cheap compared with any call.
//   - An operation that fails when it is enqueued sticks to its stream, and from there to the events that are recorded
//     later, on the host: later work of the stream is never handed to the driver. A failure on the GPU kills CUDA's
//     context, and with it everything: each later call says so, in one line.
//   - The device's own memory (a workspace for products, tables, scratch for sums) is reserved when the device or a
//     stream is opened. Operations allocate nothing.
//   - Of two devices, a stream may wait for an event of the other, and both may copy from and to the same pinned
//     memory. All else belongs to one.
//   - Streams share the workspace: a product waits, on the GPU, for the product of another stream that used it before.
package cuda
