package cuda

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
)

// Stream is a CUDA stream.
type Stream struct {
	name     string
	device   *Device
	handle   driver.Stream
	partials driver.DevicePtr // sums of chunks
	operands device.Operands
	err      error // the first, or one that came with an event
	closed   bool

	// What operations need, here so that nothing is allocated.
	args    [maxArgs]arg
	values  [maxArgs]uint64
	params  [maxArgs]unsafe.Pointer // into values
	product cublaslt.Product
	mapped  driver.DevicePtr // host memory, as the device sees it
}

var _ device.Stream = (*Stream)(nil)

// NewStream implements device.Device.
func (d *Device) NewStream(name string) (device.Stream, error) {
	s := &Stream{name: name, device: d}
	for i := range s.params {
		s.params[i] = unsafe.Pointer(&s.values[i])
	}
	err := d.with(func() error {
		if err := d.allocate(&s.partials, "the sums of stream "+name, partialsBytes); err != nil {
			return err
		}
		err := d.check("cuStreamCreateWithPriority", d.api.StreamCreateWithPriority(&s.handle, driver.StreamNonBlocking, 0))
		if err != nil {
			_ = d.check("cuMemFree", d.api.MemFree(s.partials)) // the first error is the one that says why
		}
		return err
	})
	if err != nil {
		return nil, d.named(err)
	}
	d.open.Add(1)
	return s, nil
}

// with calls f with the context current, and says in an error which operation of which stream it belongs to.
func (s *Stream) with(op string, f func() error) error {
	if err := s.device.with(f); err != nil {
		return fmt.Errorf("device %s: %s on stream %s: %w", s.device.id, op, s.name, err)
	}
	return nil
}

func (s *Stream) mustBeOpen() {
	if s.closed {
		panic("cuda device: stream " + s.name + " is used after Close")
	}
}

// enqueue checks that the operation which s.operands describes works on this device, and calls f to hand it to the driver,
// unless an error stuck to the stream before.
func (s *Stream) enqueue(f func() error) { s.put(false, f) }

// put is enqueue for operations that may work on pinned host memory, whether kernels reach it or not.
func (s *Stream) put(hostAllowed bool, f func() error) {
	s.mustBeOpen()
	for _, o := range s.operands.List {
		b, ok := o.Buf.(*buffer)
		switch {
		case !ok || b.closed || b.device != s.device && !(s.operands.FromPeer(o) && s.device.reaches(b)):
			panic("cuda device: " + s.operands.Op + ": " + o.Name + " is closed or belongs to another device")
		case b.pin != nil && !hostAllowed && !s.device.info.ReachesHost:
			panic("cuda device: " + s.operands.Op + ": " + o.Name + " is host memory, which is only copied and cleared")
		}
	}
	if s.err == nil {
		s.err = s.with(s.operands.Op, f)
	}
}

// Copy implements device.Stream.
func (s *Stream) Copy(dst, src device.Mem) {
	s.operands.Copy(dst, src)
	s.put(true, func() error { return s.copy(dst, src) })
}

// Zero implements device.Stream.
func (s *Stream) Zero(dst device.Mem) {
	s.operands.Zero(dst)
	s.put(true, func() error { return s.zero(dst) })
}

// Sync implements device.Stream.
func (s *Stream) Sync() error {
	s.mustBeOpen()
	err := s.with("Sync", func() error {
		return s.device.check("cuStreamSynchronize", s.device.api.StreamSynchronize(s.handle))
	})
	if s.err == nil {
		s.err = err
	}
	return s.err
}

// Close implements device.Stream. It returns what Sync would.
func (s *Stream) Close() error {
	if s.closed {
		return nil
	}
	_ = s.Sync() // the error stays
	s.closed = true
	d := s.device
	d.open.Add(-1)
	d.workspace.leave(s)
	err := d.release(func() error {
		err := d.check("cuStreamDestroy", d.api.StreamDestroy(s.handle))
		if freed := d.check("cuMemFree", d.api.MemFree(s.partials)); err == nil {
			err = freed
		}
		return err
	})
	if s.err == nil {
		return err
	}
	return s.err
}
