package cuda

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
)

const (
	// maxPinBytes is the most that one registration pins: drivers refuse those of hundreds of GiB, and several run at
	// once.
	maxPinBytes = 4 << 30
	// pinsAtOnce bounds the registrations of a device that run at once.
	pinsAtOnce = 8
	// maxPieceBytes is the most that one copy moves, so that streams which copy in one direction share the link.
	maxPieceBytes = 64 << 20
)

// buffer is memory of the GPU, or host memory that is pinned.
type buffer struct {
	device *Device
	bytes  int64
	at     driver.DevicePtr // of device memory
	host   unsafe.Pointer   // of host memory
	region *hostmem.Region  // nil: device memory
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

// pinning is a region of host memory that the driver knows, for all buffers that were made of it.
type pinning struct {
	users int // buffers, and callers that wait for mu; Device.mu guards it

	mu     sync.Mutex // held while the driver is asked
	pinned bool
}

// Register implements device.Device. The pages of the region are pinned, no more and no less.
func (d *Device) Register(r *hostmem.Region) (device.Buffer, error) {
	if r.AddressOnly() {
		return nil, fmt.Errorf("device %s: register %s: the region is reserved without memory; rehearse on the null device", d.id, r.Purpose())
	}
	b := &buffer{device: d, bytes: r.Len(), region: r, host: unsafe.Pointer(unsafe.SliceData(r.Bytes()))}
	d.mu.Lock()
	p := d.pinned[r]
	if p == nil {
		p = &pinning{}
		d.pinned[r] = p
	}
	p.users++
	d.mu.Unlock()

	p.mu.Lock()
	var err error
	if !p.pinned {
		err = d.pin(b.host, r.ReservedBytes())
		p.pinned = err == nil
	}
	p.mu.Unlock()
	if err != nil {
		_ = d.leave(b, p) // nothing is pinned, so nothing is given back
		return nil, fmt.Errorf("device %s: pin %s of host memory for %s: %w", d.id, gib(r.ReservedBytes()), r.Purpose(), err)
	}
	d.open.Add(1)
	return b, nil
}

// leave is one user less of a pinning. The last one has the driver forget it.
func (d *Device) leave(b *buffer, p *pinning) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := func() bool { return p.users == 0 }
	d.mu.Lock()
	p.users--
	forget := last() && p.pinned
	d.mu.Unlock()
	if forget {
		err = d.release(func() error { return d.unpin(b.host, b.region.ReservedBytes()) })
		p.pinned = false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if last() { // still
		delete(d.pinned, b.region)
	}
	return err
}

// pin registers host memory, all of it or nothing, in pieces of which several are pinned at once. The error is that
// of the first piece that failed.
func (d *Device) pin(host unsafe.Pointer, bytes int64) error {
	pieces := (bytes + d.pinBytes - 1) / d.pinBytes
	pinned, errs := make([]bool, pieces), make([]error, pieces)
	var failed atomic.Bool // the other pieces need not begin
	var group fault.Group
	for i := range pieces {
		d.pins <- struct{}{}
		group.Go(func() {
			defer func() { <-d.pins }()
			if off := i * d.pinBytes; !failed.Load() {
				errs[i] = d.with(func() error { return d.pinPiece(unsafe.Add(host, off), min(d.pinBytes, bytes-off)) })
				pinned[i] = errs[i] == nil
				if !pinned[i] {
					failed.Store(true)
				}
			}
		})
	}
	group.Wait()
	var first error
	for _, err := range errs {
		first = firstOf(first, err)
	}
	if first == nil {
		return nil
	}
	for i, is := range pinned {
		if is { // the first error says why; what cannot be given back says nothing more
			_ = d.release(func() error { return d.unpinPiece(unsafe.Add(host, int64(i)*d.pinBytes)) })
		}
	}
	return first
}

// pinPiece is cuMemHostRegister with an error that helps. The context is current.
func (d *Device) pinPiece(host unsafe.Pointer, bytes int64) error {
	r := d.api.MemHostRegister(host, uint64(bytes), driver.MemHostRegisterDeviceMap)
	err := d.check("cuMemHostRegister", r)
	if err == nil {
		return nil
	}
	var free, total uint64
	if r == driver.OutOfMemory && d.api.MemGetInfo(&free, &total) == driver.Success &&
		int64(free) < bytes>>20*device.GPUPinnedDeviceBytesPerMiB+pageTableSlackBytes {
		return fmt.Errorf("%w: the GPU has %s free of %s, and it must hold the page tables of pinned memory; "+
			"lower memory.device, or end other programs that use the GPU", err, gib(free), gib(total))
	}
	switch r {
	case driver.OutOfMemory:
		return fmt.Errorf("%w; lower memory.host", err)
	case driver.HostMemoryAlreadyRegistered:
		return fmt.Errorf("%w; another device of this process holds it: close that one first", err)
	case driver.OperatingSystem, driver.NotPermitted:
		return fmt.Errorf("%w; let the process lock memory (ulimit -l unlimited; in a container --ulimit memlock=-1)", err)
	case driver.NotSupported:
		return fmt.Errorf("%w; this system cannot pin host memory for the GPU: set device to cpu", err)
	}
	return err
}

// pageTableSlackBytes covers the rounding of page tables, and other memory that the driver may take with them.
const pageTableSlackBytes = 32 << 20

// unpin is the opposite of pin. The context is current.
func (d *Device) unpin(host unsafe.Pointer, bytes int64) error {
	var err error
	for done := int64(0); done < bytes; done += d.pinBytes {
		err = firstOf(err, d.unpinPiece(unsafe.Add(host, done)))
	}
	return err
}

func (d *Device) unpinPiece(host unsafe.Pointer) error {
	return d.check("cuMemHostUnregister", d.api.MemHostUnregister(host))
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
	if b.region == nil {
		if b.bytes == 0 {
			return nil
		}
		return d.release(func() error { return d.check("cuMemFree", d.api.MemFree(b.at)) })
	}
	d.mu.Lock()
	p := d.pinned[b.region]
	d.mu.Unlock()
	return d.leave(b, p)
}

// address returns the GPU's address of device memory.
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
		case to.region == nil && from.region == nil:
			err = d.check("cuMemcpyDtoDAsync", api.MemcpyDtoDAsync(to.at+driver.DevicePtr(a), from.at+driver.DevicePtr(b), uint64(n), s.handle))
		case to.region == nil:
			err = d.check("cuMemcpyHtoDAsync", api.MemcpyHtoDAsync(to.at+driver.DevicePtr(a), unsafe.Add(from.host, b), uint64(n), s.handle))
		case from.region == nil:
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
	if b.region == nil {
		return b.bytes - off
	}
	return b.device.pinBytes - off%b.device.pinBytes
}

// zero enqueues the clearing of memory. The context is current.
func (s *Stream) zero(dst device.Mem) error {
	d, b := s.device, dst.Buf.(*buffer)
	for done := int64(0); done < dst.Len; {
		off := dst.Off + done
		n, at := min(dst.Len-done, b.whole(off)), b.at+driver.DevicePtr(off)
		if b.region != nil {
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
