// Package cuda is the device that computes on an NVIDIA GPU.
//
// It stands on three things below it: driver is the CUDA driver API as a Go value, kernels has the operations as compiled PTX, and
// cublaslt multiplies matrices where NVIDIA's library is installed; where it is not, kernels' own products do. Nothing of CUDA's
// toolkit is needed, to build or to run. Package standin puts a driver in Go below the same code, for tests without a GPU.
//
// A [Device] is the primary context of one GPU. Memory for operands comes from [Device.Alloc]; host memory is pinned where
// hostmem mapped it ([Device.Register]) and only copied: operations on it are refused. A [Stream] is a CUDA stream; each
// operation checks its operands (device.Operands), picks a kernel and launches it. What runs is decided by shapes, types and
// alignment alone, so results repeat to the bit.
//
// Invariants:
//
//   - Every driver call's status is checked, and the error names the device, the operation, the stream and the call.
//   - A context is current for an OS thread, and goroutines wander. So whoever calls the driver enters first: it locks its goroutine
//     to the thread and makes the context current, which is cheap beside any call.
//   - An operation that fails when it is enqueued sticks to its stream, and from there to the events that are recorded later, on the
//     host: work behind it is never handed to the driver. What fails later kills CUDA's context, and with it everything: each
//     later call says so, in one line.
//   - What the device holds for itself (a workspace for products, tables, scratch for sums) is reserved when it or a stream is
//     opened. Operations allocate nothing.
//   - Two streams share the workspace: whoever multiplies after another waits for it, on the GPU.
package cuda
