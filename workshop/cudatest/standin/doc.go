// Package standin is a CUDA driver in Go: it fills [driver.API] with functions that do on the CPU what a GPU's driver
// would do. It lets tests of the CUDA device run on machines without a GPU.
//
// A [Driver] has one card or several, each with one primary context. The CUDA device drives [Driver.API], and
// [Driver.Check] lists at the end the device's mistakes. Kernels are the PTX that the program carries, run by package
// ptx; tests of their own may bring kernels in Go ([Options.Load]).
//
// It is as strict as CUDA's rules, and stricter than most drivers:
//
//   - Device memory is separate from the host's: a [driver.DevicePtr] is an address at which no process has memory.
//     Allocations start at multiples of 256 that are not multiples of 512, never adjoin, never use an address again,
//     and are filled with 0xff (NaN in every float type, -1 in every integer). Registered host memory has its own
//     address, as with unified addressing.
//   - A stream is a goroutine with a queue. Copies, fills and launches run there after the call has returned, each after a random
//     pause if [Options.MaxDelay] asks for it. Addresses are resolved when work is queued and again when it runs.
//   - Events follow CUDA: a wait refers to the latest record before the call, an event that was never recorded is not
//     waited for, and the work of a stream or event that is destroyed early is still done.
//   - The legacy default stream (0) is refused.
//   - A context is current for an OS thread, and every call that needs one checks it, and that it was made so by the
//     same goroutine: a goroutine that is not locked to its thread must not rely on the context that another goroutine
//     has left there. (On Linux, where threads have names.)
//   - What a context made is used while that context is current: streams, events, modules, memory, and a call that
//     unregisters. As CUDA has it, any context may wait for an event and have a stream of its own wait for it, and may
//     use host memory that was registered as portable; no host memory is registered twice, whichever contexts ask.
//   - No card reaches the memory of another.
//   - A failure of queued work is sticky: every later call in the context returns it, and the rest of its queues is
//     skipped. Contexts of other cards continue, where CUDA's text speaks of the process: so tests can tell which card
//     failed.
//   - A call that releases something does so even if it returns an error, so that Check names the callers that tried; a
//     call that waits has waited.
//
// Under the race detector device memory is ordinary Go memory (it always is), and copies, fills and kernels are
// ordinary Go reads and writes of their stream's goroutine. Nothing that the stand-in does for itself orders two
// streams, or a stream and the host, beyond what CUDA promises: queues pass order one way, from the caller to the
// stream, and tables are snapshots. So two streams that touch the same bytes without a wait between them are a data
// race that the detector reports, whatever the timing was. The calls that make and destroy things do order the host's
// threads among each other.
package standin
