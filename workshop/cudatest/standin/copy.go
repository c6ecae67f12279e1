package standin

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
)

func (d *Driver) memcpyHtoDAsync(dst driver.DevicePtr, src unsafe.Pointer, bytes uint64,
	s driver.Stream) driver.Result {
	return d.copyAsync("MemcpyHtoDAsync", d.onDevice(dst), d.onHost(src), bytes, s)
}

func (d *Driver) memcpyDtoHAsync(dst unsafe.Pointer, src driver.DevicePtr, bytes uint64,
	s driver.Stream) driver.Result {
	return d.copyAsync("MemcpyDtoHAsync", d.onHost(dst), d.onDevice(src), bytes, s)
}

func (d *Driver) memcpyDtoDAsync(dst, src driver.DevicePtr, bytes uint64, s driver.Stream) driver.Result {
	return d.copyAsync("MemcpyDtoDAsync", d.onDevice(dst), d.onDevice(src), bytes, s)
}

func (d *Driver) memcpyAsync(dst, src driver.DevicePtr, bytes uint64, s driver.Stream) driver.Result {
	return d.copyAsync("MemcpyAsync", d.onDevice(dst), d.onDevice(src), bytes, s)
}

// memcpyPeerAsync copies, with or without access. Without it the driver makes a detour through host memory, which no
// program wants that could do better itself.
func (d *Driver) memcpyPeerAsync(dst driver.DevicePtr, to driver.Context, src driver.DevicePtr, from driver.Context,
	bytes uint64, s driver.Stream) driver.Result {
	const call = "MemcpyPeerAsync"
	a, b, current := d.cardOf(uintptr(to)), d.cardOf(uintptr(from)), d.cardOf(d.current())
	switch {
	case a == nil || b == nil:
		return d.refuse(driver.InvalidContext, "%s: %#x or %#x is no context", call, to, from)
	case current != nil && !(current.reaches(a) && current.reaches(b)):
		d.misused("%s: %d bytes pass through host memory, as card %d has no access to the other one's", call, bytes,
			current.number)
	}
	return d.copyAsync(call, place{address: uint64(dst), of: a}, place{address: uint64(src), of: b}, bytes, s)
}

// place is one side of a copy.
type place struct {
	address  uint64
	pageable unsafe.Pointer // host memory that is not registered
	of       *card          // whose memory it is; nil: all that the card of the copy reaches
}

func (d *Driver) onDevice(p driver.DevicePtr) place { return place{address: uint64(p)} }

func (d *Driver) onHost(p unsafe.Pointer) place {
	return place{address: uint64(uintptr(p)), pageable: p}
}

// bytes is the memory at a place. With a place of host memory that is not registered, pageable is true.
func (p place) bytes(s space, n uint64) (mem []byte, pageable bool, err error) {
	if p.of != nil {
		s.card, s.alone = p.of, true
	}
	mem, err = s.At(p.address, int(n))
	if err != nil && p.pageable != nil && p.address < firstAddress {
		return unsafe.Slice((*byte)(p.pageable), n), true, nil
	}
	return mem, false, err
}

func (d *Driver) copyAsync(call string, dst, src place, n uint64, h driver.Stream) driver.Result {
	c, r := d.enter(call)
	if r != driver.Success {
		return r
	}
	s, r := c.use(call, h)
	if r != driver.Success {
		return r
	}
	if n == 0 {
		return driver.Success
	}
	var waits bool
	for _, side := range []place{dst, src} {
		_, pageable, err := side.bytes(c.space(), n)
		if err != nil {
			return d.refuse(driver.InvalidValue, "%s: %v", call, err)
		}
		if pageable {
			d.misused("%s: %d bytes of host memory are not registered, so the copy is not asynchronous", call, n)
			waits = true
		}
	}
	if dst.address < src.address+n && src.address < dst.address+n {
		d.misused("%s: %d bytes are copied to where they partly are", call, n)
	}
	s.run(call, func() (driver.Result, error) {
		now := c.space()
		to, toPageable, err := dst.bytes(now, n)
		if err != nil {
			return driver.IllegalAddress, err
		}
		from, fromPageable, err := src.bytes(now, n)
		if err != nil {
			return driver.IllegalAddress, err
		}
		if !waits && (toPageable || fromPageable) { // and perhaps unmapped
			return driver.IllegalAddress, fmt.Errorf("%d bytes of host memory were unregistered before", n)
		}
		copy(to, from)
		return driver.Success, nil
	})
	if waits {
		<-s.record().reached
	}
	return driver.Success
}

func (d *Driver) memsetD8Async(dst driver.DevicePtr, value byte, n uint64, h driver.Stream) driver.Result {
	const call = "MemsetD8Async"
	c, r := d.enter(call)
	if r != driver.Success {
		return r
	}
	s, r := c.use(call, h)
	if r != driver.Success || n == 0 {
		return r
	}
	if _, err := c.space().At(uint64(dst), int(n)); err != nil {
		return d.refuse(driver.InvalidValue, "%s: %v", call, err)
	}
	s.run(call, func() (driver.Result, error) {
		to, err := c.space().At(uint64(dst), int(n))
		if err != nil {
			return driver.IllegalAddress, err
		}
		fill(to, value)
		return driver.Success, nil
	})
	return driver.Success
}

// fill copies what it has filled: a loop over bytes is slow under the race detector.
func fill(to []byte, value byte) {
	to[0] = value
	for n := 1; n < len(to); n *= 2 {
		copy(to[n:], to[:n])
	}
}
