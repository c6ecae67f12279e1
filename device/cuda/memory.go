package cuda

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
)

// maxPieceBytes is the most that one copy moves, so that streams which copy in one direction share the link.
const maxPieceBytes = 64 << 20

// buffer is memory of the GPU, or host memory that is pinned.
type buffer struct {
	device *Device
	bytes  int64
	at     driver.DevicePtr // of device memory, and of host memory that kernels reach
	host   unsafe.Pointer   // of host memory
	pin    *pinning         // of host memory; nil: device memory
	closed bool
}

// Alloc implements device.Device.
func (d *Device) Alloc(purpose string, bytes int64) (device.Buffer, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("device %s: %d bytes for %s is not a length", d.id, bytes, purpose)
	}
	b := &buffer{device: d, bytes: bytes}
	err := d.with(func() error {
		if bytes == 0 {
			return nil
		}
		if err := d.allocate(&b.at, purpose, bytes); err != nil {
			return err
		}
		err := d.clear(b.at, bytes)
		if err != nil {
			err = firstOf(err, d.check("cuMemFree", d.api.MemFree(b.at)))
		}
		return err
	})
	if err != nil {
		return nil, d.named(err)
	}
	d.open.Add(1)
	return b, nil
}

// allocate is cuMemAlloc with an error that helps. The context is current.
func (d *Device) allocate(at *driver.DevicePtr, purpose string, bytes int64) error {
	err := d.check("cuMemAlloc", d.api.MemAlloc(at, uint64(bytes)))
	if err == nil {
		return nil
	}
	there := ""
	var free, total uint64
	if r := d.api.MemGetInfo(&free, &total); r == driver.Success {
		there = fmt.Sprintf(": %s of %s are free", gib(free), gib(total))
	}
	return fmt.Errorf("allocate %s for %s%s: %w; lower memory.device, or end other programs that use the GPU", gib(bytes), purpose, there, err)
}

// FreeBytes implements device.MemoryReporter.
func (d *Device) FreeBytes() (int64, error) {
	var free, total uint64
	err := d.with(func() error { return d.check("cuMemGetInfo", d.api.MemGetInfo(&free, &total)) })
	return int64(free), d.named(err)
}

// clear zeroes device memory and waits for it. The context is current.
func (d *Device) clear(at driver.DevicePtr, bytes int64) error {
	return d.once(func(s driver.Stream) error {
		return d.check("cuMemsetD8Async", d.api.MemsetD8Async(at, 0, uint64(bytes), s))
	})
}

// once runs something on a stream of its own and waits for it. The context is current.
func (d *Device) once(f func(s driver.Stream) error) error {
	var s driver.Stream
	if err := d.check("cuStreamCreateWithPriority", d.api.StreamCreateWithPriority(&s, driver.StreamNonBlocking, 0)); err != nil {
		return err
	}
	err := f(s)
	if err == nil {
		err = d.check("cuStreamSynchronize", d.api.StreamSynchronize(s))
	}
	if destroyed := d.check("cuStreamDestroy", d.api.StreamDestroy(s)); err == nil {
		err = destroyed
	}
	return err
}

// Bytes implements device.Buffer.
func (b *buffer) Bytes() int64 { return b.bytes }

// Close implements device.Buffer.
func (b *buffer) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	d := b.device
	d.open.Add(-1)
	switch {
	case b.pin != nil:
		return b.pin.leave()
	case b.bytes == 0:
		return nil
	}
	return d.release(func() error { return d.check("cuMemFree", d.api.MemFree(b.at)) })
}

// address returns the GPU's address of memory that kernels reach.
func address(m device.Mem) driver.DevicePtr { return m.Buf.(*buffer).at + driver.DevicePtr(m.Off) }

// copy enqueues a copy in pieces. The context is current.
func (s *Stream) copy(dst, src device.Mem) error {
	d, api := s.device, s.device.api
	to, from := dst.Buf.(*buffer), src.Buf.(*buffer)
	for done := int64(0); done < dst.Len; {
		n := min(d.pieceBytes, dst.Len-done)
		a, b := dst.Off+done, src.Off+done
		n = min(n, to.whole(a), from.whole(b))
		var err error
		switch {
		case to.pin == nil && from.device != d:
			err = d.check("cuMemcpyPeerAsync", api.MemcpyPeerAsync(to.at+driver.DevicePtr(a), d.context,
				from.at+driver.DevicePtr(b), from.device.context, uint64(n), s.handle))
		case to.pin == nil && from.pin == nil:
			err = d.check("cuMemcpyDtoDAsync", api.MemcpyDtoDAsync(to.at+driver.DevicePtr(a), from.at+driver.DevicePtr(b), uint64(n), s.handle))
		case to.pin == nil:
			err = d.check("cuMemcpyHtoDAsync", api.MemcpyHtoDAsync(to.at+driver.DevicePtr(a), unsafe.Add(from.host, b), uint64(n), s.handle))
		case from.pin == nil:
			err = d.check("cuMemcpyDtoHAsync", api.MemcpyDtoHAsync(unsafe.Add(to.host, a), from.at+driver.DevicePtr(b), uint64(n), s.handle))
		default: // addresses are unified: those of the host are the GPU's, too
			err = d.check("cuMemcpyAsync", api.MemcpyAsync(hostAddress(to, a), hostAddress(from, b), uint64(n), s.handle))
		}
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

func hostAddress(b *buffer, off int64) driver.DevicePtr {
	return driver.DevicePtr(uintptr(unsafe.Add(b.host, off)))
}

// whole returns how many bytes from off on are in one registration.
func (b *buffer) whole(off int64) int64 {
	if b.pin == nil {
		return b.bytes - off
	}
	return b.pin.pieceBytes - off%b.pin.pieceBytes
}

// zero enqueues the clearing of memory. The context is current.
func (s *Stream) zero(dst device.Mem) error {
	d, b := s.device, dst.Buf.(*buffer)
	for done := int64(0); done < dst.Len; {
		off := dst.Off + done
		n, at := min(dst.Len-done, b.whole(off)), b.at+driver.DevicePtr(off)
		if b.pin != nil {
			if err := d.check("cuMemHostGetDevicePointer", d.api.MemHostGetDevicePointer(&s.mapped, unsafe.Add(b.host, off), 0)); err != nil {
				return err
			}
			at = s.mapped
		}
		if err := d.check("cuMemsetD8Async", d.api.MemsetD8Async(at, 0, uint64(n), s.handle)); err != nil {
			return err
		}
		done += n
	}
	return nil
}
