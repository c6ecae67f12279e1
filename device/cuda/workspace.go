package cuda

import (
	"sync"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
)

// workspaceBytes is the length of the workspace that the library for matrix products asks for. Sums over rows need much
// less.
const workspaceBytes = cublaslt.WorkspaceBytes

// deltaBytes is the length of the workspace for gated delta nets: all that there is of it. The more chunks of a net it
// has room for, the more programs its kernels have at once, and the more documents a scan goes through side by side.
const deltaBytes = device.GPUDeltaBytes

// workspace is device memory for intermediate results of operations, deltaBytes long. Streams use it one after the
// other.
type workspace struct {
	mu    sync.Mutex
	at    driver.DevicePtr
	last  *Stream      // used it last; nil: no stream whose work could be in progress
	moved driver.Event // recorded when another stream takes over
}

// lend has f enqueue work of s that uses the workspace. On the GPU it waits for the work of the stream that used it
// before, if that is another one. The context is current.
func (w *workspace) lend(s *Stream, f func(at driver.DevicePtr) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last != nil && w.last != s {
		d := s.device
		if err := d.check("cuEventRecord", d.api.EventRecord(w.moved, w.last.handle)); err != nil {
			return err
		}
		if err := d.check("cuStreamWaitEvent", d.api.StreamWaitEvent(s.handle, w.moved, 0)); err != nil {
			return err
		}
	}
	w.last = s
	return f(w.at)
}

// leave is told of a stream that is done.
func (w *workspace) leave(s *Stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == s {
		w.last = nil
	}
}
